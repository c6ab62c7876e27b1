"""Minorants of the second layer's units are found once, and hold on every ball."""

import numpy as np
import pytest
from ball_oracle import ball_points, draw_network

from keras_curv.certificates.linear.bounds import second_layer
from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.centre_cache import Centres


@pytest.fixture
def asked(monkeypatch):
    """Of how many examples minorants were asked for, each time."""
    counts, tangents, along = [], FirstLayer.tangents, FirstLayer.along

    def counting(self, z, *args):
        counts.append(len(z))
        return tangents(self, z, *args)

    def counting_away(self, before, *args):
        counts.append(len(before.z))
        return along(self, before, *args)

    monkeypatch.setattr(FirstLayer, "tangents", counting)
    monkeypatch.setattr(FirstLayer, "along", counting_away)
    return counts


def centres(rng, name="tanh", count=6):
    network = draw_network(rng, (4, 9, 7, 3), name)
    return Centres(network, rng.standard_normal((count, 4)), FirstLayer.of(network))


def test_a_point_is_asked_for_once(rng, asked):
    every = centres(rng)
    assert every.first is not None
    unit = 1.0 / every.first.norm
    every.units(np.full(6, 1.1 * unit))  # asks at 1, 1 / 1.5 and 1 / 1.5², for both ends
    assert asked == [6, *[6] * 6]
    every[np.array([5, 0])].units(unit * np.array([1.3, 1.4]))
    assert len(asked) == 7
    every[2:4].units(unit * np.array([1.2, 1.6]))  # one at 1.5
    assert asked[7:] == [1, 1]


def test_what_other_balls_asked_for_changes_nothing(rng):
    every, radius = centres(rng), np.array([0.3, 0.4, 0.5, 0.6, 3.0, 1e-3])
    first = every.units(radius)
    for scale in (0.1, 2.0, 0.7):
        every.units(scale * radius)
    for one, other in zip(first, every.units(radius), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["tanh", "softplus", "silu"])
def test_no_unit_leaves_its_interval_on_a_ball_smaller_or_larger(name, rng):
    every = centres(rng, name, count=20)
    first, second = every.network.affines[:2]
    for scale in (1.0, 0.67, 0.99, 1.0, 5.0, 0.0):
        radius = scale * rng.uniform(0.2, 2.0, len(every))
        low, high = every.units(radius)
        points = ball_points(rng, every.x, radius, 200)
        a = every.network.activations[0].value(points @ first.kernel + first.bias).numpy()
        units = a @ second.kernel + second.bias
        assert np.all(units >= low - 1e-13) and np.all(units <= high + 1e-13)


def test_radii_of_no_size_and_of_any(rng):
    every = centres(rng)
    low, high = every.units(np.array([0.0, 1e-320, 1e-200, 1e200, np.inf, np.nan]))
    value = every.z[1]
    assert not np.any(low[5] > -np.inf) and not np.any(high[5] < np.inf)
    assert np.all(low[:4] <= value[:4]) and np.all(value[:4] <= high[:4])
    assert np.all(high[:3] - low[:3] < 1e-10)
    assert not np.any(low[4] > -np.inf) and not np.any(high[4] < np.inf)


def test_points_on_the_way_gain(rng, monkeypatch):
    """Where σ″ is not κ all the way, points in between leave less than the end alone."""
    every, radius = centres(rng), np.full(6, 0.99)
    low, high = every.units(radius)
    monkeypatch.setattr(second_layer, "POINTS", 1)
    alone = Centres(every.network, every.x, every.first).units(radius)
    assert np.all(low >= alone[0]) and np.all(high <= alone[1])
    assert np.mean(high - low) < 0.999 * np.mean(alone[1] - alone[0])
