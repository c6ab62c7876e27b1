"""The matrix of a convolution: its entries, its error, its norm."""

from __future__ import annotations

import itertools
from fractions import Fraction

import keras
import numpy as np
import pytest
from convolutions import L, average, convolve, randomise, stack

from keras_curv.errors import InputError
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.rules import convolution
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
def test_the_matrix_is_the_convolution(padding, strides, dilations, rng):
    for height, width in itertools.product((1, 2, 3), (1, 4)):
        image = rng.integers(-9, 10, (8, 11, 2)).astype(float)
        kernel = rng.integers(-9, 10, (height, width, 2, 3)).astype(float)
        matrix, shape = convolution.matrix(
            Ball.exact(kernel), image.shape, strides=strides, padding=padding.upper(),
            dilations=dilations,
        )  # fmt: skip
        expected = convolve(image, kernel, strides, padding, dilations)
        assert shape == expected.shape
        # Integers: both are exact.
        np.testing.assert_array_equal((image.reshape(-1) @ matrix.value).reshape(shape), expected)
        assert not matrix.entries.error.any()


def _adversarial_reshape():
    """Two convolutions whose composition is 2 in norm, and 4 with the reshape between them."""
    first, last = np.zeros((3, 1, 1, 1)), np.array([1.0, -1.0]).reshape(2, 1, 1, 1)
    first[[0, 2]] = 1.0
    layers = [
        L.Conv2D(1, (3, 1), strides=(2, 1), padding="same", use_bias=False),
        L.Reshape((20, 3, 1)),
        L.Conv2D(1, (2, 1), use_bias=False),
    ]
    model = keras.Sequential([keras.Input((59, 2, 1)), *layers])
    layers[0].set_weights([first])
    layers[2].set_weights([last])
    return model


@pytest.mark.parametrize("seed", range(6))
def test_the_norm_of_a_large_product_is_above_its_singular_values(seed, monkeypatch):
    """Convolutions, pools, means and whatever lies between, kept sparse."""
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 0)
    rng = np.random.default_rng(seed)
    between = [
        L.Reshape((6, 24, 2)),
        L.Permute((2, 1, 3)),
        L.AveragePooling2D(2),
        L.Rescaling(3.0),
        L.DepthwiseConv2D(2),
        L.Reshape((24, 12, 1)),
    ]
    layers = [L.Conv2D(2, 1), between[seed], L.Conv2D(3, 2, strides=2)]
    models = [keras.Sequential([keras.Input((12, 12, 1)), *layers])]
    randomise(models[0], rng)
    models += [_adversarial_reshape()] * (seed == 0)
    for model in models:
        behind = [L.Activation("softplus"), L.Flatten(), L.Dense(2)]
        model = keras.Sequential([*model.inputs, *model.layers, *behind])
        affine = served_model.read(model).network.affines[0]
        kernel = affine.kernel.toarray() if affine.is_sparse else affine.kernel
        assert affine.is_sparse
        assert affine.norm >= np.linalg.norm(kernel, 2) * (1.0 - 1e-12)
        assert affine.magnitude_norm >= np.linalg.norm(np.abs(kernel), 2) * (1.0 - 1e-12)


def test_no_weight_is_too_small_to_be_placed():
    matrix, _ = convolution.matrix(Ball.exact(np.full((1, 1, 1, 1), 1e-170)), (1, 2, 1))
    np.testing.assert_array_equal(matrix.dense().value, 1e-170 * np.eye(2))


def test_unknown_weights_stay_unknown_wherever_they_are_copied():
    kernel = Ball(np.zeros((1, 2, 1, 1)), np.array([0.0, 0.25]).reshape(1, 2, 1, 1))
    matrix, _ = convolution.matrix(kernel, (1, 3, 1))
    np.testing.assert_array_equal(matrix.dense().error, [[0, 0], [0.25, 0], [0, 0.25]])


def test_a_product_with_a_sparse_matrix_is_that_with_the_dense_one(rng):
    kernel = Ball(rng.standard_normal((2, 2, 1, 2)), rng.random((2, 2, 1, 2)))
    matrix, _ = convolution.matrix(kernel, (3, 3, 1), padding="SAME")
    left = Ball(rng.standard_normal((4, 9)), rng.random((4, 9)))
    for factor in (left, left[0], Ball.exact(left.value)):
        ours, theirs = factor @ matrix, factor @ matrix.dense()
        np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-12)


def test_folding_errors_cover_what_folding_rounds_away(rng):
    """Rescaling, convolution and pooling in exact rational arithmetic."""
    layers = [
        L.Rescaling(1 / 3, offset=0.1),
        L.Conv2D(2, 3, padding="same"),
        L.AveragePooling2D(3, strides=2, padding="same"),
        L.Flatten(),
        L.Dense(2),
    ]
    model = randomise(keras.Sequential([keras.Input((4, 5, 1)), *layers]), rng)
    affine = served_model.read(model).network.affines[0]

    def exact(array):
        array = np.asarray(array)
        return np.array([Fraction(float(v)) for v in array.ravel()], object).reshape(array.shape)

    scale, offset = exact(np.float32(1 / 3)).item(), exact(np.float32(0.1)).item()

    def at(image):
        image = convolve(image * scale + offset, exact(layers[1].kernel), padding="same")
        image = average(image + exact(layers[1].bias), (3, 3), (2, 2), "same")
        return image.reshape(-1) @ exact(layers[-1].kernel) + exact(layers[-1].bias)

    bias = at(exact(np.zeros((4, 5, 1))))
    kernel = np.array([at(exact(unit.reshape(4, 5, 1))) - bias for unit in np.eye(20)])
    lost = np.linalg.norm(np.float64(kernel - exact(affine.kernel)), 2)
    assert 0.0 < lost <= affine.kernel_error <= 1e-13
    assert np.linalg.norm(np.float64(bias - exact(affine.bias))) <= affine.bias_error <= 1e-13


def test_a_matrix_that_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(convolution, "CONVOLUTION_ENTRIES", 2 * 16 - 1)
    model = stack((4, 4, 1), lambda: L.Conv2D(2, 1), L.Flatten)()
    with pytest.raises(
        InputError, match="op Conv2D .*2 weights at 16 positions each are too many.*strides"
    ):
        served_model.read(model)


def test_a_window_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="spans 5 entries does not fit an axis of 4"):
        convolution.matrix(Ball.exact(np.ones((5, 1, 1, 1))), (4, 4, 1))
    with pytest.raises(InputError, match="does not fit images"):
        convolution.matrix(Ball.exact(np.ones((1, 1, 2, 1))), (4, 4, 1))
