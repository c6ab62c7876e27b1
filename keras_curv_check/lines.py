"""Lines around the activations of a layer, and ranges of their slopes, on intervals: section 14."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flint import arb

from keras_curv_check.activations import Sigma
from keras_curv_check.balls import up as float_above
from keras_curv_check.rounding import TINY, UNIT, up

_THIRDS = 90  # of an interval for a slope: (2/3)^90 is below a rounding


class Units:
    """The activations of a layer, as arrays over its N units.

    Args:
        layer: the activation of each unit.

    Attributes:
        steepness, bends: least and largest σ′ and σ″ on the whole line, `(N, 2)`; NaN for none.
        middle, spread: σ′ is within `spread` of `middle`, `(N,)`.
    """

    def __init__(self, layer: Sequence[Sigma]):
        self.steepness = np.array([ends_of(sigma.slopes) for sigma in layer])
        self.bends = np.array([ends_of(sigma.bends) for sigma in layer])
        low, high = self.steepness.T
        self.middle = low / 2.0 + high / 2.0
        spread = up(np.maximum(high - self.middle, self.middle - low))
        self.spread = np.where(low < high, spread, 0.0)
        if not all(sigma.pieces for sigma in layer):
            return
        pad = [(2 - len(one.kinks), one) for one in (sigma.pieces for sigma in layer) if one]
        self._ends = np.array([[-np.inf, *one.kinks, *[np.inf] * (n + 1)] for n, one in pad])
        self._kinks = self._ends[:, 1:-1]
        self._slopes = np.array([[*one.slopes, *one.slopes[-1:] * n] for n, one in pad])
        self._offsets = np.array([[*one.offsets, *one.offsets[-1:] * n] for n, one in pad])
        hinge = (self._kinks[:, 0] == 0.0) & (self._slopes[:, 1] == 1.0)
        self.left = np.where(hinge, self._slopes[:, 0], 1.0)

    def values(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns σ at points `(N, K)`, and bounds of its error."""
        piece = (points[..., None] > self._kinks[:, None]).sum(axis=2)
        slope = np.take_along_axis(self._slopes, piece, axis=1)
        value = slope * points + np.take_along_axis(self._offsets, piece, axis=1)
        exact = (slope == 0.0) | (slope == 1.0)
        return value, np.where(exact, 0.0, 2.0 * UNIT * np.abs(value) + TINY)

    def slopes(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the least and the largest σ′ on intervals, `(N,)` each."""
        ends, low, high = self._ends, low[:, None], high[:, None]
        inside = (low < ends[:, 1:]) & (high > ends[:, :-1])
        inside |= ~inside.any(axis=1, keepdims=True) & (low <= ends[:, 1:]) & (high >= ends[:, :-1])
        least = np.where(inside, self._slopes, np.inf).min(axis=1)
        return least, np.where(inside, self._slopes, -np.inf).max(axis=1)

    def coupled(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Returns which units are `a z + (1 − a) relu(z)` on intervals with 0 inside, a ≠ 1."""
        return (low < 0.0) & (high > 0.0) & (high <= self._kinks[:, 1]) & (self.left != 1.0)

    def _points(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.clip(self._ends, low[:, None], high[:, None])

    def lines(self, low: np.ndarray, high: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns lines on intervals that are close to σ at these points, `(N,)`.

        These are slope and intercept of those below σ, then of those above.
        """
        points = self._points(low, high)
        value, error = self.values(points)
        args = points, error, at, *self.slopes(low, high)
        slope, intercept = _line_below(value, *args)
        turned, minus = _line_below(-value, *args[:3], -args[4], -args[3])
        return slope, intercept, -turned, -minus

    def range(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns bounds of σ on intervals, `(N,)` each."""
        value, error = self.values(self._points(low, high))
        return (value - error).min(axis=1), (value + error).max(axis=1)


def ends_of(ends: tuple[arb, arb] | None) -> tuple[float, float]:
    """Returns an interval of floats around this one."""
    return (-float_above(-ends[0]), float_above(ends[1])) if ends else (np.nan, np.nan)


def _line_below(
    value: np.ndarray,
    points: np.ndarray,
    error: np.ndarray,
    at: np.ndarray,
    least: np.ndarray,
    most: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns slopes and intercepts of the highest lines at `at` below σ at points, `(N, K)`."""

    def intercept(slope: np.ndarray) -> np.ndarray:
        return (value - slope[:, None] * points).min(axis=1)

    for _ in range(_THIRDS):
        one, other = least + (most - least) / 3.0, most - (most - least) / 3.0
        rises = intercept(one) + one * at < intercept(other) + other * at
        least, most = np.where(rises, one, least), np.where(rises, most, other)
    slope = (least + most) / 2.0
    size = np.abs(value) + np.abs(slope[:, None] * points)
    lost = (error + 4.0 * UNIT * size).max(axis=1) + TINY
    return slope, intercept(slope) - lost
