"""Models that this project did not make are read as what they compute.

The oracle never looks at a graph: it folds the weights that a model was built from, in numpy,
layer by layer. Every width is different, so that a transposed kernel cannot go unseen.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import keras
import mpmath
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.reading import saved_model

# Float32 execution of nets this small: about 20 roundings of numbers up to 10.
SERVED_TOLERANCE = 2e-5

HEADS = {
    "logits": lambda z: z,
    "softmax": lambda z: np.exp(z) / np.exp(z).sum(axis=1, keepdims=True),
    "log_softmax": lambda z: z - np.log(np.exp(z).sum(axis=1, keepdims=True)),
    "sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "binary_sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z[:, 1:])),
}


def radii(network, x):
    """Certified radii. Eager: tracing the search takes longer than running it here."""
    flat = np.float64(x.reshape(len(x), -1))
    tf.config.run_functions_eagerly(True)
    try:
        return CurvatureCertificate(network, max_steps=4).certify(flat).radius
    finally:
        tf.config.run_functions_eagerly(False)


def examples(shape, dtype=np.float32, count=3, seed=7):
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 256, (count, *shape)).astype(dtype)
    return rng.normal(size=(count, *shape)).astype(dtype)


def assert_reads_as(served, expected, x, head="logits", rtol=0.0):
    """Weights, served outputs and radii agree; `rtol` 0 asks for the very same weights."""
    network = served.network
    assert served.head == head
    assert [a.name for a in network.activations] == [a.name for a in expected.activations]
    for read, built in zip(network.affines, expected.affines, strict=True):
        for got, wanted in ((read.kernel, built.kernel), (read.bias, built.bias)):
            # Relative to the largest entry: a sum of folded terms may cancel.
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max())
        if rtol == 0.0:
            assert (read.kernel_error, read.bias_error) == (0.0, 0.0)
    flat = np.float64(x.reshape(len(x), -1))
    ours = HEADS[head](network.logits(flat).numpy())
    outputs = served.call(tf.constant(x))
    np.testing.assert_allclose(outputs, ours, rtol=SERVED_TOLERANCE, atol=SERVED_TOLERANCE)
    served.check(x)
    if served.fingerprint:  # a live model gives the same network, so do not pay twice
        proved = radii(expected, x)
        assert np.count_nonzero(proved) >= 2
        np.testing.assert_allclose(radii(network, x), proved, rtol=max(rtol, 1e-9))


# Oracle: one Keras layer as `a → a A + b` in float64, its activation apart.


def _dense(layer, shape):
    kernel = np.float64(layer.kernel)
    bias = np.float64(layer.bias) if layer.use_bias else np.zeros(kernel.shape[1])
    return kernel, bias


def _diagonal(scale, shift, shape):
    scale, shift = (np.broadcast_to(np.float64(v), shape).reshape(-1) for v in (scale, shift))
    return np.diag(scale), shift


def _rescaling(layer, shape):
    return _diagonal(np.float32(layer.scale), np.float32(layer.offset), shape)


def _normalization(layer, shape):
    mean = np.float64(layer.mean)[0]
    deviation = np.maximum(np.sqrt(np.float64(layer.variance)[0]), 1e-7)
    if layer.invert:
        return _diagonal(deviation, mean, shape)
    return _diagonal(1.0 / deviation, -mean / deviation, shape)


def _batch_normalization(layer, shape):
    deviation = np.sqrt(np.float64(layer.moving_variance) + np.float64(np.float32(layer.epsilon)))
    scale = (np.float64(layer.gamma) if layer.scale else 1.0) / deviation
    center = np.float64(layer.beta) if layer.center else 0.0
    return _diagonal(scale, center - np.float64(layer.moving_mean) * scale, shape)


def _permute(layer, shape):
    positions = np.arange(np.prod(shape)).reshape(shape)
    order = positions.transpose([axis - 1 for axis in layer.dims]).reshape(-1)
    return np.eye(len(order))[:, order], np.zeros(len(order))


ORACLE = {
    "Dense": _dense,
    "Rescaling": _rescaling,
    "Normalization": _normalization,
    "BatchNormalization": _batch_normalization,
    "Permute": _permute,
}


def folded(model):
    """The Keras model as a Network, a head excluded."""
    affines, names, current = [], [], None
    for layer in model.layers:
        kind = type(layer).__name__
        if kind in ORACLE:
            shape = tuple(layer.input.shape[1:])
            kernel, bias = ORACLE[kind](layer, shape)
            if current is None:
                current = kernel, bias
            else:
                current = current[0] @ kernel, current[1] @ kernel + bias
        name = layer.activation.__name__ if hasattr(layer, "activation") else "linear"
        if name in ("softplus", "tanh", "sigmoid") and layer is not model.layers[-1]:
            size = int(np.prod(layer.output.shape[1:]))
            affines.append(current or (np.eye(size), np.zeros(size)))
            names.append(name)
            current = None
    return Network.from_weights(*zip(*[*affines, current], strict=True), names)


def randomize(model, seed=3):
    """Every weight non-trivial, variances positive."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = rng.normal(size=weight.shape)
        if "variance" in weight.path or "gamma" in weight.path:
            value = 0.5 + np.abs(value)
        if weight.path.endswith("count"):
            continue
        weight.assign(value.astype(weight.dtype))
    return model


def sequential(shape, *layers, dtype="float32"):
    return randomize(keras.Sequential([keras.Input(shape, dtype=dtype), *layers]))


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


L = keras.layers
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


@pytest.fixture(params=["directory", "live"])
def read_keras(request, tmp_path):
    def read(model):
        if request.param == "live":
            return saved_model.read(model)
        model.export(str(tmp_path / "model"), verbose=False)
        return saved_model.read(tmp_path / "model")

    return read


@pytest.mark.parametrize("case", PLAIN)
def test_keras_3_models_are_read_as_their_weights(case, read_keras):
    model = PLAIN[case]()
    served = read_keras(model)
    assert served.input_shape == tuple(model.inputs[0].shape[1:])
    x = examples(served.input_shape, served.input_dtype.as_numpy_dtype)
    assert_reads_as(served, folded(model), x)


@pytest.mark.parametrize("case", FOLDED)
def test_keras_3_normalisations_are_folded_into_the_weights(case, read_keras):
    model = FOLDED[case]()
    served = read_keras(model)
    assert_reads_as(served, folded(model), examples(served.input_shape), rtol=1e-6)


@pytest.mark.parametrize("case", ENDINGS)
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


def keras_2(trained=False):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.InputLayer((2, 3)),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.Activation("softplus"),
            layers.Dropout(0.4),
            layers.Dense(3, activation="softmax"),
        ]
    )
    rng = np.random.default_rng(5)
    model.set_weights([0.3 + np.abs(rng.normal(size=w.shape)) for w in model.get_weights()])
    if trained:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(examples((2, 3), count=8), np.arange(8) % 3, epochs=1, verbose=0)
    return model


def keras_2_oracle(model):
    kernel, bias, gamma, beta, mean, variance, last, last_bias = map(
        np.float64, model.get_weights()
    )
    scale = gamma / np.sqrt(variance + np.float64(np.float32(1e-3)))
    return Network.from_weights(
        [kernel * scale, last], [(bias - mean) * scale + beta, last_bias], "softplus"
    )


SAVE_KERAS_2 = {
    "saved_model.save": lambda model, path: tf.saved_model.save(model, path),
    "export": lambda model, path: model.export(path),
    "save, trained": lambda model, path: model.save(path, save_format="tf"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", SAVE_KERAS_2)
def test_keras_2_models_are_read(how, tmp_path):
    model = keras_2(trained="trained" in how)
    SAVE_KERAS_2[how](model, str(tmp_path / "model"))
    served = saved_model.read(tmp_path / "model")
    assert_reads_as(served, keras_2_oracle(model), examples((2, 3)), "softmax", rtol=1e-6)


class Net(tf.Module):
    """x (n, 6) → 5 hidden units, softplus → 3 logits, written out by `body(x, net)`."""

    def __init__(self, body=None, dtype=np.float32, seed=11, wrap=tf.Variable):
        super().__init__()
        rng = np.random.default_rng(seed)
        shapes = {"w": (6, 5), "b": (5,), "v": (5, 3), "c": (3,), "mean": (6,), "s": (6,)}
        self.arrays = {
            n: (0.2 + np.abs(rng.normal(size=s))).astype(dtype) for n, s in shapes.items()
        }
        self.arrays["w"] *= np.where(rng.random((6, 5)) < 0.5, -1, 1).astype(dtype)
        self.arrays["v"] *= np.where(rng.random((5, 3)) < 0.5, -1, 1).astype(dtype)
        for name, array in self.arrays.items():
            setattr(self, name, wrap(array))
        self.body = body or plain_body

    def export(self, path, shape=(6,), dtype=tf.float32, **outputs):
        spec = tf.TensorSpec((None, *shape), dtype, name="x")
        function = tf.function(lambda x: self.body(x, self), input_signature=[spec])
        self.function = function
        tf.saved_model.save(self, str(path), signatures=function.get_concrete_function())
        return path

    def oracle(self, w=None, b=None, v=None, c=None):
        def pick(given, name):
            return np.float64(self.arrays[name]) if given is None else given

        return Network.from_weights(
            [pick(w, "w"), pick(v, "v")], [pick(b, "b"), pick(c, "c")], "softplus"
        )


def plain_body(x, net):
    return tf.nn.softplus(x @ net.w + net.b) @ net.v + net.c


def _outer(x, net, affine):
    return tf.matmul(tf.nn.softplus(affine), net.v) + net.c


def _raw_product(x, net):
    product = tf.raw_ops.BatchMatMulV2(x=x, y=tf.transpose(net.w), adj_y=True)
    return _outer(x, net, product + net.b)


def _through_shape(x, net):
    flat = tf.reshape(x, tf.stack([tf.shape(x)[0], 3, 2]))
    flat = tf.reshape(flat, tf.concat([tf.shape(flat)[:1], [-1]], axis=0))
    return _outer(x, net, flat @ net.w + net.b)


def _unit_axes(x, net):
    wide = tf.expand_dims(tf.expand_dims(x, -1), 1)
    return _outer(x, net, tf.squeeze(wide, [1, -1]) @ net.w + net.b)


def _transposed(x, net):
    turned = tf.transpose(tf.reshape(x, (-1, 2, 3)), (0, 2, 1))
    return _outer(x, net, tf.reshape(turned, (-1, 6)) @ net.w + net.b)


TURN = np.eye(6)[:, np.arange(6).reshape(2, 3).T.reshape(-1)]

# body, and the first layer (kernel, bias) in terms of the arrays, where it is not (w, b)
SAME = {
    "operator": lambda x, n: _outer(x, n, x @ n.w + n.b),
    "bias on the left": lambda x, n: _outer(x, n, n.b + tf.matmul(x, n.w)),
    "bias_add": lambda x, n: _outer(x, n, tf.nn.bias_add(x @ n.w, n.b)),
    "transpose_b": lambda x, n: _outer(
        x, n, tf.matmul(x, tf.transpose(n.w), transpose_b=True) + n.b
    ),
    "adjoint_b": lambda x, n: _outer(x, n, tf.matmul(x, tf.transpose(n.w), adjoint_b=True) + n.b),
    "batch product": _raw_product,
    "minus minus": lambda x, n: _outer(x, n, x @ n.w - (-n.b)),
    "bias of rank 2": lambda x, n: _outer(x, n, x @ n.w + tf.reshape(n.b, (1, 5))),
    "shape ops": _through_shape,
    "unit axes": _unit_axes,
    "identities": lambda x, n: tf.identity(
        _outer(x, n, tf.stop_gradient(tf.identity(x)) @ n.w + n.b)
    ),
    "double negation": lambda x, n: _outer(x, n, -tf.negative(x @ n.w + n.b)),
    "powers of two": lambda x, n: _outer(x, n, ((4.0 * x) / 2.0) @ (n.w / 2.0) + n.b),
}
CHANGED = {
    "subtracted from": (
        lambda x, n: _outer(x, n, n.b - x @ n.w),
        lambda w, b, m, s: (-w, b),
    ),
    "negated": (lambda x, n: _outer(x, n, -(x @ n.w + n.b)), lambda w, b, m, s: (-w, -b)),
    "standardised": (
        lambda x, n: _outer(x, n, ((x - n.mean) / n.s) @ n.w + n.b),
        lambda w, b, m, s: (w / s[:, None], b - (m / s) @ w),
    ),
    "divided": (
        lambda x, n: _outer(x, n, (x / 255.0) @ n.w + n.b),
        lambda w, b, m, s: (w / 255.0, b),
    ),
    "variance": (
        lambda x, n: _outer(x, n, (x - n.mean) * tf.math.rsqrt(n.s + 0.5) @ n.w + n.b),
        lambda w, b, m, s: (w / np.sqrt(s + 0.5)[:, None], b - (m / np.sqrt(s + 0.5)) @ w),
    ),
    "squares": (
        lambda x, n: _outer(x, n, (x * tf.square(n.s) * tf.sqrt(n.mean)) @ n.w + n.b),
        lambda w, b, m, s: (w * (s**2 * np.sqrt(m))[:, None], b),
    ),
    "reciprocal": (
        lambda x, n: _outer(x, n, (x * tf.math.reciprocal(n.s)) @ n.w + n.b),
        lambda w, b, m, s: (w / s[:, None], b),
    ),
    "floored": (
        lambda x, n: _outer(x, n, (x * tf.maximum(n.s, 0.7)) @ n.w + n.b),
        lambda w, b, m, s: (w * np.maximum(s, np.float32(0.7))[:, None], b),
    ),
    "transposed": (_transposed, lambda w, b, m, s: (TURN @ w, b)),
    "scaled after": (
        lambda x, n: _outer(x, n, (x @ n.w + n.b) * n.b - 2.0),
        lambda w, b, m, s: (w * b, b * b - 2.0),
    ),
}


@pytest.mark.parametrize("wrap", [tf.Variable, tf.constant])
@pytest.mark.parametrize("case", SAME)
def test_every_way_of_writing_an_affine_map_reads_the_same(case, wrap, tmp_path):
    net = Net(SAME[case], wrap=wrap)
    served = saved_model.read(net.export(tmp_path / "model"))
    if case in ("bias on the left", "operator"):
        assert_reads_as(served, net.oracle(), examples((6,)))
    else:
        assert_reads_as(served, net.oracle(), examples((6,)), rtol=1e-12)


@pytest.mark.parametrize("case", CHANGED)
def test_arithmetic_around_the_product_is_folded(case, tmp_path):
    body, first = CHANGED[case]
    net = Net(body)
    served = saved_model.read(net.export(tmp_path / "model"))
    w, b = first(*(np.float64(net.arrays[name]) for name in ("w", "b", "mean", "s")))
    assert_reads_as(served, net.oracle(w=w, b=b), examples((6,)), rtol=1e-6)


def test_log_softmax_is_a_head(tmp_path):
    net = Net(lambda x, n: tf.nn.log_softmax(plain_body(x, n)))
    served = saved_model.read(net.export(tmp_path / "model"))
    assert_reads_as(served, net.oracle(), examples((6,)), "log_softmax")


def test_float64_graphs_are_read_exactly(tmp_path):
    net = Net(dtype=np.float64)
    served = saved_model.read(net.export(tmp_path / "model", dtype=tf.float64))
    assert_reads_as(served, net.oracle(), examples((6,), np.float64))


def test_bytes_are_cast_then_scaled(tmp_path):
    net = Net(lambda x, n: plain_body(tf.cast(x, tf.float32) / 255.0, n))
    served = saved_model.read(net.export(tmp_path / "model", dtype=tf.uint8))
    expected = net.oracle(w=np.float64(net.arrays["w"]) / 255.0)
    assert served.input_dtype == tf.uint8
    assert_reads_as(served, expected, examples((6,), np.uint8), rtol=1e-6)


def test_keras_images_of_bytes_are_read(read_keras):
    model = sequential(
        (2, 3), L.Rescaling(1 / 255), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3), dtype="uint8"
    )
    x = examples((2, 3), np.uint8)
    assert_reads_as(read_keras(model), folded(model), x, rtol=1e-6)


DICTIONARIES = {
    "logits and classes": lambda z: {"classes": tf.argmax(z, axis=1), "logits": z},
    "logits and probabilities": lambda z: {"logits": z, "a_first": tf.nn.softmax(z)},
    "logits and more": lambda z: {"zzz": -z, "logits": z, "aaa": z * 2.0, "ids": tf.argmax(z, 1)},
    "one matrix under any name": lambda z: {"scores": z, "top": tf.reduce_max(z, axis=1)},
}


@pytest.mark.parametrize("case", DICTIONARIES)
def test_the_logits_of_a_dictionary_are_found(case, tmp_path):
    net = Net(lambda x, n: DICTIONARIES[case](plain_body(x, n)))
    served = saved_model.read(net.export(tmp_path / "model"))
    assert_reads_as(served, net.oracle(), examples((6,)))


def test_a_signature_is_read_by_name(tmp_path):
    net, spec = Net(), tf.TensorSpec((None, 6))
    plain = tf.function(lambda x: plain_body(x, net)).get_concrete_function(spec)
    minus = tf.function(lambda x: -plain_body(x, net)).get_concrete_function(spec)
    tf.saved_model.save(net, str(tmp_path), signatures={"serving_default": plain, "minus": minus})
    served = saved_model.read(tmp_path, signature="minus")
    arrays = {name: np.float64(array) for name, array in net.arrays.items()}
    assert served.signature == "minus"
    assert_reads_as(served, net.oracle(v=-arrays["v"], c=-arrays["c"]), examples((6,)), rtol=1e-12)
    assert_reads_as(saved_model.read(tmp_path), net.oracle(), examples((6,)))


def test_a_serving_base_path_means_its_newest_version(tmp_path):
    nets = {version: Net(seed=version) for version in (1, 2, 10)}
    for version, net in nets.items():
        net.export(tmp_path / str(version))
    (tmp_path / "11").mkdir()  # an upload that has not arrived yet
    (tmp_path / "notes").mkdir()
    served = saved_model.read(str(tmp_path))
    assert served.source == str(tmp_path / "10")
    assert_reads_as(served, nets[10].oracle(), examples((6,)))
    assert_reads_as(saved_model.read(tmp_path / "2"), nets[2].oracle(), examples((6,)))


def test_the_fingerprint_is_of_the_weights_too(tmp_path):
    for seed, name in ((1, "a"), (2, "b")):
        Net(seed=seed).export(tmp_path / name)
    graph_of_a = (tmp_path / "a" / "saved_model.pb").read_bytes()
    (tmp_path / "b" / "saved_model.pb").write_bytes(graph_of_a)
    first, second, again = (saved_model.read(tmp_path / name).fingerprint for name in "aba")
    assert first == again != second


def test_stray_folders_beside_the_variables_do_not_stop_the_reading(tmp_path):
    Net().export(tmp_path / "model")
    (tmp_path / "model" / "variables" / ".ipynb_checkpoints").mkdir()
    saved_model.read(tmp_path / "model")


@pytest.fixture(scope="module")
def served_net(tmp_path_factory):
    return saved_model.read(Net().export(tmp_path_factory.mktemp("net")))


def _tampered(network, layer, part):
    affines = list(network.affines)
    changed = {part: getattr(affines[layer], part).copy()}
    changed[part].flat[0] *= 1.01
    affines[layer] = dataclasses.replace(affines[layer], **changed)
    return Network(affines, network.activations)


@pytest.mark.parametrize("part", ["kernel", "bias"])
@pytest.mark.parametrize("layer", [0, 1])
def test_check_sees_one_weight_wrong_by_a_hundredth(served_net, layer, part):
    wrong = dataclasses.replace(served_net, network=_tampered(served_net.network, layer, part))
    with pytest.raises(InputError, match="disagree"):
        wrong.check(examples((6,)))


CALLS = {
    "clip": lambda call, x: call(tf.clip_by_value(x, 0.0, 1.0)),
    "clip above": lambda call, x: call(tf.minimum(x, 1.0)),
    "clip below": lambda call, x: call(tf.maximum(x, 0.0)),
    "rounding": lambda call, x: call(tf.round(x * 255.0) / 255.0),
    "swapped classes": lambda call, x: call(x)[:, ::-1],
    "shifted": lambda call, x: call(x) + 1e-3,
    "not a number": lambda call, x: call(x) * np.nan,
    "infinite": lambda call, x: call(x) / 0.0,
    "a class less": lambda call, x: call(x)[:, :-1],
}


@pytest.mark.parametrize("case", CALLS)
def test_check_sees_what_was_not_read(served_net, case):
    """Real examples lie in [0, 1]: `check` must look outside of it by itself."""
    x = np.random.default_rng(2).uniform(0.05, 0.95, (4, 6)).astype(np.float32)
    served_net.check(x)
    hidden = dataclasses.replace(served_net, call=lambda x: CALLS[case](served_net.call, x))
    with pytest.raises(InputError, match="signature"):
        hidden.check(x)


def test_nested_outputs_of_a_live_model():
    """The one called "logits" is that, whatever lies beside it."""
    inputs = keras.Input((4,))
    parts = [L.Dense(3)(inputs) for _ in range(3)]
    model = keras.Model(inputs, {"aux": parts[:2], "logits": parts[2]})
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = saved_model.read(model).network.logits(x.astype(np.float64))
    np.testing.assert_allclose(found, model(x)["logits"], rtol=1e-5, atol=1e-6)
    nested = keras.Model(inputs, {"aux": parts[0], "logits": parts[1:]})
    with pytest.raises(InputError, match="or one named 'logits'"):
        saved_model.read(nested)


def test_live_models_are_told_apart_by_all_that_was_read():
    def build(activation="softplus", head=None):
        keras.utils.set_random_seed(0)
        hidden = L.Dense(5, activation)
        return keras.Sequential([keras.Input((4,)), hidden, L.Dense(3, head)])

    kinds = [build(), build("tanh"), build(head="softmax"), build(head="sigmoid")]
    assert len({saved_model.read(model).fingerprint for model in kinds}) == 4
    assert saved_model.read(build()).fingerprint == saved_model.read(kinds[0]).fingerprint


@pytest.mark.parametrize("head", ["softmax", "log_softmax", "sigmoid"])
def test_saturation_hides_no_disagreement(head):
    """What softmax makes of logits that are far apart is the same for most wrong readings."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), L.Dense(3), L.Activation(head)])
    model.layers[0].set_weights([np.eye(4, 3, dtype=np.float32) * 1e3, np.zeros(3, np.float32)])
    served = saved_model.read(model)
    x = np.array([[0.9, 0.1, 0.2, 0.3]] * 4, np.float32)
    served.check(x)
    served.check(x[:0])
    kernel = served.network.affines[0].kernel
    wrong = Network([Affine(kernel * [[1.0, 1.001, 1.0]], np.zeros(3))], [])
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served, network=wrong).check(x)


def test_examples_that_are_all_alike_hide_no_disagreement(served_net):
    """Inputs at which every order of the entries is the same are not all that is tried."""
    first, *rest = served_net.network.affines
    turned = Affine(first.kernel[::-1], first.bias)
    wrong = Network([turned, *rest], served_net.network.activations)
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served_net, network=wrong).check(np.full((3, 6), 0.5, np.float32))


def test_check_wants_the_right_head(served_net):
    with pytest.raises(InputError, match="disagree"):
        dataclasses.replace(served_net, head="softmax").check(examples((6,)))


# Folding: the weights in real arithmetic lie within the bound that comes with them.


def _exact(array):
    return np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])(np.asarray(array))


def _norm(array):
    return mpmath.sqrt(mpmath.fsum(v**2 for v in np.ravel(array)))


def assert_covers(affine: Affine, kernel, bias, sharp=1e-13):
    """`kernel`, `bias`: numbers of 60 digits. The spectral norm is at most the Frobenius one."""
    kernel_off, bias_off = _norm(_exact(affine.kernel) - kernel), _norm(_exact(affine.bias) - bias)
    assert kernel_off <= affine.kernel_error
    assert bias_off <= affine.bias_error
    # No vacuous bounds: a few dozen roundings, not more.
    assert affine.kernel_error <= sharp * float(_norm(kernel))


def _normalization_in_60_digits(model):
    norm, first, batch, _, last = model.layers
    root = np.vectorize(mpmath.sqrt, otypes=[object])
    deviation = root(_exact(norm.variance)[0])
    kernel, bias = _exact(first.kernel), _exact(first.bias)
    bias = bias - (_exact(norm.mean)[0] / deviation) @ kernel
    kernel = kernel / deviation[:, None]
    scale = _exact(batch.gamma) / root(_exact(batch.moving_variance) + _exact(np.float32(0.001)))
    bias = (bias - _exact(batch.moving_mean)) * scale + _exact(batch.beta)
    return (kernel * scale, bias), (_exact(last.kernel), _exact(last.bias))


@pytest.mark.parametrize("seed", [0, 1])
def test_folded_normalisations_are_within_their_error(seed):
    norm = L.Normalization(mean=np.linspace(-1, 2, 6), variance=np.linspace(0.3, 7, 6))
    layers = [norm, L.Dense(5), L.BatchNormalization(), L.Activation("tanh"), L.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    for layer in (layers[1], layers[2], layers[4]):
        randomize(layer, seed)
    first, last = saved_model.read(model).network.affines
    with mpmath.workdps(60):
        exact_first, exact_last = _normalization_in_60_digits(model)
        assert first.kernel_error > 0.0 < first.bias_error
        assert_covers(first, *exact_first)
        assert_covers(last, *exact_last)


def _fractions(array):
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(np.asarray(array))


def _rational_norm(array):
    """In mpmath: the exact rationals overflow no float."""
    return _norm(np.vectorize(lambda q: mpmath.mpf(q.numerator) / q.denominator)(array))


def _read_chain(tmp_path, body, dtype=tf.float64, features=4):
    module = tf.Module()
    spec = tf.TensorSpec((None, features), dtype)
    function = tf.function(body).get_concrete_function(spec)
    tf.saved_model.save(module, str(tmp_path / "chain"), signatures=function)
    return saved_model.read(tmp_path / "chain").network.affines[0]


@pytest.mark.parametrize("seed", range(4))
def test_chains_of_affine_steps_are_within_their_error(seed, tmp_path):
    """x (4,) → scale, shift, product, scale, shift, product, all in float64 and in fractions."""
    rng = np.random.default_rng(seed)
    shapes = [(4,), (4,), (4, 5), (5,), (5,), (5, 3)]
    s, t, w, p, q, v = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4) for shape in shapes)
    affine = _read_chain(tmp_path, lambda x: (((x * s + t) @ w) * p - q) @ v)
    s, t, w, p, q, v = map(_fractions, (s, t, w, p, q, v))
    kernel = ((s[:, None] * w) * p) @ v
    bias = ((t @ w) * p - q) @ v
    with mpmath.workdps(60):
        kernel_off = _rational_norm(_fractions(affine.kernel) - kernel)
        bias_off = _rational_norm(_fractions(affine.bias) - bias)
        assert 0 < kernel_off <= affine.kernel_error <= 1e-10 * float(_rational_norm(kernel))
        assert 0 < bias_off <= affine.bias_error


def test_an_error_outlives_the_value_it_belongs_to(tmp_path):
    """`p q − fl(p q)` is 0 in float64 but not in real arithmetic, and 10¹² times it counts."""
    rng = np.random.default_rng(1)
    p, q, w = rng.normal(size=4), rng.normal(size=4), rng.normal(size=(4, 3))
    affine = _read_chain(tmp_path, lambda x: (((x + p) * q - p * q) * 1e12) @ w)
    lost = _fractions(p) * _fractions(q) - _fractions(p * q)
    bias = (lost * Fraction(10**12)) @ _fractions(w)
    with mpmath.workdps(60):
        assert _rational_norm(bias) > 1e-6
        assert _rational_norm(_fractions(affine.bias) - bias) <= affine.bias_error


def _read_variables(tmp_path, body, **arrays):
    """Like `_read_chain`, but the arrays are variables, so their arithmetic is in the graph."""
    module = tf.Module()
    for name, array in arrays.items():
        setattr(module, name, tf.Variable(array))
    spec = tf.TensorSpec((None, 4), tf.float64)
    function = tf.function(lambda x: body(x, module)).get_concrete_function(spec)
    tf.saved_model.save(module, str(tmp_path / "chain"), signatures=function)
    return saved_model.read(tmp_path / "chain").network.affines[0]


def test_a_product_of_constants_is_within_its_error(tmp_path):
    p, q = np.random.default_rng(3).normal(size=(2, 4))
    affine = _read_variables(tmp_path, lambda x, m: x * (m.p * m.q), p=p, q=q)
    off = _fractions(affine.kernel) - np.diag(_fractions(p) * _fractions(q))
    with mpmath.workdps(60):
        assert 0 < _rational_norm(off) <= affine.kernel_error <= 1e-14


def test_a_root_of_a_cancelled_sum_is_within_its_error(tmp_path):
    """`p q − r` is small, so its relative error is large, and the root passes half of it on."""
    p, q = 1.0 + np.random.default_rng(3).random((2, 4))
    r = p * q - 2e-14
    affine = _read_variables(tmp_path, lambda x, m: x * tf.sqrt(m.p * m.q - m.r), p=p, q=q, r=r)
    with mpmath.workdps(60):
        exact = [mpmath.sqrt(a * b - c) for a, b, c in zip(*map(_exact, (p, q, r)), strict=True)]
        off = _norm(np.diag(_exact(affine.kernel)) - np.array(exact))
        assert 1e-12 < off <= affine.kernel_error <= 1e-7


def _gelu_tanh(z):
    return keras.activations.gelu(z, approximate=True)


SPELLED_OUT = {
    name: getattr(keras.activations, name)
    for name in (
        ["silu", "gelu", "mish", "elu", "celu", "softsign", "log_sigmoid", "tanh_shrink"]
        + ["squareplus", "sparse_plus", "relu"]
    )
} | {"gelu_tanh": _gelu_tanh}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", SPELLED_OUT)
def test_activations_of_several_ops_are_read(name, live, tmp_path):
    layers = [L.Dense(5, SPELLED_OUT[name]), L.Dense(4, SPELLED_OUT[name]), L.Dense(3)]
    model = randomize(sequential((6,), *layers))
    if not live:
        model.export(str(tmp_path / "model"), verbose=False)
    served = saved_model.read(model if live else tmp_path / "model")
    assert [activation.name for activation in served.network.activations] == [name, name]
    x = np.concatenate([np.random.default_rng(0).normal(size=(8, 6)) * s for s in (0.01, 1, 30)])
    served.check(x.astype(np.float32))  # the signature and what was read agree
    if name != "relu" and not live:
        assert np.all(radii(served.network, x[:16].astype(np.float32)) > 0.0)


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_a_silu_is_read_only_with_its_own_constant(beta, tmp_path):
    def body(x, w, v):
        z = x @ w
        return (z * tf.sigmoid(beta * z)) @ v

    assert_pattern(tmp_path, body, "silu" if beta == 1.0 else None)


C = np.float32(np.sqrt(0.5))
NEARLY = {
    "gelu": lambda z: 0.5 * z * tf.math.erfc(-z * C),
    "gelu, another scale": lambda z: 0.5 * z * tf.math.erfc(-z * np.nextafter(C, np.float32(1.0))),
    "gelu, mirrored": lambda z: 0.5 * z * tf.math.erfc(z * C),
    "gelu, another factor": lambda z: 0.6 * z * tf.math.erfc(-z * C),
    "gelu, a factor for each unit": lambda z: tf.fill((5,), 0.5) * z * tf.math.erfc(-z * C),
    "two tensors": lambda z: z * tf.sigmoid(z + 1.0),
    "product of activations": lambda z: tf.tanh(z) * tf.sigmoid(z),
    "mish, twice the gate": lambda z: z * tf.tanh(2.0 * tf.math.softplus(z)),
    "tanh_shrink": lambda z: z - tf.tanh(z),
    "tanh_shrink, swapped": lambda z: tf.tanh(z) - z,
    "celu, alpha": lambda z: tf.maximum(z, 0.0) + 2.0 * tf.math.expm1(tf.minimum(z, 0.0) / 2.0),
    "squareplus": lambda z: (tf.sqrt(tf.square(z) + 4.0) + z) / 2.0,
    "squareplus, another b": lambda z: (z + tf.sqrt(tf.square(z) + 5.0)) / 2.0,
    "elu, alpha": lambda z: tf.where(z > 0.0, z, 0.5 * tf.nn.elu(z)),
    "maximum": lambda z: tf.maximum(z, 0.1 * z),
}


@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_an_activation_is_refused(case, tmp_path):
    name = case if case in ("gelu", "tanh_shrink", "squareplus") else None
    assert_pattern(tmp_path, lambda x, w, v: NEARLY[case](x @ w) @ v, name)


def assert_pattern(path, body, name):
    """Reads one hidden layer of that name; with None, it is refused, naming op and node."""
    rng = np.random.default_rng(3)
    module = tf.Module()
    module.w = tf.Variable(rng.normal(size=(4, 5)), dtype=tf.float32)
    module.v = tf.Variable(rng.normal(size=(5, 3)), dtype=tf.float32)
    function = tf.function(lambda x: body(x, module.w, module.v))
    signature = function.get_concrete_function(tf.TensorSpec((None, 4), tf.float32))
    tf.saved_model.save(module, str(path), signatures=signature)
    if name is None:
        with pytest.raises(InputError, match=r"op \w+ \(node '"):
            saved_model.read(path)
    else:
        served = saved_model.read(path)
        assert [activation.name for activation in served.network.activations] == [name]
        served.check(rng.normal(size=(16, 4)).astype(np.float32) * 3.0)


def test_a_gelu_in_another_format_than_float32_is_refused(tmp_path):
    """Its constant is another number, so it is another function than that of the table."""
    model = sequential((4,), L.Dense(5, "gelu", dtype="float64"), L.Dense(3, dtype="float64"))
    with pytest.raises(InputError, match="op Erfc"):
        saved_model.read(model)
