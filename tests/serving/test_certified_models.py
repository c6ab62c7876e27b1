"""What is certified is what is served: layers that answer otherwise, or that hide what they do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv.errors import InputError

L = keras.layers


class _TurnedInTraining(L.Layer):
    """Trains where nobody says otherwise, as what follows a `Resizing` layer of Keras does."""

    def call(self, x, training=True):
        return -x if training else x


def test_both_signatures_are_the_model_at_inference(tmp_path, rng):
    hidden = [_TurnedInTraining(), L.Dense(4, "tanh")]
    model = keras.Sequential([keras.Input((3,)), *hidden, L.Dense(2)])
    keras_curv.certified_serving(model, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model"))
    x = tf.constant(rng.standard_normal((20, 3)), tf.float32)
    plain, certified = (served.signatures[name](x) for name in ("serving_default", "certified"))
    for logits in (plain["output_0"], certified["logits"]):
        np.testing.assert_allclose(logits, model(x, training=False), rtol=1e-4, atol=1e-6)


class _StandsIn(L.Layer):
    """σ of its second input, in a function of its own; what is seen is of the first."""

    def call(self, inputs):
        seen, z = inputs
        return tf.reshape(tf.function(tf.nn.softplus)(z), tf.shape(tf.nn.softplus(seen)))

    def compute_output_shape(self, shapes):
        return shapes[1]


def test_an_activation_that_stands_in_for_a_hidden_one_is_refused(tmp_path):
    given = keras.Input((3,))
    model = keras.Model(given, L.Dense(2)(_StandsIn()([given, L.Dense(3)(given)])))
    assert keras_curv.read(model).network.depth == 2
    with pytest.raises(InputError, match="hides what it computes"):
        keras_curv.certified_serving(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_logits_by_a_name_are_refused(tmp_path):
    given = keras.Input((3,))
    model = keras.Model(given, {"logits": L.Dense(2)(given)})
    with pytest.raises(InputError, match="returns a dict; give the model that returns its logits"):
        keras_curv.certified_serving(model, tmp_path / "model")


def test_a_place_where_no_directory_can_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    model = keras.Sequential([keras.Input((3,)), L.Dense(2)])
    with pytest.raises(InputError, match="cannot write .*/file/model: Not a directory"):
        keras_curv.certified_serving(model, tmp_path / "file" / "model")
