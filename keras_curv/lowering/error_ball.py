"""Numbers with bounds of their errors: what folding a served graph into affine maps needs.

A `Ball` is a float64 array and, entry by entry, a bound of its distance to the real numbers
it stands for. Reading a SavedModel multiplies normalisations into kernels and adds constants;
done with balls, the folded weights come out together with a proof of how far they can be
from real arithmetic on the stored ones.

The server does the same operations in float32, and not folded. Its roundings are carried along in
`served`, as a backward error: a sum or product that comes out as v (1 + δ), |δ| ≤ 2⁻²⁴, is what
exact arithmetic makes of weights that are off by that much, and a dot product of n terms in any
order is exact for weights that are each off by a factor of at most 1 + γ_n. So for every input,
what is served is an affine map with the weights of the folded one, up to `served`.

Below τ = 2⁻¹²⁶ a server may flush to zero, what it computes and what it reads. A constant that it
reads is then off by at most its own size, and so by at most τ: a backward error as the others
(`read`). Its loss of a number that depends on the input is no factor of it, hence no error of a
weight; `Flow` carries that along with the shift.

Reference: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 3.1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from keras_curv.numerics.rounding import (
    FLOAT32_TINY,
    FLOAT32_UNIT,
    ROUNDING_SLACK,
    TINY,
    UNIT,
    gamma,
    norm_bound,
)
from keras_curv.saved_model.limits import STORED_ENTRIES, charge, charge_entries, require_shape

_GROW = 1.0 + 8.0 * UNIT  # covers the roundings of an error bound made of a few products
_FLOAT32_MOST = 2.0**126  # of what a server holds; float32 ends at 2¹²⁸
_OF_SECOND = 8  # passes over the entries of the second factor of a product


# Some rows of a matrix: which, their stored entries, and a function that places such entries.
Rows = tuple[slice, "Ball", Callable[[np.ndarray], Any]]


class Matrix(Protocol):
    """The second factor of a product: a `Ball` with two axes, or a `SparseBall`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`(in, out)`."""

    @property
    def value(self) -> Any:
        """An array or a sparse array, which an array can be multiplied by."""

    @property
    def entries(self) -> Ball:
        """The entries that are stored."""

    @property
    def work(self) -> int:
        """Multiplications that a product takes, for each entry and row of the first factor."""

    def row_blocks(self) -> Iterator[Rows]:
        """Yields the rows, so many at a time that little memory goes to what is made of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ball:
    """Real numbers `r` with `|r − value| ≤ error`, entrywise.

    Example:
        >>> (Ball.exact([0.1]) + Ball.exact([0.2])).error <= 2.0**-54
        array([ True])
    """

    value: np.ndarray  # array, float64
    error: np.ndarray  # array of the same shape, float64, non-negative
    # the same for what a server in float32 has in the place of r; None: exactly r
    served: Any = None

    def __post_init__(self) -> None:
        if self.served is None:
            object.__setattr__(self, "served", np.zeros(self.shape))

    @classmethod
    def exact(cls, value: Any) -> Ball:
        """Returns numbers that are known exactly."""
        value = np.asarray(value, np.float64)
        return cls(value, np.zeros(value.shape))

    @classmethod
    def concatenated(cls, balls: Sequence[Ball]) -> Ball:
        """Joins arrays along their last axis."""
        charge_entries(4, sum(ball.value.size for ball in balls), "what is put together")
        parts = ([getattr(ball, name) for ball in balls] for name in ("value", "error", "served"))
        return cls(*(np.concatenate(part, axis=-1) for part in parts))

    def each(self, change: Callable[[Any], Any]) -> Ball:
        """Makes a change of place, of shape or of storage to all three arrays."""
        return Ball(change(self.value), change(self.error), change(self.served))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value and of the error."""
        return self.value.shape

    def equals(self, number: float) -> bool:
        """Returns whether every entry is exactly that number."""
        exact = not np.any(self.error) and not np.any(self.served)
        return bool(exact and np.all(self.value == number))

    def reshape(self, shape: tuple[int, ...]) -> Ball:
        """Returns the same entries in another shape."""
        return self.each(lambda array: array.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> Ball:
        """Broadcasts as NumPy does; ValueError where the shapes do not fit."""
        return self.each(lambda array: np.broadcast_to(array, shape))

    def transpose(self, axes: Sequence[int] | None = None) -> Ball:
        """Permutes the axes; reverses them without `axes`."""
        return self.each(lambda array: array.transpose(axes))

    def __getitem__(self, key: Any) -> Ball:
        value = self.value[key]
        charge_entries(2, value.size, "picking entries")
        return Ball(value, self.error[key], self.served[key])

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error, self.served)

    def __add__(self, other: Ball) -> Ball:
        charge_entries(6, max(self.value.size, other.value.size), "a sum")
        total = self.value + other.value
        virtual = total - self.value  # Knuth's TwoSum: what the sum rounded away, exactly
        lost = np.abs((self.value - (total - virtual)) + (other.value - virtual))
        error = (self.error + other.error + lost) * _GROW
        return Ball(total, error, self.served + other.served).rounded()

    def __sub__(self, other: Ball) -> Ball:
        return self + (-other)

    def __mul__(self, other: Ball) -> Ball:
        if other.equals(1.0):
            return self.broadcast_to(np.broadcast_shapes(self.shape, other.shape))
        charge_entries(8, max(self.value.size, other.value.size), "scaling")
        product = self.value * other.value
        spread = (
            np.abs(self.value) * other.error
            + np.abs(other.value) * self.error
            + self.error * other.error
        )
        error = (spread + UNIT * np.abs(product)) * _GROW + 8.0 * TINY
        error = np.where((other.value == 1.0) & (other.error == 0.0), self.error, error)
        nothing = (self._is_zero() | other._is_zero()) & np.isfinite(error)
        error = np.where(nothing, 0.0, error)
        size, other_size = self._size(), other._size()
        off, other_off = self.read(), other.read()
        served = size * other_off + other_size * off + off * other_off
        return Ball(product, error, served).rounded()

    def __truediv__(self, other: Ball) -> Ball:
        return self * other.reciprocal()

    def __matmul__(self, other: Matrix) -> Ball:
        terms = self.shape[-1]
        rows = math.prod(self.shape[:-1])
        what, stored = "a product of two matrices", other.entries.value.size
        charge(other.work * rows * stored, what)
        charge_entries(_OF_SECOND, stored, what)
        charge_entries(14, self.value.size + rows * other.shape[-1], what)
        product = self.value @ other.value
        error = np.full(product.shape, 8.0 * terms * TINY)
        served = np.full(product.shape, 8.0 * terms * FLOAT32_TINY)
        for rows_of_other, entries, placed in other.row_blocks():
            mine = self.each(lambda array: array[..., rows_of_other])  # noqa: B023
            off, away = mine.off_in_product(entries, terms, lambda a, b: a @ placed(b))  # noqa: B023
            error += off
            served += away
        error *= 1.0 + 2.0 * gamma(terms + 4)
        return Ball(product, error, _infinite_beyond(served, np.abs(product) + error + served))

    def off_in_product(
        self, other: Ball, terms: int, product: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what a product, or some of its terms, adds to `error` and to `served`.

        Args:
            other: the stored entries of the second factor.
            terms: how many the whole product sums.
            product: of an array in the place of this one and an array in the place of the other.
        """
        size, other_size = np.abs(self.value), np.abs(other.value)
        error = gamma(terms + 2) * product(size, other_size)
        if other.error.any():
            error = error + product(size, other.error)
        weights, most = other_size + other.error, size
        if np.any(self.error):
            error = error + product(self.error, weights)
            most = size + self.error
        # Each of these weights is off by what it was before, and by a factor of 1 + γ_{n+1}: an
        # offset that is added to the sum may have been its first term.
        away = other.read()
        away = away + (weights + away) * gamma(terms + 1, FLOAT32_UNIT)
        weights = weights + away
        return error, (product(most, away) + product(self.served, weights)) * ROUNDING_SLACK

    def reciprocal(self) -> Ball:
        """Returns 1/r; its error is infinite where 0 is in the ball."""
        with np.errstate(all="ignore"):
            value = 1.0 / self.value
            nearest = np.abs(self.value) - 2.0 * self.error
            spread = 1.01 * self.error / nearest / nearest  # |1/r|′ = 1/r²; in this order in range
            error = np.where(nearest > 0.0, spread, np.inf) + 4.0 * UNIT * np.abs(value)
            off = self.read()
            nearest = np.abs(self.value) - self.error - off
            served = 1.01 * off / nearest / (np.abs(self.value) - self.error)
            served = np.where(nearest > 0.0, served, np.inf)
        return Ball(value, (error + 8.0 * TINY) * _GROW, served).rounded(2)

    def sqrt(self) -> Ball:
        """Returns √r; its error is infinite, or NaN, where r may be negative."""
        with np.errstate(all="ignore"):
            value = np.sqrt(self.value)
            spread = 0.51 * self.error / np.sqrt(self.value - 2.0 * self.error)
            spread = np.where(self.value > 2.0 * self.error, spread, np.inf)
            error = np.where(self.error > 0.0, spread, 0.0) + 4.0 * UNIT * value
            off = self.read()
            nearest = self.value - self.error - off
            served = np.where(nearest > 0.0, 0.51 * off / np.sqrt(nearest), np.inf)
            served = np.where(off > 0.0, served, 0.0)
        return Ball(value, (error + 8.0 * TINY) * _GROW, served).rounded(2)

    def rsqrt(self) -> Ball:
        """Returns 1/√r."""
        return self.sqrt().reciprocal()

    def square(self) -> Ball:
        """Returns r²."""
        return self * self

    def maximum(self, other: Ball) -> Ball:
        """Returns the larger of two, entrywise."""
        return Ball(
            np.maximum(self.value, other.value),
            np.maximum(self.error, other.error),
            np.maximum(self.read(), other.read()),
        )

    def rounded(self, times: int = 1) -> Ball:
        """Returns the numbers after the server has rounded them."""
        charge_entries(3, self.value.size, "rounding")
        size = self._size()
        # In place from here on, as weights may be many; of one number numpy makes no array.
        served = np.asarray(size + self.served)
        nothing = served == 0.0
        served *= gamma(times, FLOAT32_UNIT)
        served += self.served
        served *= ROUNDING_SLACK
        served += 4.0 * times * FLOAT32_TINY
        served[nothing] = 0.0  # what is 0 stays 0
        size += served
        return dataclasses.replace(self, served=_infinite_beyond(served, size))

    def read(self) -> np.ndarray:
        """Bounds how far a number is off as an op reads it, which may take it for 0 below τ."""
        least = np.abs(self.value)
        least -= self.error
        least -= self.served
        off = np.array(self.served)
        subnormal = least < FLOAT32_TINY
        if subnormal.any():
            size = (self._size() + self.served)[subnormal]
            off[subnormal] += np.minimum(size, FLOAT32_TINY)
        return off

    def overflows_float32(self) -> bool:
        """Returns whether a server might not be able to hold a number."""
        return bool(np.any(self.served_size() > _FLOAT32_MOST))

    def away(self, distance: np.ndarray | float) -> Ball:
        """Returns the numbers as served off by so much more."""
        return dataclasses.replace(self, served=(self.served + distance) * ROUNDING_SLACK)

    def served_size(self) -> np.ndarray:
        """Bounds the absolute values of the numbers that are served."""
        return (self._size() + self.served) * ROUNDING_SLACK

    def _size(self) -> np.ndarray:
        """Bounds the absolute values of the real numbers."""
        return np.abs(self.value) + self.error

    def _is_zero(self) -> Any:
        """Returns which numbers are 0 for certain, as they are served too."""
        return (self.value == 0.0) & (self.error == 0.0) & (self.served == 0.0)

    def norm_of_error(self) -> float:
        """Bounds the l2 (for a matrix: Frobenius, hence spectral) norm of the error."""
        return norm_bound(self.error) if self.error.any() else 0.0

    # A matrix, as `SparseBall` is one

    is_sparse, work = False, 1

    @property
    def entries(self) -> Ball:
        """The entries that are stored: all of them."""
        return self

    def row_blocks(self) -> Iterator[Rows]:
        """See `Matrix`."""
        yield slice(None), self, lambda entries: entries

    def dense(self) -> Ball:
        """Returns the matrix with all of its entries stored."""
        return self

    def nonzero(self) -> tuple[scipy.sparse.csr_array, Ball]:
        """Returns the places of the entries that may differ from 0, and these entries."""
        require_shape(self.shape, STORED_ENTRIES)
        inside = ~self._is_zero()
        charge_entries(4, int(np.count_nonzero(inside)), "a sparse matrix")
        return scipy.sparse.csr_array(inside), self.each(lambda array: array[inside])

    def with_entries(self, entries: Ball) -> Ball:
        """Returns a matrix with other entries in the same places."""
        return entries

    def with_columns(self, order: np.ndarray) -> Ball:
        """Moves the former column `order[j]` to column j."""
        return self[:, order]

    def with_rows(self, places: np.ndarray, count: int) -> Ball:
        """Moves row j to row `places[j]` of so many; the others are exactly 0."""
        charge_entries(4, count * math.prod(self.shape[1:]), "a larger base")

        def moved(rows: np.ndarray) -> np.ndarray:
            array = np.zeros((count, *rows.shape[1:]))
            array[places] = rows
            return array

        return self.each(moved)

    def with_rows_scaled(self, factor: Ball) -> Ball:
        """Multiplies each row by its factor, `(rows,)`."""
        return self * factor.reshape((-1, 1))

    def nonzero_rows(self) -> np.ndarray:
        """Returns whether anything in each row may differ from 0, `(rows,)`."""
        return (~self._is_zero()).any(axis=1)


def served_columns(
    matrix: Matrix, factors: np.ndarray, masses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each column as it is served, the largest of its absolute values and their sum.

    Args:
        matrix: `(in, out)`.
        factors: of the rows, in the largest.
        masses: of the rows, in the sum.
    """
    largest = total = np.zeros(matrix.shape[1])
    for rows, entries, placed in matrix.row_blocks():
        size = placed(entries.served_size())
        largest = np.maximum(largest, _column_maxima(factors[rows], size))
        total = total + masses[rows] @ size
    return largest, total


def _column_maxima(factors: np.ndarray, size: Any) -> np.ndarray:
    """Returns the largest of `factors[i] * size[i, j]` over i, of numbers ≥ 0, `(out,)`."""
    if isinstance(size, np.ndarray):
        return (factors[:, None] * size).max(axis=0, initial=0.0)
    return (scipy.sparse.diags_array(factors) @ size).max(axis=0).toarray().reshape(-1)


def _infinite_beyond(served: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns the same array, infinite where a server's numbers may overflow or are NaN."""
    served[~(size <= _FLOAT32_MOST)] = np.inf
    return served
