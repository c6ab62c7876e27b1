"""The layers between two activations of a model that is trained, as one affine map.

Its weights are functions of the variables, to differentiate through; its products go through the
layers where that is quicker than through their matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.training.trainable.carry import Carry
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
_LOCAL = (
    *_CONVOLUTIONS,
    _layers.AveragePooling2D,
    TrainedAveragePooling2D,
    _layers.AveragePooling1D,
)
_PLACING = (  # these copy entries, or average them, by no weights of their own
    _layers.ZeroPadding2D,
    _layers.Cropping2D,
    _layers.UpSampling2D,
    _layers.GlobalAveragePooling2D,
    _layers.ZeroPadding1D,
    _layers.Cropping1D,
    _layers.UpSampling1D,
    _layers.GlobalAveragePooling1D,
    _layers.Permute,
    _layers.RepeatVector,
)
# Between an entry of their input and one of their output there is one path at most.
_SINGLE_PATHS = (
    _layers.Rescaling,
    _layers.Normalization,
    _layers.BatchNormalization,
    _layers.ZeroPadding2D,
    _layers.Cropping2D,
    _layers.ZeroPadding1D,
    _layers.Cropping1D,
    _layers.Permute,
)
_MIXING = (  # and one in these, but several in two of them
    _layers.Dense,
    _layers.Conv2D,
    _layers.DepthwiseConv2D,
    _layers.Conv1D,
    _layers.DepthwiseConv1D,
)
AFFINE = (
    *_LOCAL,
    _layers.Dense,
    _layers.EinsumDense,
    _layers.Rescaling,
    _layers.Normalization,
    _layers.BatchNormalization,
    *_PLACING,
)


class AffineLayers:
    """Consecutive layers that together are one affine map.

    Attributes:
        dense: the layer whose kernel and bias the map has, if it has those of one.
    """

    def __init__(self, layers: list[keras.layers.Layer], shape: tuple[int, ...]):
        self.layers = [layer for layer in layers if not isinstance(layer, _layers.InputLayer)]
        self.input_shape = shape
        self.fan_in = math.prod(shape)
        self.output_shape = shape
        for layer in self.layers:
            self.output_shape = tuple(layer.compute_output_shape((None, *self.output_shape))[1:])
        self.fan_out = math.prod(self.output_shape)
        weighty = [layer for layer in self.layers if not isinstance(layer, KEEPS_ENTRIES)]
        self.dense = None
        if len(weighty) == 1 and isinstance(weighty[0], _layers.Dense):
            if tuple(weighty[0].kernel.shape) == (self.fan_in, self.fan_out):
                self.dense = weighty[0]

    def weights(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns kernel `(fan_in, fan_out)` and bias `(fan_out,)`, float32, differentiable."""
        if self.dense is not None:
            bias = self.dense.bias
            bias = tf.zeros(self.fan_out) if bias is None else _float32(bias)
            return _float32(self.dense.kernel), bias
        bias, added = tf.zeros((1, *self.input_shape)), False
        for layer in self.layers:
            moved, shift = _applied(layer, bias)
            # Zeros stay zeros: known as such, they need no convolution.
            bias = (moved if added else tf.zeros_like(moved)) + shift
            added = added or tf.is_tensor(shift)
        if self.fan_out < self.fan_in:  # a unit vector of the shorter side is a row
            kernel = tf.transpose(self.transposed_product(tf.eye(self.fan_out)))
        else:
            kernel = self.product(tf.eye(self.fan_in))
        return kernel, tf.reshape(bias, (-1,))

    def activation(self, sigma: Activation) -> Activation:
        """Returns the activation of all units, where the layers end with σ."""
        return sigma

    @property
    def is_structured(self) -> bool:
        """Whether the layers are quicker than their matrix."""
        return any(isinstance(layer, _LOCAL) for layer in self.layers)

    @property
    def has_single_paths(self) -> bool:
        """Whether each entry of the kernel is one product of weights, not a sum of several."""
        weighty = [layer for layer in self.layers if not isinstance(layer, KEEPS_ENTRIES)]
        mixing = [layer for layer in weighty if type(layer) in _MIXING]
        return len(mixing) < 2 and all(type(a) in (*_MIXING, *_SINGLE_PATHS) for a in weighty)

    def product(self, array: tf.Tensor, entries: _Function = tf.identity) -> tf.Tensor:
        """Returns `(…, fan_in)` times the kernel, layer by layer.

        Args:
            array: the vectors.
            entries: a function of the kernel's entries, of products the product of what it is of
                the factors; for `has_single_paths`.
        """
        rows = tf.reshape(array, (-1, *self.input_shape))
        for layer in self.layers:
            rows, _ = _applied(layer, rows, entries)
        return tf.reshape(rows, tf.concat([tf.shape(array)[:-1], [self.fan_out]], axis=0))

    def transposed_product(self, array: tf.Tensor, entries: _Function = tf.identity) -> tf.Tensor:
        """Returns `(…, fan_out)` times the transposed kernel: the gradient of the linear map."""
        anywhere = tf.zeros(tf.concat([tf.shape(array)[:-1], [self.fan_in]], axis=0))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(anywhere)
            product = self.product(anywhere, entries)
        return tape.gradient(product, anywhere, output_gradients=array)


class CarriedLayers:
    """The map `[a W, a W V]` of affine layers W and of V, the dense layer in a `Carry` behind them.

    Attributes: as of `AffineLayers`.
    """

    is_structured = True
    dense = None

    def __init__(self, layers: list[keras.layers.Layer], carry: Carry, shape: tuple[int, ...]):
        self.before = AffineLayers(layers, shape)
        if len(self.before.output_shape) != 1:
            raise InputError(
                f"training reads Carry on vectors alone, but {carry.name!r} is given "
                f"{(None, *self.before.output_shape)}; put Flatten before it"
            )
        self.inside = AffineLayers([carry.layer], self.before.output_shape)
        self.fan_in = self.before.fan_in
        self.output_shape = (self.before.fan_out + self.inside.fan_out,)

    def activation(self, sigma: Activation) -> Activation:
        """See `AffineLayers`."""
        return unit_wise([(IDENTITY, self.before.fan_out), (sigma, self.inside.fan_out)])

    def weights(self) -> tuple[tf.Tensor, tf.Tensor]:
        """See `AffineLayers`."""
        kernel, bias = self.before.weights()
        added, shift = self.inside.weights()
        shift = tf.tensordot(bias, added, 1) + shift
        return tf.concat([kernel, kernel @ added], axis=1), tf.concat([bias, shift], axis=0)

    def product(self, array: tf.Tensor) -> tf.Tensor:
        """See `AffineLayers`."""
        carried = self.before.product(array)
        return tf.concat([carried, self.inside.product(carried)], axis=-1)

    def transposed_product(self, array: tf.Tensor) -> tf.Tensor:
        """See `AffineLayers`."""
        carried, added = tf.split(array, [self.before.fan_out, self.inside.fan_out], axis=-1)
        return self.before.transposed_product(carried + self.inside.transposed_product(added))


def _applied(
    layer: keras.layers.Layer, rows: tf.Tensor, entries: _Function = tf.identity
) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Returns the layer's linear map of rows in inference, and the shift that it adds to points.

    In float32 whatever the layer's dtype, and without differences of its values: beside a large
    shift, digits of the kernel would be lost.
    """
    if isinstance(layer, (_layers.Dense, *_CONVOLUTIONS)):
        shift = 0.0 if layer.bias is None else _float32(layer.bias)
        if isinstance(layer, _layers.Dense):
            return tf.tensordot(rows, entries(_float32(layer.kernel)), 1), shift
        return _convolved(layer, rows, entries), shift
    if isinstance(layer, _layers.EinsumDense):
        moved = tf.einsum(layer.equation, rows, _float32(layer.kernel))
        return moved, 0.0 if layer.bias is None else _float32(layer.bias)
    if isinstance(layer, CHANGES_IN_TRAINING):
        return rows, 0.0
    if isinstance(layer, _layers.Rescaling):
        return rows * entries(_float32(layer.scale)), _float32(layer.offset)
    if isinstance(layer, _layers.Normalization):
        mean, spread = _float32(layer.mean), tf.sqrt(_float32(layer.variance))
        spread = tf.maximum(spread, keras.config.epsilon())
        if layer.invert:
            return rows * entries(spread), mean
        return rows / entries(spread), -mean / spread
    if isinstance(layer, _layers.BatchNormalization):
        shape = [1] * rows.shape.rank
        shape[layer.axis] = -1
        factor = tf.math.rsqrt(_float32(layer.moving_variance) + layer.epsilon)
        factor = factor * _float32(layer.gamma) if layer.scale else factor
        shift = -_float32(layer.moving_mean) * factor
        shift = shift + _float32(layer.beta) if layer.center else shift
        return rows * tf.reshape(entries(factor), shape), tf.reshape(shift, shape)
    pools = isinstance(layer, _layers.AveragePooling2D)
    return averages(layer, rows) if pools else layer.call(rows), 0.0


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
        weight = entries(_float32(weight))
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


def _float32(value: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(value), tf.float32)
