"""Extreme eigenvalues of `W diag(d) Wᵀ` for a sparse W with any number of columns.

A convolution's matrix has a column for each filter at each place, far too many for a dense W. But
all filters at one place read the same inputs: with U_p the filters' weights there, S_p the rows
that they read and d_p their part of d,

    W diag(d) Wᵀ = Σ_p S_pᵀ (U_p diag(d_p) U_pᵀ) S_p,

a sum of small dense products, scattered into a matrix whose side is the number of inputs, for which
`spectral.py` has the proof. Where places share U and d, as the places of a convolution that are
pooled together do, the product is formed once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from keras_curv.numerics.rounding import gamma, scaled_back, up
from keras_curv.numerics.spectral import lanczos_eigenvalue, symmetric_eigenvalue_bound

_FORMED = 64  # products that are kept at a time
_LANCZOS_FROM = 64  # below this side a guess does not help


class Kind(NamedTuple):
    """Groups of columns with equal values; the columns of a group have entries in the same rows.

    Each place of a convolution is such a group, and all places inside the image are of one kind.
    """

    values: np.ndarray  # `(s, k)`, the same for each group
    rows: np.ndarray  # `(groups, s)`, the rows of each group
    columns: np.ndarray  # `(groups, k)`, the columns of each group


def kinds_of(kernel: scipy.sparse.csc_array, least: int = 1) -> list[Kind] | None:
    """Returns the columns by kind; None if groups have fewer than `least` columns on average."""
    kernel.sort_indices()
    same: dict[bytes, list[int]] = {}
    for column, (start, stop) in enumerate(itertools.pairwise(kernel.indptr)):
        same.setdefault(kernel.indices[start:stop].tobytes(), []).append(column)
        if len(same) * least > kernel.shape[1]:
            return None
    kinds: dict[bytes, tuple[np.ndarray, list, list]] = {}
    for columns in same.values():
        starts = kernel.indptr[columns]
        rows = kernel.indices[starts[0] : kernel.indptr[columns[0] + 1]]
        values = kernel.data[starts[None, :] + np.arange(len(rows))[:, None]]
        key = values.tobytes() + b"%d" % len(rows)
        _, all_rows, all_columns = kinds.setdefault(key, (values, [], []))
        all_rows.append(rows)
        all_columns.append(columns)
    return [Kind(values, np.array(rows), np.array(c)) for values, rows, c in kinds.values()]


class ColumnGroups:
    """A sparse matrix by groups of columns that have their entries in the same rows.

    Args:
        kernel: `(in, out)`, sparse, finite.

    Attributes:
        side: the number of inputs.
        work: multiplications of `W diag(d) Wᵀ`.

    Example:
        >>> groups = ColumnGroups(scipy.sparse.csr_array(np.eye(3)))
        >>> round(groups.largest_eigenvalue_bound(np.array([1.0, 2.0, 3.0])), 9)
        3.0
    """

    def __init__(self, kernel: scipy.sparse.csr_array):
        by_column = scipy.sparse.csc_array(kernel, dtype=np.float64, copy=True)
        self.side, self._count = by_column.shape
        # A power of two scales without rounding, and keeps squares away from over- and underflow.
        self._power = math.frexp(np.abs(by_column.data).max(initial=0.0))[1]
        by_column.data = np.ldexp(by_column.data, -self._power)
        self._kinds = kinds_of(by_column) or []
        self.work = sum(kind.values.size * kind.rows.size for kind in self._kinds)

    def largest_eigenvalue_bound(self, diagonal: np.ndarray) -> float:
        """Returns a proved upper bound on `λ_max(W diag(d) Wᵀ)`.

        Args:
            diagonal: d, `(out,)`, finite, not negative, taken as exact.
        """
        power = math.frexp(diagonal.max(initial=0.0))[1]
        root = np.sqrt(np.ldexp(diagonal, -power))
        matrix, size, terms = np.zeros((self.side, self.side)), 0.0, 0
        for values, all_rows, all_columns in self._kinds:
            formed: dict[bytes, tuple[np.ndarray, float]] = {}
            for rows, columns in zip(all_rows, all_columns, strict=True):
                of = root[columns].tobytes()
                if of not in formed:
                    if len(formed) == _FORMED:
                        formed.clear()
                    scaled = values * root[columns]
                    formed[of] = scaled @ scaled.T, float(np.sum(scaled * scaled))
                product, trace = formed[of]
                matrix[np.ix_(rows, rows)] += product
                size += trace  # Σ d_i ‖W_i‖²
            terms += len(all_rows)
        terms += max(kind.columns.shape[1] for kind in self._kinds)
        # Each entry is a sum of products in some order, off by at most γ Σ d_k |W_ik| |W_jk|, and
        # the norm of the matrix of these sums is at most its trace.
        rounding = gamma(terms + 8) * up(size, self._count + self.side)
        underflow = self.side * self._count * (terms + 4.0) * 2.0**-1020
        bound = up(symmetric_eigenvalue_bound(matrix, _guess(matrix)) + rounding + underflow)
        return scaled_back(bound, 2 * self._power + power)


def _guess(matrix: np.ndarray) -> float | None:
    """Returns a slightly raised largest eigenvalue by a short Lanczos run; None if that fails."""
    if len(matrix) < _LANCZOS_FROM:
        return None
    with contextlib.suppress(scipy.sparse.linalg.ArpackError):
        # The error of an eigenvalue is of the order of the residual's square.
        return lanczos_eigenvalue(matrix, 1e-6) * (1.0 + 1e-10)
    return None
