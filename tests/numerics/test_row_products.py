"""Products of many rows, of which columns are left out."""

import numpy as np
import pytest

from keras_curv.numerics import rows, spectral


def _case(rng):
    used, wanted = rng.random((4, 9)) < 0.4, rng.random((4, 7)) < 0.5
    used[0], wanted[1] = False, False
    return rng.standard_normal((4, 3, 9)) * used[:, None], used, wanted


def test_a_product_without_columns_that_do_not_count(rng):
    vectors, used, wanted = _case(rng)
    matrix = rng.standard_normal((9, 7))
    unread = np.where(used[:, None], vectors, np.nan)
    found, whole = rows.times(unread, matrix, used, wanted), vectors @ matrix
    np.testing.assert_allclose(found, whole * wanted[:, None], rtol=1e-13, atol=1e-15)
    assert not np.any(found.swapaxes(1, 2)[~wanted])
    np.testing.assert_allclose(rows.times(unread, matrix, used), whole, rtol=1e-13, atol=1e-15)


def test_norms_of_rows_without_the_columns_that_are_0(rng):
    vectors, used, _ = _case(rng)
    kernel = rng.standard_normal((5, 9))
    gram = spectral.Gram(kernel)
    found, whole = gram.norms(vectors, used), gram.norms(vectors)
    exact = np.linalg.norm(vectors @ kernel.T, axis=2)
    assert np.all(found >= exact) and found == pytest.approx(whole, rel=1e-9, abs=1e-6)
