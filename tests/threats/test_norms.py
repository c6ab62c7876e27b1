"""Balls of l1 and l∞: no point of them changes the prediction; more is proved than by l2."""

import csv
import itertools

import numpy as np
import pytest
from attacked import BALLS, METHODS_AND_SIGMAS, float32_network, model_of, scores, sizes
from scripts import call

from keras_curv import InputError, Threat, certify
from keras_curv.certificates.auto import BestOf
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import ServedError
from keras_curv.certificates.other_norms import GradientCertificate, NormCertificate
from keras_curv.certificates.question import Question
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.in_norm import curvature_in
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.network import Network
from keras_curv.threats.norms import NORMS

L1 = Threat(norm="l1")
SHARE = {"l1": lambda dim: 1.0, "linf": lambda dim: dim**-0.5}  # of an l2 radius, proved at least


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize(
    ("method", "activation", "dim"),
    [(*case, dim) for case, dim in zip(METHODS_AND_SIGMAS, itertools.cycle([5, 2]), strict=False)],
)
def test_no_class_changes_within(norm, method, activation, dim, rng, random_network):
    network = float32_network(rng, random_network, sizes(dim, activation), activation)
    model, x = model_of(network), rng.standard_normal((8, dim)).astype(np.float32)
    found = certify(model, x, threat={"norm": norm}, method=method)
    least = certify(model, x, method=method).radius * SHARE[norm](dim)
    least *= 1.0 - 1e-12 if norm == "l1" else 0.98
    assert (found.radius >= least).all() and (found.radius > 0.0).all()
    for row, prediction, radius in zip(x, found.prediction, found.radius, strict=True):
        points = row + radius * (1.0 - 1e-6) * BALLS[norm](dim, rng)
        logits = network.logits(points).numpy()
        assert np.all(logits.argmax(axis=1) == prediction)


@pytest.mark.parametrize(
    ("method", "sizes"),
    [("crc", (6, 9, 3)), ("crc", (6, 8, 7, 3)), ("crown", (6, 8, 7, 3)), ("auto", (6, 9, 3))],
)
def test_more_is_proved_than_by_l2(method, sizes, rng, random_network):
    """And no more than there is: never beyond the nearest vertex that changes the prediction."""
    model = model_of(float32_network(rng, random_network, sizes, "softplus", 0.3))
    x = rng.standard_normal((20, 6)).astype(np.float32)
    found, plain = certify(model, x, threat=L1, method=method), certify(model, x, method=method)
    gain = 1.001 if len(sizes) == 4 else 1.1  # with more layers κ₁ is coarse
    assert found.radius.mean() > gain * plain.radius.mean()
    length = np.geomspace(0.05, 50.0, 150)[:, None, None]
    vertices = np.concatenate([np.eye(6), -np.eye(6)]).astype(np.float32)
    for row, prediction, radius in zip(x, found.prediction, found.radius, strict=True):
        points = row + length * vertices
        changed = model(points.reshape(-1, 6)).numpy().argmax(axis=1) != prediction
        there = length[changed.reshape(len(length), -1).any(axis=1)]
        assert radius <= (there.min() if len(there) else np.inf)


DUAL = {"l1": lambda w: np.abs(w).max(), "linf": lambda w: np.abs(w).sum()}


@pytest.mark.parametrize("norm", BALLS)
def test_a_linear_classifier_has_its_exact_radius(norm, rng):
    kernel = rng.standard_normal((5, 3)).astype(np.float32)
    model = model_of(Network.from_weights([kernel], [np.zeros(3, np.float32)], []))
    x = rng.standard_normal((10, 5)).astype(np.float32)
    logits = x.astype(float) @ kernel
    label = logits.argmax(axis=1)
    expected = [
        min(
            (logits[i, y] - logits[i, t]) / DUAL[norm](kernel[:, y] - kernel[:, t])
            for t in range(3)
            if t != y
        )
        for i, y in enumerate(label)
    ]
    for method in ("crc", "crown"):
        found = certify(model, x, threat={"norm": norm}, method=method)
        np.testing.assert_allclose(found.radius, expected, rtol=2e-3)
        met = found.adversarial_distance
        assert np.all(np.isinf(met) if norm == "l1" else met <= np.array(expected) * 1.001)


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("method", ["crc", "crown", "interval"])
def test_one_feature_has_one_norm(norm, method, rng, random_network):
    model = model_of(float32_network(rng, random_network, (3, 9, 3), "tanh"))
    x = rng.standard_normal((10, 3)).astype(np.float32)
    found, plain = (
        certify(model, x, threat=Threat(frozen=[0, 2], **norm), method=method)
        for norm in ({"norm": norm}, {})
    )
    np.testing.assert_allclose(found.radius, plain.radius, rtol=3e-3)


LENGTH = {"l1": lambda e: np.abs(e).sum(axis=1), "linf": lambda e: np.abs(e).max(axis=1)}


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("sizes", [(5, 9, 3), (5, 8, 7, 3), (5, 6, 6, 6, 3), (70, 9, 3)])
@pytest.mark.parametrize("activation", ["tanh", "softplus"])
def test_curvature_in_a_norm(norm, sizes, activation, rng, random_network):
    """`e·∇²f e ≥ −κ ‖e‖²` at sampled points and directions; κ is at most what follows from l2."""
    network = random_network(rng, sizes, activation, scale=2.0)
    bounds = curvature_bounds(network)
    kappa, dim = curvature_in(NORMS[norm], network, bounds), sizes[0]
    assert np.all(kappa * SHARE[norm](dim) ** 2 <= np.maximum(-bounds.lower, 0.0) * (1.0 + 1e-12))
    directions = BALLS[norm](5, rng, 300)
    if dim > 5:
        directions = np.sign(rng.standard_normal((300, dim))) if norm == "linf" else np.eye(dim)
    x = rng.standard_normal((40, dim))
    least = 0.0
    for y in range(3):
        for t in range(3):
            if y == t:
                continue
            pair = np.full(40, y), np.full(40, t)
            hessian = network.hessian(x, *pair).numpy()
            bent = np.einsum("ei,nij,ej->ne", directions, hessian, directions)
            size = LENGTH[norm](directions) ** 2
            assert np.all(bent >= -kappa[y, t] * size - 1e-9)
            least = min(least, (bent / np.maximum(size, 1e-12)).min() / kappa[y, t])
    if sizes == (5, 9, 3) and norm == "l1":
        assert least < -0.2 and kappa[0, 1] < 0.8 * -bounds.lower[0, 1]


@pytest.mark.parametrize("layers", [2, 3])
def test_curvature_through_equal_units(layers):
    """Of one input, units that are all alike: every factor of κ₁ counts, and it is nearly attained.

    f is ±σ(c σ(b σ(x))) with c, b the numbers of units, biased to where the last one bends.
    """
    widths = [16, 9, 1][-layers:]
    slope = 0.25  # of σ, the sigmoid, at 0
    kernels, biases, below = [np.ones((1, widths[0]))], [np.zeros(widths[0])], widths[0]
    for width in widths[1:]:
        kernels.append(np.ones((below, width)))
        biases.append(np.full(width, -0.5 * below + (1.317 if width == 1 else 0.0)))
        below = width
    kernels.append(np.array([[1.0, 0.0]]))
    biases.append(np.zeros(2))
    network = Network.from_weights(kernels, biases, "sigmoid")
    bounds = curvature_bounds(network)
    generous = bounds._replace(lower=100.0 * bounds.lower)  # κ₁ alone
    kappa = curvature_in(NORMS["l1"], network, generous)
    x = np.linspace(-0.5, 0.5, 4001)[:, None]
    for y, t in ((0, 1), (1, 0)):
        pair = np.full(len(x), y), np.full(len(x), t)
        bent = network.hessian(x, *pair).numpy().reshape(-1).min()
        assert -kappa[y, t] <= bent
    steepest = slope ** (layers - 1) * np.prod(widths[:-1])
    assert kappa[0, 1] >= 0.0962 * steepest**2 * 0.99  # sup σ″ times the square of the slope before


class ErrorBeyond(ServedError):
    """Serving is exact up to a radius, and anything beyond; below, it takes a little off."""

    def __init__(self, radius, little=0.0):
        self.radius, self.little = radius, little

    def __call__(self, x, label, rivals, radius):
        return np.where(radius <= self.radius, self.little, np.inf)


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("kind", [CurvatureCertificate, LinearBoundCertificate])
def test_what_serving_takes_off_is_charged(norm, kind, rng):
    kernel = rng.standard_normal((5, 2))
    network = Network.from_weights([kernel], [np.zeros(2)], ())
    x = rng.standard_normal((8, 5))
    w = kernel[:, 0] - kernel[:, 1]
    exact = np.abs(x @ w) / DUAL[norm](w)
    little = 0.1 * np.abs(x @ w).min()
    charged = ErrorBeyond(np.inf, little)
    found = NormCertificate(kind(network, charged), NORMS[norm], charged).certify(x).radius
    np.testing.assert_allclose(found, exact - little / DUAL[norm](w), rtol=3e-3)
    l2 = (np.abs(x @ w) / np.linalg.norm(w)).min()
    charged = ErrorBeyond(1.05 * l2)
    found = NormCertificate(kind(network, charged), NORMS[norm], charged).certify(x).radius
    assert found.max() <= 1.05 * l2 * SHARE[norm](5) * (1.0 + 1e-12)


def test_a_box_is_all_within_only_where_its_farthest_corner_is():
    """The distance of that corner is l1: between, a radius says nothing of the whole box."""
    kernel = np.array([[1.0, 0.0]] * 4, np.float32)  # at 0 the margin falls to 0 at −(1, 1, 1, 1)
    for bias, whole in ((3.0, False), (5.0, True)):
        model = model_of(Network.from_weights([kernel], [np.float32([bias, 0.0])], []))
        threat = Threat(norm="l1", low=-1.0, high=1.0)
        found = certify(model, np.zeros((1, 4), np.float32), threat=threat, method="crown")
        assert np.isinf(found.radius[0]) == whole
        assert whole or found.radius[0] == pytest.approx(3.0, rel=3e-3)


def test_a_box_is_all_within_where_its_widest_side_is():
    kernel = np.array([[1.0, 0.0]] * 4, np.float32)
    for bias, radius in ((3.0, 0.75), (5.0, np.inf)):
        model = model_of(Network.from_weights([kernel], [np.float32([bias, 0.0])], []))
        threat = Threat(norm="linf", low=-1.0, high=1.0)
        found = certify(model, np.zeros((1, 4), np.float32), threat=threat, method="crown")
        assert found.radius[0] == pytest.approx(radius, rel=3e-3)


@pytest.mark.parametrize("norm", BALLS)
def test_folded_weights_are_charged(norm, rng, random_network):
    """κ of any kernel within the folding error is below that of the folded one."""
    network = random_network(rng, (4, 7, 3), "tanh", scale=2.0)
    first, last = network.affines
    error = 0.05 * np.linalg.norm(first.kernel)
    folded = Network([type(first)(first.kernel, first.bias, error), last], network.activations)
    charged = curvature_in(NORMS[norm], folded, curvature_bounds(folded))
    for _ in range(20):
        other = rng.standard_normal(first.kernel.shape)
        other *= error / np.linalg.norm(other, 2)
        moved = Network([type(first)(first.kernel + other, first.bias), last], network.activations)
        assert np.all(curvature_in(NORMS[norm], moved, curvature_bounds(moved)) <= charged)


@pytest.mark.parametrize("norm", BALLS)
def test_folded_weights_are_charged_behind_the_first_layer(norm, rng, random_network):
    """Of one input, where the bound of later layers is attained by a kernel that is longer."""
    first, *rest = random_network(rng, (1, 7, 5, 3), "tanh", scale=2.0).affines
    sigmas = random_network(rng, (1, 7, 5, 3), "tanh").activations
    error = 0.05 * np.linalg.norm(first.kernel)
    kappas = []
    for kernel, off in ((first.kernel, error), (first.kernel * 1.05, 0.0)):
        network = Network([type(first)(kernel, first.bias, off), *rest], sigmas)
        bounds = curvature_bounds(network)
        kappas.append(
            curvature_in(NORMS[norm], network, bounds._replace(lower=-1e6 + bounds.lower))
        )
    assert np.all(kappas[1] <= kappas[0] * (1.0 + 1e-12)) and np.all(kappas[0] < 1e5)


@pytest.mark.parametrize("norm", BALLS)
def test_a_gradient_of_folded_weights_is_charged(norm):
    """At 0 the margin is not off, and its slope is."""
    kernels, biases = (
        [np.array([[0.1]]), np.array([[1.0, 0.0]])],
        [np.zeros(1), np.array([0.1, 0.0])],
    )
    first, last = Network.from_weights(kernels, biases, "tanh").affines
    folded = Network([type(first)(first.kernel, first.bias, 0.05), last], [ACTIVATIONS["tanh"]])
    certificate = GradientCertificate(CurvatureCertificate(folded), NORMS[norm])
    radius = certificate.certify(np.zeros((1, 1))).radius.item()
    assert 0.1 < radius <= np.arctanh(0.1) / 0.15


@pytest.mark.parametrize("norm", BALLS)
def test_weights_and_a_box_and_float32(norm, rng, random_network):
    network = float32_network(rng, random_network, (4, 9, 3), "tanh", 0.3)
    model, x = model_of(network), rng.uniform(-1.0, 1.0, (10, 4)).astype(np.float32)
    scale = np.array([0.5, 2.0, 1.0, 0.25])
    found = certify(model, x, threat=Threat(norm=norm, scale=scale), method="crc")
    first, *rest = ((a.kernel, a.bias) for a in network.affines)
    scaled = Network.from_weights(
        *zip((scale[:, None] * first[0], first[1]), *rest, strict=True), "tanh"
    )
    other = certify(model_of(scaled), x / scale, threat={"norm": norm}, method="crc")
    np.testing.assert_allclose(found.radius, other.radius, rtol=2e-3)
    for method in ("crc", "crown", "auto"):
        plain = certify(model, x, threat={"norm": norm}, method=method)
        boxed = certify(model, x, threat=Threat(norm=norm, low=-1.0, high=1.0), method=method)
        assert np.all(boxed.radius >= plain.radius * (1.0 - 2e-3))
        for row, prediction, radius in zip(x, boxed.prediction, boxed.radius, strict=True):
            points = row + min(radius, 8.0) * (1.0 - 1e-6) * BALLS[norm](4, rng, 4000)
            points = points[np.all(np.abs(points) <= 1.0, axis=1)]
            assert np.all(network.logits(points).numpy().argmax(axis=1) == prediction)
        served = certify(model, x, threat={"norm": norm}, method=method, guarantee="float32")
        assert np.all(served.radius <= plain.radius) and (served.radius > 0.9 * plain.radius).any()


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("method", ["crc", "crown"])
def test_a_subspace_has_a_norm_of_its_own(norm, method, rng, random_network):
    network = float32_network(rng, random_network, (4, 9, 3), "tanh", 0.3)
    basis = rng.standard_normal((4, 3))
    x = rng.standard_normal((6, 4)).astype(np.float32)
    found = certify(model_of(network), x, threat=Threat(norm=norm, basis=basis), method=method)
    for row, prediction, radius in zip(x, found.prediction, found.radius, strict=True):
        points = row + radius * (1.0 - 1e-6) * BALLS[norm](3, rng, 4000) @ basis.T
        assert np.all(network.logits(points).numpy().argmax(axis=1) == prediction)


def test_what_conversion_moves_is_charged_in_the_norm(rng, random_network):
    model = model_of(float32_network(rng, random_network, (9, 9, 3), "tanh"))
    x = rng.standard_normal((6, 9))
    served = certify(model, x.astype(np.float32), threat=L1, method="crc")
    found = certify(model, x, threat=L1, method="crc")
    away = np.abs(x - x.astype(np.float32)).sum(axis=1)
    assert np.all(served.radius - found.radius >= away - 1e-15)


@pytest.mark.parametrize("norm", BALLS)
def test_numbers_of_a_regression(norm, rng, random_network):
    network = scores(rng, random_network, 1)
    model, x = model_of(network), rng.standard_normal((8, 2)).astype(np.float32)
    network = type(network).from_weights(
        [affine.kernel.astype(np.float32) for affine in network.affines],
        [affine.bias.astype(np.float32) for affine in network.affines],
        "tanh",
    )
    found = certify(model, x, threat={"norm": norm}, property="interval:0.3", method="auto")
    for row, radius in zip(x, found.radius, strict=True):
        points = row + radius * (1.0 - 1e-6) * BALLS[norm](2, rng)
        there, here = (
            network.logits(points).numpy(),
            network.logits(row[None].astype(float)).numpy(),
        )
        assert np.all(np.abs(there - here)[:, 0] < 0.3)


@pytest.mark.parametrize("norm", BALLS)
def test_radii_of_every_pair_hold(norm, rng, random_network):
    network = random_network(rng, (3, 9, 4), "tanh", scale=2.0)
    x = rng.standard_normal((6, 3))
    label = network.logits(x).numpy().argmax(axis=1)
    rivals = np.array([[c for c in range(4) if c != y] for y in label])
    for inner in (CurvatureCertificate(network), LinearBoundCertificate(network)):
        pairs = NormCertificate(inner, NORMS[norm]).prove(Question.of(x, label, rivals))
        assert np.all(pairs.distance > pairs.radius) and pairs.weakest is None
        for i, row in enumerate(x):
            for rival, radius in zip(rivals[i], pairs.radius[i], strict=True):
                logits = network.logits(
                    row + radius * (1 - 1e-9) * BALLS[norm](3, rng, 5000)
                ).numpy()
                assert np.all(logits[:, label[i]] > logits[:, rival])


def test_words_and_bad_norms(script, capfd, tmp_path):
    assert "‖δ‖₁ < r" in L1.text and L1.units is None and str(L1) == "l1"
    assert not L1.plain and L1 != Threat() and Threat(**L1.config()) == L1
    assert "‖ξ‖₁" in Threat(norm="l1", basis=np.eye(2)).text
    with pytest.raises(InputError, match="norm must be one of l2, l1, linf. Received: 'l3'"):
        Threat(norm="l3")
    rows = tmp_path / "rows.csv"
    arguments = "--limit=10", "--method=crc", "--norm=l1", "--radius=0.5", f"--output={rows}"
    code, out, err = call(script, capfd, *arguments)
    assert code == 0, err
    assert "‖δ‖₁ < r" in out and "l1 radius" in out
    with open(rows, newline="") as file:
        assert {row["threat"] for row in csv.DictReader(file)} == {"l1"}
    code, _, err = call(script, capfd, "--limit=10", "--norm=l3")
    assert code == 2 and "norm must be one of" in err and err.count("\n") == 1


def test_decisions_are_those_of_radii_where_rivals_differ_in_norm():
    """A rival that no l2 ball excludes is proved in l1, others in l2 by a search of their own."""
    rng = np.random.default_rng(2)
    first = rng.normal(size=(24, 12))
    for unit in range(0, 12, 2):  # one steep entry, which l1 has an easy time with
        entry = rng.integers(24)
        sign = np.sign(first[entry, unit])
        first[:, unit] *= 0.02
        first[entry, unit] = 2.0 * sign
    first[:, 1::2] *= 1.2 / np.sqrt(24)
    last = rng.normal(size=(12, 6))
    last[::2, :3] *= 0.05
    last[1::2, 3:] *= 0.05
    biases = [rng.normal(size=12) * 0.3, rng.normal(size=6) * 0.3]
    network = Network.from_weights([first, last], biases, "tanh")
    x = rng.normal(size=(100, 24)) * 0.6

    def radii(decide):
        parts = CurvatureCertificate(network), LipschitzCertificate(network)
        return NormCertificate(BestOf(parts), NORMS["l1"]).certify(x, decide=decide).radius

    full = radii(())
    for share in (0.2, 0.35, 0.5, 0.65, 0.8, 0.9):
        asked = float(np.quantile(full[full > 0.0], share))
        assert np.all(radii((asked,))[full > 1.02 * asked] >= asked * (1.0 - 1e-5))
