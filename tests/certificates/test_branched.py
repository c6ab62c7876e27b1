"""Cells with fixed signs: bounds that hold for any multipliers, and cubes that are proved whole."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import draw_network, labelled

import keras_curv
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.linear.bounds.coupling import coupled_units
from keras_curv.certificates.linear.branched import (
    BranchedCertificate,
    branches,
    cell_bound,
    fixed_layers,
)
from keras_curv.certificates.method import ServedError
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.network import Network
from keras_curv.threats.norms import L2, LINF
from keras_curv.threats.threat import Threat

FIRST, LAST = np.array([[1.0, 2.0], [-1.0, -1.0]]), np.array([[1.0], [-1.0]])
X = np.array([[0.5, -0.5]], np.float32)
BOX = {"low": [-1.0, -2.0], "high": [2.0, 1.0]}


@pytest.fixture(scope="module")
def toy():
    """The live model f = relu(x0 − x1) − relu(2 x0 − x1): −0.5 at X, from −2 to 1 in the box."""
    import keras

    layers = [keras.layers.Dense(2, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    for layer, kernel in zip(layers, (FIRST, LAST), strict=True):
        layer.set_weights([kernel, np.zeros(kernel.shape[1])])
    return model


@pytest.mark.parametrize(("tau", "exact"), [(0.7, 0.7), (1.4, 1.4), (1.6, np.inf)])
def test_the_toy_is_decided(toy, tau, exact):
    threat = {"norm": "linf", **BOX}
    found = keras_curv.certify(toy, X, threat=threat, property=f"interval:{tau}")
    radius = found.radius.item()
    assert radius == exact or 0.998 * exact < radius <= exact
    alone = keras_curv.certify(toy, X, threat=threat, property=f"interval:{tau}", method="coupled")
    assert alone.radius.item() <= radius
    if tau > 1.0:  # what the others leave open
        assert found.method.item() == "branched" and alone.radius.item() < 0.9 * exact


def leaky(rng, sizes):
    """A network of leaky relu."""
    network = draw_network(rng, sizes, "relu")
    return Network(network.affines, [activations.get("leaky_relu(0.3)")] * (len(sizes) - 2))


CASES = {
    "relu": lambda rng: draw_network(rng, (2, 8, 3), "relu"),
    "deep": lambda rng: draw_network(rng, (2, 5, 5, 3), "relu"),
    "leaky": lambda rng: leaky(rng, (2, 8, 3)),
    "box": lambda rng: Threat(norm="linf", low=-1.5, high=1.0).network(
        draw_network(rng, (2, 8, 3), "relu"), 2
    ),
    "pinned": lambda rng: Threat(norm="linf", frozen=[1]).network(
        draw_network(rng, (3, 8, 3), "relu"), 3
    ),
}


def cube_points(network, x, radius, side):
    """A grid of a cube of two moving entries, in the limits, `(side², dim)`."""
    moves = np.arange(network.dim) if network.pinned is None else np.flatnonzero(~network.pinned)
    axis = np.linspace(-radius, radius, side)
    points = np.tile(x, (side * side, 1))
    points[:, moves] += np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    return points if network.limits is None else np.clip(points, *network.limits)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_radii_are_right_and_nearly_exact(name, seed):
    """On a grid of the cube no margin is negative; a little farther one is, but in deep nets."""
    rng = np.random.default_rng(seed)
    network = CASES[name](rng)
    x = rng.uniform(-1.0, 1.0, (3, network.dim))
    label, rivals = labelled(network, x)
    proof = BranchedCertificate(network).prove(Question.of(x, label, rivals))
    for row, radius in enumerate(proof.radius.min(axis=1)):
        assert radius > 0.0
        for factor, holds in ((0.9999, True), (1.02, False)):
            points = cube_points(network, x[row], min(radius, 20.0) * factor, 151)
            logits = network.logits(tf.constant(points)).numpy()
            margins = logits[:, [label[row]]] - logits[:, rivals[row]]
            if holds:
                assert margins.min() > 0.0
            elif name != "deep" and radius < 20.0:
                assert margins.min() <= 0.0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_any_multipliers_bound_a_cell(name, scale):
    """At points of a cell no margin is below the bound, whatever the signs and multipliers."""
    rng = np.random.default_rng(7)
    network, tight = CASES[name](rng), 0
    certificate = BranchedCertificate(network)
    for _ in range(8):
        x = rng.uniform(-1.0, 1.0, (1, network.dim))
        label, rivals = labelled(network, x)
        cube = certificate.balls_of(certificate.centres_of(x), np.array([0.8]))
        cube.bound_layers()
        _, rows, constants, error, _ = cube.margins(label, rivals[:, :1], np.ones((1, 1), bool))
        points = cube_points(network, x[0], 0.8, 101)
        pre = [z.numpy() for z in network.forward(tf.constant(points))[0]]
        logits = network.logits(tf.constant(points)).numpy()
        margins = logits[:, label[0]] - logits[:, rivals[0, 0]]
        at, signs = rng.integers(len(points)), []
        for z, layer, sigma in zip(pre, cube.layers, network.activations, strict=True):
            free = coupled_units(sigma, layer.low, layer.high)[0] & (rng.random(z.shape[1]) < 0.7)
            signs.append(np.where(free, np.where(z[at] > 0.0, 1, -1), 0))
        inside = np.ones(len(points), bool)
        for z, sign in zip(pre, signs, strict=True):
            inside &= ((z * sign) >= 0.0).all(axis=1)
        multipliers = [scale * rng.exponential(size=len(s)) * (rng.random(len(s)) < 0.7)
                       for s in signs]  # fmt: skip
        layers = fixed_layers(cube, signs)
        margin = rows, constants, error
        least = margins[inside].min()
        bound = cell_bound(cube, layers, signs, multipliers, margin)
        assert bound <= least + 1e-12
        none = cell_bound(cube, layers, signs, [0.0 * m for m in multipliers], margin)
        assert none <= least + 1e-12
        tight += bound > none
        below = [-m for m in multipliers]  # which would be unsound
        assert cell_bound(cube, layers, signs, below, margin) == none
    assert tight or scale > 1e-6  # small multipliers help in some cells


def test_rounding_is_charged():
    """Against exact arithmetic where terms of 1e8 cancel."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        kernels = [rng.normal(size=(2, 6)) * 1e8, rng.normal(size=(6, 2)) * 1e8]
        x = rng.uniform(-1.0, 1.0, (1, 2))
        biases = [-(x @ kernels[0])[0] + rng.normal(size=6) * 1e-6, np.zeros(2)]
        network = Network.from_weights(kernels, biases, "relu")
        certificate = BranchedCertificate(network)
        cube = certificate.balls_of(certificate.centres_of(x), np.array([1e-14]))
        cube.bound_layers()
        pairs = np.array([0]), np.array([[1]]), np.ones((1, 1), bool)
        _, rows, constants, error, _ = cube.margins(*pairs)
        z = [_exact(x[0], kernels[0][:, j], biases[0][j]) for j in range(6)]
        signs = [np.array([1 if value > 0 else -1 for value in z])]
        weights = [Fraction(kernels[1][j, 0]) - Fraction(kernels[1][j, 1]) for j in range(6)]
        margin = sum(w * max(value, 0) for w, value in zip(weights, z, strict=True))
        multipliers = [rng.exponential(size=6) * 1e8]
        args = cube, fixed_layers(cube, signs), signs, multipliers, (rows, constants, error)
        assert Fraction(cell_bound(*args)) <= margin


def _exact(x, column, bias):
    return sum((Fraction(a) * Fraction(w) for a, w in zip(x, column, strict=True)), Fraction(bias))


def test_auto_asks_it_in_cubes_of_small_networks():
    rng = np.random.default_rng(0)
    network = draw_network(rng, (10, 16, 2), "relu")
    x = rng.normal(size=(6, 10))
    label, rivals = labelled(network, x)
    question = Question.of(x, label, rivals, tolerance=0.01)
    best = NormCertificate(choose_method("auto", network), LINF).prove(question)
    alone = NormCertificate(choose_method("coupled", network), LINF).prove(question)
    assert (best.radius >= 0.998 * alone.radius).all()
    assert (best.method == "branched").any() and best.radius.sum() > 1.1 * alone.radius.sum()
    assert (best.radius.min(axis=1) <= best.distance.min(axis=1)).all()


def test_a_box_is_safe_only_beyond_what_serving_takes_off():
    class Error(ServedError):
        def __call__(self, x, label, rivals, radius):
            return np.full(rivals.shape, 1.0) * (radius > 1.0)

    kernels = [FIRST, np.array([[0.0, 1.0], [0.0, -1.0]])]  # the margin is at least 0.1
    network = Network.from_weights(kernels, [np.zeros(2), [0.0, -1.1]], "relu")
    network = Threat(norm="linf", **BOX).network(network, 2)
    question = Question.of(X, [0], [[1]])
    assert BranchedCertificate(network).prove(question).radius.item() > 1e99
    assert 0.9 < BranchedCertificate(network, Error()).prove(question).radius.item() <= 1.0


def test_what_is_too_large_or_another_norm_is_refused():
    small = draw_network(np.random.default_rng(0), (2, 4, 2), "relu")
    with pytest.raises(InputError, match="branching is in l∞, for networks with relu .*l2"):
        BranchedCertificate(small, norm=L2)
    for sizes, name in (((65, 4, 2), "relu"), ((2, 257, 2), "relu"), ((2, 4, 2), "tanh")):
        network = draw_network(np.random.default_rng(0), sizes, name)
        assert not branches(network)
        with pytest.raises(InputError, match="up to 64 inputs and 256 units"):
            BranchedCertificate(network)
