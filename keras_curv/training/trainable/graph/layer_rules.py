"""What each layer does to what it is given: its linear part, its shift, and its paths.

The kernels are the layer's variables, so that gradients flow to them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_curv.training.trainable.pooling import TrainedAveragePooling2D, averages

_layers = keras.layers
_Function = Callable[[tf.Tensor], tf.Tensor]
CHANGES_IN_TRAINING = (  # at inference these do nothing
    _layers.Dropout,
    _layers.SpatialDropout1D,
    _layers.SpatialDropout2D,
    _layers.AlphaDropout,
    _layers.GaussianDropout,
    _layers.GaussianNoise,
)
KEEPS_ENTRIES = (  # at inference these hand on the flattened entries as they come
    _layers.InputLayer,
    _layers.Flatten,
    _layers.Reshape,
    _layers.Identity,
    _layers.ActivityRegularization,
    *CHANGES_IN_TRAINING,
)
_CONVOLUTIONS = (
    _layers.Conv2D,
    _layers.DepthwiseConv2D,
    _layers.SeparableConv2D,
    _layers.Conv1D,
    _layers.DepthwiseConv1D,
    _layers.SeparableConv1D,
)
LOCAL = (
    *_CONVOLUTIONS,
    _layers.AveragePooling2D,
    TrainedAveragePooling2D,
    _layers.AveragePooling1D,
)
_GLOBAL_AVERAGES = (_layers.GlobalAveragePooling2D, _layers.GlobalAveragePooling1D)
_COPYING = (_layers.UpSampling2D, _layers.UpSampling1D, _layers.RepeatVector)
_ONE_TO_ONE = (  # an entry of their input is one of their output at most, times a number
    _layers.Rescaling,
    _layers.Normalization,
    _layers.BatchNormalization,
    _layers.ZeroPadding2D,
    _layers.Cropping2D,
    _layers.ZeroPadding1D,
    _layers.Cropping1D,
    _layers.Permute,
)
_MIXING = (
    _layers.Dense,
    _layers.Conv2D,
    _layers.DepthwiseConv2D,
    _layers.Conv1D,
    _layers.DepthwiseConv1D,
)
AFFINE = (
    *LOCAL,
    *_MIXING,
    *_GLOBAL_AVERAGES,
    *_COPYING,
    *_ONE_TO_ONE,
    _layers.EinsumDense,
)


class Paths(enum.IntEnum):
    """How many ways lead from an entry before some layers to one behind them."""

    NARROW = 0  # one, and to one entry alone
    SINGLE = 1  # one at most: each entry of the kernel is one product of weights
    MANY = 2


def paths_behind(layer: keras.layers.Layer, shape: tuple[int, ...], paths: Paths) -> Paths:
    """Returns how many there are with one more layer behind.

    Args:
        layer: one of `KEEPS_ENTRIES` or `AFFINE`.
        shape: of what it is given.
        paths: how many lead there.
    """
    if isinstance(layer, KEEPS_ENTRIES) or type(layer) in _ONE_TO_ONE:
        return paths
    if type(layer) in _MIXING:
        return Paths.SINGLE if paths == Paths.NARROW else Paths.MANY
    if type(layer) in _COPYING:
        return max(paths, Paths.SINGLE)
    if type(layer) in _GLOBAL_AVERAGES or _tiles(layer, shape):
        return paths if paths == Paths.NARROW else Paths.MANY
    return Paths.MANY


def applied(
    layer: keras.layers.Layer, rows: tf.Tensor, entries: _Function = tf.identity
) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Returns the layer's linear map of rows in inference, and the shift that it adds to points.

    `entries` is a function of the kernel's entries, of products the product of what it is of the
    factors; where there is one path only, the map is that of the kernel with these entries.

    In float32 whatever the layer's dtype, and without differences of its values: beside a large
    shift, digits of the kernel would be lost.
    """
    if isinstance(layer, (_layers.Dense, *_CONVOLUTIONS)):
        shift = 0.0 if layer.bias is None else as_float32(layer.bias)
        if isinstance(layer, _layers.Dense):
            return tf.tensordot(rows, entries(as_float32(layer.kernel)), 1), shift
        return _convolved(layer, rows, entries), shift
    if isinstance(layer, _layers.EinsumDense):
        moved = tf.einsum(layer.equation, rows, entries(as_float32(layer.kernel)))
        return moved, 0.0 if layer.bias is None else as_float32(layer.bias)
    if isinstance(layer, CHANGES_IN_TRAINING):
        return rows, 0.0
    if isinstance(layer, _layers.Rescaling):
        return rows * entries(as_float32(layer.scale)), as_float32(layer.offset)
    if isinstance(layer, _layers.Normalization):
        mean, spread = as_float32(layer.mean), tf.sqrt(as_float32(layer.variance))
        spread = tf.maximum(spread, keras.config.epsilon())
        if layer.invert:
            return rows * entries(spread), mean
        return rows / entries(spread), -mean / spread
    if isinstance(layer, _layers.BatchNormalization):
        shape = [1] * rows.shape.rank
        shape[layer.axis] = -1
        factor = tf.math.rsqrt(as_float32(layer.moving_variance) + layer.epsilon)
        factor = factor * as_float32(layer.gamma) if layer.scale else factor
        shift = -as_float32(layer.moving_mean) * factor
        shift = shift + as_float32(layer.beta) if layer.center else shift
        return rows * tf.reshape(entries(factor), shape), tf.reshape(shift, shape)
    pools = isinstance(layer, _layers.AveragePooling2D)
    moved = averages(layer, rows) if pools else layer.call(rows)
    if count := _window(layer, rows.shape[1:]):
        moved *= count * entries(tf.constant(1.0 / count))
    return moved, 0.0


def _window(layer: keras.layers.Layer, shape: tuple[int, ...]) -> int:
    """Returns how many entries the layer takes the average of; 0: it does not."""
    if isinstance(layer, _GLOBAL_AVERAGES):
        return math.prod(shape[:-1])
    return math.prod(getattr(layer, "pool_size", (0,)))


def _tiles(layer: keras.layers.Layer, shape: tuple[int, ...]) -> bool:
    """Returns whether the layer takes averages of windows that tile what it is given."""
    size = tuple(getattr(layer, "pool_size", ()))
    if not size or tuple(layer.strides) != size:
        return False
    return all(side % own == 0 for side, own in zip(shape[:-1], size, strict=True))


def _convolved(layer: keras.layers.Layer, signals: tf.Tensor, entries: _Function) -> tf.Tensor:
    """Returns the convolution alone; of a sequence, as of an image of one row."""
    is_sequence, padding = signals.shape.rank == 3, layer.padding.upper()
    strides, dilation = layer.strides, layer.dilation_rate
    if padding == "CAUSAL":
        before = dilation[0] * (layer.kernel_size[0] - 1)
        signals, padding = tf.pad(signals, [[0, 0], [before, 0], [0, 0]]), "VALID"
    if is_sequence:
        signals, strides, dilation = signals[:, None], (*strides, *strides), (1, *dilation)

    def kernel(weight: Any) -> tf.Tensor:
        weight = entries(as_float32(weight))
        return weight[None] if is_sequence else weight

    args = (1, *strides, 1), padding
    if isinstance(layer, (_layers.Conv1D, _layers.Conv2D)):
        found = tf.nn.conv2d(signals, kernel(layer.kernel), *args, dilations=dilation)
    elif isinstance(layer, (_layers.SeparableConv1D, _layers.SeparableConv2D)):
        kernels = kernel(layer.depthwise_kernel), kernel(layer.pointwise_kernel)
        found = tf.nn.separable_conv2d(signals, *kernels, *args, dilations=dilation)
    else:
        found = tf.nn.depthwise_conv2d(signals, kernel(layer.kernel), *args, dilations=dilation)
    return found[:, 0] if is_sequence else found


def as_float32(value: Any) -> tf.Tensor:
    """Returns a variable or a number in float32."""
    return tf.cast(tf.convert_to_tensor(value), tf.float32)
