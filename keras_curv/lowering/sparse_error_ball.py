"""Balls of matrices too large to be dense: see `error_ball.py`.

An entry that is not stored is exactly 0, for the server too: nothing rounds there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import scipy.sparse

from keras_curv.lowering.error_ball import Ball
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.rounding import FLOAT32_TINY, FLOAT32_UNIT, ROUNDING_SLACK, TINY, gamma
from keras_curv.saved_model.limits import PRODUCTS, SPARSE, charge, charge_entries, require_at_most


@dataclasses.dataclass(frozen=True, eq=False)
class SparseBall:
    """A matrix of real numbers, those that are stored known to within their errors.

    Attributes:
        places: CSR, its rows sorted; what it holds does not count, only where.
        entries: those of the places, in their order.

    Example:
        >>> eye = SparseBall.of(Ball.exact(scipy.sparse.eye_array(2, format="csr")))
        >>> (eye @ eye).dense().value
        array([[1., 0.],
               [0., 1.]])
    """

    places: scipy.sparse.csr_array
    entries: Ball

    @classmethod
    def of(cls, ball: Ball) -> SparseBall:
        """A ball of sparse or of dense matrices."""
        arrays = [scipy.sparse.csr_array(a) for a in (ball.value, ball.error, ball.served)]
        value, *errors = arrays
        alone = value.data.all() and not any(array.nnz for array in errors)
        return cls._of(value if alone else sum(abs(array) for array in arrays), arrays)

    @classmethod
    def _of(
        cls, places: scipy.sparse.csr_array, arrays: Iterable[scipy.sparse.csr_array]
    ) -> SparseBall:
        """The arrays, whose entries are among the places."""
        charge_entries(4, places.nnz, "a sparse matrix")
        places.sort_indices()
        return cls(places, Ball(*(_entries_at(places, array) for array in arrays)))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.places.shape

    @property
    def value(self) -> scipy.sparse.csr_array:
        """The entries that are stored."""
        return self._matrix(self.entries.value)

    @property
    def served(self) -> scipy.sparse.csr_array:
        """Bound on how far each entry is off as it is served."""
        return self._matrix(self.entries.served)

    def dense(self) -> Ball:
        """The same, entry by entry."""
        charge_entries(8, self.shape[0] * self.shape[1], "a dense matrix")
        return self.entries.each(lambda part: self._matrix(part).toarray())

    def norm_of_error(self) -> float:
        """A bound of the Frobenius, hence of the spectral norm of the error."""
        return self.entries.norm_of_error()

    def rounded(self, times: int = 1) -> SparseBall:
        """The same, after the server has rounded it."""
        served = np.empty(self.places.nnz)
        for part in batches(self.places.nnz, 1, NEAR):
            served[part] = self.entries.each(lambda a: a[part]).rounded(times).served  # noqa: B023
        return dataclasses.replace(self, entries=dataclasses.replace(self.entries, served=served))

    def __mul__(self, factor: Ball) -> SparseBall:
        """Each column times its factor, `(columns,)`."""
        if factor.equals(1.0):
            return self
        entries = self.entries * factor[self.places.indices]
        return dataclasses.replace(self, entries=entries)

    def with_rows_scaled(self, factor: Ball) -> SparseBall:
        """Each row times its factor, `(rows,)`."""
        if factor.equals(1.0):
            return self
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.places.indptr))
        return dataclasses.replace(self, entries=self.entries * factor[rows])

    def with_rows(self, places: np.ndarray, count: int) -> SparseBall:
        """Row j becomes row `places[j]` of so many; others are 0."""

        def moved(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
            entries = matrix.tocoo()
            at = places[entries.row], entries.col
            return scipy.sparse.csr_array((entries.data, at), shape=(count, matrix.shape[1]))

        return self._moved(moved)

    def nonzero_rows(self) -> np.ndarray:
        """Whether anything in each row may differ from 0, `(rows,)`."""
        return np.diff(self.places.indptr) > 0

    def with_columns(self, order: np.ndarray) -> SparseBall:
        """Column j becomes the former column `order[j]`."""
        return self._moved(lambda matrix: matrix[:, order])

    @property
    def terms(self) -> int:
        """The most entries that a column has: what a server adds up."""
        return int(np.bincount(self.places.indices, minlength=1).max())

    def __matmul__(self, other: SparseBall) -> SparseBall:
        """The product; its bounds are those of `Ball.__matmul__`.

        Raises:
            InputError: it takes too many multiplications.
        """
        columns = np.bincount(self.places.indices, minlength=self.shape[1])
        products = int(columns @ np.diff(other.places.indptr).astype(np.int64))
        what = "a product of two convolutions without an activation between"
        require_at_most(products, PRODUCTS, f"{what}, in multiplications,")
        charge(products * SPARSE, what)
        terms = other.terms
        places = _ones(self.places) @ _ones(other.places)
        places.sort_indices()

        def product(one: np.ndarray, two: np.ndarray) -> np.ndarray:
            if not (one.any() and two.any()):
                return np.zeros(places.nnz)
            return _entries_at(places, self._matrix(one) @ other._matrix(two))

        value, other_value = self.entries.value, other.entries.value
        error, other_error = self.entries.error, other.entries.error
        size, other_size = np.abs(value), np.abs(other_value)
        real, weights = size + error, other_size + other_error
        off = gamma(terms + 2) * product(size, other_size) + product(size, other_error)
        off = (off + product(error, weights)) * (1.0 + 2.0 * gamma(terms + 8))
        away = other.entries.read()
        away = away + gamma(terms + 1, FLOAT32_UNIT) * (weights + away)
        served = product(real, away) + product(self.entries.served, weights + away)
        entries = Ball(
            product(value, other_value),
            off + 8.0 * terms * TINY,
            served * ROUNDING_SLACK + 8.0 * terms * FLOAT32_TINY,
        )
        return SparseBall(places, entries.rounded())

    def aligned(self, other: SparseBall) -> tuple[SparseBall, SparseBall]:
        """Returns both, each with the places of both."""
        charge_entries(10, self.places.nnz + other.places.nnz, "a sum")
        places = _ones(self.places) + _ones(other.places)
        places.sort_indices()
        return self._spread(places), other._spread(places)

    def _spread(self, places: scipy.sparse.csr_array) -> SparseBall:
        """The same with more places."""
        at = np.searchsorted(_keys(places), _keys(self.places))

        def spread(entries: np.ndarray) -> np.ndarray:
            found = np.zeros(places.nnz)
            found[at] = entries
            return found

        return SparseBall(places, self.entries.each(spread))

    @classmethod
    def side_by_side(cls, balls: list[SparseBall]) -> SparseBall:
        """The matrices next to one another."""
        parts = [
            [each._matrix(e) for e in (each.entries.value, each.entries.error, each.entries.served)]
            for each in balls
        ]
        places = scipy.sparse.hstack([_ones(each.places) for each in balls], format="csr")
        arrays = [scipy.sparse.hstack(arrays, format="csr") for arrays in zip(*parts, strict=True)]
        return cls._of(places, arrays)

    def _matrix(self, entries: np.ndarray) -> scipy.sparse.csr_array:
        parts = entries, self.places.indices, self.places.indptr
        return scipy.sparse.csr_array(parts, shape=self.shape)

    def _moved(
        self, move: Callable[[scipy.sparse.csr_array], scipy.sparse.csr_array]
    ) -> SparseBall:
        charge_entries(9, self.places.nnz, "a rearrangement")
        # Numbered from 1, the entries say where each of them has gone.
        places = move(self._matrix(np.arange(1.0, self.places.nnz + 1.0)))
        places.sort_indices()
        return SparseBall(places, self.entries[places.data.astype(np.int64) - 1])


def _ones(places: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    parts = np.ones(places.nnz), places.indices, places.indptr
    return scipy.sparse.csr_array(parts, shape=places.shape)


def _entries_at(places: scipy.sparse.csr_array, array: scipy.sparse.csr_array) -> np.ndarray:
    """The entries of the array at each of the places; it has none elsewhere."""
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
