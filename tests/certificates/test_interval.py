"""Interval bounds hold wherever they say, are exact where that is known, and charge rounding."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, labelled
from scipy.optimize import brentq

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.interval_bounds import value_range
from keras_curv.certificates.linear import ball_search
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.method import ServedError
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.network.network import Network
from keras_curv.numerics.batches import in_batches
from keras_curv.training.rivals.interval import interval_bounds

SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3)}
CASES = [(name, d) for name in ("relu", "softplus", "sigmoid", "tanh", "silu") for d in SIZES]


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_the_range_of_values(name, rng):
    activation = ACTIVATIONS[name]
    low = np.concatenate([4.0 * rng.standard_normal(200), np.full(3, -30.0), [-1.2, -0.7, 2.0]])
    high = low + np.concatenate([rng.exponential(2.0, 200), [1.0, 30.0, 60.0], [0.05, 0.05, 0.0]])
    least, most = (a.numpy() for a in value_range(activation, tf.constant(low), tf.constant(high)))
    grid = low + (high - low) * np.linspace(0.0, 1.0, 4001)[:, None]
    if activation.kinks:  # a slope's jump is no grid point; elsewhere σ′ = 0 at an extremum
        grid = np.concatenate([grid, *(np.clip([k], low, high)[None] for k in activation.kinks)])
    values = activation.value(tf.constant(grid)).numpy()
    slack = 1e-14 * (1.0 + np.abs(values).max(axis=0))  # rounding of the values
    assert np.all(values >= least - slack) and np.all(values <= most + slack)
    step = (high - low) / 4000  # the grid misses an extremum by half a step, where σ′ = 0
    np.testing.assert_allclose(values.max(axis=0), most, rtol=0, atol=step.max() ** 2 + 1e-14)
    np.testing.assert_allclose(values.min(axis=0), least, rtol=0, atol=step.max() ** 2 + 1e-14)


@pytest.mark.parametrize(("name", "depth"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_leaves_the_intervals(name, depth, dtype, rng, random_network):
    network = random_network(rng, SIZES[depth], name)
    x = (0.7 * rng.standard_normal((6, network.dim))).astype(dtype)
    label, rivals = labelled(network, x)
    unit = np.finfo(dtype).eps
    for radius in (0.03, 0.4, 3.0):
        bounds = interval_bounds(network, tf.constant(x), label, rivals, radius)
        points = ball_points(rng, x, np.full(len(x), radius), 300)
        flat = tf.constant(points.reshape(-1, network.dim))
        layers = network.forward(flat)[0]
        for (low, high), z in zip(bounds.hidden, layers, strict=True):
            z = z.numpy().reshape(300, *low.shape)
            slack = 30 * unit * (1.0 + np.abs(z).max())  # sums of at most nine terms
            assert np.all(z >= low - slack) and np.all(z <= high + slack)
        margins = network.evaluate(flat, np.tile(label, 300), np.tile(rivals, (300, 1))).margin
        margins = margins.numpy().reshape(300, *rivals.shape)
        assert np.all(margins >= bounds.margins - 30 * unit * (1.0 + np.abs(margins).max()))
        assert bounds.margins.dtype == dtype


def test_the_first_layer_reaches_both_ends(rng, random_network):
    network = random_network(rng, (5, 7, 3), "relu")
    x, kernel = rng.standard_normal((4, 5)), network.affines[0].kernel
    label, rivals = labelled(network, x)
    ((low, high),) = interval_bounds(network, tf.constant(x), label, rivals, 0.8).hidden
    toward = 0.8 * kernel / np.linalg.norm(kernel, axis=0)
    for end, sign in ((low, -1.0), (high, 1.0)):
        reached = np.einsum("nij,ij->nj", x[..., None] + sign * toward, kernel)
        np.testing.assert_allclose(reached + network.affines[0].bias, end, atol=1e-13)


def test_a_network_by_hand():
    """Two hidden layers: z₁ = (3 ± 5r, −1 ± 2r) with r = 1; relu; and so on."""
    kernels = [np.diag([3.0, 2.0]) + [[0, 0], [4, 0]], [[1.0, -1.0], [2.0, 1.0]], np.eye(2)]
    network = Network.from_weights(kernels, [[3.0, -1.0], [0.0, 1.0], [0.0, 0.5]], "relu")
    args = tf.zeros((1, 2), tf.float64), np.array([0]), np.array([[1]]), 1.0
    bounds = interval_bounds(network, *args)
    np.testing.assert_allclose(np.array(bounds.hidden)[:, :, 0], [
        [[-2.0, -3.0], [8.0, 1.0]],
        [[0.0, -7.0], [10.0, 2.0]],
    ])  # fmt: skip
    np.testing.assert_allclose(bounds.margins, [[0.0 - 2.0 - 0.5]])
    certified = IntervalCertificate(network).margin_bounds(np.zeros((1, 2)), *args[1:3], np.ones(1))
    np.testing.assert_allclose(certified, bounds.margins, rtol=1e-12)
    assert certified[0, 0] < -2.5


@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
def test_the_gradient_is_that_of_the_bounds(name, rng, random_network):
    network = random_network(rng, (4, 6, 5, 3), name)
    x = rng.standard_normal((3, 4))
    label, rivals = labelled(network, x)

    def total(kernels, radius):
        other = Network.from_weights([a.kernel for a in network.affines], [
            a.bias for a in network.affines], name)  # fmt: skip
        biases = [tf.constant(a.bias) for a in network.affines]
        other.weights = lambda dtype: (kernels, biases)
        bounds = interval_bounds(other, tf.constant(x), label, rivals, radius)
        return tf.reduce_sum(tf.sin(bounds.margins))

    kernels = [tf.constant(a.kernel) for a in network.affines]
    radius = tf.constant(0.3, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([*kernels, radius])
        value = total(kernels, radius)
    *slopes, by_radius = tape.gradient(value, [*kernels, radius])
    move = [rng.standard_normal(k.shape) for k in kernels]
    h = 1e-6
    ends = [total([k + s * h * m for k, m in zip(kernels, move, strict=True)], radius + s * h)
            for s in (1, -1)]  # fmt: skip
    expected = sum(np.sum(s * m) for s, m in zip(slopes, move, strict=True)) + by_radius
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), expected, rtol=1e-6)


def test_a_linear_classifier_is_certified_up_to_its_distance(rng, random_network):
    network = random_network(rng, (6, 4), "relu")
    x = rng.standard_normal((40, 6))
    certificates = IntervalCertificate(network).certify(x, tolerance=0.0)
    logits, kernel = network.logits(tf.constant(x)).numpy(), network.affines[0].kernel
    label = logits.argmax(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.linalg.norm(kernel.T[label][:, None] - kernel.T[None], axis=-1)
        distance = (logits.max(axis=1, keepdims=True) - logits) / away
    distance = np.nanmin(distance, axis=1)
    assert np.all(certificates.radius <= distance)
    # The bracket that is left is 0.1 % wide.
    np.testing.assert_allclose(certificates.radius, distance, rtol=1.1e-3)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_a_single_hidden_unit_is_certified_up_to_its_distance(name, rng):
    """Then the margin is a function of one number, and intervals forget nothing."""
    activation, met = ACTIVATIONS[name], 0

    def sigma(z):
        return activation.value(tf.constant(z, tf.float64)).numpy()

    for _ in range(6):
        first, last = rng.standard_normal((3, 1)), rng.standard_normal((1, 2))
        bias = rng.standard_normal(1)
        x = rng.standard_normal((1, 3))
        at = (x @ first + bias).item()
        slope = (last[0, 0] - last[0, 1]).item()
        threshold = sigma(at + rng.uniform(0.3, 2.0) * rng.choice([-1.0, 1.0]))
        network = Network.from_weights([first, last], [bias, [0.0, slope * threshold]], name)
        # Where the margin, slope (σ(z) − threshold), changes sign first.
        grid = np.linspace(0.0, 6.0, 3001)
        start, reach = np.sign(sigma(at) - threshold), np.inf
        for sign in (1.0, -1.0):
            values = sigma(at + sign * grid) - threshold
            crossing = np.flatnonzero(np.sign(values) != start)
            if len(crossing):
                i = crossing[0]
                ends = at + sign * grid[i - 1], at + sign * grid[i]
                root = brentq(lambda z, level: sigma(z) - level, *ends, (threshold,), xtol=1e-14)
                reach = min(reach, abs(root - at))
        if start == 0.0 or not 1e-3 < reach < 6.0:
            continue
        met += 1
        distance = reach / np.linalg.norm(first)
        radius = IntervalCertificate(network).certify(x, tolerance=0.0).radius[0]
        # brentq has an error of its own; and where σ starts to be flat, rounding is all there is.
        assert 0.996 * distance <= radius <= distance * (1.0 + 1e-12)
    assert met >= 2


@pytest.mark.parametrize(("name", "depth"), [case for case in CASES if case[1] > 1])
def test_no_attack_succeeds_within_the_radius(name, depth, rng, random_network):
    network = random_network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((30, network.dim))
    certificates = IntervalCertificate(network).certify(x)
    certified = certificates.radius > 0.0
    assert certified.sum() > 20 and set(certificates.method[certified]) == {"interval"}
    margin, _ = pgd_attack(
        network,
        tf.constant(x[certified]),
        tf.constant(certificates.prediction[certified]),
        radius=certificates.radius[certified],
        steps=20,
        restarts=2,
    )
    assert np.all(margin.numpy() > 0.0)


def test_the_bound_holds_at_the_radius_and_not_beyond(rng, random_network):
    network = random_network(rng, SIZES[3], "tanh")
    x = rng.standard_normal((10, 4))
    label, rivals = labelled(network, x)
    certificate = IntervalCertificate(network)
    radius = certificate.prove(Question.of(x, label, rivals)).radius.min(axis=1)
    assert np.all(certificate.margin_bounds(x, label, rivals, radius) > 0.0)
    beyond = certificate.margin_bounds(x, label, rivals, 1.01 * radius)
    assert np.all(beyond.min(axis=1) < 0.0)


def test_rivals_that_are_known_to_be_farther_are_left_out(rng, random_network):
    network = random_network(rng, SIZES[2], "relu")
    x = rng.standard_normal((10, 4))
    label, rivals = labelled(network, x)
    certificate = IntervalCertificate(network)
    plain = certificate.prove(Question.of(x, label, rivals)).radius
    known = np.zeros(rivals.shape)
    known[:, 0] = 1e3
    found = certificate.prove(Question.of(x, label, rivals, known)).radius
    alone = certificate.prove(Question.of(x, label, rivals[:, 1:], known[:, 1:])).radius
    assert np.all(found[:, 0] == 1e3)
    np.testing.assert_allclose(found[:, 1:], alone, rtol=2e-3)  # the brackets that are left
    assert np.any(found[:, 1] > 1.1 * plain[:, 1])


def test_what_serving_may_take_is_taken(rng, random_network):
    class Constant(ServedError):
        def __call__(self, x, label, rivals, radius):
            return np.full(np.shape(rivals), 0.2)

    network = random_network(rng, (6, 2), "relu")
    x = rng.standard_normal((20, 6))
    logits, kernel = network.logits(tf.constant(x)).numpy(), network.affines[0].kernel
    margin = np.abs(logits[:, 0] - logits[:, 1])
    distance = np.maximum(margin - 0.2, 0.0) / np.linalg.norm(kernel[:, 0] - kernel[:, 1])
    radius = IntervalCertificate(network, Constant()).certify(x, tolerance=0.0).radius
    assert np.all(radius <= distance) and np.any(radius == 0.0)
    np.testing.assert_allclose(radius, distance, rtol=1.1e-3)


def test_what_overflows_proves_nothing(rng, random_network):
    network = random_network(rng, (4, 9, 3), "gelu", scale=1e200)
    x = rng.standard_normal((5, 4))
    label, rivals = np.zeros(5, int), np.tile([1, 2], (5, 1))
    certificate = IntervalCertificate(network)
    assert np.all(certificate.margin_bounds(x, label, rivals, np.ones(5)) == -np.inf)
    assert np.all(certificate.prove(Question.of(x, label, rivals)).radius == 0.0)


def test_chunks_and_an_empty_batch(rng, random_network, monkeypatch):
    network = random_network(rng, SIZES[3], "sigmoid", 3.0)
    x = rng.standard_normal((7, 4))
    certificate = IntervalCertificate(network)
    whole = certificate.certify(x)
    monkeypatch.setattr(ball_search, "in_batches", partial(in_batches, at_once=40))
    parts = certificate.certify(x)
    np.testing.assert_allclose(parts.radius, whole.radius, rtol=2e-3)  # probes may differ
    assert whole.gradient_evaluations.min() > 2
    empty = np.zeros((0, 4)), np.zeros(0, int), np.zeros((0, 2), int), np.zeros((0, 2))
    assert certificate.prove(Question.of(*empty)).radius.shape == (0, 2)


def test_an_activation_without_a_rule_is_refused(rng, random_network):
    network = random_network(rng, SIZES[2], "tanh")
    wave = Activation("wave", tf.sin, tf.cos, None, (-1.0, 1.0), (-1.0, 1.0), (), ())
    with pytest.raises(InputError, match="no interval bounds for activation 'wave'"):
        IntervalCertificate(Network(network.affines, [wave]))
