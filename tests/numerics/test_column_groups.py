"""Eigenvalue bounds of large sparse matrices, against dense ones."""

import numpy as np
import pytest
import scipy.sparse

from keras_curv.numerics.column_groups import ColumnGroups
from keras_curv.numerics.spectral import largest_eigenvalue_bound


def _convolution(side: int, size: int, filters: int, seed: int) -> scipy.sparse.csr_array:
    """The matrix of a convolution of one channel, filters last, without padding."""
    weights = np.random.default_rng(seed).standard_normal((size, size, filters))
    places = side - size + 1
    matrix = np.zeros((side, side, places, places, filters))
    for i in range(places):
        for j in range(places):
            matrix[i : i + size, j : j + size, i, j] = weights
    return scipy.sparse.csr_array(matrix.reshape(side * side, -1))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_of_a_convolution_it_is_the_bound_of_the_dense_matrix(seed, pooled):
    """Of 100 places; pooled, 25 of them at a time have one diagonal, and share a product."""
    kernel = _convolution(12, 3, 5, seed)
    diagonal = np.random.default_rng(seed).standard_normal((2, 5, 2, 5, 5))
    diagonal = diagonal[:, :1, :, :1] if pooled else diagonal
    diagonal = np.maximum(np.broadcast_to(diagonal, (2, 5, 2, 5, 5)).reshape(-1), 0.0)
    dense = kernel.toarray()
    exact = np.linalg.eigvalsh(dense @ (diagonal[:, None] * dense.T))[-1]
    bound = ColumnGroups(kernel).largest_eigenvalue_bound(diagonal)
    assert exact * (1.0 - 1e-12) <= bound <= exact * (1.0 + 1e-8)
    np.testing.assert_allclose(bound, largest_eigenvalue_bound(dense, diagonal), rtol=1e-8)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_columns_of_any_pattern_are_covered(density):
    kernel = scipy.sparse.random_array(
        (70, 200), density=density, rng=np.random.default_rng(1), format="csr"
    )
    diagonal = np.random.default_rng(2).uniform(size=200)
    dense = kernel.toarray()
    exact = np.linalg.eigvalsh(dense @ (diagonal[:, None] * dense.T))[-1]
    bound = ColumnGroups(kernel).largest_eigenvalue_bound(diagonal)
    assert exact - 1e-12 <= bound <= exact * (1.0 + 1e-8) + 1e-100


def test_other_weights_are_another_product():
    blocks = [np.eye(3), 2.0 * np.eye(3), np.ones((2, 3)), np.ones((3, 2))]
    kernel = scipy.sparse.csr_array(scipy.sparse.block_diag(blocks))
    bound = ColumnGroups(kernel).largest_eigenvalue_bound(np.ones(kernel.shape[1]))
    assert bound == pytest.approx(6.0, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-145, 1e-80, 1.0, 1e80, 1e150])
def test_scales_with_the_square_of_the_weights(scale):
    kernel, diagonal = _convolution(6, 3, 2, 0), np.linspace(0.0, 1.0, 32)
    unit = ColumnGroups(kernel).largest_eigenvalue_bound(diagonal)
    bound = ColumnGroups(kernel * scale).largest_eigenvalue_bound(diagonal)
    np.testing.assert_allclose(bound / scale / scale, unit, rtol=1e-9)


def test_what_overflows_is_infinite():
    groups = ColumnGroups(_convolution(6, 3, 2, 0) * 1e160)
    assert groups.largest_eigenvalue_bound(np.ones(32)) == np.inf
