"""Resized images: weights are exact, those of a server within what is charged."""

from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf
from function_layer import FunctionLayer

from keras_curv.errors import InputError
from keras_curv.lowering.rules import resizing
from keras_curv.numerics.rounding import FLOAT32_UNIT
from keras_curv.reading import served_model

SIZES = [(1, 1), (1, 5), (5, 1), (2, 3), (3, 2), (6, 5), (7, 7), (7, 14), (28, 224), (31, 97)]


def exact_weights(n, m):
    weights = [[Fraction(0)] * m for _ in range(n)]
    for o in range(m):
        place = (Fraction(2 * o + 1, 2)) * Fraction(n, m) - Fraction(1, 2)
        first = place.numerator // place.denominator
        share = place - first
        weights[min(max(first, 0), n - 1)][o] += 1 - share
        weights[min(max(first + 1, 0), n - 1)][o] += share
    return weights


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_weights_are_those_of_exact_arithmetic(n, m):
    weights = resizing.interpolation(n, m)[0].toarray()
    for row, exact in zip(weights, exact_weights(n, m), strict=True):
        for value, other in zip(row, exact, strict=True):
            assert abs(Fraction(float(value)) - other) <= other * Fraction(1, 2**51)


@pytest.mark.parametrize(("n", "m"), [*SIZES, (97, 31), (1000, 999), (999, 1000)])
def test_those_of_tensorflow_are_within_what_is_charged(n, m):
    weights, seen = (part.toarray() for part in resizing.interpolation(n, m))
    images = tf.eye(n)[:, :, None, None]  # one pixel is 1
    theirs = tf.image.resize(images, (m, 1)).numpy()[:, :, 0, 0]
    charged = (8.0 * (n + 1) + 32.0) * FLOAT32_UNIT
    assert np.all(np.abs(theirs - weights) <= charged * seen)
    assert np.abs(theirs - weights).max() <= 0.5 * charged


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (2, 4), (4, 2), (6, 4), (28, 224)])
def test_the_nearest_is_that_of_tensorflow(n, m):
    image = tf.range(float(n))[None, :, None, None]
    theirs = tf.image.resize(image, (m, 1), "nearest").numpy().reshape(-1)
    np.testing.assert_array_equal(resizing.nearest_pixels(n, m), theirs)


def test_a_pixel_between_two_is_refused():
    with pytest.raises(InputError, match="from 6 pixels to 5, two pixels are equally near"):
        resizing.nearest_pixels(6, 5)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.Resizing(3, 3, interpolation="bicubic"), "no rule"),
        (
            FunctionLayer(lambda x: tf.raw_ops.ResizeBilinear(images=x, size=[3, 3])),
            "half-pixel centres",
        ),
        (
            FunctionLayer(
                lambda x: tf.raw_ops.ResizeBilinear(images=x, size=[3, 3], align_corners=True)
            ),
            "half-pixel centres",
        ),
        (FunctionLayer(lambda x: tf.image.resize(x, (10**5, 10**5))), "too large"),
    ],
)
def test_what_is_refused(layer, message):
    layers = [keras.Input((4, 4, 2)), layer, keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    with pytest.raises(InputError, match=message):
        served_model.read(model)


def test_a_model_in_training_mode_is_refused_with_a_way_out(tmp_path):
    image = keras.Input((4, 4, 2))
    normalized = keras.layers.BatchNormalization()(image, training=True)
    logits = keras.layers.Dense(3)(keras.layers.Flatten()(normalized))
    keras.Model(image, logits).export(tmp_path / "model", verbose=False)
    with pytest.raises(InputError, match="changes or saves variables.*training=False"):
        served_model.read(tmp_path / "model")


def test_what_follows_a_resizing_layer_is_read_if_called_without_training(tmp_path):
    layers = [keras.layers.Resizing(3, 3), keras.layers.BatchNormalization()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4, 4, 2)), *layers])
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serve", lambda x: model(x, training=False), [tf.TensorSpec((None, 4, 4, 2))]
    )
    archive.write_out(tmp_path / "model", verbose=False)
    x = np.random.default_rng(0).normal(size=(5, 4, 4, 2)).astype(np.float32)
    logits = served_model.read(tmp_path / "model").network.logits(x.reshape(5, -1))
    np.testing.assert_allclose(logits, model(x, training=False), rtol=1e-4, atol=1e-5)
