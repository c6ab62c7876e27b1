"""The curvature of a network in training: estimated, differentiable, in graph.

The formulas are those of `signed.py` and `liplt.py` (theorem 3 for two layers); the norms and
eigenvalues in them are Rayleigh quotients, from below, at vectors that power iteration carries
on from one training step to the next. An estimate trains; only a bound certifies.

Every norm is of a product `s_i W_{i+1} c_{i+1} W_{i+2} ⋯ W_{j+1}`, or of one and `√D` behind it:
s and c, the centre and half the width of the range of each σ′, are inside, as units that carry have
other ones. Where all units of a layer are alike, no product of norms is below the telescoped sum of
these; where they are not, a certificate takes the smaller of both, and this estimate does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product
from keras_curv.numerics import intervals
from keras_curv.training.models.state import TrainingState

_Map = Callable[[tf.Tensor], tf.Tensor]
_Span = tuple[int, int]  # from one hidden layer to another, both included, counted from 0


class Vectors(NamedTuple):
    """Vectors of power iteration, each list by spans or kernels; constants to the gradient.

    Attributes:
        diagonals: `(−d_lo)⁺` at these, see `_diagonals`; differentiable.
    """

    pairs: list[tf.Tensor]
    products: list[tf.Tensor]
    kernels: list[tf.Tensor]
    diagonals: list[tf.Tensor]


class CurvatureEstimate(TrainingState):
    """`κ_yt ≈ −m_yt` for every class pair, where `∇²(z_y − z_t)(x) ≽ m_yt` for all x.

    The state, float32 whatever the precision of the model, moves in `advance` alone. With the
    vectors held fixed, `estimate` has the exact gradient: that of a simple singular value σ is
    u vᵀ.

    Args:
        sizes: `(dim, N_1, …, classes)` of the network.
        activations: of the network.

    Reference: Singla & Feizi (2020), theorem 3 and appendix C.1; Miyato et al., "Spectral
    normalization for generative adversarial networks" (2018), for the vectors carried over.
    """

    def __init__(self, sizes: Sequence[int], activations: Sequence[Activation]):
        super().__init__("curvature")
        self.activations = tuple(activations)
        self._centres = _as_float32(a.centre for a in activations)
        self._spreads = _as_float32(a.spread for a in activations)
        self.classes = sizes[-1]
        hidden = range(len(activations))
        # A vector for each class pair and term of ‖J W_I √D‖, by the layers from which on its
        # Jacobian is a product of kernels.
        self.pair_spans = [(i, j) for j in hidden for i in range(j + 1)]
        # One for each such product behind Lip(z_1), …, Lip(z_{L−2}); and for each ‖W_I‖ behind the
        # intervals of F.
        self.spans = [(i, j) for i, j in self.pair_spans if j < len(activations) - 1]
        self.kernels = list(hidden[2:])
        self.pair_vectors = [
            self.normal(f"pairs_{i}_{j}", (self.classes**2, sizes[i]), 1000 * (j - i) + j)
            for i, j in self.pair_spans
        ]
        self.product_vectors = [
            self.normal(f"product_{i}_{j}", (1, sizes[i]), 500 + 20 * i + j) for i, j in self.spans
        ]
        self.kernel_vectors = [
            self.normal(f"kernel_{i}", (1, sizes[i]), 400 + i) for i in self.kernels
        ]
        self.state("steps", (), dtype="int32")
        self.built = True

    def advance(self, network: FeedForward) -> Vectors:
        """Moves the vectors on and returns them; nothing else changes the state."""
        first = tf.equal(self.steps, 0)
        vectors = self._iterated(network, tf.where(first, self.start_iterations - 1, 0), written=1)
        for variables, moved in zip(
            (self.pair_vectors, self.product_vectors, self.kernel_vectors), vectors[:3], strict=True
        ):
            for variable, vector in zip(variables, moved, strict=True):
                variable.assign(vector)
        self.steps.assign_add(1)
        return vectors

    def estimate(self, network: FeedForward, vectors: Vectors | None = None) -> tf.Tensor:
        """Returns κ for every (label, rival), `(classes, classes)`; moves nothing.

        Args:
            vectors: those that `advance` has just returned, of the same weights; None: the present
                ones.
        """
        vectors = self._vectors(network) if vectors is None else vectors
        products = network.products(tf.float32)
        lipschitz = self._lipschitz(products, vectors.products)
        squares: list[list[tf.Tensor]] = [[] for _ in self.activations]
        for span, pairs in zip(self.pair_spans, vectors.pairs, strict=True):
            reach = self._forward(products, span, pairs)
            squares[span[1]].append(
                tf.reduce_sum(vectors.diagonals[span[1]] * reach * reach, axis=1)
            )
        total = tf.zeros((self.classes**2,))
        for terms in squares:
            whole, *others = terms
            if others:
                whole = _telescoped([_root(term) for term in terms], lipschitz) ** 2
            total += whole
        return tf.reshape(total, (self.classes, self.classes))

    def _vectors(self, network: FeedForward) -> Vectors:
        # The first vectors are random: before the first step, iterate for this one answer.
        return self._iterated(network, tf.where(self.steps > 0, 0, self.start_iterations))

    def _iterated(self, network: FeedForward, iterations: tf.Tensor, written: int = 0) -> Vectors:
        """Returns the vectors after so many more steps.

        Args:
            iterations: steps in a loop.
            written: steps before these, without a loop, in which XLA's transposed convolutions are
                slow.
        """
        maps = network.products(tf.float32)
        powered = functools.partial(_power_iteration, iterations=iterations, written=written)

        def moved(span: _Span, diagonal: Any = 1.0) -> _Map:
            return lambda rows: self._backward(
                maps, span, diagonal * self._forward(maps, span, rows)
            )

        def of_kernel(index: int) -> _Map:
            return lambda rows: maps[index].backward(maps[index].forward(rows))

        count = len(self.kernels)
        norms = powered(
            [*map(of_kernel, self.kernels), *map(moved, self.spans)],
            [*self.kernel_vectors, *self.product_vectors],
        )
        kernels, products = norms[:count], norms[count:]
        diagonals = self._diagonals(network, self._kernel_norms(maps, kernels))
        grams = [moved(span, diagonals[span[1]]) for span in self.pair_spans]
        pairs = powered(grams, self.pair_vectors)
        return Vectors(pairs, products, kernels, diagonals)

    def _forward(self, products: list[Product], span: _Span, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows times `s_i W_{i+1} c_{i+1} ⋯ W_{j+1}`."""
        first, last = span
        rows = rows * self._spreads[first - 1] if first else rows
        for index in range(first, last + 1):
            rows = products[index].forward(rows)
            rows = rows * self._centres[index] if index < last else rows
        return rows

    def _backward(self, products: list[Product], span: _Span, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows times the transposed product of `_forward`."""
        first, last = span
        for index in reversed(range(first, last + 1)):
            rows = rows * self._centres[index] if index < last else rows
            rows = products[index].backward(rows)
        return rows * self._spreads[first - 1] if first else rows

    def _kernel_norms(
        self, products: list[Product], vectors: list[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Returns estimates of ‖W‖ of those in `kernels`, by the number of the layer."""
        return {
            index: _norm(products[index].forward(vector))[0]
            for index, vector in zip(self.kernels, vectors, strict=True)
        }

    def _lipschitz(self, products: list[Product], vectors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns Lip(z_1), …, Lip(z_{L−2})."""
        norms: list[list[tf.Tensor]] = [[] for _ in self.activations[:-1]]
        for span, vector in zip(self.spans, vectors, strict=True):
            norms[span[1]].append(_norm(self._forward(products, span, vector))[0])
        found: list[tf.Tensor] = []
        for terms in norms:
            found.append(_telescoped(terms, found))
        return found

    def _diagonals(
        self, network: FeedForward, kernel_norms: dict[int, tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns `(−d_lo)⁺` of each pair, `(classes², N_I)`, by layers; see `signed.py`."""
        kernels, _ = network.weights(tf.float32)
        rows = tf.transpose(kernels[-1])
        w = tf.reshape(rows[:, None] - rows[None], (self.classes**2, -1))
        low = high = w  # F_I lies between
        norm = _norm(w)
        diagonals = []
        for index in reversed(range(len(self.activations))):
            h_low, h_high = _as_float32(self.activations[index].second_range)
            # h_low ≤ 0 ≤ h_high: the least of the four products.
            diagonals.append(tf.nn.relu(tf.maximum(-h_low * high, -h_high * low)))
            if index == 0:
                break
            activation = self.activations[index]
            least, most = _as_float32(activation.first_range)
            p, q = intervals.product((least, most), (low, high), tf)
            middle, spread, squares = network.image_back(index, (p + q) / 2.0, (q - p) / 2.0)
            reach = _root(squares)[None, :] * (activation.steepest * norm)[:, None]
            low, high = tf.maximum(middle - spread, -reach), tf.minimum(middle + spread, reach)
            if index > 1:
                norm = kernel_norms[index] * activation.steepest * norm
        return diagonals[::-1]


def of_pairs(matrix: tf.Tensor, label: tf.Tensor, rival: tf.Tensor) -> tf.Tensor:
    """Returns κ of each label `(n,)` and its rivals, `(n, …)`, by that of all pairs."""
    rows = tf.matmul(tf.one_hot(label, matrix.shape[0]), matrix)
    return tf.gather(rows, rival, batch_dims=1)


def _telescoped(norms: list[tf.Tensor], before: list[tf.Tensor]) -> tf.Tensor:
    """Returns `ℓ_I`, by norms of products from W_1, …, W_I on and ℓ_1, …; see `liplt.py`."""
    return sum((norm * bound for norm, bound in zip(norms[1:], before, strict=False)), norms[0])


def _as_float32(numbers: Iterable[Any]) -> tuple[np.ndarray, ...]:
    """Converts numbers, one for all units or one for each."""
    return tuple(np.asarray(number, np.float32) for number in numbers)


def _power_iteration(
    maps: Sequence[_Map], vectors: Sequence[tf.Tensor], iterations: tf.Tensor, written: int = 0
) -> list[tf.Tensor]:
    """Repeats `v ← A v / ‖A v‖` for each A and row; a row that A sends to zero is kept."""

    def stepped(state: list[tf.Tensor]) -> list[tf.Tensor]:
        moved = []
        for apply, rows in zip(maps, state, strict=True):
            product = apply(rows)
            length = tf.norm(product, axis=1, keepdims=True)
            moved.append(tf.where(length > 0.0, tf.math.divide_no_nan(product, length), rows))
        return moved

    start = [tf.convert_to_tensor(rows) for rows in vectors]
    start = [tf.math.divide_no_nan(v, tf.norm(v, axis=1, keepdims=True)) for v in start]
    for _ in range(written):
        start = stepped(start)
    _, result = tf.while_loop(
        lambda step, _: step < iterations,
        lambda step, state: (step + 1, stepped(state)),
        (tf.constant(0), start),
    )
    return [tf.stop_gradient(rows) for rows in result]


def _norm(rows: tf.Tensor) -> tf.Tensor:
    """Returns norms of rows; see `_root`."""
    return _root(tf.reduce_sum(rows * rows, axis=1))


def _root(squares: tf.Tensor) -> tf.Tensor:
    """Returns square roots; the gradient at zero is zero instead of NaN."""
    positive = squares > 0.0
    return tf.where(positive, tf.sqrt(tf.where(positive, squares, 1.0)), 0.0)
