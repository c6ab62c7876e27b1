"""Votes of a network under Gaussian noise, counted in graph and in bounded memory.

A draw is `z(x + s ξ)`, ξ standard normal. The first layer is affine, `(x + s ξ) W + b = x W +
(s ξ W + b)`, so that examples that share their noise share that product, most of the work of a
shallow network.

All of it is in float64. What rounding can do to a margin is bounded for each draw as for any
certificate (`numerics/rounding.py`), with ‖x‖ + ‖s ξ‖ for the norm of what the first map is given,
as its two parts are multiplied apart.

ξ comes from Philox, keyed by the seed, the stream, the example (unless shared) and the block of
draws: it does not depend on how examples are cut into batches. Its bits count as independent.

**The lattice.** TensorFlow makes two numbers `r (sin v, cos v)`, `r = √(−2 ln u)`, at a time, u and
v/2π multiples of 2⁻⁵². With uniform numbers for the bits that are missing it would be u′ in
`[u, u + 2⁻⁵²]` and v′ likewise, and ξ′ exactly normal, with

    r² − r′² = 2 ln(u′/u) ≤ 2⁻⁵¹/u,   so   |r − r′| ≤ 2⁻⁵¹ exp(r²/2)/r,   |v − v′| ≤ 2⁻⁵² 2π.

That, and the rounding of ln, √, sin and cos, bounds ‖ξ − ξ′‖ for each draw: it is an error of what
the first map is given. A draw that is won is won at ξ′ too.

**The tail.** Below 10⁻⁷ u is 10⁻⁷, so that no pair is longer than 5.68. What this moves, of a draw
of ⌈d/2⌉ pairs, is at most the `total_variation` below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv.network.network import Network, require_dense
from keras_curv.network.shared_graph import as_graph
from keras_curv.numerics.rounding import ROUNDING_SLACK, UNIT, pre_activation_errors

BLOCK = 2000  # draws at a time
_SELECTION, _ESTIMATION = 0, 1  # streams
_PAIR_TAIL = 2.0**-23  # more than the probability of u < 10⁻⁷
_LEAST_LENGTH = 1e-30  # of a pair, to divide by


def total_variation(dim: int) -> float:
    """Upper bound on the total variation between the noise and a normal one, in its tail.

    Example:
        >>> total_variation(784) < 5e-5
        True
    """
    return -(-dim // 2) * _PAIR_TAIL


class NoiseVotes:
    """Counts how a network votes at noisy points.

    A draw counts for a class where its logit is proved to be above the others in real arithmetic on
    the stored weights; so never one with an infinite or undefined logit.

    Args:
        network: any.
        deviation: s, the standard deviation of the noise, a float32 number.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
        >>> votes = NoiseVotes(network, 1.0)
        >>> x = np.array([[9.0, 0.0], [0.0, 0.0]])
        >>> options = {"first_index": 0, "seed": 0, "samples": 100, "shared": False}
        >>> votes.preferences(x, **options)[0].round().tolist()
        [100.0, 0.0]
        >>> wins = votes.wins(x, np.array([0, 0]), np.array([[False, True]] * 2), **options)
        >>> int(wins[0]), bool(30 < wins[1] < 70)
        (100, True)
    """

    def __init__(self, network: Network, deviation: float):
        require_dense(network, "smoothing")
        self.network, self.deviation = network, deviation
        self._tail = None
        if network.depth > 1:
            self._tail = Network(network.affines[1:], network.activations[1:])
        self._tally = as_graph(self._count)

    def preferences(
        self, x: np.ndarray, *, first_index: int, seed: int, samples: int, shared: bool
    ) -> np.ndarray:
        """Counts how often each class has the largest logit, `(n, classes)`, to choose classes by.

        Among equals the mean softmax decides: it is added, scaled to less than one vote.

        Args:
            x: `(n, dim)`, float64.
            first_index: of the first example.
            seed: of the noise.
            samples: draws for each example; other ones than those of `wins`.
            shared: whether all examples have the same noise.
        """
        return self._run(_preference, x, (), first_index, seed, _SELECTION, samples, shared)

    def wins(
        self,
        x: np.ndarray,
        label: np.ndarray,
        others: np.ndarray,
        *,
        first_index: int,
        seed: int,
        samples: int,
        shared: bool,
    ) -> np.ndarray:
        """Counts how often the label's logit is proved above those of all `others`, `(n,)`.

        Args:
            label: `(n,)`, integers.
            others: `(n, classes)`, bool, not the label.
            x, first_index, seed, samples, shared: as in `preferences`.
        """
        choice = tf.constant(label), tf.constant(others)
        wins = self._run(_win, x, choice, first_index, seed, _ESTIMATION, samples, shared)
        return wins[:, 0].astype(np.int64)

    def _run(
        self,
        ballot: Callable[..., tf.Tensor],
        x: np.ndarray,
        choice: tuple[tf.Tensor, ...],
        first_index: int,
        seed: int,
        stream: int,
        samples: int,
        shared: bool,
    ) -> np.ndarray:
        index = tf.range(first_index, first_index + len(x), dtype=tf.int64)
        key = key_of(seed, stream)
        draws = tf.constant(samples, tf.int64)
        args = ballot, tf.constant(x), index, choice, key, draws, shared
        return self._tally(*args).numpy()

    def _count(
        self,
        ballot: Callable[..., tf.Tensor],
        x: tf.Tensor,
        index: tf.Tensor,
        choice: tuple[tf.Tensor, ...],
        key: tf.Tensor,
        samples: tf.Tensor,
        shared: bool,
    ) -> tf.Tensor:
        """The sum of each example's ballots over the draws, `(n, ·)`, float64.

        Args:
            ballot: `ballot(logits, error, *choice)`, `(draws, ·)`, of one example; a difference
                of two of its logits is off by at most `error`, `(draws, 1)`.
            choice: tensors, each with one entry for each example.
        """
        kernel, bias = (part[0] for part in self.network.weights(tf.float64))
        size = tf.minimum(samples, BLOCK)
        width = self.network.classes if ballot is _preference else 1

        def in_block(
            x: tf.Tensor, choice: Sequence[tf.Tensor], key: tf.Tensor, number: tf.Tensor
        ) -> tf.Tensor:
            counted = number * size + tf.range(size) < samples
            noise, gap = self.noise(size, _fold_in(key, number))
            moved, length = tf.matmul(noise, kernel) + bias, tf.norm(noise, axis=1, keepdims=True)

            def of_one(row: tf.Tensor, *choice: tf.Tensor) -> tf.Tensor:
                # Row by row: rounding depends on the shape of a product, so on the batch.
                first = moved + tf.linalg.matvec(kernel, row, transpose_a=True)
                logits, error = self._logits(first, tf.norm(row) + length, gap)
                valid = counted & tf.reduce_all(tf.math.is_finite(logits), axis=1)
                ballots = tf.where(valid[:, None], ballot(logits, error, *choice), 0.0)
                return tf.reduce_sum(ballots, axis=0)

            return _map(of_one, x, *choice)

        def over_blocks(x: tf.Tensor, choice: Sequence[tf.Tensor], key: tf.Tensor) -> tf.Tensor:
            return tf.while_loop(
                lambda number, _: number * size < samples,
                lambda number, total: (number + 1, total + in_block(x, choice, key, number)),
                (tf.constant(0, tf.int64), tf.zeros((tf.shape(x)[0], width), tf.float64)),
                parallel_iterations=1,
            )[1]

        def on_its_own(row: tf.Tensor, index: tf.Tensor, *choice: tf.Tensor) -> tf.Tensor:
            alone = [part[None] for part in choice]
            return over_blocks(row[None], alone, _fold_in(key, index))[0]

        return over_blocks(x, choice, key) if shared else _map(on_its_own, x, index, *choice)

    def noise(self, size: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws s ξ, `(size, dim)`, and how far from them s ξ′ may be, `(size,)`; see above."""
        normal, gap = normal_noise(size, self.network.dim, key)
        return self.deviation * normal, self.deviation * tf.norm(gap, axis=1)

    def _logits(
        self, first: tf.Tensor, size: tf.Tensor, gap: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits, and what a difference of two may be off by, `(draws, 1)`.

        Args:
            first: pre-activations of the first layer.
            size: bounds of the norms of what it was given, `(draws, 1)`, as if of one entry.
            gap: bounds of what that is off by, `(draws,)`.
        """
        logits, hidden = first, []
        if self._tail is not None:
            hidden = self._tail.hidden(self.network.activations[0].value(first))
            logits = self._tail.logits(hidden[0])
        given = [size * ROUNDING_SLACK, *hidden]
        error = pre_activation_errors(self.network.layer_norms, given, gap * ROUNDING_SLACK)[-1]
        return logits, 2.0 * error[:, None]


def normal_noise(size: tf.Tensor | int, dim: int, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws ξ, `(size, dim)`, and bounds how far from ξ′ each pair is, `(size, ⌈dim/2⌉)`."""
    pairs = -(-dim // 2)
    shape = tf.stack([size, 2 * pairs])
    normal = tf.random.stateless_normal(shape, key, dtype=tf.float64, alg="philox")
    square = tf.reduce_sum(tf.reshape(normal * normal, (size, pairs, 2)), axis=2)
    length = tf.sqrt(square) + _LEAST_LENGTH
    gap = 2.0**-50 * tf.exp(0.5 * square) / length + 64.0 * UNIT * length
    return normal[:, :dim], gap


def key_of(seed: int, stream: int) -> tf.Tensor:
    """Returns the key of a stream of noise."""
    return tf.constant(np.random.SeedSequence((seed, stream)).generate_state(2).view(np.int32))


def _preference(logits: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
    vote = tf.one_hot(tf.argmax(logits, axis=1), logits.shape[1], dtype=tf.float64)
    return vote + 2.0**-40 * tf.nn.softmax(logits)


def _win(logits: tf.Tensor, error: tf.Tensor, label: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    strongest = tf.reduce_max(tf.where(others, logits, -np.inf), axis=1, keepdims=True)
    margin = tf.gather(logits, label[None], axis=1) - strongest
    return tf.cast(margin > error, tf.float64)


def _map(function: Callable[..., tf.Tensor], *columns: tf.Tensor) -> tf.Tensor:
    """`function` of each row, one after the other; its float64 results are stacked."""
    return tf.map_fn(
        lambda row: function(*row), columns, fn_output_signature=tf.float64, parallel_iterations=1
    )


def _fold_in(key: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(key, number, alg="philox")
