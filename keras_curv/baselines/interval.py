"""Interval bounds of a network on an l2 ball: to train with, and a certificate.

**Bounds.** On the ball `‖δ‖ ≤ R` around x, the first pre-activation is within `R ‖w_j‖₂` of its
value at x, w_j its column of the kernel, and reaches both ends. An activation maps an interval to
the range of its values; an affine map the box with centre c and half-widths r to

    c W + b ± r |W|,

entry by entry. The last map is merged with the margin: its columns are those of label minus
rival. Each step is exact for its own box, and forgets how the entries of the box hang together.

To train with, they hold up to rounding; those of the certificate, in full: `methods/box.py`.

Reference: Gowal et al., "On the effectiveness of interval bound propagation for training verifiably
robust models" (2018), equations 6 and 7; Mirman, Gehr & Vechev, "Differentiable abstract
interpretation for provably robust neural networks" (2018), for the box; the first layer by the dual
norm as in Zhang et al., "Towards stable and efficient training of verifiably robust neural
networks" (2020).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.methods.ball_bounds import BallBoundCertificate
from keras_curv.methods.box import Box, margin_map, require_value_range, value_range
from keras_curv.methods.method import ServedError, no_error
from keras_curv.network import FeedForward, Network, require_dense
from keras_curv.rounding import norm_bound


class IntervalBounds(NamedTuple):
    """What intervals say of a network on a ball.

    Attributes:
        hidden: `(low, high)` of `z_1, …, z_{L−1}`, each `(n, N_k)`.
        margins: lower bounds of `z_label − z_rival`, `(n, rivals)`.
    """

    hidden: list[tuple[tf.Tensor, tf.Tensor]]
    margins: tf.Tensor


def interval_bounds(
    network: FeedForward, x: tf.Tensor, label: tf.Tensor, rivals: tf.Tensor, radius
) -> IntervalBounds:
    """Interval bounds wherever `‖δ‖₂ ≤ radius`, differentiable, in the dtype of `x`.

    For training: they hold up to rounding, which is not charged.

    Args:
        network: its activations must have passed `require_value_range`.
        x: centres of the balls, `(n, dim)`.
        label: `(n,)`, integers.
        rivals: `(n, k)`, integers.
        radius: one number, not negative.

    Example:
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> x, label, rivals = tf.ones((1, 2)), tf.constant([0]), tf.constant([[1]])
        >>> interval_bounds(network, x, label, rivals, 0.5).margins.numpy()
        array([[-1.]], dtype=float32)
    """
    kernels, biases = network.weights(x.dtype)
    rows, constants = margin_rows(network, label, rivals, x.dtype)
    centre, half, hidden = x, None, []
    for kernel, bias, activation in zip(
        kernels[:-1], biases[:-1], network.activations, strict=True
    ):
        middle = tf.matmul(centre, kernel) + bias
        spread = (
            radius * l2_norm(kernel, axis=0) if half is None else tf.matmul(half, tf.abs(kernel))
        )
        hidden.append((middle - spread, middle + spread))
        low, high = value_range(activation, *hidden[-1])
        centre, half = (low + high) / 2.0, (high - low) / 2.0
    spread = radius * l2_norm(rows) if half is None else row_products(tf.abs(rows), half)
    return IntervalBounds(hidden, row_products(rows, centre) + constants - spread)


def margin_rows(network: FeedForward, label, rivals, dtype) -> tuple[tf.Tensor, tf.Tensor]:
    """What the margins are of the last activations: `(n, k, N)`, and `(n, k)` besides."""
    kernels, biases = network.weights(dtype)
    # Products with one-hot rows instead of gathers: their gradients are dense.
    sign = tf.one_hot(label, network.classes, dtype=dtype)[:, None]
    sign -= tf.one_hot(rivals, network.classes, dtype=dtype)
    rows = tf.tensordot(sign, tf.transpose(kernels[-1]), 1)
    return rows, tf.tensordot(sign, biases[-1], 1)


def l2_norm(array: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """‖·‖₂ over one axis, with a gradient at 0."""
    return tf.sqrt(tf.reduce_sum(array * array, axis=axis) + 1e-30)


def row_products(rows: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """`(n, k, N)` with `(n, N)`, each row with its example's vector: `(n, k)`."""
    return tf.einsum("nki,ni->nk", rows, vectors)


class IntervalCertificate(BallBoundCertificate):
    """The largest ball on which the interval bounds of the margins are positive.

    Args:
        network: its activations do not fall, or are silu, gelu, gelu_tanh or mish.
        served_error: what serving may take off a margin.

    Raises:
        InputError: the network has an activation without a rule; it is named.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "relu")
        >>> certificate = IntervalCertificate(network)
        >>> x, label, rivals = np.array([[3.0, 1.0]]), np.array([0]), np.array([[1]])
        >>> radius = certificate.radii(x, label, rivals, np.zeros((1, 1))).radius
        >>> float(radius[0, 0]) <= 2.0**0.5 <= 1.002 * float(radius[0, 0])
        True
    """

    name = "interval"

    def __init__(self, network: Network, served_error: ServedError = no_error):
        for activation in network.activations:
            require_value_range(activation)
        require_dense(network, self.name)
        # As far as an interval of each z_L grows with the radius, at most.
        steepest = norm_bound(network.affines[0].kernel, axis=0)
        with np.errstate(over="ignore"):
            for activation, affine in zip(network.activations, network.affines[1:], strict=True):
                steepest = activation.slope * steepest @ np.abs(affine.kernel)
        super().__init__(network, served_error, steepest=2.0 * steepest.max())

    def _margin_bounds(self, x, label, rivals, radius, asked) -> np.ndarray:
        box = Box(x, None, radius[:, None])
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            box = Box.of_values(activation, *box.image(affine))
        last = self.network.affines[-1]
        return box.margins(last, *margin_map(last, label, rivals))
