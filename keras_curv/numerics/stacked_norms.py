"""Proved upper bounds on norms of many matrices at once, one for each example."""

from __future__ import annotations

import numpy as np

from keras_curv.numerics import lanczos
from keras_curv.numerics.rounding import gamma, norm_bound, up
from keras_curv.numerics.spectral import largest_eigenvalue_bound

_PERRON_STEPS = 12


def square_bound(
    gram: np.ndarray, rows: np.ndarray, error: float | np.ndarray, terms: int
) -> np.ndarray:
    """Bounds (BBᵀ) ∘ (BBᵀ) entrywise, from the computed BBᵀ, B's row norms and B's error."""
    rounding = gamma(terms + 8) * rows[..., :, None] * rows[..., None, :]
    moved = error * (rows[..., :, None] + rows[..., None, :] + error)
    return up((np.abs(gram) + 4.0 * (rounding + moved)) ** 2, 16)


def perron_bound(matrix: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Bounds `√λ_max(diag(w) M diag(w))` from above, `(n,)`, for symmetric M ≥ 0, w ≥ 0 `(n, N)`.

    For M = (BBᵀ) ∘ (BBᵀ), the Gram matrix of the b_i ⊗ b_i, this bounds ‖w ∘ (Bu) ∘ (Bv)‖, as
    ‖u ⊗ v‖ = 1. Every u > 0 gives a bound, max_i (Mu)_i / u_i (Collatz–Wielandt).

    Args:
        matrix: M, `(N, N)` or `(n, N, N)`.
        weight: w.
    """

    def product(u: np.ndarray) -> np.ndarray:
        return weight * ((weight * u)[:, None, :] @ matrix)[:, 0]

    u = np.ones_like(weight)
    for _ in range(_PERRON_STEPS):
        moved = product(u)
        u = np.maximum(moved / np.maximum(moved.max(axis=1, keepdims=True), 1e-300), 1e-6)
        if not moved.any():
            break
    return np.sqrt(up((product(u) / u).max(axis=1), weight.shape[1] + 16))


def frobenius(stack: np.ndarray) -> np.ndarray:
    """Bounds the Frobenius norms of `(n, rows, columns)` from above."""
    return norm_bound(stack.reshape(len(stack), -1), axis=1)


def spectral_norms(stack: np.ndarray) -> np.ndarray:
    """Bounds the spectral norms of `(n, rows, columns)` from above."""
    count, rows, columns = stack.shape
    value, _ = lanczos.largest_eigenpairs(
        lambda v: ((v[:, None, :] @ stack) @ stack.transpose(0, 2, 1))[:, 0], (count, rows)
    )
    ones, guess = np.ones(columns), np.maximum(value, 0.0) * lanczos.ESTIMATE_MARGIN
    pairs = zip(stack, guess, strict=True)
    return up(np.sqrt([largest_eigenvalue_bound(matrix, ones, guess=at) for matrix, at in pairs]))
