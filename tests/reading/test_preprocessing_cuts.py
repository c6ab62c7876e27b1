"""Models that begin with preprocessing layers: the refusal names the cut, and the cut certifies."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from refused import assert_refused

import keras_curv

L = keras.layers
WORDS, NUMBERS = np.array([["a"], ["?"]]), np.array([[1], [3]])


def _bins(x):
    return L.CategoryEncoding(4, "one_hot", name="enc")(L.Discretization([0.0, 1.0])(x))


def _embedded(x):
    return L.Flatten()(L.Embedding(4, 3, name="enc")(x))


def _text(x):
    words = L.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)(x)
    return L.Flatten()(L.Embedding(4, 3, name="enc")(words))


CASES = {
    "Discretization": (_bins, "float32", NUMBERS / 2.0),
    "CategoryEncoding": (L.CategoryEncoding(4, "multi_hot", name="enc"), "int32", NUMBERS),
    "Embedding": (_embedded, "int32", NUMBERS),
    "StringLookup": (
        L.StringLookup(vocabulary=["a", "b"], output_mode="one_hot", name="enc"),
        "string",
        WORDS,
    ),
    "Hashing": (L.Hashing(5, output_mode="one_hot", name="enc"), "string", WORDS),
    "TextVectorization": (_text, "string", WORDS),
}


def _advised(model):
    message = assert_refused(model, "to certify the part behind it")
    return message.rpartition("cut at '")[2].partition("'")[0]


@pytest.mark.parametrize("case", CASES)
def test_the_cut_that_is_named_certifies(case):
    encode, dtype, x = CASES[case]
    given = keras.Input((1,), dtype=dtype, name="given")
    model = keras.Model(given, L.Dense(3)(L.Dense(4, "tanh")(encode(given))))
    if case == "StringLookup":
        assert_refused(model, "int64 are not supported", "to certify the part behind", cut="enc")
    for cut in (_advised(model), *(["enc"] if case != "StringLookup" else [])):
        certifier = keras_curv.Certifier(model, cut=cut, method="crc")
        z = certifier.served.before(x)
        ours = certifier.served.network.logits(np.float64(z.reshape(2, -1))).numpy()
        np.testing.assert_allclose(ours, model(tf.constant(x)).numpy(), rtol=2e-5, atol=2e-5)
        assert (certifier.certify(x).radius > 0.0).all()


def test_a_feature_space():
    kinds = {"age": "float_normalized", "kind": "string_categorical"}
    space = keras.utils.FeatureSpace(kinds, output_mode="concat")
    x = {"age": np.array([[1.0], [2.0]]), "kind": np.array([["a"], ["b"]])}
    space.adapt(tf.data.Dataset.from_tensor_slices(x).batch(2))
    hidden = L.Dense(4, "tanh")(space.get_encoded_features())
    model = keras.Model(space.get_inputs(), L.Dense(3)(hidden))
    radius = keras_curv.certify(model, x, cut=_advised(model), method="crc").radius
    assert radius.shape == (2,) and (radius > 0.0).all()
