"""Curvature on a ball: what the package proves by it is proved again, and nothing more."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from flint import arb
from proved_again import points_between, random_network, verdicts

from keras_curv import data, read
from keras_curv.certificates.auto import choose_method
from keras_curv.curvature.local import LocalCurvature
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import save_network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.unitwise import unit_wise
from keras_curv_check.activations import sigma_of
from keras_curv_check.anchored import Anchored
from keras_curv_check.balls import vector
from keras_curv_check.check import NOT_PROVED, PROVED, Checker
from keras_curv_check.files import ProofFolder, read_network
from keras_curv_check.network import Network as Checked
from keras_curv_check.rounding import NotProvedError

COUNT = 12
KNOWN = activations.SMOOTH


@pytest.fixture(scope="module")
def network():
    """Two units of each smooth activation, folding errors beside them."""
    layer = unit_wise([(sigma, 2) for sigma in KNOWN.values()])
    width, rng = 2 * len(KNOWN), np.random.default_rng(5)
    errors = {"kernel_error": 1e-13, "bias_error": 1e-13}
    sizes = (5, width), (width, 4)
    maps = [Affine(rng.normal(size=pair), rng.normal(size=pair[1]), **errors) for pair in sizes]
    return Network(maps, [layer])


@pytest.fixture(scope="module")
def proofs(network, tmp_path_factory):
    """The certificates, the checker and the claims."""
    folder = tmp_path_factory.mktemp("local")
    method = choose_method("crc_local", network)
    result, found = verdicts(method, points_between(network, COUNT), folder)
    assert {one.status for one in found} == {PROVED}, found
    opened, file = ProofFolder.open(folder / "proofs"), read_network(folder / "network.npz")
    return result, Checker(file, opened.header), [*opened.claims(file)][0]


def test_all_are_proved_and_only_by_the_ball(proofs):
    result, checker, claims = proofs
    assert len(claims) == (result.radius > 0.0).sum() > 8
    elsewhere = [
        dataclasses.replace(claim, methods=[name and "crc" for name in claim.methods])
        for claim in claims
    ]
    assert sum(one.status == NOT_PROVED for one in checker.check(elsewhere)) > 3


@pytest.mark.parametrize("fault", ["radius", "points", "far"])
def test_forged_claims_are_not_proved(fault, proofs):
    _, checker, claims = proofs
    rng, forged = np.random.default_rng(0), []
    for claim in claims:
        assert claim.points
        changed = {
            "radius": {"radius": claim.radius * (1.005 + rng.uniform())},
            "points": {"points": {}},
            "far": {"points": {t: 3.0 * p - 2.0 * claim.x for t, p in claim.points.items()}},
        }
        forged.append(dataclasses.replace(claim, **changed[fault]))
    assert {one.status for one in checker.check(forged)} == {NOT_PROVED}


def test_a_curvature_that_is_too_small_is_seen(network, tmp_path, monkeypatch):
    bound = LocalCurvature.bound
    monkeypatch.setattr(LocalCurvature, "bound", lambda *given: 0.9 * bound(*given))
    method = choose_method("crc_local", network)
    _, found = verdicts(method, points_between(network, COUNT), tmp_path)
    assert NOT_PROVED in {one.status for one in found}


def test_in_a_box(tmp_path):
    network = read("saved_models/digits").network
    limits = np.zeros(network.dim), np.ones(network.dim)
    confined = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    x = data.load_all("digits")[0][:6].reshape(6, -1).astype(np.float64)
    header = {"threat": "l2 in a box", "box": {"low": [0.0], "high": [1.0]}}
    _, found = verdicts(choose_method("crc_local", confined), x, tmp_path, network, **header)
    assert len(found) > 4 and {one.status for one in found} == {PROVED}, found


@pytest.fixture(scope="module")
def deep():
    """Networks of three to five maps, some with folding errors."""
    rng, names = np.random.default_rng(2), [name for name in KNOWN if name != "mish"]
    nets = []
    for seed, depth in enumerate((2, 3, 4, 2, 3)):
        sizes = (*rng.integers(3, 9, size=depth + 1), 4)
        errors = {"kernel_error": 1e-9, "bias_error": 1e-9} if seed % 2 else {}
        nets.append(random_network(sizes, rng.choice(names, depth), seed, **errors))
    return nets


def test_deep_networks_are_proved_again(deep, tmp_path):
    """Whatever proves it, some radii need the curvature on the ball."""
    needed = 0
    for number, network in enumerate(deep):
        folder = tmp_path / str(number)
        folder.mkdir()
        method = choose_method("crc_local", network)
        result, found = verdicts(method, points_between(network, 6, number, 2.0), folder)
        assert {one.status for one in found} == {PROVED}, found
        opened, file = ProofFolder.open(folder / "proofs"), read_network(folder / "network.npz")
        checker, (claims,) = Checker(file, opened.header), [*opened.claims(file)]
        forged = [dataclasses.replace(one, radius=one.radius * 1.2) for one in claims]
        needed += sum("crc_local" in one.methods for one in claims)
        assert {one.status for one in checker.check(forged)} == {NOT_PROVED}
    assert needed > 8


@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 10.0])
def test_the_bound_is_above_curvature_on_the_ball(radius, deep, tmp_path):
    """At points of the ball, and it is close at its centre, and to the package's own bound."""
    rng = np.random.default_rng(3)
    for network in deep:
        save_network(network, tmp_path / "network.npz")
        checked, local = Checked(read_network(tmp_path / "network.npz")), LocalCurvature(network)
        x = rng.normal(size=(1, network.dim))
        pre, *_ = checked.forward([vector(x[0])])
        ball = Anchored(checked, [layer[0] for layer in pre], radius)
        away = rng.normal(size=(40, network.dim))
        away *= radius / np.linalg.norm(away, axis=1, keepdims=True)
        for rival in (1, 2):
            hessians = network.hessian(x + away, np.zeros(40, int), np.full(40, rival)).numpy()
            worst, ours = (
                -np.linalg.eigvalsh(hessians)[:, 0].min(),
                min(map(float, ball.bounds(0, [rival]))),
            )
            assert (
                worst <= ours + 1e-15 and worst <= min(map(float, ball.bounds(0, [1, 2]))) + 1e-15
            )
            (theirs,) = local.bound(local.anchor(x), np.array([radius]), [0], [0], [rival])
            assert ours <= 1.02 * theirs + 1e-12


@pytest.mark.parametrize("name", KNOWN)
def test_ranges_on_intervals_are_those_of_the_package(name):
    """Which knows them by other formulas; at jumps it rounds outward by more."""
    theirs, ours = KNOWN[name], sigma_of(name)
    low, high = np.sort(4.0 * np.random.default_rng(1).normal(size=(2, 300)), axis=0)
    low[:20], high[:20] = high[:20], high[:20] + 1e-3
    low[20:24] += 1e3 * np.arange(1.0, 5.0)  # far out, where sin is as anywhere
    high[20:24] = low[20:24] + [0.1, 1.0, 5.0, 9.0]
    for a, b, least, most in zip(low, high, *theirs.second_range_on(low, high), strict=True):
        found = ours.bends_on(arb(a), arb(b))
        assert np.allclose([float(end.mid()) for end in found], [least, most], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["relu", "abs", "selu", "hard_silu", "clip(0.0,inf)"])
def test_there_is_no_curvature_where_slopes_jump(name):
    sigma = sigma_of(name)
    assert sigma.bends is None and sigma.bends_on(arb(-4), arb(4)) is None
    if name == "clip(0.0,inf)":
        assert sigma.limits == (0.0, np.inf)


def test_a_sine_that_is_too_far_out_is_not_bounded():
    sine = sigma_of("sin")
    with pytest.raises(NotProvedError, match="too large"):
        sine.bends_on(arb(2.0**41), arb(2.0**41 + 1.0))
    with pytest.raises(NotProvedError, match="too wide"):
        sine.cuts_in(-200.0, 200.0)


NAMES = {*activations.ACTIVATIONS, "clip(-0.5,inf)", "clip(-1.0,2.0)"} - {"exponential"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_values_and_ranges_on_the_whole_line_are_those_of_the_package(name):
    theirs, ours = activations.get(name), sigma_of(name)
    z = np.linspace(-7.0, 7.0, 29)
    values = [float(ours.value(arb(at)).mid()) for at in z.tolist()]
    assert np.allclose(values, theirs.value(tf.constant(z)), rtol=0.0, atol=1e-12)
    found = [float(end.mid()) for end in ours.slopes]
    assert np.allclose(found, theirs.first_range, rtol=0.0, atol=1e-9)
    if ours.bends is not None:
        found = [float(end.mid()) for end in ours.bends]
        assert np.allclose(found, theirs.second_range, rtol=0.0, atol=1e-9)
