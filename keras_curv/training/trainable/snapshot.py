"""The network of a Keras model in training, with the weights of one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product, last_axis_product
from keras_curv.numerics.known import known, materialized
from keras_curv.training.trainable.graph.live_map import LiveMap

_FEW = 64  # classes up to which all logits are quicker than the margins of some


class Snapshot(FeedForward):
    """A network whose kernels and biases are those of its maps at this moment."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        activations: tuple[Activation, ...],
        maps: Sequence[LiveMap],
    ):
        self.sizes, self.activations, self._maps = sizes, activations, maps
        self._kernels, self._biases = zip(*(part.weights() for part in maps), strict=True)
        self._products = [
            Product(part.product, part.transposed_product)
            if part.is_structured
            else _product(kernel)
            for part, kernel in zip(maps[:-1], self._kernels, strict=False)
        ]

    def weights(self, dtype: tf.DType) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns kernels and biases; see `FeedForward`."""
        return (
            [tf.cast(kernel, dtype) for kernel in self._kernels],
            [tf.cast(bias, dtype) for bias in self._biases],
        )

    def products(self, dtype: tf.DType) -> list[Product]:
        """See `FeedForward`; in float32 through the layers where that is quicker."""
        return self._products if dtype == tf.float32 else super().products(dtype)

    def image_back(
        self, index: int, centre: tf.Tensor, half: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `FeedForward`; through the layers where that is quicker, without their matrix."""
        part = self._maps[index]
        by_layers = part.is_structured and part.has_single_paths
        if not by_layers or centre.dtype != tf.float32:
            return super().image_back(index, centre, half)
        squares = part.transposed_product(tf.ones((1, part.fan_out)), tf.square)[0]
        return part.transposed_product(centre), part.transposed_product(half, tf.abs), squares

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """See `FeedForward`; structured maps in float32 layer by layer."""
        x = tf.convert_to_tensor(x)
        single = x.dtype == tf.float32
        return self._last_logits(self.forward(x)[1]) if single else super().logits(x)

    def logits_given(
        self,
        x: tf.Tensor,
        pre: Sequence[tf.Tensor] | None,
        post: Sequence[tf.Tensor] | None,
        means: Sequence[Any] | None = None,
    ) -> tf.Tensor:
        """Returns the logits at inputs of which z_I and a_I are known: for their gradient.

        For dense maps. The kernels are read before any known value is used. Otherwise TensorFlow
        may drop the control edge between the reading of a kernel and its update, because data lead
        from one to the other, and then drop those data, which are known.

        Args:
            x: `(n, …)`, float32.
            pre: `z_1, …, z_{L−1}`, each `(n, width)`; None: not known.
            post: `a_1, …, a_{L−1}`.
            means: of the latter, for gradients as `centring.py` has them; None: plain ones.
        """
        with tf.control_dependencies(self._kernels):
            pre, post = (a if a is None else [*map(tf.identity, a)] for a in (pre, post))
        a = tf.reshape(x, (-1, self.dim))
        for index, sigma in enumerate(self.activations):
            z = self._centred(self._products[index].forward, a, index, means)
            z = z if pre is None else known(pre[index], z)
            a = sigma.value(z) if post is None else known(post[index], sigma.value(z))
        if means is None:
            return self._last_logits([a])
        last = self.depth - 1
        return self._centred(lambda rows: tf.matmul(rows, self._kernels[-1]), a, last, means)

    def _centred(
        self,
        product: Callable[[tf.Tensor], tf.Tensor],
        a: tf.Tensor,
        index: int,
        means: Sequence[Any] | None,
    ) -> tf.Tensor:
        """Returns `a W + b` of a map; where there is a mean μ of a, as `(a − μ) W + β`."""
        if means is None or index == 0:
            return tf.nn.bias_add(product(a), self._biases[index])
        mean = tf.stop_gradient(tf.convert_to_tensor(means[index - 1]))
        shift = tf.stop_gradient(product(mean[None])[0])
        return tf.nn.bias_add(product(a - mean), self._biases[index] + shift)

    def _last_margins(
        self, post: list[tf.Tensor], label: tf.Tensor, rivals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `FeedForward`; of few classes without gathers of long rows."""
        by_layers = self._by_layers(post[0])
        if not by_layers and (self.classes > _FEW or post[0].dtype != tf.float32):
            return super()._last_margins(post, label, rivals)
        sign = tf.one_hot(label, self.classes)[:, None] - tf.one_hot(rivals, self.classes)
        margin = tf.reduce_sum(sign * self._last_logits(post)[:, None], axis=-1)
        if by_layers:
            return margin, self._maps[-1].transposed_product(sign)
        return margin, last_axis_product(sign, tf.transpose(self._kernels[-1]))

    def _by_layers(self, x: tf.Tensor) -> bool:
        return x.dtype == tf.float32 and any(part.is_structured for part in self._maps)

    def _last_logits(self, post: list[tf.Tensor]) -> tf.Tensor:
        if self._by_layers(post[-1]):
            return self._maps[-1].product(post[-1]) + self._biases[-1]
        return tf.matmul(post[-1], self._kernels[-1]) + self._biases[-1]


def _product(kernel: tf.Tensor) -> Product:
    """Returns the products with a matrix and with its transpose, which is stored."""
    transposed = materialized(tf.transpose(kernel))
    return Product(
        lambda a: last_axis_product(a, kernel), lambda t: last_axis_product(t, transposed)
    )
