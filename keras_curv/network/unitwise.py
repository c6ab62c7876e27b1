"""Activations chosen by unit: units that carry their input along beside units that bend it.

A layer whose units differ makes every feed-forward graph a chain. What skips a layer passes it
through units with the identity, and `max(a, b) = a + relu(b − a)` is affine but for a relu.
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
    """Activations of the units of one layer, the last axis of every tensor; see `unit_wise`.

    Ranges and what follows from them are vectors over the units.

    Attributes:
        parts: how many units in a row have which activation.
    """

    parts: tuple[tuple[Activation, int], ...] = ()

    @property
    def groups(self) -> list[tuple[Activation, slice]]:
        """See `Activation`."""
        ends = np.cumsum([count for _, count in self.parts]).tolist()
        return [
            (sigma, slice(end - count, end))
            for (sigma, count), end in zip(self.parts, ends, strict=True)
        ]

    @functools.cached_property
    def slope(self) -> np.ndarray:  # type: ignore[override]
        """See `Activation`; of each unit."""
        return np.maximum(*np.abs(self.first_range))

    @property
    def steepest(self) -> float:
        """See `Activation`."""
        return float(self.slope.max())

    @functools.cached_property
    def bend(self) -> np.ndarray:  # type: ignore[override]
        """See `Activation`; of each unit."""
        return np.maximum(*np.abs(self.second_range))

    def first_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """See `Activation`; the last axis is that of the units."""
        return self._range_on("first_range_on", low, high)

    def piece_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """See `Activation`; the last axis is that of the units."""
        return self._range_on("piece_range_on", low, high)

    def _range_on(self, which: str, low: ArrayLike, high: ArrayLike) -> Range:
        low, high = np.broadcast_arrays(np.asarray(low), np.asarray(high))
        found = [getattr(g, which)(low[..., units], high[..., units]) for g, units in self.groups]
        least, most = (np.concatenate(ends, axis=-1) for ends in zip(*found, strict=True))
        return least, most


def unit_wise(parts: Iterable[tuple[Activation, int]]) -> Activation:
    """Returns the activation of a layer with so many units of each kind, in that order.

    Where all are of one kind it is that activation itself.

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
    """Neighbours of one kind taken together, and those that differ by unit taken apart."""
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
