"""Krylov spaces of symmetric matrices P, each with its own start b, by Lanczos' iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

_DIMENSION = 6  # of the spaces; with 4 or with 30 radii are the same


def dimension(start: np.ndarray) -> int:
    """Returns the number of vectors of each space."""
    return min(_DIMENSION, start.shape[1])


def basis(product: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> Iterator[tuple]:
    """Yields Lanczos' orthonormal vectors v_j, row by row, with α_j and β_j of T = VᵀPV.

    There is no reorthogonalisation, which functions of P applied to b do not need.
    """
    previous, beta = np.zeros_like(start), np.zeros((len(start), 1))
    vector = _normalised(start)[0]
    for _ in range(dimension(start)):
        image = product(vector) - beta * previous
        alpha = np.sum(image * vector, axis=1)
        previous, (following, beta) = vector, _normalised(image - alpha[:, None] * vector)
        yield vector, alpha, beta[:, 0]
        if not beta.any():  # the spaces have come to their ends
            return
        vector = following


def _normalised(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit vectors, or zeros, and the norms."""
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norm, out=np.zeros_like(vectors), where=norm > 0.0), norm


def tridiagonal(basis: Iterable[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the eigenvalues `(rows, j)` and eigenvectors `(rows, j, j)` of T."""
    _, alpha, beta = zip(*basis, strict=True)
    steps = range(len(alpha))
    matrix = np.zeros((len(alpha[0]), len(alpha), len(alpha)))
    matrix[:, steps, steps] = np.transpose(alpha)
    matrix[:, steps[1:], steps[:-1]] = np.transpose(beta[:-1])  # the lower triangle is read
    return np.linalg.eigh(np.nan_to_num(matrix))
