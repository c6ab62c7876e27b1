"""Norms of W v, proved from above by products in float32."""

from fractions import Fraction

import numpy as np
import pytest

from keras_curv.numerics import image_norms
from keras_curv.numerics.image_norms import ImageNorms

SHAPES = [(1, 1), (3, 1), (1, 3), (40, 17), (17, 40), (90, 200), (30, 600)]


def exact_square(kernel, row):
    """‖W v‖² of the stored numbers, in rational arithmetic."""
    v = [Fraction(entry) for entry in row]
    rows = ([Fraction(entry) for entry in line] for line in kernel)
    return sum(sum(a * b for a, b in zip(line, v, strict=True)) ** 2 for line in rows)


def bounds_of(kernel, rows):
    """Of rows `(m, N)`; `(m,)`."""
    size = np.linalg.norm(rows, axis=-1) * (1.0 + 1e-12)
    return ImageNorms(kernel).bounds(rows[None], size[None])[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("power", [0, 60, -60, 400, -400])
def test_bounds_are_above_the_norms_and_near(shape, power, rng):
    kernel, rows = rng.standard_normal(shape), rng.standard_normal((5, shape[1]))
    rows[0] = 0.0
    plain = bounds_of(kernel, rows)
    norm = np.linalg.norm(rows @ kernel.T, axis=1)
    error = 2.0**-24 * np.linalg.norm(kernel) * np.linalg.norm(rows, axis=1)
    assert np.all(plain >= norm * (1.0 - 1e-14))
    assert np.all(plain <= norm + 400.0 * error + 1e-15)  # of the roundings of float32
    # At another scale of W or of v it is the same.
    np.testing.assert_allclose(bounds_of(kernel * 2.0**power, rows), plain * 2.0**power, rtol=1e-14)
    scaled = bounds_of(kernel, rows * 2.0**power)
    np.testing.assert_allclose(scaled[1:], plain[1:] * 2.0**power, rtol=1e-6)


@pytest.mark.parametrize("kind", ["cancels", "one in 2^30", "rank one", "even", "0"])
def test_bounds_are_above_the_exact_norms(kind, rng):
    """Where float32 sees little of W v, or of W."""
    kernel, rows = rng.standard_normal((12, 9)), rng.standard_normal((6, 9))
    if kind == "cancels":
        kernel[:, 1] = kernel[:, 0] * (1.0 + 2.0**-27)
        rows[:, 2:], rows[:, 1] = 0.0, -rows[:, 0]
    elif kind == "one in 2^30":
        kernel *= np.where(np.arange(9) == 4, 2.0**30, 1.0)
        rows *= np.where(np.arange(9) == 4, 2.0**-50, 1.0)
    elif kind == "rank one":
        kernel = np.multiply.outer(kernel[:, 0], kernel[0])
        rows -= np.multiply.outer(rows @ kernel[0], kernel[0]) / np.sum(kernel[0] ** 2)
    elif kind == "even":  # rounds to even, always down
        kernel, rows = np.full((12, 9), 1.0 + 2.0**-24), np.full((6, 9), 1.0 + 2.0**-24)
    else:
        kernel = np.zeros((12, 9))
    for row, bound in zip(rows, bounds_of(kernel, rows), strict=True):
        assert Fraction(bound) ** 2 >= exact_square(kernel, row)


def test_what_is_charged_is_needed():
    """W and v of numbers that float32 rounds down, all of them."""
    kernel = rows = np.full((1, 4096), 1.0 + 2.0**-24 - 2.0**-40)
    norm = float(kernel[0] @ rows[0])
    assert bounds_of(kernel, rows) >= norm
    assert float(np.float32(kernel[0]) @ np.float32(rows[0])) < norm * (1.0 - 1e-9)


def test_long_sums_are_of_parts(rng, monkeypatch):
    """A sum over thousands of entries costs hardly more than one over hundreds."""
    kernel, rows = rng.standard_normal((20, 5000)), rng.standard_normal((3, 5000))
    norms = bounds_of(kernel, rows)
    monkeypatch.setattr(image_norms, "TERMS", 5000)
    whole = bounds_of(kernel, rows)
    norm = np.linalg.norm(rows @ kernel.T, axis=1)
    assert np.all(norms - norm <= 0.1 * (whole - norm))


@pytest.mark.parametrize("entry", [1e300, np.inf, np.nan])
def test_what_overflows_is_not_bounded(entry):
    """Never a finite number that is too small."""
    rows = np.array([[[entry, 1.0], [1.0, 1.0]]])
    size = np.array([[entry, 2.0]])
    with np.errstate(all="ignore"):
        found = ImageNorms(np.eye(2)).bounds(rows, size)
    assert not np.any(found < [[np.nan_to_num(entry, posinf=1e308), 2.0**0.5]])


class InHalf(np.ndarray):
    """A matrix that products round to bfloat16 first."""

    def __matmul__(self, other):
        return _in_half(self) @ np.asarray(other)

    def __rmatmul__(self, other):
        return np.asarray(other) @ _in_half(self)


def _in_half(matrix):
    bits = np.ascontiguousarray(matrix).view(np.ndarray).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def test_products_that_round_their_factors_prove_nothing(rng, monkeypatch):
    matrix = np.triu(rng.standard_normal((6, 6))).astype(np.float32)
    assert image_norms.keeps_digits(matrix)
    assert not image_norms.keeps_digits(matrix.view(InHalf))
    monkeypatch.setattr(image_norms, "keeps_digits", lambda matrix: False)
    assert np.all(np.isinf(bounds_of(np.eye(3), np.ones((2, 3)))))
