"""Lines around an activation that is convex up to a point and concave from there on.

Sigmoid, tanh and softsign turn at 0; softplus is convex everywhere and log_sigmoid concave, and
they turn at an end. Lines above σ follow from lines below `−σ(−z)`, which is such a function too:
so only lines below are derived, and arrays `(2, …)` hold those of σ and of −σ(−z).

**Below.** Let σ be convex on [l, m] and concave on [m, u], k any slope and t any point of [l, m].
There σ lies above its tangent at t; on [m, u] `σ(z) − kz` is concave, hence least at an end, and m
is a point of [l, m] too. So on all of [l, u]

    σ(z) − kz  ≥  min( σ(u) − ku,  σ(t) − kt − max((σ′(t) − k)(t − l), (k − σ′(t))(m − t)) ).

**Slopes** and touching points are estimates; the minimum makes any of them sound. At a point p of
[l, m] the best line is the tangent there, if it is not above σ(u). Else it goes through u, and
touches σ where the chord from that point to u has the slope of σ, or at l if that point is below l.
Where σ turns at 0, that point depends only on u, and is looked up in a table.

**Rounding** is charged as for sampled lines (`relaxation.py`); σ′, whose error is at most
ω u sup|σ′|, is multiplied by at most u − l.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from keras_curv.network.activation import Activation
from keras_curv.numerics.rounding import ACTIVATION_TINY, ACTIVATION_ULPS, UNIT, up

RELATIVE, ABSOLUTE = (2.0 * ACTIVATION_ULPS + 16.0) * UNIT, 2.0 * ACTIVATION_TINY
_ENTRIES, _HALVINGS = 2**12, 50  # entries of the table, and bisections for each


def turning_point(activation: Activation) -> float | None:
    """Returns where a smooth σ turns from convex to concave, ±∞ if nowhere; None for other shapes.

    Example:
        >>> from keras_curv.network import activations
        >>> turning_point(activations.get("tanh")), turning_point(activations.get("softplus"))
        (0.0, inf)
    """
    if activation.kinks or activation.hinge:
        return None
    if activation.convex:
        return np.inf
    if activation.concave:
        return -np.inf
    return 0.0 if activation.s_shaped else None


def tangent_lines(
    activation: Activation, low: np.ndarray, high: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns lines below and above σ that are approximately closest to σ at given points.

    Args:
        activation: an activation with a `turning_point`.
        low, high: the intervals, `(…)`.
        at: the points in them.

    Returns:
        Slopes, intercepts, and σ at both ends, `(2, …)` each, of the lower lines first; NaN where
        anything overflows.

    Example:
        >>> from keras_curv.network import activations
        >>> sigmoid, low = activations.get("sigmoid"), np.array([-4.0])
        >>> slope, intercept, _ = tangent_lines(sigmoid, low, -low, np.zeros(1))
        >>> slope.round(3)[:, 0], intercept.round(3)[:, 0]
        (array([0.145, 0.145]), array([0.4, 0.6]))
    """
    sign = np.reshape([1.0, -1.0], (2, *[1] * low.ndim))  # −1: of −σ(−z)
    low, high, at = np.stack([low, -high]), np.stack([high, -low]), sign * at

    def value(z: np.ndarray) -> np.ndarray:
        return sign * activation.value(tf.constant(sign * z)).numpy()

    def first(z: np.ndarray) -> np.ndarray:
        return activation.first(tf.constant(sign * z)).numpy()

    turn = np.clip(sign * turning_point(activation), low, high)
    top, touch = value(high), np.clip(at, low, turn)
    steep, least = first(touch), value(touch)
    slope = steep
    through = (turn < high) & ((at > turn) | (least + steep * (high - touch) > top))
    if through.any():
        touch = np.where(through, np.maximum(low, _touching(activation, high)), touch)
        steep, least = first(touch), value(touch)
        chord = np.clip((top - least) / (high - touch), *activation.first_range)
        slope = np.where(through, chord, steep)
    off = np.maximum((steep - slope) * (touch - low), (slope - steep) * (turn - touch))
    steepest = np.abs(activation.slope)
    if not np.isfinite(steepest):  # σ′ is monotone, so it is largest at an end
        steepest = up(np.maximum(np.abs(first(low)), np.abs(first(high))), 64)
    size = np.abs(slope) * np.maximum(np.abs(low), np.abs(high)) + steepest * (high - low)
    size = size + np.maximum(np.abs(least), np.abs(top)) + activation.value_floor
    intercept = np.minimum(top - slope * high, least - slope * touch - off)
    intercept = intercept - RELATIVE * size - ABSOLUTE
    return slope, sign * intercept, sign * top


def _touching(activation: Activation, high: np.ndarray) -> np.ndarray:
    """Returns where the lines through the ends u touch σ, `[0]`, and −σ(−z), `[1]`, from below.

    The result is valid only where σ turns inside the interval.
    """
    if not activation.s_shaped:  # it turns at l
        return np.full(high.shape, -np.inf)
    ends = np.maximum(high, 0.0)
    places = np.rint(_ENTRIES * (ends / (1.0 + ends))).astype(np.intp)
    tables = (_table(activation, sign) for sign in (1.0, -1.0))
    parts = zip(tables, places, strict=True)
    return ends * np.stack([table.take(place, mode="clip") for table, place in parts])


@functools.lru_cache
def _table(activation: Activation, sign: float) -> np.ndarray:
    """Returns the touching point for each u / (1 + u), as a multiple of u, by bisection."""
    share = np.arange(_ENTRIES) / _ENTRIES
    u = np.maximum(share / (1.0 - share), 1e-3)
    low, high = -u, np.zeros(_ENTRIES)
    top = sign * activation.value(tf.constant(sign * u)).numpy()
    for _ in range(_HALVINGS):
        z = (low + high) / 2.0
        steep = activation.first(tf.constant(sign * z)).numpy()
        chord = (top - sign * activation.value(tf.constant(sign * z)).numpy()) / (u - z)
        low, high = np.where(chord > steep, z, low), np.where(chord > steep, high, z)
    return low / u
