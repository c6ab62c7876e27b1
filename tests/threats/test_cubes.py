"""Linear functions on balls and boxes, and attacks in l∞."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from attacked import BALLS, cube, float32_network, model_of

from keras_curv import Threat, certify, pgd_attack
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.in_cube import CubeCertificate, least_concave
from keras_curv.threats.confined import Reach
from keras_curv.threats.norms import NORMS


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e120])
def test_the_least_of_a_linear_function_in_a_box(norm, scale, rng):
    """Never above the value at any point of ball and box, and attained in l1 and l∞."""
    rows = rng.standard_normal((3, 4, 5)) * (rng.random((3, 4, 5)) < 0.8)
    up, down = rng.random((2, 3, 5)) * rng.choice([0.0, 1.0, 3.0, np.inf], (2, 3, 5)) * scale
    up, down = np.nan_to_num(up, posinf=np.inf), np.nan_to_num(down, posinf=np.inf)
    reach, radius = Reach(up, down, None, None, None), rng.random(3) * scale
    found = NORMS[norm].least_linear(rows, reach, radius)
    ball = {**BALLS, "l2": lambda *args: cube(*args) / 5**0.5}[norm](5, rng)
    for i in range(3):
        points = np.clip(radius[i] * ball, -down[i], up[i])
        assert np.all(found[i] <= (points @ rows[i].T).min(axis=0))
    if norm == "linf":
        limit = np.where(rows < 0.0, up[:, None], down[:, None])
        least = np.sum(np.abs(rows) * np.minimum(limit, radius[:, None, None]), axis=-1)
        np.testing.assert_allclose(found, -least, rtol=1e-12, atol=1e-300)
    if norm == "l1":
        for i, k in itertools.product(range(3), range(4)):
            left, least = radius[i], 0.0
            for j in np.argsort(-np.abs(rows[i, k])):
                spent = min(left, (up if rows[i, k, j] < 0.0 else down)[i, j])
                left, least = left - spent, least - abs(rows[i, k, j]) * spent
            assert found[i, k] == pytest.approx(least, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("limits", [{}, {"low": -0.5, "high": 0.75}])
@pytest.mark.parametrize("method", ["crc", "crown", "coupled"])
def test_attacks_in_cubes_come_close_and_no_closer(method, limits, rng, random_network):
    """Descent along signs, which finds the nearest point of a nearly linear network."""
    activation = "relu" if method == "coupled" else "tanh"
    steepness = 1.0 if method == "coupled" else 0.1
    network = float32_network(rng, random_network, (6, 9, 3), activation, steepness)
    x = rng.uniform(-0.5, 0.5, (12, 6)).astype(np.float32)
    found = certify(model_of(network), x, threat={"norm": "linf", **limits}, method=method)
    some = np.isfinite(found.radius)
    assert np.all(found.radius[some] <= found.adversarial_distance[some])
    near = found.radius[some] / found.adversarial_distance[some]
    assert some.sum() > 3 and np.median(near) > 0.6
    attacked = Threat(norm="linf", **limits).network(network, 6)
    for share, harmless in ((1.0 - 1e-6, True), (1.5, False)):
        margin, _ = pgd_attack(
            attacked,
            tf.constant(x[some], tf.float64),
            tf.constant(found.prediction[some]),
            radius=share * found.radius[some],
            steps=60,
            norm="linf",
        )
        assert np.all(margin.numpy() >= 0.0) if harmless else np.any(margin.numpy() < 0.0)


def exactly(array):
    return np.vectorize(Fraction, otypes=[object])(array)


@pytest.mark.parametrize("size", [1.0, 1e-170, 1e120])
def test_what_rounding_takes_is_charged(size, rng):
    """In exact arithmetic; thirds, whose products and sums are all rounded, and many of them."""
    for kind in 12 * ["all", "flat", "straight", "upward", "downward"]:
        slope, up, down = rng.integers(-9, 10, (3, 2, 300)) * size / 3.0
        up, down, kappa = abs(up), abs(down), rng.integers(1, 9, 2) / 3.0
        slope, kappa = slope * (kind != "flat"), kappa * (kind != "straight")
        up, down = up * (kind != "downward"), down * (kind != "upward")
        found = least_concave(slope, kappa, up, down)
        h, u, d = map(exactly, (slope, up, down))
        half = exactly(kappa)[:, None] / 2
        ends = np.minimum(h * u - half * u * u, -h * d - half * d * d)
        assert all(map(lambda a, b: Fraction(a) <= b, found, ends.sum(axis=1)))
        np.testing.assert_allclose(found, ends.sum(axis=1).astype(float), rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("size", [1.0, 1e-170])
def test_sums_of_norms_are_charged(size, rng):
    for _ in range(40):
        rows = rng.integers(-9, 10, (1, 1, 300)) * size / 3.0
        up, down = rng.integers(0, 10, (2, 1, 300)) * size / 3.0
        radius, row = np.array([7.0 * size / 3.0]), exactly(rows[0, 0])
        limit = np.where(row < 0, exactly(up[0]), exactly(down[0]))
        within = [min(one, Fraction(radius[0])) for one in limit]
        assert Fraction(NORMS["linf"].dual(rows).item()) >= abs(row).sum()
        assert Fraction(NORMS["l1"].of(rows[0]).item()) >= abs(row).sum()
        reach = Reach(up, down, None, None, None)
        cube = NORMS["linf"].least_linear(rows, reach, radius).item()
        assert Fraction(cube) <= -(abs(row) * within).sum()
        left, fall = Fraction(radius[0]), Fraction(0)
        for j in np.argsort(-abs(rows[0, 0]), kind="stable"):
            spent = min(left, limit[j])
            left, fall = left - spent, fall + abs(row[j]) * spent
        assert Fraction(NORMS["l1"].least_linear(rows, reach, radius).item()) <= -fall


def test_bounds_hold_wherever_the_gradient_is_taken(rng, random_network):
    """For all kernels that folding may have meant, at points of the cube that no search ends at."""
    network = random_network(rng, (2, 7, 3), "tanh", scale=1.5)
    first, last = network.affines
    x, radius = rng.standard_normal((60, 2)), rng.uniform(0.01, 0.3, (60, 1)) * np.ones((1, 2))
    x[::2], radius[::2] = 0.0, radius[::2] / 100.0  # where all that is off is the gradient
    corners, share = np.array([*itertools.product([-1.0, 0.0, 1.0], repeat=2)]), rng.random(60)
    label, rival = np.zeros(60, np.int32), np.ones(60, np.int32)
    for error in (0.0, 0.02):
        folded = type(first)(first.kernel, first.bias, error)
        certificate = CubeCertificate(
            CurvatureCertificate(type(network)([folded, last], network.activations))
        )
        lowest = np.full(60, np.inf)
        slopes = (1.0 - np.tanh(first.bias) ** 2) * (last.kernel[:, 0] - last.kernel[:, 1])
        steeper = np.outer(np.sign(first.kernel @ slopes), slopes)  # at 0
        for change in [steeper, *rng.standard_normal((40, *first.kernel.shape))]:
            change *= error / np.linalg.norm(change, 2)
            moved = type(first)(first.kernel + change, first.bias)
            other = type(network)([moved, last], network.activations)
            points = x[None] + corners[:, None] * radius
            logits = other.logits(points.reshape(-1, 2)).numpy().reshape(len(corners), 60, 3)
            lowest = np.minimum(lowest, (logits[..., 0] - logits[..., 1]).min(axis=0))
        for corner in corners:
            point = x + corner * radius * share[:, None]
            args = point, x, tf.constant(label), tf.constant(rival), radius, radius
            assert np.all(certificate.bounds_at(*args) <= lowest)


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_balls_of_examples_of_two_classes_do_not_meet(norm, activation, rng, random_network):
    network = float32_network(rng, random_network, (3, 9, 8, 3), (activation, activation))
    x = rng.standard_normal((40, 3)).astype(np.float32)
    found = certify(model_of(network), x, threat={"norm": norm})
    apart = np.abs(x[:, None].astype(float) - x)
    apart = apart.sum(axis=2) if norm == "l1" else apart.max(axis=2)
    other = found.prediction[:, None] != found.prediction
    assert other.any() and np.all((found.radius[:, None] + found.radius <= apart)[other])
