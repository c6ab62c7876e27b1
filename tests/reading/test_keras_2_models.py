"""Models of Keras 2 are read as what they compute."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_oracle import assert_reads_as, examples

from keras_curv.network.network import Network
from keras_curv.reading import served_model

L = keras.layers


def keras_2(trained=False):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.InputLayer((2, 3)),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.Activation("softplus"),
            layers.Dropout(0.4),
            layers.Dense(3, activation="softmax"),
        ]
    )
    rng = np.random.default_rng(5)
    model.set_weights([0.3 + np.abs(rng.normal(size=w.shape)) for w in model.get_weights()])
    if trained:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(examples((2, 3), count=8), np.arange(8) % 3, epochs=1, verbose=0)
    return model


def keras_2_oracle(model):
    kernel, bias, gamma, beta, mean, variance, last, last_bias = map(
        np.float64, model.get_weights()
    )
    scale = gamma / np.sqrt(variance + np.float64(np.float32(1e-3)))
    return Network.from_weights(
        [kernel * scale, last], [(bias - mean) * scale + beta, last_bias], "softplus"
    )


SAVE_KERAS_2 = {
    "served_model.save": lambda model, path: tf.saved_model.save(model, path),
    "export": lambda model, path: model.export(path),
    "save, trained": lambda model, path: model.save(path, save_format="tf"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", SAVE_KERAS_2)
def test_keras_2_models_are_read(how, tmp_path):
    model = keras_2(trained="trained" in how)
    SAVE_KERAS_2[how](model, str(tmp_path / "model"))
    served = served_model.read(tmp_path / "model")
    assert_reads_as(served, keras_2_oracle(model), examples((2, 3)), "softmax", rtol=1e-6)
