"""Networks of float32 numbers, and their logits in float32 by any order of summation."""

import numpy as np
import tensorflow as tf

from keras_curv.network.network import Network

ARCHITECTURES = [
    ((5, 3), ()),
    ((40, 30, 4), ("softplus",)),
    ((7, 90, 3), ("sigmoid",)),
    ((20, 6, 50, 3), ("tanh", "softplus")),
    ((6, 9, 20, 5, 4), ("softplus", "tanh", "sigmoid")),
]


def float32_network(rng, sizes, activations, scale=1.0):
    kernels = [
        np.float32(scale * rng.standard_normal((n, m)) / np.sqrt(n))
        for n, m in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    biases = [np.float32(scale * rng.standard_normal(m)) for m in sizes[1:]]
    return Network.from_weights(kernels, biases, activations)


def served_logits(network, x, order):
    """Executed in float32, the terms of every dot product added one by one in a given order."""
    value = np.float32(x)
    for index, affine in enumerate(network.affines):
        kernel, total = np.float32(affine.kernel), np.zeros((len(x), affine.fan_out), np.float32)
        for i in order.permutation(affine.fan_in + 1):
            term = np.float32(affine.bias)
            total = total + (value[:, i : i + 1] * kernel[i] if i < affine.fan_in else term)
        value = total
        if index < len(network.activations):
            value = network.activations[index].value(tf.constant(value)).numpy()
    assert value.dtype == np.float32
    return value.astype(np.float64)


def rivals_of(label, classes):
    return np.array([[t for t in range(classes) if t != y] for y in label])


def margins(logits, label, rivals):
    own = np.take_along_axis(logits, label[:, None], axis=1)
    return own - np.take_along_axis(logits, rivals, axis=1)
