"""The largest radius at which a bound is still positive, in few evaluations of the bound.

A lower bound of a margin falls with the radius, most often as a concave function, whose root is
to the right of its chord's: so regula falsi with Illinois' rule (an end that stays twice counts
with half its value), and bisection of the logarithm where that crawls. A radius counts only
because the bound was positive there, whatever the search does.

All radii that are tried lie on a grid around the guess, so that of a bound that falls every search
finds the same one, wherever it starts: what is known already changes the way, not the end.

Reference: Dowell & Jarratt, "A modified regula falsi method", BIT 11 (1971).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

_STEP = np.log1p(1e-3)  # of the grid, in the logarithm: the bracket that is left
FINE, COARSE = 1.0, 3.0  # points of the grid that a search may leave: 0.1 and 0.3 %
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
    at = np.where(np.isfinite(first), np.minimum(first, top), 0.0)
    good, bad = np.zeros(margin.shape), unproved  # ends of the chord,
    above, below = margin, -unproved  # and its values there
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
            yes, no = active & (value > 0.0), active & ~(value > 0.0)
            above = np.where(yes, value, np.where(no & (streak < 0), above / 2.0, above))
            below = np.where(no, value, np.where(yes & (streak > 0), below / 2.0, below))
            good, proved = np.where(yes, radius, good), np.where(yes, radius, proved)
            bad = np.where(no, radius, bad)
            low, high = np.where(yes, at, low), np.where(no, at, high)
            streak = np.where(yes, np.maximum(streak, 0) + 1, np.minimum(streak, 0) - 1)

            chord = good + (bad - good) * (above / (above - below))
            crawls = (np.abs(streak) >= 3) | ((streak <= -2) & (good == 0.0))
            logarithmic = np.sqrt(np.maximum(proved, np.minimum(floor, bad / 2))) * np.sqrt(bad)
            inside = np.where(np.isfinite(below) & ~crawls, chord, logarithmic)
            farther = proved * 2.0 ** np.minimum(2.0 ** (streak - 1), 64)
            beyond = np.maximum(farther, np.sqrt(proved * guess))
            following = np.log(np.where(np.isfinite(high), inside, beyond) / guess) / _STEP
            at = np.clip(np.round(following), low + 1.0, np.minimum(high - 1.0, top))
            active &= (high > np.maximum(low + gap, in_vain)) & (low < top)
    return proved
