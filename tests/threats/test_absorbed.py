"""First maps that absorb a threat, against exact fractions, with entries near underflow."""

import fractions
import math

import numpy as np
import pytest

from keras_curv.network.affine import Affine
from keras_curv.numerics.rounding import TINY
from keras_curv.threats import absorbed

EXPONENTS = [(-1, 1), (-520, -505), (-1021, -1000), (-1074, -1022)]


def numbers(rng, shape, exponents):
    """Numbers of both signs, their exponents anywhere between two."""
    return np.ldexp(rng.uniform(-1.0, 1.0, shape), rng.integers(*exponents, shape, endpoint=True))


def flushed(array):
    """What a processor may read that takes for 0 whatever is not normal."""
    return np.where(np.abs(array) < TINY, 0.0, array)


def exact(array):
    return np.vectorize(fractions.Fraction, otypes=[object])(array)


def within(one, real, bound):
    """Whether the Frobenius norm of the difference is at most that."""
    square = sum((fractions.Fraction(a) - b) ** 2 for a, b in zip(one.flat, real.flat, strict=True))
    return math.isinf(bound) or square <= fractions.Fraction(bound) ** 2


@pytest.mark.parametrize("small", EXPONENTS)
@pytest.mark.parametrize("large", [(-1, 1), (200, 250), (450, 500)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 9), (2, 8, 16)])
def test_what_underflows_in_a_subspace_is_charged(small, large, shape, rng):
    dim, count, units = shape
    for mirrored in (False, True):
        basis = numbers(rng, (dim, count), large if mirrored else small)
        kernel = numbers(rng, (dim, units), small if mirrored else large)
        moved = absorbed.subspace(basis, Affine(kernel, np.zeros(units)), dim)
        charged = moved.kernel_error
        real = exact(basis).T @ exact(kernel)
        assert within(moved.kernel[:count], real, charged)
        # What the arithmetic that is assumed may make of it, if not this processor.
        product = flushed(flushed(basis).T @ flushed(kernel))
        assert within(product, real, charged)
        one_by_one = sum(
            flushed(flushed(basis[i])[:, None] * flushed(kernel[i])) for i in range(dim)
        )
        assert within(flushed(one_by_one), real, charged)


def test_all_entries_that_underflow_count():
    """Each of q N sums of d products is off by nearly d τ; together by √(qN) times that."""
    dim, count, units = 2, 40, 60
    basis, kernel = np.full((dim, count), 2.0**-512), np.full((dim, units), 0.99 * 2.0**-510)
    moved = absorbed.subspace(basis, Affine(kernel, np.zeros(units)), dim)
    lost = dim * 0.99 * math.sqrt(count * units)  # in units of 2⁻¹⁰²², if all is flushed
    assert moved.kernel_error / TINY >= lost


@pytest.mark.parametrize("factors", [(-1, 1), (-1000, -900), (900, 1000)])
@pytest.mark.parametrize("small", EXPONENTS)
def test_what_underflows_in_a_scaled_map_is_charged(factors, small, rng):
    for _ in range(5):
        factor = np.abs(numbers(rng, 6, factors)) + 2.0 ** factors[0]
        kernel = numbers(rng, (6, 7), small)
        moved = absorbed.scaled(Affine(kernel, np.zeros(7)), factor)
        charged, real = moved.kernel_error, exact(factor)[:, None] * exact(kernel)
        assert within(moved.kernel, real, charged)
        product = flushed(flushed(factor)[:, None] * flushed(kernel))
        assert within(product, real, charged)
