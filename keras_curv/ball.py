"""Numbers with a bound of their error: what folding a served graph into affine maps needs.

A `Ball` is a float64 array and, entry by entry, a bound of its distance to the real numbers
it stands for. Reading a SavedModel multiplies normalisations into kernels and adds constants;
done with balls, the folded weights come out together with a proof of how far they can be
from real arithmetic on the stored ones.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse

from keras_curv.rounding import TINY, UNIT, gamma, norm_bound

_GROW = 1.0 + 8.0 * UNIT  # covers the roundings of an error bound made of a few products


@dataclasses.dataclass(frozen=True, eq=False)
class Ball:
    """Real numbers `r` with `|r − value| ≤ error`, entrywise.

    Attributes:
        value: array, float64; a sparse one can be multiplied by from the left, and no more.
        error: array of the same shape, float64, non-negative; sparse if the value is.

    Example:
        >>> (Ball.exact([0.1]) + Ball.exact([0.2])).error <= 2.0**-54
        array([ True])
    """

    value: np.ndarray
    error: np.ndarray

    @classmethod
    def exact(cls, value) -> Ball:
        """Numbers that are what they are."""
        if scipy.sparse.issparse(value):
            return cls(value, scipy.sparse.csr_array(value.shape))
        value = np.asarray(value, np.float64)
        return cls(value, np.zeros_like(value))

    def dense(self) -> Ball:
        """The same, if it was sparse."""
        if not scipy.sparse.issparse(self.value):
            return self
        return Ball(self.value.toarray(), self.error.toarray())

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the value and of the error."""
        return self.value.shape

    def equals(self, number: float) -> bool:
        """Whether every entry is exactly that number."""
        return bool(np.all(self.value == number) and not np.any(self.error))

    def reshape(self, shape) -> Ball:
        """The same entries in another shape."""
        return Ball(self.value.reshape(shape), self.error.reshape(shape))

    def broadcast_to(self, shape) -> Ball:
        """As NumPy does; ValueError where the shapes do not fit."""
        return Ball(np.broadcast_to(self.value, shape), np.broadcast_to(self.error, shape))

    def transpose(self, axes=None) -> Ball:
        """Axes permuted; reversed without `axes`."""
        return Ball(self.value.transpose(axes), self.error.transpose(axes))

    def __getitem__(self, key) -> Ball:
        return Ball(self.value[key], self.error[key])

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error)

    def __add__(self, other: Ball) -> Ball:
        total = self.value + other.value
        virtual = total - self.value  # Knuth's TwoSum: what the sum rounded away, exactly
        lost = np.abs((self.value - (total - virtual)) + (other.value - virtual))
        return Ball(total, (self.error + other.error + lost) * _GROW)

    def __sub__(self, other: Ball) -> Ball:
        return self + (-other)

    def __mul__(self, other: Ball) -> Ball:
        if other.equals(1.0):
            return self.broadcast_to(np.broadcast_shapes(self.shape, other.shape))
        product = self.value * other.value
        spread = (
            np.abs(self.value) * other.error
            + np.abs(other.value) * self.error
            + self.error * other.error
        )
        return Ball(product, (spread + UNIT * np.abs(product)) * _GROW + 8.0 * TINY)

    def __truediv__(self, other: Ball) -> Ball:
        return self * other.reciprocal()

    def __matmul__(self, other: Ball) -> Ball:
        terms = self.shape[-1]
        size, other_size = np.abs(self.value), abs(other.value)
        error = gamma(terms + 2) * (size @ other_size) + 8.0 * terms * TINY
        if other.error.max() != 0.0:
            error = error + size @ other.error
        if np.any(self.error):
            error = error + self.error @ (other_size + other.error)
        return Ball(self.value @ other.value, error * (1.0 + 2.0 * gamma(terms + 4)))

    def reciprocal(self) -> Ball:
        """1/r; infinite error where 0 is in the ball."""
        with np.errstate(all="ignore"):
            value = 1.0 / self.value
            nearest = np.abs(self.value) - 2.0 * self.error
            spread = 1.01 * self.error / nearest / nearest  # |1/r|′ = 1/r²; in this order in range
            error = np.where(nearest > 0.0, spread, np.inf) + 4.0 * UNIT * np.abs(value)
        return Ball(value, (error + 8.0 * TINY) * _GROW)

    def sqrt(self) -> Ball:
        """√r; infinite error, or NaN, where r may be negative."""
        with np.errstate(all="ignore"):
            value = np.sqrt(self.value)
            spread = 0.51 * self.error / np.sqrt(self.value - 2.0 * self.error)
            spread = np.where(self.value > 2.0 * self.error, spread, np.inf)
            error = np.where(self.error > 0.0, spread, 0.0) + 4.0 * UNIT * value
        return Ball(value, (error + 8.0 * TINY) * _GROW)

    def rsqrt(self) -> Ball:
        """1/√r."""
        return self.sqrt().reciprocal()

    def square(self) -> Ball:
        """r²."""
        return self * self

    def maximum(self, other: Ball) -> Ball:
        """The larger of two, entrywise."""
        return Ball(np.maximum(self.value, other.value), np.maximum(self.error, other.error))

    def norm_of_error(self) -> float:
        """A bound of the l2 (for a matrix: Frobenius, hence spectral) norm of the error."""
        return norm_bound(self.error)
