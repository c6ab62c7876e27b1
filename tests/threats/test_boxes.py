"""Attackers confined to a box: radii are attacked inside of it, and never below those without."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from attacked import METHODS_AND_SIGMAS, ball, float32_network, model_of, of_threat, scores, sizes
from crc_searching import searched

from keras_curv import Property, Threat, certify
from keras_curv.attacks.closest import closest_points
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.geometries import Box, Clip
from keras_curv.certificates.crc.geometry import Place
from keras_curv.certificates.float32 import Float32Error
from keras_curv.threats.box import least_linear
from keras_curv.threats.confined import Reach

UNIT_BOX = Threat(low=0.0, high=1.0)
THREATS = [
    UNIT_BOX,
    Threat(low=0.0),
    Threat(low=[0.0, -np.inf], high=[np.inf, 1.0]),
    Threat(low=0.0, high=1.0, scale=[0.3, 2.0]),
    Threat(low=0.0, high=1.0, frozen=[1]),
]


def drawn_inside(rng, count, dim):
    """Inputs of the unit box, some of them on its sides."""
    return np.clip(rng.uniform(-0.5, 1.5, (count, dim)), 0.0, 1.0)


def inside(threat, one, radius, rng):
    """Inputs that the attacker may give, near to one of two features."""
    factor, fixed = threat.factors(2)
    low, high = threat.limits(2)
    moved = one + ball(2, min(radius, 50.0), rng) * np.where(fixed, 0.0, factor)
    edges = np.clip(moved, low, high)  # no farther from `one`
    return np.concatenate([moved[(moved == edges).all(axis=1)], edges])


CASES = [
    *((method, activation, THREATS[3]) for method, activation in METHODS_AND_SIGMAS),
    *(("crc", "tanh", threat) for threat in THREATS),
]


@pytest.mark.parametrize("method, activation, threat", CASES)
def test_no_class_changes_inside(method, activation, threat, rng, random_network):
    network = float32_network(rng, random_network, sizes(2, activation), activation)
    x = drawn_inside(rng, 9, 2)
    found = of_threat(network, threat, method)(x)
    for one, radius, label in zip(x, found.radius, found.prediction, strict=True):
        if radius > 0.0:
            around = network.logits(inside(threat, one, radius, rng)).numpy()
            assert (around.argmax(axis=1) == label).all()
    assert (found.radius > 0.0).sum() >= 6


@pytest.mark.parametrize("method, activation", [
    ("crc", "tanh"), ("crc", "softplus"), ("crown", "tanh"), ("crown", "relu"),
    ("quadratic", "relu"), ("crc_local", "tanh"), ("lipschitz", "tanh"),
])  # fmt: skip
def test_no_radius_is_below_that_without_a_box(method, activation, rng, random_network):
    network = float32_network(rng, random_network, (5, 9, 3), activation, steepness=3.0)
    x = drawn_inside(rng, 30, 5)
    confined, plain = (
        of_threat(network, UNIT_BOX, method)(x),
        choose_method(method, network).certify(x),
    )
    # The ball bounds stop at points of a grid, a fraction of 0.3 % apart; a search in a box ends
    # sooner than one without.
    loose = {"crc": 1e-3, "lipschitz": 1e-12}.get(method, 3e-3)
    assert (confined.radius >= plain.radius * (1.0 - loose)).all()
    if method != "lipschitz":
        assert (confined.radius > 1.01 * plain.radius).sum() >= 3


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_no_radius_of_float32_is_below_that_without_a_box(scale, rng, random_network):
    """Where margins are flat, and so what serving takes off them decides."""
    for steepness in (0.3, 3.0, 30.0):
        network = float32_network(rng, random_network, (3, 9, 4), "tanh", steepness=steepness)
        x = np.float32(scale * rng.standard_normal((20, 3))).astype(float)
        confined = Threat(low=-3.0 * scale, high=3.0 * scale).network(network, 3)
        x = np.clip(x, -3.0 * scale, 3.0 * scale)
        plain = CurvatureCertificate(network, Float32Error(network)).certify(x)
        box = CurvatureCertificate(confined, Float32Error(confined)).certify(x)
        assert (box.radius >= plain.radius * (1.0 - 1e-3)).all()
        assert (plain.radius > 0.0).sum() >= 5


def test_a_box_is_searched_like_limits_without_dead_zones(rng, random_network):
    """By other ways to the same λ, and so to the same solution."""
    network = float32_network(rng, random_network, (5, 9, 3), "softplus", steepness=3.0)
    confined, x = UNIT_BOX.network(network, 5), drawn_inside(rng, 40, 5)
    least = [
        searched(confined, x, geometry=geometry, tolerance=1e-6, max_steps=60, as_graph=True)[0]
        for geometry in (Box, Clip)
    ]
    np.testing.assert_allclose(*least, rtol=1e-3)


@pytest.mark.parametrize("method", ["auto", "crc", "crown", "interval", "lipschitz"])
@pytest.mark.parametrize("low, high", [(-1e-309, 0.0), (-1e-309, 1e-309), (-2e-308, 2e-308)])
def test_there_is_room_in_a_box_of_subnormal_numbers(low, high, method):
    """Which TensorFlow takes for none: the margin changes its sign inside."""
    dense = keras.layers.Dense(2, dtype="float64")
    model = keras.Sequential([keras.Input((1,), dtype="float64"), dense])
    dense.set_weights([np.array([[1e300, 0.0]]), np.array([5e-10, 0.0])])
    found = certify(model, np.zeros((1, 1)), method=method, threat=Threat(low=low, high=high))
    assert found.radius[0] <= 5e-310


@pytest.mark.parametrize("geometry", [Box, Clip])
def test_the_best_move_in_a_box_comes_to_the_boundary_of_the_linear_model(geometry, rng):
    """Of several examples, of which one has no room to get there."""
    gradient, room = rng.standard_normal((2, 30, 40)) * [[[1.0]], [[0.2]]]
    limits = np.abs(room)
    limits[0] *= 1e-3
    none, one = tf.zeros((1, 1), tf.float64), tf.ones(1, tf.float64)
    reach = Reach(tf.constant(limits), tf.constant(limits), none, none, one)
    margin = np.full(30, 1.5)
    given = (tf.constant(part) for part in (margin, gradient, 0.0 * gradient, margin * 1e-3))
    move = geometry.move(Place(*given, reach)).numpy()
    fallen = margin + (gradient * move).sum(axis=1)
    assert fallen[0] > 1.0
    np.testing.assert_allclose(fallen[1:], 0.0, atol=0.02)
    inner = np.abs(move) < 0.999 * limits  # these have one factor, `−e = ηg`
    factor = np.where(inner, -move / gradient, np.nan)
    assert np.all(np.nanmax(factor, axis=1)[1:] < 1.001 * np.nanmin(factor, axis=1)[1:])
    assert np.all(np.abs(move) <= limits * (1.0 + 1e-6))


def test_a_wide_box_is_none(rng, random_network):
    network = float32_network(rng, random_network, (5, 9, 3), "tanh")
    x = rng.standard_normal((9, 5))
    for method in ("crc", "crown", "lipschitz"):
        wide = of_threat(network, Threat(low=-1e6, high=1e6), method)(x)
        plain = choose_method(method, network).certify(x)
        np.testing.assert_allclose(wide.radius, plain.radius, rtol=3e-3)
        np.testing.assert_array_equal(wide.nearest_rival, plain.nearest_rival)


def test_radii_of_a_box_are_near_to_what_a_grid_finds(rng, random_network):
    """Small intervals, in which curvature loses little."""
    network, tau = scores(rng, random_network, 1), 0.05
    x, held = drawn_inside(rng, 12, 2), Property.interval(tau)
    found = of_threat(network, UNIT_BOX, "crc", held)(x)
    plain = of_threat(network, Threat(), "crc", held)(x)
    assert (found.radius > 1.01 * plain.radius).any()
    for one, radius in zip(x, found.radius, strict=True):
        around = network.logits(inside(UNIT_BOX, one, 1.1 * radius, rng))
        assert np.abs(around - network.logits(one[None])).max() > tau


def test_a_class_that_the_whole_box_has_is_certified_for_good(rng, random_network):
    network = float32_network(rng, random_network, (2, 5, 3), "softplus")
    x = np.array([[0.5, 0.5], [0.0, 1.0]], np.float32)
    small = Threat(low=x[0] - 1e-3, high=x[0] + 1e-3)
    model = model_of(network)
    assert certify(model, x[:1], method="crown", threat=small).radius[0] == np.inf
    assert np.isfinite(certify(model, x[:1], method="crown").radius[0])


def test_an_interval_holds_in_a_box(rng, random_network):
    network = scores(rng, random_network, 1)
    x = drawn_inside(rng, 9, 2)
    held = Property.interval(0.3)
    found = of_threat(network, UNIT_BOX, "crc", held)(x)
    plain = of_threat(network, Threat(), "crc", held)(x)
    assert (found.radius >= plain.radius * (1.0 - 1e-3)).all()
    assert (found.radius > 1.001 * plain.radius).any()
    for one, radius in zip(x, found.radius, strict=True):
        around = network.logits(inside(UNIT_BOX, one, radius, rng)).numpy()
        assert np.abs(around - network.logits(one[None]).numpy()).max() < 0.3


def test_adversarial_points_are_inside_the_box(rng, random_network):
    network = UNIT_BOX.network(float32_network(rng, random_network, (5, 9, 3), "tanh"), 5)
    x = drawn_inside(rng, 9, 5)
    found = choose_method("auto", network).certify(x)
    assert (found.adversarial_distance >= found.radius).all()
    label = found.prediction
    options = {"radius": 2.0, "steps": 20, "restarts": 6}
    _, point = pgd_attack(network, tf.constant(x), tf.constant(label), **options)
    closest = closest_points(network, x, label, found.radius)
    for points in (point.numpy(), closest.point):
        assert (points >= 0.0).all() and (points <= 1.0).all()
    assert (closest.distance >= found.radius).all() and np.isfinite(closest.distance).any()


def least_by_bisection(row, up, down, radius):
    """The least `Λ·e` over ball and box, from the water level at which the move has the length."""
    limit, size = np.where(row < 0.0, up, down), np.abs(row)
    move = np.where(size > 0.0, limit, 0.0)
    if np.linalg.norm(move) > radius:
        low, high = -40.0, 40.0
        for _ in range(200):
            level = np.exp((low + high) / 2.0)
            move = np.minimum(size / level, limit)
            longer = np.linalg.norm(move) > radius
            low, high = ((low + high) / 2.0, high) if longer else (low, (low + high) / 2.0)
    return -np.sum(size * move)


@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e160])
@pytest.mark.parametrize("radius", [0.0, 0.3, 1.0, 9.0])
def test_the_least_of_a_linear_function_is_exact(radius, scale, rng):
    """At any scale of the inputs: no square of a radius is taken."""
    rows = rng.standard_normal((1, 20, 4)) * 10.0 ** rng.integers(-2, 3, (1, 20, 4))
    rows[0, 0] = 0.0
    room = rng.uniform(0.0, 0.6, (2, 3, 4)) * rng.integers(0, 2, (2, 3, 4))
    room[0, 2] = np.inf
    reach = Reach(scale * room[0], scale * room[1], None, None, None)
    found = least_linear(rows, reach, np.full(3, scale * radius)) / scale
    expected = [
        [least_by_bisection(row, room[0, i], room[1, i], radius) for row in rows[0]]
        for i in range(3)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert (found <= expected + 1e-14 * np.abs(expected) + 1e-12).all()
