"""What the package proves is proved again; what it proves by a fault is not."""

import dataclasses

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv import data, read
from keras_curv.certificates.auto import BestOf, choose_method
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv_check.check import NOT_PROVED, OUT_OF_SCOPE, PROVED, Checker
from keras_curv_check.files import ProofFolder, read_network


def network_of_all_units():
    """Each smooth activation at two units of both layers, identity beside them."""
    layer = unit_wise([*((sigma, 2) for sigma in activations.SMOOTH.values()), (IDENTITY, 2)])
    width = 2 * len(activations.SMOOTH) + 2
    rng = np.random.default_rng(5)
    maps = [
        Affine(rng.standard_normal(pair) / np.sqrt(pair[0]), 0.3 * rng.standard_normal(pair[1]))
        for pair in ((5, width), (width, width), (width, 3))
    ]
    return Network(maps, [layer, layer])


def statuses(found):
    return {one.status for one in found}


def test_every_row_of_digits(claims, checked_network, run_of_digits):
    header = ProofFolder.open(run_of_digits / "proofs").header
    found = [*Checker(checked_network, header).check(claims)]
    assert len(found) > 30 and statuses(found) == {PROVED}, found


@pytest.mark.parametrize(
    "network",
    [
        random_network((6, 9, 8, 7, 4), ("softplus", "tanh", "silu")),
        random_network((6, 9, 8, 4), ("sigmoid", "gelu"), kernel_error=1e-13, bias_error=1e-13),
        random_network((6, 4), ()),
        network_of_all_units(),
    ],
    ids=["deep", "folded", "affine", "all activations"],
)
@pytest.mark.parametrize("method", [CurvatureCertificate, LipschitzCertificate])
def test_networks_of_every_kind(network, method, tmp_path):
    result, found = verdicts(method(network), points_between(network, 12), tmp_path)
    assert (result.radius > 0.0).sum() == len(found) > 5
    assert statuses(found) == {PROVED}, found


@pytest.mark.parametrize(
    "names",
    [
        ("relu", "leaky_relu(0.3)"),
        ("relu6", "capped_relu(2.0)"),
        ("abs", "clip(-1.0,2.0)"),
        ("selu", "hard_silu"),
    ],
)
def test_kinks_are_proved_by_lipschitz_constants(names, tmp_path):
    network = random_network((6, 9, 8, 4), names)
    _, found = verdicts(LipschitzCertificate(network), points_between(network, 12), tmp_path)
    assert len(found) > 5 and statuses(found) == {PROVED}


def clipped_network(activation="clip(0.0,1.0)", **errors):
    """A clip of a scaled and shifted input, one entry of which is turned round."""
    behind = random_network((6, 9, 8, 4), ("softplus", "tanh"))
    scale, offset = np.array([1.0, -1.2, 1.1, 0.9, 1.3, 1.0]), np.linspace(-0.1, 0.4, 6)
    first = Affine(np.diag(scale), offset, **errors)
    return Network([first, *behind.affines], [activations.get(activation), *behind.activations])


@pytest.mark.parametrize("activation", ["clip(0.0,1.0)", "relu", "capped_relu(0.7)"])
@pytest.mark.parametrize("errors", [{}, {"kernel_error": 1e-14, "bias_error": 1e-14}])
def test_behind_a_clip(activation, errors, tmp_path):
    network = clipped_network(activation, **errors)
    certificate = CurvatureCertificate(network)
    x = points_between(network, 16)
    result, found = verdicts(certificate, x, tmp_path)
    assert len(found) > 8 and statuses(found) == {PROVED}, found
    by_lipschitz = LipschitzCertificate(network).certify(x).radius
    assert (result.radius > 1.1 * by_lipschitz).sum() > 8


def boxed(low, high):
    """The model of digits, the same with an attacker who stays in a box, and some digits."""
    network = read("saved_models/digits").network
    limits = np.full(network.dim, low), np.full(network.dim, high)
    parts = network.affines, network.activations, None
    x = data.load_all("digits")[0][:16].reshape(16, -1).astype(np.float64)
    return network, PinnedNetwork(*parts, limits=limits), x


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (0.0, np.inf)])
def test_in_a_box(low, high, tmp_path):
    network, confined, x = boxed(low, high)
    box = {"low": [low], "high": [high if np.isfinite(high) else None]}
    header = {"threat": "l2 in a box", "box": box}
    result, found = verdicts(CurvatureCertificate(confined), x, tmp_path, network, **header)
    beside = CurvatureCertificate(network).certify(x).radius
    assert (result.radius > 1.002 * beside).sum() > 6
    assert len(found) > 12 and statuses(found) == {PROVED}, found


@pytest.mark.parametrize(
    "header",
    [{"threat": "l2"}, {"threat": "l2 in a box", "box": {"low": [-0.1], "high": [1.1]}}],
    ids=["without the box", "in a larger box"],
)
def test_a_proof_in_a_box_is_none_elsewhere(header, tmp_path):
    network, confined, x = boxed(0.0, 1.0)
    _, found = verdicts(CurvatureCertificate(confined), x, tmp_path, network, **header)
    assert len(found) > 12 and PROVED not in statuses(found)


HINGED = {
    "relu": ((6, 20, 20, 20, 4), ("relu", "relu", "relu"), {}),
    "folded": ((6, 9, 8, 4), ("relu6", "relu"), {"kernel_error": 1e-13, "bias_error": 1e-13}),
    "leaky": ((6, 9, 8, 4), ("leaky_relu(0.3)", "abs"), {}),
    "one layer": ((6, 9, 4), ("relu",), {}),
}


@pytest.mark.parametrize("kind", HINGED)
@pytest.mark.parametrize("name", ["coupled", "crown"])
def test_linear_bounds_are_proved_again(name, kind, tmp_path):
    sizes, names, errors = HINGED[kind]
    network = random_network(sizes, names, **errors)
    result, found = verdicts(choose_method(name, network), points_between(network, 12), tmp_path)
    assert (result.radius > 0.0).sum() == len(found) > 8
    assert statuses(found) == {PROVED}, found
    by_lipschitz = LipschitzCertificate(network).certify(points_between(network, 12)).radius
    assert (result.radius > 1.1 * by_lipschitz).sum() > 8


def test_intervals_are_proved_again(tmp_path):
    network = random_network((6, 9, 8, 4), ("selu", "sin"))
    _, found = verdicts(choose_method("interval", network), points_between(network, 12), tmp_path)
    assert len(found) > 8 and statuses(found) == {PROVED}


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_two_stages_of_steep_networks_are_proved_at_their_points(seed, tmp_path):
    """Points among the features, which a search of the checker's own once missed by far."""
    network = random_network((6, 5, 5, 4), ("relu", "softplus"), seed)
    steep = [Affine(3.0 * one.kernel, one.bias) for one in network.affines]
    method = choose_method("two_stage", Network(steep, network.activations))
    _, found = verdicts(method, points_between(network, 12, seed), tmp_path)
    assert len(found) > 8 and statuses(found) == {PROVED}


BOX = {"threat": "l2 in a box", "box": {"low": [-1.5], "high": [1.0]}}


@pytest.mark.parametrize(
    "name, names, boxed",
    [
        ("crown", ("tanh", "gelu"), False),
        ("crown", ("silu", "softplus"), True),
        ("crown", ("leaky_relu(0.1)", "elu"), False),
        ("crown", ("selu", "sin"), False),
        ("crown", ("hard_silu", "clip(-0.5,inf)"), False),
        ("coupled", ("relu", "sigmoid"), False),
        ("coupled", ("relu", "relu6"), True),
        ("two_stage", ("relu", "softplus"), False),
    ],
)
def test_lines_of_smooth_units_boxes_and_two_stages(name, names, boxed, tmp_path):
    network = random_network((6, 9, 8, 4), names, 3, kernel_error=1e-13, bias_error=1e-13)
    x = np.clip(points_between(network, 12), -1.5, 1.0)
    limits = np.full(6, -1.5), np.full(6, 1.0)
    inside = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    method = choose_method(name, inside if boxed else network)
    result, found = verdicts(method, x, tmp_path, network, **(BOX if boxed else {}))
    assert (result.radius > 0.0).sum() == len(found) > 8
    assert statuses(found) == {PROVED}, found
    beside = LipschitzCertificate(network).certify(x).radius
    if boxed:
        beside = choose_method(name, network).certify(x).radius
    assert (result.radius > 1.01 * beside).sum() >= (4 if boxed else 8)


def test_slopes_of_an_ascent_are_needed(tmp_path):
    """Bounds that ascent improved are not proved without the slopes and multipliers it found."""
    network = random_network((6, 20, 20, 20, 4), ("relu", "relu", "relu"))
    verdicts(choose_method("coupled", network), points_between(network, 12), tmp_path)
    opened, file = ProofFolder.open(tmp_path / "proofs"), read_network(tmp_path / "network.npz")
    claims = next(opened.claims(file))
    bare = [dataclasses.replace(claim, witnesses={}) for claim in claims]
    found = [*Checker(file, opened.header).check(bare)]
    assert NOT_PROVED in statuses(found)


def test_what_other_methods_prove_is_out_of_scope_at_most(tmp_path):
    network = random_network((6, 9, 4), ("relu",))
    method = choose_method("coap", network)
    _, found = verdicts(method, points_between(network, 12), tmp_path)
    assert statuses(found) <= {PROVED, OUT_OF_SCOPE} and OUT_OF_SCOPE in statuses(found)
    assert all(one.detail.endswith("'coap'") for one in found if one.status == OUT_OF_SCOPE)


def test_points_of_crc_reach_the_checker_through_auto(tmp_path):
    network = random_network((6, 9, 8, 4), ("softplus", "tanh"))
    method = BestOf([CurvatureCertificate(network), LipschitzCertificate(network)])
    result, found = verdicts(method, points_between(network, 24), tmp_path)
    assert "crc" in result.method and statuses(found) == {PROVED}


@pytest.mark.parametrize("seed", range(3))
def test_a_curvature_that_is_too_small_is_seen(seed, tmp_path):
    network = random_network((6, 9, 4), ("softplus",), seed)
    bounds = curvature_bounds(network)
    faulty = bounds._replace(lower=0.98 * bounds.lower)
    certificate = CurvatureCertificate(network, curvature=faulty)
    result, found = verdicts(certificate, points_between(network, 12, seed), tmp_path)
    searched = result.gradient_evaluations > network.classes - 1
    assert searched.any() and any(one.status != PROVED for one in found)


def test_a_lipschitz_constant_that_is_too_small_is_seen(tmp_path):
    network = random_network((6, 9, 4), ("relu",))
    certificate = LipschitzCertificate(network)
    certificate.lipschitz = certificate.lipschitz * (1.0 - 1e-6)
    _, found = verdicts(certificate, points_between(network, 12), tmp_path)
    assert len(found) > 5 and PROVED not in statuses(found)


def test_a_folding_error_that_is_not_charged_is_seen(tmp_path):
    """The certificate is of the stored kernels, the numbers say that they are off by 1e-3."""
    exact = random_network((6, 9, 4), ("softplus",))
    off = random_network((6, 9, 4), ("softplus",), kernel_error=1e-3)
    certificate = CurvatureCertificate(exact)
    certificate.network = off
    _, found = verdicts(certificate, points_between(off, 12), tmp_path)
    assert len(found) > 5 and PROVED not in statuses(found)
