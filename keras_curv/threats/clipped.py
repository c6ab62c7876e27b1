"""An unrestricted attacker against a classifier that clips its own input.

With `F = f ∘ T` and `T(x)_i = clip(z_i, low_i, high_i)`, `z_i = s_i x_i + o_i`, let u0 = T(x0).
Any x has T(x) − u0 = e between `low − u0` and `high − u0`. Where e_i > 0, z_i must have risen from
z(x0)_i to at least `u0_i + e_i`, which is further by `low_i − z(x0)_i` if x0 is clipped from below;
so `|x_i − x0_i| ≥ (e_i + (low_i − z(x0)_i)⁺)/|s_i|`. Likewise downward. A certificate of F holds
for every δ, because the classifier clips, not the attacker.

**Rounding.** In floating point u0 is not T(x0), but T(x0′) of an x0′ nearby: between the limits of
T, the computed z has some error η, and x0′ is x0 moved by η/|s|. Dead zones are rounded down, to at
most their values at x0′. A radius at x0′ becomes a radius at x0 when `‖x0 − x0′‖` is subtracted,
which `displaced` bounds. An entry with s = 0 is its stored offset; if folding left an error in it,
no x0′ compensates it, and `split_clip` does not accept the map as a clip.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.network.clip import Clip
from keras_curv.numerics.rounding import SLOPE_FLOOR, TINY, UNIT
from keras_curv.threats.confined import Reach

_GROW = 1.0 + 32.0 * UNIT


class Clipped(NamedTuple):
    """An input behind the clip."""

    value: tf.Tensor  # u0, `(n, dim)`
    reach: Reach  # the reach of its entries
    displaced: tf.Tensor  # bound on `‖x0 − x0′‖`, `(n,)`; 0 where nothing was rounded


def clipped(clip: Clip, x: tf.Tensor) -> Clipped:
    """Returns u0 = T(x), the reach of its entries and a bound on the rounding, in float64.

    In float32, for training and attacks, the bound on the rounding is not valid.
    """
    value, z = clip.value(x), clip.unclipped(x)
    low, high, offset = (tf.constant(part, x.dtype) for part in (clip.low, clip.high, clip.offset))
    size = tf.constant(np.abs(clip.scale), x.dtype)
    moves = tf.constant(clip.scale != 0.0)
    exact = bool(np.all(clip.scale == 1.0) and not clip.offset.any())
    exact &= clip.scale_error == clip.offset_error == 0.0
    rounded = 4.0 * UNIT * (size * tf.abs(x) + tf.abs(offset))
    rounded += 4.0 * TINY * (1.0 + tf.abs(x) + size)  # a factor may be flushed to zero
    rounded = tf.zeros_like(x) if exact else rounded
    # The folding error may be any matrix Δ: |(x Δ)_i| ≤ ‖x‖ ‖Δ‖ for every x_i.
    known = tf.constant(clip.offset_error, x.dtype)
    if clip.scale_error:  # else an overflow of x² must have no effect
        length = tf.norm(x, axis=-1, keepdims=True) * (1.0 + (clip.dim + 8.0) * UNIT)
        known += clip.scale_error * (length + SLOPE_FLOOR)
    off = rounded + known
    dead = (_zone(low - z, off), _zone(z - high, off))
    # The error of the scales S is a matrix Δ, and ‖(1 + η)⁻¹ S⁻¹ (S + Δ)‖ ≤ 1 for η ≥ ‖S⁻¹‖ ‖Δ‖.
    eta = clip.scale_error * clip.cost.max(initial=0.0) * (1.0 + 8.0 * UNIT)
    least = clip.cost / (1.0 + eta) * (1.0 - 8.0 * UNIT)
    cost = tf.constant(np.ones_like(least) if exact else least, x.dtype)
    most = tf.constant(clip.cost / (1.0 - np.minimum(eta, 0.5)), x.dtype)
    reach = Reach(
        up=tf.where(moves, high - value, 0.0),
        down=tf.where(moves, value - low, 0.0),
        dead_up=cost * dead[0],
        dead_down=cost * dead[1],
        cost=cost,
    )
    displaced = tf.norm(most * off, axis=-1) * (_GROW + 2.0 * clip.dim * UNIT)
    return Clipped(value, reach, displaced + (0.0 if exact else SLOPE_FLOOR))


def _zone(beyond: tf.Tensor, off: tf.Tensor) -> tf.Tensor:
    """Returns a lower bound on how far z is beyond a limit."""
    sure = beyond * (1.0 - 16.0 * UNIT) - off * (1.0 + 8.0 * UNIT)
    return tf.where(beyond > 0.0, tf.maximum(sure, 0.0), 0.0)
