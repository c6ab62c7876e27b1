"""The logits are found among the outputs of a model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_oracle import assert_reads_as, examples
from written_net import Net, plain_body

from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


def test_log_softmax_is_a_head(tmp_path):
    net = Net(lambda x, n: tf.nn.log_softmax(plain_body(x, n)))
    served = served_model.read(net.export(tmp_path / "model"))
    assert_reads_as(served, net.oracle(), examples((6,)), "log_softmax")


DICTIONARIES = {
    "logits and classes": lambda z: {"classes": tf.argmax(z, axis=1), "logits": z},
    "logits and probabilities": lambda z: {"logits": z, "a_first": tf.nn.softmax(z)},
    "logits and more": lambda z: {"zzz": -z, "logits": z, "aaa": z * 2.0, "ids": tf.argmax(z, 1)},
    "one matrix under any name": lambda z: {"scores": z, "top": tf.reduce_max(z, axis=1)},
}


@pytest.mark.parametrize("case", DICTIONARIES)
def test_the_logits_of_a_dictionary_are_found(case, tmp_path):
    net = Net(lambda x, n: DICTIONARIES[case](plain_body(x, n)))
    served = served_model.read(net.export(tmp_path / "model"))
    assert_reads_as(served, net.oracle(), examples((6,)))


SEVERAL = {"zzz": lambda z: -z, "scores": lambda z: z, "aaa": lambda z: z * 2.0}


def test_an_output_is_read_by_name(tmp_path):
    net = Net(lambda x, n: {name: part(plain_body(x, n)) for name, part in SEVERAL.items()})
    path = net.export(tmp_path / "model")
    with pytest.raises(InputError, match=r"aaa float32.*say which by output_name"):
        served_model.read(path)
    with pytest.raises(InputError, match=r"a float matrix \(batch, classes\) named 'score'"):
        served_model.read(path, output_name="score")
    served = served_model.read(path, output_name="scores")
    assert_reads_as(served, net.oracle(), examples((6,)))


@pytest.mark.parametrize("live", [True, False])
def test_outputs_in_a_list_are_numbered_as_exports_number_them(live, tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [L.Dense(3)(inputs) for _ in range(11)])
    model.export(str(tmp_path), verbose=False)
    served = served_model.read(model if live else tmp_path, output_name="output_10")
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = served.network.logits(x.astype(np.float64))
    np.testing.assert_allclose(found, model(x)[10], rtol=1e-5, atol=1e-6)


def test_a_signature_is_read_by_name(tmp_path):
    net, spec = Net(), tf.TensorSpec((None, 6))
    plain = tf.function(lambda x: plain_body(x, net)).get_concrete_function(spec)
    minus = tf.function(lambda x: -plain_body(x, net)).get_concrete_function(spec)
    tf.saved_model.save(net, str(tmp_path), signatures={"serving_default": plain, "minus": minus})
    served = served_model.read(tmp_path, signature="minus")
    arrays = {name: np.float64(array) for name, array in net.arrays.items()}
    assert served.signature == "minus"
    assert_reads_as(served, net.oracle(v=-arrays["v"], c=-arrays["c"]), examples((6,)), rtol=1e-12)
    assert_reads_as(served_model.read(tmp_path), net.oracle(), examples((6,)))


def test_nested_outputs_of_a_live_model():
    """The one called "logits" is that, whatever lies beside it."""
    inputs = keras.Input((4,))
    parts = [L.Dense(3)(inputs) for _ in range(3)]
    model = keras.Model(inputs, {"aux": parts[:2], "logits": parts[2]})
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = served_model.read(model).network.logits(x.astype(np.float64))
    np.testing.assert_allclose(found, model(x)["logits"], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="Flatten makes a matrix of an image or a sequence"):
        served_model.read(keras.Sequential([keras.Input((3, 4)), L.Dense(2)]))
    nested = keras.Model(inputs, {"aux": parts[0], "logits": parts[1:]})
    with pytest.raises(InputError, match="or one named 'logits'"):
        served_model.read(nested)
