"""Bounds are never below the truth, for any matrix and any guess, and close to it for most."""

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg

from keras_curv.errors import InputError
from keras_curv.numerics import spectral

mpmath.mp.dps = 60


def _exact_largest(kernel, diagonal):
    """λ_max(W diag(d) Wᵀ) of the stored numbers, less what 60 digits leave uncertain."""
    w = mpmath.matrix(kernel.tolist())
    d = mpmath.diag([mpmath.mpf(float(entry)) for entry in diagonal])
    matrix = w * d * w.T
    return max(mpmath.eigsy(matrix, eigvals_only=True)) - mpmath.norm(matrix) / 10**45


def _assert_bound(bound, exact):
    assert not math.isnan(bound)
    assert bound == math.inf or mpmath.mpf(bound) >= exact


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 7), (7, 1), (3, 5), (5, 3), (20, 90), (90, 20), (70, 70), (130, 80)]
)
def test_norm_of_ordinary_matrices(shape, rng):
    for rank in {min(shape), max(1, min(shape) // 3)}:
        kernel = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
        exact = scipy.linalg.svdvals(kernel)[0]
        bound = spectral.spectral_norm_bound(kernel)
        # LAPACK is right to about 1e-15 · side; the bound is further up than that.
        assert exact * (1.0 + 1e-15) <= bound <= exact * (1.0 + 1e-9)
        for seed in range(3):
            estimate = spectral.spectral_norm_estimate(kernel, seed=seed)
            assert 0.0 < estimate <= min(bound, exact * (1.0 + 1e-12))
        converged = spectral.spectral_norm_estimate(kernel, iterations=2000)
        assert converged == pytest.approx(exact, rel=1e-3)  # close pairs converge slowly


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (9, 2), (6, 6), (30, 80), (80, 30), (100, 100)])
@pytest.mark.parametrize("signs", ["positive", "mixed", "mostly negative"])
def test_eigenvalues_of_ordinary_congruences(shape, signs, rng):
    kernel = rng.standard_normal(shape)
    diagonal = rng.standard_normal(shape[1])
    if signs == "positive":
        diagonal = np.abs(diagonal)
    elif signs == "mostly negative":
        diagonal -= 2.0
    values = scipy.linalg.eigvalsh(kernel * diagonal @ kernel.T)
    smallest, largest = values[0], values[-1]
    size = np.abs(values).max()
    above = spectral.largest_eigenvalue_bound(kernel, diagonal)
    below = spectral.smallest_eigenvalue_bound(kernel, diagonal)
    # LAPACK's own error is 1e-15 · side of the largest eigenvalue in magnitude.
    noise = 1e-15 * max(shape) * size
    assert largest - noise <= above <= max(largest, 0.0) + 1e-9 * size
    assert min(smallest, 0.0) - 1e-9 * size <= below <= smallest + noise
    if signs == "positive":
        estimate = spectral.spectral_norm_estimate(kernel * np.sqrt(diagonal)) ** 2
        assert estimate <= min(above, largest * (1.0 + 1e-12))


@pytest.mark.parametrize("seed", range(40))
def test_small_matrices_to_sixty_digits(seed):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 6, 2)
    kernel = rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 9, shape)
    diagonal = rng.standard_normal(shape[1]) * 10.0 ** rng.uniform(-6, 6, shape[1])
    kernel[:, rng.random(shape[1]) < 0.2] = 0.0
    exact = _exact_largest(kernel, diagonal)
    _assert_bound(spectral.largest_eigenvalue_bound(kernel, diagonal), exact)
    least = -_exact_largest(kernel, -diagonal)
    assert spectral.smallest_eigenvalue_bound(kernel, diagonal) <= least
    norm = mpmath.sqrt(_exact_largest(kernel, np.ones(shape[1])))
    _assert_bound(spectral.spectral_norm_bound(kernel), norm)


@pytest.mark.parametrize("seed", range(40))
def test_cancelling_columns(seed):
    """Columns whose contributions cancel: what is left is rounding of the products alone."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-3, 3)
    column = rng.standard_normal((2, 3))
    kernel = np.concatenate([column, column], axis=1)
    weight = size * rng.random(3)
    diagonal = np.concatenate([weight, -np.nextafter(weight, rng.choice([-1.0, 1.0]) * np.inf)])
    for d in (diagonal, -diagonal):
        exact = _exact_largest(kernel, d)
        _assert_bound(spectral.largest_eigenvalue_bound(kernel, d), exact)


@pytest.mark.parametrize("power", [-320, -200, -155, 100, 150, 160, 250])
def test_extreme_scales(power, rng):
    ordinary = rng.standard_normal((4, 3))
    kernel = ordinary * 10.0**power
    exact = mpmath.sqrt(_exact_largest(kernel, np.ones(3)))
    bound = spectral.spectral_norm_bound(kernel)
    _assert_bound(bound, exact)
    if -150 <= power <= 150:  # beyond, ‖W‖² is not a normal number
        assert bound <= exact * (1 + mpmath.mpf(10) ** -9)
    diagonal = rng.standard_normal(3) * 10.0 ** min(-power, 300)
    for d in (diagonal, -diagonal):
        _assert_bound(spectral.largest_eigenvalue_bound(kernel, d), _exact_largest(kernel, d))


def test_mixed_magnitudes(rng):
    for low, high in [(-300, 150), (-150, 0), (-20, 20), (-308, 140)]:
        kernel = rng.standard_normal((4, 6)) * 10.0 ** rng.uniform(low, high, (4, 6))
        diagonal = rng.standard_normal(6) * 10.0 ** rng.uniform(-20, 0, 6)
        for d in (diagonal, -diagonal, np.abs(diagonal)):
            exact = _exact_largest(kernel, d)
            _assert_bound(spectral.largest_eigenvalue_bound(kernel, d), exact)


@pytest.mark.parametrize("side", [10, 90])
def test_clustered_eigenvalues(side, rng):
    orthogonal = np.linalg.qr(rng.standard_normal((side, side)))[0]
    for spread in (0.0, 1e-15, 1e-12, 1e-8):
        kernel = orthogonal * (1.0 + spread * np.arange(side))
        exact = scipy.linalg.svdvals(kernel)[0]
        bound = spectral.spectral_norm_bound(kernel)
        assert exact * (1.0 - 1e-14) <= bound <= exact * (1.0 + 1e-9)  # 1e-14: LAPACK's error


def test_definite_matrices_with_diagonals_of_both_signs():
    """The documented values: `max(0, λ_max)` and `min(0, λ_min)`; here λ = 1 − 2² = −3."""
    kernel = np.array([[1.0, 2.0]])
    bound = spectral.largest_eigenvalue_bound(kernel, np.array([1.0, -1.0]))
    assert 0.0 <= bound <= 1e-9
    bound = spectral.smallest_eigenvalue_bound(kernel, np.array([-1.0, 1.0]))
    assert -1e-9 <= bound <= 0.0


def test_trivial_matrices():
    assert spectral.spectral_norm_bound(np.zeros((3, 5))) == 0.0
    assert spectral.spectral_norm_estimate(np.zeros((3, 5))) == 0.0
    assert spectral.largest_eigenvalue_bound(np.ones((3, 2)), np.zeros(2)) == 0.0
    assert spectral.largest_eigenvalue_bound(np.ones((3, 2)), -np.ones(2)) == 0.0
    assert spectral.smallest_eigenvalue_bound(np.ones((3, 2)), np.ones(2)) == 0.0
    kernel = np.zeros((3, 4))
    kernel[:, 2] = [3.0, 0.0, 4.0]
    assert 5.0 <= spectral.spectral_norm_bound(kernel) <= 5.0 * (1.0 + 1e-9)
    assert spectral.largest_eigenvalue_bound(kernel, np.array([9.0, 9.0, -1.0, 9.0])) == 0.0
    assert 2.0 <= spectral.spectral_norm_bound(np.array([[-2.0]])) <= 2.0 * (1.0 + 1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_refused(bad):
    kernel, diagonal = np.ones((2, 2)), np.ones(2)
    kernel[1, 0] = bad
    with pytest.raises(InputError, match="finite"):
        spectral.spectral_norm_bound(kernel)
    with pytest.raises(InputError, match="finite"):
        spectral.largest_eigenvalue_bound(np.ones((2, 2)), np.array([1.0, bad]))
    with pytest.raises(InputError, match="finite"):
        spectral.smallest_eigenvalue_bound(kernel, diagonal)


def test_a_top_eigenvector_that_lanczos_cannot_see(rng):
    side = 80
    start = np.random.default_rng(0).standard_normal((side, 1))  # the code's starting vector
    basis = np.linalg.qr(np.concatenate([start, rng.standard_normal((side, side - 1))], 1))[0]
    values = np.concatenate([[1.0, 5.0], np.linspace(0.1, 3.0, side - 2)])
    kernel = basis * np.sqrt(values)
    bound = spectral.largest_eigenvalue_bound(kernel, np.ones(side))
    assert 5.0 * (1.0 - 1e-13) <= bound <= 5.0 * (1.0 + 1e-9)  # kernel itself is rounded


@pytest.mark.parametrize("shape", [(5, 8), (90, 70)])
@pytest.mark.parametrize(
    "guess",
    [
        lambda exact: 0.0,
        lambda exact: 0.5 * exact,
        lambda exact: exact * (1.0 - 1e-7),
        lambda exact: -exact,
        lambda exact: 1e300,
        lambda exact: -1e300,
        lambda exact: math.inf,
        lambda exact: -math.inf,
        lambda exact: math.nan,
    ],
)
def test_a_wrong_guess_is_harmless(monkeypatch, shape, guess, rng):
    kernel, diagonal = rng.standard_normal(shape), rng.standard_normal(shape[1])
    exact = scipy.linalg.eigvalsh(kernel * diagonal @ kernel.T)[-1]
    monkeypatch.setattr(
        spectral,
        "eigenvalue_guesses",
        lambda matrix: [guess(float(scipy.linalg.eigvalsh(matrix)[-1]))],
    )
    assert spectral.largest_eigenvalue_bound(kernel, diagonal) >= exact
    if shape[0] == 5:
        small = _exact_largest(kernel, diagonal)
        _assert_bound(spectral.largest_eigenvalue_bound(kernel, diagonal), small)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 8), (5, 8, 3), (40, 6, 6), (3, 90, 70)])
@pytest.mark.parametrize("power", [-320, -155, 0, 160])
def test_the_largest_norm_of_a_stack(shape, power, rng):
    stack = rng.standard_normal(shape) * rng.uniform(0.1, 1.0, (shape[0], 1, 1))
    exact = scipy.linalg.svdvals(stack[0])[0]
    exact = max([exact, *(scipy.linalg.svdvals(matrix)[0] for matrix in stack)])
    with np.errstate(over="ignore"):
        scaled = stack * 10.0**power
        for guess in (exact**2, 0.9 * exact**2, 2.0 * exact**2, 0.0):
            bound = spectral.largest_norm_bound(scaled, guess * 10.0 ** min(2 * power, 300))
            assert exact * 10.0**power * (1.0 + 1e-15) <= bound
            if power == 0:
                assert bound <= max(exact, math.sqrt(guess)) * (1.0 + 1e-9)


def test_cholesky_may_complete_on_an_indefinite_matrix(monkeypatch):
    """Guesses just below λ_max, where only Rump's rounding term saves the bound.

    λ_min = −10⁸ and λ_max = 1, so the factorisation cannot see 10⁻⁸ around λ_max.
    """
    rng = np.random.default_rng(3)
    side = 6
    kernel = np.linalg.qr(rng.standard_normal((side, side)))[0]
    diagonal = np.array([1.0, 0.9, -1.0, -1e4, -1e6, -1e8])
    exact = _exact_largest(kernel, diagonal)
    for shortfall in np.linspace(0.9, 1.1, 400):
        # The first slack that is tried is 1e-13 · (largest diagonal entry) · √side.
        monkeypatch.setattr(
            spectral,
            "eigenvalue_guesses",
            lambda matrix, shortfall=shortfall: [
                scipy.linalg.eigvalsh(matrix)[-1]
                - shortfall * 1e-13 * np.abs(np.diag(matrix)).max() * math.sqrt(side)
            ],
        )
        _assert_bound(spectral.largest_eigenvalue_bound(kernel, diagonal), exact)


@pytest.mark.parametrize("shape", [(1, 1), (30, 8), (8, 30), (90, 40)])
@pytest.mark.parametrize("power", [-320, -155, 0, 140])
def test_norms_of_products_with_a_matrix(shape, power, rng):
    """Rows as long as they like, and such as the matrix takes to almost nothing."""
    kernel = rng.standard_normal(shape) * 10.0**power
    kernel[:, -1] = kernel[:, 0]  # so that some row goes to 0
    rows = rng.standard_normal((2, 3, shape[1])) * 10.0 ** rng.integers(-9, 9, (2, 3, 1))
    rows[0, 0] = 0.0
    rows[0, 0, [0, -1]] = 1.0, -1.0
    with np.errstate(all="ignore"):
        bounds = spectral.Gram(kernel).norms(rows)
    for row, bound in zip(rows.reshape(6, -1), bounds.ravel(), strict=True):
        exact = mpmath.norm(mpmath.matrix(kernel.tolist()) * mpmath.matrix(row.tolist()))
        _assert_bound(bound, exact)
        size = mpmath.norm(mpmath.matrix(kernel.tolist())) * mpmath.norm(mpmath.matrix(row))
        assert bound <= exact * (1.0 + 1e-9) + 1e-6 * size + 1e-149


def test_norms_are_charged_for_cancellation():
    """Two columns that differ in the last digit: what is computed of WᵀW says that W v = 0."""
    kernel = np.array([[1.0, 1.0 + 2.0**-52]])
    row = np.array([[[1.0, -1.0]]])
    gram = spectral.Gram(kernel)
    computed = np.einsum("nmi,ij,nmj->nm", row, gram.matrix, row)
    assert computed.item() != (2.0**-53) ** 2  # scaled by a half
    assert gram.norms(row).item() >= 2.0**-52


@pytest.mark.parametrize("side", [16, 64, 256])
def test_norms_where_a_square_overflows(side):
    """Below, to which what is positive is added in vain, or above."""
    for size in 10.0 ** np.arange(150.0, 154.0, 0.1):
        row = size * np.repeat([-1.0, 1.3], side // 2)
        exact = abs(sum(map(mpmath.mpf, row))) * mpmath.sqrt(1000) / 2
        with np.errstate(all="ignore"):
            bound = spectral.Gram(np.full((1000, side), 0.5)).norms(row[None, None])
        assert np.isnan(bound.item()) or mpmath.mpf(bound.item()) >= exact


def test_norms_do_not_pay_for_columns_that_a_row_leaves_out(rng):
    kernel = rng.standard_normal((60, 12))
    row = rng.standard_normal((1, 1, 12))
    plain = spectral.Gram(kernel).norms(row).item()
    scale = np.where(np.arange(12) == 3, 1e9, 1.0)
    assert spectral.Gram(kernel * scale).norms(row / scale).item() <= plain * (1.0 + 1e-9)


def test_a_column_far_smaller_than_others_counts():
    """Smaller by more than a number's whole range: it is 0 beside them, but d may say otherwise."""
    kernel, diagonal = np.array([[1e300, 1e-30]]), np.array([0.0, 1.0])
    gram = spectral.Gram(kernel)
    assert spectral.largest_eigenvalue_bound(kernel, diagonal, gram=gram) >= 1e-60
