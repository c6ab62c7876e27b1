"""The norms in which changes are bounded, and what every method asks of them.

A linear function falls by at most `r ‖Λ‖_*` on the ball of radius r, ‖·‖_* the dual norm: the
largest entry for l1, the sum of entries for l∞. In a box, with `lim_i` the limit in the direction
of −Λ_i, it falls by at most

    l2    r λ/2 + Σ max over 0 ≤ ε ≤ lim_i of |Λ_i|ε − λε²/(2r), for every λ ≥ 0   (`box.py`)
    l1    r λ + Σ max(|Λ_i| − λ, 0) lim_i, for every λ ≥ 0, and the least is at some λ = |Λ_i|
    l∞    Σ |Λ_i| min(r, lim_i)

A ball of n entries is inside an l2 ball, and around another: r_1 ≥ r_2 ≥ r_∞ ≥ r_2/√n.
"""

from __future__ import annotations

import abc

import numpy as np

from keras_curv.network.network import FeedForward
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.rows import row_norms
from keras_curv.numerics.spectral import spectral_norm_bound
from keras_curv.threats.box import box_reach, least_linear
from keras_curv.threats.confined import Reach


class Norm(abc.ABC):
    """A norm in which an attacker's changes are bounded.

    Attributes:
        name: as in `Threat(norm=…)`.
        sign: the index of ‖·‖ in texts.
    """

    name: str
    sign: str

    @abc.abstractmethod
    def of(self, vectors: np.ndarray) -> np.ndarray:
        """Bounds the norms of `(n, dim)` from above, `(n,)`."""

    @abc.abstractmethod
    def dual(self, rows: np.ndarray) -> np.ndarray:
        """Bounds the dual norms of `(n, m, dim)` from above, `(n, m)`."""

    @abc.abstractmethod
    def least_linear(self, rows: np.ndarray, reach: Reach, radius: np.ndarray) -> np.ndarray:
        """Returns lower bounds on `Λ·e` over ball and box, `(n, m)`, rounding charged.

        Args:
            rows: Λ, `(n or 1, m, dim)`.
            reach: arrays `(n, dim)`, of which only the limits count.
            radius: r, `(n,)`.
        """

    def length(self, radius: np.ndarray, count: int) -> np.ndarray:
        """Bounds ‖e‖₂ on balls from above, `(n,)`, where so many entries move."""
        return radius

    def to_l2(self, matrix: np.ndarray) -> float:
        """Bounds `‖e M‖₂` on the unit ball from above, M `(dim, m)` of finite numbers."""
        return spectral_norm_bound(matrix)

    def of_l2(self, radius: np.ndarray, count: int) -> np.ndarray:
        """Returns the radius of a ball inside each l2 ball; any shape."""
        return radius

    def support_point(self, direction: np.ndarray) -> np.ndarray:
        """Estimates where on the unit ball a linear function grows most, `(n, dim)`."""
        length = np.linalg.norm(direction, axis=1, keepdims=True)
        return direction / np.maximum(length, TINY)


class _L2(Norm):
    name, sign = "l2", "₂"

    def of(self, vectors: np.ndarray) -> np.ndarray:
        return norm_bound(vectors, axis=1)

    def dual(self, rows: np.ndarray) -> np.ndarray:
        return row_norms(rows)

    def least_linear(self, rows: np.ndarray, reach: Reach, radius: np.ndarray) -> np.ndarray:
        return least_linear(rows, reach, radius)


class _L1(Norm):
    name, sign = "l1", "₁"

    def of(self, vectors: np.ndarray) -> np.ndarray:
        return up(np.abs(vectors).sum(axis=1), vectors.shape[1] + 8)

    def dual(self, rows: np.ndarray) -> np.ndarray:
        return np.abs(rows).max(axis=-1)

    def to_l2(self, matrix: np.ndarray) -> float:
        return float(norm_bound(matrix, axis=1).max())  # at a vertex, as the norm is convex

    def least_linear(self, rows: np.ndarray, reach: Reach, radius: np.ndarray) -> np.ndarray:
        size, limit = np.abs(rows), _limits(rows, reach)
        order = np.argsort(-size, axis=-1, kind="stable")
        dearest = np.take_along_axis(size, order, axis=-1)
        spent = np.cumsum(np.take_along_axis(limit, order, axis=-1), axis=-1)
        # The entry at which the budget ends: its size is the best λ.
        last = np.sum(spent < radius[:, None, None], axis=-1, keepdims=True)
        inside = last < size.shape[-1]
        at = np.take_along_axis(dearest, np.minimum(last, size.shape[-1] - 1), axis=-1)
        price = np.where(inside, at, 0.0)
        more = np.maximum(size - price, 0.0)
        fall = np.sum(more * np.where(more > 0.0, limit, 0.0), axis=-1)
        return -_raised(fall + radius[:, None] * price[..., 0], size.shape[-1])


class _LInf(Norm):
    name, sign = "linf", "∞"

    def of(self, vectors: np.ndarray) -> np.ndarray:
        return np.abs(vectors).max(axis=1)

    def dual(self, rows: np.ndarray) -> np.ndarray:
        return up(np.abs(rows).sum(axis=-1), rows.shape[-1] + 8)

    def least_linear(self, rows: np.ndarray, reach: Reach, radius: np.ndarray) -> np.ndarray:
        limit = np.fmin(_limits(rows, reach), radius[:, None, None])
        return -_raised(np.sum(np.abs(rows) * limit, axis=-1), rows.shape[-1])

    def length(self, radius: np.ndarray, count: int) -> np.ndarray:
        return up(radius * np.sqrt(count))

    def of_l2(self, radius: np.ndarray, count: int) -> np.ndarray:
        return radius / np.sqrt(count) * (1.0 - gamma(8))

    def to_l2(self, matrix: np.ndarray) -> float:
        """Bounds it by columns, `|e·w_k| ≤ ‖w_k‖₁`, and by `‖e ∘ t‖₂ ‖diag(1/t) M‖₂`.

        Any t > 0 will do. Roots of the norms of rows came within 2 % of the best t on shipped
        models; rows of 0 need none.
        """
        by_columns = norm_bound(up(np.abs(matrix).sum(axis=0), len(matrix) + 8))
        rows = norm_bound(matrix, axis=1)
        used = rows > 0.0
        if not used.any():
            return 0.0
        weights = np.sqrt(np.maximum(rows[used] / rows.max(), 2.0**-40))
        scaled = matrix[used] / weights[:, None]
        rounded = 2.0 * UNIT * norm_bound(scaled) + matrix.size * 2.0**24 * TINY
        by_rows = up(norm_bound(weights) * up(spectral_norm_bound(scaled) + rounded))
        return min(by_columns, by_rows)

    def support_point(self, direction: np.ndarray) -> np.ndarray:
        return np.sign(direction)


def _limits(rows: np.ndarray, reach: Reach) -> np.ndarray:
    """Returns lim of each row, `(n, m, dim)`."""
    return np.where(rows < 0.0, reach.up[:, None], reach.down[:, None])


def _raised(fall: np.ndarray, terms: int) -> np.ndarray:
    """Bounds a sum of so many products, each rounded, from above; products may underflow."""
    return up(fall, terms + 16) + terms * TINY


NORMS: dict[str, Norm] = {norm.name: norm for norm in (_L2(), _L1(), _LInf())}
L2, LINF = NORMS["l2"], NORMS["linf"]


def moving(network: FeedForward) -> int:
    """Returns the number of inputs that an attacker moves."""
    return network.dim if network.pinned is None else int(np.sum(~network.pinned))


def farthest(network: FeedForward, x: np.ndarray, norm: Norm) -> np.ndarray:
    """Bounds the distance of any point of the box from above, `(n,)`; infinite without limits."""
    if network.limits is None:
        return np.full(len(x), np.inf)
    room = np.maximum(*box_reach(network, np.asarray(x, np.float64))[:2])
    bounded = np.isfinite(room).all(axis=1)
    return np.where(bounded, norm.of(np.where(bounded[:, None], room, 0.0)), np.inf)
