"""Weights by feature, frozen features and subspaces: certificates of ξ, attacked inside of it."""

import numpy as np
import pytest
from attacked import METHODS_AND_SIGMAS, ball, float32_network, model_of, of_threat, scores, sizes

from keras_curv import InputError, Property, Status, Threat, certify
from keras_curv.certificates.auto import choose_method
from keras_curv.network.network import Network

FIELDS = "prediction", "nearest_rival", "status", "radius"


@pytest.mark.parametrize("method, activation", METHODS_AND_SIGMAS)
def test_weights_are_those_of_the_first_kernel(method, activation, rng, random_network):
    network = float32_network(rng, random_network, sizes(4, activation), activation)
    scale, x = np.array([0.3, 1.0, 2.7, 0.5]), rng.standard_normal((6, 4))
    kernels = [affine.kernel for affine in network.affines]
    kernels[0] = scale[:, None] * kernels[0]
    whole = Network.from_weights(kernels, [a.bias for a in network.affines], activation)
    expected = choose_method(method, whole).certify(x / scale)
    found = of_threat(network, Threat(scale=scale), method)(x)
    np.testing.assert_allclose(found.radius, expected.radius, rtol=2e-3)
    np.testing.assert_array_equal(found.nearest_rival, expected.nearest_rival)
    assert (found.radius > 0.0).all()


@pytest.mark.parametrize("threat", [
    Threat(scale=1.0), Threat(scale=np.ones(4)), Threat(frozen=np.zeros(4, bool)),
])  # fmt: skip
def test_weights_of_1_change_nothing(threat, rng, random_network):
    model = model_of(float32_network(rng, random_network, (4, 9, 3), "tanh"))
    x = rng.standard_normal((6, 4)).astype(np.float32)
    for method in ("crc", "lipschitz"):
        found, plain = (
            certify(model, x, threat=threat, method=method),
            certify(model, x, method=method),
        )
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_equal_weights_change_the_unit(rng, random_network):
    model = model_of(float32_network(rng, random_network, (4, 9, 3), "tanh"))
    x = rng.standard_normal((6, 4)).astype(np.float32)
    found = certify(model, x, threat=Threat(scale=0.1), method="crc")
    np.testing.assert_allclose(
        0.1 * found.radius, certify(model, x, method="crc").radius, rtol=1e-3
    )


THREATS = [
    (Threat(scale=[0.2, 3.0]), np.diag([0.2, 3.0])),
    (Threat(scale=[0.2, 3.0], frozen=[1]), np.array([[0.2], [0.0]])),
    (Threat(frozen=[True, False]), np.array([[0.0], [1.0]])),
    (Threat(basis=[[1.0, 0.5], [-0.3, 2.0]]), np.array([[1.0, 0.5], [-0.3, 2.0]])),
    (Threat(basis=[[1.0], [2.0]]), np.array([[1.0], [2.0]])),
]


def inside(basis, radius, rng):
    """Changes δ = Bξ of a ball of ξ."""
    if basis.shape[1] == 1:
        return np.linspace(-radius, radius, 2001)[:, None] * basis[:, 0]
    return ball(2, radius, rng) @ basis.T


CASES = [
    *((*case, *THREATS[1 + 2 * (at % 2)]) for at, case in enumerate(METHODS_AND_SIGMAS)),
    *(("crc", "tanh", *THREATS[i]) for i in (0, 2, 4)),
]


@pytest.mark.parametrize("method, activation, threat, basis", CASES)
def test_no_class_changes_inside(method, activation, threat, basis, rng, random_network):
    network = float32_network(rng, random_network, sizes(2, activation), activation)
    x = rng.standard_normal((6, 2))
    found = of_threat(network, threat, method)(x)
    assert (found.radius > 0.0).all()
    for one, radius, label in zip(x, found.radius, found.prediction, strict=True):
        around = network.logits(one + inside(basis, min(radius, 50.0), rng)).numpy()
        assert (around.argmax(axis=1) == label).all()


@pytest.mark.parametrize("threat, basis", THREATS[:1] + THREATS[3:])
def test_radii_are_near_to_what_a_grid_finds(threat, basis, rng, random_network):
    """Small intervals, in which curvature loses little."""
    network, tau = scores(rng, random_network, 1, "softplus"), 0.05
    x = rng.standard_normal((9, 2))
    found = of_threat(network, threat, "crc", Property.interval(tau))(x)
    for one, radius in zip(x, found.radius, strict=True):
        around = network.logits(one + inside(basis, 1.1 * radius, rng))
        assert np.abs(around - network.logits(one[None])).max() > tau


@pytest.mark.parametrize("threat, basis", THREATS[1:4])
def test_an_interval_holds_inside(threat, basis, rng, random_network):
    network = scores(rng, random_network, 1)
    x = rng.standard_normal((6, 2))
    found = of_threat(network, threat, "crc", Property.interval(0.3))(x)
    assert (found.radius > 0.0).all()
    for one, radius in zip(x, found.radius, strict=True):
        around = network.logits(one + inside(basis, min(radius, 50.0), rng))
        assert np.abs(around - network.logits(one[None])).max() < 0.3


def test_a_feature_that_is_frozen_does_not_count(rng, random_network):
    """The one that the model looks at most: without it nothing can change."""
    kernel = np.array([[5.0, -5.0], [0.0, 0.0]])
    network = Network.from_weights([kernel], [np.zeros(2)], [])
    found = certify(model_of(network), np.ones((1, 2)), threat=Threat(frozen=[0]))
    assert found.radius[0] == np.inf and found.status[0] == Status.CERTIFIED


def test_all_directions_are_no_subspace(rng, random_network):
    model = model_of(float32_network(rng, random_network, (3, 9, 3), "tanh"))
    x = rng.standard_normal((6, 3)).astype(np.float32)
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    found = certify(model, x, threat=Threat(basis=turn), method="crc")
    np.testing.assert_allclose(found.radius, certify(model, x, method="crc").radius, rtol=1e-3)


def test_what_conversion_moves_is_charged_in_units_of_the_weights(rng, random_network):
    model = model_of(float32_network(rng, random_network, (2, 5, 3), "tanh"))
    x = rng.standard_normal((6, 2))
    threat = Threat(scale=[1e-3, 1.0])
    served = certify(model, x.astype(np.float32), threat=threat, method="crc")
    found = certify(model, x, threat=threat, method="crc")
    away = np.linalg.norm((x - x.astype(np.float32)) / [1e-3, 1.0], axis=1)
    assert (served.radius - found.radius >= away - 1e-16).all()  # what the difference rounds
    np.testing.assert_allclose(served.radius - found.radius, away, rtol=1e-3)


def test_frozen_features_in_float32(rng, random_network):
    model = model_of(float32_network(rng, random_network, (3, 9, 3), "tanh"))
    x = rng.standard_normal((6, 3)).astype(np.float32)
    threat = Threat(frozen=[2])
    real = certify(model, x, threat=threat, method="crc")
    served = certify(model, x, threat=threat, method="crc", guarantee="float32")
    assert (served.radius < real.radius).all() and (served.radius > 0.9 * real.radius).any()
    with pytest.raises(InputError, match="no guarantee float32 under weights"):
        certify(model, x, threat=Threat(scale=2.0), guarantee="float32")


@pytest.mark.parametrize("options, match", [
    ({"scale": [1.0, 0.0]}, "weights must be positive"), ({"scale": -1.0}, "Received: -1"),
    ({"scale": [np.nan]}, "finite"), ({"scale": "a"}, "numbers"), ({"scale": []}, "finite"),
    ({"frozen": [True, True]}, "all features are frozen"), ({"frozen": [-1]}, "indices"),
    ({"frozen": [0.5]}, "indices"), ({"frozen": []}, "indices"),
    ({"low": 1.0, "high": 0.0}, "low must not be above high. Received: 1 and 0"),
    ({"low": [0.0, 1.0], "high": [1.0, 0.5]}, "Received: 1 and 0.5"),
    ({"low": [0.0, 1.0], "high": [1.0, 2.0, 3.0]}, "Received: 2 and 3"),
    ({"low": np.inf}, "low must be numbers"), ({"high": "a"}, "high must be numbers"),
    ({"basis": [1.0]}, r"\(dim, q\)"), ({"basis": np.zeros((2, 1))}, "not 0"),
    ({"basis": np.eye(2), "low": 0.0}, "no scale, frozen, groups, low or high"),
    ({"basis": np.eye(2), "scale": 1.0}, "no scale, frozen"),
])  # fmt: skip
def test_threats_that_mean_nothing(options, match):
    with pytest.raises(InputError, match=match):
        Threat(**options)


@pytest.mark.parametrize("options, match", [
    ({"scale": [1.0, 2.0, 3.0]}, "scale must have 2 entries.*Received: 3"),
    ({"frozen": [2]}, "frozen names feature 2, but there are 2"),
    ({"frozen": [0, 1]}, "all features are frozen"), ({"frozen": [True] + [False] * 2}, "frozen"),
    ({"basis": np.eye(3)}, r"basis must be \(2, q\)"), ({"low": np.zeros(3)}, "low must have 2"),
    ({"low": 0.0, "high": 1.0}, "example 1 has -1 for feature 1.*from 0 to 1"),
    ({"high": [np.inf, 0.0]}, "example 0 has 1 for feature 1"),
])  # fmt: skip
def test_threats_that_do_not_fit(options, match):
    model = model_of(Network.from_weights([np.eye(2)], [np.zeros(2)], []))
    x = np.array([[0.5, 1.0], [0.5, -1.0]], np.float32)
    with pytest.raises(InputError, match=match) as raised:
        certify(model, x, threat=Threat(**options))
    assert "\n" not in str(raised.value)


def test_words():
    assert Threat().plain and str(Threat()) == "l2"
    assert str(Threat(scale=[1, 2], frozen=[3])) == "scale 1.0,2.0; frozen 3"
    assert repr(Threat(frozen=[3])) == "<Threat frozen 3>"
    assert "confined to [0, 1]" in Threat(low=0, high=1).text
    assert (
        "at least 0" in Threat(low=0).text and "3 features frozen" in Threat(frozen=[1, 2, 5]).text
    )
    many = Threat(scale=np.linspace(1, 2, 20))
    assert "sha256" in str(many) and many == Threat(scale=np.linspace(1, 2, 20))
    assert many != Threat(scale=np.linspace(1, 3, 20))
    assert "2 directions" in Threat(basis=np.eye(2)).text
