"""Convolutions and pooling are read as what their definitions say."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from convolutions import SEEDS, SIGMA, L, convolve, flat, oracle, randomise

from keras_curv.reading import served_model
from keras_curv.training.trainable.trainable_network import LiveNetwork


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_is_what_the_layers_define(seed, read):
    model, x, served = read(seed)
    ours = served.network.logits(flat(x)).numpy()
    np.testing.assert_allclose(ours, oracle(model, x), rtol=1e-11, atol=1e-11)
    served.check(x)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_an_export_is_the_model(seed, read, tmp_path):
    model, x, served = read(seed)
    model.export(str(tmp_path / "model"), verbose=False)
    exported = served_model.read(tmp_path / "model")
    exported.check(x)
    for one, other in zip(exported.network.affines, served.network.affines, strict=True):
        np.testing.assert_array_equal(one.kernel, other.kernel)
        np.testing.assert_array_equal(one.bias, other.bias)


MIXED_CHANNELS = {
    "pool, mean": lambda: [L.AveragePooling2D(2), L.GlobalAveragePooling2D()],
    "convolution, mean": lambda: [L.Conv2D(4, 2, strides=2), L.GlobalAveragePooling2D()],
    "convolution, reshape, convolution": lambda: [
        L.Conv2D(4, 1),
        L.Reshape((32, 8)),
        L.Conv1D(4, 3),
    ],
    "same pool": lambda: [L.AveragePooling2D(2, 2, "same")],
}


@pytest.mark.parametrize("name", MIXED_CHANNELS)
@pytest.mark.parametrize("channels", [3, 15])
def test_channels_that_change_between_maps_are_read(name, channels, rng):
    layers = [*MIXED_CHANNELS[name](), L.Flatten(), L.Dense(5, "softplus"), L.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, channels)), *layers])
    randomise(model, rng)
    x = rng.standard_normal((3, 8, 8, channels)).astype(np.float32)
    served = served_model.read(model)
    served.check(x)
    np.testing.assert_allclose(served.network.logits(flat(x)), model(x), rtol=1e-4, atol=1e-4)


def test_a_shift_before_padding_is_a_bias_that_differs_between_positions(rng):
    model = keras.Sequential(
        [
            keras.Input((3, 3, 1)),
            L.Rescaling(1.0, offset=2.0),
            L.Conv2D(1, 3, padding="same", activation="tanh", kernel_initializer="ones"),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    first = served_model.read(model).network.affines[0]
    np.testing.assert_array_equal(
        first.bias.reshape(3, 3), 2.0 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]])
    )
    assert first.kernel_error == 0.0
    _, biases = LiveNetwork(model).now().weights(tf.float32)
    np.testing.assert_array_equal(biases[0], first.bias)


def test_padding_does_not_count_in_an_average():
    model = keras.Sequential(
        [keras.Input((3, 3, 1)), L.AveragePooling2D(2, padding="same"), L.Flatten(), L.Dense(2)]
    )
    model.layers[-1].kernel.assign([[1, 0], [0, 1], [0, 0], [0, 0]])
    kernel = served_model.read(model).network.affines[0].kernel
    np.testing.assert_array_equal(kernel[:, 0], np.array([1, 1, 0, 1, 1, 0, 0, 0, 0]) / 4)
    np.testing.assert_array_equal(kernel[:, 1], np.array([0, 0, 1, 0, 0, 1, 0, 0, 0]) / 2)


MORE = {
    "depthwise": (
        (6, 5, 2),
        lambda: [L.DepthwiseConv2D(3, 2, "same", depth_multiplier=3), L.Flatten()],
    ),
    "kept axes": (
        (6, 5, 2),
        lambda: [L.Conv2D(3, 2), L.GlobalAveragePooling2D(keepdims=True), L.Flatten()],
    ),
    "pooling without overlap": (
        (7, 5, 2),
        lambda: [L.AveragePooling2D((2, 1), (3, 2), "valid"), L.Conv2D(3, 2), L.Flatten()],
    ),
    "convolutions in a row": (
        (7, 6, 1),
        lambda: [L.Conv2D(2, 3, 2), L.Conv2D(3, 2, padding="same"), L.Flatten()],
    ),
    "one pixel": ((1, 1, 4), lambda: [L.Conv2D(3, 5, 3, "same"), L.Flatten()]),
}


@pytest.mark.parametrize("name", MORE)
def test_more_that_is_read(name, rng):
    shape, layers = MORE[name]
    model = keras.Sequential(
        [keras.Input(shape), *layers(), L.Dense(5, activation="softplus"), L.Dense(3)]
    )
    randomise(model, rng)
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    served = served_model.read(model)
    expected = oracle(model, x)
    np.testing.assert_allclose(served.network.logits(flat(x)), expected, rtol=1e-11, atol=1e-11)
    live = LiveNetwork(model).now().logits(x.reshape(3, -1))
    np.testing.assert_allclose(live, expected, rtol=1e-5, atol=1e-5)


def test_a_fused_batch_normalisation_of_keras_2(rng):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Input((5, 4, 2)),
            layers.Conv2D(3, 2, strides=2, padding="same"),
            layers.BatchNormalization(epsilon=0.01),
            layers.Activation("softplus"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    for weight in model.weights:
        weight.assign(0.5 + rng.random(weight.shape))
    x = rng.standard_normal((3, 5, 4, 2)).astype(np.float32)
    served = served_model.read(model)
    served.check(x)
    kernel, bias, gamma, beta, mean, variance, head, last = map(np.float64, model.get_weights())
    for image, logits in zip(np.float64(x), served.network.logits(flat(x)).numpy(), strict=True):
        z = convolve(image, kernel, (2, 2), "same") + bias
        z = (z - mean) / np.sqrt(variance + np.float64(np.float32(0.01))) * gamma + beta
        expected = SIGMA["softplus"](z).mean(axis=(0, 1)) @ head + last
        np.testing.assert_allclose(logits, expected, rtol=1e-12)
