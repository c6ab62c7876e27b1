"""Average pooling whose gradient is quick.

The gradient is the same in all of a window, but XLA adds up as many numbers for each place as a
window has places: on a CPU that takes longer than the convolution before. A mean over two axes has
a quick gradient.
"""

from __future__ import annotations

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_curv")
class TrainedAveragePooling2D(keras.layers.AveragePooling2D):
    """`keras.layers.AveragePooling2D`, with `averages` while it trains.

    What is exported has the operation of Keras' own layer.

    Example:
        >>> images = tf.random.stateless_normal((2, 8, 8, 3), (0, 1))
        >>> layer = TrainedAveragePooling2D(4)
        >>> float(tf.reduce_max(abs(layer(images, training=True) - layer(images)))) < 1e-6
        True
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the averages of the windows."""
        return averages(self, inputs) if training else super().call(inputs)


def averages(layer: keras.layers.AveragePooling2D, images: tf.Tensor) -> tf.Tensor:
    """Returns the layer's output, quickly where its windows tile the images."""
    (down, across), (height, width, channels) = layer.pool_size, images.shape[1:]
    tiles = tuple(layer.strides) == (down, across) and layer.data_format == "channels_last"
    if not tiles or height is None or width is None or height % down or width % across:
        return keras.layers.AveragePooling2D.call(layer, images)
    windows = (-1, height // down, down, width // across, across, channels)
    return tf.reduce_mean(tf.reshape(images, windows), axis=(2, 4))
