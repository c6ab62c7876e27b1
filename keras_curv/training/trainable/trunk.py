"""A base whose first layers have kinks: a trunk, of which only a Lipschitz constant is used.

Where the base is `g ∘ φ`, φ of slope L at most and g smooth, a ball of radius ρ around x is sent
into one of radius Lρ around φ(x), where the curvature of g finds the worst point. In the units of
the input, `v = φ(x)/L`, that is a network like any other, `v ↦ g(L v)`, attacked at the radius ρ:
the first kernel of g is multiplied by L, an estimate that is differentiable in the trunk's kernels.

Reference: Singla, Singla & Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100"
(2022), for curvature behind a network of slope 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.training.models.state import TrainingState
from keras_curv.training.trainable.graph.live_map import LiveMap
from keras_curv.training.trainable.keras_functions import absolute
from keras_curv.training.trainable.scaled_first import ScaledFirst

TRUNK = "trunk"  # what the names of the layers begin with
_STEPS = 4  # of Newton–Schulz; an error e becomes ¾e²
_LEAST = 1e-12  # of a squared norm: there is a gradient, and what to divide by
_VECTORS = 4  # of each map: the largest singular values of one that keeps norms are many


@keras.saving.register_keras_serializable(package="keras_curv")
class Orthogonal(keras.constraints.Constraint):
    """Keeps a kernel `(height, width, in, out)` orthogonal, so that a convolution keeps lengths.

    Of windows that do not overlap, with as many entries as there are outputs, the kernel is a
    square matrix. Where they overlap, each input channel has one tap: a shift, and a square matrix
    at each place. Newton–Schulz steps find the orthogonal matrix nearest to one that a step of
    training has moved away from it.

    Args:
        shifts: whether each input channel has one tap, see `taps`; the other weights are 0.

    Example:
        >>> kernel = Orthogonal()(tf.constant([[[[1.1, 0.0], [0.1, 0.9]]]]))
        >>> np.round(kernel[0, 0] @ tf.transpose(kernel[0, 0]), 4)
        array([[ 1., -0.],
               [-0.,  1.]], dtype=float32)
    """

    def __init__(self, shifts: bool = False):
        self.shifts = shifts

    def __call__(self, kernel: Any) -> tf.Tensor:
        """Returns the nearest orthogonal kernel."""
        kernel = tf.convert_to_tensor(kernel)
        channels = kernel.shape[-1]
        if self.shifts:
            kernel = kernel * taps(kernel.shape)
        matrix = tf.reduce_sum(kernel, axis=(0, 1)) if self.shifts else kernel
        matrix = tf.reshape(matrix, (-1, channels))
        for _ in range(_STEPS):
            matrix = 1.5 * matrix - 0.5 * matrix @ tf.matmul(matrix, matrix, transpose_a=True)
        return matrix * taps(kernel.shape) if self.shifts else tf.reshape(matrix, kernel.shape)

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return {"shifts": self.shifts}


def taps(shape: Sequence[int]) -> np.ndarray:
    """Returns 1 at the tap of each input channel and 0 elsewhere, `(3, 3, in, 1)`, float32.

    The last four channels see the neighbours above, left, right and below, the others the middle.
    """
    height, width, channels = shape[:3]
    tap = np.full(channels, 4)
    tap[-4:] = (1, 3, 5, 7)
    return np.eye(9, dtype=np.float32)[:, tap].reshape(height, width, channels, 1)


def trunk_layers(count: int, input_shape: tuple[int, ...]) -> list[keras.layers.Layer]:
    """Returns so many convolutions with `Orthogonal` kernels and |·| behind each.

    The first one makes the channels of a place of 2 × 2 pixels, the others see 3 × 3 places. All
    matrices start as the identity, so that non-negative inputs are shifted, and not changed.

    Args:
        count: at least 1.
        input_shape: `(height, width, channels)`.

    Raises:
        InputError: the inputs are no images.
    """
    if len(input_shape) != 3:
        raise InputError(
            f"a trunk is for images (height, width, channels). Received: {input_shape}"
        )
    channels = 4 * input_shape[-1]
    layers = []
    for index in range(count):
        size, strides = (3, 1) if index else (2, 2)
        layer = keras.layers.Conv2D(
            channels,
            size,
            strides,
            "same",
            activation=absolute,
            kernel_constraint=Orthogonal(shifts=index > 0),
            name=f"{TRUNK}_{index + 1}",
        )
        layer.build((None, None, None, channels if index else input_shape[-1]))
        shape, identity = layer.kernel.shape, np.eye(channels)
        layer.kernel.assign(taps(shape) * identity if index else identity.reshape(shape))
        layers.append(layer)
    return layers


class Trunk:
    """The layers of a base up to the last activation with a kink.

    Args:
        parts: the maps, each with the slope of the activation behind it.
        layers: all of them, as Keras has them.

    Attributes:
        output_shape: of the features, without the batch.
    """

    def __init__(
        self,
        parts: Sequence[tuple[LiveMap, float]],
        layers: Sequence[keras.layers.Layer],
    ):
        self.maps = [part for part, _ in parts]
        self.slopes = [slope for _, slope in parts]
        self.layers = [one for one in layers if not isinstance(one, keras.layers.InputLayer)]
        self.output_shape = self.maps[-1].output_shape

    def features(self, x: tf.Tensor) -> tf.Tensor:
        """Returns φ(x), `(n, *output_shape)`."""
        return through(self.layers, x)


def through(layers: Sequence[keras.layers.Layer], x: tf.Tensor) -> tf.Tensor:
    """Returns the output of these layers, one after the other.

    Within a model's `call` they are in its mode, which Keras hands on; elsewhere in inference.
    """
    for layer in layers:
        x = layer(x)
    return x


class LipschitzEstimate(TrainingState):
    """Estimates `Π g_k ‖W_k‖` of a trunk from below, each norm by the best of some vectors.

    The vectors are carried on by power iteration from step to step, and move in `advance` alone.
    """

    def __init__(self, trunk: Trunk):
        super().__init__("lipschitz")
        self.trunk = trunk
        self.vectors = [
            self.normal(f"trunk_{index}", (_VECTORS, part.fan_in), 600 + index)
            for index, part in enumerate(trunk.maps)
        ]
        self.state("steps", (), dtype="int32")
        self.built = True

    def advance(self) -> None:
        """Moves the vectors on."""
        more = tf.where(tf.equal(self.steps, 0), self.start_iterations, 1)
        for variable, moved in zip(self.vectors, self._iterated(more), strict=True):
            variable.assign(moved)
        self.steps.assign_add(1)

    def estimate(self) -> tf.Tensor:
        """Returns L, a number; differentiable, moves nothing."""
        vectors = self._iterated(tf.where(self.steps > 0, 0, self.start_iterations))
        total = tf.constant(1.0)
        for part, slope, vector in zip(self.trunk.maps, self.trunk.slopes, vectors, strict=True):
            squares = tf.reduce_sum(tf.square(part.product(vector)), axis=-1)
            total *= slope * tf.sqrt(tf.reduce_max(squares) + _LEAST)
        return total

    def moved_features(self, x: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        """Returns features of x plus offsets in units of the input, `(n·k, *output_shape)`."""
        shape = self.trunk.output_shape
        features = tf.cast(self.trunk.features(x), tf.float32)
        offset = tf.reshape(offset, (-1, offset.shape[1], *shape))
        return tf.reshape(features[:, None] + self.estimate() * offset, (-1, *shape))

    def _iterated(self, iterations: tf.Tensor) -> list[tf.Tensor]:
        """Returns orthonormal vectors after so many steps; constants to the gradient."""
        moved = []
        for part, variable in zip(self.trunk.maps, self.vectors, strict=True):

            def step(count: tf.Tensor, rows: tf.Tensor, part: LiveMap = part) -> Any:
                return count + 1, _orthonormal(part.transposed_product(part.product(rows)))

            start = tf.constant(0), _orthonormal(tf.convert_to_tensor(variable))
            _, rows = tf.while_loop(lambda count, _: count < iterations, step, start)
            moved.append(tf.stop_gradient(rows))
        return moved


def _orthonormal(rows: tf.Tensor) -> tf.Tensor:
    """Returns rows of the same span, by Gram–Schmidt; 0 where there are fewer."""
    found: list[tf.Tensor] = []
    for row in tf.unstack(rows):
        for before in found:
            row -= tf.reduce_sum(row * before) * before
        found.append(tf.math.divide_no_nan(row, tf.norm(row)))
    return tf.stack(found)


class Behind(ScaledFirst):
    """The network behind a trunk, of features in units of the input: `v ↦ g(L v)`."""
