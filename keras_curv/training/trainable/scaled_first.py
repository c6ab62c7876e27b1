"""A network in training whose first map takes its input times a factor."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product


class ScaledFirst(FeedForward):
    """The network `u ↦ f(s u)`.

    Args:
        network: f.
        factor: s, a number or one for each entry, `(dim,)`, float32.
        backward: s as gradients and curvature are to see it; None: as it is.
    """

    def __init__(self, network: FeedForward, factor: Any, backward: Any = None):
        self._network, self.factor = network, factor
        self._backward = factor if backward is None else backward
        self.sizes, self.activations = network.sizes, network.activations

    def weights(self, dtype: tf.DType) -> tuple[list, list[tf.Tensor]]:
        """See `FeedForward`; the first kernel is as gradients see it."""
        (first, *kernels), biases = self._network.weights(dtype)
        return [tf.cast(self._backward, dtype)[..., None] * first, *kernels], biases

    def products(self, dtype: tf.DType) -> list[Product]:
        """See `FeedForward`."""
        first, *others = self._network.products(dtype)
        forth, back = tf.cast(self.factor, dtype), tf.cast(self._backward, dtype)
        scaled = Product(lambda a: first.forward(forth * a), lambda t: back * first.backward(t))
        return [scaled, *others]

    def image_back(
        self, index: int, centre: tf.Tensor, half: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `FeedForward`."""
        if index:
            return self._network.image_back(index, centre, half)
        return super().image_back(index, centre, half)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """See `FeedForward`; x stands for u."""
        return self._network.logits(tf.cast(self.factor, x.dtype) * x)

    def _last_margins(
        self, post: list[tf.Tensor], label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return self._network._last_margins(post, label, rivals)
