"""Proved lines below and above an activation on an interval.

**Smooth activations** that turn from convex to concave once, or not at all, have lines in closed
form (`tangent_lines.py`). For others, and for those with kinks, take σ at K points
`l = z_1 < … < z_K = u`, at most `s` apart. For any slope k, `φ(z) = σ(z) − k z` has φ″ = σ″, and
between two points it is within `(s²/8) sup |φ″|` of its chord (linear interpolation; σ″ may jump).
So, for all z in [l, u],

    σ(z) ≤ k z + max_i φ(z_i) + (s²/8) max(0, −min σ″),

and the mirror image below; the range of σ″ is that on [l, u]. Where σ is convex the last term
is 0 and the upper line through both ends is the exact chord; a tangent loses less than `1/K²` of
the gap between the lines.

**Kinks** are among the points, so that σ is smooth between any two: the range of σ″ is that of the
pieces. Piecewise linear activations lose nothing.

**Slopes** are estimates; the intercepts make any of them sound. Among all lines above, the lowest
at a given point extends the edge of the concave hull at that point; at the midpoint it also has the
least area under it. Starting from the two points on either side, the point highest above the
current line replaces the point on its side, a few times.

**Rounding.** `|σ̂ − σ| ≤ ω u (|σ̂| + c) + 1024τ` (`rounding.ACTIVATION_ULPS`, c the `value_floor`),
at z_i that are float64 numbers themselves, plus three roundings for φ: `(2ω + 16) u (max|σ̂| + c +
|k| max(|l|, |u|)) + 2048τ` covers it.

The least and the largest value of σ on [l, u] are bounds too, if they are known
(`interval_bounds.py`); they are used where they are better at that point, or where a line
overflows, as on unbounded intervals.

Reference: Zhang, Weng, Chen, Hsieh & Daniel, "Efficient neural network robustness certification
with general activation functions" (2018), section 3.2 and tables 2 and 3, who choose tangents and
chords by hand for sigmoid and tanh; their adaptive ReLU is section 3.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_curv.certificates.interval_bounds import has_value_range, value_range
from keras_curv.certificates.linear.bounds.tangent_lines import (
    ABSOLUTE,
    RELATIVE,
    tangent_lines,
    turning_point,
)
from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.unitwise import IDENTITY
from keras_curv.numerics.batches import batches
from keras_curv.numerics.intervals import require_interval
from keras_curv.numerics.rounding import TINY, UNIT, up

POINTS = 32  # even, so that the midpoint is between two
_AT_ONCE = 2**13  # intervals
_EXCHANGES = 6


class Relaxation(NamedTuple):
    """Lines `lower_slope z + lower_intercept ≤ σ(z) ≤ upper_slope z + upper_intercept` around σ."""

    lower_slope: np.ndarray | tf.Tensor
    lower_intercept: np.ndarray | tf.Tensor
    upper_slope: np.ndarray | tf.Tensor
    upper_intercept: np.ndarray | tf.Tensor

    @property
    def sloped(self) -> np.ndarray:
        """Returns where a line is not constant."""
        return (self.lower_slope != 0.0) | (self.upper_slope != 0.0)

    @property
    def used(self) -> np.ndarray:
        """Returns where a line is not 0."""
        return self.sloped | (self.lower_intercept != 0.0) | (self.upper_intercept != 0.0)


def require_relaxation(activation: Activation) -> None:
    """Refuses an activation without a rule, by an InputError that names it."""
    for each, _ in activation.groups:
        if not (each.hinge or each.smooth or each.piece_range):
            raise InputError(
                f"no linear bounds for activation {each.name!r}: they need relu, or an "
                "activation with a bounded second derivative but for kinks that are known"
            )


def relaxation(
    activation: Activation, low: ArrayLike, high: ArrayLike, at: np.ndarray | None = None
) -> Relaxation:
    """Returns lines below and above σ on each interval `[low, high]`.

    Args:
        activation: relu, or any with a bounded second derivative except at its kinks.
        low, high: arrays of one shape, float64, `low ≤ high`; infinite ends are allowed, and may
            give infinite intercepts.
        at: the points where the lines should be closest to σ; None: the midpoints.

    Returns:
        Four arrays of that shape; slopes are finite.

    Raises:
        InputError: no rule for the activation, an end is NaN, or an interval is empty.

    Example:
        >>> from keras_curv.network import activations
        >>> lines = relaxation(activations.get("softplus"), np.array([-1.0]), np.array([1.0]))
        >>> lines.upper_slope.round(4), lines.lower_intercept.round(2)
        (array([0.5]), array([0.69]))
    """
    require_relaxation(activation)
    low, high = require_interval(low, high)
    with np.errstate(all="ignore"):  # overflow gives constants, or infinite intercepts
        at = low / 2.0 + high / 2.0 if at is None else at
        if len(activation.groups) == 1:
            return _of_one_kind(activation, low, high, at)
        parts = [
            _of_one_kind(each, low[..., units], high[..., units], at[..., units])
            for each, units in activation.groups
        ]
    return Relaxation(*(np.concatenate(lines, axis=-1) for lines in zip(*parts, strict=True)))


def is_linear(activation: Activation, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns whether σ is linear on each interval, so that its lines are σ itself.

    Example:
        >>> from keras_curv.network import activations
        >>> low, high = np.array([-2.0, -1.0, 0.0]), np.array([-1.0, 1.0, 9.0])
        >>> is_linear(activations.get("relu"), low, high)
        array([ True, False,  True])
    """
    found = np.empty(low.shape, bool)
    for each, units in activation.groups:
        straight = each.hinge or not np.any(each.piece_range or each.second_range)
        kinks = np.array([0.0] if each.hinge else each.kinks)
        ends = low[..., units, None], high[..., units, None]
        found[..., units] = straight & np.all((ends[0] >= kinks) | (ends[1] <= kinks), axis=-1)
    return found


def magnitude(
    activation: Activation, low: np.ndarray, high: np.ndarray, lines: Relaxation
) -> np.ndarray:
    """Bounds |σ(z)| on the intervals by the slope and σ(0), and by the two lines."""
    at_zero = np.empty(low.shape[1:])
    for each, units in activation.groups:
        at_zero[units] = abs(float(each.value(tf.constant(0.0, tf.float64))))
    farthest = np.maximum(np.abs(low), np.abs(high))
    lower_slope, lower_intercept, upper_slope, upper_intercept = map(np.abs, lines)
    below = lower_slope * farthest + lower_intercept
    above = upper_slope * farthest + upper_intercept
    # fmin ignores a NaN of an overflow.
    return up(np.fmin(up(at_zero, 64) + activation.slope * farthest, np.maximum(below, above)))


def _of_one_kind(
    activation: Activation, low: np.ndarray, high: np.ndarray, at: np.ndarray
) -> Relaxation:
    if activation.hinge:
        return _relu(low, high, at)
    if activation is IDENTITY:  # it is its own line
        zero, one = np.zeros(low.shape), np.ones(low.shape)
        return Relaxation(one, zero, one, zero)
    if activation.positive and not np.all(low > 0.0):
        inside = np.where(low > 0.0, low, np.fmax(high, 1.0) / 2.0)
        lines = _of_one_kind(activation, inside, np.maximum(high, inside), at)
        nothing = Relaxation(0.0, -np.inf, 0.0, np.inf)  # is known where σ may be undefined
        return Relaxation(
            *(np.where(low > 0.0, *pair) for pair in zip(lines, nothing, strict=True))
        )
    if turning_point(activation) is not None:
        slope, intercept, ends = tangent_lines(activation, low, high, at)
        lower, upper = zip(slope, intercept, strict=True)
        values = np.moveaxis(ends[::-1], 0, -1)
        return _or_constant(activation, low, high, at, values, lower, upper)
    # Blocks that stay in the cache: one block of all rows takes four times as long.
    if low.ndim < 2 or low.size <= _AT_ONCE:
        return _sampled(activation, low, high, at)
    blocks = batches(len(low), low[0].size, _AT_ONCE)
    parts = [_sampled(activation, low[rows], high[rows], at[rows]) for rows in blocks]
    return Relaxation(*(np.concatenate(lines) for lines in zip(*parts, strict=True)))


def _sampled(
    activation: Activation, low: np.ndarray, high: np.ndarray, at: np.ndarray
) -> Relaxation:
    """Returns the lines of any activation from its values at `POINTS` points of each interval.

    Kinks are further points.
    """
    width = high - low
    points = low[..., None] + width[..., None] * np.linspace(0.0, 1.0, POINTS)
    points[..., 0], points[..., -1] = low, high
    points = np.clip(points, low[..., None], high[..., None])
    # Index of the first point beyond `at`, from the second point to the last.
    beyond = np.floor(np.nan_to_num((at - low) / width) * (POINTS - 1)) + 1.0
    if activation.kinks:
        kinks = np.stack([np.clip(kink, low, high) for kink in activation.kinks], axis=-1)
        points = np.sort(np.concatenate([points, kinks], axis=-1), axis=-1)
        points[..., 0], points[..., -1] = low, high  # NaN of infinite intervals is last
        beyond = np.sum(points <= np.asarray(at)[..., None], axis=-1)
    beyond = np.clip(beyond, 1, points.shape[-1] - 1).astype(np.intp)
    values = activation.value(tf.constant(points)).numpy()
    step = up(width / (POINTS - 1)) + 8.0 * UNIT * (np.abs(low) + np.abs(high))
    least, most = activation.first_range_on(low, high)
    bend_low, bend_high = activation.piece_range_on(low, high)
    sag = step * step / 8.0

    floor = activation.value_floor
    slope, top = _line_above(points, values, least, most, beyond, floor)
    upper = slope, top + up(sag * np.maximum(-bend_low, 0.0), 8)
    slope, top = _line_above(points, -values, -most, -least, beyond, floor)
    lower = -slope, -(top + up(sag * np.maximum(bend_high, 0.0), 8))
    return _or_constant(activation, low, high, at, values, lower, upper)


def _or_constant(
    activation: Activation,
    low: np.ndarray,
    high: np.ndarray,
    at: np.ndarray,
    values: np.ndarray,
    lower: tuple[np.ndarray, np.ndarray],
    upper: tuple[np.ndarray, np.ndarray],
) -> Relaxation:
    """Returns the lines, or the least and largest value where these are better at the points."""
    bottom, top = _constants(activation, low, high, values)
    floor = activation.value_floor
    bottom = bottom - RELATIVE * (np.abs(bottom) + floor) - ABSOLUTE
    top = top + RELATIVE * (np.abs(top) + floor) + ABSOLUTE
    return Relaxation(
        *_better(*lower, np.where(np.isnan(bottom), -np.inf, bottom), at, np.less),
        *_better(*upper, np.where(np.isnan(top), np.inf, top), at, np.greater),
    )


def _constants(
    activation: Activation, low: np.ndarray, high: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns least and largest value, up to rounding; infinite if unknown, NaN on overflow.

    Args:
        values: σ at points of which the first and the last are the ends.
    """
    if activation.monotone:
        return values[..., 0], values[..., -1]
    if activation.falls:
        return values[..., -1], values[..., 0]
    if not has_value_range(activation):
        return np.full(low.shape, -np.inf), np.full(low.shape, np.inf)
    least, most = value_range(activation, tf.constant(low), tf.constant(high))
    return least.numpy(), most.numpy()


def _line_above(
    points: np.ndarray,
    values: np.ndarray,
    least: np.ndarray,
    most: np.ndarray,
    beyond: np.ndarray,
    floor: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the slope, within `[least, most]`, and intercept of a line above all points.

    The line is approximately the lowest one between the points before and at index `beyond`.
    """
    shape, rows = least.shape, np.arange(least.size)
    points, values = (array.reshape(len(rows), array.shape[-1]) for array in (points, values))
    least, most, beyond = (array.reshape(-1) for array in (least, most, beyond))
    left, right, slope, highest = beyond - 1, beyond.copy(), np.empty(len(rows)), beyond.copy()
    for _ in range(_EXCHANGES):
        ends, some = (left[rows], right[rows]), slice(None) if len(rows) == len(left) else rows
        z, value = points[some], values[some]
        run = _pick(z, ends[1]) - _pick(z, ends[0])
        steep = (_pick(value, ends[1]) - _pick(value, ends[0])) / run
        steep = np.where(np.isfinite(steep), steep, least[rows])
        slope[rows] = steep = np.clip(steep, least[rows], most[rows])
        highest[rows] = top = (value - steep[:, None] * z).argmax(axis=1)
        moves = (top != ends[0]) & (top != ends[1])  # the others are final
        rows, top = rows[moves], top[moves]
        if not len(rows):
            break
        before = top < beyond[rows]
        left[rows] = np.where(before, top, left[rows])
        right[rows] = np.where(before, right[rows], top)
    size = np.maximum(np.abs(points[:, 0]), np.abs(points[:, -1]))
    charge = RELATIVE * (np.abs(values).max(axis=1) + floor + np.abs(slope) * size) + ABSOLUTE
    top = _pick(values, highest) - slope * _pick(points, highest)
    return slope.reshape(shape), (top + charge).reshape(shape)


def _pick(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(array, index[..., None], axis=-1)[..., 0]


def _better(
    slope: np.ndarray, intercept: np.ndarray, constant: np.ndarray, at: np.ndarray, worse: np.ufunc
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the line, or the constant where the line is worse at that point or not finite."""
    line = slope * at + intercept
    flat = ~np.isfinite(line) | worse(line, constant)
    return np.where(flat, 0.0, slope), np.where(flat, constant, intercept)


def _relu(low: np.ndarray, high: np.ndarray, at: np.ndarray) -> Relaxation:
    """Returns relu itself where it is linear; else the chord, and the larger of z and 0 at `at`.

    At the midpoint this is CROWN's adaptive choice. For any slope k in place of the chord's slope,
    `z ↦ max(z, 0) − k z` is convex, so it is largest at an end.
    """
    slope = np.clip(high / (high - low), 0.0, 1.0)
    top = np.maximum(-slope * low, high - slope * high)
    top = top + 4.0 * UNIT * (np.abs(slope * low) + high) + 4.0 * TINY
    unbounded = ~np.isfinite(top + slope)
    slope, top = np.where(unbounded, 0.0, slope), np.where(unbounded, high, top)
    active, inactive = low >= 0.0, high <= 0.0
    stable = active | inactive
    return Relaxation(
        np.where(active | (~inactive & (at > 0.0)), 1.0, 0.0),
        np.zeros(low.shape),
        np.where(stable, np.where(active, 1.0, 0.0), slope),
        np.where(stable, 0.0, top),
    )
