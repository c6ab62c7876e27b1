"""Many row vectors for each of many examples, `(n, m, N)`: products and norms.

NumPy would multiply the matrix of each example by itself, a product too small for threads; here
those of all examples are one matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_curv.numerics.rounding import SLOPE_FLOOR, up


def times(rows: np.ndarray, matrix: Any) -> np.ndarray:
    """`(n, m, N)` with an array `(N, k)`, which may be sparse: `(n, m, k)`."""
    count, height, width = rows.shape
    return (rows.reshape(count * height, width) @ matrix).reshape(count, height, matrix.shape[1])


def dot(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """`(n or 1, m, N)` with `(n, N)`, each row with its example's vector: `(n, m)`."""
    if len(rows) == 1:
        return vectors @ rows[0].T
    return np.matmul(rows, vectors[:, :, None])[:, :, 0]


def row_norms(rows: np.ndarray) -> np.ndarray:
    """‖·‖₂ of each row, from above: `(n, m, N)` → `(n, m)`."""
    return up(np.sqrt(np.einsum("nmi,nmi->nm", rows, rows)) + SLOPE_FLOOR, rows.shape[-1] + 8)
