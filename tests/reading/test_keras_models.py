"""Keras models that this project did not make are read as what they compute."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from keras_oracle import HEADS, assert_reads_as, examples, folded, randomize, sequential

from keras_curv.network.network import Network

L = keras.layers


def functional():
    """Activations as an argument and as a layer; `Dense` with none in between."""
    image = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(image)
    hidden = keras.layers.Dense(4)(hidden)
    hidden = keras.layers.Activation("sigmoid")(hidden)
    return randomize(keras.Model(image, keras.layers.Dense(3)(hidden)))


def normalized(shape=(6,), **options):
    layer = keras.layers.Normalization(**options)
    layer.adapt(np.random.default_rng(0).normal(2.0, 3.0, (20, *shape)).astype(np.float32))
    head = [keras.layers.Flatten()] if len(shape) > 1 else []
    layers = [layer, *head, keras.layers.Dense(5, "softplus"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input(shape), *layers])
    for dense in layers[-2:]:
        randomize(dense)
    return model


def with_batch_norm(where, **options):
    norm = keras.layers.BatchNormalization(**options)
    layers = [keras.layers.Dense(5), keras.layers.Activation("softplus"), keras.layers.Dense(3)]
    layers.insert(where, norm)
    return sequential((6,), *layers)


PLAIN = {
    "argument": lambda: sequential((6,), L.Dense(5, "softplus"), L.Dense(4, "tanh"), L.Dense(3)),
    "one layer": lambda: sequential((6,), L.Dense(3)),
    "functional": functional,
    "flatten": lambda: sequential((2, 3, 1), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3)),
    "reshape": lambda: sequential(
        (2, 3), L.Reshape((3, 2, 1)), L.Reshape((-1,)), L.Dense(5, "tanh"), L.Dense(3)
    ),
    "permute": lambda: sequential(
        (2, 3), L.Permute((2, 1)), L.Flatten(), L.Dense(5, "softplus"), L.Dense(3)
    ),
    "permute 3": lambda: sequential(
        (2, 3, 4), L.Permute((3, 1, 2)), L.Flatten(), L.Dense(5, "softplus"), L.Dense(3)
    ),
    "dropout": lambda: sequential(
        (6,), L.Dropout(0.5), L.Dense(5, "tanh"), L.Dropout(0.3), L.Dense(3)
    ),
    "no bias": lambda: sequential(
        (6,), L.Dense(5, "sigmoid", use_bias=False), L.Dense(3, use_bias=False)
    ),
    "activation first": lambda: sequential((6,), L.Activation("tanh"), L.Dense(3)),
    "permuted hidden": lambda: sequential(
        (5,), L.Dense(6, "tanh"), L.Reshape((2, 3)), L.Permute((2, 1)), L.Flatten(), L.Dense(3)
    ),
    "float64": lambda: sequential(
        (6,),
        L.Dense(5, "softplus", dtype="float64"),
        L.Dense(3, dtype="float64"),
        dtype="float64",
    ),
}
FOLDED = {
    "two dense": lambda: sequential(
        (6,), L.Dense(5), L.Dense(4, "softplus"), L.Dense(7), L.Dense(3)
    ),
    "rescaling": lambda: sequential(
        (6,), L.Rescaling(1 / 3, offset=-0.5), L.Dense(5, "softplus"), L.Dense(3)
    ),
    "rescaled permuted": lambda: sequential(
        (2, 3),
        L.Rescaling(0.3, offset=0.1),
        L.Permute((2, 1)),
        L.Flatten(),
        L.Dense(5, "tanh"),
        L.Dense(3),
    ),
    "normalization": normalized,
    "normalization, one number": lambda: normalized(axis=None),
    "normalization of rows": lambda: normalized((2, 3), axis=1),
    "normalization of columns": lambda: normalized((2, 3), axis=-1),
    "normalization inverted": lambda: normalized(invert=True),
    "batch norm first": lambda: with_batch_norm(0),
    "batch norm before activation": lambda: with_batch_norm(1, epsilon=0.25),
    "batch norm after activation": lambda: with_batch_norm(2, epsilon=0.25),
    "batch norm last": lambda: with_batch_norm(3),
    "batch norm unscaled": lambda: with_batch_norm(1, scale=False),
    "batch norm uncentered": lambda: with_batch_norm(2, center=False),
    "batch norm bare": lambda: with_batch_norm(1, scale=False, center=False),
}
ENDINGS = {
    "softmax layer": (lambda: [L.Dense(3), L.Softmax()], "softmax"),
    "softmax": (lambda: [L.Dense(3, "softmax")], "softmax"),
    "log_softmax": (lambda: [L.Dense(3, "log_softmax")], "log_softmax"),
    "sigmoid": (lambda: [L.Dense(3, "sigmoid")], "sigmoid"),
    "dropped": (lambda: [L.Dense(3), L.Dropout(0.2), L.Activation("softmax")], "softmax"),
}


def either_way(cases):
    """Each case is read in one of the two ways, the next one in the other."""
    ways = zip(cases, itertools.cycle(["directory", "live"]), strict=False)
    return pytest.mark.parametrize(("case", "read_keras"), ways, indirect=["read_keras"])


@either_way(PLAIN)
def test_keras_3_models_are_read_as_their_weights(case, read_keras):
    model = PLAIN[case]()
    served = read_keras(model)
    assert served.input_shape == tuple(model.inputs[0].shape[1:])
    x = examples(served.input_shape, served.input_dtype.as_numpy_dtype)
    assert_reads_as(served, folded(model), x)


@either_way(FOLDED)
def test_keras_3_normalisations_are_folded_into_the_weights(case, read_keras):
    model = FOLDED[case]()
    served = read_keras(model)
    assert_reads_as(served, folded(model), examples(served.input_shape), rtol=1e-6)


@either_way(ENDINGS)
def test_keras_3_heads_are_taken_off(case, read_keras):
    build, head = ENDINGS[case]
    model = sequential((6,), L.Dense(5, "softplus"), *build())
    assert_reads_as(read_keras(model), folded(model), examples((6,)), head)


def test_one_sigmoid_unit_is_two_classes(read_keras):
    model = sequential((6,), L.Dense(5, "softplus"), L.Dense(1, "sigmoid"))
    first, last = model.layers
    kernel, bias = np.float64(last.kernel), np.float64(last.bias)
    expected = Network.from_weights(
        [np.float64(first.kernel), np.hstack([0.0 * kernel, kernel])],
        [np.float64(first.bias), np.hstack([0.0 * bias, bias])],
        "softplus",
    )
    assert_reads_as(read_keras(model), expected, examples((6,)), "binary_sigmoid")


def test_activation_functions_called_outside_of_layers_are_read(read_keras):
    image = keras.Input((6,))
    hidden = keras.activations.softplus(L.Dense(5)(image))
    hidden = keras.activations.tanh(L.Dense(4)(hidden))
    model = randomize(keras.Model(image, keras.activations.softmax(L.Dense(3)(hidden))))
    dense = [layer for layer in model.layers if isinstance(layer, L.Dense)]
    expected = Network.from_weights(
        [np.float64(layer.kernel) for layer in dense],
        [np.float64(layer.bias) for layer in dense],
        ["softplus", "tanh"],
    )
    assert_reads_as(read_keras(model), expected, examples((6,)), "softmax")


def test_permuted_sigmoid_outputs_keep_their_order(read_keras):
    """Sigmoid looks like a head, but its classes are moved after it: class 1 is unit 3."""
    model = sequential(
        (5,), L.Dense(6, "sigmoid"), L.Reshape((2, 3)), L.Permute((2, 1)), L.Flatten()
    )
    kernel, bias = (np.float64(weight) for weight in model.get_weights())
    x = examples((5,))
    units = HEADS["sigmoid"](np.float64(x) @ kernel + bias)
    order = np.arange(6).reshape(2, 3).T.reshape(-1)
    served = read_keras(model)
    ours = HEADS[served.head](served.network.logits(np.float64(x)).numpy())
    np.testing.assert_allclose(ours, units[:, order], rtol=1e-12)
    served.check(x)


def test_keras_images_of_bytes_are_read(read_keras):
    model = sequential(
        (2, 3), L.Rescaling(1 / 255), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3), dtype="uint8"
    )
    x = examples((2, 3), np.uint8)
    assert_reads_as(read_keras(model), folded(model), x, rtol=1e-6)


def test_an_offset_that_is_a_whole_number_is_read(read_keras):
    """Keras casts it to a float in the graph."""
    keras.utils.set_random_seed(0)
    scaled = L.Rescaling(1 / 127.5, offset=-1)
    model = keras.Sequential([keras.Input((4, 4, 1)), scaled, L.Flatten(), L.Dense(3)])
    served = read_keras(model)
    x = np.random.default_rng(0).uniform(0.0, 255.0, (5, 4, 4, 1)).astype(np.float32)
    served.check(x)
    found = served.network.logits(x.reshape(5, 16).astype(np.float64))
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-5)
