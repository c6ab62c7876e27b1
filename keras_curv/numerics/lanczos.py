"""Lanczos' iteration: lower estimates of the largest eigenvalues of symmetric matrices.

It treats many matrices at once, which SciPy does not offer, each given only by its products with
vectors. The result is an estimate: proofs use it as a guess and do not depend on it.

Reference: Golub & Van Loan, "Matrix computations" (2013), section 10.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ESTIMATE_MARGIN = 1.001  # factor that raises an estimate of ten steps above λ in most cases
_STEPS = 10
_SMALLEST = 1e-300  # length of a start
_EXHAUSTED = 1e-14  # a relative residual below this is only rounding


def largest_eigenpairs(
    product: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, int],
    *,
    steps: int = _STEPS,
    start: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates the largest eigenvalue, from below, and its eigenvector for each of P matrices.

    Args:
        product: `(P, side)` → `(P, side)`, which multiplies each row by its own symmetric matrix.
        shape: `(P, side)`.
        steps: largest number of products.
        start: `(P, side)`, the start vectors; None: one random vector for all.

    Returns:
        `(P,)` and `(P, side)`; infinite where a product overflowed.

    Example:
        >>> matrix = np.diag([1.0, 4.0, 2.0])
        >>> value, vector = largest_eigenpairs(lambda v: v @ matrix, (1, 3))
        >>> value.round(9), np.abs(vector).round(6)
        (array([4.]), array([[0., 1., 0.]]))
    """
    count, side = shape
    steps = min(steps, side)
    if start is None:  # a result must not depend on the other matrices of the batch
        start = np.broadcast_to(np.random.default_rng(0).standard_normal(side), shape)
    v = start / np.maximum(np.linalg.norm(start, axis=1, keepdims=True), _SMALLEST)
    basis = np.empty((count, steps, side))
    projected = np.zeros((count, steps, steps))
    for used in range(1, steps + 1):
        basis[:, used - 1] = v
        v = product(v)
        size = np.linalg.norm(v, axis=1, keepdims=True)
        known = basis[:, :used]
        for _ in range(2):  # twice is enough
            along = known @ v[:, :, None]
            projected[:, :used, used - 1] += along[:, :, 0]
            v = v - (known.swapaxes(1, 2) @ along)[:, :, 0]
        left = np.linalg.norm(v, axis=1, keepdims=True)
        v = np.divide(v, left, out=np.zeros_like(v), where=left > _EXHAUSTED * size)
    finite: np.ndarray = np.all(np.isfinite(projected), axis=(1, 2))
    values, vectors = np.linalg.eigh(np.where(finite[:, None, None], projected, 0.0), UPLO="U")
    top = vectors[:, None, :, -1]
    return np.where(finite, values[:, -1], np.inf), (top @ basis)[:, 0]
