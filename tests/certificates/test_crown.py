"""No point of the ball leaves the bounds, whoever looks for it; and they are as tight as known."""

import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import (
    CASES,
    SIZES,
    ball_points,
    build,
    draw_network,
    labelled,
    lowest_margins,
    rivals_of,
)
from linear_intervals import pre_activation_bounds

from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_no_pre_activation_leaves_its_interval(name, depth, rng):
    network = draw_network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((6, network.dim))
    for size in (0.03, 0.4, 3.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        intervals = pre_activation_bounds(network, x, radius)
        assert [low.shape[1] for low, _ in intervals] == list(network.sizes[1:-1])
        points = tf.constant(ball_points(rng, x, radius, 400).reshape(-1, network.dim))
        layers = network.forward(points)[0]
        for (low, high), z in zip(intervals, layers, strict=True):
            z = z.numpy().reshape(400, *low.shape)
            slack = 1e-13 * (1.0 + np.abs(z).max())  # rounding of the sampled values
            assert np.all(z >= low - slack) and np.all(z <= high + slack)


@pytest.mark.parametrize(("name", "depth"), [case for case in CASES if case[1] != 2])
def test_gradient_ascent_does_not_leave_the_last_interval(name, depth, rng):
    network = draw_network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((5, network.dim))
    radius = rng.uniform(0.05, 0.8, len(x))
    low, high = pre_activation_bounds(network, x, radius)[-1]
    # The last hidden layer as logits: unit j against a constant zero class.
    hidden = network.affines[depth - 2]
    kernel = np.concatenate([hidden.kernel, np.zeros((hidden.fan_in, 1))], axis=1)
    head = Affine(kernel, np.append(hidden.bias, 0.0))
    inner = Network([*network.affines[: depth - 2], head], network.activations[: depth - 2])
    # Each unit as a label, and the constant as its rival.
    each = np.repeat(x, hidden.fan_out, axis=0), np.tile(np.arange(hidden.fan_out), len(x))
    zero, reach = np.full((len(each[0]), 1), hidden.fan_out), np.repeat(radius, hidden.fan_out)
    for sign, bound in ((1.0, low), (-1.0, -high)):
        flipped = Affine(sign * head.kernel, sign * head.bias)
        negated = Network([*inner.affines[:-1], flipped], inner.activations)
        got = lowest_margins(negated, *each, zero, reach, rng, 6).reshape(bound.shape)
        assert np.all(got >= bound - 1e-12 * (1.0 + np.abs(bound)))


def test_the_first_layer_is_exact(rng):
    network = draw_network(rng, SIZES[3], "tanh")
    x, radius = rng.standard_normal((7, 4)), rng.uniform(size=7)
    low, high = pre_activation_bounds(network, x, radius)[0]
    first = network.affines[0]
    reach = radius[:, None] * np.linalg.norm(first.kernel, axis=0)
    np.testing.assert_allclose(low, x @ first.kernel + first.bias - reach, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(high, x @ first.kernel + first.bias + reach, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_no_margin_falls_below_its_bound(name, depth, rng):
    network = draw_network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((6, network.dim))
    label, rivals = labelled(network, x)
    for size in (0.05, 0.5, 4.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        bound = LinearBoundCertificate(network).margin_bounds(x, label, rivals, radius)
        got = lowest_margins(network, x, label, rivals, radius, rng)
        points = ball_points(rng, x, radius, 100)
        for k in range(rivals.shape[1]):
            args = np.tile(label, 100), np.tile(rivals[:, k], 100)
            margin = network.margin(tf.constant(points.reshape(-1, network.dim)), *args).numpy()
            got[:, k] = np.minimum(got[:, k], margin.reshape(100, -1).min(axis=0))
        assert np.all(got >= bound - 1e-12 * (1.0 + np.abs(bound)))


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh", "softsign"])
def test_small_balls_have_the_linear_bound(name, rng):
    """`f − R ‖∇f‖ − O(R²)`: with R = 1e-5 what is left of second order is below 1e-8."""
    network = draw_network(rng, SIZES[3], name)
    x = rng.standard_normal((6, 4))
    label, rivals = labelled(network, x)
    bound = LinearBoundCertificate(network).margin_bounds(x, label, rivals, np.full(6, 1e-5))
    got = network.evaluate(tf.constant(x), label, rivals)
    linear = got.margin.numpy() - 1e-5 * np.linalg.norm(got.gradient.numpy(), axis=-1)
    np.testing.assert_allclose(bound, linear, rtol=0.0, atol=1e-7)


REFERENCE = ["sigmoid3", "tanh3", "tanh4", "relu2", "relu3"]


@pytest.mark.parametrize("case", REFERENCE)
def test_at_least_as_tight_as_auto_lirpa(case):
    with np.load(pathlib.Path(__file__).parents[1] / "data" / "crown_l2.npz") as data:
        part = {k.split("/")[1]: data[k] for k in data if k.startswith(f"{case}/")}
    layers = range(int(case[-1]))
    network = build(
        [part[f"kernel{i}"] for i in layers], [part[f"bias{i}"] for i in layers], case[:-1]
    )
    certificate = LinearBoundCertificate(network)
    x, label = part["x"], part["label"]
    rivals = rivals_of(network, label)
    margin = network.evaluate(tf.constant(x), label, rivals).margin.numpy()
    for eps, theirs in zip(part["eps"], part["crown_lower"], strict=True):
        radius = np.full(len(x), eps)
        # One rival at a time: a rival that is not the nearest would not get its second pass.
        ours = np.concatenate(
            [
                certificate.margin_bounds(x, label, rivals[:, k : k + 1], radius)
                for k in range(rivals.shape[1])
            ],
            axis=1,
        )
        assert np.mean(ours - theirs) >= -1e-11  # the charge for rounding
        # Interpolation between 32 points costs at most 1 % of what a margin loses to the ball.
        assert np.all(ours >= theirs - 0.01 * (margin - theirs) - 1e-11)


def test_affine_networks_are_exact(rng):
    network = draw_network(rng, SIZES[1], "tanh")
    x = rng.standard_normal((5, 5))
    label, rivals = labelled(network, x)
    got = network.evaluate(tf.constant(x), label, rivals)
    margin, slope = got.margin.numpy(), np.linalg.norm(got.gradient.numpy(), axis=-1)
    exact = (margin / slope).min(axis=1)
    radius, gradients, *_ = LinearBoundCertificate(network).prove(Question.of(x, label, rivals))
    assert np.all(radius <= exact[:, None]) and np.all(radius >= 0.999 * exact[:, None])
    assert np.all(gradients >= 2)


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_radii_survive_attack_and_are_the_largest(name, depth, rng):
    network = draw_network(rng, SIZES[depth], name, 1.2)
    x = 0.7 * rng.standard_normal((8, network.dim))
    label, rivals = labelled(network, x)
    certificate = LinearBoundCertificate(network)
    radius, *_ = certificate.prove(Question.of(x, label, rivals))
    assert np.all(radius > 0.0) and np.all(radius == radius[:, :1])
    inside = radius[:, 0] * (1.0 - 1e-9)
    assert np.all(certificate.margin_bounds(x, label, rivals, radius[:, 0]) > 0.0)
    assert np.all(lowest_margins(network, x, label, rivals, inside, rng) > 0.0)
    bounded = radius[:, 0] < 1e90  # many layers of sigmoid forget the input: no margin changes
    beyond = certificate.margin_bounds(x, label, rivals, radius[:, 0] * 1.0011).min(axis=1)
    assert np.all(beyond[bounded] <= 0.0)
    assert bounded.sum() >= 4


@pytest.mark.parametrize(
    ("name", "scale"), zip(ACTIVATIONS, itertools.cycle([1.0, 10.0]), strict=False)
)
def test_no_bound_is_below_that_of_intervals(name, scale, rng):
    network = draw_network(rng, (4, 7, 6, 5, 3), name, scale)
    x, radius = rng.standard_normal((40, 4)), 10.0 ** rng.uniform(-2, 3, 40)
    args = x, *labelled(network, x), radius
    intervals = IntervalCertificate(network).margin_bounds(*args)
    lines = LinearBoundCertificate(network).margin_bounds(*args)
    slack = 1e-9 * np.max(np.abs(intervals), initial=1.0)
    assert np.all(lines >= intervals - slack)


def test_a_unit_that_turns_many_times_does_not_spoil_the_lines_of_others():
    """`0.3 sin 100x + 4 sin(0.3x + 0.3y) − 4 sin(0.3x + 0.3y + 0.5) + 2.8`, at least 0.52."""
    kernels = [[[100.0, 0.3, 0.3], [0.0, 0.3, 0.3]], [[0.3, 0.0], [4.0, 0.0], [-4.0, 0.0]]]
    network = Network.from_weights(kernels, [[0.0, 0.0, 0.5], [2.8, 0.0]], "sin")
    question = np.zeros((1, 2)), np.array([0]), np.array([[1]]), np.zeros((1, 1))
    assert 2.9 < LinearBoundCertificate(network).prove(Question.of(*question)).radius.item() < 3.0


@pytest.mark.parametrize("name", ["tanh", "softsign"])
def test_no_input_changes_a_class_that_is_proved_far_out(name, rng):
    kernels = [rng.standard_normal(shape) for shape in ((4, 6), (6, 5), (5, 3))]
    # The largest bias at which all is proved, or about that: attacks should come close.
    for top in (14.0, 9.0, 5.0):
        biases = [rng.standard_normal(6), rng.standard_normal(5), np.array([0.0, 0.0, top])]
        network = build(kernels, biases, name)
        x = rng.standard_normal((10, 4))
        result = LinearBoundCertificate(network).certify(x)
        rows = np.flatnonzero(result.radius > 1e99)
        assert len(rows) or top < 14.0
        if not len(rows):
            break
        x, label = x[rows], result.prediction[rows]
        rivals = rivals_of(network, label).reshape(len(rows), 2)
        for reach in (1e-3, 3.0, 1e8):
            radius = np.full(len(rows), reach)
            points = ball_points(rng, x, radius, 64).reshape(-1, 4)
            found = network.logits(points).numpy().argmax(axis=1).reshape(64, -1)
            assert np.all(found == label)
            assert np.all(lowest_margins(network, x, label, rivals, radius, rng, steps=4) > 0.0)
