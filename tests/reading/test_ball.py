"""Every operation on balls encloses the exact result, for every choice of exact operands."""

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.sparse

from keras_curv.lowering import sparse_error_ball
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.sparse_error_ball import SparseBall, as_thin

mpmath.mp.dps = 60


def _members(ball):
    """Per entry: the two ends and the centre, as exact rationals."""
    return [
        [Fraction(float(v)) + k * Fraction(float(e)) for k in (-1, 0, 1)]
        for v, e in zip(ball.value.ravel(), ball.error.ravel(), strict=True)
    ]


def _encloses(ball, index, exact):
    value, error = float(ball.value.ravel()[index]), float(ball.error.ravel()[index])
    if not np.isfinite(value) or not np.isfinite(error):
        return not error <= 1e308  # claims nothing, and says so: an error of inf or NaN
    return abs(Fraction(value) - exact) <= Fraction(error)


def _assert_pairs_enclosed(operation, a, b):
    with np.errstate(all="ignore"):
        result = operation(a, b)
    for index, (left, right) in enumerate(zip(_members(a), _members(b), strict=True)):
        for x, y in itertools.product(left, right):
            if operation is _divide and y == 0:
                continue
            assert _encloses(result, index, operation(x, y)), (a, b, x, y)


def _divide(a, b):
    return a / b


OPERATIONS = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, _divide]


def _random_ball(rng, magnitude, count=40):
    value = rng.standard_normal(count) * 10.0 ** rng.uniform(-magnitude, magnitude, count)
    relative = 10.0 ** rng.uniform(-18, -1, count) * (rng.random(count) < 0.7)
    return Ball(value, np.abs(value) * relative)


@pytest.mark.parametrize("operation", OPERATIONS, ids=["+", "-", "*", "/"])
@pytest.mark.parametrize("magnitude", [0, 8, 70])
def test_random_operands(operation, magnitude, rng):
    _assert_pairs_enclosed(operation, _random_ball(rng, magnitude), _random_ball(rng, magnitude))


@pytest.mark.parametrize("operation", OPERATIONS, ids=["+", "-", "*", "/"])
@pytest.mark.parametrize("error", [0.0, 1e-9])
def test_tiny_and_huge_operands(operation, error):
    sizes = [0.0, 5e-324, 1e-310, 2.3e-308, 1e-200, 1e-155, 0.1, 3.0, 1e155, 1e200, 1.7e308]
    left, right = zip(*itertools.product(sizes, sizes), strict=True)
    left, right = np.array(left), -np.array(right)
    _assert_pairs_enclosed(operation, Ball(left, left * error), Ball(right, -right * error))


def test_cancellation(rng):
    value = rng.standard_normal(200)
    close = np.nextafter(value, np.inf)
    exact = Ball(value, np.zeros(200))
    _assert_pairs_enclosed(lambda a, b: a - b, exact, Ball(close, np.zeros(200)))
    _assert_pairs_enclosed(lambda a, b: a + b, exact, Ball.exact(rng.standard_normal(200) * 1e-9))
    spread = Ball(close, np.full(200, 1e-17))
    _assert_pairs_enclosed(lambda a, b: a - b, exact, spread)


def test_an_exact_sum_has_no_error_and_an_inexact_one_has():
    assert (Ball.exact([0.5]) + Ball.exact([0.25])).error == 0.0
    assert 0.0 < (Ball.exact([0.1]) + Ball.exact([0.2])).error <= 2.0**-54


def test_multiplying_by_exactly_one_changes_nothing():
    ball = Ball(np.array([[0.1, 0.2]]), np.array([[1e-9, 0.0]]))
    result = ball * Ball.exact(np.ones((3, 1)))
    assert np.array_equal(result.value, np.tile(ball.value, (3, 1)))
    assert np.array_equal(result.error, np.tile(ball.error, (3, 1)))
    inexact_one = Ball(np.array([[1.0]]), np.array([[1e-3]]))
    assert np.all((ball * inexact_one).error >= 1e-4)


@pytest.mark.parametrize("magnitude", [0, 6, 60])
@pytest.mark.parametrize("left_error", [0.0, 1e-7])
@pytest.mark.parametrize("right_error", [0.0, 1e-7])
def test_matrix_product(magnitude, left_error, right_error, rng):
    def operand(shape, error):
        value = rng.standard_normal(shape) * 10.0 ** rng.uniform(-magnitude, magnitude, shape)
        return Ball(value, np.abs(value) * error)

    a, b = operand((3, 9), left_error), operand((9, 4), right_error)
    result = a @ b
    members = {name: np.array(_members(ball), object) for name, ball in (("a", a), ("b", b))}
    for _ in range(8):
        pick = rng.integers(0, 3, 27), rng.integers(0, 3, 36)
        left = members["a"][np.arange(27), pick[0]].reshape(3, 9)
        right = members["b"][np.arange(36), pick[1]].reshape(9, 4)
        exact = (left @ right).ravel()
        assert all(_encloses(result, index, exact[index]) for index in range(12))


def test_matrix_product_attains_the_error_of_its_operands():
    a = Ball(np.array([[1.0, 2.0]]), np.array([[1e-3, 1e-3]]))
    b = Ball(np.array([[3.0], [5.0]]), np.array([[1e-3], [1e-3]]))
    # (1+e)(3+e) + (2+e)(5+e) − 13 = 11e + 2e², and nothing beyond rounding on top.
    assert (a @ b).error[0, 0] == pytest.approx(11e-3 + 2e-6, rel=1e-10)


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
@pytest.mark.parametrize("magnitude", [0, 40, 150])
@pytest.mark.parametrize("relative", [0.0, 1e-12, 0.1, 0.6])
def test_roots(name, magnitude, relative, rng):
    value = np.abs(rng.standard_normal(30)) * 10.0 ** rng.uniform(-magnitude, magnitude, 30)
    ball = Ball(value, value * relative)
    with np.errstate(all="ignore"):
        result = getattr(ball, name)()
    for index, members in enumerate(_members(ball)):
        for member in members:
            root = mpmath.sqrt(mpmath.mpf(member.numerator) / member.denominator)
            exact = root if name == "sqrt" else 1 / root
            value, error = float(result.value[index]), float(result.error[index])
            if np.isfinite(value) and np.isfinite(error):
                assert abs(mpmath.mpf(value) - exact) <= mpmath.mpf(error)


def test_roots_and_reciprocals_of_ordinary_balls_are_tight():
    ball = Ball(np.array([4.0]), np.array([1e-6]))
    # Derivatives at the centre: 1/4, 1/16 for both others; the code's slack is 1 to 3 %.
    assert ball.sqrt().error[0] == pytest.approx(0.25e-6, rel=0.05)
    assert ball.rsqrt().error[0] == pytest.approx(1e-6 / 16, rel=0.05)
    assert ball.reciprocal().error[0] == pytest.approx(1e-6 / 16, rel=0.05)


def test_a_ball_around_zero_has_no_reciprocal_or_root():
    ball = Ball(np.array([1e-3]), np.array([1e-2]))
    with np.errstate(all="ignore"):
        assert not np.isfinite(ball.reciprocal().error[0])
        assert not np.isfinite(ball.rsqrt().error[0])
        assert not np.isfinite(ball.sqrt().error[0])


def test_maximum_and_square():
    a = Ball(np.array([1.0, 2.0, -1.0]), np.array([0.3, 0.1, 0.0]))
    b = Ball(np.array([1.1, 0.0, -1.0]), np.array([0.1, 0.5, 0.2]))
    _assert_pairs_enclosed(lambda x, y: x.maximum(y) if isinstance(x, Ball) else max(x, y), a, b)
    _assert_pairs_enclosed(lambda x, y: x.square() if isinstance(x, Ball) else x * x, a, a)


def test_norm_of_error_is_from_above(rng):
    error = 10.0 ** rng.uniform(-250, -150, (5, 4))
    exact = mpmath.sqrt(sum(mpmath.mpf(float(e)) ** 2 for e in error.ravel()))
    norm = Ball(np.zeros((5, 4)), error).norm_of_error()
    assert exact <= mpmath.mpf(norm) <= exact * (1 + mpmath.mpf(10) ** -12)
    assert Ball.exact(np.ones(3)).norm_of_error() == 0.0
    assert not np.isfinite(Ball(np.zeros(2), np.array([1.0, np.nan])).norm_of_error())


def test_a_product_by_blocks_of_rows_is_that_of_all_rows(monkeypatch, rng):
    places = scipy.sparse.random_array((40, 30), density=0.4, rng=rng, format="csr")
    size = rng.uniform(0.0, 1.0, (3, places.nnz))
    entries = Ball(size[0] - 0.5, 1e-12 * size[1], 1e-6 * size[2])
    matrix = SparseBall.at(places, entries)
    vector = Ball(rng.standard_normal(40), rng.uniform(0.0, 1e-12, 40), rng.uniform(0.0, 1e-6, 40))
    whole = vector @ matrix
    monkeypatch.setattr(sparse_error_ball, "AT_ONCE", 50)
    assert len(list(matrix.row_blocks())) > 3
    parts = vector @ matrix
    np.testing.assert_array_equal(parts.value, whole.value)
    np.testing.assert_allclose(parts.error, whole.error, rtol=1e-12)
    np.testing.assert_allclose(parts.served, whole.served, rtol=1e-12)
    rows = [placed(part.value).toarray() for _, part, placed in matrix.row_blocks()]
    np.testing.assert_array_equal(np.concatenate(rows), matrix.dense().value)


@pytest.mark.parametrize("part", ["value", "error", "served"])
def test_only_what_is_zero_for_certain_is_not_stored(part):
    """An entry of value 0 may differ from 0, in real arithmetic or as it is served."""
    known = {name: np.zeros((2, 3)) for name in ("value", "error", "served")}
    known[part][1, 2] = 0.5
    ball = Ball(**known)
    everywhere = scipy.sparse.csr_array(np.ones((2, 3)))
    for sparse in (SparseBall.of(ball), SparseBall.at(everywhere, ball.reshape((-1,)))):
        assert sparse.places.nnz == 1
        for name, array in known.items():
            np.testing.assert_array_equal(getattr(sparse.dense(), name), array)
    np.testing.assert_array_equal(ball.nonzero_rows(), [False, True])
    np.testing.assert_array_equal(SparseBall.of(ball).nonzero_rows(), [False, True])


@pytest.mark.parametrize("per_column", [2, 200])
def test_a_factor_with_many_zeros_is_sparse_in_a_product(per_column, rng):
    """As after max pooling: what is 0 stays so, and errors are no larger than in a dense one."""
    places = rng.permuted(np.tile(np.arange(200), (60, 1)), axis=1).T
    one = np.where(places < per_column, 0.5, 0.0)
    other = SparseBall.exact(scipy.sparse.random_array((60, 50), density=0.1, rng=rng))
    dense, factor = Ball.exact(one) @ other, as_thin(Ball.exact(one), other)
    assert factor.is_sparse == (per_column == 2)
    found = (factor @ other).dense()
    np.testing.assert_allclose(found.value, dense.value, rtol=1e-15)
    assert np.all(found.error <= dense.error) and np.all(found.served <= 1.001 * dense.served)
    nothing = (one != 0.0).astype(float) @ (other.value.toarray() != 0.0) == 0.0
    assert nothing.any() == factor.is_sparse and not found.error[nothing].any()
