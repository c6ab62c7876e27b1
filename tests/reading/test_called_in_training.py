"""Layers that train whatever is asked: the model is refused, live, as a file and exported."""

import keras
import numpy as np
import pytest

import keras_curv
from keras_curv.errors import InputError

L = keras.layers
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Doubling(L.Layer):
    def call(self, x, training=True):
        return x * (2.0 if training else 1.0)


def model(layer, **how):
    given = keras.Input((4,))
    hidden = layer(L.Dense(4, "tanh")(given), **how)
    return keras.Model(given, L.Dense(3)(hidden), name="mine")


def nested(layer, **how):
    inner = model(layer, **how)
    outer = keras.Input((4,))
    return keras.Model(outer, L.Dense(2)(inner(outer)), name="mine")


LAYERS = {
    "dropout": lambda: L.Dropout(0.3),
    "noise": lambda: L.GaussianNoise(0.1),
    "normalisation": L.BatchNormalization,
}


@pytest.mark.parametrize("built", [model, nested])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_called_in_training_is_refused(layer, built, tmp_path):
    trains = built(LAYERS[layer](), training=True)
    assert np.any(trains(X).numpy() != trains(X, training=False).numpy())
    with pytest.raises(InputError, match="mine: once exported it answers .* training=True"):
        keras_curv.certify(trains, X)
    path = str(tmp_path / "model.keras")
    trains.save(path)
    with pytest.raises(InputError, match="training=True"):
        keras_curv.certify(path, X)
    trains.export(str(tmp_path / "model"), verbose=False)
    with pytest.raises(InputError):
        keras_curv.certify(str(tmp_path / "model"), X)


@pytest.mark.parametrize("how", [{}, {"training": False}, {"training": None}])
@pytest.mark.parametrize("layer", LAYERS)
def test_other_calls_are_certified_as_they_are_exported(layer, how, tmp_path):
    plain = model(LAYERS[layer](), **how)
    plain.export(str(tmp_path / "model"), verbose=False)
    found = [keras_curv.certify(each, X).radius for each in (plain, str(tmp_path / "model"))]
    np.testing.assert_array_equal(*found)
    assert found[0].any()


def test_a_layer_that_trains_unless_told_is_refused_by_its_node():
    with pytest.raises(InputError, match=r"node '.*doubling.*'\): a layer"):
        keras_curv.certify(model(Doubling()), X)
    keras_curv.certify(model(Doubling(), training=False), X)
