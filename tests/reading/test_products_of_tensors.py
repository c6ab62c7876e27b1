"""Layers that multiply and divide what depends on the input: read as squares, and certified."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


def _of(shape, join):
    def build():
        given = keras.Input(shape)
        hidden = join(given)
        if len(hidden.shape) > 2:
            hidden = L.Flatten()(hidden)
        return keras.Model(given, L.Dense(3)(hidden))

    return build


def _of_layers(shape, *layers):
    return lambda: keras.Sequential([keras.Input(shape), *(make() for make in layers), L.Dense(3)])


def _squeezed(x):
    x = L.Conv2D(6, 3, strides=2, activation="silu")(x)
    scale = L.GlobalAveragePooling2D(keepdims=True)(x)
    scale = L.Conv2D(6, 1, activation="hard_sigmoid")(L.Conv2D(3, 1, activation="relu")(scale))
    return L.GlobalAveragePooling2D()(L.Multiply()([x, scale]))


def _block(x):
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.MultiHeadAttention(2, 2)(y, y)])
    y = L.Dense(6, activation="gelu")(L.LayerNormalization()(x))
    return L.GlobalAveragePooling1D()(L.Add()([x, L.Dense(4)(y)]))


def _response_norm(x):
    squares = keras.ops.sum(keras.ops.square(x), axis=1, keepdims=True)
    size = keras.ops.sqrt(squares + 0.1)
    return x * (size / (keras.ops.mean(size, axis=-1, keepdims=True) + 1e-3))


MODELS = {
    "squeeze and excite": _of((7, 7, 2), _squeezed),
    "gates": _of((4,), lambda x: L.Multiply()([L.Dense(5, "tanh")(x), L.Dense(5)(x)])),
    "glu": _of((4,), lambda x: keras.ops.glu(L.Dense(8)(x))),
    "layer normalization": _of_layers((4,), lambda: L.Dense(6), L.LayerNormalization),
    "without an offset": _of_layers(
        (4,), lambda: L.Dense(6), lambda: L.LayerNormalization(center=False, scale=False)
    ),
    "group normalization": _of_layers(
        (3, 3, 4), lambda: L.GroupNormalization(2), lambda: L.Activation("relu"), L.Flatten
    ),
    "unit normalization": _of_layers((4,), lambda: L.Dense(6), L.UnitNormalization),
    "rms normalization": _of_layers((4,), lambda: L.Dense(6), L.RMSNormalization),
    "response normalization": _of((3, 4), _response_norm),
    "softmax inside": _of_layers((4,), lambda: L.Dense(4, "softmax")),
    "softmax of rows": _of((3, 4), lambda x: L.Softmax()(L.Dense(3)(x))),
    "attention": _of((3, 4), lambda x: L.Attention()([L.Dense(4)(x), x])),
    "additive attention": _of((3, 4), lambda x: L.AdditiveAttention()([L.Dense(4)(x), x])),
    "grouped queries": _of((3, 4), lambda x: L.GroupQueryAttention(2, 4, 2)(x, x)),
    "transformer": _of((3, 4), _block),
    "cosine": _of((4,), lambda x: L.Dot(1, normalize=True)([L.Dense(3)(x), L.Dense(3)(x)])),
    "LSTM": _of_layers((3, 2), lambda: L.LSTM(3, unroll=True)),
    "GRU": _of_layers((3, 2), lambda: L.GRU(3, unroll=True)),
    "SimpleRNN": _of_layers(
        (3, 2), lambda: L.SimpleRNN(3, unroll=True, return_sequences=True), L.Flatten
    ),
    "both ways": _of_layers((3, 2), lambda: L.Bidirectional(L.LSTM(2, unroll=True))),
    "quotient": _of((4,), lambda x: L.Dense(3)(x) / (1.0 + keras.ops.softplus(L.Dense(3)(x)))),
}


def _model(name, seed=0):
    keras.utils.set_random_seed(seed)
    model = MODELS[name]()
    rng = np.random.default_rng(seed)
    for weight in model.weights:  # no scale of 1, no offset of 0
        weight.assign(weight + 0.3 * rng.standard_normal(weight.shape))
    return model


def _examples(model, count, seed=1):
    shape = (count, *model.input_shape[1:])
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", params=list(MODELS))
def certified(request):
    """A model, examples, and their certificates."""
    model = _model(request.param)
    x = _examples(model, 3)
    return model, x, keras_curv.certify(model, x, guarantee="real")


def test_it_is_the_function_that_keras_computes(certified):
    model, _, _ = certified
    served = served_model.read(model)
    for size in (0.1, 1.0, 5.0):
        x = (size * _examples(model, 8, 2)).astype(np.float32)
        ours = served.network.logits(tf.constant(x.reshape(8, -1), tf.float64)).numpy()
        np.testing.assert_allclose(ours, model.predict(x, verbose=0), rtol=2e-3, atol=2e-4)


def test_no_attack_changes_the_class_within_the_radius(certified):
    """Descent on the real network from the centre and at random, projected to 0.9999 r."""
    model, x, found = certified
    served, rng = served_model.read(model), np.random.default_rng(3)
    assert np.all(found.radius > 0.0)
    flat = np.repeat(x.reshape(len(x), -1).astype(np.float64), 16, axis=0)
    radius = 0.9999 * np.repeat(found.radius, 16)[:, None]
    label = np.repeat(found.prediction, 16).astype(np.int32)
    delta = rng.standard_normal(flat.shape)
    delta *= radius / np.linalg.norm(delta, axis=1, keepdims=True)
    delta[::16] = 0.0
    for step in range(12):
        logits = served.network.logits(tf.constant(flat + delta)).numpy()
        assert np.all(logits.argmax(axis=1) == label)
        rival = served.network.runner_up(tf.constant(logits), tf.constant(label))
        _, gradient = served.network.margin_and_gradient(
            tf.constant(flat + delta), tf.constant(label), rival
        )
        gradient = gradient.numpy()
        gradient /= np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1e-300)
        delta -= radius * gradient / (1.0 + step)
        length = np.linalg.norm(delta, axis=1, keepdims=True)
        delta *= np.minimum(1.0, radius / np.maximum(length, 1e-300))


def test_no_value_leaves_its_interval(certified):
    model, x, found = certified
    network = served_model.read(model).network
    method, rng = LinearBoundCertificate(network), np.random.default_rng(4)
    flat = x.reshape(len(x), -1).astype(np.float64)
    for factor in (0.5, 1.0, 2.0):
        radius = factor * found.radius
        balls = method.balls_of(Centres(network, flat, None), radius)
        with np.errstate(all="ignore"):
            balls.bound_layers()
        for _ in range(40):
            delta = rng.standard_normal(flat.shape)
            delta *= (radius / np.linalg.norm(delta, axis=1))[:, None]
            pre, _ = network.forward(tf.constant(flat + delta))
            for z, layer in zip(pre, balls.layers, strict=True):
                slack = 1e-12 * (1.0 + np.abs(z.numpy()))
                assert np.all(z.numpy() >= layer.low - slack)
                assert np.all(z.numpy() <= layer.high + slack)


@pytest.mark.parametrize(
    ("function", "boundary"),
    [
        # 1/x > 1/2 up to x = 2; −1/x > −2 down to x = 1/2; x⁻¹ᐟ² < 2 down to x = 1/4.
        (lambda x: tf.concat([1.0 / x, 0.0 * x + 0.5], axis=1), 1.0),
        (lambda x: tf.concat([0.0 * x + 2.0, 1.0 / x], axis=1), 0.5),
        (lambda x: tf.concat([0.0 * x + 2.0, tf.math.rsqrt(x)], axis=1), 0.75),
        (lambda x: tf.concat([tf.sqrt(x), 0.0 * x + 0.5], axis=1), 0.75),
        (lambda x: tf.concat([0.0 * x + 4.0, x * x], axis=1), 1.0),
    ],
)
def test_nothing_is_proved_where_a_function_is_undefined(function, boundary):
    """The exact radius where the function decides; never 1 or more if that is where it ends."""
    module = tf.Module()
    module.serve = tf.function(function, input_signature=[tf.TensorSpec((None, 1))])
    found = keras_curv.certify(_saved(module), np.ones((1, 1), np.float32), guarantee="real")
    assert found.prediction[0] == 0
    assert 0.98 * boundary <= found.radius[0] <= boundary
    if boundary == 1.0:
        return
    assert found.radius[0] < 1.0


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory):
    _saved.folder = tmp_path_factory


def _saved(module):
    folder = _saved.folder.mktemp("model") / "1"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def test_float32_is_refused_by_name():
    model, words = _model("gates"), "'square', of a product, power or norm.*the guarantee real"
    with pytest.raises(InputError, match=words):
        keras_curv.certify(model, _examples(model, 1), guarantee="float32")


@pytest.mark.parametrize("size", [1e-6, 1e6])
@pytest.mark.parametrize("name", ["layer normalization", "attention", "quotient"])
def test_scales_of_the_input(name, size):
    """A model of inputs that are scaled has radii that are scaled."""
    model = _model(name)
    given = keras.Input(model.input_shape[1:])
    scaled = keras.Model(given, model(L.Rescaling(1.0 / size)(given)))
    x = _examples(model, 2)
    one = keras_curv.certify(model, x, guarantee="real").radius
    other = keras_curv.certify(scaled, (x * size).astype(np.float32), guarantee="real").radius
    np.testing.assert_allclose(other, size * one, rtol=0.2)


def test_two_examples_of_different_classes_are_no_nearer_than_their_radii():
    for name in ("attention", "GRU"):
        model = _model(name)
        x = _examples(model, 24, 5)
        found = keras_curv.certify(model, x.astype(np.float32), guarantee="real")
        flat = x.reshape(len(x), -1).astype(np.float32).astype(np.float64)
        apart = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        differ = found.prediction[:, None] != found.prediction[None]
        assert differ.any()
        assert np.all((found.radius[:, None] + found.radius[None] <= apart)[differ])
