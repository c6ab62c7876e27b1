"""Muon for the kernels of convolutions too.

Keras' Muon takes matrices alone, and leaves kernels of more axes to Adam. A convolution's kernel
is a matrix from a window to the filters, and is trained as one here: pixels of a window are so
alike that Adam goes nowhere along what tells them apart.

Newton–Schulz iteration takes most of a step's time where matrices are large. It is the same one
here, in fewer products: `A = X Xᵀ` and `A²` are symmetric, and made of three blocks instead of
four. Where X is much wider than high, `P = a + b A + c A²` makes `P X` of X and `P A P` of A, so
that only the product of several P need meet X. As A squares what is small, it is made anew from X
after three steps.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), which
flattens kernels of convolutions.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from keras_curv.numerics.known import materialized

_LARGE = 512  # sides from which on fewer products are quicker
_WIDE = 1.5  # width over height likewise
_RENEWED = 3  # steps after which A is made from X


@keras.saving.register_keras_serializable(package="keras_curv")
class Muon(keras.optimizers.Muon):
    """`keras.optimizers.Muon`, which has kernels of any number of axes as matrices.

    The last axis is that of the outputs, as in all kernels of Keras but those of depthwise
    convolutions.

    Example:
        >>> model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3)])
        >>> optimizer = Muon(0.1, rms_rate=None)
        >>> optimizer.build(model.trainable_variables)
        >>> optimizer.adam_velocities[0] is None  # the kernel is not Adam's
        True
    """

    def _should_use_adamw(self, variable: keras.Variable) -> bool:
        kernel = len(variable.shape) > 2 and variable.name == "kernel"
        return super()._should_use_adamw(_Matrix(variable) if kernel else variable)

    def zeropower_via_newtonschulz5(self, x: tf.Tensor, steps: int) -> tf.Tensor:
        """Returns the step's direction, of the shape of the gradient."""
        matrix = tf.reshape(x, _matrix_shape(x.shape))
        if min(matrix.shape) < _LARGE:
            return tf.reshape(super().zeropower_via_newtonschulz5(matrix, steps), x.shape)
        high = matrix.shape[0] > matrix.shape[1]
        found = self._orthogonalized(tf.transpose(matrix) if high else matrix, steps)
        return tf.reshape(tf.transpose(found) if high else found, x.shape)

    def _orthogonalized(self, x: tf.Tensor, steps: int) -> tf.Tensor:
        """Returns what Keras does of a matrix that is no higher than wide."""
        height, width = x.shape
        x /= tf.norm(x) + 1e-7
        renewed = _RENEWED if width >= _WIDE * height else 1
        for begun in range(0, steps, renewed):
            a = _symmetric(x, materialized(tf.transpose(x)))
            count = min(renewed, steps - begun)
            if count == 1:
                x = self.muon_a * x + self._bent(a) @ x
                continue
            total = None
            for index in range(count):
                p = self._bent(a)
                p = tf.linalg.set_diag(p, tf.linalg.diag_part(p) + self.muon_a)
                total = p if total is None else _symmetric(p, total)
                if index < count - 1:
                    a = _symmetric(_symmetric(p, a), p)
            x = total @ x
        return x

    def _bent(self, a: tf.Tensor) -> tf.Tensor:
        """Returns `b A + c A²`."""
        return self.muon_b * a + self.muon_c * _symmetric(a, a)


def _symmetric(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns `a b`, `(n, n)`, of which it is known that it is symmetric."""
    half = a.shape[0] // 2
    above = tf.matmul(a[:half], b)
    right = above[:, half:]
    below = tf.concat([tf.transpose(right), tf.matmul(a[half:], b[:, half:])], axis=1)
    return tf.concat([above, below], axis=0)


class _Matrix:
    """What Keras asks of a variable, of a kernel as a matrix."""

    def __init__(self, variable: keras.Variable):
        self.path, self.shape = variable.path, _matrix_shape(variable.shape)


def _matrix_shape(shape: Any) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
