"""What an unrestricted attacker can do to a classifier that clips its own input.

With `F = f ∘ T` and `T(x)_i = clip(z_i, low_i, high_i)`, `z_i = s_i x_i + o_i`, let u0 = T(x0).
Any x has T(x) − u0 = e between `low − u0` and `high − u0`. Where e_i > 0, z_i must have come
from z(x0)_i up to at least `u0_i + e_i`, which is further by `low_i − z(x0)_i` where x0 is clipped
from below; so `|x_i − x0_i| ≥ (e_i + (low_i − z(x0)_i)⁺)/|s_i|`. Likewise downward. What is
certified of F is certified for every δ: it is the classifier that clips, not the attacker.
"""

from __future__ import annotations

import tensorflow as tf

from keras_curv.network.clip import Clip
from keras_curv.threats.confined import Reach


def clipped_reach(clip: Clip, x: tf.Tensor) -> Reach:
    """Returns limits and costs of the entries of T(x), for inputs `(n, dim)`."""
    unclipped, value = clip.unclipped(x), clip.value(x)
    low, high, cost = (tf.constant(a, x.dtype) for a in (clip.low, clip.high, clip.cost))
    moves = tf.constant(clip.scale != 0.0)
    return Reach(
        up=tf.where(moves, high - value, 0.0),
        down=tf.where(moves, value - low, 0.0),
        dead_up=cost * tf.maximum(low - unclipped, 0.0),
        dead_down=cost * tf.maximum(unclipped - high, 0.0),
        cost=cost,
    )
