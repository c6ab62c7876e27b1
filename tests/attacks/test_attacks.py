"""Attacks stay in their ball; what they find and what they prove close in from two sides."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.attacks import ball, crt, pgd
from keras_curv.attacks import foolbox as foolbox_attacks
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.network.network import Network

CASES = [
    ((6, 3), ()),
    ((5, 12, 4), ("softplus",)),
    ((5, 12, 4), ("tanh",)),
    ((4, 9, 6, 3), ("sigmoid", "tanh")),
    ((3, 5, 8, 6, 3), ("tanh", "softplus", "softplus")),
]


def _problem(network, rng, count=16, dtype=tf.float64):
    x = tf.constant(rng.standard_normal((count, network.dim)), dtype)
    label = tf.argmax(network.logits(x), axis=1, output_type=tf.int32)
    rival = network.runner_up(network.logits(x), label)
    kappa = -curvature_bounds(network).lower[label.numpy(), rival.numpy()]
    return x, label, rival, tf.constant(kappa, dtype)


def _descend(network, x, label, rival, radius, steps=200):
    """The smallest margin against one rival that plain projected descent meets."""
    point, best = x, np.full(len(x), np.inf)
    radius = tf.constant(radius, x.dtype)
    for step in range(steps + 1):
        margin, gradient = network.margin_and_gradient(point, label, rival)
        best = np.minimum(best, margin)
        length = 2.0 * radius * 0.97**step
        direction = tf.math.divide_no_nan(gradient, tf.norm(gradient, axis=1, keepdims=True))
        point = ball.project(point - length * direction, x, radius)
    return best


@pytest.mark.parametrize(("sizes", "names"), CASES)
@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_attack_and_bound(sizes, names, radius, rng, random_network):
    network = random_network(rng, sizes, names)
    x, label, rival, kappa = _problem(network, rng)
    radius = tf.constant(radius, tf.float64)
    at_start = network.margin(x, label, rival).numpy()
    descended = _descend(network, x, label, rival, radius, steps=60)
    slack = 1e-12 * (1.0 + np.abs(at_start))  # rounding
    for steps in (1, 3, 15):
        result = crt.curvature_attack(
            network, x, label, rival, radius=radius, curvature=kappa, steps=steps
        )
        distance = np.linalg.norm(result.point - x, axis=1)
        assert np.all(distance <= radius * (1.0 + 1e-12)), steps  # rounding of the projection
        np.testing.assert_array_equal(result.margin, network.margin(result.point, label, rival))
        assert np.all(result.margin <= at_start), steps
        assert np.all(result.lower_bound <= descended + slack), steps
        assert np.all(result.lower_bound <= result.margin + slack), steps
        gap = result.margin - result.lower_bound
        solved = gap <= 1e-4 * (1.0 + np.abs(at_start))
        assert np.array_equal(result.primal_equals_dual, solved), steps


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh"])
def test_nearly_linear_networks_are_solved(name, rng, random_network):
    network = random_network(rng, (5, 12, 4), name, 0.5)
    x, label, rival, kappa = _problem(network, rng)
    radius = 0.5
    result = crt.curvature_attack(
        network, x, label, rival, radius=radius, curvature=kappa, steps=20
    )
    assert np.all(result.primal_equals_dual)
    descended = _descend(network, x, label, rival, radius)
    # 1e-4 is the tolerance of primal = dual; the descent ends with steps of 0.97²⁰⁰ · 2ρ.
    np.testing.assert_allclose(result.margin, descended, atol=1e-4)
    assert np.linalg.norm(result.point - x, axis=1) == pytest.approx(radius, rel=1e-6)


def test_a_linear_network_is_solved_in_one_step(rng, random_network):
    network = random_network(rng, (6, 3), ())
    x, label, rival, kappa = _problem(network, rng)
    result = crt.curvature_attack(
        network,
        x,
        label,
        rival,
        radius=tf.constant(0.7, tf.float64),
        curvature=kappa,
        steps=1,
    )
    value, gradient = network.margin_and_gradient(x, label, rival)
    expected = value - 0.7 * np.linalg.norm(gradient, axis=1)
    np.testing.assert_allclose(result.margin, expected, atol=1e-12)  # rounding
    np.testing.assert_allclose(result.lower_bound, expected, atol=1e-12)


@pytest.mark.parametrize("radius", [0.3, 0.7])
def test_a_radius_keeps_its_float64_digits(radius, rng, random_network):
    """float32 moves 0.3 up and 0.7 down: out of the ball, or a bound for a smaller ball."""
    network = random_network(rng, (6, 3), ())
    x, label, rival, kappa = _problem(network, rng)
    result = crt.curvature_attack(network, x, label, rival, radius=radius, curvature=kappa)
    assert np.all(np.linalg.norm(result.point - x, axis=1) <= radius * (1.0 + 1e-12))  # rounding
    value, gradient = network.margin_and_gradient(x, label, rival)
    lowest = value - radius * np.linalg.norm(gradient, axis=1)
    assert np.all(result.lower_bound <= lowest + 1e-12)


def test_radius_may_differ_by_row(rng, random_network):
    network = random_network(rng, (5, 12, 4), "tanh")
    x, label, rival, kappa = _problem(network, rng)
    radius = np.linspace(0.01, 2.0, 16)
    together = crt.curvature_attack(
        network, x, label, rival, radius=tf.constant(radius), curvature=kappa
    )
    for row in (0, 7, 15):
        alone = crt.curvature_attack(
            network, x, label, rival, radius=tf.constant(radius[row]), curvature=kappa
        )
        # Rounding, blown up by ten Barzilai–Borwein steps.
        np.testing.assert_allclose(together.margin[row], alone.margin[row], rtol=1e-9)
        np.testing.assert_allclose(together.lower_bound[row], alone.lower_bound[row], rtol=1e-9)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_compiled_by_xla(dtype, rng, random_network):
    network = random_network(rng, (5, 12, 7, 4), ("softplus", "tanh"), 0.8)
    x, label, rival, kappa = _problem(network, rng, dtype=dtype)

    def attack(x, label, rival, kappa):
        return crt.curvature_attack(network, x, label, rival, radius=0.3, curvature=kappa, steps=6)

    plain = attack(x, label, rival, kappa)
    compiled = tf.function(attack, jit_compile=True, autograph=False)(x, label, rival, kappa)
    assert compiled.point.dtype == dtype
    # Rounding, and a few quotients of small differences in the step lengths.
    tolerance = 1e-4 if dtype == tf.float32 else 1e-9
    np.testing.assert_allclose(compiled.point, plain.point, atol=tolerance)
    np.testing.assert_allclose(compiled.margin, plain.margin, atol=tolerance)
    np.testing.assert_allclose(compiled.lower_bound, plain.lower_bound, atol=tolerance)


def test_a_step_that_overshoots_is_taken_back(rng, random_network):
    """Without curvature one long step often ends higher than it began."""
    network = random_network(rng, (5, 12, 4), "tanh", 6.0)
    x, label, rival, kappa = _problem(network, rng, count=64)
    result = crt.curvature_attack(
        network, x, label, rival, radius=3.0, curvature=tf.zeros_like(kappa), steps=1
    )
    at_start = network.margin(x, label, rival).numpy()
    assert np.all(result.margin <= at_start)
    stayed = np.all(result.point.numpy() == x.numpy(), axis=1)
    assert np.any(stayed) and not np.all(stayed)
    np.testing.assert_array_equal(result.margin.numpy()[stayed], at_start[stayed])


def test_no_gradient_means_no_move():
    network = Network.from_weights(
        [np.zeros((2, 3)), np.ones((3, 2))], [np.zeros(3), np.array([1.0, 0.0])], "tanh"
    )
    x = tf.constant([[0.5, 0.5]], tf.float64)
    zero, one = tf.constant([0]), tf.constant([1])
    result = crt.curvature_attack(
        network, x, zero, one, radius=1.0, curvature=tf.zeros(1, tf.float64)
    )
    np.testing.assert_array_equal(result.point, x)
    assert result.margin[0] == 1.0 and result.lower_bound[0] == 1.0
    assert result.primal_equals_dual[0]


def test_projection():
    x = tf.constant([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]], tf.float64)
    point = tf.constant([[4.0, 5.0], [0.3, 0.4], [2.0, 2.0]], tf.float64)
    result = ball.project(point, x, 1.0)
    np.testing.assert_allclose(result, [[1.6, 1.8], [0.3, 0.4], [2.0, 2.0]], rtol=1e-15)


@pytest.mark.parametrize("steps", [0, -1])
def test_steps_must_be_positive(steps, rng, random_network):
    network = random_network(rng, (5, 4), ())
    x, label, rival, kappa = _problem(network, rng)
    with pytest.raises(
        ValueError, match=f"steps must be an integer, at least 1. Received: {steps}"
    ):
        crt.curvature_attack(network, x, label, rival, radius=1.0, curvature=kappa, steps=steps)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("restarts", [1, 3])
def test_pgd_stays_in_the_ball_and_reports_what_it_met(dtype, restarts, rng, random_network):
    network = random_network(rng, (5, 12, 4), "tanh", 2.0)
    x, label, _, _ = _problem(network, rng, dtype=dtype)
    margin, point = pgd.pgd_attack(
        network, x, label, radius=0.4, steps=30, restarts=restarts, seed=1
    )
    distance = np.linalg.norm(point - x, axis=1)
    assert np.all(distance <= 0.4 * (1.0 + 1e-5))  # float32 rounding of the projection
    logits = network.logits(point).numpy()
    rows = np.arange(len(x))
    own = logits[rows, label.numpy()].copy()
    logits[rows, label.numpy()] = -np.inf
    np.testing.assert_allclose(margin, own - logits.max(axis=1), atol=1e-5)
    first_rival = network.runner_up(network.logits(x), label)
    assert np.all(margin <= network.margin(x, label, first_rival))
    assert np.mean(margin < network.margin(x, label, first_rival)) > 0.9


def test_more_restarts_never_find_less(rng, random_network):
    network = random_network(rng, (5, 12, 4), "tanh", 4.0)
    x, label, _, _ = _problem(network, rng)
    few, _ = pgd.pgd_attack(network, x, label, radius=1.0, steps=20, restarts=1)
    many, _ = pgd.pgd_attack(network, x, label, radius=1.0, steps=20, restarts=4)
    again, _ = pgd.pgd_attack(network, x, label, radius=1.0, steps=20, restarts=4)
    assert np.all(many <= few) and np.any(many < few)
    np.testing.assert_array_equal(many, again)


def test_foolbox_finds_the_closest_point_of_a_linear_classifier(rng):
    """The distance to the nearest of the boundaries, which are planes, is known."""
    pytest.importorskip("foolbox")
    kernel = rng.standard_normal((4, 3))
    network = Network.from_weights([kernel], [np.zeros(3)], ())
    x = rng.standard_normal((300, 4))
    logits = x @ kernel
    label = logits.argmax(axis=1)
    apart = np.linalg.norm(kernel[:, label].T[:, :, None] - kernel, axis=1)
    margin = np.take_along_axis(logits, label[:, None], axis=1) - logits
    exact = np.where(apart > 0.0, margin / np.where(apart > 0.0, apart, 1.0), np.inf).min(axis=1)
    found = foolbox_attacks.ddn_distances(network, x, label, steps=100)
    assert np.all(found >= exact * (1.0 - 1e-6)) and np.median(found / exact) < 1.02
    wrong = (label + 1) % 3
    assert foolbox_attacks.ddn_distances(network, x[:2], wrong[:2], steps=5).max() < 1e-6


def test_pgd_goes_on_where_the_square_of_the_gradient_underflows():
    kernel = 1e-25 * np.array([[3.0, 0.0], [0.0, 4.0]])
    network = Network.from_weights([kernel], [np.zeros(2)], [])
    x, label = tf.constant([[1.0, 0.0]]), tf.constant([0])  # 0.6 from the boundary
    for radius, broken in ((0.59, False), (0.61, True)):
        margin, point = pgd.pgd_attack(network, x, label, radius=radius, steps=50, restarts=1)
        assert bool(margin[0] < 0.0) == broken
        assert np.linalg.norm(point[0] - x[0]) <= radius * (1.0 + 1e-6)
