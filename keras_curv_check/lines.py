"""Lines around the activations of a layer, and ranges of their slopes, on intervals: section 14."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_curv_check.activations import Pieces, Sigma
from keras_curv_check.balls import ends_of
from keras_curv_check.curved import Curved
from keras_curv_check.rounding import TINY, UNIT, up

_THIRDS = 90  # of an interval for a slope: (2/3)^90 is below a rounding


class Units:
    """The activations of a layer, as arrays over its N units.

    Args:
        layer: the activation of each unit.

    Attributes:
        steepness, bends: least and largest σ′ and σ″ on the whole line, `(N, 2)`; NaN for none.
        middle, spread: σ′ is within `spread` of `middle`, `(N,)`.
        left: see `Kinked`; 1 at smooth units.
    """

    def __init__(self, layer: Sequence[Sigma]):
        self.steepness = np.array([ends_of(sigma.slopes) for sigma in layer])
        self.bends = np.array([ends_of(sigma.bends) for sigma in layer])
        low, high = self.steepness.T
        self.middle = low / 2.0 + high / 2.0
        spread = up(np.maximum(high - self.middle, self.middle - low))
        self.spread = np.where(low < high, spread, 0.0)
        kinked = np.array([sigma.pieces is not None for sigma in layer])
        self._parts: list[tuple[np.ndarray, Kinked | Curved]] = []
        self.left, self._next = np.ones((2, len(layer)))
        if kinked.any():
            some = Kinked([sigma.pieces for sigma in layer if sigma.pieces])
            self._parts.append((np.flatnonzero(kinked), some))
            self.left[kinked], self._next[kinked] = some.left, some.next
        if not kinked.all():
            curved = Curved([sigma for sigma in layer if not sigma.pieces])
            self._parts.append((np.flatnonzero(~kinked), curved))

    def _each(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        """Returns what a method says of each unit: arrays of one axis, stacked."""
        size = len(self.left)
        found = [
            (units, np.atleast_2d(getattr(part, name)(*(a[units] for a in arrays))))
            for units, part in self._parts
        ]
        whole = np.empty((len(found[0][1]), size))
        for units, values in found:
            whole[:, units] = values
        return whole

    def estimate(self, z: np.ndarray) -> np.ndarray:
        """Returns σ(z), `(N,)`; no bound."""
        return self._each("estimate", z)[0]

    def slopes(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Bounds σ′ on intervals, from below and from above, `(2, N)`."""
        return self._each("slopes", low, high)

    def range(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Bounds σ on intervals, from below and from above, `(2, N)`."""
        return self._each("range", low, high)

    def lines(self, low: np.ndarray, high: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Returns lines on intervals that are close to σ at these points, `(4, N)`.

        These are slope and intercept of those below σ, then of those above.
        """
        return self._each("lines", low, high, at)

    def coupled(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Returns which units are `a z + (1 − a) relu(z)` on intervals with 0 inside, a ≠ 1."""
        return (low < 0.0) & (high > 0.0) & (high <= self._next) & (self.left != 1.0)


class Kinked:
    """Activations that are linear between kinks, as arrays over N units.

    Args:
        layer: the pieces of each unit.

    Attributes:
        left: the slope before a kink at 0 that has slope 1 behind it; 1 where there is none.
        next: the second kink.
    """

    def __init__(self, layer: Sequence[Pieces]):
        pad = [(2 - len(one.kinks), one) for one in layer]
        self._ends = np.array([[-np.inf, *one.kinks, *[np.inf] * (n + 1)] for n, one in pad])
        self._kinks = self._ends[:, 1:-1]
        self._slopes = np.array([[*one.slopes, *one.slopes[-1:] * n] for n, one in pad])
        self._offsets = np.array([[*one.offsets, *one.offsets[-1:] * n] for n, one in pad])
        hinge = (self._kinks[:, 0] == 0.0) & (self._slopes[:, 1] == 1.0)
        self.left = np.where(hinge, self._slopes[:, 0], 1.0)
        self.next = self._kinks[:, 1]

    def _values(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns σ at points `(N, K)`, and bounds of its error."""
        piece = (points[..., None] > self._kinks[:, None]).sum(axis=2)
        slope = np.take_along_axis(self._slopes, piece, axis=1)
        value = slope * points + np.take_along_axis(self._offsets, piece, axis=1)
        exact = (slope == 0.0) | (slope == 1.0)
        return value, np.where(exact, 0.0, 2.0 * UNIT * np.abs(value) + TINY)

    def estimate(self, z: np.ndarray) -> np.ndarray:
        """Returns σ(z), up to rounding."""
        return self._values(z[:, None])[0][:, 0]

    def slopes(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the least and the largest σ′ on intervals, `(N,)` each."""
        ends, low, high = self._ends, low[:, None], high[:, None]
        inside = (low < ends[:, 1:]) & (high > ends[:, :-1])
        inside |= ~inside.any(axis=1, keepdims=True) & (low <= ends[:, 1:]) & (high >= ends[:, :-1])
        least = np.where(inside, self._slopes, np.inf).min(axis=1)
        return least, np.where(inside, self._slopes, -np.inf).max(axis=1)

    def _points(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.clip(self._ends, low[:, None], high[:, None])

    def lines(self, low: np.ndarray, high: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns lines on intervals that are close to σ at these points, `(N,)`.

        These are slope and intercept of those below σ, then of those above.
        """
        points = self._points(low, high)
        value, error = self._values(points)
        args = points, error, at, *self.slopes(low, high)
        slope, intercept = _line_below(value, *args)
        turned, minus = _line_below(-value, *args[:3], -args[4], -args[3])
        return slope, intercept, -turned, -minus

    def range(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns bounds of σ on intervals, `(N,)` each."""
        value, error = self._values(self._points(low, high))
        return (value - error).min(axis=1), (value + error).max(axis=1)


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
