"""Interval bounds of a network on an l2 ball, differentiable, to train with."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_curv.certificates.interval_bounds import Box, value_range
from keras_curv.network.network import FeedForward


class IntervalBounds(NamedTuple):
    """Interval bounds of a network on a ball.

    Attributes:
        hidden: `(low, high)` of `z_1, …, z_{L−1}`, each `(n, N_k)`.
        margins: lower bounds of `z_label − z_rival`, `(n, rivals)`.
    """

    hidden: list[tuple[tf.Tensor, tf.Tensor]]
    margins: tf.Tensor


def interval_bounds(
    network: FeedForward, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor, radius: float
) -> IntervalBounds:
    """Returns interval bounds wherever `‖δ‖₂ ≤ radius`, differentiable, in the dtype of `x`.

    For training: they hold up to rounding, which is not charged.

    Args:
        network: its activations must have passed `require_value_range`.
        x: centres of the balls, `(n, dim)`.
        label: `(n,)`, integers.
        rivals: `(n, k)`, integers.
        radius: one number, not negative.

    Example:
        >>> import numpy as np
        >>> from keras_curv import Network
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> x, label, rivals = tf.ones((1, 2)), tf.constant([0]), tf.constant([[1]])
        >>> interval_bounds(network, x, label, rivals, 0.5).margins.numpy()
        array([[-1.]], dtype=float32)
    """
    rows, constants = network.margin_map(x, label, rivals)
    box, hidden = Box(x, None, radius), []
    for kernel, bias, activation in zip(
        *network.weights(x.dtype), network.activations, strict=False
    ):
        middle, spread = box.linear_image(kernel, l2_norm)
        hidden.append((middle + bias - spread, middle + bias + spread))
        low, high = value_range(activation, *hidden[-1])
        box = Box((low + high) / 2.0, (high - low) / 2.0)
    middle, spread = box.linear_image(tf.linalg.matrix_transpose(rows), l2_norm)
    return IntervalBounds(hidden, middle + constants - spread)


def l2_norm(array: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Returns ‖·‖₂ over one axis; its gradient at 0 is 0."""
    return tf.sqrt(tf.reduce_sum(array * array, axis=axis) + 1e-30)


def row_products(rows: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Returns `(n, k)`, the products of rows `(n, k, N)` with their examples' vectors `(n, N)`."""
    return tf.einsum("nki,ni->nk", rows, vectors)
