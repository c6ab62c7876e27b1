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

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.network.activations import Activation
from keras_curv.network.network import FeedForward
from keras_curv.network.products import Product
from keras_curv.numerics import intervals
from keras_curv.training.models.state import TrainingState

_Span = tuple[int, int]  # from one hidden layer to another, both included, counted from 0


class Vectors(NamedTuple):
    """Vectors of power iteration, each list by spans or kernels; constants to the gradient."""

    pairs: list[tf.Tensor]  # a row for each class pair, in the order of `CurvatureEstimate.pairs`
    products: list[tf.Tensor]
    kernels: list[tf.Tensor]


class CurvatureEstimate(TrainingState):
    """`κ_yt ≈ −m_yt` for every class pair, where `∇²(z_y − z_t)(x) ≽ m_yt` for all x.

    The state, float32 whatever the precision of the model, moves in `advance` alone. With the
    vectors held fixed, the estimate has the exact gradient: that of a simple singular value σ is
    u vᵀ. One pass forward and one back give the estimate, its gradient and the moved vectors, see
    `_passed`; so a step is charged for the vectors of the step before.

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
        # A pair of a class with itself has no curvature. Those with rival < label come last: their
        # margins are the others', negated.
        first, second = np.triu_indices(self.classes, 1)
        self.pairs = np.concatenate([first, second]), np.concatenate([second, first])
        self._rows = self.pairs[0] * self.classes + self.pairs[1]  # of a pair in the state
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

    def advance(self, network: FeedForward) -> tf.Tensor:
        """Returns κ as `estimate` does, and moves the vectors on; nothing else changes the state.

        Of the first step it is κ after all but one of its iterations.
        """
        first = tf.equal(self.steps, 0)
        vectors = self._iterated(network, tf.where(first, self.start_iterations - 1, 0))
        kappa, moved = self._evaluated(network, vectors)
        for variable, rows in zip(self.pair_vectors, moved.pairs, strict=True):
            places = self._rows[:, None]
            variable.assign(tf.tensor_scatter_nd_update(variable, places, rows))
        for variables, found in (
            (self.product_vectors, moved.products),
            (self.kernel_vectors, moved.kernels),
        ):
            for variable, rows in zip(variables, found, strict=True):
                variable.assign(rows)
        self.steps.assign_add(1)
        return kappa

    def estimate(self, network: FeedForward) -> tf.Tensor:
        """Returns κ for every (label, rival), `(classes, classes)`; moves nothing."""
        # The first vectors are random: before the first step, iterate for this one answer.
        iterations = tf.where(self.steps > 0, 0, self.start_iterations)
        return self._evaluated(network, self._iterated(network, iterations))[0]

    def _iterated(self, network: FeedForward, iterations: tf.Tensor) -> Vectors:
        """Returns the vectors of the state after so many more steps."""
        maps = network.products(tf.float32)

        def step(count: tf.Tensor, kernels: list, products: list) -> tuple:
            kernels = [self._kernel_norm(maps, *each)[1] for each in self._by_kernel(kernels)]
            passed = [self._passed(maps, *each) for each in zip(self.spans, products, strict=True)]
            return count + 1, kernels, [moved for _, moved in passed]

        def pair_step(count: tf.Tensor, pairs: list) -> tuple:
            passed = [
                self._passed(maps, span, rows, diagonals[span[1]])
                for span, rows in zip(self.pair_spans, pairs, strict=True)
            ]
            return count + 1, [moved for _, moved in passed]

        kernels, products = _units(self.kernel_vectors), _units(self.product_vectors)
        if kernels or products:
            _, kernels, products = tf.while_loop(
                lambda count, *_: count < iterations, step, (tf.constant(0), kernels, products)
            )
        norms = {i: self._kernel_norm(maps, i, rows)[0] for i, rows in self._by_kernel(kernels)}
        diagonals = self._diagonals(network, norms)
        pairs = _units(tf.gather(rows, self._rows) for rows in self.pair_vectors)
        if pairs:
            _, pairs = tf.while_loop(
                lambda count, *_: count < iterations, pair_step, (tf.constant(0), pairs)
            )
        return Vectors(*([*map(tf.stop_gradient, each)] for each in (pairs, products, kernels)))

    def _evaluated(self, network: FeedForward, vectors: Vectors) -> tuple[tf.Tensor, Vectors]:
        """Returns κ at some vectors, differentiable, and these vectors a step further."""
        maps = network.products(tf.float32)
        norms, kernels = {}, []
        for index, rows in self._by_kernel(vectors.kernels):
            norms[index], moved = self._kernel_norm(maps, index, rows)
            kernels.append(moved)
        diagonals = self._diagonals(network, norms)
        whole: list[list[tf.Tensor]] = [[] for _ in self.activations]  # ‖J W_I √D‖², by terms
        plain: list[list[tf.Tensor]] = [[] for _ in self.activations]  # ‖J W_I‖
        pairs, products = [], []
        of_span = dict(zip(self.spans, vectors.products, strict=True))
        for span, rows in zip(self.pair_spans, vectors.pairs, strict=True):
            diagonal, count = diagonals[span[1]], len(self._rows)
            if span in of_span:  # all rows by one product
                rows = tf.concat([rows, of_span[span]], axis=0)
                diagonal = tf.pad(diagonal, [[0, 1], [0, 0]], constant_values=1.0)
            squares, moved = self._passed(maps, span, rows, diagonal)
            whole[span[1]].append(squares[:count])
            pairs.append(moved[:count])
            if span in of_span:
                plain[span[1]].append(_root(squares[count]))
                products.append(moved[count:])
        lipschitz: list[tf.Tensor] = []  # of z_1, …, z_{L−2}
        for terms in plain[:-1]:
            lipschitz.append(_telescoped(terms, lipschitz))
        total = tf.zeros((len(self._rows),))
        for terms in whole:
            first, *others = terms
            total += _telescoped([*map(_root, terms)], lipschitz) ** 2 if others else first
        matrix = tf.scatter_nd(self._rows[:, None], total, (self.classes**2,))
        matrix = tf.reshape(matrix, (self.classes, self.classes))
        return matrix, Vectors(pairs, products, kernels)

    def _by_kernel(self, vectors: Iterable[tf.Tensor]) -> list[tuple[int, tf.Tensor]]:
        return list(zip(self.kernels, vectors, strict=True))

    def _kernel_norm(
        self, maps: list[Product], index: int, rows: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an estimate of ‖W‖, and its vector a step further."""
        squares, moved = _passed([maps[index]], [], rows)
        return _root(squares)[0], _moved(moved, rows)

    def _passed(
        self, maps: list[Product], span: _Span, rows: tf.Tensor, diagonal: Any = 1.0
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `‖v s_i W_{i+1} c_{i+1} ⋯ W_{j+1} √D‖²` of rows v, and these a step further."""
        first, last = span
        spread = self._spreads[first - 1] if first else 1.0
        centres = self._centres[first:last]
        squares, moved = _passed(maps[first : last + 1], centres, rows * spread, diagonal)
        return squares, _moved(moved * spread, rows)

    def _diagonals(
        self, network: FeedForward, kernel_norms: dict[int, tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns `(−d_lo)⁺` of each pair, `(pairs, N_I)`, by layers; see `signed.py`."""
        kernels, _ = network.weights(tf.float32)
        rows, half = tf.transpose(kernels[-1]), len(self._rows) // 2
        # Of the first half alone: F of a negated margin is −F.
        w = tf.gather(rows, self.pairs[0][:half]) - tf.gather(rows, self.pairs[1][:half])
        low = high = w  # F_I lies between
        norm = _norm(w)
        diagonals = []
        for index in reversed(range(len(self.activations))):
            h_low, h_high = _as_float32(self.activations[index].second_range)
            # h_low ≤ 0 ≤ h_high: the least of the four products.
            ends = tf.concat([high, -low], axis=0), tf.concat([low, -high], axis=0)
            diagonals.append(tf.nn.relu(tf.maximum(-h_low * ends[0], -h_high * ends[1])))
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


def _passed(
    maps: Sequence[Product], centres: Sequence[np.ndarray], rows: tf.Tensor, diagonal: Any = 1.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `q = ‖v A √D‖²` of rows v, `(n,)`, and `v A D Aᵀ`, for `A = W_1 c_1 W_2 c_2 ⋯ W_k`.

    With a_i what W_i is given and b_i = v A D Aᵀ on its way behind W_i, `dq = 2 Σ_i a_i dW_i · b_i`
    where v is fixed. So both passes are constants to the gradient, but for single products.
    """
    products: list[tf.Tensor] = []
    for index, each in enumerate(maps):
        rows = products[-1] * centres[index - 1] if index else rows
        products.append(each.forward(tf.stop_gradient(rows)))
    ends = tf.stop_gradient(products[-1])
    squares = tf.reduce_sum(diagonal * ends * ends, axis=1)
    rows = tf.stop_gradient(diagonal) * ends
    for index in reversed(range(len(maps))):
        squares = _with_gradient(squares, products[index], rows)
        rows = tf.stop_gradient(maps[index].backward(rows))
        rows = rows * centres[index - 1] if index else rows
    return squares, rows


@tf.custom_gradient
def _with_gradient(squares: tf.Tensor, products: tf.Tensor, rows: tf.Tensor) -> Any:
    """Returns the squares, whose gradient in the products is `2 · rows`; rows are constants."""
    return tf.identity(squares), lambda upstream: (upstream, 2.0 * upstream[:, None] * rows, None)


def _moved(moved: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the step of power iteration, unit vectors; one that was sent to zero is kept."""
    length = tf.norm(moved, axis=1, keepdims=True)
    return tf.where(length > 0.0, tf.math.divide_no_nan(moved, length), rows)


def _units(vectors: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the rows divided by their lengths."""
    vectors = [tf.convert_to_tensor(rows) for rows in vectors]
    return [tf.math.divide_no_nan(v, tf.norm(v, axis=1, keepdims=True)) for v in vectors]


def _norm(rows: tf.Tensor) -> tf.Tensor:
    """Returns norms of rows; see `_root`."""
    return _root(tf.reduce_sum(rows * rows, axis=1))


def _root(squares: tf.Tensor) -> tf.Tensor:
    """Returns square roots; the gradient at zero is zero instead of NaN."""
    positive = squares > 0.0
    return tf.where(positive, tf.sqrt(tf.where(positive, squares, 1.0)), 0.0)
