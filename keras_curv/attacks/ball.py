"""Points of an l2 ball: the nearest one, a random one; and the direction of a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.errors import InputError
from keras_curv.network.network import FeedForward


def require_radius(radius: Any) -> None:
    """Raises InputError for a radius that is not positive; one in a graph is not known."""
    known = tf.get_static_value(radius) if tf.is_tensor(radius) else radius
    if known is not None and not np.all(np.asarray(known) > 0.0):
        raise InputError(f"radius must be positive. Received: {np.min(known)}")


def normalized(gradient: tf.Tensor) -> tf.Tensor:
    """Returns `g / ‖g‖` of each row, 0 where g is 0; g² may underflow where g does not."""
    largest = tf.reduce_max(tf.abs(gradient), axis=-1, keepdims=True)
    gradient = tf.math.divide_no_nan(gradient, largest)
    return tf.math.divide_no_nan(gradient, tf.norm(gradient, axis=-1, keepdims=True))


def project(point: tf.Tensor, x: tf.Tensor, radius: Any) -> tf.Tensor:
    """Returns the nearest point of the ball of that radius around `x`, `(n, dim)`."""
    offset = point - x
    distance = tf.norm(offset, axis=-1, keepdims=True)
    radius = tf.reshape(dual.as_dtype(radius, x.dtype), (-1, 1))
    return x + offset * tf.where(distance > radius, radius / distance, tf.ones_like(distance))


def uniform_in_ball(x: tf.Tensor, radius: Any, seed: Any) -> tf.Tensor:
    """Draws a point of each ball around `x`, `(n, dim)`; the same for the same seed `(2,)`."""
    one, other = tf.unstack(tf.random.split(seed))
    offset = tf.random.stateless_normal(tf.shape(x), one, dtype=x.dtype)
    part = tf.random.stateless_uniform(tf.shape(x[:, :1]), other, dtype=x.dtype)
    length = tf.reshape(dual.as_dtype(radius, x.dtype), (-1, 1)) * part ** (1.0 / x.shape[-1])
    return x + length * tf.math.divide_no_nan(offset, tf.norm(offset, axis=-1, keepdims=True))


def room(network: FeedForward, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns least and largest value that an attacker on `x` may give its entries, `(n, dim)`.

    x is between them, so that clipping a point to them brings it no farther from x.
    """
    low, high = (tf.fill(tf.shape(x), tf.constant(end, x.dtype)) for end in (-np.inf, np.inf))
    if network.limits is not None:
        least, most = (tf.constant(limit, x.dtype) for limit in network.limits)
        low, high = tf.minimum(least, x), tf.maximum(most, x)
    if network.pinned is not None:
        low, high = (tf.where(network.pinned, x, end) for end in (low, high))
    return low, high


def examples_of(rival: tf.Tensor) -> tf.Tensor:
    """Returns the number of its example for each (example, rival), `(n · rivals,)`.

    Args:
        rival: `(n, rivals)`.
    """
    numbers = tf.expand_dims(tf.range(tf.shape(rival)[0]), 1)
    return tf.reshape(tf.broadcast_to(numbers, tf.shape(rival)), (-1,))
