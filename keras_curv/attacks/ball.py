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
    if tf.is_tensor(radius) and known is None:
        return
    if np.asarray(known).dtype.kind not in "fiu":
        raise InputError(f"radius must be a number, or one for each example. Received: {radius!r}")
    if not np.all(np.asarray(known) > 0.0):
        raise InputError(f"radius must be positive. Received: {np.min(known)}")


def require_attackable(network: Any, x: Any, label: Any, radius: Any) -> None:
    """Refuses arguments of an attack that do not fit together; sizes in a graph are not known.

    Raises:
        InputError: names the argument, and what it must be.
    """
    if not isinstance(network, FeedForward):
        raise InputError(
            "network must be a Network, as keras_curv.read(model).network, which takes examples "
            f"flattened. Received: {type(network).__name__}"
        )
    require_radius(radius)
    x, label = tf.convert_to_tensor(x), tf.convert_to_tensor(label)
    if x.shape.rank != 2 or x.shape[1] not in (None, network.sizes[0]):
        wanted = f"x must have the shape (n, {network.sizes[0]})"
        raise InputError(f"{wanted}. Received: {tuple(x.shape)}")
    if not x.dtype.is_floating or not label.dtype.is_integer:
        raise InputError(
            f"x must be floats, and label integers. Received: {x.dtype.name}, {label.dtype.name}"
        )
    radius = tf.convert_to_tensor(radius)
    each = {"label": label} | ({"radius": radius} if radius.shape.rank else {})
    for name, value in each.items():
        if not x.shape[:1].is_compatible_with(value.shape):
            raise InputError(
                f"{name} must have an entry for each example, (n,) = {tuple(x.shape[:1])}. "
                f"Received: {tuple(value.shape)}"
            )
    known = tf.get_static_value(label)
    if known is not None and not np.all((known >= 0) & (known < network.classes)):
        raise InputError(
            f"label must be of the {network.classes} classes, from 0. Received: "
            f"{np.min(known)} to {np.max(known)}"
        )


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
