"""Norms of many matrices at once, one an example, proved from above; and Lanczos' estimate."""

from __future__ import annotations

import numpy as np

from keras_curv.numerics.rounding import gamma, norm_bound, up
from keras_curv.numerics.spectral import largest_eigenvalue_bound

ESTIMATE_MARGIN = 1.001  # what a Lanczos estimate is raised by: then it is above, as a rule
_LANCZOS_STEPS = 10
_PERRON_STEPS = 12


def square_bound(gram: np.ndarray, rows: np.ndarray, error, terms: int) -> np.ndarray:
    """Entrywise bound of (BBᵀ) ∘ (BBᵀ), from the computed BBᵀ, B's row norms and B's error."""
    rounding = gamma(terms + 8) * rows[..., :, None] * rows[..., None, :]
    moved = error * (rows[..., :, None] + rows[..., None, :] + error)
    return up((np.abs(gram) + 4.0 * (rounding + moved)) ** 2, 16)


def perron_bound(matrix: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`√λ_max(diag(w) M diag(w))` from above, `(n,)`, for symmetric M ≥ 0 and w ≥ 0 `(n, N)`.

    For M = (BBᵀ) ∘ (BBᵀ), the Gram matrix of the b_i ⊗ b_i, this bounds ‖w ∘ (Bu) ∘ (Bv)‖, as
    ‖u ⊗ v‖ = 1. Every u > 0 gives a bound, max_i (Mu)_i / u_i (Collatz–Wielandt).

    Args:
        matrix: `(N, N)` or `(n, N, N)`.
    """

    def product(u):
        return weight * ((weight * u)[:, None, :] @ matrix)[:, 0]

    u = np.ones_like(weight)
    for _ in range(_PERRON_STEPS):
        u = product(u)
        u = np.maximum(u / np.maximum(u.max(axis=1, keepdims=True), 1e-300), 1e-6)
    return np.sqrt(up((product(u) / u).max(axis=1), weight.shape[1] + 16))


def frobenius(stack: np.ndarray) -> np.ndarray:
    """Frobenius norms, from above, of `(n, rows, columns)`."""
    return norm_bound(stack.reshape(len(stack), -1), axis=1)


def spectral_norms(stack: np.ndarray) -> np.ndarray:
    """Spectral norms, from above, of `(n, rows, columns)`."""
    value, _ = lanczos(
        lambda v: ((v[:, None, :] @ stack) @ stack.transpose(0, 2, 1))[:, 0], stack.shape[:2]
    )
    ones, guess = np.ones(stack.shape[2]), np.maximum(value, 0.0) * ESTIMATE_MARGIN
    pairs = zip(stack, guess, strict=True)
    return up(np.sqrt([largest_eigenvalue_bound(matrix, ones, guess=at) for matrix, at in pairs]))


def fewer_rows(kernel: np.ndarray) -> tuple[np.ndarray, float]:
    """T, `(side, out)`, side ≤ in, with `‖W − Q T‖` at most the number returned, QᵀQ = I.

    An isometry does not change a curvature. T comes from a QR factorisation and is checked: if
    `‖WᵀW − TᵀT‖ ≤ ε` then, square roots being ½-Hölder, the polar factors U, V of `W = U √WᵀW` and
    `T = V √TᵀT` give `‖W − U Vᵀ T‖ = ‖√WᵀW − √TᵀT‖ ≤ √ε`.
    """
    rows, columns = kernel.shape
    if columns >= rows:
        return kernel, 0.0
    smaller = np.linalg.qr(kernel, mode="r")
    difference = kernel.T @ kernel - smaller.T @ smaller
    rounding = gamma(rows + 8) * np.sum(np.square([norm_bound(kernel), norm_bound(smaller)]))
    error = up(np.sqrt(norm_bound(difference) + rounding), 16)
    return (smaller, float(error)) if np.isfinite(error) else (kernel, 0.0)


def lanczos(
    product, shape: tuple[int, int], steps: int = _LANCZOS_STEPS
) -> tuple[np.ndarray, np.ndarray]:
    """Largest eigenvalues, from below, and about their vectors, of as many matrices as rows.

    Args:
        product: `(P, side)` → `(P, side)`, each row by a symmetric matrix of its own.
        shape: `(P, side)`.
        steps: products, at most.
    """
    steps = min(steps, shape[1])
    v = np.random.default_rng(0).standard_normal(shape)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    basis = np.empty((steps, *shape))
    tridiagonal = np.zeros((shape[0], steps, steps))
    for k in range(steps):
        basis[k] = v
        v = product(v)
        for _ in range(2):  # twice is enough
            for j in range(k + 1):
                along = np.einsum("pi,pi->p", v, basis[j])
                tridiagonal[:, j, k] += along
                v = v - along[:, None] * basis[j]
        norm = np.linalg.norm(v, axis=1, keepdims=True)
        v = np.divide(v, norm, out=np.zeros_like(v), where=norm > 0.0)
    finite = np.isfinite(tridiagonal).all(axis=(1, 2))
    values, vectors = np.linalg.eigh(np.where(finite[:, None, None], tridiagonal, 0.0), "U")
    return np.where(finite, values[:, -1], np.inf), np.einsum(
        "kpi,pk->pi", basis, vectors[:, :, -1]
    )
