"""Pooling with a quick gradient, against Keras' own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.training.run.recipe import Recipe
from keras_curv.training.trainable.pooling import TrainedAveragePooling2D, averages

CASES = {
    "windows that tile": ((6, 8, 3), {"pool_size": (3, 2)}),
    "one window": ((4, 4, 3), {"pool_size": 4}),
    "windows that tile, padded by nothing": ((4, 4, 3), {"pool_size": 2, "padding": "same"}),
    "windows that leave some": ((7, 8, 3), {"pool_size": 2}),
    "windows beyond the edge": ((7, 7, 3), {"pool_size": 2, "padding": "same"}),
    "windows that overlap": ((6, 6, 3), {"pool_size": 3, "strides": 1}),
    "windows with gaps": ((8, 8, 3), {"pool_size": 2, "strides": 4}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_values_and_gradients_are_those_of_keras(name, rng):
    shape, options = CASES[name]
    images = tf.constant(rng.standard_normal((5, *shape)), tf.float32)
    ours, theirs = TrainedAveragePooling2D(**options), keras.layers.AveragePooling2D(**options)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        got, expected = ours(images, training=True), theirs(images)
        squares = got**2, expected**2
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    got, expected = (tape.gradient(square, images) for square in squares)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_images_of_unknown_size_are_pooled():
    layer = TrainedAveragePooling2D(2)
    pooled = tf.function(lambda images: averages(layer, images)).get_concrete_function(
        tf.TensorSpec((None, None, None, 3))
    )
    np.testing.assert_array_equal(pooled(tf.ones((2, 4, 6, 3))), tf.ones((2, 2, 3, 3)))


def test_what_is_exported_has_the_operation_of_keras(tmp_path):
    base = Recipe(dataset="cifar10", filters=(4,), pool=4, layers=1, radius=0.1).build((8, 8, 1), 3)
    base.export(str(tmp_path), verbose=False)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert "AvgPool" in {op.type for op in _operations(serve.graph)}
    assert "Mean" not in {op.type for op in _operations(serve.graph)}


def test_a_base_is_saved_and_loaded(tmp_path):
    base = Recipe(dataset="cifar10", filters=(4,), pool=4, layers=1, radius=0.1).build((8, 8, 1), 3)
    base.save(tmp_path / "base.keras")
    loaded = keras.models.load_model(tmp_path / "base.keras")
    assert type(loaded.layers[1]) is TrainedAveragePooling2D
    images = tf.random.stateless_normal((2, 8, 8, 1), (0, 1))
    np.testing.assert_array_equal(loaded(images), base(images))


def _operations(graph):
    own = [op for function in graph._functions.values() for op in function.graph.get_operations()]
    return [*graph.get_operations(), *own]
