"""The curvature of a network in training: estimated, differentiable, in graph.

The formulas are those of `signed.py` (theorem 3 for two layers); the norms and
eigenvalues in them are Rayleigh quotients, from below, at vectors that power iteration carries
on from one training step to the next. An estimate trains; only a bound certifies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_curv.curvature.liplt import telescoped
from keras_curv.network.activations import Activation
from keras_curv.network.network import FeedForward, Product
from keras_curv.numerics import intervals

_TINY = 1e-30
_Norms = dict[tuple[int, int], tf.Tensor]  # ‖W_{i+1} ⋯ W_j‖ for each span (i, j)


class CurvatureEstimate(keras.layers.Layer):
    """`κ_yt ≈ −m_yt` for every class pair, where `∇²(z_y − z_t)(x) ≽ m_yt` for all x.

    The state, float32 whatever the precision of the model, moves in `advance` alone. With the
    vectors held fixed, `estimate` has the exact gradient: that of a simple singular value σ is
    u vᵀ.

    Args:
        sizes: `(dim, N_1, …, classes)` of the network.
        activations: of the network.
        start_iterations: of power iteration at the first step; then one a step.

    Reference: Singla & Feizi (2020), theorem 3 and appendix C.1; Miyato et al., "Spectral
    normalization for generative adversarial networks" (2018), for the vectors carried over.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activations: Sequence[Activation],
        start_iterations: int = 25,
        name: str = "curvature",
    ):
        super().__init__(name=name, dtype="float32", trainable=False)
        self.activations = tuple(activations)
        self.classes = sizes[-1]
        self.start_iterations = start_iterations
        hidden = range(len(activations))
        # One vector for each class pair and hidden layer: of W_I diag(d) W_Iᵀ.
        self.pair_vectors = [
            self._state((self.classes**2, sizes[i]), f"pairs_{i}", i) for i in hidden
        ]
        # One for each product of consecutive kernels, kernels[i:j], whose norm is asked for:
        # those behind Lip(a_1) … Lip(a_{L−2}), and ‖W_{L−1}‖ for the intervals of F.
        self.spans = [(i, j) for j in hidden[1:] for i in range(j)]
        self.spans += [(i, i + 1) for i in hidden[-1:] if i >= 2]
        self.product_vectors = [
            self._state((1, sizes[i]), f"product_{i}_{j}", 1000 + 50 * i + j) for i, j in self.spans
        ]
        self.steps = self.add_weight(
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            name="steps",
        )
        self.built = True

    def _state(self, shape: tuple[int, int], name: str, seed: int) -> keras.Variable:
        variable = self.add_weight(
            shape=shape,
            dtype="float32",
            initializer=keras.initializers.RandomNormal(seed=seed),
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            name=name,
        )
        setattr(self, name, variable)  # tf.train.Checkpoint follows attributes, not Keras' lists
        return variable

    def advance(self, network: FeedForward) -> None:
        """Moves the vectors on: the one place where the state of training changes."""
        first = tf.equal(self.steps, 0)
        vectors = self._iterated(network, tf.where(first, self.start_iterations, 1))
        for variable, vector in zip(
            (*self.pair_vectors, *self.product_vectors),
            vectors.pairs + vectors.products,
            strict=True,
        ):
            variable.assign(vector)
        self.steps.assign_add(1)

    def estimate(self, network: FeedForward) -> tf.Tensor:
        """Returns κ for every (label, rival), `(classes, classes)`; moves nothing."""
        kernels, _ = network.weights(tf.float32)
        # Random vectors say nothing: before the first step, iterate for this one answer.
        vectors = self._iterated(network, tf.where(self.steps > 0, 0, self.start_iterations))
        products = network.products(tf.float32)
        norms = self._norms(products, vectors.products)
        outer = [1.0, *self._lipschitz(norms)]
        total = tf.zeros((self.classes**2,))
        for product, diagonal, pairs, before in zip(
            products, self._diagonals(kernels, norms), vectors.pairs, outer, strict=False
        ):
            reach = product.forward(pairs)
            total += tf.reduce_sum(diagonal * reach * reach, axis=1) * before**2
        return tf.reshape(total, (self.classes, self.classes))

    def _iterated(self, network: FeedForward, iterations: tf.Tensor) -> _Vectors:
        """Returns the vectors after so many more steps; to the gradient they are constants."""
        kernels, maps = network.weights(tf.float32)[0], network.products(tf.float32)

        def of_product(vector: tf.Tensor, span: tuple[int, int]) -> tf.Tensor:
            for product in maps[slice(*span)]:
                vector = product.forward(vector)
            for product in reversed(maps[slice(*span)]):
                vector = product.backward(vector)
            return vector

        def of_pairs(vectors: tf.Tensor, product: Product, diagonal: tf.Tensor) -> tf.Tensor:
            return product.backward(diagonal * product.forward(vectors))

        products = [
            _power_iteration(functools.partial(of_product, span=span), variable, iterations)
            for span, variable in zip(self.spans, self.product_vectors, strict=True)
        ]
        diagonals = self._diagonals(kernels, self._norms(maps, products))
        pairs = [
            _power_iteration(
                functools.partial(of_pairs, product=product, diagonal=diagonal),
                variable,
                iterations,
            )
            for product, diagonal, variable in zip(maps, diagonals, self.pair_vectors, strict=True)
        ]
        return _Vectors(pairs, products)

    def _norms(self, products: list[Product], vectors: list[tf.Tensor]) -> _Norms:
        """Estimates of the norms of all products in `spans`."""
        norms = {}
        for span, vector in zip(self.spans, vectors, strict=True):
            for product in products[slice(*span)]:
                vector = product.forward(vector)
            norms[span] = _norm(vector)[0]
        return norms

    def _lipschitz(self, norms: _Norms) -> list[tf.Tensor]:
        """Lip(a_1), …, Lip(a_{L−2}), by LipLT; see `liplt.py`."""
        pre: list[tf.Tensor] = []
        for last in range(1, len(self.activations)):
            products = [norms[first, last] for first in reversed(range(last))]
            pre.append(tf.minimum(*telescoped(self.activations, products, pre)))
        return [a.slope * bound for a, bound in zip(self.activations, pre, strict=False)]

    def _diagonals(self, kernels: list[tf.Tensor], norms: _Norms) -> list[tf.Tensor]:
        """`(−d_lo)⁺` for each pair and hidden layer, `(classes², N_I)`; see `signed.py`."""
        rows = tf.transpose(kernels[-1])
        w = tf.reshape(rows[:, None] - rows[None], (self.classes**2, -1))
        low = high = w  # F_I lies between
        norm = _norm(w)
        diagonals = []
        for index in reversed(range(len(self.activations))):
            h_low, h_high = self.activations[index].second_range
            # h_low ≤ 0 ≤ h_high: the least of the four products.
            diagonals.append(tf.nn.relu(tf.maximum(-h_low * high, -h_high * low)))
            if index == 0:
                break
            kernel, activation = kernels[index], self.activations[index]
            p, q = intervals.product(activation.first_range, (low, high), tf)
            middle, spread = intervals.image((p + q) / 2.0, (q - p) / 2.0, tf.transpose(kernel))
            reach = _norm(kernel)[None, :] * (activation.slope * norm)[:, None]
            low, high = tf.maximum(middle - spread, -reach), tf.minimum(middle + spread, reach)
            if index > 1:
                norm = norms[index, index + 1] * activation.slope * norm
        return diagonals[::-1]


class _Vectors(NamedTuple):
    pairs: list[tf.Tensor]
    products: list[tf.Tensor]


def _power_iteration(
    apply: Callable[[tf.Tensor], tf.Tensor], vectors: tf.Tensor, iterations: tf.Tensor
) -> tf.Tensor:
    """`v ← A v / ‖A v‖` so many times, for each row; a row that A sends to zero is kept."""

    def body(step: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        product = apply(v)
        length = tf.norm(product, axis=1, keepdims=True)
        return step + 1, tf.where(length > 0.0, tf.math.divide_no_nan(product, length), v)

    start = tf.convert_to_tensor(vectors)
    start = tf.math.divide_no_nan(start, tf.norm(start, axis=1, keepdims=True))
    _, result = tf.while_loop(lambda step, _: step < iterations, body, (tf.constant(0), start))
    return tf.stop_gradient(result)


def _norm(rows: tf.Tensor) -> tf.Tensor:
    """Row norms; the gradient at a zero row is zero instead of NaN."""
    return tf.sqrt(tf.reduce_sum(rows * rows, axis=1) + _TINY)
