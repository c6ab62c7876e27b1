"""Extreme eigenvalues of `W diag(d) Wᵀ` for a sparse W, whatever its number of columns.

A convolution's matrix has a column for each filter at each place, far too many for a dense W. But
all filters at one place read the same inputs: with U_p the filters' weights there, S_p the rows
that they read and d_p their part of d,

    W diag(d) Wᵀ = Σ_p S_pᵀ (U_p diag(d_p) U_pᵀ) S_p,

a sum of small dense products, scattered into a matrix whose side is the number of inputs. Then the
proof is that of `spectral.py`. Where places have the same U and d, as those of a convolution that
are pooled together have, the product is formed once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from keras_curv.numerics.rounding import gamma, up
from keras_curv.numerics.spectral import symmetric_eigenvalue_bound

_FORMED = 64  # products that are kept at a time
_LANCZOS_FROM = 64  # sides below which there is nothing to gain by a guess


class _Group(NamedTuple):
    """Columns with entries in the same rows.

    Attributes:
        rows: `(s,)`.
        columns: `(k,)`.
        values: `(s, k)`, scaled to at most 1.
        kind: which values these are: the same for the same ones.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    kind: int


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
        by_column = scipy.sparse.csc_array(kernel, dtype=np.float64)
        by_column.sort_indices()
        self.side, self._count = by_column.shape
        # A power of two scales without rounding, and keeps squares away from over- and underflow.
        self._power = math.frexp(np.abs(by_column.data).max(initial=0.0))[1]
        data = np.ldexp(by_column.data, -self._power)
        same: dict[bytes, list[int]] = {}
        for column, (start, stop) in enumerate(itertools.pairwise(by_column.indptr)):
            same.setdefault(by_column.indices[start:stop].tobytes(), []).append(column)
        self._groups: list[_Group] = []
        kinds: dict[bytes, _Group] = {}
        for listed in same.values():
            columns = np.array(listed)
            starts = by_column.indptr[columns]
            rows = by_column.indices[starts[0] : by_column.indptr[columns[0] + 1]]
            values = data[starts[None, :] + np.arange(len(rows))[:, None]]
            group = _Group(rows, columns, values, len(kinds))
            like = kinds.setdefault(values.tobytes() + b"%d" % len(rows), group)
            self._groups.append(group._replace(values=like.values, kind=like.kind))
        self.work = sum(group.values.size * len(group.rows) for group in self._groups)

    def largest_eigenvalue_bound(self, diagonal: np.ndarray) -> float:
        """A proved upper bound of `λ_max(W diag(d) Wᵀ)`.

        Args:
            diagonal: d, `(out,)`, finite, not negative, taken as exact.
        """
        power = math.frexp(diagonal.max(initial=0.0))[1]
        root = np.sqrt(np.ldexp(diagonal, -power))
        matrix, size, terms = np.zeros((self.side, self.side)), 0.0, len(self._groups)
        formed: dict[tuple[int, bytes], tuple[np.ndarray, float]] = {}
        for rows, columns, values, kind in self._groups:
            of = kind, root[columns].tobytes()
            if of not in formed:
                if len(formed) == _FORMED:
                    formed.clear()
                scaled = values * root[columns]
                formed[of] = scaled @ scaled.T, float(np.sum(scaled * scaled))
            product, trace = formed[of]
            matrix[np.ix_(rows, rows)] += product
            size += trace  # Σ d_i ‖W_i‖²
        terms += max(len(group.columns) for group in self._groups)
        # Each entry is a sum of products in some order, off by at most γ Σ d_k |W_ik| |W_jk|, and
        # the norm of the matrix of these sums is at most its trace.
        rounding = gamma(terms + 8) * up(size, self._count + self.side)
        underflow = self.side * self._count * (terms + 4.0) * 2.0**-1020
        bound = up(symmetric_eigenvalue_bound(matrix, _guess(matrix)) + rounding + underflow)
        try:
            return math.nextafter(math.ldexp(bound, 2 * self._power + power), math.inf)
        except OverflowError:
            return math.inf


def _guess(matrix: np.ndarray) -> float | None:
    """A little more than the largest eigenvalue, by a short Lanczos run; None if that fails."""
    if len(matrix) < _LANCZOS_FROM:
        return None
    start = np.random.default_rng(0).standard_normal(len(matrix))
    with contextlib.suppress(scipy.sparse.linalg.ArpackError):
        # The error of an eigenvalue is of the order of the residual's square.
        values = scipy.sparse.linalg.eigsh(
            matrix, k=1, which="LA", v0=start, tol=1e-6, return_eigenvectors=False
        )
        return float(values[0]) * (1.0 + 1e-10)
    return None
