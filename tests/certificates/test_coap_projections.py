"""Bounds from random projections converge to the exact ones."""

import numpy as np
import pytest
import tensorflow as tf
from polytope_dual import relu_case

from keras_curv.network.network import Network
from keras_curv.training.rivals.polytope import hidden_layers, margin_bounds

WIDE = (70, 80, 75, 6, 3)


def _relative_errors(random_network, rng, projections, repeats):
    """Of how far the bounds of the second and the third layer are from the centre."""
    network = random_network(rng, WIDE, "relu", 1.2)
    x = tf.constant(rng.standard_normal((1, 70)))

    def spreads(**options):
        layers = hidden_layers(network, x, 0.5, **options)
        return [(layer.high - layer.low).numpy()[0] for layer in layers]

    exact = spreads()
    for seed in range(repeats):
        first, *others = spreads(projections=projections, seed=(seed, projections))
        np.testing.assert_array_equal(first, exact[0])
        yield [one / other - 1.0 for one, other in zip(others, exact[1:], strict=True)]


def test_projections_converge_to_the_exact_bounds(random_network):
    sizes = []
    for projections in (4, 16, 64):
        rng = np.random.default_rng(7)
        errors = list(zip(*_relative_errors(random_network, rng, projections, 60), strict=True))
        second, third = (np.array(part) for part in errors)
        # Part of the second layer's spread is exact; all of it would have an error of 1/√(2r).
        assert 0.02 < np.sqrt(np.mean(second**2)) * np.sqrt(2.0 * projections) < 1.1
        mean = second.mean(axis=1)  # the units of one draw are not independent
        assert abs(mean.mean()) <= 4.0 * mean.std() / np.sqrt(len(mean))
        sizes.append([np.sqrt(np.mean(part**2)) for part in (second, third)])
    few, some, many = np.array(sizes)
    # 1/√r, within a third: 60 draws, and medians of four Cauchys have a tail.
    for more, fewer in ((some, few), (many, some)):
        assert np.all(more <= 0.67 * fewer)
    assert np.all(many <= 0.1)


@pytest.mark.parametrize("projections", [2, 5, 6])
def test_the_centre_of_each_estimate(projections):
    """Unit matrices: every unit has an estimate of its own, and both terms are known."""
    size, biases = 200, [np.zeros(200), *[np.full(200, 9.0)] * 2, np.zeros(200)]
    network = Network.from_weights([np.eye(size)] * 4, biases, "relu")
    balls, cubes = [], []
    for seed in range(10):
        first, second, third = hidden_layers(
            network, tf.zeros((1, size)), 1.0, projections=projections, seed=(seed, 0)
        )
        np.testing.assert_allclose(first.half, 0.25)  # of [−1, 1], with slope 1/2
        ball = (second.high - second.low) / 2.0 - 0.25
        balls.append(ball / 0.5)
        cubes.append(((third.high - third.low) / 2.0 - ball) / 0.25)
    # 2,000 draws, of standard deviation 0.52 for two rows.
    assert np.mean(balls) == pytest.approx(1.0, abs=0.05)
    if projections == 5:  # |C| and 1/|C| have one law, so an odd number of them has median 1
        assert np.median(cubes) == pytest.approx(1.0, abs=0.07)
    if projections == 6:  # between the third and the fourth, whose own medians are 0.79 and 1.26
        assert 0.97 <= np.median(cubes) <= 1.15


def test_narrow_layers_are_exact_whatever_the_projections(random_network, rng):
    network, x, label, _ = relu_case(random_network, rng, 4)
    args = network, tf.constant(x), tf.constant(label), 0.3
    exact = margin_bounds(*args)
    np.testing.assert_array_equal(exact, margin_bounds(*args, projections=9, seed=(1, 2)))
    for projections in (4, 5, 8):  # an even and an odd number of them, and some layers exact
        other = margin_bounds(*args, projections=projections, seed=(1, 2))
        assert np.all(np.isfinite(other)) and not np.array_equal(exact, other)
