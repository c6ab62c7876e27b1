"""The description of one activation: σ, σ′, σ″ in closed form, with exact ranges."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_curv.errors import InputError
from keras_curv.numerics.intervals import require_interval
from keras_curv.numerics.rounding import TINY

# Closed forms are evaluated in float64; this many units in the last place, relative to the
# supremum, covers the rounding of evaluation and of the locations of the extrema.
_OUTWARD = 64 * 2.0**-53
JUMP = 1e-300  # a point next to 0, for one-sided limits there
_FAR = 1e300  # as good as infinite
_PERIODIC = 2.0**20
Range = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation, applied entrywise.

    Where units differ (`unitwise.py`), numbers below are vectors over the units.

    Example:
        >>> from keras_curv.network import activations
        >>> activations.get("softplus").second_range
        (0.0, 0.25)
    """

    name: str  # the Keras name; "gelu_tanh", which has none, is gelu with `approximate=True`
    value: Callable[[tf.Tensor], tf.Tensor]  # σ, on tensors of any shape, float32 or float64
    first: Callable[[tf.Tensor], tf.Tensor]  # σ′
    second: Callable[[tf.Tensor], tf.Tensor]  # σ″
    first_range: tuple[Any, Any]  # `(min, max)` of σ′ on ℝ (infimum and supremum), rounded outward
    # the same for σ″; contains 0, as σ″ of a function with bounded slope must. An end is infinite
    # where σ′ jumps, or σ″ grows without bound
    second_range: tuple[Any, Any]
    first_extrema: tuple[float, ...]  # points at which σ′ has its interior extrema
    second_extrema: tuple[float, ...]  # points at which σ″ has its interior extrema
    # σ is computed to within an error relative to `|σ(z)| + value_floor`; 0 unless its computation
    # cancels digits, see `numerics/rounding.py`
    value_floor: Any = 0.0
    # a server's float32 σ is within an error relative to `|σ(z)| + served_floor · (1 + |z|)`; 0
    # where a single op of TensorFlow computes σ without cancellation. Others take several ops, or
    # lose digits near 0 as the op of elu does, `exp(z) − 1`, or may lose them far out, where a
    # period is subtracted
    served_floor: Any = 1.0
    # the point of the only interior minimum of σ; None where σ never falls
    minimum_at: float | None = None
    maximum_at: float | None = None  # the point of its only interior maximum, if there is one
    s_shaped: bool = False  # whether σ is convex up to 0 and concave from there on
    # computes σ′ from σ, on arrays or tensors, where that is cheap
    first_of_value: Callable[[Any], Any] | None = None
    hinge: bool = False  # whether σ(z) = max(z, 0)
    # a, where σ(z) is a z for z < 0 and z for z > 0, up to a kink beyond; None elsewhere
    left: float | None = None
    # the period of a periodic activation, whose extrema are listed for one period
    period: float | None = None
    # the points at which σ′ jumps, for an activation that has `piece_range`
    kinks: tuple[float, ...] = ()
    # the range of σ″ wherever it exists, where `second_range` is infinite
    piece_range: tuple[float, float] | None = None
    positive: bool = False  # whether σ is defined for z > 0 only, and NaN elsewhere

    @property
    def groups(self) -> list[tuple[Activation, slice]]:
        """Returns each activation of the layer with its units; only `UnitWise` has several."""
        return [(self, slice(None))]

    @property
    def smooth(self) -> bool:
        """Returns whether σ′ is Lipschitz at all units, so that the curvature is bounded."""
        return bool(np.all(np.isfinite(self.bend)))

    @property
    def monotone(self) -> bool:
        """Returns whether σ is non-decreasing at all units."""
        return bool(np.all(self.first_range[0] >= 0.0))

    @property
    def falls(self) -> bool:
        """Returns whether σ is non-increasing at all units."""
        return bool(np.all(self.first_range[1] <= 0.0))

    @property
    def convex(self) -> bool:
        """Returns whether σ is convex at all units."""
        return bool(np.all(self.second_range[0] >= 0.0))

    @property
    def concave(self) -> bool:
        """Returns whether σ is concave at all units."""
        return bool(np.all(self.second_range[1] <= 0.0))

    @property
    def until(self) -> float:
        """Returns the first kink above 0; infinite if there is none."""
        return min((kink for kink in self.kinks if kink > 0.0), default=np.inf)

    @property
    def centre(self) -> float:
        """Returns the middle of the range of σ′."""
        return sum(self.first_range) / 2.0

    @property
    def spread(self) -> float:
        """Returns half the width of the range of σ′."""
        return (self.first_range[1] - self.first_range[0]) / 2.0

    @property
    def slope(self) -> float:
        """Returns g = sup |σ′|."""
        return max(abs(end) for end in self.first_range)

    @property
    def steepest(self) -> float:
        """Returns the largest `slope` of all units."""
        return self.slope

    @property
    def bend(self) -> float:
        """Returns h = sup |σ″|."""
        return max(abs(end) for end in self.second_range)

    def value_and_first(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns σ and σ′ at the entries of an array."""
        at = tf.constant(z)
        value = np.asarray(self.value(at))
        if self.first_of_value is not None:
            return value, self.first_of_value(value)
        return value, self.first(at).numpy()

    def first_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """Returns the exact range of σ′ on each interval `[low, high]`, rounded outward.

        Args:
            low, high: arrays of one shape, float64, `low ≤ high`; infinite ends are allowed.

        Returns:
            `(min, max)`, arrays of that shape.
        """
        args = self.first, self.first_extrema, self.first_range, self.period
        return self._where_defined(self.first_range, *_range_on(*args, low, high), low)

    def second_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """Returns the exact range of σ″ on each interval `[low, high]`; see `first_range_on`.

        Raises:
            InputError: σ″ is unbounded.
        """
        if not self.smooth:
            raise InputError(f"activation {self.name!r} is not differentiable: σ″ has no range")
        return self.piece_range_on(low, high)

    def piece_range_on(self, low: ArrayLike, high: ArrayLike) -> Range:
        """Returns the range of σ″ on each interval, kinks left out; see `first_range_on`."""
        whole = self.second_range if self.piece_range is None else self.piece_range
        args = self.second, self.second_extrema, whole, self.period
        return self._where_defined(whole, *_range_on(*args, low, high), low)

    def _where_defined(
        self, whole: tuple[float, float], least: np.ndarray, most: np.ndarray, low: ArrayLike
    ) -> Range:
        """Returns the ranges, or the whole one where σ is not defined on all of an interval."""
        if not self.positive:
            return least, most
        inside = np.asarray(low) > 0.0
        return np.where(inside, least, whole[0]), np.where(inside, most, whole[1])


def _range_on(
    function: Callable[[tf.Tensor], tf.Tensor],
    extrema: tuple[float, ...],
    whole: tuple[float, float],
    period: float | None,
    low: ArrayLike,
    high: ArrayLike,
) -> Range:
    low, high = require_interval(low, high)
    # Between its interior extrema the function is monotone, so its extremes on an interval
    # are at the ends or at those extrema that the interval contains.
    # Where there is a jump at an end, an end just outside it includes both one-sided limits.
    low, high = np.maximum(low - JUMP, -_FAR), np.minimum(high + JUMP, _FAR)
    low, high = placeable(low, high, period, np)
    ends = function(tf.constant(np.stack([low, high]), tf.float64)).numpy()
    least, most = np.asarray(ends.min(axis=0)), np.asarray(ends.max(axis=0))
    for point, value in zip(extrema, _values(function, extrema), strict=True):
        first = first_from(low, point, period)
        inside = (low <= first) & (first <= high)
        np.minimum(least, value, out=least, where=inside)
        np.maximum(most, value, out=most, where=inside)
    size = max(abs(end) for end in whole)
    if np.isfinite(size):
        least, most = least - _OUTWARD * size, most + _OUTWARD * size
    else:  # there is no supremum to be relative to
        least = least - _OUTWARD * np.abs(least) - TINY  # which may have been flushed
        most = most + _OUTWARD * np.abs(most) + TINY
    return np.maximum(least, whole[0]), np.minimum(most, whole[1])


@functools.lru_cache
def _values(function: Callable[[tf.Tensor], tf.Tensor], at: tuple[float, ...]) -> list[float]:
    return function(tf.constant(at, tf.float64)).numpy().tolist() if at else []


def placeable(low: Any, high: Any, period: float | None, library: Any) -> tuple[Any, Any]:
    """Returns intervals on which a function takes all its values on the given ones.

    An interval longer than a period, or too far out for `first_from`, becomes one whole period.

    Args:
        low, high: ends, arrays or tensors.
        period: the period of the function; None: it has none, and the ends are returned.
        library: np for arrays, tf for tensors.
    """
    if period is None:
        return low, high
    whole = (high - low >= period) | (low < -_PERIODIC) | (high > _PERIODIC)
    nothing = library.zeros_like(low)
    return library.where(whole, nothing, low), library.where(whole, nothing + period, high)


def first_from(low: Any, at: float, period: float | None) -> Any:
    """Returns the first point from `low` on that is a whole number of periods from `at`.

    Between the ends of `placeable` it is exact to within 2⁻³⁰, and a function with a bounded
    second derivative that is extreme there has its extreme value to within 2⁻⁶⁰.

    Args:
        low: an array or a tensor.
        at: the other point.
        period: the period; None: there is none, and `at` is returned.
    """
    return at if period is None else at - (at - low) // period * period
