"""The largest radius at which a bound is still positive, in few evaluations of the bound.

A lower bound of a margin falls with the radius, most often as a smooth concave function. So the
next radius is where a parabola crosses zero: the one through both ends of the bracket and the end
that was replaced last, Muller's method, of which exactly one zero is within the bracket. While only
one end is known, it is the parabola that leaves the margin with the slope of the first guess. Where
that crawls it is the middle of the logarithms. The first radius is in the middle, too, of what is
known and the guess. Once the zero is close to an end, the radius tried is on the other side of it,
so that the search ends there; where more may be left than a point of the grid, and the bound looks
concave, the chord from the margin tells that little is, and the other side need not be tried. A
radius counts only because the bound was positive there, whatever the search does.

All radii that are tried lie on a grid around the guess, so that of a bound that falls every search
that leaves one point of it finds the same radius, wherever it starts: what is known already changes
the way, not the end.

Reference: Muller, "A method for solving algebraic equations using an automatic computer",
Mathematical Tables and Other Aids to Computation 10 (1956).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

_STEP = np.log1p(1e-3)  # of the grid, in the logarithm: the bracket that is left
FINE, COARSE = 1.0, 3.0  # points of the grid that a search may leave: 0.1 and 0.3 %
_FIRST = 0.5  # of the way from the guess to what is known, in the logarithm
_MAX_PROBES = 60
_LARGEST = 1e100


def on_grid(point: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns the radii of these points of the grid around `unit`, which is its point 0."""
    return unit * np.exp(_STEP * point)


def grid_below(radius: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns the largest point of the grid that is not above these radii; −∞ for 0."""
    with np.errstate(divide="ignore"):
        nearest = np.round(np.log(radius / unit) / _STEP)
    return np.where(on_grid(nearest, unit) <= radius, nearest, nearest - 1.0)


def largest_radius(
    bound: Callable[[np.ndarray, np.ndarray], np.ndarray],
    margin: np.ndarray,
    known: np.ndarray,
    guess: np.ndarray,
    floor: np.ndarray,
    *,
    aim: ArrayLike = 0.0,
    gap: float = FINE,
) -> np.ndarray:
    """For each example the largest radius found with `bound > 0`; a gap is left.

    Args:
        bound: `(rows, radius)` → values `(len(rows),)`, for the examples of these indices. It
            may be −∞, and need not fall: then a larger such radius may exist.
        margin: what the bound is like at radius 0, `(n,)`; there is no search unless positive.
        known: radii that need no proof, `(n,)`; the search is for larger ones.
        guess: where to look first, `(n,)`, if nothing is known or aimed at.
        floor: about the smallest radius to expect, `(n,)`.
        aim: radii below which none need be found, `(n,)`.
        gap: that is left, in points of the grid.

    Returns:
        `(n,)`, not below `known`; at most about 1e100.

    Example:
        >>> bound = lambda rows, radius: 2.0 - radius**2
        >>> one = np.ones(1)
        >>> radius = largest_radius(bound, 2.0 * one, 0.0 * one, one, 0.1 * one)
        >>> 0.999 * 2**0.5 <= float(radius[0]) <= 2**0.5
        True
    """
    guess, floor = (np.clip(np.nan_to_num(a), 1e-100, _LARGEST) for a in (guess, floor))
    in_vain, top = grid_below(np.asarray(aim), guess) + 1.0, grid_below(np.array(_LARGEST), guess)
    found = _Bracket(margin, known.astype(np.float64), guess)
    first = np.maximum(found.low + 1.0, in_vain)
    first = np.where(found.low > -np.inf, np.fmax(first, np.round(found.low * _FIRST)), first)
    at = np.where(np.isfinite(first), np.minimum(first, top), 0.0)
    active = (margin > 0.0) & (margin < np.inf) & (found.low < top)
    with np.errstate(all="ignore"):
        for _ in range(_MAX_PROBES):
            rows = np.flatnonzero(active)
            if not len(rows):
                break
            radius = on_grid(at, guess)
            value = np.full(margin.shape, np.nan)
            value[rows] = bound(rows, radius[rows])
            found.narrow(at, radius, value, active)
            # Of a concave bound its chord tells what may be left beyond a radius.
            spare = np.where(found.concave, gap - FINE, 0.0)
            zero = np.log(found.zero(floor) / guess) / _STEP
            at = np.round(zero - spare / 2.0)
            low, high = found.low, found.high
            at = np.where(zero < low + gap, np.minimum(low + gap, at + 1.0), at)
            at = np.where(zero > high - gap, np.maximum(high - gap, at - 1.0), at)
            at = np.clip(np.fmax(at, in_vain), low + 1.0, np.minimum(high - 1.0, top))
            near = found.above < np.expm1(spare * _STEP) * (margin - found.above)
            active &= (high > np.maximum(low + gap, in_vain)) & (low < top) & ~near
    return np.maximum(found.proved, known)


class _Bracket:
    """A radius where the bound is positive, and a larger one where it is not, of each example.

    Attributes:
        low, high: the two on the grid; −∞ and ∞ while there is none.
        good, bad: the two as radii, 0 and ∞ while there is none; known ones do not count.
        above, below: the bound there.
        proved: the largest known or good radius.
    """

    def __init__(self, margin: np.ndarray, known: np.ndarray, guess: np.ndarray):
        self._margin, self._guess, self.proved = margin, guess, known
        nothing = np.full(margin.shape, np.inf)
        self.low, self.high = grid_below(known, guess), nothing
        self.good, self.bad = np.zeros(margin.shape), nothing
        self.above, self.below = margin, -nothing
        self._before, self._value_before = nothing, nothing  # the end that was replaced last
        self._streak = np.zeros(margin.shape)  # positive bounds in a row, or minus the others

    def narrow(
        self, at: np.ndarray, radius: np.ndarray, value: np.ndarray, active: np.ndarray
    ) -> None:
        """Takes what the bound was, for those that are active."""
        yes = active & (value > 0.0) & np.isfinite(radius)
        no = active & ~yes
        self._before = np.where(yes, self.good, np.where(no, self.bad, self._before))
        before = np.where(yes, self.above, np.where(no, self.below, self._value_before))
        self._value_before = before
        self.good, self.above = np.where(yes, radius, self.good), np.where(yes, value, self.above)
        self.bad, self.below = np.where(no, radius, self.bad), np.where(no, value, self.below)
        self.proved = np.where(yes, radius, self.proved)
        self.low, self.high = np.where(yes, at, self.low), np.where(no, at, self.high)
        streak = self._streak
        self._streak = np.where(yes, np.maximum(streak, 0) + 1, np.minimum(streak, 0) - 1)

    @property
    def concave(self) -> np.ndarray:
        """Whether the bound is, as far as the margin, the good radius and one more can tell."""
        third = np.where(np.isfinite(self.high), self.bad, self._before)
        value = np.where(np.isfinite(self.high), self.below, self._value_before)
        chord = self._margin + (self.above - self._margin) * (third / self.good)
        return (third > 0.0) & ((value - chord) * (self.good - third) >= 0.0)

    def zero(self, floor: np.ndarray) -> np.ndarray:
        """Where the bound may cross 0, or what else is to be tried; see the module."""
        good, bad, proved = self.good, self.bad, self.proved
        guess, streak = self._guess, self._streak
        ends = good, self.above, bad, self.below
        inside = _zero_between(*ends, self._before, self._value_before)
        leaving = _zero_beyond(bad / guess, self.below / self._margin) * guess
        leaves = (good == 0.0) & (leaving >= floor) & (leaving < bad)
        inside = np.where(leaves, leaving, inside)
        crawls = (np.abs(streak) >= 3) | ((streak <= -2) & (good == 0.0) & ~leaves)
        least = np.where(proved > 0.0, proved, bad / 2)
        least = np.where(floor < bad / 2, np.maximum(proved, floor), least)
        logarithmic = np.sqrt(least) * np.sqrt(bad)
        inside = np.where(np.isfinite(self.below) & ~crawls & (inside > 0.0), inside, logarithmic)
        farthest = np.maximum(
            proved * 2.0 ** np.minimum(2.0 ** (streak - 1), 64), np.sqrt(proved * guess)
        )
        expected = _zero_beyond(good / guess, self.above / self._margin) * guess
        beyond = np.fmin(np.where(streak < 3, expected, np.nan), farthest)
        return np.where(np.isfinite(self.high), inside, beyond)


def _zero_between(
    good: np.ndarray,
    above: np.ndarray,
    bad: np.ndarray,
    below: np.ndarray,
    other: np.ndarray,
    value: np.ndarray,
) -> np.ndarray:
    """The zero, between two ends of opposite sign, of the parabola through them and another point;
    of their chord, where that point is infinite, or the bound there."""
    size, third = above - below, (other - good) / (bad - good)
    bend = ((value - above) / size / third + 1.0) / (third - 1.0)
    bend = np.where(np.isfinite(bend), bend, 0.0)
    start, slope = above / size, -1.0 - bend
    inner = np.maximum(slope * slope - 4.0 * start * bend, 0.0)  # but for rounding it is positive
    root = 2.0 * start / (np.sqrt(inner) - slope)
    return good + (bad - good) * root


def _zero_beyond(at: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The zero of the parabola through `(at, value)` that leaves `(0, 1)` with slope −1, radii in
    guesses and bounds in margins; NaN where it is convex, or `at` is 0."""
    bend = (1.0 - at - value) / (at * at)
    return np.where(bend >= 0.0, 2.0 / (1.0 + np.sqrt(1.0 + 4.0 * bend)), np.nan)
