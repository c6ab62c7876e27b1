"""Theorem 3 of one wide convolution: as of the dense network, and never below a Hessian."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model


@pytest.fixture(scope="module")
def pair():
    """A convolution, pooling and a dense layer, read twice: as dense and as sparse matrices."""
    rng = np.random.default_rng(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(12, 3, strides=2, padding="same", activation="softplus"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    for weight in model.weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_affine, "DENSE_UP_TO", 1000)
        sparse = served_model.read(model).network
    assert sparse.affines[0].is_sparse
    return served_model.read(model).network, sparse


def test_it_is_the_bound_of_the_dense_network(pair):
    dense, sparse = map(curvature_bounds, pair)
    np.testing.assert_allclose(sparse.lower, dense.lower, rtol=1e-9)
    np.testing.assert_allclose(sparse.upper, dense.upper, rtol=1e-9)


def test_it_is_far_below_the_product_of_norms(pair):
    _, sparse = pair
    columns = sparse.affines[-1].kernel.T
    largest = np.abs(columns[:, None] - columns).max(axis=2) / 4.0
    theirs = largest * sparse.affines[0].norm ** 2
    assert np.all(-curvature_bounds(sparse).lower <= theirs)
    assert np.mean(-curvature_bounds(sparse).lower) < 0.7 * np.mean(theirs)


def test_no_hessian_leaves_the_bounds(pair):
    dense, sparse = pair
    bounds, rng = curvature_bounds(sparse), np.random.default_rng(0)
    x = tf.constant(rng.standard_normal((40, dense.dim)) * rng.choice([0.1, 1.0, 10.0], (40, 1)))
    label, rival = rng.integers(0, 4, 40), rng.integers(1, 4, 40)
    rival = (label + rival) % 4
    values = np.linalg.eigvalsh(dense.hessian(x, tf.constant(label), tf.constant(rival)).numpy())
    assert np.all(values[:, 0] >= bounds.lower[label, rival])
    assert np.all(values[:, -1] <= bounds.upper[label, rival])
