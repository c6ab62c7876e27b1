"""Activations chosen by unit: identity units beside units with another activation.

Layers whose units differ turn every feed-forward graph into a chain. A value that skips a layer
passes through it by identity units, and `max(a, b) = (a + b)/2 + |b − a|/2` takes a |·| beside one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_curv.errors import InputError
from keras_curv.network.activation import Activation, Range

IDENTITY = Activation(
    name="identity",
    value=tf.identity,
    first=tf.ones_like,
    second=tf.zeros_like,
    first_range=(1.0, 1.0),
    second_range=(0.0, 0.0),
    first_extrema=(),
    second_extrema=(),
    served_floor=0.0,
)


@dataclasses.dataclass(frozen=True, eq=False)
class UnitWise(Activation):
    """The activations of the units of one layer, the last axis of every tensor; see `unit_wise`.

    Ranges and what follows from them are vectors over the units.
    """

    # the activations of consecutive units, each with its number of units
    parts: tuple[tuple[Activation, int], ...] = ()

    def __eq__(self, other: object) -> bool:
        """Returns whether all units have equal activations: such networks share graphs."""
        return isinstance(other, UnitWise) and self.parts == other.parts

    def __hash__(self) -> int:
        """Returns a hash of the parts; the ranges are arrays, which have none."""
        return hash(self.parts)

    @property
    def groups(self) -> list[tuple[Activation, slice]]:
        """Returns each activation with the slice of its units."""
        ends = np.cumsum([count for _, count in self.parts]).tolist()
        return [
            (sigma, slice(end - count, end))
            for (sigma, count), end in zip(self.parts, ends, strict=True)
        ]

    @functools.cached_property
    def slope(self) -> np.ndarray:  # type: ignore[override]
        """Returns g = sup |σ′| of each unit."""
        return np.maximum(*np.abs(self.first_range))

    @property
    def steepest(self) -> float:
        """Returns the largest `slope` of all units."""
        return float(self.slope.max())

    @functools.cached_property
    def bend(self) -> np.ndarray:  # type: ignore[override]
        """Returns h = sup |σ″| of each unit."""
        return np.maximum(*np.abs(self.second_range))

    def first_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """Returns the range as in `Activation`; the last axis is that of the units."""
        return self._range_on("first_range_on", low, high)

    def piece_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """Returns the range as in `Activation`; the last axis is that of the units."""
        return self._range_on("piece_range_on", low, high)

    def _range_on(self, which: str, low: ArrayLike, high: ArrayLike) -> Range:
        low, high = np.broadcast_arrays(np.asarray(low), np.asarray(high))
        found = [getattr(g, which)(low[..., units], high[..., units]) for g, units in self.groups]
        least, most = (np.concatenate(ends, axis=-1) for ends in zip(*found, strict=True))
        return least, most


def unit_wise(parts: Iterable[tuple[Activation, int]]) -> Activation:
    """Returns the activation of a layer with the given numbers of units of each kind, in order.

    If all units are of one kind, the result is that activation itself.

    Raises:
        InputError: there is no unit.

    Example:
        >>> from keras_curv.network import activations
        >>> both = unit_wise([(activations.get("softplus"), 1), (IDENTITY, 2)])
        >>> both.name, both.first_range[0], both.smooth
        ('softplus × 1, identity × 2', array([0., 1., 1.]), True)
    """
    runs = _runs(parts)
    if not runs:
        raise InputError("a layer needs at least one unit. Received: none")
    if len({sigma.name for sigma, _ in runs}) == 1:
        return runs[0][0]
    counts = [count for _, count in runs]

    def ends(attribute: str) -> Range:
        pairs = [getattr(sigma, attribute) for sigma, _ in runs]
        low, high = (
            np.repeat(np.array(end, np.float64), counts) for end in zip(*pairs, strict=True)
        )
        return low, high

    return UnitWise(
        name=", ".join(f"{sigma.name} × {count}" for sigma, count in runs),
        value=_by_unit([sigma.value for sigma, _ in runs], counts),
        first=_by_unit([sigma.first for sigma, _ in runs], counts),
        second=_by_unit([sigma.second for sigma, _ in runs], counts),
        first_range=ends("first_range"),
        second_range=ends("second_range"),
        first_extrema=(),
        second_extrema=(),
        value_floor=np.repeat([sigma.value_floor for sigma, _ in runs], counts),
        served_floor=np.repeat([sigma.served_floor for sigma, _ in runs], counts),
        parts=tuple(runs),
    )


def _runs(parts: Iterable[tuple[Activation, int]]) -> list[tuple[Activation, int]]:
    """Splits unit-wise activations into their parts, and merges neighbours of the same kind."""
    runs: list[tuple[Activation, int]] = []
    for activation, count in parts:
        inner = activation.parts if isinstance(activation, UnitWise) else ((activation, count),)
        if sum(many for _, many in inner) != count:
            raise InputError(f"{activation.name} is not of {count} units")
        for sigma, many in inner:
            if runs and runs[-1][0].name == sigma.name:
                runs[-1] = sigma, runs[-1][1] + many
            elif many:
                runs.append((sigma, many))
    return runs


def _by_unit(
    functions: Sequence[Callable[[tf.Tensor], tf.Tensor]], counts: Sequence[int]
) -> Callable[[tf.Tensor], tf.Tensor]:
    def apply(z: tf.Tensor) -> tf.Tensor:
        pieces = tf.split(z, list(counts), axis=-1)
        return tf.concat([f(piece) for f, piece in zip(functions, pieces, strict=True)], axis=-1)

    return apply
