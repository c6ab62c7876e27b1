"""Random networks, and points of a ball at which sampling and descent look for lower margins."""

import numpy as np
import tensorflow as tf

from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3), 6: (3, 8, 6, 7, 5, 9, 4)}
CASES = [
    *(("softplus", 2), ("softplus", 6), ("sigmoid", 3), ("tanh", 2), ("tanh", 6)),
    *(("relu", 2), ("relu", 3), ("softsign", 3)),
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
    count = rivals.shape[1]
    # A row for each start, rival and input.
    start = np.stack([np.zeros((count, *x.shape)), rng.standard_normal((count, *x.shape))])
    start = start.reshape(-1, x.shape[1])
    x, radius = np.tile(x, (2 * count, 1)), np.tile(radius, 2 * count)
    label, target = np.tile(label, 2 * count), np.tile(rivals.T.reshape(-1), 2)
    delta, lowest = project(start, 0.5 * radius), np.full(len(x), np.inf)
    for step in range(steps):
        found = network.margin_and_gradient(tf.constant(x + delta), label, target)
        margin, gradient = (part.numpy() for part in found)
        lowest = np.minimum(lowest, margin)
        gradient /= np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1e-300)
        length = radius[:, None] * (1.0 if step == 0 else 1.0 / step)
        delta = project(delta - length * gradient, radius)
    return lowest.reshape(2, count, -1).min(axis=0).T
