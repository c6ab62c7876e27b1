"""The loss of a training step in float64 arithmetic, without Keras."""

import keras
import numpy as np
import tensorflow as tf

from keras_curv.curvature.signed import signed_bound
from keras_curv.network.network import Network

L = keras.layers
SIGMA = {"tanh": np.tanh, "softplus": lambda z: np.logaddexp(0.0, z)}
SLOPE = {"tanh": lambda z: 1.0 - np.tanh(z) ** 2, "softplus": lambda z: 1.0 / (1.0 + np.exp(-z))}
CONVERGED = 1000  # steps of power iteration


def dense_base(sizes=(4, 7, 3), activation="tanh", scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    hidden = [L.Dense(size, activation) for size in sizes[1:-1]]
    base = keras.Sequential([keras.Input(sizes[:1]), *hidden, L.Dense(sizes[-1])])
    for variable in base.weights:
        fan_in = variable.shape[0] if len(variable.shape) == 2 else 4.0
        variable.assign(scale * rng.standard_normal(variable.shape) / np.sqrt(fan_in))
    return base


def random_data(count=6, classes=3, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 4)).astype(np.float32), rng.integers(0, classes, count)


def weights_of(base):
    return [np.asarray(w, np.float64) for w in base.get_weights()]


def network_of(weights, activation="tanh"):
    return Network.from_weights(weights[::2], weights[1::2], activation)


def curvature_of(weights, activation="tanh"):
    return -signed_bound(network_of(weights, activation)).lower


def logits_of(weights, x, activation="tanh"):
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = SIGMA[activation](x @ kernel + bias)
    return x @ weights[-2] + weights[-1]


def cross_entropy(logits, y):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]


def runner_up(logits, y):
    others = np.array(logits)
    others[np.arange(len(y)), y] = -np.inf
    return others.argmax(axis=1)


def margin_slope(weights, x, y, t, activation):
    """∇(z_y − z_t) at x."""
    tangents = []
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        z = x @ kernel + bias
        tangents.append((kernel, SLOPE[activation](z)))
        x = SIGMA[activation](z)
    cotangent = (weights[-2][:, y] - weights[-2][:, t]).T
    for kernel, slope in reversed(tangents):
        cotangent = (cotangent * slope) @ kernel.T
    return cotangent


def worst_point(weights, x, y, t, kappa, radius, activation):
    """The attack's stationary point, x̂ = x − g(x̂)/η with η = max(κ, ‖g(x̂)‖/ρ)."""
    point, kappa, largest = x, kappa[y, t], np.maximum(kappa[y, t], kappa[t, y])
    for _ in range(5000):
        g = margin_slope(weights, point, y, t, activation)
        eta = np.maximum(kappa, np.linalg.norm(g, axis=1) / radius)[:, None]
        step = (g + eta * (point - x)) / (eta + largest[:, None])
        if np.abs(step).max() < 1e-10:  # of which a loss has the square
            return point
        point = point - step
    raise AssertionError("the oracle has not converged")


def penalised_loss(weights, x, y, gamma, activation):
    logits = logits_of(weights, x, activation)
    kappa = curvature_of(weights, activation)[y, runner_up(logits, y)]
    return cross_entropy(logits, y).mean() + gamma * kappa.mean()


def certified_loss(weights, x, y, gamma, activation, radius):
    """Each attack is found anew for these weights: nothing is held fixed."""
    kappa = curvature_of(weights, activation)
    classes = len(kappa)
    total, penalty = np.zeros(len(x)), 0.0
    for shift in range(1, classes):
        t = (y + shift) % classes
        k = kappa[y, t]
        point = worst_point(weights, x, y, t, kappa, radius, activation)
        logits = logits_of(weights, point, activation)
        margin = logits[np.arange(len(y)), y] - logits[np.arange(len(y)), t]
        inside = np.minimum(np.sum((point - x) ** 2, axis=1) - radius**2, 0.0)
        total += np.exp(-(margin + k / 2.0 * inside))
        penalty += k.mean() / (classes - 1)
    return np.log1p(total).mean() + gamma * penalty


def crt_loss(points, rival):
    """The cross-entropy at given points: those of the attack are not differentiated through."""

    def loss(weights, x, y, gamma, activation):
        kappa = curvature_of(weights, activation)[y, rival]
        return (
            cross_entropy(logits_of(weights, points, activation), y).mean() + gamma * kappa.mean()
        )

    return loss


def central_differences(loss, weights, *args, step=1e-4):
    """Central differences along random unit directions of each weight, and these.

    Truncation and the 1e-9 of a proved bound leave about 1e-5.
    """
    rng, found = np.random.default_rng(7), []
    for index, weight in enumerate(weights):
        directions = rng.standard_normal((min(4, weight.size), *weight.shape))
        directions /= np.linalg.norm(directions.reshape(len(directions), -1), axis=1).reshape(
            -1, *np.ones(weight.ndim, int)
        )
        slopes = []
        for direction in directions:
            ends = []
            for sign in (1.0, -1.0):
                moved = [w.copy() for w in weights]
                moved[index] += sign * step * direction
                ends.append(loss(moved, *args))
            slopes.append((ends[0] - ends[1]) / (2.0 * step))
        found.append((directions, np.array(slopes)))
    return found


def converge(model):
    """Takes the first step of power iteration, which is of so many, as a graph."""
    model.curvature.start_iterations = CONVERGED
    tf.function(lambda: model.curvature.advance(model.live.now()), autograph=False)()


def one_step(model, x, y, rate=0.5):
    """One step of gradient descent: the loss, and (old − new)/rate for each weight."""
    many = getattr(model, "attack_steps", 0) > 10  # a loop of these is quicker as a graph
    model.compile(keras.optimizers.SGD(rate), run_eagerly=not many, jit_compile=False)
    converge(model)
    before = weights_of(model.base)
    loss = model.train_on_batch(x, y)
    moved = [(b - a) / rate for b, a in zip(before, weights_of(model.base), strict=True)]
    return float(loss[0] if isinstance(loss, list) else loss), moved


def assert_gradients(ours, expected):
    for gradient, (directions, slopes) in zip(ours, expected, strict=True):
        along = np.sum(directions * gradient, axis=tuple(range(1, directions.ndim)))
        # float32, and points and eigenvectors that have converged to about its square root.
        np.testing.assert_allclose(along, slopes, atol=2e-3 * np.linalg.norm(gradient) + 1e-5)
