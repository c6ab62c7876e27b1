"""Linear functions on balls and boxes, and attacks in l∞."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from attacked import BALLS, cube, float32_network, model_of

from keras_curv import Threat, certify, pgd_attack
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
