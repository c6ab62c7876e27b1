"""Lanczos' iteration: the largest eigenvalue of a symmetric matrix, from below, and its vector.

Of many matrices at once, for which SciPy has nothing, each known by its products with vectors
alone. What comes out is an estimate: proofs take it for a guess, and do not depend on it.

Reference: Golub & Van Loan, "Matrix computations" (2013), section 10.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ESTIMATE_MARGIN = 1.001  # what an estimate of ten steps is raised by: then it is above, as a rule
_STEPS = 10
_SMALLEST = 1e-300  # length of a start
_EXHAUSTED = 1e-14  # what is left of a product with the space of its vectors is rounding


def largest_eigenpairs(
    product: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, int],
    *,
    steps: int = _STEPS,
    start: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Largest eigenvalues, from below, and about their vectors, of as many matrices as rows.

    Args:
        product: `(P, side)` → `(P, side)`, each row by a symmetric matrix of its own.
        shape: `(P, side)`.
        steps: products, at most.
        start: `(P, side)`, where to look first; a random vector, the same for all, if None.

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
    if start is None:  # an answer must not depend on which others are asked for with it
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
