"""Keras models as networks, folded in numpy from their weights: an oracle that reads no graph.

Every width is different, so that a transposed kernel cannot go unseen.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.network.network import Network

# Float32 execution of nets this small: about 20 roundings of numbers up to 10.
SERVED_TOLERANCE = 2e-5

HEADS = {
    "logits": lambda z: z,
    "softmax": lambda z: np.exp(z) / np.exp(z).sum(axis=1, keepdims=True),
    "log_softmax": lambda z: z - np.log(np.exp(z).sum(axis=1, keepdims=True)),
    "sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "binary_sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z[:, 1:])),
}


@contextlib.contextmanager
def eagerly():
    """Traces nothing: of activations that are met but once, that would take longer."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def radii(network, x):
    """Certified radii, by a graph that all networks of these activations share."""
    flat = np.float64(x.reshape(len(x), -1))
    return CurvatureCertificate(network, max_steps=4).certify(flat).radius


def examples(shape, dtype=np.float32, count=3, seed=7):
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 256, (count, *shape)).astype(dtype)
    return rng.normal(size=(count, *shape)).astype(dtype)


def assert_reads_as(served, expected, x, head="logits", rtol=0.0):
    """Weights, served outputs, radii agree; `rtol` 0 asks for the very same weights, all exact."""
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
    # Of the very same weights they are the same, and a live model gives the same network.
    if rtol > 0.0 and served.fingerprint:
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
