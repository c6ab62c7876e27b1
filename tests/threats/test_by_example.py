"""Brightness and contrast: each example changes in directions of its own."""

import json

import numpy as np
import pytest
from attacked import float32_network, model_of, scores, sizes
from scripts import call

from keras_curv import InputError, Threat, certify
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.threats.by_example import directions, network_around
from keras_curv.threats.threat_file import load_threat

CONTRAST = {"basis": "contrast"}


def changed(x, names, xi):
    """The examples of the changes ξ, `(k, q)`, as one would write them."""
    found = np.repeat(x[None], len(xi), axis=0)
    for name, by in zip(names, xi.T, strict=True):
        found = found + by[:, None] * (1.0 if name == "brightness" else x - x.mean())
    return found


def grid(count, norm):
    xi = np.linspace(-1.0, 1.0, 2001)[:, None]
    if count == 2:
        angle = np.linspace(0.0, 2.0 * np.pi, 721)
        xi = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        xi = np.concatenate([share * xi for share in (1.0, 0.7, 0.3)])
        if norm == "linf":
            xi /= np.abs(xi).max(axis=1, keepdims=True)
    return xi


@pytest.mark.parametrize(
    ("names", "norm", "method", "sigma"),
    [
        (["contrast"], "l2", "crc", "tanh"),
        (["brightness"], "linf", "crown", "relu"),
        (["brightness", "contrast"], "l2", "crown", "relu"),
        (["brightness", "contrast"], "linf", "crc", "tanh"),
    ],
)
def test_no_class_changes_within(names, norm, method, sigma, rng, random_network):
    network = float32_network(rng, random_network, sizes(6, sigma), sigma, 0.5)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    found = certify(model_of(network), x, threat={"basis": names, "norm": norm}, method=method)
    assert np.all(found.radius > 0.0)
    xi = grid(len(names), norm)
    for row, prediction, radius in zip(np.float64(x), found.prediction, found.radius, strict=True):
        inside = changed(row, names, min(radius, 20.0) * (1.0 - 1e-6) * xi)
        assert np.all(network.logits(inside).numpy().argmax(axis=1) == prediction)


def test_it_is_what_a_basis_by_hand_gives(rng, random_network):
    """One call for each example."""
    model = model_of(float32_network(rng, random_network, (6, 9, 3), "tanh", 0.5))
    x = rng.standard_normal((3, 6)).astype(np.float32)
    found = certify(model, x, threat={"basis": "contrast"}, method="crc")
    for i, row in enumerate(np.float64(x)):
        by_hand = Threat(basis=directions(["contrast"], row)[0])
        alone = certify(model, x[i : i + 1], threat=by_hand, method="crc")
        assert found.radius[i] == pytest.approx(alone.radius[0], rel=1e-3)  # of two searches


@pytest.mark.parametrize("held", ["interval:0.3", "harmful:1"])
def test_properties_hold(held, rng, random_network):
    network = scores(rng, random_network, 1 if "interval" in held else 3)
    kernels = [np.float32(a.kernel) for a in network.affines]
    network = type(network).from_weights(
        kernels, [np.float32(a.bias) for a in network.affines], "tanh"
    )
    x = rng.standard_normal((4, 2)).astype(np.float32)
    label = None if "interval" in held else np.array([0, 2, 0, 2])
    found = certify(
        model_of(network), x, label, threat={"basis": "contrast"}, property=held, method="crc"
    )
    for i, (row, radius) in enumerate(zip(np.float64(x), found.radius, strict=True)):
        inside = changed(row, ["contrast"], min(radius, 20.0) * (1.0 - 1e-6) * grid(1, "l2"))
        there, here = network.logits(inside).numpy(), network.logits(row[None]).numpy()
        if label is None:
            assert radius > 0.0 and np.all(np.abs(there - here) < 0.3)
        elif radius > 0.0:
            assert np.all(there[:, label[i]] > there[:, 1])


def test_a_linear_margin_has_its_exact_radius(rng):
    kernel = rng.standard_normal((5, 2)).astype(np.float32)
    model = model_of(Network.from_weights([kernel], [np.zeros(2, np.float32)], []))
    x = rng.standard_normal((6, 5)).astype(np.float32)
    w = np.float64(kernel[:, 0] - kernel[:, 1])
    slope = np.abs((x - np.float64(x).mean(axis=1, keepdims=True)) @ w)
    found = certify(model, x, threat={"basis": "contrast"}, method="lipschitz")
    np.testing.assert_allclose(found.radius, np.abs(x @ w) / slope, rtol=1e-6)


def test_what_has_no_contrast_is_not_changed_by_it(rng, random_network):
    network = float32_network(rng, random_network, (4, 9, 3), "tanh")
    x = np.full((1, 4), 0.1, np.float32)
    for method in ("crc", "crown", "lipschitz"):
        found = certify(model_of(network), x, threat={"basis": "contrast"}, method=method)
        assert found.radius[0] > 1e90


def test_rounding_of_the_first_map_is_charged(rng):
    """Of numbers that cancel, beside exact ones, and the worst weights within a folding error."""
    x = 1e3 + rng.standard_normal(50)
    kernel, bias = rng.standard_normal((50, 4)), rng.standard_normal(4)
    for error in (0.0, 1e-3):
        around = network_around(
            Network([Affine(kernel, bias, error, error)], ()), ["contrast"], x
        ).affines[0]
        exact = [v.astype(np.longdouble) for v in (x, kernel, bias)]
        basis = exact[0] - exact[0].sum() / 50
        other = np.outer(x, np.ones(4)) / np.linalg.norm(x) / 2.0  # of spectral norm 1
        off = np.linalg.norm(np.float64(around.bias - exact[0] @ exact[1] - exact[2]))
        moved = off + error * np.linalg.norm(x @ other)
        assert moved <= around.bias_error <= max(1e-9, 1.1 * error * (np.linalg.norm(x) + 1.0))
        off = np.linalg.norm(np.float64(around.kernel[0] - basis @ exact[1]))
        moved = off + error * np.linalg.norm(np.float64(basis) @ other)
        assert moved <= around.kernel_error <= max(1e-9, 2.0 * error * np.linalg.norm(basis))


def test_names_are_read_and_others_refused(script, capfd, tmp_path):
    path = tmp_path / "threat.json"
    path.write_text(json.dumps({"basis": ["brightness", "contrast"], "norm": "linf"}))
    threat = load_threat(str(path))
    assert threat == Threat(**threat.config()) and threat.by_example and not threat.plain
    assert str(threat) == "linf; basis 'brightness','contrast'"
    assert "changes of brightness and contrast" in threat.text
    for wrong, words in (
        ({"basis": "hue"}, "a direction of basis must be one of brightness, contrast"),
        ({"basis": ["contrast", "contrast"]}, "a direction twice"),
        ({"basis": "contrast", "low": 0.0}, "a basis says by itself"),
        ({"basis": ["contrast", 1.0]}, "basis must be numbers"),
        ({"basis": []}, "basis must be"),
    ):
        with pytest.raises(InputError, match=words):
            Threat(**wrong)
    with pytest.raises(InputError, match="at most 1e\\+150"):
        directions(["contrast"], np.array([1e308, 1e308, 0.0]))
    rows = tmp_path / "rows.csv"
    run = "--limit=3", f"--threat={path}", "--method=lipschitz", f"--output={rows}"
    code, out, err = call(script, capfd, *run)
    assert code == 0 and "changes of brightness and contrast by ξ" in out, err
    for more, words in (
        ([f"--proofs={tmp_path}/proofs"], "proofs are written for"),
        (["--guarantee=float32"], "no guarantee float32"),
    ):
        rows.unlink(missing_ok=True)
        code, _, err = call(script, capfd, *run, *more)
        assert code == 2 and words in err and err.count("\n") == 1, err
