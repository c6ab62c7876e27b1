"""Muon for the kernels of convolutions too.

Keras' Muon takes matrices alone, and leaves kernels of more axes to Adam. A convolution's kernel
is a matrix from a window to the filters, and is trained as one here: pixels of a window are so
alike that Adam goes nowhere along what tells them apart.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), which
flattens kernels of convolutions.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf


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
        return tf.reshape(super().zeropower_via_newtonschulz5(matrix, steps), x.shape)


class _Matrix:
    """What Keras asks of a variable, of a kernel as a matrix."""

    def __init__(self, variable: keras.Variable):
        self.path, self.shape = variable.path, _matrix_shape(variable.shape)


def _matrix_shape(shape: Any) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
