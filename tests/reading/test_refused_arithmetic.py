"""Arithmetic that a server would round, wrap or overflow is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import Net, export
from refused import assert_refused

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


HALF = {
    "tanh": tf.tanh,
    "silu": lambda x: x * tf.sigmoid(x),
    "log_sigmoid": lambda x: -tf.nn.softplus(-x),
    "softmax": tf.nn.softmax,
    "negative": lambda x: -x,
    "twice": lambda x: x + x,
}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("case", HALF)
def test_arithmetic_in_half_precision_is_refused(case, dtype, tmp_path):
    """It rounds a thousand times as much as any certificate charges."""

    def body(x, net):
        part = HALF[case](x)
        return part if case == "softmax" else net(tf.cast(part, tf.float32))

    specs = [tf.TensorSpec((None, 4), dtype)]
    assert_refused(export(tmp_path / "model", body, specs), dtype.name, "only float32")


def test_inputs_in_half_precision_are_read(tmp_path):
    def body(x, net):
        return net(tf.cast(tf.reshape(tf.reshape(x, (-1, 2, 2)), (-1, 4)), tf.float32))

    specs = [tf.TensorSpec((None, 4), tf.float16)]
    served = served_model.read(export(tmp_path / "model", body, specs))
    served.check(np.arange(8, dtype=np.float16).reshape(2, 4))


def _small_integers(x, net):
    """A server multiplies 20 · 13 in eight bits."""
    size = tf.reduce_prod(tf.constant([20, 13], tf.int8), keepdims=True)
    shape = tf.concat([tf.shape(x)[:1], tf.cast(size, tf.int32), [-1]], 0)
    return tf.transpose(tf.reshape(x, shape), (0, 2, 1))[:, 0]


def _wrapping(x, net):
    """65536² is 0 in 32 bits."""
    size = tf.reduce_prod(tf.constant([65536, 65536]), keepdims=True)
    return net(tf.reshape(x, tf.concat([tf.shape(x)[:1], size + 4], 0)))


@pytest.mark.parametrize(
    ("body", "word"), [(_small_integers, "int8"), (_wrapping, "wrap around")], ids=["int8", "2^32"]
)
def test_integers_that_a_server_would_wrap_are_refused(body, word, tmp_path):
    specs = [tf.TensorSpec((None, 260 if word == "int8" else 4), tf.float32)]
    assert_refused(export(tmp_path / "model", body, specs), word)


def test_a_constant_that_overflows_its_cast_is_refused(tmp_path):
    def body(x, net):
        return net(x * tf.cast(net.big, tf.float32))

    net = Net()
    net.big = tf.Variable(1e60, dtype=tf.float64)
    assert_refused(export(tmp_path / "model", body, net=net), "too large for float32")


def test_relu_is_read_but_has_no_curvature(tmp_path):
    path = export(tmp_path / "model", lambda x, n: tf.nn.relu(x @ n.w) @ n.v)
    network = served_model.read(path).network
    assert [activation.name for activation in network.activations] == ["relu"]
    for refuses in (CurvatureCertificate, curvature_bounds):
        with pytest.raises(
            InputError, match="'relu' is not differentiable.*methods crown and.*softplus"
        ):
            refuses(network)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "v"])
def test_weights_that_are_not_finite_are_refused(bad, name, tmp_path):
    net = Net()
    variable = getattr(net, name)
    variable.assign(tf.tensor_scatter_nd_update(variable, [[1, 2]], [bad]))
    assert_refused(export(tmp_path / "model", net=net), "NaN or infinite")


STEPS = {
    "divided by zero": lambda x, n: n(x / tf.constant([1.0, 0.0, 1.0, 1.0])),
    "root of a negative": lambda x, n: n(x * tf.sqrt(tf.constant(-1.0))),
    "shifted by infinity": lambda x, n: n(x) + tf.constant(np.inf),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", STEPS)
def test_folding_that_leaves_the_numbers_is_refused(case, tmp_path):
    assert_refused(export(tmp_path / "model", STEPS[case]), "NaN or infinite")


def test_negated_integers_are_refused(tmp_path):
    """−(−128) is −128 in int8."""
    spec = [tf.TensorSpec((None, 4), tf.int8)]
    body = lambda x, net: net(tf.cast(-x, tf.float32))  # noqa: E731
    assert_refused(export(tmp_path, body, spec), "Neg", "wrap around")
