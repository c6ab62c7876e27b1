"""Values that a training step has already and recomputes only for their gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


@tf.custom_gradient
def known(value: tf.Tensor, worked_out: tf.Tensor) -> Any:
    """Returns `value` with the gradient of `worked_out`, which is the same number.

    In a graph the value of `worked_out` is then unused, and of the ops that make it only those run
    that its gradient needs: the gradient of a product needs only the factors.

    Example:
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     square = known(tf.constant(9.0), x * x)
        >>> float(square), float(tape.gradient(square, x))
        (9.0, 6.0)
    """
    return tf.identity(value), lambda upstream: (None, upstream)


@tf.custom_gradient
def materialized(array: tf.Tensor) -> Any:
    """Returns the array stored in memory as it is, so that products read a transposed copy.

    TensorFlow would fold the transposition into each product, which is slower.
    """
    return tf.raw_ops.Snapshot(input=array), lambda upstream: upstream
