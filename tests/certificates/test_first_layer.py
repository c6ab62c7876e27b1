"""The first layer's curvature bounds what linear bounds carry back to it."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, draw_network, labelled, project
from linear_intervals import pre_activation_bounds

from keras_curv.certificates.linear import crown
from keras_curv.certificates.linear.bounds import first_layer, linear_bounds
from keras_curv.certificates.linear.bounds.first_layer import FirstLayer, Functions
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.activations import SMOOTH
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork

SIZES = (5, 11, 7, 3)
RADII = 0.0, 1e-3, 0.3, 3.0, 40.0

# Ranges of σ′ and σ″ of the others are in test_activations.py.
FEW = "softplus", "tanh", "silu", "sparse_plus"


def lowest(network, x, rows, constants, radius, steps=12):
    """The least `v a_1 + c` met by descent, each pair by itself; rows `(n, m, N_1)`: `(n, m)`."""
    affine, sigma = network.affines[0], network.activations[0]
    met = np.full(rows.shape[:2], np.inf)
    delta = np.zeros((*rows.shape[:2], x.shape[1]))
    free = 1.0 if network.pinned is None else ~network.pinned
    for step in range(steps):
        z = tf.constant((x[:, None] + delta) @ affine.kernel + affine.bias)
        a, slope = sigma.value(z).numpy(), sigma.first(z).numpy()
        met = np.minimum(met, np.sum(rows * a, axis=2) + constants)
        gradient = ((rows * slope) @ affine.kernel.T) * free
        gradient /= np.maximum(np.linalg.norm(gradient, axis=2, keepdims=True), 1e-300)
        length = radius[:, None, None] * (1.0 if step == 0 else 1.0 / step)
        moved = (delta - length * gradient).reshape(-1, x.shape[1])
        delta = project(moved, np.repeat(radius, rows.shape[1])).reshape(delta.shape)
    return met


def unit_rows(network, x, sign=1.0):
    second = network.affines[1]
    rows = np.broadcast_to(sign * second.kernel.T, (len(x), *second.kernel.T.shape))
    return rows, sign * second.bias


def units_of(network, x, radius):
    return Centres(network, x, FirstLayer(network)).units(radius)


def minimum_of(network, x, *args, **options):
    centres = Centres(network, x)
    at = centres.z[0], centres.errors[0]
    return FirstLayer(network).minimum(*at, *args, **options)


@pytest.mark.parametrize("name", FEW)
def test_no_unit_leaves_its_interval(name, rng):
    network = draw_network(rng, SIZES, name)
    x = rng.standard_normal((6, network.dim))
    for radius in RADII:
        radius = np.full(len(x), radius)
        low, high = units_of(network, x, radius)
        least = lowest(network, x, *unit_rows(network, x), radius)
        most = -lowest(network, x, *unit_rows(network, x, -1.0), radius)
        slack = 1e-13 * (1.0 + np.abs(least) + np.abs(most))  # rounding of what was met
        assert np.all(low <= least + slack) and np.all(most <= high + slack)
        if radius[0] <= 1e-3:  # and is near its ends
            assert np.all(high - low <= 1.02 * (most - least) + 1e-11)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("each", [False, True])
def test_no_function_of_the_layer_falls_below_its_bound(name, each, rng):
    network = draw_network(rng, SIZES, name)
    x = rng.standard_normal((6, network.dim))
    rows = rng.standard_normal((6, 4, SIZES[1]))
    constants = rng.standard_normal((6, 4))
    for radius in RADII:
        radius = np.full(len(x), radius)
        bound = minimum_of(network, x, radius, rows, constants, each=each)
        met = lowest(network, x, rows, constants, radius)
        assert np.all(bound <= met + 1e-13 * (1.0 + np.abs(met)))
        if radius[0] <= 1e-3:
            value = lowest(network, x, rows, constants, np.zeros(6))
            assert np.all(value - bound <= 1.02 * (value - met) + 1e-11)


def test_the_bound_is_that_of_the_best_minorant(rng):
    """Of one unit with σ = x²/2 near 0, F = −½(w·x)²: κ is exact, and so is the second point."""
    w = rng.standard_normal((4, 1))
    kernels, biases = (
        [w, np.ones((1, 1)), np.ones((1, 2))],
        [np.full(1, 0.5), *map(np.zeros, (1, 2))],
    )
    network = Network.from_weights(kernels, biases, "sparse_plus")  # σ″ = ½ where |z| < 1
    x, radius = np.zeros((1, 4)), np.array([0.3 / np.linalg.norm(w)])
    rows, constants = np.full((1, 1, 1), -1.0), np.zeros((1, 1))
    bound = minimum_of(network, x, radius, rows, constants, each=True)
    sigma = network.activations[0].value(tf.constant([0.8], tf.float64))
    np.testing.assert_allclose(bound, [-sigma], rtol=1e-6)


def linear_network(rng, kernel, **errors):
    """With softplus where it is z to the last bit: exact arithmetic can follow."""
    shapes = [(kernel.shape[1], 7), (7, 3)]
    others = [Affine(rng.standard_normal(shape), np.zeros(shape[1])) for shape in shapes]
    first = Affine(kernel, np.full(kernel.shape[1], 60.0), **errors)
    return Network([first, *others], [SMOOTH["softplus"]] * 2)


def test_weights_within_the_folding_error(rng):
    """The worst map within kernel_error of the known one is allowed for, at the worst point."""
    error, radius = 0.05, np.full(6, 0.4)
    kernel = 0.3 * rng.standard_normal((5, 11))
    network = linear_network(rng, kernel, kernel_error=error, bias_error=error)
    x, rows = rng.standard_normal((6, 5)), rng.standard_normal((6, 1, 11))
    x[0] = 0.0
    low, high = units_of(network, x, radius)
    found = minimum_of(network, x, radius, rows, np.zeros((6, 1)), each=True)
    units = unit_rows(network, x)[0]
    for v, bounds in ((rows, found), (units, low), (-units, -high)):
        gradient = v @ kernel.T
        steep = np.linalg.norm(gradient, axis=2, keepdims=True)
        points = x[:, None] - radius[:, None, None] * gradient / steep
        values = np.sum(v * (points @ kernel + 60.0), axis=2)
        far = np.linalg.norm(points, axis=2) + 1.0
        worst = values - error * np.linalg.norm(v, axis=2) * far
        assert np.all(bounds <= worst) and np.all(values - bounds <= 3.0 * (values - worst))


@pytest.mark.parametrize("onward", [False, True])
def test_slopes_within_the_folding_error(onward, rng):
    """In float32 and in float64: of the worst map within kernel_error, at every point."""
    error = 0.05
    network = linear_network(rng, 0.3 * rng.standard_normal((5, 11)), kernel_error=error)
    centres, first = Centres(network, rng.standard_normal((6, 5))), FirstLayer(network)
    functions = Functions.of(rng.standard_normal((6, 4, 11)), np.zeros((6, 4)))
    before = first.tangents(centres.z[0], centres.errors[0], functions)
    distance, kappa = np.full((6, 1), 0.1), np.zeros((6, 4))
    found = first.along(before, distance, functions, kappa, onward=onward).minorants.steep
    size = np.linalg.norm(functions.rows, axis=2)
    worst = np.linalg.norm(functions.rows @ network.affines[0].kernel.T, axis=2) + error * size
    assert np.all(found >= worst * (1.0 - 1e-13)) and np.all(found <= 2.0 * worst)


def test_rounding_where_sums_cancel(rng):
    """Two inputs of 10⁸ that all but cancel: sums of them are off by 10⁻⁸, and that is charged."""
    kernel = rng.standard_normal((2, 11))
    kernel[1] = kernel[0] + 1e-7 * rng.standard_normal(11)
    network, x = linear_network(rng, kernel), 1e8 * np.array([[1.0, -1.0]])
    rows = rng.standard_normal((200, 1, 11))
    x, radius = np.repeat(x, 200, axis=0), np.zeros(200)
    bound = minimum_of(network, x, radius, rows, np.zeros((200, 1)), each=True)
    z = [
        60 + sum(Fraction(a) * Fraction(w) for a, w in zip(x[0], column, strict=True))
        for column in kernel.T
    ]
    for row, least in zip(rows[:, 0], bound[:, 0], strict=True):
        exact = sum(Fraction(v) * part for v, part in zip(row, z, strict=True))
        assert Fraction(least) <= exact <= Fraction(least) + Fraction(1e-5)


def test_inputs_that_are_pinned_do_not_count(rng):
    network = draw_network(rng, SIZES, "softplus")
    pinned = np.array([True, False, False, True, False])
    held = PinnedNetwork(network.affines, network.activations, pinned=pinned)
    x, radius = rng.standard_normal((6, network.dim)), np.full(6, 0.8)
    low, high = units_of(held, x, radius)
    free_low, free_high = units_of(network, x, radius)
    assert np.all(high - low < free_high - free_low)
    assert np.all(low <= lowest(held, x, *unit_rows(held, x), radius) + 1e-12)


@pytest.mark.parametrize("power", [-80, -20, 20, 80])
def test_any_scale(power, rng):
    """With kernels 2^k as large and inputs 2^−k: the same function, and about the same bounds."""
    network, scale = draw_network(rng, SIZES, "tanh"), 2.0**power
    first, *others = network.affines
    scaled = Network([Affine(first.kernel * scale, first.bias), *others], network.activations)
    x, radius = rng.standard_normal((6, network.dim)), np.full(6, 0.4)
    expected = units_of(network, x, radius)
    found = units_of(scaled, x / scale, radius / scale)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e-220, 1e-160, 1e160, 1e220, 1e300])
def test_rows_that_over_or_underflow_prove_nothing_wrong(size, rng):
    network = draw_network(rng, SIZES, "softplus")
    x, radius = rng.standard_normal((6, network.dim)), np.full(6, 0.4)
    rows, constants = size * rng.standard_normal((6, 1, SIZES[1])), np.zeros((6, 1))
    with np.errstate(all="ignore"):
        bound = minimum_of(network, x, radius, rows, constants, each=True)
        met = lowest(network, x, rows, constants, radius)
    assert np.all(bound <= met * (1.0 - np.sign(met) * 1e-12))


@pytest.mark.parametrize(("each", "count"), [(False, 1), (True, 3)])
def test_a_square_that_comes_to_minus_infinity_is_not_taken_for_nothing(each, count):
    """To −∞ what is positive is added in vain; it depends on the order of a sum, so on the size."""
    kernels = [np.full((100, 16), 0.5), np.ones((16, 7)), np.ones((7, 2))]
    network = Network.from_weights(
        kernels, [np.full(16, 60.0), np.zeros(7), np.zeros(2)], "softplus"
    )
    x, radius = np.zeros((1, 100)), np.array([0.1])
    constants, centres, first = np.zeros((1, count)), Centres(network, x), FirstLayer(network)
    for signs in (np.repeat([-1.0, 1.3], 8), np.tile([-1.0, -1.0, -1.0, 3.3], 4)):
        for size in 10.0 ** np.arange(151.0, 154.0, 0.05):
            rows = np.broadcast_to(size * signs, (1, count, 16))
            with np.errstate(all="ignore"):
                bound = first.minimum(
                    centres.z[0], centres.errors[0], radius, rows, constants, each=each
                )
            lowest_value = size * signs.sum() * (60.0 - 0.5)  # softplus is z here
            assert not np.any(bound > lowest_value * (1.0 + 1e-9))


def test_where_it_has_nothing_to_say(rng, monkeypatch):
    of = FirstLayer.of
    assert of(draw_network(rng, SIZES, "tanh")) is not None
    assert of(draw_network(rng, SIZES, "relu")) is None
    assert of(draw_network(rng, (5, 11, 3), "tanh")) is None
    assert of(draw_network(rng, SIZES, "tanh", scale=1e40)) is None
    assert of(draw_network(rng, SIZES, "tanh", scale=1e-40)) is None
    monkeypatch.setattr(first_layer, "WORK", 7.0 * 10.0**3 - 1.0)
    assert of(draw_network(rng, SIZES, "tanh")) is None  # 7 proofs with matrices of side 10


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
@pytest.mark.parametrize("sizes", [(60, 40, 30, 5), (60, 40, 30, 20, 5)])
def test_radii_grow_by_it(name, sizes, rng, monkeypatch):
    network = draw_network(rng, sizes, name, scale=2.0)
    x = rng.standard_normal((20, network.dim))
    label, rivals = labelled(network, x)
    args = x, label, rivals, np.zeros(rivals.shape)
    radius = LinearBoundCertificate(network).prove(Question.of(*args)).radius.min(axis=1)
    points = ball_points(rng, x, radius, 300)
    logits = network.logits(tf.constant(points.reshape(-1, network.dim))).numpy()
    assert np.all(logits.argmax(axis=1).reshape(300, -1) == label)
    monkeypatch.setattr(crown.FirstLayer, "of", lambda network: None)
    without = LinearBoundCertificate(network).prove(Question.of(*args)).radius.min(axis=1)
    assert np.all(radius >= 0.98 * without) and radius.mean() >= 1.1 * without.mean()


def met_intervals(network, x, radius, rng):
    """The least and the largest pre-activations at random points, `(n, N_k)` of each layer."""
    points = ball_points(rng, x, np.full(len(x), radius), 200).reshape(-1, network.dim)
    for z in network.forward(tf.constant(points))[0]:
        z = z.numpy().reshape(200, len(x), -1)
        yield z.min(axis=0), z.max(axis=0)


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
@pytest.mark.parametrize("radius", [0.01, 0.3, 2.0])
def test_what_leads_nowhere_on_some_rows_is_left_out(name, radius, rng, monkeypatch):
    """Little is lost beside asking for lines and for curvature wherever they are."""
    network = draw_network(rng, (20, 30, 90, 80, 5), name)
    x = rng.standard_normal((3, network.dim))
    x[2] *= 30.0  # where all is flat, and other ends lead
    sampled = pre_activation_bounds(network, x, np.full(3, radius))
    for i in range(3):  # whatever the others are
        alone = pre_activation_bounds(network, x[i : i + 1], np.full(1, radius))
        for ends, together in zip(alone, sampled, strict=True):
            for end, same in zip(ends, together, strict=True):
                # To what products in float32 round, which depends on their size.
                np.testing.assert_allclose(end[0], same[i], rtol=1e-6, atol=1e-6)
    asked, ends = [], (Balls.by_lines, Balls.by_curvature)

    def count(place):
        def end(self, *args):
            asked.append(place)
            return ends[place](self, *args)

        return end

    monkeypatch.setattr(Balls, "by_lines", count(0))
    monkeypatch.setattr(Balls, "by_curvature", count(1))
    pre_activation_bounds(network, x, np.full(3, radius))
    tries = len(asked)
    monkeypatch.setattr(linear_bounds, "SAMPLE", 1000)
    every = pre_activation_bounds(network, x, np.full(3, radius))
    both = len(asked) - tries
    assert both == 6 <= tries  # of which 6 are samples
    assert tries < 12 or radius != 0.01
    for (low, high), (lowest, highest) in zip(every, sampled, strict=True):
        assert np.sum(highest - lowest) <= 1.01 * np.sum(high - low)
    for (low, high), (least, most) in zip(
        sampled, met_intervals(network, x, radius, rng), strict=True
    ):
        assert np.all(low <= least + 1e-12) and np.all(most <= high + 1e-12)
