"""Float32 is charged for where a search begins; on its way it finds the way, and proves nothing."""

import numpy as np
import pytest
import tensorflow as tf
from crc_searching import searched

from keras_curv import CurvatureCertificate, Network
from keras_curv.certificates.crc import rival_search
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.pinned import PinnedNetwork


def at(iterate, origin, cells, *_):
    """What `approach` returns that comes to these iterates by no gradient."""
    return iterate, tf.fill([len(cells)], tf.constant(np.inf, tf.float64)), cells[:, 0] * 0


@pytest.fixture
def network(rng, random_network):
    return random_network(rng, (5, 12, 4), ("softplus",), 3.0)


def test_it_finds_what_float64_finds(rng, network, monkeypatch):
    x = rng.standard_normal((40, 5))
    radius, gradients, _ = searched(network, x)
    monkeypatch.setattr(rival_search, "approach", lambda step, advance, *begun: at(*begun))
    double, alone, _ = searched(network, x)
    np.testing.assert_allclose(radius, double, rtol=2e-4)
    assert gradients.mean() < alone.mean() + 3.0


GUESSES = {
    "far away": lambda origin: origin + 1e3,
    "another example": lambda origin: tf.reverse(origin, [0]),
    "not a number": lambda origin: origin * np.nan,
}


def test_any_guess_is_sound(rng, network, monkeypatch):
    """A guess proves nothing: what float64 proves from it is below the best radius."""
    x = rng.standard_normal((40, 5))
    best, _, _ = searched(network, x, tolerance=1e-9, max_steps=400)
    for where, guess in GUESSES.items():

        def misled(step, advance, begun, origin, cells, *rest, guess=guess):
            begun = begun._replace(point=guess(origin), steps=tf.zeros_like(begun.steps))
            return at(begun, origin, cells)

        monkeypatch.setattr(rival_search, "approach", misled)
        radius, _, _ = searched(network, x)
        assert np.all(radius <= best * (1.0 + 1e-9)), where
        assert np.all(radius > 0.0), where


def test_what_overflows_in_float32_is_searched_in_float64(rng):
    """Weights and examples that float32 does not hold; radii are those of a scaled network."""
    kernels = [rng.standard_normal((4, 9)), rng.standard_normal((9, 3))]
    biases = [rng.standard_normal(9), rng.standard_normal(3)]
    plain = Network.from_weights(kernels, biases, "softplus")
    large = Network.from_weights([kernels[0] * 1e-60, kernels[1]], biases, "softplus")
    x = rng.standard_normal((20, 4))
    expected, found = (
        CurvatureCertificate(network).certify(points).radius
        for network, points in ((plain, x), (large, x * 1e60))
    )
    np.testing.assert_allclose(found, expected * 1e60, rtol=1e-3)


def test_pinned_entries_keep_every_digit(rng):
    """An entry that float32 rounds, and that decides: the margin falls by its last digits."""
    steep, pinned = 1e8, np.array([False, True])
    kernel = np.array([[1.0, -1.0], [steep, -steep]])
    maps = [Affine(kernel, np.zeros(2)), Affine(np.eye(2), np.zeros(2))]
    network = PinnedNetwork(maps, [activations.get("softplus")], pinned)
    x = np.stack([rng.uniform(-1.0, 1.0, 30), rng.uniform(1.0, 2.0, 30) * 1e-8], axis=1)
    certified = CurvatureCertificate(network).certify(x)
    # The margin is a function of t = x_0 + steep x_1 that changes its sign at t = 0 alone.
    distance = np.abs(x[:, 0] + steep * x[:, 1])
    assert np.all(certified.radius <= distance * (1.0 + 1e-12))
    assert np.all(certified.radius > 0.1 * distance)
