"""Products and norms of many row vectors for each of many examples, `(n, m, N)`.

NumPy would multiply the rows of each example separately, products too small for threads; here the
rows of all examples form one matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_curv.numerics.rounding import SLOPE_FLOOR, up


def times(
    rows: np.ndarray, matrix: Any, used: np.ndarray | None = None, wanted: np.ndarray | None = None
) -> np.ndarray:
    """Multiplies `(n, m, N)` with a matrix `(N, k)`, which may be sparse: `(n, m, k)`.

    Args:
        rows, matrix: the factors.
        used: mask of the columns outside of which an example's rows are 0, `(n, N)`; None: unknown.
        wanted: mask of the product's columns to compute, `(n, k)`; others are 0. None: all.

    Example:
        >>> rows, used = np.array([[[1.0, 2.0, 0.0]]]), np.array([[True, True, False]])
        >>> times(rows, np.ones((3, 2)), used, np.array([[True, False]]))
        array([[[3., 0.]]])
    """
    (count, height, width), columns = rows.shape, matrix.shape[1]
    if used is None:
        return (rows.reshape(count * height, width) @ matrix).reshape(count, height, columns)
    found = np.zeros((count, height, columns))
    for of, inner in enumerate(map(np.flatnonzero, used)):
        part = rows[of].take(inner, axis=1)
        if wanted is None:
            np.matmul(part, matrix[inner], out=found[of])
        else:
            outer = np.flatnonzero(wanted[of])
            found[of][:, outer] = part @ matrix[inner].take(outer, axis=1)
    return found


def dot(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiplies each row of `(n or 1, m, N)` with its example's vector of `(n, N)`: `(n, m)`."""
    if len(rows) == 1:
        return vectors @ rows[0].T
    return np.matmul(rows, vectors[:, :, None])[:, :, 0]


def row_norms(rows: np.ndarray) -> np.ndarray:
    """Bounds ‖·‖₂ of each row from above: `(n, m, N)` → `(n, m)`."""
    return up(np.sqrt(np.einsum("nmi,nmi->nm", rows, rows)) + SLOPE_FLOOR, rows.shape[-1] + 8)
