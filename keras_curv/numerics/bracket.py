"""The largest radius at which a bound is still positive, in few evaluations of the bound.

A lower bound of a margin falls with the radius, most often as a smooth concave function. So the
next radius is where a parabola crosses zero: the one through both ends of the bracket and the end
that was replaced last, Muller's method, of which exactly one zero is within the bracket. Where that
crawls it is the middle of the logarithms. Once the zero is close to an end, the radius tried is on
the other side of it, so that the search ends there. A radius counts only because the bound was
positive there, whatever the search does.

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
    proved, unproved = known.astype(np.float64), np.full(margin.shape, np.inf)
    low, high = grid_below(proved, guess), unproved  # on the grid
    in_vain, top = grid_below(np.asarray(aim), guess) + 1.0, grid_below(np.array(_LARGEST), guess)
    first = np.maximum(low + 1.0, in_vain)
    first = np.where(low > -np.inf, np.fmax(first, np.round(low * _FIRST)), first)
    at = np.where(np.isfinite(first), np.minimum(first, top), 0.0)
    good, bad = np.zeros(margin.shape), unproved  # ends of the bracket,
    above, below = margin, -unproved  # and the bound there
    before, value_before = unproved, unproved  # the end that was replaced last
    streak = np.zeros(margin.shape)  # positive bounds in a row, or minus the others in a row
    active = (margin > 0.0) & (margin < np.inf) & (low < top)
    with np.errstate(all="ignore"):
        for _ in range(_MAX_PROBES):
            rows = np.flatnonzero(active)
            if not len(rows):
                break
            radius = on_grid(at, guess)
            value = np.full(margin.shape, np.nan)
            value[rows] = bound(rows, radius[rows])
            yes = active & (value > 0.0) & np.isfinite(radius)
            no = active & ~yes
            before = np.where(yes, good, np.where(no, bad, before))
            value_before = np.where(yes, above, np.where(no, below, value_before))
            good, above = np.where(yes, radius, good), np.where(yes, value, above)
            bad, below = np.where(no, radius, bad), np.where(no, value, below)
            proved = np.where(yes, radius, proved)
            low, high = np.where(yes, at, low), np.where(no, at, high)
            streak = np.where(yes, np.maximum(streak, 0) + 1, np.minimum(streak, 0) - 1)

            inside = _zero_between(good, above, bad, below, before, value_before)
            leaving = _zero_beyond(bad / guess, below / margin) * guess
            leaves = (good == 0.0) & (leaving < bad)
            inside = np.where(leaves, leaving, inside)
            crawls = (np.abs(streak) >= 3) | ((streak <= -2) & (good == 0.0) & ~leaves)
            least = np.where(proved > 0.0, proved, bad / 2)
            least = np.where(floor < bad / 2, np.maximum(proved, floor), least)
            logarithmic = np.sqrt(least) * np.sqrt(bad)
            inside = np.where(np.isfinite(below) & ~crawls & (inside > 0.0), inside, logarithmic)
            farthest = np.maximum(
                proved * 2.0 ** np.minimum(2.0 ** (streak - 1), 64), np.sqrt(proved * guess)
            )
            expected = _zero_beyond(good / guess, above / margin) * guess
            beyond = np.fmin(np.where(streak < 3, expected, np.nan), farthest)
            following = np.log(np.where(np.isfinite(high), inside, beyond) / guess) / _STEP
            at = np.round(following)
            at = np.where(following < low + gap, np.minimum(low + gap, at + 1.0), at)
            at = np.where(following > high - gap, np.maximum(high - gap, at - 1.0), at)
            at = np.clip(np.fmax(at, in_vain), low + 1.0, np.minimum(high - 1.0, top))
            active &= (high > np.maximum(low + gap, in_vain)) & (low < top)
    return proved


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
