"""Many row vectors for each of many examples, `(n, m, N)`: products and norms.

NumPy would multiply the matrix of each example by itself, a product too small for threads; here
those of all examples are one matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_curv.numerics.rounding import SLOPE_FLOOR, up


def times(
    rows: np.ndarray,
    matrix: Any,
    used: np.ndarray | None = None,
    wanted: np.ndarray | None = None,
) -> np.ndarray:
    """`(n, m, N)` with an array `(N, k)`, which may be sparse: `(n, m, k)`.

    Args:
        rows, matrix: the factors.
        used: columns outside of which the rows of an example are 0, `(n, N)`; None: not known.
        wanted: columns of the product that are asked for, `(n, k)`, the others are 0; None: all.

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
    """`(n or 1, m, N)` with `(n, N)`, each row with its example's vector: `(n, m)`."""
    if len(rows) == 1:
        return vectors @ rows[0].T
    return np.matmul(rows, vectors[:, :, None])[:, :, 0]


def row_norms(rows: np.ndarray) -> np.ndarray:
    """‖·‖₂ of each row, from above: `(n, m, N)` → `(n, m)`."""
    return up(np.sqrt(np.einsum("nmi,nmi->nm", rows, rows)) + SLOPE_FLOOR, rows.shape[-1] + 8)
