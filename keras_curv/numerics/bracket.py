"""The largest radius at which a bound is still positive, in few evaluations of the bound.

A ball of radius R loses the share `loss(R) = 1 − bound(R) / m` of the margin m, and the bound's
zero is where the loss is 1. The loss grows about as a power of the radius, so the next radius is
where the power through two points, the ends of the bracket, reaches 1. While only one point is
known, the power is that of `t + b tᵖ` there, with t = radius / guess, because the guess follows
from the slope at the centre, and p = 2.5, between the loss by curvature, p = 2, and the loss by
relaxed activations, p = 3. Where this gives no radius inside the bracket, the search takes the
middle of the logarithms. The first radius is between the known one and the guess.

A search ends when its bracket is closed. If a gap of more than a grid point is allowed, it also
ends when the power through two points says that no more than this gap is left. A radius counts only
because the bound was positive there, whatever the search does.

All tried radii lie on a grid around the guess. So if the bound is decreasing, every search with a
gap of one grid point finds the same radius, wherever it starts: known radii change the path, not
the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

_SPACING = 1e-3  # of the grid, relative
_STEP = np.log1p(_SPACING)  # in the logarithm
FINE, COARSE = 1.0, 3.0  # gaps that a search may leave, in grid points: 0.1 and 0.3 %
FIRST = 0.5  # the first radius, as a part of the way from the guess to the known one, in logarithm
_UNKNOWN = 0.125  # the same part of the way from the guess to the floor, if no radius is known
_BELOW = 32.0  # largest ratio of the guess to that first radius
_POWER = 2.5
_MAX_PROBES = 60
_LARGEST = 1e100


def gap_within(tolerance: float) -> float:
    """Returns the gap of a search that may lose this relative part of the radius.

    Example:
        >>> gap_within(0.0), gap_within(0.002), gap_within(0.01)
        (1.0, 2.0, 3.0)
    """
    return float(np.clip(tolerance / _SPACING, FINE, COARSE))


def on_grid(point: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns the radii of these points of the grid whose point 0 is `unit`."""
    return unit * np.exp(_STEP * point)


def _point(radius: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns the unrounded positions of these radii on the grid; −∞ for 0."""
    return np.log(radius / unit) / _STEP


def grid_below(radius: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns the largest grid points that are not above these radii; −∞ for 0."""
    with np.errstate(divide="ignore"):
        nearest = np.round(_point(radius, unit))
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
    start: float = FIRST,
) -> np.ndarray:
    """Returns the largest radius found with `bound > 0` for each example, up to the gap.

    Args:
        bound: `(rows, radius)` → values `(len(rows),)`, for the examples of these indices. It
            may be −∞, and need not be decreasing: then a larger such radius may exist.
        margin: the bound at radius 0, `(n,)`; the search needs a positive one.
        known: radii that are proved already, `(n,)`; the search is for larger ones.
        guess: the radius to try first, `(n,)`, if nothing is known or aimed at.
        floor: about the smallest radius to expect, `(n,)`.
        aim: radii below which a result has no use, `(n,)`.
        gap: the gap that the search may leave, in grid points.
        start: where to begin, as a part of the way from the guess to the known radius.

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
    least = np.maximum(found.low + 1.0, in_vain)
    unknown = np.minimum(_point(floor, guess), 0.0)
    unknown = np.maximum(unknown * _UNKNOWN, -np.log(_BELOW) / _STEP)
    first = np.where(found.low > -np.inf, found.low * start, unknown)
    at = np.minimum(np.fmax(least, np.round(first)), top)
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
            zero, told = (_point(r, guess) for r in found.next(floor))
            low, high = found.low, found.high
            at = np.round(zero - (gap - FINE) / 2.0)
            # Close to an end, try the other side of the zero, so that the bracket closes.
            at = np.where(zero < low + gap, np.minimum(low + gap, at + 1.0), at)
            at = np.where(zero > high - gap, np.maximum(high - gap, at - 1.0), at)
            at = np.clip(np.fmax(at, in_vain), low + 1.0, np.minimum(high - 1.0, top))
            near = (told < low + gap) & (gap > FINE)
            active &= (high > np.maximum(low + gap, in_vain)) & (low < top) & ~near
    return np.maximum(found.proved, known)


class _Bracket:
    """For each example, a radius where the bound is positive and a larger one where it is not.

    Attributes:
        low, high: the two on the grid; −∞ and ∞ while there is none.
        good, bad: the two as radii, 0 and ∞ while there is none; known ones do not count.
        proved: the largest known or good radius.
    """

    def __init__(self, margin: np.ndarray, known: np.ndarray, guess: np.ndarray):
        self._margin, self._guess, self.proved = margin, guess, known
        nothing = np.full(margin.shape, np.inf)
        self.low, self.high = grid_below(known, guess), nothing
        self.good, self.bad = np.zeros(margin.shape), nothing
        self._kept, self._lost = np.zeros(margin.shape), nothing  # the losses there
        self._before, self._loss_before = nothing, nothing  # the end that was replaced last
        self._streak = np.zeros(margin.shape)  # positive bounds in a row, or minus the others

    def narrow(
        self, at: np.ndarray, radius: np.ndarray, value: np.ndarray, active: np.ndarray
    ) -> None:
        """Updates the bracket of the active examples with the values of the bound."""
        yes = active & (value > 0.0) & np.isfinite(radius)
        no, loss = active & ~yes, 1.0 - value / self._margin
        self._before = np.where(yes, self.good, np.where(no, self.bad, self._before))
        before = np.where(yes, self._kept, np.where(no, self._lost, self._loss_before))
        self._loss_before = before
        self.good, self._kept = np.where(yes, radius, self.good), np.where(yes, loss, self._kept)
        self.bad, self._lost = np.where(no, radius, self.bad), np.where(no, loss, self._lost)
        self.proved = np.where(yes, radius, self.proved)
        self.low, self.high = np.where(yes, at, self.low), np.where(no, at, self.high)
        streak = self._streak
        self._streak = np.where(yes, np.maximum(streak, 0) + 1, np.minimum(streak, 0) - 1)

    def next(self, floor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the next radius, and the zero of the bound if two points determine it, else ∞."""
        good, bad, proved, streak = self.good, self.bad, self.proved, self._streak
        rises, both = streak > 0, (good > 0.0) & (bad < np.inf)
        size, loss = np.where(rises, (good, self._kept), (bad, self._lost))
        ends = np.where(rises, (bad, self._lost), (good, self._kept))
        before = self._before, self._loss_before
        other, other_loss = np.where(both & (np.abs(streak) < 3), ends, before)
        # Toward the centre the loss is assumed to grow at least as fast as the radius.
        slowest = np.where(good > 0.0, 0.0, 1.0)
        zero, by_two = _where_all_is_lost(size, loss, other, other_loss, self._guess, slowest)
        inside = (zero > good) & (zero < bad)
        least = np.where(proved > 0.0, proved, bad / 2)
        least = np.where(floor < bad / 2, np.maximum(proved, floor), least)
        crawls = np.abs(streak) > np.where(good > 0.0, 4, 3)
        between = np.where(inside & ~crawls, zero, np.sqrt(least) * np.sqrt(bad))
        doubled = proved * 2.0 ** np.minimum(2.0 ** (streak - 1), 64)
        farthest = np.maximum(doubled, np.sqrt(proved * self._guess))
        # The third in a row goes beyond the zero by that distance: it may become the other end.
        zero_or_beyond = np.where(streak < 3, zero, zero * (zero / good))
        beyond = np.fmin(np.where(inside & (streak < 4), zero_or_beyond, np.nan), farthest)
        # Far from there two points do not determine the zero; the bound may be linear.
        near = np.minimum(size, other) <= 2.0 * good
        told = np.where(inside & by_two & near, zero, np.inf)
        return np.where(bad < np.inf, between, beyond), told


def _where_all_is_lost(
    radius: np.ndarray,
    loss: np.ndarray,
    other: np.ndarray,
    other_loss: np.ndarray,
    guess: np.ndarray,
    slowest: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the radius where a power of the radius through this point reaches the loss 1, and
    whether the power follows from the other point, not from the guess alone."""
    size = radius / guess
    alone = np.where(loss > size, (size + _POWER * (loss - size)) / loss, 1.0)
    power = np.log(loss / other_loss) / np.log(radius / other)
    by_two = (power > 0.0) & (power < np.inf)
    power = np.where(by_two, np.maximum(power, slowest), alone)
    return radius * loss ** (-1.0 / power), by_two
