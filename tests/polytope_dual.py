"""The dual of Wong & Kolter written out unit by unit, and networks to try it on."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {2: (5, 9, 4), 3: (5, 9, 7, 4), 4: (5, 9, 8, 7, 4)}
every_depth = pytest.mark.parametrize("depth", SIZES)


def dual_of(weights, x, radius):
    """`−max J` of Wong & Kolter, term by term, for each row of the last kernel given.

    Args:
        weights: kernels and biases, in turn; the function is the last map's outputs.
        x: one point.

    Returns:
        Lower bounds of these outputs, and the intervals of the layers before.
    """
    kernels, biases = weights[::2], weights[1::2]
    intervals = []

    def lower(target, depth):
        """Of `target · z_depth`: ν_depth = −target, then down to the input."""
        nu, value = -target, 0.0
        for k in reversed(range(depth)):
            value -= nu @ biases[k]
            hat = kernels[k] @ nu
            if k == 0:
                return value - hat @ x - radius * np.sqrt(hat @ hat)
            nu = np.zeros_like(hat)
            for j, (low, high) in enumerate(zip(*intervals[k - 1], strict=True)):
                if low >= 0.0:
                    nu[j] = hat[j]
                elif high > 0.0:
                    nu[j] = high / (high - low) * hat[j]
                    value += low * max(nu[j], 0.0)

    for depth in range(1, len(kernels) + 1):
        units = np.eye(kernels[depth - 1].shape[1])
        lows = np.array([lower(unit, depth) for unit in units])
        intervals.append((lows, np.array([-lower(-unit, depth) for unit in units])))
    return lows, intervals[:-1]


def dual_margins(weights, x, label, radius):
    """`(n, classes)`; 0 for the label itself."""
    *hidden, kernel, bias = weights
    return np.array(
        [
            dual_of([*hidden, kernel[:, [y]] - kernel, bias[[y]] - bias], point, radius)[0]
            for point, y in zip(x, label, strict=True)
        ]
    )


def relu_case(random_network, rng, depth, count=6):
    """A network whose classes are about as frequent, in which random ones are not."""
    network = random_network(rng, SIZES[depth], "relu", 1.2)
    points = tf.constant(rng.standard_normal((1000, 5)))
    last = network.affines[-1]
    shift = np.median(network.logits(points).numpy(), axis=0)
    last = Affine(last.kernel, last.bias - shift)
    network = Network([*network.affines[:-1], last], network.activations)
    x = rng.standard_normal((count, 5))
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    rivals = np.array([[t for t in range(4) if t != y] for y in label])
    return network, x, label, rivals


def weights_of(network):
    return [part for affine in network.affines for part in (affine.kernel, affine.bias)]


def in_ball(rng, x, radius, count):
    delta = rng.standard_normal((count, *x.shape))
    delta /= np.linalg.norm(delta, axis=-1, keepdims=True)
    share = np.where(np.arange(count) % 2, 1.0, rng.uniform(size=count) ** 0.3)
    return x + radius * share[:, None, None] * delta
