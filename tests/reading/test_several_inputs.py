"""Models of several inputs are read as one network of a vector, joined in the order of names."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import several_inputs
import tensorflow as tf
from hostile_models.models import edited, export
from keras_oracle import HEADS, SERVED_TOLERANCE
from refused import assert_refused, spec
from server_oracle import answered

from keras_curv.errors import InputError
from keras_curv.reading import served_model

CASES = several_inputs.MODELS


@pytest.mark.parametrize(
    ("case", "read_keras"),
    zip(CASES, itertools.cycle(["directory", "live"]), strict=False),
    indirect=["read_keras"],
)
def test_what_is_read_is_what_is_served(case, read_keras, tmp_path):
    """The oracle: a server that gets each input by its name."""
    model = CASES[case]()
    served, x = read_keras(model), several_inputs.examples_of(model)
    flat = several_inputs.by_hand(x)
    shapes = {each.name: tuple(each.shape[1:]) for each in model.inputs}
    assert served.inputs.shapes == shapes and [*served.inputs.shapes] == sorted(shapes)
    assert served.input_shape == flat.shape[1:] and served.network.dim == flat.shape[1]
    np.testing.assert_array_equal(served.inputs.joined(x), flat)
    served.check(flat)
    model.export(str(tmp_path / "served"), verbose=False)
    (theirs,) = answered(tmp_path / "served", x).values()
    ours = HEADS[served.head](served.network.logits(np.float64(flat)).numpy())
    np.testing.assert_allclose(ours, theirs, rtol=SERVED_TOLERANCE, atol=SERVED_TOLERANCE)
    np.testing.assert_allclose(served.call(flat), theirs, rtol=1e-6, atol=1e-6)


def test_the_agreement_check_gives_each_input_its_own_part(monkeypatch):
    """Swapped, inputs of one shape give other logits."""
    served = served_model.read(CASES["of one shape"]())
    swap = lambda x: tf.concat([x[:, 4:], x[:, :4]], axis=1)  # noqa: E731
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    served.check(x)
    object.__setattr__(served, "call", lambda x, call=served.call: call(swap(x)))
    with pytest.raises(InputError, match="disagree"):
        served.check(x)


def test_one_that_nothing_is_computed_from_moves_nothing(tmp_path):
    """Also where TensorFlow runs only what XLA compiles."""
    kernel = np.random.default_rng(1).normal(size=(3, 3, 2, 4)).astype(np.float32)

    def body(image, other, net):
        seen = tf.nn.conv2d(tf.reshape(image, (-1, 5, 4, 4)), kernel, 1, "VALID")
        return tf.reshape(tf.tanh(seen), (-1, 24)) @ tf.ones((24, 3)) * [1.0, 2.0, 3.0]

    specs = [spec(None, 5, 4, 4, name="image"), spec(None, 2, name="other")]
    served = served_model.read(export(tmp_path / "model", body, specs))
    x = np.random.default_rng(2).normal(size=(3, 82)).astype(np.float32)
    served.check(x)
    assert not served.network.affines[0].kernel[80:].any()


def test_live_models_that_differ_in_names_alone_have_other_fingerprints():
    def fingerprint(*names):
        given = [keras.Input((2,), name=name) for name in names]
        dense = keras.layers.Dense(2, kernel_initializer="ones")
        return served_model.read(keras.Model(given, dense(keras.layers.Add()(given)))).fingerprint

    assert fingerprint("a", "b") == fingerprint("b", "a") != fingerprint("a", "c")


TWO = [spec(None, 4, name="a"), spec(None, 4, name="b")]


def _sum(a, b, net):
    return net(a + 2.0 * b)


def _same_place(meta):
    inputs = meta.signature_def["serving_default"].inputs
    inputs["a"].name = inputs["b"].name


def _hidden_place(meta):
    """A server asks for what no client is asked for."""
    del meta.signature_def["serving_default"].inputs["b"]


def _no_place(meta):
    meta.signature_def["serving_default"].inputs["b"].name = "StatefulPartitionedCall:0"


def _negative_size(meta):
    for node in meta.graph_def.node:
        if node.op == "Placeholder" and len(node.attr["shape"].shape.dim) == 2:
            node.attr["shape"].shape.dim[1].size = -7


CHANGED = {
    "one place for two": (_same_place, "not each of one place of their own"),
    "a place that is not said": (_hidden_place, "which is computed first"),
    "no place": (_no_place, "is not a place for what a client sends"),
    "a size below nothing": (_negative_size, "must be >= 0"),
    "no input": (lambda meta: meta.signature_def["serving_default"].inputs.clear(), "no input"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_inputs_that_are_not_places_of_their_own_are_refused(case, tmp_path):
    change, word = CHANGED[case]
    path = export(tmp_path / "model", _sum, TWO)
    served_model.read(path)
    with edited(path) as meta:
        change(meta)
    assert_refused(path, word)


def test_names_that_steer_a_terminal_are_shown_as_what_they_are(tmp_path):
    path = export(tmp_path / "model", _sum, TWO)
    name = "b\x1b[2J\n"
    with edited(path) as meta:
        inputs = meta.signature_def["serving_default"].inputs
        inputs[name].CopyFrom(inputs["b"])
        del inputs["b"]
        for function in meta.object_graph_def.concrete_functions.values():
            fields = function.canonicalized_input_signature.tuple_value.values[1].dict_value.fields
            fields[name].CopyFrom(fields["b"])
            del fields["b"]
        for node in meta.object_graph_def.nodes:
            if node.bare_concrete_function.argument_keywords:
                node.bare_concrete_function.argument_keywords[:] = ["a", name]
    with pytest.raises(InputError, match="no array") as caught:
        served_model.read(path).inputs.joined({"a": np.ones((1, 4))})
    assert str(caught.value).isprintable()


def test_inputs_of_fixed_batches_are_checked_or_refused(tmp_path):
    path = export(tmp_path / "model", _sum, [spec(1, 4, name="a"), spec(None, 4, name="b")])
    served = served_model.read(path)
    with pytest.raises(InputError, match="its signature fails"):
        served.check(np.ones((3, 8), np.float32))
