"""Products with sparse matrices, by windows or not, are those with the dense one."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from keras_curv.network import products
from keras_curv.network.products import sparse_product


def _padded_convolution(rng, side=7, size=3, channels=2, filters=9):
    """`(side² · channels, side² · filters)`; the places at its ends read less than the others."""
    weights = rng.standard_normal((size, size, channels, filters))
    matrix = np.zeros((side, side, channels, side, side, filters))
    for i, j, a, b in np.ndindex(side, side, size, size):
        u, v = i + a - 1, j + b - 1
        if 0 <= u < side and 0 <= v < side:
            matrix[u, v, :, i, j] = weights[a, b]
    return matrix.reshape(side * side * channels, -1)


def _blocks(rng, sizes):
    return scipy.sparse.block_diag([rng.standard_normal(size) for size in sizes]).toarray()


MATRICES = {
    "convolution": _padded_convolution,
    "blocks of several shapes": lambda rng: _blocks(rng, [(3, 20), (5, 9), (5, 9), (1, 8)]),
    "equal columns beside empty ones": lambda rng: np.pad(_blocks(rng, [(4, 30)] * 2), (0, 16)),
    "columns alone": lambda rng: np.diag(rng.standard_normal(12)),
    "more kinds than are kept apart": lambda rng: _blocks(rng, [(2, 8)] * 70),
    "nothing": lambda rng: np.zeros((3, 8)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float64") for name in MATRICES), ("convolution", "float32")]
)
def test_they_are_those_of_the_dense_matrix(name, dtype, rng):
    matrix = MATRICES[name](rng)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    product = sparse_product(scipy.sparse.csr_array(matrix), tf.as_dtype(dtype))
    for call, other in ((product.forward, matrix), (product.backward, matrix.T)):
        for shape in ((5,), (2, 3), (0,)):
            array = rng.standard_normal((*shape, other.shape[0])).astype(dtype)
            found = tf.function(call, autograph=False)(tf.constant(array)).numpy()
            assert found.dtype == dtype
            np.testing.assert_allclose(found, array @ other, rtol=0, atol=tolerance * 30)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("convolution", True), ("columns alone", False), ("more kinds than are kept apart", False)],
)
def test_who_goes_by_windows(name, expected, rng):
    """Where columns have rows in common, and only there."""
    product = sparse_product(scipy.sparse.csr_array(MATRICES[name](rng)), tf.float64)
    assert isinstance(product.forward, products.Windows) == expected


@pytest.mark.parametrize("rounded", ["neither", "both", "the second"])
def test_factors_that_lose_digits_are_noticed(rounded, monkeypatch):
    """As where a setting of oneDNN, or a device, has them rounded to bfloat16 first."""
    matmul = tf.matmul

    def with_parts(a, b, **options):
        first = tf.bfloat16 if rounded == "both" else tf.float32
        second = tf.float32 if rounded == "neither" else tf.bfloat16
        parts = (tf.cast(tf.cast(x, d), tf.float32) for x, d in ((a, first), (b, second)))
        return matmul(*parts, **options)

    monkeypatch.setattr(tf, "matmul", with_parts)
    assert products.float32_keeps_digits(tf.constant([1, 2])) == (rounded == "neither")
