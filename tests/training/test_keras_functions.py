"""A layer takes the activations of the table by functions that come back from a file."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.network.activations import ACTIVATIONS, get
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.trainable.keras_functions import in_keras, name_of
from keras_curv.training.trainable.trainable_network import LiveNetwork

NAMES = list(ACTIVATIONS)
L = keras.layers


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_what_the_table_says(name):
    z = np.linspace(-4.0, 4.0, 1001)
    served = in_keras(name)(tf.constant(z, tf.float64))
    np.testing.assert_allclose(served, get(name).value(tf.constant(z)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_comes_back_from_a_file(name, tmp_path):
    model = keras.Sequential([keras.Input((4,)), L.Dense(5, in_keras(name)), L.Dense(3)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert name_of(loaded.layers[0].activation) == name
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.testing.assert_array_equal(model(x), loaded(x))


def test_a_model_in_training_comes_back_with_its_sines(tmp_path):
    base = keras.Sequential([keras.Input((4,)), L.Dense(5, in_keras("sin")), L.Dense(3)])
    model = CRTModel(base, radius=0.5)
    model.save(tmp_path / "model.keras")
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        CRTModel.from_config(model.get_config()),
    ):
        assert name_of(again.base.layers[0].activation) == "sin"


@pytest.mark.parametrize("function", [tf.sin, keras.ops.sin])
def test_an_op_is_read_in_training_as_what_it_is(function):
    model = keras.Sequential([keras.Input((4,)), L.Dense(5, function), L.Dense(3)])
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    network = LiveNetwork(model).now()
    assert [activation.name for activation in network.activations] == ["sin"]
    np.testing.assert_allclose(network.logits(x), model(x), rtol=1e-5, atol=1e-6)


@dataclasses.dataclass
class _Siren:
    """A function without a hash, equal to every object."""

    frequency: float = 30.0

    def __call__(self, z):
        return keras.ops.sin(self.frequency * z)

    def __eq__(self, other):
        return True


def test_what_is_nearly_an_activation_has_no_name():
    """An op whose defaults are others than the activation's, a function of one's own, a layer."""
    for function in (keras.ops.gelu, lambda z: keras.ops.sin(z), _Siren(), L.ReLU(), None, "sin"):
        assert name_of(function) is None
