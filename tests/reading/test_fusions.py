"""Graphs that TensorFlow's optimizer, XLA or notes of shapes change are refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import edited, export
from refused import assert_refused

from keras_curv.reading import served_model

SPECS = [tf.TensorSpec((None, 4), tf.float32)]
KERNEL = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
OF_PAIRS = KERNEL[:2].reshape(1, 1, 2, 6)  # sees two channels


def _answered(path, x):
    """By a function with TensorFlow's own settings."""
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    (answer,) = serve(tf.constant(x)).values()
    return answer.numpy()


def _classes(z):
    return tf.reshape(z, (-1, 6))[:, :3]


def _twice(pick):
    """Picks the larger of a tensor and another that is twice as large."""
    return lambda x, _: _classes(pick(x @ KERNEL))


def _relu_of_each(z):
    """Two nodes, of which the optimizer makes one."""
    one, other = (tf.raw_ops.Relu(features=z, name=name) for name in "ab")
    return tf.maximum(one, 2.0 * other)


TWICE = {
    "product": lambda z: tf.maximum(z, 2.0 * z),
    "the other way": lambda z: tf.maximum(2.0 * z, z),
    "quotient": lambda z: tf.maximum(z, z / 0.5),
    "sum": lambda z: tf.maximum(z, z + z),
    "sum of three": lambda z: tf.maximum(z, tf.add_n([z, z, z])),
    "two products": lambda z: tf.maximum(z, (z * 4.0) / 2.0),
    "factor with an axis": lambda z: tf.maximum(z, np.float32([2.0]) * z),
    "of a mirrored tensor": lambda z: tf.maximum(-z, 2.0 * -z),
    "handed on": lambda z: tf.maximum(tf.identity(z), 2.0 * tf.stop_gradient(z)),
    "of an activation": lambda z: tf.maximum(tf.tanh(z), 2.0 * tf.tanh(z)),
    "of an activation, twice": _relu_of_each,
    "hidden from small inputs": lambda z: tf.maximum(
        tf.nn.relu(z - 1e9), 2.0 * tf.nn.relu(z - 1e9)
    ),
}
OTHERWISE = {
    "a slope": lambda z: tf.maximum(z, 0.25 * z),
    "a slope, the other way": lambda z: tf.maximum(z * 0.25, z),
    "a slope below zero": lambda z: tf.maximum(z, -0.5 * z),
    "factors": lambda z: tf.maximum(z, np.float32([2, 3, 4, 2, 3, 4]) * z),
    "another offset": lambda z: tf.maximum(z, 2.0 * z + 0.5),
    "other tensors": lambda z: tf.maximum(z, 2.0 * tf.reverse(z, [1])),
    "the smaller": lambda z: tf.minimum(z, 2.0 * z),
    "the same": lambda z: tf.maximum(z, tf.identity(z)),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_maximum_of_multiples_is_refused(case, tmp_path):
    words = "op Maximum", "the same, which TensorFlow may take for", "leaky ReLU"
    assert_refused(export(tmp_path / "model", _twice(TWICE[case]), SPECS), *words)


@pytest.mark.parametrize("case", OTHERWISE)
def test_any_other_maximum_is_what_is_served(case, tmp_path):
    """By a function with TensorFlow's own settings."""
    path = export(tmp_path / "model", _twice(OTHERWISE[case]), SPECS)
    served = served_model.read(path)
    x = 3.0 * np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    (logits,) = (
        tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(x)).values()
    )
    ours = served.network.logits(tf.constant(x, tf.float64))
    np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-5)
    names = [activation.name for activation in served.network.activations]
    assert ("slope" in case and "below" not in case) == (names == ["leaky_relu(0.25)"])


def _parts(x):
    return tf.split(tf.nn.relu(x @ KERNEL), 2, axis=1)


def _second_output(z):
    """z, as the second output of an op that hands both on."""
    return tf.raw_ops.IdentityN(input=[z - 1.0, z])[1]


OF_PARTS = {
    "largest entry": lambda x: tf.reduce_max(tf.tanh(_parts(x)[1]), axis=1, keepdims=True),
    "maximum of both": lambda x: tf.maximum(_parts(x)[1], 0.5 * _parts(x)[0])[:, :1],
    "pooled": lambda x: tf.nn.max_pool1d(tf.nn.relu(_parts(x)[1])[..., None], 3, 1, "VALID")[:, 0],
    "handed on": lambda x: tf.reduce_max(
        tf.math.log_sigmoid(_second_output(x @ KERNEL)), axis=1, keepdims=True
    ),
}


@pytest.mark.parametrize("case", OF_PARTS)
def test_a_maximum_in_a_model_that_splits_is_refused(case, tmp_path):
    """The server takes the first part for the second; slices say which."""
    spread = np.float32([[1.0, -1.0, 0.5]])
    path = export(tmp_path / "model", lambda x, _: OF_PARTS[case](x) * spread, SPECS)
    assert_refused(path, "reads another output of an op", "use slices")


def test_slices_in_place_of_a_split_are_read(tmp_path):
    def body(x, _):
        z = tf.nn.relu(x @ KERNEL)
        return tf.reduce_max(tf.tanh(z[:, 3:]), axis=1, keepdims=True) + z[:, :3]

    path = export(tmp_path / "model", body, SPECS)
    served = served_model.read(path)
    x = 3.0 * np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    logits = _answered(path, x)
    np.testing.assert_allclose(served.network.logits(tf.constant(x, tf.float64)), logits, atol=1e-4)


GROUPED = {
    "1d": ((12, 4), lambda: keras.layers.Conv1D(6, 3, groups=2, activation="relu")),
    "1d, causal": ((12, 4), lambda: keras.layers.Conv1D(6, 3, groups=2, padding="causal")),
    "dilated": ((9, 9, 4), lambda: keras.layers.Conv2D(6, 3, groups=2, dilation_rate=2)),
    "dilated, same": (
        *((9, 9, 4),),
        lambda: keras.layers.Conv2D(6, 3, groups=2, dilation_rate=2, padding="same"),
    ),
}


@pytest.mark.parametrize("case", GROUPED)
def test_convolutions_in_groups_that_keras_has_xla_compile_are_read(case, tmp_path):
    shape, layer = GROUPED[case]
    layers = [keras.Input(shape), layer(), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.export(str(tmp_path / "model"), verbose=False)
    served = served_model.read(tmp_path / "model")
    served.check(np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32))


def _compiled(x, _):
    """Twelve pixels of four: XLA's are others."""
    larger = tf.function(lambda x: tf.image.resize(x, (1, 12), "bilinear"), jit_compile=True)
    return tf.reshape(larger(tf.reshape(x, (-1, 1, 4, 1))), (-1, 12))[:, :3]


def test_a_function_that_xla_compiles_is_refused(tmp_path):
    words = "op ResizeBilinear", "compiled by XLA", "jit_compile"
    assert_refused(export(tmp_path / "model", _compiled, SPECS), *words)


def test_a_function_that_is_not_inlined_is_refused(tmp_path):
    """A note says that its argument is of two entries; TensorFlow cuts off the others."""

    def body(x, z):
        top = tf.reduce_max(x[:, : tf.shape(tf.identity(z))[1]], axis=1, keepdims=True)
        return x @ np.eye(4, 3, dtype=np.float32) + top @ np.float32([[1.0, -1.0, 0.0]])

    inner = tf.function(body).get_concrete_function(SPECS[0], tf.TensorSpec((None, None)))
    path = export(tmp_path / "model", lambda x, _: inner(x, x), SPECS)
    x = tf.constant([[1.0, 2.0, 3.0, 9.0]])
    expected = inner(x, x).numpy()
    with edited(path) as meta:
        functions = meta.graph_def.library.function
        for node in (*meta.graph_def.node, *(n for each in functions for n in each.node_def)):
            node.attr.pop("_output_shapes", None)
        for function in functions:
            function.attr.pop("_input_shapes", None)
            function.attr["_noinline"].b = any(node.op == "Max" for node in function.node_def)
            for note in function.arg_attr.values():
                note.attr.pop("_output_shapes", None)
            if function.attr["_noinline"].b:
                shape = function.arg_attr[1].attr["_output_shapes"].list.shape.add()
                for size in (1, 2):
                    shape.dim.add(size=size)
    assert np.abs(_answered(path, x) - expected).max() > 1.0  # else it need not be refused
    assert_refused(path, "is not to be inlined")


def _grouped(pads):
    def body(x, _):
        image = tf.pad(tf.reshape(x, (-1, 1, 1, 4)), [[0, 0], *pads])
        seen = tf.nn.conv2d(image, OF_PAIRS, 1, "VALID")
        return tf.reshape(seen, (-1, np.prod(seen.shape[1:])))[:, :3]

    return body


def test_channels_that_are_padded_before_groups_are_refused(tmp_path):
    """Eight channels, in four groups of two: TensorFlow has two groups of the four before."""
    wide = _grouped([[0, 0], [0, 0], [0, 2]])
    words = "op Conv2D", "padding of channels", "leave one of them out"
    assert_refused(export(tmp_path / "wide", wide, SPECS), *words)
    of_space = export(tmp_path / "space", _grouped([[0, 1], [1, 0], [0, 0]]), SPECS)
    served_model.read(of_space).check(np.ones((2, 4), np.float32))
