"""Matrices with few entries: sums of small dense blocks, each of some rows and some columns.

Those columns that have entries in the same rows are one block, as all filters of a convolution at
one place are; where there are fewer columns than rows, those rows in the same columns. So each
index of the longer side is in one block, and `W diag(d) Wᵀ`, or WᵀW, is a sum over blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from keras_curv_check.rounding import norms, up


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """A matrix as blocks.

    Attributes:
        shape: rows and columns.
        stacks: of K blocks each: indices of the longer side `(K, m)` and of the other one
            `(K, n)`, and entries `(K, m, n)`.
        long_rows: whether rows are the longer side.
    """

    shape: tuple[int, int]
    stacks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    long_rows: bool

    __array_ufunc__ = None  # `array @ blocks` is asked of this class

    @classmethod
    def of(
        cls, shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray, data: np.ndarray
    ) -> Blocks:
        """Returns the matrix with these entries, which are in the order of rows, then columns."""
        long_rows = shape[0] > shape[1]
        if not long_rows:
            order = np.argsort(columns, kind="stable")
            rows, columns, data = columns[order], rows[order], data[order]
        # From here on rows are those of the longer side, and columns the indices beside them.
        counts = np.bincount(rows, minlength=max(shape))
        ends = [0, *counts.cumsum().tolist()]
        alike: dict[bytes, list[int]] = {}
        for index, (start, stop) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            if start < stop:
                alike.setdefault(columns[start:stop].tobytes(), []).append(index)
        sized: dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        for among, some in alike.items():
            other = np.frombuffer(among, columns.dtype)
            part = np.stack([data[ends[index] : ends[index + 1]] for index in some])
            sized.setdefault(part.shape, []).append((np.array(some), other, part))
        parts = (zip(*blocks, strict=True) for blocks in sized.values())
        stacks = [(np.stack(a), np.stack(b), np.stack(c)) for a, b, c in parts]
        return cls(shape, stacks, long_rows)

    @functools.cached_property
    def T(self) -> Blocks:
        """Returns the transpose."""
        return Blocks(self.shape[::-1], self.stacks, not self.long_rows)

    @property
    def terms(self) -> int:
        """Bounds the roundings of a sum of products over rows, of all sums in their blocks."""
        if not self.long_rows:
            return max((part.shape[2] for _, _, part in self.stacks), default=0)
        blocks = sum(len(part) for _, _, part in self.stacks)
        return blocks + max((part.shape[1] for _, _, part in self.stacks), default=0)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Bounds the l2 norms of the rows from above."""
        largest = float(np.abs(self.ravel()).max(initial=1e-200))
        squares = self.each(lambda part: np.square(part / largest)) @ np.ones(self.shape[1])
        return up(largest * (np.sqrt(squares) + 1e-150), self.shape[1])

    @property
    def size(self) -> int:
        """Returns the number of entries."""
        return sum(part.size for _, _, part in self.stacks)

    def ravel(self) -> np.ndarray:
        """Returns all entries."""
        return np.concatenate([np.zeros(0), *(part.ravel() for _, _, part in self.stacks)])

    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> Blocks:
        """Returns a function of each entry."""
        stacks = [(some, other, function(part)) for some, other, part in self.stacks]
        return Blocks(self.shape, stacks, self.long_rows)

    def __abs__(self) -> Blocks:
        return self.each(np.abs)

    def __rmatmul__(self, rows: np.ndarray) -> np.ndarray:
        """Returns `a W` of one or more a."""
        if rows.ndim > 1:
            return np.stack([row @ self for row in rows])
        found = np.zeros(self.shape[1])
        for some, other, part in self.stacks:
            if self.long_rows:
                products, at = rows[some][:, None] @ part, other
            else:
                products, at = part @ rows[other][..., None], some
            found += np.bincount(at.ravel(), products.ravel(), len(found))
        return found

    def __matmul__(self, columns: np.ndarray) -> np.ndarray:
        return (columns.T @ self.T).T

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """Returns the sum of `weight wᵀw`, w the rows or columns of the longer side."""
        found = np.zeros((min(self.shape),) * 2)
        for some, other, part in self.stacks:
            for index, at, entries in zip(some, other, part, strict=True):
                found[np.ix_(at, at)] += (entries.T * weights[index]) @ entries
        return found


def lengths(kernel: np.ndarray | Blocks) -> np.ndarray:
    """Bounds the l2 norms of a matrix's rows from above."""
    return norms(kernel) if isinstance(kernel, np.ndarray) else kernel.lengths
