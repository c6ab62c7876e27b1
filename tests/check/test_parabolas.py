"""Quadratic bounds of two-layer ReLU networks: proved again, and nothing more."""

import dataclasses

import numpy as np
import pytest
from flint import arb
from proved_again import HEADER, points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.linear import quadratic
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv_check.balls import vector
from keras_curv_check.check import NOT_PROVED, PROVED, Checker
from keras_curv_check.files import Map, NetworkFile, ProofFolder, read_network
from keras_curv_check.network import Network as Checked
from keras_curv_check.quadratic import Quadratic

COUNT = 24
BOX = {"threat": "l2 in a box", "box": {"low": [-1.0], "high": [1.0]}}


def case(boxed=False, **errors):
    """A network, the same with limits if there are any, and examples."""
    network = random_network((6, 20, 4), ("relu",), 3, **errors)
    limits = np.full(6, -1.0), np.full(6, 1.0)
    inside = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    x = points_between(network, COUNT)
    x = np.clip(x, -1.0, 1.0) if boxed else x
    return network, choose_method("quadratic", inside if boxed else network), x


def statuses(found):
    return {one.status for one in found}


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """The checker, claims, and the network as it is checked."""
    folder = tmp_path_factory.mktemp("quadratic")
    network, method, x = case()
    _, found = verdicts(method, x, folder, network)
    assert len(found) > 20 and statuses(found) == {PROVED}, found
    file = read_network(folder / "network.npz")
    (claims,) = ProofFolder.open(folder / "proofs").claims(file)
    return Checker(file, HEADER), claims, Checked(file)


def test_radii_need_their_points_and_this_theorem(proofs):
    checker, claims, _ = proofs
    other = [
        dataclasses.replace(claim, methods=[name and "coupled" for name in claim.methods])
        for claim in claims
    ]
    assert NOT_PROVED in statuses(checker.check(other))
    bare = [dataclasses.replace(claim, points={}) for claim in claims]
    assert sum(one.status == NOT_PROVED for one in checker.check(bare)) > 15


@pytest.mark.parametrize("boxed", [False, True])
def test_folding_and_boxes(boxed, tmp_path):
    network, method, x = case(boxed, kernel_error=1e-4, bias_error=1e-4)
    result, found = verdicts(method, x, tmp_path, network, **(BOX if boxed else {}))
    assert len(found) > 20 and statuses(found) == {PROVED}, found
    if boxed:
        beside = choose_method("quadratic", network).certify(x).radius
        assert (result.radius > 1.01 * beside).sum() > 4


def test_behind_a_clip_that_is_the_only_layer(tmp_path):
    """Points are those of the input, not of what is behind the clip."""
    rng = np.random.default_rng(0)
    network = Network.from_weights(
        [np.diag([1.0, -1.2, 0.8]), rng.normal(size=(3, 3))], [np.full(3, 0.2), np.zeros(3)], "relu"
    )
    x = points_between(network, 12)
    _, found = verdicts(choose_method("quadratic", network), x, tmp_path, network)
    assert len(found) > 8 and statuses(found) == {PROVED}


def farther(claim, rng):
    """By three thousandths at least, which no search has left here."""
    return {"radius": claim.radius * (1.003 + rng.uniform())}


def other_points(claim, rng):
    moved = {t: p + 0.2 * claim.radius * rng.normal(size=p.shape) for t, p in claim.points.items()}
    return {"points": moved, "radius": 1.3 * claim.radius}


def points_twice_as_far(claim, rng):
    return {"points": {t: 2.0 * p - claim.x for t, p in claim.points.items()}}


def another_example(claim, rng):
    return {"x": claim.x + 0.3 * claim.radius * rng.normal(size=claim.x.shape)}


def another_label(claim, rng):
    rivals = [t for t in range(4) if t != claim.label]
    return {"label": int(rng.choice(rivals)), "methods": ["quadratic"] * 4}


FORGERS = [farther, other_points, points_twice_as_far, another_example, another_label]


@pytest.mark.parametrize("forge", FORGERS, ids=lambda forge: forge.__name__)
def test_forged_claims_are_not_proved(forge, proofs):
    checker, claims, _ = proofs
    rng = np.random.default_rng(61)
    forged = [
        dataclasses.replace(claim, **forge(claim, rng))
        for claim in claims
        if claim.radius > 0.3  # below, all units are nearly straight, and any point is good
    ]
    found = [*checker.check(forged)]
    assert len(found) > 15
    assert statuses(found) == {NOT_PROVED}, found


def without_the_eigenvalue(self, diagonal):
    """P is taken for positive."""
    return 0.0


def too_steep(low, high, below):
    """Parabolas above ReLU are a hundredth too low."""
    found = parabolas(low, high, below)
    return np.where(below, found, 0.99 * found)


parabolas = quadratic.parabolas
FAULTS = {
    "κ": (quadratic.QuadraticCertificate, "curvature_bound", without_the_eigenvalue),
    "parabolas": (quadratic, "parabolas", too_steep),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, tmp_path, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    network, method, x = case()
    _, found = verdicts(method, x, tmp_path, network)
    assert NOT_PROVED in statuses(found)


def test_the_quadratic_is_below_the_margin_and_its_gradient_is_right(proofs):
    _, claims, network = proofs
    rng, claim = np.random.default_rng(0), claims[0]
    ball, rival = Quadratic(network, vector(claim.x), 1.0), (claim.label + 1) % 4
    moves = rng.normal(size=(100, 6))
    moves /= np.maximum(np.linalg.norm(moves, axis=1), 1.0)[:, None]
    for point in claim.x + moves:
        value, gradient = ball.at(vector(point), claim.label, rival)
        *_, ((*logits,),) = network.forward([vector(point)])
        assert value < logits[claim.label] - logits[rival]
    step = 1e-6 * rng.normal(size=6)
    ahead, _ = ball.at(vector(point + step), claim.label, rival)
    behind, _ = ball.at(vector(point - step), claim.label, rival)
    slope = sum((g * s for g, s in zip(gradient, step.tolist(), strict=True)), arb(0))
    assert abs(float(ahead - behind - 2 * slope)) < 1e-6 * abs(float(slope))


def test_folding_by_hand():
    """Of z = x at 3, on a ball of 1, z is off by 5e and a ≤ 4 + 5e: the margin by 15e + 10e²."""
    e = 2.0**-10
    maps = [Map(np.ones((1, 1)), np.zeros(1), e, e), Map(np.eye(1, 2), np.zeros(2), e, e)]
    network = Checked(NetworkFile(maps, [[("relu", 1)]], 1, ""))
    value, (slope,) = Quadratic(network, [arb(3)], 1.0).at([arb(3)], 0, 1)
    assert abs(float(value) - (3.0 - 15.0 * e - 10.0 * e * e)) < 1e-12 and abs(slope - 1) < 1e-12
