"""Cheap lower bounds on the κ that a curvature bound on a ball can prove, for two layers.

On `B(x, R)` local curvature proves `κ ≥ λ_max(−W_1 diag(d_lo) W_1ᵀ)`, d_lo the least value of
`w ∘ σ″(z_1)` on the ball, unit by unit. For any unit vector v,

    κ ≥ −Σ_j d_lo,j (W_j·v)²,

and if `W_1ᵀ v` is known, this costs no more than the intervals. The best v hardly depends on the
ball, so it is taken from the bound on all of ℝᵈ, once for each pair of classes.
"""

from __future__ import annotations

import functools

import numpy as np

from keras_curv.network.network import Network
from keras_curv.numerics import intervals, lanczos
from keras_curv.numerics.batches import batches
from keras_curv.numerics.intervals import outward

_LANCZOS_STEPS = 16


class CurvatureFloor:
    """Rayleigh quotients below local curvature; a pair's direction is found at its first use.

    Args:
        network: a dense network of two layers.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "sigmoid")
        >>> x, label, rival = np.array([[2.0, 0.0]]), np.array([0]), np.array([1])
        >>> CurvatureFloor(network)(x, label, rival, np.array([9.0])).round(3)  # 1/(6√3)
        array([0.096])
    """

    def __init__(self, network: Network):
        self._network = network
        self._kernel = network.differentials[0].kernel
        self._column_norms = np.linalg.norm(self._kernel, axis=0)
        # v and (W_1ᵀ v)² of each pair
        self._directions: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rival: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns lower limits of every κ that is proved on `B(x, radius)`, `(n,)`.

        Args:
            x: `(n, dim)`.
            label, rival, radius: `(n,)`.
        """
        diagonal = self._diagonal(x, label, rival, radius)
        squares = np.array([squares for _, squares in self._everywhere(label, rival)])
        return _inward(np.sum(diagonal * squares, axis=1))

    def sharper(
        self, x: np.ndarray, label: np.ndarray, rival: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns the same with a direction for each example, for about ten gradients."""
        kernel, diagonal = self._kernel, self._diagonal(x, label, rival, radius)
        product = functools.partial(_congruence, kernel, diagonal)
        start = np.array([v for v, _ in self._everywhere(label, rival)])
        value, _ = lanczos.largest_eigenpairs(product, (len(x), len(kernel)), start=start)
        return _inward(value)

    def _diagonal(
        self, x: np.ndarray, label: np.ndarray, rival: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns −d_lo, `(n, N_1)`."""
        first, activation = self._network.affines[0], self._network.activations[0]
        z = x @ first.kernel + first.bias
        reach = radius[:, None] * self._column_norms
        ends = activation.second_range_on(*outward(z, reach))
        return -intervals.least_multiple(self._weights(label, rival), ends)

    def _weights(self, label: np.ndarray, rival: np.ndarray) -> np.ndarray:
        columns = self._network.affines[-1].kernel.T
        return columns[label] - columns[rival]

    def _everywhere(
        self, label: np.ndarray, rival: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the best v on all of ℝᵈ, `(d,)`, and `(W_1ᵀ v)²`, `(N_1,)`, for each pair."""
        pairs = list(zip(label.tolist(), rival.tolist(), strict=True))
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._directions]
        kernel = self._kernel
        bends = self._network.activations[0].second_range
        for rows in batches(len(missing), _LANCZOS_STEPS * len(kernel)) if missing else ():
            some = missing[rows]
            w = self._weights(*np.transpose(some))
            lowest = intervals.least_multiple(w, bends)
            product = functools.partial(_congruence, kernel, -lowest)
            _, v = lanczos.largest_eigenpairs(
                product, (len(some), len(kernel)), steps=_LANCZOS_STEPS
            )
            v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1.0)
            found = zip(v, (v @ kernel) ** 2, strict=True)
            self._directions.update(zip(some, found, strict=True))
        return [self._directions[pair] for pair in pairs]


def _congruence(kernel: np.ndarray, diagonal: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns `W diag(d) Wᵀ v`, row by row."""
    return ((v @ kernel) * diagonal) @ kernel.T


def _inward(floor: np.ndarray) -> np.ndarray:
    """Lowers the floor slightly, for rounding in the floor and in the bound."""
    return np.nan_to_num(np.maximum(floor, 0.0) * (1.0 - 1e-9), posinf=0.0)
