"""Signatures that are missing, or take or do something else, are refused by name."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import Net, export
from refused import assert_refused, spec

from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


def test_an_unknown_signature_lists_the_known_ones(tmp_path):
    net, spec = Net(), tf.TensorSpec((None, 4), tf.float32)
    function = tf.function(net.__call__).get_concrete_function(spec)
    tf.saved_model.save(net, str(tmp_path), signatures={"classify": function, "predict": function})
    assert_refused(tmp_path, "'serving_default'", "classify, predict")
    assert_refused(tmp_path, "'nope'", "classify, predict", signature="nope")
    assert served_model.read(tmp_path, signature="predict").network.classes == 3


def test_no_signature_at_all_is_said(tmp_path):
    tf.saved_model.save(Net(), str(tmp_path / "model"))
    assert_refused(tmp_path / "model", "none")


INPUTS = {
    "two of integers": (
        [spec(None, 4, dtype=tf.uint8, name="a"), spec(None, 4, dtype=tf.uint8, name="b")],
        lambda a, b, n: n(tf.cast(a, tf.float32) + tf.cast(b, tf.float32)),
        "what is no float is held fixed, and here none is one. They are: 'a' uint8, 'b' uint8",
    ),
    "too large together": (
        [spec(None, 2**18 + 4, name="a"), spec(None, 2**18, name="b")],
        lambda a, b, n: n(a[:, :4] + b[:, :4]),
        "524292 entries is too large",
    ),
    "too many": (
        [spec(None, 4, name=f"x{place}") for place in range(257)],
        lambda *given: given[-1](given[0]),
        "number of inputs is too large: 257, at most 256",
    ),
    "one for all examples": (
        [spec(None, 4, name="a"), spec(name="b")],
        lambda a, b, n: n(a + b),
        "",
    ),
    "unknown width beside": (
        [spec(None, 4, name="a"), spec(None, None, name="b")],
        lambda a, b, n: n(a + tf.reshape(b, (-1, 4))),
        "known",
    ),
    "unknown width": ([spec(None, None)], lambda x, n: n(tf.ensure_shape(x, (None, 4))), ""),
    "unknown width, reshaped": (
        [spec(None, None)],
        lambda x, n: n(tf.reshape(x, (-1, 4))),
        "known",
    ),
    "unknown rank": ([tf.TensorSpec(None)], lambda x, n: n(tf.reshape(x, (-1, 4))), "known"),
    "strings": (
        [spec(None, 4, dtype=tf.string)],
        lambda x, n: n(tf.strings.to_number(x)),
        "StringToNumber",
    ),
    "half": ([spec(None, 4, dtype=tf.float16)], lambda x, n: x @ tf.cast(n.w, tf.float16), "Cast"),
    "integers without a cast": (
        [spec(None, 4, dtype=tf.int32)],
        lambda x, n: tf.cast(x * 2, tf.float32) @ n.w,
        "Mul",
    ),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs_that_are_not_of_one_known_size_and_type_are_refused(case, tmp_path):
    specs, body, word = INPUTS[case]
    assert_refused(export(tmp_path / "model", body, specs), word)


def test_a_fixed_batch_is_checked_or_refused_but_never_crashes(tmp_path):
    path = export(tmp_path / "model", specs=[spec(2, 4)])
    with contextlib.suppress(InputError):
        served_model.read(path).check(np.ones((3, 4), np.float32))


def test_a_signature_that_counts_is_refused(tmp_path):
    net = Net()
    net.calls = tf.Variable(0.0)

    def body(x, net):
        net.calls.assign_add(1.0)
        return net(x) * net.calls

    assert_refused(export(tmp_path, body, net=net))
