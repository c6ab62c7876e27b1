"""Balls of matrices too large to be dense: see `error_ball.py`.

An entry that is not stored is exactly 0, for the server too: nothing rounds there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse

from keras_curv.lowering.error_ball import Ball, Rows
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.rounding import FLOAT32_TINY, TINY, gamma
from keras_curv.saved_model.limits import (
    HALF_SPARSE,
    PRODUCTS,
    SPARSE,
    charge,
    charge_entries,
    require_at_most,
)

AT_ONCE = 2**20  # entries


@dataclasses.dataclass(frozen=True, eq=False)
class SparseBall:
    """A matrix of real numbers, those that are stored known to within their errors.

    It has the methods that a `Ball` with two axes has as a matrix.

    Example:
        >>> eye = SparseBall.exact(scipy.sparse.eye_array(2))
        >>> (eye @ eye).dense().value
        array([[1., 0.],
               [0., 1.]])
    """

    # CSR, its rows sorted; its numbers mean nothing, only their places do
    places: scipy.sparse.csr_array
    entries: Ball  # those of the places, in their order

    is_sparse, work = True, HALF_SPARSE

    @classmethod
    def of(cls, matrix: Ball | SparseBall) -> SparseBall:
        """Stores the entries of a matrix that may differ from 0."""
        return cls(*matrix.nonzero())

    @classmethod
    def exact(cls, matrix: scipy.sparse.sparray) -> SparseBall:
        """Returns a sparse matrix of numbers that are known exactly."""
        places = scipy.sparse.csr_array(matrix, dtype=np.float64)
        places.sort_indices()
        return cls.at(places, Ball.exact(places.data))

    @classmethod
    def at(cls, places: scipy.sparse.csr_array, entries: Ball) -> SparseBall:
        """Stores entries at places, whose rows are sorted, but for those that are exactly 0."""
        charge_entries(4, places.nnz, "a sparse matrix")
        inside = ~entries._is_zero()
        if inside.all():
            return cls(places, entries)
        kept = cls(places, entries).placed(inside).copy()
        kept.eliminate_zeros()
        return cls(kept, entries.each(lambda array: array[inside]))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.places.shape

    @property
    def value(self) -> scipy.sparse.csr_array:
        """The matrix of the entries' values."""
        return self.placed(self.entries.value)

    @property
    def served(self) -> scipy.sparse.csr_array:
        """The matrix of bounds on how far each entry is off as it is served."""
        return self.placed(self.entries.served)

    def placed(self, entries: np.ndarray) -> scipy.sparse.csr_array:
        """Returns a matrix with other numbers in the places of the stored entries."""
        parts = entries, self.places.indices, self.places.indptr
        return scipy.sparse.csr_array(parts, shape=self.shape)

    def with_entries(self, entries: Ball) -> SparseBall:
        """Returns a matrix with other entries in the same places."""
        return SparseBall(self.places, entries)

    def row_blocks(self) -> Iterator[Rows]:
        """Yields the rows, so many at a time that little memory goes to what is made of them."""
        ends = self.places.indptr
        step = -(-self.shape[0] // max(1, -(-self.places.nnz // AT_ONCE)))
        for start in range(0, self.shape[0], step):
            rows = slice(start, min(start + step, self.shape[0]))
            inside = slice(ends[rows.start], ends[rows.stop])
            entries = self.entries.each(lambda array: array[inside])  # noqa: B023
            yield rows, entries, SparseBall(self.places[rows], entries).placed

    def dense(self) -> Ball:
        """Returns the matrix with all of its entries stored."""
        charge_entries(8, self.shape[0] * self.shape[1], "a dense matrix")
        return self.entries.each(lambda part: self.placed(part).toarray())

    def nonzero(self) -> tuple[scipy.sparse.csr_array, Ball]:
        """Returns the places of the entries that may differ from 0, and these entries."""
        return self.places, self.entries

    def rounded(self, times: int = 1) -> SparseBall:
        """Returns the matrix after the server has rounded it."""
        served = np.empty(self.places.nnz)
        for part in batches(self.places.nnz, 1, NEAR):
            served[part] = self.entries.each(lambda a: a[part]).rounded(times).served  # noqa: B023
        return self.with_entries(dataclasses.replace(self.entries, served=served))

    def __mul__(self, factor: Ball) -> SparseBall:
        """Multiplies each column by its factor, `(columns,)`."""
        if factor.equals(1.0):
            return self
        return self.with_entries(self.entries * factor[self.places.indices])

    def with_rows_scaled(self, factor: Ball) -> SparseBall:
        """Multiplies each row by its factor, `(rows,)`."""
        if factor.equals(1.0):
            return self
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.places.indptr))
        return self.with_entries(self.entries * factor[rows])

    def with_rows(self, places: np.ndarray, count: int) -> SparseBall:
        """Moves row j to row `places[j]` of so many; the others are exactly 0."""
        numbers = self._numbered().tocoo()
        moved = (numbers.data, (places[numbers.row], numbers.col)), (count, self.shape[1])
        return self._moved(scipy.sparse.csr_array(*moved))

    def nonzero_rows(self) -> np.ndarray:
        """Returns whether anything in each row may differ from 0, `(rows,)`."""
        return np.diff(self.places.indptr) > 0

    def with_columns(self, order: np.ndarray) -> SparseBall:
        """Moves the former column `order[j]` to column j."""
        return self._moved(self._numbered()[:, order])

    @property
    def terms(self) -> int:
        """The most entries of a column, which a server adds up in a product."""
        return int(np.bincount(self.places.indices, minlength=1).max())

    def transpose(self) -> SparseBall:
        """Exchanges rows and columns."""
        return self._moved(self._numbered().T.tocsr())

    def __matmul__(self, matrix: Ball | SparseBall) -> SparseBall:
        """Returns the product; its bounds are those of `Ball.__matmul__`.

        Raises:
            InputError: it takes too many multiplications.
        """
        other = SparseBall.of(matrix)
        products = self.products(other)
        what = "a product of two convolutions without an activation between"
        require_at_most(products, PRODUCTS, f"{what}, in multiplications,")
        charge(products * SPARSE, what)
        terms = other.terms
        places = self._ones() @ other._ones()
        places.sort_indices()

        def product(one: np.ndarray, two: np.ndarray) -> np.ndarray:
            if not (one.any() and two.any()):
                return np.zeros(places.nnz)
            return entries_at(places, self.placed(one) @ other.placed(two))

        off, served = self.entries.off_in_product(other.entries, terms, product)
        entries = Ball(
            product(self.entries.value, other.entries.value),
            off * (1.0 + 2.0 * gamma(terms + 8)) + 8.0 * terms * TINY,
            served + 8.0 * terms * FLOAT32_TINY,
        )
        return SparseBall(places, entries.rounded())

    def products(self, other: SparseBall) -> int:
        """Returns how many products of two entries a product has."""
        columns = np.bincount(self.places.indices, minlength=self.shape[1])
        return int(columns @ np.diff(other.places.indptr).astype(np.int64))

    def aligned(self, other: SparseBall) -> tuple[SparseBall, SparseBall]:
        """Returns both, each with the places of both."""
        charge_entries(10, self.places.nnz + other.places.nnz, "a sum")
        places = self._ones() + other._ones()
        places.sort_indices()
        return self._spread(places), other._spread(places)

    def _spread(self, places: scipy.sparse.csr_array) -> SparseBall:
        """Stores the same entries among more places."""
        moved = self.entries.each(lambda part: entries_at(places, self.placed(part)))
        return SparseBall(places, moved)

    @classmethod
    def side_by_side(cls, matrices: Sequence[SparseBall]) -> SparseBall:
        """Puts matrices next to one another."""
        ends = np.cumsum([0, *(matrix.places.nnz for matrix in matrices)])
        numbered = [m._numbered(start) for m, start in zip(matrices, ends[:-1], strict=True)]
        entries = Ball.concatenated([matrix.entries for matrix in matrices])
        return cls._renumbered(scipy.sparse.hstack(numbered, format="csr"), entries)

    def _ones(self) -> scipy.sparse.csr_array:
        return self.placed(np.ones(self.places.nnz))

    def _numbered(self, start: int = 0) -> scipy.sparse.csr_array:
        """Returns the numbers of the entries, from `start + 1` on, in their places."""
        return self.placed(np.arange(start + 1.0, start + self.places.nnz + 1.0))

    @classmethod
    def _renumbered(cls, numbers: scipy.sparse.csr_array, entries: Ball) -> SparseBall:
        """Stores each entry where its number is."""
        numbers.sort_indices()
        return cls(numbers, entries[numbers.data.astype(np.int64) - 1])

    def _moved(self, numbers: scipy.sparse.csr_array) -> SparseBall:
        """Moves each entry to where its number is."""
        charge_entries(9, self.places.nnz, "a rearrangement")
        return self._renumbered(numbers, self.entries)


def as_thin(one: Ball | SparseBall, other: Ball | SparseBall) -> Ball | SparseBall:
    """Returns the first factor of a product, sparse where it has so many zeros that this is faster.

    So it is after max pooling or upsampling: each entry is of one or two units. Zeros stay exact
    then, which keeps what follows sparse, too.
    """
    if one.is_sparse or not other.is_sparse:
        return one
    thin = SparseBall.of(one)
    products = thin.products(SparseBall.of(other))
    dense = other.work * one.shape[0] * other.entries.value.size
    return thin if products <= PRODUCTS and products * SPARSE < dense else one


def entries_at(places: scipy.sparse.csr_array, array: scipy.sparse.csr_array) -> np.ndarray:
    """Returns the entries of an array at each of the places; it has none elsewhere."""
    if not array.nnz:
        return np.zeros(places.nnz)
    array.sort_indices()
    if np.array_equal(array.indptr, places.indptr):
        if np.array_equal(array.indices, places.indices):
            return array.data
    found, stored = np.zeros(places.nnz), array.data != 0.0
    found[np.searchsorted(_keys(places), _keys(array)[stored])] = array.data[stored]
    return found


def _keys(array: scipy.sparse.csr_array) -> np.ndarray:
    rows = np.repeat(np.arange(array.shape[0], dtype=np.int64), np.diff(array.indptr))
    return rows * array.shape[1] + array.indices
