"""Keras models without a rule are refused, exported and live."""

from __future__ import annotations

import itertools

import keras
import pytest
import tensorflow as tf
from function_layer import FunctionLayer
from hostile_models.models import Net
from refused import assert_refused

from keras_curv.errors import InputError
from keras_curv.reading import served_model
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer

L = keras.layers


def _of(join, shape=(4,)):
    def build():
        given = keras.Input(shape)
        return keras.Model(given, L.Dense(3)(join(given)))

    return build


def _stack(*layers, shape=(4,)):
    return lambda: keras.Sequential(
        [keras.Input(shape), *(layer() for layer in layers), L.Dense(3)]
    )


def _of_words():
    words = L.TextVectorization(max_tokens=20, output_sequence_length=4)
    words.adapt(["a b c", "d e"])
    layers = words, L.Embedding(20, 3), L.Flatten(), L.Dense(2)
    return keras.Sequential([keras.Input((), dtype="string"), *layers])


def _step(i, z):
    return i + 1, 0.5 * z


KERAS = {
    "relu with a jump": (
        _stack(lambda: L.Dense(5), lambda: L.ReLU(threshold=0.5)),
        "ReLU(threshold)",
    ),
    "hard shrink": (_stack(lambda: L.Dense(5, "hard_shrink")), "op "),
    "slice of examples": (_stack(lambda: L.Lambda(lambda x: x[1:])), "op StridedSlice"),
    "elu with alpha": (_stack(lambda: L.Dense(5), lambda: L.ELU(alpha=0.5)), "op "),
    "mixed float16": (_stack(lambda: L.Dense(5, "tanh", dtype="mixed_float16")), "float16"),
    "mixed bfloat16": (_stack(lambda: L.Dense(5, "tanh", dtype="mixed_bfloat16")), "bfloat16"),
    "lstm": (_stack(lambda: L.LSTM(5), shape=(3, 4)), "recurrent layers"),
    "gelu in half precision": (
        _stack(lambda: L.Dense(5, "gelu", dtype="mixed_float16")),
        "read where it is computed in float32",
    ),
    "layer over time": (
        _stack(lambda: L.TimeDistributed(L.Dense(2)), L.Flatten, shape=(3, 4)),
        "as TimeDistributed does; Dense and EinsumDense act on every step",
    ),
    "unknown size": (_stack(L.GlobalAveragePooling1D, shape=(None, 4)), ""),
    "recurrence": (_stack(lambda: L.SimpleRNN(5), shape=(3, 4)), "recurrent layers"),
    "examples in a row": (
        _of(lambda x: FunctionLayer(lambda z: tf.concat([z, z], axis=0))(x)),
        "op ConcatV2",
    ),
    "examples added across": (
        _of(lambda x: FunctionLayer(lambda z: (z + tf.reshape(z, (-1, 1, 4)))[:, 0])(x)),
        "would mix",
    ),
    "largest of all examples": (
        _of(lambda x: FunctionLayer(lambda z: z - tf.reduce_max(z, axis=0))(x)),
        "op Max",
    ),
    "loop": (
        _of(
            lambda x: FunctionLayer(lambda z: tf.while_loop(lambda i, _: i < 3, _step, (0, z))[1])(
                x
            )
        ),
        "",
    ),
}


@pytest.mark.parametrize(("case", "live"), zip(KERAS, itertools.cycle([False, True]), strict=False))
def test_keras_models_without_a_rule_are_refused(case, live, tmp_path):
    build, word = KERAS[case]
    model = build()
    if not live:
        model.export(str(tmp_path / "model"), verbose=False)
    assert_refused(model if live else tmp_path / "model", word)


def test_a_model_of_words_is_not_called_broken(tmp_path):
    """Its table lies among the variables, as strings."""
    model = _of_words()
    assert_refused(model, "op StringLower")
    model.export(str(tmp_path / "model"), verbose=False)
    assert_refused(tmp_path / "model", "a table of words")


def test_a_model_saved_without_its_variables_is_pointed_to_export(tmp_path):
    """`tf.saved_model.save` does so with models of Keras 3."""
    tf.saved_model.save(_stack(lambda: L.Dense(5, "tanh"))(), str(tmp_path / "model"))
    assert_refused(tmp_path / "model", "tf.saved_model.save", "use model.export(directory)")


def test_a_model_that_cannot_be_called_is_refused():
    """Keras takes the layer's word for what comes out of it."""

    class Wrong(L.Layer):
        def call(self, x):
            return tf.concat([x, x[:, :2, None]], axis=1)

        def compute_output_shape(self, shape):
            return (shape[0], shape[1] + 2)

        def compute_output_spec(self, x):
            return keras.KerasTensor(self.compute_output_shape(x.shape), x.dtype)

    assert_refused(_of(lambda x: Wrong()(x))(), "cannot be called as it is served")


def test_a_model_without_a_shape_is_refused():
    assert_refused(keras.Sequential([L.Dense(3)]), "not a built Keras model")
    base = keras.Sequential([keras.Input((4,)), L.Dense(5, "softplus"), L.Dense(3)])
    for wrapper in (CRTModel(base, 0.1), CurvatureRegularizer(base, 0.1)):
        assert_refused(wrapper, "pass `model.base`")


@pytest.mark.parametrize("source", [None, 3, Net()])
def test_things_that_are_no_model_are_refused(source):
    with pytest.raises(InputError, match="not a built Keras model"):
        served_model.read(source)
