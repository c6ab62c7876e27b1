"""Ordinary Keras models, each read, certified by all methods that apply, and attacked in vain."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from branching_models import BRANCHING
from function_layer import FunctionLayer
from keras_oracle import HEADS, SERVED_TOLERANCE, eagerly, randomize

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate, margin_lipschitz_bounds
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.network.network import Network
from keras_curv.reading import served_model

L = keras.layers
A = keras.activations
IMAGE, SEQUENCE = (6, 5, 2), (7, 2)


def _of(shape, *layers, classes=3):
    def build():
        inside = [layer() for layer in layers]
        return randomize(keras.Sequential([keras.Input(shape), *inside, L.Dense(classes)]))

    return build


def _image(*layers, shape=IMAGE):
    return _of(shape, *layers, L.Flatten)


def _with(activation):
    return _of((5,), lambda: L.Dense(6), lambda: L.Activation(activation), lambda: L.Dense(4))


def _conv(activation="relu", size=3, **options):
    return lambda: L.Conv2D(3, size, activation=activation, **options)


KERAS = {
    "leaky_relu": _with("leaky_relu"),
    "LeakyReLU 0.3, then 1.5": _of(
        (5,),
        *(lambda: L.Dense(6), lambda: L.LeakyReLU(0.3)),
        *(lambda: L.Dense(4), lambda: L.LeakyReLU(1.5)),
    ),
    "leaky_relu, negative": _with(lambda z: tf.nn.leaky_relu(z, -0.4)),
    "abs": _with(tf.abs),
    "relu6": _with("relu6"),
    "ReLU up to 2.5": _of((5,), lambda: L.Dense(6), lambda: L.ReLU(max_value=2.5)),
    "ReLU with a slope": _of((5,), lambda: L.Dense(6), lambda: L.ReLU(negative_slope=0.2)),
    "hard_sigmoid": _with("hard_sigmoid"),
    "hard_tanh": _with("hard_tanh"),
    "hard_silu": _with("hard_silu"),
    "sparse_sigmoid": _with("sparse_sigmoid"),
    "selu": _with("selu"),
    "exponential": _with("exponential"),
    "exponential, then relu": _of(
        (5,), lambda: L.Dense(6, "exponential"), lambda: L.Dense(4, "relu")
    ),
    "minimum, maximum": _with(
        lambda z: tf.minimum(tf.maximum(z, [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]), 3.5)
    ),
    "padding": _image(_conv(), lambda: L.ZeroPadding2D(((0, 1), (2, 1))), _conv(strides=2)),
    "padding with ones": _image(lambda: FunctionLayer(_padded_with_ones), _conv("softplus")),
    "conv 1d": _image(
        lambda: L.Conv1D(3, 3, padding="causal", activation="relu"),
        lambda: L.Conv1D(4, 2, dilation_rate=2, activation="selu"),
        lambda: L.AveragePooling1D(2),
        shape=SEQUENCE,
    ),
    "dilated": _image(_conv(dilation_rate=2, padding="same"), _conv(size=2, dilation_rate=(1, 2))),
    "depthwise": _image(
        lambda: L.DepthwiseConv2D(2, depth_multiplier=2, activation="leaky_relu"),
        lambda: L.DepthwiseConv2D(2, dilation_rate=2, activation="softplus"),
    ),
    "separable": _image(lambda: L.SeparableConv2D(4, 2, dilation_rate=2, activation="relu")),
    "transposed": _image(
        lambda: L.Conv2DTranspose(3, 3, strides=2, padding="same", activation="tanh"),
        _conv(strides=3),
        lambda: L.Conv2DTranspose(2, 2, activation="relu"),
    ),
    "transposed 1d": _image(
        lambda: L.Conv1DTranspose(3, 3, strides=2, activation="relu"), shape=SEQUENCE
    ),
    "cropping": _image(_conv(), lambda: L.Cropping2D(((1, 0), (0, 1))), _conv(size=2)),
    "slices": _image(lambda: FunctionLayer(lambda x: x[:, 1:-1, ::2, :1]), _conv(size=2)),
    "mirrored, colours swapped": _image(
        lambda: FunctionLayer(lambda x: x[:, :, ::-1, ::-1]), _conv()
    ),
    "gathered": _image(lambda: FunctionLayer(lambda x: tf.gather(x, [3, 0, 3], axis=1)), _conv()),
    "rolled": _image(
        lambda: FunctionLayer(lambda x: tf.roll(x, [1, -2], [1, -2])), _conv(), _conv(size=2)
    ),
    "stacked": _image(
        _conv(),
        lambda: FunctionLayer(lambda x: tf.stack([x, 2.0 * x, x[:, ::-1]], axis=-1)),
        lambda: FunctionLayer(lambda x: tf.stack(2 * [tf.reduce_mean(x, axis=2)], axis=1)),
        L.Flatten,
        lambda: L.Dense(4, "tanh"),
    ),
    "upsampled": _image(_conv("softplus"), lambda: L.UpSampling2D((2, 1)), _conv()),
    "upsampled 1d": _image(
        lambda: L.UpSampling1D(2), lambda: L.Conv1D(3, 3, activation="relu"), shape=SEQUENCE
    ),
    "resized": _image(
        lambda: L.Resizing(5, 9),
        _conv("softplus"),
        lambda: L.UpSampling2D(2, interpolation="bilinear"),
        _conv(strides=2),
        lambda: L.Resizing(4, 3, interpolation="nearest"),
    ),
    "repeated": _image(lambda: L.RepeatVector(3), lambda: L.Dense(4, "selu"), shape=(5,)),
    "space to depth": _image(
        lambda: FunctionLayer(lambda x: tf.nn.space_to_depth(x, 2)),
        lambda: L.Conv2D(4, 1, activation="relu"),
        lambda: FunctionLayer(lambda x: tf.nn.depth_to_space(x, 2)),
        shape=(4, 6, 2),
    ),
    "dense on pixels": _image(_conv(), lambda: L.Dense(4, "relu6"), lambda: L.Dense(2)),
    "einsum dense": _of(
        SEQUENCE,
        lambda: L.EinsumDense("nlf,fo->nlo", (7, 3), activation="tanh", bias_axes="o"),
        lambda: L.EinsumDense("nlo,lm->nmo", (4, 3), activation="softplus", bias_axes="m"),
        lambda: L.EinsumDense("nmo,mop->nmp", (4, 2), bias_axes="mp"),
        L.Flatten,
    ),
    "global pooling": _of(
        SEQUENCE,
        lambda: L.Permute((2, 1)),
        lambda: L.Dense(4, "leaky_relu"),
        L.GlobalAveragePooling1D,
    ),
    "mobile": _image(
        lambda: L.Rescaling([2.0, 0.5], offset=[-1.0, 1.0]),
        *(lambda: L.ZeroPadding2D(1), _conv(None, strides=2, use_bias=False)),
        *(L.BatchNormalization, lambda: L.ReLU(max_value=6)),
        *(lambda: L.DepthwiseConv2D(2, padding="same"), L.BatchNormalization),
        lambda: L.Activation("hard_silu"),
    ),
}


def _padded_with_ones(x):
    return tf.pad(x, [[0, 0], [1, 0], [0, 2], [0, 0]], constant_values=1.0)


def _keras_2():
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.InputLayer(IMAGE),
            layers.ZeroPadding2D(1),
            layers.Conv2D(3, 3, strides=2, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(max_value=6.0, negative_slope=0.0),
            layers.SeparableConv2D(4, 2),
            layers.LeakyReLU(alpha=0.3),
            layers.Dense(5, activation="selu"),
            layers.Cropping2D(((1, 0), (0, 0))),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    rng = np.random.default_rng(5)
    model.set_weights([0.3 * np.abs(rng.normal(size=w.shape)) for w in model.get_weights()])
    return model


def _keras_2_residual():
    layers = tf_keras.layers
    given = layers.Input(IMAGE)
    h = layers.Conv2D(3, 3, padding="same", activation="relu")(given)
    h = layers.MaxPooling2D(2)(layers.Add()([h, layers.Conv2D(3, 3, padding="same")(h)]))
    h = layers.PReLU()(layers.Flatten()(h))
    model = tf_keras.Model(given, layers.Dense(3)(layers.Concatenate()([h, h])))
    rng = np.random.default_rng(5)
    model.set_weights([0.3 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


class _Branches(tf.Module):
    """Written by hand: branches that are added, joined, and the largest of both."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(4)
        self.first = tf.Variable(rng.normal(size=(5, 4)), dtype=tf.float32)
        self.second = tf.Variable(rng.normal(size=(4, 4)), dtype=tf.float32)
        self.last = tf.Variable(rng.normal(size=(13, 3)), dtype=tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, 5), tf.float32)])
    def __call__(self, x):
        a = tf.nn.relu(x @ self.first)
        b = tf.add_n([a, tf.tanh(a @ self.second), 0.5 * a])
        largest = tf.maximum(a - 1.0, b)
        return tf.concat([x, tf.minimum(-a, b), largest], axis=1) @ self.last


class _Module(tf.Module):
    """Written by hand: a padded, clipped convolution of a part of the image."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(4)
        self.kernel = tf.Variable(rng.normal(size=(2, 3, 2, 3)), dtype=tf.float32)
        self.last = tf.Variable(rng.normal(size=(24, 3)), dtype=tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, *IMAGE), tf.float32)])
    def __call__(self, x):
        padded = tf.pad(1.0 - x[:, :4] / 2.0, [[0, 0], [0, 0], [1, 0], [0, 0]])
        z = tf.nn.conv2d(padded, self.kernel, (1, 2), "SAME")[:, ::2]
        z = tf.clip_by_value(z[:, :, :2], -1.5, 2.0)
        return tf.reshape(tf.tile(z, [1, 2, 1, 1]), (-1, 24)) @ self.last


def _read(name, path):
    """Reads models of Keras as they live, each fourth one as an export; others as saved."""
    if name in MODELS and [*MODELS].index(name) % 4:
        return served_model.read(MODELS[name]())
    _exported(name, path)
    return served_model.read(path)


def _exported(name, path):
    if name.startswith("tf.Module"):
        module = _Branches() if "branches" in name else _Module()
        signature = module.__call__.get_concrete_function()
        tf.saved_model.save(module, path, signatures=signature)
    elif name.startswith("tf_keras"):
        model = _keras_2_residual() if "residual" in name else _keras_2()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tf.saved_model.save(model, path)
    else:
        MODELS[name]().export(path, verbose=False)


MODELS = KERAS | BRANCHING
LOCAL = ("padding with ones", "residual, tanh")  # which takes seconds to trace
OTHERS = ("tf_keras", "tf_keras, residual", "tf.Module", "tf.Module, branches")


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_models_are_read_certified_and_attacked(name, tmp_path):
    served = _read(name, str(tmp_path / "model"))
    network = served.network
    rng = np.random.default_rng(8)
    x = rng.normal(size=(3, *served.input_shape)).astype(np.float32)
    served.check(x)
    flat = np.float64(x.reshape(3, -1))
    ours = HEADS[served.head](network.logits(flat).numpy())
    tolerance = SERVED_TOLERANCE * np.maximum(1.0, np.abs(ours).max())
    np.testing.assert_allclose(served.call(tf.constant(x)), ours, rtol=0.0, atol=tolerance)
    lipschitz = all(np.all(np.isfinite(sigma.slope)) for sigma in network.activations)
    if lipschitz:
        _assert_inside_bounds(network, flat, rng)
    if served.head == "logits" and lipschitz:
        _assert_charged(network, flat, np.float64(served.call(tf.constant(x))))
    methods = [LinearBoundCertificate, IntervalCertificate]
    methods += [LipschitzCertificate] if lipschitz else []
    if all(activation.smooth for activation in network.activations):
        methods += [CurvatureCertificate]
        methods += [LocalCurvatureCertificate] if name in LOCAL else []
    best = np.zeros(3)
    for method in methods:
        options = {"max_steps": 4} if method is CurvatureCertificate else {}
        # Tracing pays for the many steps of a local search alone.
        with nullcontext() if method is LocalCurvatureCertificate else eagerly():
            found = method(network, **options).certify(flat)
        assert np.all(found.radius > 0.0), method.name
        best = np.maximum(best, found.radius)
    label = network.logits(flat).numpy().argmax(axis=1)
    assert np.all(_lowest_margins(network, flat, label, 0.9999 * best, rng) > 0.0)


def _assert_charged(network: Network, x, served):
    """Asserts that serving in float32 takes no more off margins than its charge."""
    real = network.logits(x).numpy()
    label = real.argmax(axis=1)
    rivals = np.array([[t for t in range(network.classes) if t != y] for y in label])
    charge = Float32Error(network)(x, label, rivals, np.zeros(rivals.shape))
    off = (served - real)[np.arange(len(x)), label][:, None] - np.take_along_axis(
        served - real, rivals, axis=1
    )
    assert np.all(np.abs(off) <= charge)


def _assert_inside_bounds(network: Network, x, rng, count=12):
    """Jacobians inside the Lipschitz constants, Hessians inside the curvature bounds."""
    points = np.concatenate([x, rng.normal(size=(count, network.dim)) * 2.0])
    y, t = np.zeros(len(points), np.int64), np.ones(len(points), np.int64)
    gradient = network.margin_and_gradient(tf.constant(points), y, t)[1].numpy()
    steepest = np.linalg.norm(gradient, axis=1).max()
    assert steepest <= margin_lipschitz_bounds(network)[0, 1]
    if not all(activation.smooth for activation in network.activations):
        return
    bounds = curvature_bounds(network)
    values = np.linalg.eigvalsh(network.hessian(tf.constant(points), y, t).numpy())
    slack = 1e-9 * np.abs(values).max()  # of the Hessians, as computed
    assert bounds.lower[0, 1] <= values.min() + slack
    assert values.max() - slack <= bounds.upper[0, 1]


def _lowest_margins(network: Network, x, label, radius, rng, steps=15) -> np.ndarray:
    """Targeted descents toward each rival, from the centre and from a point of the sphere."""
    rivals = np.array([[t for t in range(network.classes) if t != y] for y in label])
    count = rivals.shape[1]
    x, radius = (np.repeat(array, 2 * count, axis=0) for array in (x, radius))
    label, target = np.repeat(label, 2 * count), np.repeat(rivals, 2, axis=1).reshape(-1)
    point, lowest = x.copy(), np.full(len(x), np.inf)
    point[1::2] += radius[1::2, None] * _unit(rng.standard_normal(point[1::2].shape))
    for step in range(steps):
        logits = network.logits(point).numpy()
        own = np.take_along_axis(logits, label[:, None], axis=1)[:, 0]
        np.put_along_axis(logits, label[:, None], -np.inf, axis=1)
        lowest = np.minimum(lowest, own - logits.max(axis=1))
        gradient = network.margin_and_gradient(tf.constant(point), label, target)[1].numpy()
        length = 2.0 * (1.0 - step / steps) * radius[:, None]
        moved = point - length * _unit(gradient) - x
        shrink = radius / np.maximum(np.linalg.norm(moved, axis=1), radius)
        point = x + shrink[:, None] * moved
    return lowest


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)


def test_the_attack_finds_what_is_there():
    network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
    x, label, rng = np.array([[1.0, 0.0]]), np.array([0]), np.random.default_rng(0)
    margins = [_lowest_margins(network, x, label, np.array([r]), rng) for r in (0.7, 0.72)]
    assert np.all(margins[0] > 0.0) and np.all(margins[1] < 0.0)
