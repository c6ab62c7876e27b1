"""Random networks, and points of a ball at which sampling and descent look for lower margins."""

import numpy as np
import tensorflow as tf

from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3), 6: (3, 8, 6, 7, 5, 9, 4)}
CASES = [
    (name, depth)
    for name in ("softplus", "sigmoid", "tanh", "relu", "softsign")
    for depth in (2, 3, 6)
]


def build(kernels, biases, name):
    maps = [Affine(kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)]
    return Network(maps, [ACTIVATIONS[name]] * (len(maps) - 1))


def draw_network(rng, sizes, name, scale=1.5):
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [scale * rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    return build(kernels, [0.5 * scale * rng.standard_normal(n) for _, n in shapes], name)


def rivals_of(network, label):
    classes = np.arange(network.classes)
    return np.array([classes[classes != y] for y in label])


def labelled(network, x):
    label = network.logits(x).numpy().argmax(axis=1)
    return label, rivals_of(network, label)


def project(delta, radius):
    length = np.linalg.norm(delta, axis=-1, keepdims=True)
    return delta * (np.minimum(length, radius[:, None]) / np.maximum(length, 1e-300))


def ball_points(rng, x, radius, count):
    """`(count, n, dim)`: on the sphere and inside."""
    delta = rng.standard_normal((count, *x.shape))
    delta /= np.linalg.norm(delta, axis=-1, keepdims=True)
    share = np.where(np.arange(count) % 2, 1.0, rng.uniform(size=count) ** 0.3)
    return x + delta * radius[:, None] * share[:, None, None]


def lowest_margins(network, x, label, rivals, radius, rng, steps=10):
    """By projected gradient descent, normalised steps, from the centre and at random: `(n, k)`."""
    lowest = np.full(rivals.shape, np.inf)
    for k in range(rivals.shape[1]):
        for start in (np.zeros_like(x), rng.standard_normal(x.shape)):
            delta = project(start, 0.5 * radius)
            for step in range(steps):
                got = network.evaluate(tf.constant(x + delta), label, rivals[:, k : k + 1])
                lowest[:, k] = np.minimum(lowest[:, k], got.margin.numpy()[:, 0])
                gradient = got.gradient.numpy()[:, 0]
                gradient /= np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1e-300)
                length = radius[:, None] * (1.0 if step == 0 else 1.0 / step)
                delta = project(delta - length * gradient, radius)
    return lowest
