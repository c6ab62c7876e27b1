"""Faults planted in linear bounds of the package: the checker sees each."""

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates import float32
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.linear import crown
from keras_curv.certificates.linear.bounds import coupled_balls
from keras_curv.certificates.linear.bounds.coupling import Coupling
from keras_curv.network import affine
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv_check.check import NOT_PROVED, OUT_OF_SCOPE, PROVED


def without_the_ball(self, rows, slopes, multiplier, shared=0.0):
    """The charge λρ²/2 is dropped."""
    least = self.least(rows, slopes, multiplier + shared)
    return np.sum(least, axis=-1), self.rounding(rows, slopes, multiplier)


def the_ball_added(self, rows, slopes, multiplier, shared=0.0):
    """The charge λρ²/2 has the other sign."""
    least, half = self.least(rows, slopes, multiplier + shared), 0.5 * multiplier[..., 0]
    return np.sum(least, axis=-1) + half * self.ball**2, self.rounding(rows, slopes, multiplier)


def without_the_other_ball(self, turns, shared):
    """The charge μρ_all²/2 is dropped."""
    _, error = turned(self, turns, shared)
    level = np.einsum("nmi,ni->nm", turns, self.others)
    return -level - np.sum(turns**2, axis=-1) / (2.0 * shared[..., 0]), error


def smaller_balls(*arguments):
    """A norm of the first layer is a twentieth too small."""
    return 0.95 * coupled_first_ball(*arguments)


def lower_chords(*arguments):
    """Lines above σ are not raised to its ends."""
    lines = lines_around(*arguments)
    return lines._replace(upper_intercept=0.9 * np.asarray(lines.upper_intercept))


turned = Coupling.turned
coupled_first_ball, lines_around = coupled_balls.first_ball, crown.relaxation
FAULTS = {
    "the ball": ("coupled", Coupling, "offset", without_the_ball),
    "its sign": ("coupled", Coupling, "offset", the_ball_added),
    "the ball of all units": ("coupled", Coupling, "turned", without_the_other_ball),
    "a norm": ("coupled", coupled_balls, "first_ball", smaller_balls),
    "a line": ("crown", crown.LinearBoundCertificate, "relaxation", staticmethod(lower_chords)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, tmp_path, monkeypatch):
    name, place, attribute, faulty = FAULTS[fault]
    network = random_network((6, 20, 20, 4), ("relu", "relu"))
    monkeypatch.setattr(place, attribute, faulty)
    _, found = verdicts(choose_method(name, network), points_between(network, 12), tmp_path)
    assert len(found) > 8 and any(one.status != PROVED for one in found), found


def distant_network():
    """A network for inputs of about a hundred, whose first map loses digits in float32."""
    near = random_network((6, 20, 12, 4), ("relu", "tanh"), 3)
    first, *others = near.affines
    moved = Affine(first.kernel, first.bias - 100.0 * first.kernel.sum(axis=0))
    return Network([moved, *others], near.activations)


through, steepest_on, rounded = float32._through, float32._largest_slope, affine.gamma
OF_FLOAT32 = {
    "none": (float32, "FLOAT32_ULPS", 16.0, PROVED),
    "errors that pass on": (float32, "_through", lambda *args: 0.0 * through(*args), NOT_PROVED),
    "g at the centre": (
        float32,
        "_largest_slope",
        lambda sigma, z, error, moved: steepest_on(sigma, z, error, 0.0 * moved),
        NOT_PROVED,
    ),
    "half of u": (affine, "gamma", lambda n, unit: rounded(n, unit / 2.0), OUT_OF_SCOPE),
}


@pytest.mark.parametrize("fault", OF_FLOAT32)
def test_a_fault_of_float32_is_seen(fault, tmp_path, monkeypatch):
    place, attribute, faulty, status = OF_FLOAT32[fault]
    monkeypatch.setattr(place, attribute, faulty)
    network = distant_network()
    x = np.float32(100.0 + points_between(network, 12)).astype(float)
    method = choose_method("lipschitz", network, Float32Error(network))
    _, found = verdicts(method, x, tmp_path, guarantee="float32")
    statuses = {one.status for one in found}
    assert len(found) > 8 and status in statuses, found
    assert (statuses == {PROVED}) == (fault == "none")
