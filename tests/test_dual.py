"""The minorant lies below f, and the radius and the attack bound are its root and its value."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_curv import dual
from keras_curv.attacks import crt, pgd
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.network.network import Network

CASES = [
    ((5, 3), ()),
    ((4, 9, 3), ("softplus",)),
    ((4, 9, 3), ("sigmoid",)),
    ((4, 9, 3), ("tanh",)),
    ((4, 9, 3), ("sin",)),
    ((2, 6, 5, 3), ("softplus", "tanh")),
    ((3, 7, 2, 5, 4), ("sigmoid", "tanh", "softplus")),
]


def _tensors(*arrays):
    return [tf.constant(array, tf.float64) for array in arrays]


def _minorants(network, origin, point, label, rival):
    margin, gradient = network.margin_and_gradient(tf.constant(point), label, rival)
    kappa = -curvature_bounds(network).lower[label, rival]
    return dual.minorant(margin, gradient, *_tensors(point - origin, kappa))


def _assert_below(network, origin, point, label, rival, deltas):
    """`deltas` is `(n, k, dim)`: k displacements for each minorant."""
    bound = _minorants(network, origin, point, label, rival)
    n, k, dim = deltas.shape
    logits = network.logits((origin[:, None] + deltas).reshape(-1, dim)).numpy().reshape(n, k, -1)
    rows = np.arange(n)
    margin = logits[rows, :, label] - logits[rows, :, rival]
    length = np.linalg.norm(deltas, axis=2)
    a, h, kappa = (np.asarray(part)[:, None] for part in bound)
    below = a - h * length - 0.5 * kappa * length**2
    # Rounding of f and of the terms of the minorant, which reach far above f at far points.
    far = np.linalg.norm(point - origin, axis=1)[:, None]
    scale = 1.0 + np.abs(margin) + np.abs(a) + h * (length + far) + kappa * (length + far) ** 2
    assert np.all(below <= margin + 1e-12 * scale)
    return margin - below, scale


@pytest.mark.parametrize(("sizes", "names"), CASES)
@pytest.mark.parametrize("scale", [0.5, 1.5, 4.0])
def test_minorant_is_below_at_random_points(sizes, names, scale, rng, random_network):
    network = random_network(rng, sizes, names, scale)
    n, k, dim = 500, 120, sizes[0]  # × 21 cases: a million pairs of x̂ and δ
    origin = rng.standard_normal((n, dim))
    point = origin + rng.standard_normal((n, dim)) * 10.0 ** rng.uniform(-3, 1, (n, 1))
    label = rng.integers(0, sizes[-1], n)
    rival = (label + 1 + rng.integers(0, sizes[-1] - 1, n)) % sizes[-1]
    deltas = rng.standard_normal((n, k, dim)) * 10.0 ** rng.uniform(-3, 1, (n, k, 1))
    deltas[:, 0] = point - origin
    deltas[:, 1] = 0.0
    _assert_below(network, origin, point, label, rival, deltas)


@pytest.mark.parametrize("entry", [1.0, 1e-200, 1e200, math.inf, math.nan])
def test_minorant_at_the_example_itself_needs_no_displacement(entry):
    margin, gradient, kappa = _tensors([2.0], [[3.0, entry]], [5.0])
    still = dual.minorant(margin, gradient, tf.zeros_like(gradient), kappa)
    bound = dual.minorant(margin, gradient, None, kappa)
    np.testing.assert_array_equal(np.array(bound), np.array(still))
    assert (dual.certified_radius(bound).numpy() > 0.0) == math.isfinite(entry)


def test_minorant_is_attained_by_a_quadratic(rng):
    """Softplus near 0 with equal negative weights is a concave quadratic of curvature −κ.

    There the minorant through x̂ touches f along its own worst direction, so none of its
    terms can be larger than it is.
    """
    kernels = [0.02 * np.eye(2), -np.ones((2, 1)) * np.array([[1.0, 0.0]])]
    network = Network.from_weights(kernels, [np.zeros(2), np.array([5.0, 0.0])], "softplus")
    n = 200
    origin = 0.1 * rng.standard_normal((n, 2))
    point = origin + 3.0 * rng.standard_normal((n, 2))
    zeros, ones = np.zeros(n, int), np.ones(n, int)
    bound = _minorants(network, origin, point, zeros, ones)
    gradient = network.margin_and_gradient(tf.constant(point), zeros, ones)[1].numpy()
    kappa = bound.curvature.numpy()[:, None]
    worst = -(gradient + kappa * (point - origin))
    worst /= np.linalg.norm(worst, axis=1, keepdims=True)
    deltas = worst[:, None, :] * np.linspace(0.0, 6.0, 40)[None, :, None]
    gap, _ = _assert_below(network, origin, point, zeros, ones, deltas)
    # σ″ falls from 1/4 by z²/16 with |z| ≤ 0.2: curvature −κ to 1 %, and κ/2 · 15² = 0.011.
    assert kappa.min() > 0.99e-4
    assert np.all(gap <= 3e-4)


def test_radius_is_the_root(rng):
    a, h, kappa = 10.0 ** rng.uniform(-6, 3, (3, 500))
    bound = dual.Minorant(*_tensors(a, h, kappa))
    radius = dual.certified_radius(bound).numpy()
    value = dual.lower_bound(bound, tf.constant(radius)).numpy()
    assert np.all(np.abs(value) <= 1e-14 * (a + h * radius + kappa * radius**2))  # rounding
    assert np.all(radius > 0.0)


@pytest.mark.parametrize(
    ("a", "h", "kappa", "radius"),
    [
        (1.0, 0.0, 0.0, math.inf),
        (1e-300, 0.0, 0.0, math.inf),
        (3.0, 2.0, 0.0, 1.5),
        (2.0, 0.0, 1.0, 2.0),
        (1.5, 1.0, 1.0, 1.0),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 1.0, 1.0, 0.0),
        (-1.0, 1.0, 1.0, 0.0),
        (-1.0, 0.0, 0.0, 0.0),
        (-math.inf, 1.0, 1.0, 0.0),
        (math.inf, 1.0, 1.0, 0.0),
        (math.inf, 0.0, 0.0, 0.0),
        (math.nan, 1.0, 1.0, 0.0),
        (1.0, math.nan, 1.0, 0.0),
        (1.0, 1.0, math.nan, 0.0),
        (1.0, math.inf, 1.0, 0.0),
        (1.0, 1.0, math.inf, 0.0),
        (1.0, 0.0, math.inf, 0.0),
        (1.0, math.inf, math.inf, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
def test_radius_at_the_edges(a, h, kappa, radius, dtype):
    bound = dual.Minorant(*(tf.constant([v], dtype) for v in (a, h, kappa)))
    result = dual.certified_radius(bound).numpy()[0]
    if a == 1e-300 and dtype == tf.float32:
        assert result == 0.0  # it is zero there
    else:
        assert result == pytest.approx(radius, rel=1e-6)


@pytest.mark.parametrize(
    ("a", "h", "kappa"),
    [(1.0, 1e-170, 0.0), (1.0, 1e-156, 0.0), (1e-5, 1e-161, 1e-307), (1.0, 1e170, 1.0)],
)
def test_radius_does_not_lose_a_slope_whose_square_underflows(a, h, kappa):
    bound = dual.Minorant(*(tf.constant([v], tf.float64) for v in (a, h, kappa)))
    assert dual.certified_radius(bound).numpy()[0] <= (a / h) * (1.0 + 1e-12)  # rounding


@pytest.mark.parametrize("size", [1e-170, 1e-160, 1.0])
def test_slope_of_a_tiny_gradient_is_not_lost(size):
    gradient = np.array([[3.0 * size, 4.0 * size]])
    bound = dual.minorant(*_tensors([1.0], gradient, [[0.0, 0.0]], [0.0]))
    assert bound.slope.numpy()[0] >= 5.0 * size * (1.0 - 1e-12)  # rounding


def test_radius_is_monotone(rng):
    a, h, kappa = 10.0 ** rng.uniform(-3, 3, (3, 300))
    a[::7], h[::5], kappa[::3] = 0.0, 0.0, 0.0
    more = 1.0 + rng.random(300)

    def radius(*parts):
        return dual.certified_radius(dual.Minorant(*_tensors(*parts))).numpy()

    base = radius(a, h, kappa)
    # 1e-14: rounding, where a factor has no effect.
    assert np.all(radius(a * more, h, kappa) >= base * (1 - 1e-14))
    assert np.all(radius(a, h * more, kappa) <= base * (1 + 1e-14))
    assert np.all(radius(a, h, kappa * more) <= base * (1 + 1e-14))
    moves = (a > 0) & (h > 0) & (kappa > 0) & (more > 1.01)
    assert np.all(radius(a * more, h, kappa)[moves] > base[moves])
    assert np.all(radius(a, h * more, kappa)[moves] < base[moves])
    assert np.all(radius(a, h, kappa * more)[moves] < base[moves])


def test_lower_bound_by_hand():
    bound = dual.Minorant(*_tensors([2.0], [3.0], [4.0]))
    assert dual.lower_bound(bound, tf.constant([0.5], tf.float64)).numpy()[0] == 0.0
    assert dual.lower_bound(bound, tf.constant([2.0], tf.float64)).numpy()[0] == -12.0


@pytest.mark.parametrize(("sizes", "names"), CASES[1:])
def test_attack_bound_is_below_what_descent_finds(sizes, names, rng, random_network):
    kernels = [affine.kernel for affine in random_network(rng, sizes, names).affines]
    kernels[-1] = kernels[-1][:, :2]  # two classes: PGD has one rival, the attack's
    biases = [0.3 * rng.standard_normal(kernel.shape[1]) for kernel in kernels]
    network = Network.from_weights(kernels, biases, names)
    x = tf.constant(rng.standard_normal((20, sizes[0])))
    label = np.argmax(network.logits(x), axis=1)
    kappa = -curvature_bounds(network).lower[label, 1 - label]

    @tf.function(autograph=False)
    def attacks(radius):
        args = network, x, tf.constant(label)
        found = crt.curvature_attack(*args, tf.constant(1 - label), radius=radius, curvature=kappa)
        return found, pgd.pgd_attack(*args, radius=radius, steps=40, restarts=1)

    for radius in (0.05, 0.5, 2.0):
        result, (met, _) = attacks(tf.constant(radius, tf.float64))
        assert np.all(result.lower_bound <= met + 1e-12)  # rounding
        assert np.all(result.lower_bound <= result.margin + 1e-12)


def test_the_bracket_of_a_certificate_holds(rng, random_network):
    """No iterate proves more than any other iterate's upper bracket allows."""
    network = random_network(rng, (3, 8, 3), "tanh")
    origin = rng.standard_normal((1, 3))
    logits = network.logits(origin).numpy()[0]
    label, rival = logits.argsort()[[-1, -2]]
    points = origin + rng.standard_normal((300, 3)) * 10.0 ** rng.uniform(-4, 0, (300, 1))
    points[0] = origin
    labels, rivals = np.full(300, label), np.full(300, rival)
    margin, gradient = network.margin_and_gradient(tf.constant(points), labels, rivals)
    kappa = np.full(300, -curvature_bounds(network).lower[label, rival])
    evaluation = margin, gradient, *_tensors(points - origin, kappa)
    lower = dual.certified_radius(dual.minorant(*evaluation))
    upper = dual.radius_bracket(*evaluation)
    # 1e-3: close to the boundary the bracket is steered by f/‖g‖, as its comment says.
    assert np.max(lower) <= np.min(upper) * (1.0 + 1e-3)
