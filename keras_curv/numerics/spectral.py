"""Norms and extreme eigenvalues of `W diag(d) Wᵀ`, estimated or proved from above.

`…_estimate` is power iteration: a cheap lower estimate, for training and reports. `…_bound` is
a theorem about the stored numbers, rounding included, and the only kind a certificate may use.

The proof behind a bound is a Cholesky factorisation. With `Ã` the computed matrix of side N
and `λ` a guess, let B be the computed `λI − Ã`. If floating-point Cholesky of B runs to
completion, then `λ_min(B) ≥ −γ_{N+1}/(1 − γ_{N+1}) tr(B)` (Rump 2006), hence

    λ_max(A) ≤ λ + γ_{N+1}/(1−γ_{N+1}) tr(B) + 2u max_i |B_ii| + ‖A − Ã‖,
    ‖A − Ã‖ ≤ γ_{k+8} Σ_i |d_i| ‖W_i‖²     (k summed terms; W_i the columns of W).

The guess need not be proved: if it is too low, Cholesky fails.

Reference: Rump, "Verification of positive definiteness", BIT 46 (2006), 433–452.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from keras_curv.errors import InputError
from keras_curv.numerics.rounding import SLOPE_FLOOR, UNIT, gamma, norm_bound, scaled_back, up
from keras_curv.numerics.rows import row_norms, times

_SLACKS = 1e-13, 1e-12, 1e-11  # above a guess, relative
_DENSE_BELOW = 64  # below this side LAPACK's full solver is faster than Lanczos


def spectral_norm_estimate(kernel: np.ndarray, *, iterations: int = 25, seed: int = 0) -> float:
    """Estimates ‖W‖ by power iteration: at most ‖W‖ up to rounding, often well below.

    Args:
        kernel: `(in, out)`, dense or sparse.
        iterations: products with Wᵀ and W; the paper uses 25.
        seed: seed of the starting vector.

    Reference: Singla & Feizi (2020), appendix C.1.
    """
    if not scipy.sparse.issparse(kernel):
        kernel = np.asarray(kernel, np.float64)
    vector = np.random.default_rng(seed).standard_normal(kernel.shape[:1])
    value = 0.0
    for _ in range(iterations):
        vector = vector / (np.linalg.norm(vector) or 1.0)
        product = kernel @ (vector @ kernel)
        value, vector = float(vector @ product), product
    return math.sqrt(max(value, 0.0))


def spectral_norm_bound(kernel: np.ndarray) -> float:
    """Returns a proved upper bound on ‖W‖, tight to about 1e-10 relative.

    Example:
        >>> 1.0 <= spectral_norm_bound(np.eye(3)) <= 1.0 + 1e-12
        True
    """
    kernel = np.asarray(kernel, np.float64)
    return up(math.sqrt(largest_eigenvalue_bound(kernel, np.ones(kernel.shape[1]))))


def fewer_rows(kernel: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns T, `(side, out)`, side ≤ in, and a bound on `‖W − Q T‖` for some Q with QᵀQ = I.

    An isometry does not change a curvature. T comes from a QR factorisation and is checked: if
    `‖WᵀW − TᵀT‖ ≤ ε` then, square roots being ½-Hölder, the polar factors U, V of `W = U √WᵀW` and
    `T = V √TᵀT` give `‖W − U Vᵀ T‖ = ‖√WᵀW − √TᵀT‖ ≤ √ε`.
    """
    rows, columns = kernel.shape
    if columns >= rows:
        return kernel, 0.0
    smaller = np.asarray(np.linalg.qr(kernel, mode="r"))
    difference = kernel.T @ kernel - smaller.T @ smaller
    rounding = gamma(rows + 8) * np.sum(np.square([norm_bound(kernel), norm_bound(smaller)]))
    error = up(np.sqrt(norm_bound(difference) + rounding), 16)
    return (smaller, float(error)) if np.isfinite(error) else (kernel, 0.0)


def symmetric_norm_estimate(matrix: np.ndarray) -> float:
    """Estimates ‖A‖ = max |λ(A)| of a symmetric matrix from below, to about 1e-6 relative."""
    if len(matrix) < _DENSE_BELOW:
        return float(np.abs(scipy.linalg.eigvalsh(matrix)).max())
    return abs(lanczos_eigenvalue(matrix, 1e-6, "LM"))


def lanczos_eigenvalue(matrix: np.ndarray, tolerance: float, which: str = "LA") -> float:
    """Estimates the largest eigenvalue of a symmetric matrix; "LM": largest in absolute value."""
    start = np.random.default_rng(0).standard_normal(len(matrix))
    values = scipy.sparse.linalg.eigsh(
        matrix, k=1, which=which, v0=start, tol=tolerance, return_eigenvectors=False
    )
    return float(values[0])


class Gram:
    """WᵀW, formed once for bounds with many diagonals (`largest_eigenvalue_bound`), and for norms
    of many products with W.

    Args:
        kernel: W, `(in, out)`, finite.
    """

    def __init__(self, kernel: np.ndarray):
        # A power of two scales without rounding, and keeps squares away from over- and underflow.
        self.power = math.frexp(np.abs(kernel).max(initial=0.0))[1]
        scaled = np.ldexp(np.asarray(kernel, np.float64), -self.power)
        self.terms = len(scaled)
        self.matrix = scaled.T @ scaled
        self.nonzero = np.any(kernel, axis=0)

    def unscaled(self) -> np.ndarray:
        """Returns WᵀW; its entries may over- or underflow."""
        return np.ldexp(self.matrix, 2 * self.power)

    def norms(self, rows: np.ndarray, used: np.ndarray | None = None) -> np.ndarray:
        """Bounds ‖W v‖ from above for many v by products with WᵀW, which is smaller than W.

        The error of the computed `vᵀWᵀWv` is at most `γ (Σ_i |v_i| ‖W_i‖)²`, W_i the columns,
        plus underflow.

        Args:
            rows: v, `(n, m, out)`.
            used: mask of the columns outside of which an example's rows are 0, `(n, out)`.

        Returns:
            `(n, m)`; infinite or NaN where anything overflows.

        Example:
            >>> Gram(np.array([[3.0], [4.0]])).norms(np.array([[[2.0]]])).round(6)
            array([[10.]])
        """
        columns = up(np.sqrt(np.diagonal(self.matrix)) + SLOPE_FLOOR, self.terms + 8)
        if used is None:
            return self._norms(rows, self.matrix, columns)
        found = np.empty(rows.shape[:2])
        for of, some in enumerate(map(np.flatnonzero, used)):
            part = self.matrix[some].take(some, axis=1)
            found[of] = self._norms(rows[of : of + 1].take(some, axis=2), part, columns[some])
        return found

    def _norms(self, rows: np.ndarray, matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
        side = len(self.matrix)
        # Not max(·, 0), which would hide a sum that overflowed to −∞.
        square = np.abs(np.einsum("nmi,nmi->nm", rows, times(rows, matrix)))
        weight = up(np.abs(rows) @ columns, side + 8)
        error = up(gamma(2 * (self.terms + side) + 32) * weight**2, 8)
        underflow = SLOPE_FLOOR * (self.terms + side) * (1.0 + row_norms(rows))
        found = up(np.sqrt(square + error) + underflow, side + 16)
        return np.ldexp(found, self.power) + SLOPE_FLOOR


def largest_eigenvalue_bound(
    kernel: np.ndarray,
    diagonal: np.ndarray,
    *,
    gram: Gram | None = None,
    guess: float | None = None,
) -> float:
    """Returns a proved upper bound on `max(0, λ_max(W diag(d) Wᵀ))`.

    Args:
        kernel: W, `(in, out)`, finite.
        diagonal: d, `(out,)`, finite, any signs. Entries are taken as exact; round inexact
            entries outward.
        gram: `Gram(kernel)`, if available; for d ≥ 0 `√d WᵀW √d`, which has the same nonzero
            eigenvalues, is then only scaled, not multiplied out.
        guess: a value to try first; if it is an upper bound, one factorisation proves it.

    Returns:
        The bound; `inf` if it overflows.

    Raises:
        InputError: an entry is not finite.
    """
    kernel = np.asarray(kernel, np.float64)
    diagonal = np.asarray(diagonal, np.float64)
    weights = kernel if gram is None else gram.matrix
    if not (np.isfinite(weights).all() and np.isfinite(diagonal).all()):
        raise InputError("an eigenvalue bound needs finite weights")
    nonzero = np.any(kernel != 0.0, axis=0) if gram is None else gram.nonzero
    diagonal = np.where(nonzero, diagonal, 0.0)
    positive, negative = np.flatnonzero(diagonal > 0.0), np.flatnonzero(diagonal < 0.0)
    if not len(positive):
        return 0.0  # negative semidefinite
    diagonal_power = math.frexp(np.abs(diagonal).max())[1]
    root = np.sqrt(np.abs(np.ldexp(diagonal, -diagonal_power)))
    if gram is not None and not len(negative):
        kernel_power, terms = gram.power, gram.terms
        matrix = np.take(np.take(gram.matrix, positive, axis=0), positive, axis=1)
        matrix *= np.multiply.outer(root[positive], root[positive])
        size = np.trace(matrix)  # Σ d_i ‖W_i‖²
    else:
        kernel_power = math.frexp(np.abs(kernel).max())[1]
        scaled = _scaled_columns(kernel, positive, root, kernel_power)
        size = np.vdot(scaled, scaled)
        if not len(negative) and len(positive) <= len(kernel):
            matrix, terms = scaled.T @ scaled, len(kernel)
        else:
            # Two products of a matrix with its own transpose cost half of a general product each.
            matrix, terms = scaled @ scaled.T, len(positive) + len(negative)
            scaled = _scaled_columns(kernel, negative, root, kernel_power)
            size += np.vdot(scaled, scaled)
            matrix -= scaled @ scaled.T
    power = 2 * kernel_power + diagonal_power
    guess = None if guess is None else math.ldexp(guess, -power)
    bound = symmetric_eigenvalue_bound(matrix, guess)
    return scaled_back(_as_formed(bound, terms, float(size), kernel.size), power)


def _scaled_columns(
    kernel: np.ndarray, columns: np.ndarray, root: np.ndarray, power: int
) -> np.ndarray:
    """Returns these columns of `W diag(root) / 2^power`."""
    scaled = np.take(kernel, columns, axis=1)
    np.ldexp(scaled, -power, out=scaled)
    scaled *= root[columns]
    return scaled


def smallest_eigenvalue_bound(kernel: np.ndarray, diagonal: np.ndarray) -> float:
    """Returns a proved lower bound on `min(0, λ_min(W diag(d) Wᵀ))`."""
    return -largest_eigenvalue_bound(kernel, -np.asarray(diagonal, np.float64))


def largest_norm_bound(stack: np.ndarray, guess: float) -> float:
    """Returns a proved upper bound on the largest ‖W_i‖, faster than a bound for each matrix.

    Args:
        stack: `(n, rows, columns)`, finite, not empty.
        guess: a guess of that norm squared; if it is an upper bound, one factorisation proves it.

    Returns:
        The bound; `inf` if it overflows.

    Example:
        >>> 2.0 <= largest_norm_bound(np.stack([np.eye(3), 2.0 * np.eye(3)]), 4.0) <= 2.0 + 1e-12
        True
    """
    if stack.shape[1] > stack.shape[2]:
        stack = stack.transpose(0, 2, 1)
    power = math.frexp(np.abs(stack).max())[1]
    scaled = np.ldexp(stack, -power)
    grams = scaled @ scaled.transpose(0, 2, 1)
    guess = math.ldexp(guess, -2 * power)
    bound = _factorised_bound(grams, guess, _SLACKS[0])
    if bound is None:
        guess = float(np.linalg.eigvalsh(grams).max())
        proved = (_factorised_bound(grams, guess, slack) for slack in _SLACKS)
        bound = next((found for found in proved if found is not None), None)
    if bound is None:
        bound = max(symmetric_eigenvalue_bound(gram) for gram in grams)
    terms, size = stack.shape[2], float(np.square(scaled).sum(axis=(1, 2)).max())
    square = _as_formed(bound, terms, size, stack[0].size)
    return scaled_back(up(math.sqrt(square)), power)


def _as_formed(bound: float, terms: int, size: float, entries: int) -> float:
    """Converts a bound for the computed `W diag(d) Wᵀ` to the real one; `size` is its trace."""
    underflow = entries * (terms + 4.0) * 2.0**-1020
    return up(bound + gamma(terms + 8) * up(size, entries) + underflow)


def symmetric_eigenvalue_bound(matrix: np.ndarray, guess: float | None = None) -> float:
    """Returns a proved upper bound on `max(0, λ_max)` of a stored symmetric matrix."""
    # A given guess is an upper bound or not; more slack would not help.
    attempts = [] if guess is None else [(guess, _SLACKS[:1])]
    computed = ((value, _SLACKS) for value in eigenvalue_guesses(matrix))
    for value, slacks in itertools.chain(attempts, computed):
        for slack in slacks:
            bound = _factorised_bound(matrix, value, slack)
            if bound is not None:
                return bound
    # Never happened in practice; the Frobenius norm is a bound that needs no factorisation.
    return up(float(np.linalg.norm(matrix)), matrix.size + 8)


def _factorised_bound(matrix: np.ndarray, guess: float, slack: float) -> float | None:
    """Returns a bound proved by Cholesky for `(N, N)` or all of `(n, N, N)`; None if it fails."""
    side = matrix.shape[-1]
    guess = max(guess, 0.0)
    largest = float(np.abs(np.diagonal(matrix, axis1=-2, axis2=-1)).max())
    guess += slack * max(guess, largest, 2.0**-1000) * math.sqrt(side)
    shifted = -matrix
    shifted[..., np.arange(side), np.arange(side)] += guess
    diagonal = np.abs(np.diagonal(shifted, axis1=-2, axis2=-1))
    largest, trace = float(diagonal.max()), up(float(diagonal.sum(axis=-1).max()), side)
    if not _is_factorisable(shifted):
        return None
    # Eight more than Rump needs: BLAS may divide by multiplying with a reciprocal.
    relative = gamma(side + 8) / (1.0 - gamma(side + 8))
    return up(guess + relative * trace + 2.0 * UNIT * largest)


def eigenvalue_guesses(matrix: np.ndarray) -> Iterator[float]:
    """Yields the largest eigenvalue by Lanczos, and by LAPACK should Lanczos find a smaller one."""
    side = len(matrix)
    if side >= _DENSE_BELOW:
        with contextlib.suppress(scipy.sparse.linalg.ArpackError):
            yield lanczos_eigenvalue(matrix, 1e-12)
    for only in ([side - 1, side - 1], None):
        with contextlib.suppress(scipy.linalg.LinAlgError):
            yield float(scipy.linalg.eigvalsh(matrix, subset_by_index=only)[-1])


def _is_factorisable(matrix: np.ndarray) -> bool:
    """Returns whether Cholesky runs to completion, for all matrices of a stack.

    NumPy's Cholesky uses the same library as its products: threads of two libraries would compete.
    """
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return bool(np.isfinite(np.diagonal(factor, axis1=-2, axis2=-1)).all())
