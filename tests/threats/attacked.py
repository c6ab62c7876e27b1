"""Small networks under properties and threats, and points of a ball to attack them at."""

import itertools

import keras
import numpy as np

from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.network.network import Network, Scores
from keras_curv.threats.properties.property import ARGMAX

SIGMAS = {"coupled": "relu", "quadratic": "relu", "coap": "relu", "two_stage": ("relu", "tanh")}
METHODS_AND_SIGMAS = [(method, SIGMAS.get(method, "tanh")) for method in METHODS]
GRID = 81


def sizes(dim, activation):
    """Of a network of three classes, with a hidden layer for each activation."""
    return (dim, 9, 3) if isinstance(activation, str) else (dim, 9, 8, 3)


def model_of(network, head=None):
    """A Keras model of a network's weights; kernels that are float32 numbers stay as they are."""
    names = [*(activation.name for activation in network.activations), head]
    layers = [
        keras.layers.Dense(affine.fan_out, activation=name)
        for affine, name in zip(network.affines, names, strict=True)
    ]
    model = keras.Sequential([keras.Input((network.dim,)), *layers])
    for layer, affine in zip(layers, network.affines, strict=True):
        layer.set_weights([affine.kernel, affine.bias])
    return model


def ball(dim, radius, rng):
    """Points of a ball, on a grid where it is flat, else drawn, many of them near the sphere."""
    if dim == 2:
        points = np.stack(np.meshgrid(*[np.linspace(-1, 1, GRID)] * 2), -1).reshape(-1, 2)
        angle = np.linspace(0, 2 * np.pi, 721)
        points = np.concatenate([points, np.stack([np.cos(angle), np.sin(angle)], 1)])
        points = points[np.linalg.norm(points, axis=1) <= 1.0]
    else:
        points = rng.standard_normal((20_000, dim))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        points *= rng.uniform(size=(len(points), 1)) ** 0.1
    return radius * points


def drawn(rng, random_network, sizes, activation="tanh"):
    return random_network(rng, sizes, activation, scale=2.0)


def of(network, held, method="auto", **options):
    """Certificates of a property on a network, without a model around it."""
    made = held.network(network)
    method = choose_method(method, made)

    def certified(x, label=None):
        whole = np.concatenate([x, held.numbers(network, x)], axis=1)
        return method.certify(whole, label, property=held, **options)

    return certified


def scores(rng, random_network, outputs, activation="tanh", hidden=7):
    network = random_network(rng, (2, hidden, max(outputs, 2)), activation, scale=2.0)
    *first, last = network.affines
    return Scores.from_weights(
        [*(a.kernel for a in first), last.kernel[:, :outputs]],
        [*(a.bias for a in first), last.bias[:outputs]],
        activation,
    )


def float32_network(rng, random_network, sizes, activation, steepness=1.0):
    """A network that a Keras model holds exactly; steep ones change within a box."""
    network = random_network(rng, sizes, activation, scale=2.0)
    parts = [(a.kernel.astype(np.float32), a.bias.astype(np.float32)) for a in network.affines]
    parts[0] = (np.float32(steepness) * parts[0][0], parts[0][1])
    return Network.from_weights(*zip(*parts, strict=True), activation)


def of_threat(network, threat, method="auto", held=ARGMAX):
    """Certificates under a threat, without a model around the network."""
    made = choose_method(method, threat.network(held.network(network), network.dim))

    def certified(x):
        numbers = held.numbers(network, x)
        return made.certify(np.concatenate([threat.coordinates(x), numbers], axis=1), property=held)

    return certified


def octahedron(dim, rng, count=20_000):
    """Points of `‖ξ‖₁ ≤ 1`: all vertices, many of its edges and faces, some inside."""
    points = rng.exponential(size=(count, dim)) * rng.choice([-1.0, 1.0], (count, dim))
    points[: count // 2] *= rng.random((count // 2, dim)) < 2.0 / dim
    points /= np.maximum(np.abs(points).sum(axis=1, keepdims=True), 1e-300)
    points[::5] *= rng.random((len(points[::5]), 1))
    return np.concatenate([np.eye(dim), -np.eye(dim), points])


def cube(dim, rng, count=20_000):
    """Points of `‖ξ‖_∞ ≤ 1`: corners, many points of edges and faces, some inside."""
    points = rng.uniform(-1.0, 1.0, (count, dim))
    points[: count // 2] = np.sign(points[: count // 2])
    points[count // 4 : count // 2, rng.integers(dim)] *= rng.random(count // 2 - count // 4)
    return np.concatenate([[*itertools.product([-1.0, 1.0], repeat=dim)], points])


BALLS = {"l1": octahedron, "linf": cube}
