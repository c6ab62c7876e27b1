"""Activations of several ops are read, and what is nearly one is refused."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_oracle import eagerly, radii, randomize, sequential

from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


def _gelu_tanh(z):
    return keras.activations.gelu(z, approximate=True)


SPELLED_OUT = {
    name: getattr(keras.activations, name)
    for name in (
        ["silu", "gelu", "mish", "elu", "celu", "softsign", "log_sigmoid", "tanh_shrink"]
        + ["squareplus", "sparse_plus", "relu"]
    )
} | {"gelu_tanh": _gelu_tanh, "sin": keras.ops.sin}


@pytest.mark.parametrize(
    ("name", "live"), zip(SPELLED_OUT, itertools.cycle([False, True]), strict=False)
)
def test_activations_of_several_ops_are_read(name, live, tmp_path):
    layers = [L.Dense(5, SPELLED_OUT[name]), L.Dense(4, SPELLED_OUT[name]), L.Dense(3)]
    model = randomize(sequential((6,), *layers))
    if not live:
        model.export(str(tmp_path / "model"), verbose=False)
    served = served_model.read(model if live else tmp_path / "model")
    assert [activation.name for activation in served.network.activations] == [name, name]
    x = np.concatenate([np.random.default_rng(0).normal(size=(8, 6)) * s for s in (0.01, 1, 30)])
    served.check(x.astype(np.float32))  # the signature and what was read agree
    if name != "relu":
        with eagerly():
            assert np.all(radii(served.network, x[:16].astype(np.float32)) > 0.0)


C = np.float32(np.sqrt(0.5))
NEARLY = {
    "gelu": lambda z: 0.5 * z * tf.math.erfc(-z * C),
    "gelu, another scale": lambda z: 0.5 * z * tf.math.erfc(-z * np.nextafter(C, np.float32(1.0))),
    "gelu, mirrored": lambda z: 0.5 * z * tf.math.erfc(z * C),
    "gelu, another factor": lambda z: 0.6 * z * tf.math.erfc(-z * C),
    "gelu, a factor for each unit": lambda z: tf.fill((5,), 0.5) * z * tf.math.erfc(-z * C),
    "tanh_shrink": lambda z: z - tf.tanh(z),
    "celu, alpha": lambda z: tf.maximum(z, 0.0) + 2.0 * tf.math.expm1(tf.minimum(z, 0.0) / 2.0),
    "squareplus": lambda z: (tf.sqrt(tf.square(z) + 4.0) + z) / 2.0,
    "elu, alpha": lambda z: tf.where(z > 0.0, z, 0.5 * tf.nn.elu(z)),
}


@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_an_activation_is_refused(case, tmp_path):
    name = case if case in ("gelu", "tanh_shrink", "squareplus") else None
    assert_pattern(tmp_path, lambda x, w, v: NEARLY[case](x @ w) @ v, name)


@pytest.mark.parametrize(
    "branches",
    [
        lambda z: tf.tanh(z) - z,
        lambda z: tf.maximum(z, 0.1 * z),
        lambda z: z * tf.sigmoid(1.5 * z),  # no silu
        lambda z: z * tf.sigmoid(z + 1.0),
        lambda z: tf.tanh(z) * tf.sigmoid(z),
        lambda z: z * tf.tanh(2.0 * tf.math.softplus(z)),  # no mish
        lambda z: (z + tf.sqrt(tf.square(z) + 5.0)) / 2.0,  # no squareplus
    ],
)
def test_what_is_no_activation_but_made_of_others_is_read_as_that(branches, tmp_path):
    save(tmp_path, lambda x, w, v: branches(x @ w) @ v)
    served = served_model.read(tmp_path)
    served.check(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))


def save(path, body):
    """Writes a model of one hidden layer."""
    rng = np.random.default_rng(3)
    module = tf.Module()
    module.w = tf.Variable(rng.normal(size=(4, 5)), dtype=tf.float32)
    module.v = tf.Variable(rng.normal(size=(5, 3)), dtype=tf.float32)
    function = tf.function(lambda x: body(x, module.w, module.v))
    signature = function.get_concrete_function(tf.TensorSpec((None, 4), tf.float32))
    tf.saved_model.save(module, str(path), signatures=signature)


def assert_pattern(path, body, name):
    """Reads one hidden layer of that name; with None, it is refused, naming op and node."""
    save(path, body)
    if name is None:
        with pytest.raises(InputError, match=r"op \w+ \(node '"):
            served_model.read(path)
    else:
        served = served_model.read(path)
        assert [activation.name for activation in served.network.activations] == [name]
        x = 3.0 * np.random.default_rng(3).normal(size=(16, 4))
        served.check(x.astype(np.float32))


def test_a_gelu_in_another_format_than_float32_is_refused(tmp_path):
    """Its constant is another number, so it is another function than that of the table."""
    model = sequential((4,), L.Dense(5, "gelu", dtype="float64"), L.Dense(3, dtype="float64"))
    with pytest.raises(InputError, match="op Erfc"):
        served_model.read(model)
