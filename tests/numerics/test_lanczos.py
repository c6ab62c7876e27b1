"""Lanczos finds the largest eigenvalue, and that of one matrix whatever others go with it."""

import numpy as np

from keras_curv.numerics.lanczos import largest_eigenpairs


def _matrices(rng, count, side):
    a = rng.standard_normal((count, side, side))
    return a + a.transpose(0, 2, 1)


def _times(matrices):
    return lambda v: (v[:, None, :] @ matrices)[:, 0]


def test_it_finds_the_largest_eigenvalue_and_its_vector(rng):
    matrices = _matrices(rng, 5, 8)
    value, vector = largest_eigenpairs(_times(matrices), (5, 8))
    np.testing.assert_allclose(value, np.linalg.eigvalsh(matrices)[:, -1])
    np.testing.assert_allclose(_times(matrices)(vector), value[:, None] * vector, atol=1e-6)


def test_few_steps_stay_below_and_each_matrix_has_its_own_answer(rng):
    matrices = _matrices(rng, 6, 40)
    value, _ = largest_eigenpairs(_times(matrices), (6, 40), steps=5)
    assert np.all(value < np.linalg.eigvalsh(matrices)[:, -1])
    for row in range(6):
        alone, _ = largest_eigenpairs(_times(matrices[[row]]), (1, 40), steps=5)
        np.testing.assert_allclose(alone, value[[row]], rtol=1e-12)


def test_a_good_start_needs_fewer_steps(rng):
    matrices = _matrices(rng, 4, 60)
    exact, vectors = np.linalg.eigh(matrices)
    near = vectors[:, :, -1] + 0.01 * rng.standard_normal((4, 60))
    warm, _ = largest_eigenpairs(_times(matrices), (4, 60), steps=4, start=near)
    cold, _ = largest_eigenpairs(_times(matrices), (4, 60), steps=4)
    assert np.all(warm <= exact[:, -1] * (1.0 + 1e-12))
    assert np.all(exact[:, -1] - warm < 0.1 * (exact[:, -1] - cold))
