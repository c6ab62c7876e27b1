"""A network of numbers as one of logits, whose margins bound the numbers."""

from __future__ import annotations

import tensorflow as tf

from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product


class OutputMargins(FeedForward):
    """The network `(0, f_1, −f_1, f_2, −f_2, …)` of a network f.

    The margins of logit 0 over its rivals are −f_1, f_1, −f_2, f_2, …: lower bounds of these bound
    each output from both sides. `threats/properties/scores.py` certifies intervals the same way.

    Args:
        network: f.

    Example:
        >>> from keras_curv.network.network import Network
        >>> network = Network.from_weights([[[3.0, 1.0]]], [[0.0, 0.0]], ())
        >>> OutputMargins(network).logits(tf.ones((1, 1))).numpy().tolist()
        [[0.0, 3.0, -3.0, 1.0, -1.0]]
    """

    def __init__(self, network: FeedForward):
        self._network = network
        self.sizes = *network.sizes[:-1], 1 + 2 * network.classes
        self.activations = network.activations

    def weights(self, dtype: tf.DType) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """See `FeedForward`."""
        (*kernels, last), (*biases, bias) = self._network.weights(dtype)
        return [*kernels, signed(last)], [*biases, signed(bias)]

    def products(self, dtype: tf.DType) -> list[Product]:
        """See `FeedForward`."""
        return self._network.products(dtype)

    def image_back(
        self, index: int, centre: tf.Tensor, half: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `FeedForward`."""
        return self._network.image_back(index, centre, half)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """See `FeedForward`."""
        return signed(self._network.logits(x))


def signed(outputs: tf.Tensor) -> tf.Tensor:
    """Returns `(0, f_1, −f_1, f_2, −f_2, …)` of f, along the last axis."""
    pairs = tf.stack([outputs, -outputs], axis=-1)
    shape = tf.shape(outputs)[:-1]
    pairs = tf.reshape(pairs, tf.concat([shape, [2 * outputs.shape[-1]]], axis=0))
    return tf.concat([tf.zeros_like(pairs[..., :1]), pairs], axis=-1)
