"""Certificates in real arithmetic, of weights from 1e-300 to 1e300: none is wrong.

The oracle is exact: rationals for affine maps, 60 digits for softplus. A point inside a radius at
which the prediction has changed, shows that it is wrong.
"""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from single_gradient import radius_at

from keras_curv import dual
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.certificate import Status
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.linear.bounds import plan
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.method import Method
from keras_curv.certificates.other_norms import GradientCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.network.unitwise import IDENTITY
from keras_curv.threats.norms import NORMS

mpmath.mp.dps = 60
LARGEST = np.finfo(np.float64).max
INSIDE = 1 - mpmath.mpf(10) ** -25


def power(rng, low=-300.0, high=300.0):
    return 10.0 ** rng.uniform(low, high)


def proved(network, x, points=(), method="crc"):
    """The largest radius of a two-class network at x, without a search, and the prediction.

    Args:
        points: where gradients are taken, besides x; each is a proof by itself.
    """
    x = np.float64(x)[None]
    logits = network.logits(tf.constant(x)).numpy()
    label = logits.argmax(axis=1)
    if not np.isfinite(logits).all() or logits[0, 0] == logits[0, 1]:
        return 0.0, int(label[0])
    with np.errstate(all="ignore"):
        if method != "crc":
            certificate = choose_method(method, network)
            found = certificate.prove(Question.of(x, label, 1 - label[:, None]))
            return float(found.radius[0, 0]), int(label[0])
        points = np.concatenate([x, np.reshape(points, (-1, x.shape[1]))])
        origin, label = np.repeat(x, len(points), axis=0), np.repeat(label, len(points))
        arguments = tf.constant(origin), tf.constant(points), label, 1 - label
        radii = radius_at(CurvatureCertificate(network), *arguments)
    return float(radii.max()), int(label[0])


def exact_margins(network, point, label):
    """Those of one point, of mpmath's numbers; relu or softplus between two maps, or one map."""
    value = list(point)
    for index, affine in enumerate(network.affines):
        columns = affine.kernel.T.tolist()
        value = [
            sum(mpmath.mpf(w) * v for w, v in zip(column, value, strict=True)) + mpmath.mpf(b)
            for column, b in zip(columns, affine.bias.tolist(), strict=True)
        ]
        if index < len(network.activations):
            name = network.activations[index].name
            value = [softplus(v) if name == "softplus" else max(v, mpmath.mpf(0)) for v in value]
    return [value[label] - other for t, other in enumerate(value) if t != label]


def softplus(z):
    return z + mpmath.log1p(mpmath.exp(-z)) if z > 0 else mpmath.log1p(mpmath.exp(z))


def assert_sound(network, x, directions, points=(), method="crc"):
    """Along each direction, just inside of the radius, and on the way there."""
    radius, label = proved(network, x, points, method)
    if radius == 0.0:
        return False
    assert radius < np.inf
    for direction in directions:
        exact = [mpmath.mpf(float(v)) for v in direction]
        length = mpmath.sqrt(sum(v * v for v in exact))
        for part in (INSIDE, mpmath.mpf(1) / 2):
            step = part * mpmath.mpf(radius) / length
            point = [mpmath.mpf(float(a)) + step * v for a, v in zip(x, exact, strict=True)]
            margins = exact_margins(network, point, label)
            assert min(margins) > 0, (method, radius, [a.kernel for a in network.affines])
    return True


@pytest.mark.parametrize("method", ["crc", "lipschitz"])
def test_affine_maps(rng, method):
    """The boundary is a plane: along its normal, in rationals."""
    certifiable = 0
    for _ in range(40):
        kernel = rng.standard_normal((3, 2)) * power(rng) * 10.0 ** rng.uniform(-5, 5, (3, 2))
        bias = rng.standard_normal(2) * power(rng)
        x = rng.standard_normal(3) * power(rng, -200.0, 200.0)
        network = Network.from_weights([kernel], [bias], ())
        points = x + rng.standard_normal((5, 3)) * 10.0 ** rng.uniform(-300, 300, (5, 1))
        radius, label = proved(network, x, points, method)
        if radius == 0.0:
            continue
        w = [Fraction(a) - Fraction(b) for a, b in kernel[:, [label, 1 - label]].tolist()]
        margin = sum(a * Fraction(float(v)) for a, v in zip(w, x, strict=True))
        margin += Fraction(float(bias[label])) - Fraction(float(bias[1 - label]))
        assert margin > 0 and Fraction(radius) ** 2 * sum(a * a for a in w) <= margin**2
        certifiable += 1
    assert certifiable > 15


def one_unit(s, w, bias):
    """`f = bias − w softplus(s x)`."""
    return Network.from_weights([[[s]], [[-w, 0.0]]], [[0.0], [bias, 0.0]], "softplus")


def test_two_layers_in_one_dimension(rng):
    certifiable = 0
    for _ in range(40):
        s, w = power(rng, -160.0, 160.0), power(rng, -140.0, 140.0)
        network = one_unit(s, w, w * np.log1p(np.exp(rng.uniform(-2.0, 3.0))))
        x = [rng.uniform(-1.0, 1.0) / s]
        points = x[0] + np.linspace(-3.0, 3.0, 25) / s
        certifiable += assert_sound(network, x, [[1.0], [-1.0]], points)
    assert certifiable > 15


@pytest.mark.parametrize(
    "certificate, s, w",
    [
        *(("l2", *pair) for pair in ((1.5e-162, 1e150), (1e-159, 1e140), (0.5, 2.0))),
        *(("l1", *pair) for pair in ((1.5e-162, 1e150), (1e-155, 1e150))),
        ("sparse", 1.5e-162, 1e150),
    ],
)
def test_a_square_that_underflows_before_it_is_multiplied(certificate, s, w):
    """κ is `w s²/4`, and s² no number of float64."""
    bias = w * (1.0 + np.log(2.0))
    network = one_unit(s, w, bias)
    if certificate == "sparse":
        maps = [Affine(np.eye(1), [0.0]), Affine([[-w, 0.0]], [bias, 0.0])]
        first = SparseAffine(scipy.sparse.csr_array([[s]]), np.zeros(1))
        network = Network([first, *maps], [network.activations[0], IDENTITY])
    prover = CurvatureCertificate(network)
    if certificate == "l1":
        prover = GradientCertificate(prover, NORMS["l1"])
    question = np.zeros((1, 1)), np.array([0]), np.array([[1]])
    radius = prover.prove(Question.of(*question)).radius.item()
    boundary = np.log(np.expm1(1.0 + np.log(2.0))) / s
    assert 0.5 * boundary < radius < boundary


def test_a_slope_that_cancels_is_charged_whatever_its_scale():
    """`f = 1 + w s (c_1 − c_2)·x`, columns that are 2⁻²⁷ apart; s² underflows."""
    size, apart, s, w = 2.0**98, 2.0**-27, 1e-162, 1e140
    kernels = [size * np.array([[1, 1 + apart], [1, 1 - apart]]), [[s], [-s]], [[w, 0.0]]]
    biases = [np.zeros(2), np.zeros(1), np.array([1.0, 0.0])]
    network = Network.from_weights(kernels, biases, "leaky_relu(1.0)")
    question = np.zeros((1, 2)), np.array([0]), np.array([[1]]), np.zeros((1, 1))
    boundary = 1.0 / (w * s * size * apart * np.sqrt(2.0))
    assert (
        0.9 * boundary
        < LinearBoundCertificate(network).prove(Question.of(*question)).radius
        < boundary
    )


def test_a_point_across_a_near_boundary_has_a_distance():
    """Between it and the radius is where the boundary lies."""
    network = Network.from_weights([[[1e100, 0.0]]], [[-1e-60, 0.0]], [])
    found = CurvatureCertificate(network).certify(np.zeros((1, 1)))
    assert 0.0 < found.radius <= 1e-160 <= found.adversarial_distance < 1.01e-160


_LEAST = 5e-324
# Kernels, the first constant of the last map, and activations.
TINY_WEIGHTS = {
    "a difference of normal numbers": ([[[1e150]], [[3.0e-308, 3.2e-308]]], 1e-150, "relu"),
    "a difference from zero": ([[[1e150]], [[-2e-308, 0.0]]], 1e-150, "softplus"),
    "one map": ([[[-2e-308, 0.0]]], 1e-250, ()),
    "a column": ([[[_LEAST], [_LEAST]], [[-1e300, 0.0]]], 1e70, "relu"),
    "a column behind": (
        [np.eye(2) * 1e40, [[_LEAST], [_LEAST]], [[-1e200, 0.0]]],
        *(1e-60, ["relu", "relu"]),
    ),
}


@pytest.mark.parametrize("method", ["interval", "crown", "auto"])
@pytest.mark.parametrize("case", TINY_WEIGHTS)
def test_weights_below_normal_numbers(case, method, monkeypatch):
    """TensorFlow takes them for 0, and rounding is no small part of them."""
    monkeypatch.setattr(plan, "WORK", 0.0)  # the plan of large networks
    kernels, constant, names = TINY_WEIGHTS[case]
    biases = [np.zeros(np.shape(kernel)[1]) for kernel in kernels]
    biases[-1][0] = constant
    network = Network.from_weights(kernels, biases, names)
    assert assert_sound(network, np.zeros(network.dim), np.ones((1, network.dim)), method=method)


@pytest.mark.parametrize("method", ["interval", "crown", "auto"])
def test_a_radius_to_ask_for_that_underflows(method):
    weights = [[[1.0]], [[-1e130, 0.0]]], [[-1.0], [1e-100, 0.0]]
    network = Network.from_weights(*weights, "relu")
    assert assert_sound(network, [0.0], [[1.0]], method=method)


@pytest.mark.parametrize("exponent", [-300, -200, -165, -155, -100, 0, 100, 165, 300])
def test_a_clip_of_any_scale(exponent):
    """`b − softplus(max(s x, 0))`, of which κ/b² may be no number of float64."""
    bias, s = 1.0 + np.log(2.0), 10.0**exponent
    weights = [[[s]], [[1.0]], [[-1.0, 0.0]]], [[0.0], [0.0], [bias, 0.0]]
    network = Network.from_weights(*weights, ["relu", "softplus"])
    certificate = CurvatureCertificate(network)
    question = np.zeros((1, 1)), np.array([0]), np.array([[1]])
    radius = certificate.prove(Question.of(*question)).radius.item()
    assert radius < np.log(np.expm1(bias)) / s


@pytest.mark.parametrize("s", [1e153, 3e153, 5e153, 1e154])
def test_a_square_that_underflows(s):
    """Where κ‖d‖² is of the order of the margin, and every d² is below 2.2e-308."""
    for margin in (0.8, 1.0, 1.2, 2.0, 5.0):
        boundary = np.log(np.expm1(margin)) / s
        points = boundary * np.linspace(0.1, 3.0, 40)
        assert assert_sound(one_unit(s, 1.0, margin), [0.0], [[1.0], [-1.0]], points)


def test_a_minorant_of_tiny_displacements():
    """By hand: κ d² = 4 · 1e300 · 1e-320, and no less."""
    d = np.array([[3e-160, 4e-160]])
    parts = [[1.0], np.zeros((1, 2)), d, [4e300]]
    bound = dual.minorant(*(tf.constant(part, tf.float64) for part in parts))
    assert float(bound.intercept[0]) == 1.0
    parts[3] = [4e307]
    parts[2] = 1e6 * d
    bound = dual.minorant(*(tf.constant(part, tf.float64) for part in parts))
    np.testing.assert_allclose(bound.intercept, 1.0 - 2e307 * 2.5e-307, rtol=1e-12)
    np.testing.assert_allclose(dual.norm(tf.constant(d)), 5e-160, rtol=1e-12)
    np.testing.assert_allclose(dual.norm(tf.constant(1e300 * d)), 5e140, rtol=1e-12)
    np.testing.assert_allclose(dual.norm(tf.constant([[3e200, 4e200]], tf.float64)), 5e200)


@pytest.mark.parametrize("margin", [5e307, 1e308, 1.7e308])
@pytest.mark.parametrize("slope", [1.0, 1e-100, 1e-250, 1e100])
def test_twice_a_margin_may_overflow(margin, slope):
    network = Network.from_weights([slope * np.eye(2)], [np.array([margin, 0.0])], ())
    for method in ("crc", "lipschitz"):
        radius, _ = proved(network, np.zeros(2), method=method)
        assert radius < np.inf
        assert Fraction(radius) <= Fraction(margin) / Fraction(slope)  # < f/(√2 s) · √2


def test_only_a_margin_that_cannot_change_has_an_infinite_radius():
    def radius(*parts):
        return float(
            dual.certified_radius(dual.Minorant(*(tf.constant([p], tf.float64) for p in parts)))[0]
        )

    assert radius(1e308, 0.0, 0.0) == np.inf
    assert radius(1e308, 1e-150, 0.0) == LARGEST
    assert radius(1e308, 0.0, 1e-305) == pytest.approx(np.sqrt(20.0) * 1e306)
    assert radius(1e308, 1.0, 0.0) == pytest.approx(1e308)
    assert radius(1e308, 0.0, 1e307) == pytest.approx(np.sqrt(20.0))
    assert radius(1e308, 0.0, 1e308) == 0.0  # 2κ overflows, and proves nothing
    assert radius(np.nan, 1.0, 1.0) == radius(1.0, np.nan, 1.0) == radius(1.0, 1.0, np.nan) == 0.0
    assert radius(np.inf, 1.0, 1.0) == radius(1.0, np.inf, 1.0) == radius(1.0, 1.0, np.inf) == 0.0


def test_random_softplus_networks(rng):
    """Several inputs and units; along the gradient there, and at random."""
    certifiable = 0
    for _ in range(30):
        s, w = power(rng, -150.0, 150.0), power(rng, -150.0, 150.0)
        kernels = [s * rng.standard_normal((2, 3)), w * rng.standard_normal((3, 2))]
        biases = [rng.standard_normal(3), w * rng.standard_normal(2)]
        network = Network.from_weights(kernels, biases, "softplus")
        x = rng.standard_normal(2) / s
        label = int(network.logits(tf.constant([x])).numpy()[0].argmax())
        gradient = network.evaluate(tf.constant([x]), [label], [[1 - label]]).gradient.numpy()[0, 0]
        if not np.all(np.isfinite(gradient)) or not np.any(gradient):
            continue
        unit = gradient / np.abs(gradient).max()
        points = x - np.linspace(0.0, 2.0, 20)[:, None] * unit / s
        certifiable += assert_sound(network, x, [-unit, *rng.standard_normal((3, 2))], points)
    assert certifiable > 10


def test_random_relu_networks(rng):
    certifiable = 0
    for _ in range(6):
        s, w = power(rng, -150.0, 150.0), power(rng, -150.0, 150.0)
        kernels = [s * rng.standard_normal((2, 3)), w * rng.standard_normal((3, 2))]
        network = Network.from_weights(
            kernels, [rng.standard_normal(3), w * rng.standard_normal(2)], "relu"
        )
        x = rng.standard_normal(2) / s
        angles = np.linspace(0.0, 2.0 * np.pi, 16)
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        certifiable += assert_sound(network, x, circle, method="quadratic")
    assert certifiable > 1


class _Stub(Method):
    name = "stub"

    def __init__(self, radii):
        self.network = Network.from_weights([np.eye(4)], [np.zeros(4)], ())
        self._radii = np.array([radii])

    def prove(self, question):
        proof = question.answer(self.name, self._radii, np.zeros(1, np.int64))
        return proof._replace(radius=self._radii)


@pytest.mark.parametrize("place", range(3))
def test_a_radius_that_is_not_a_number_proves_nothing(place):
    radii = [3.0, 2.0, 1.0]
    assert _Stub(radii).certify([[9.0, 1.0, 2.0, 3.0]]).radius[0] == 1.0
    radii[place] = np.nan
    result = _Stub(radii).certify([[9.0, 1.0, 2.0, 3.0]])
    assert result.radius[0] == 0.0 and result.status[0] == Status.UNPROVED
    assert result.nearest_rival[0] == place + 1


def test_what_underflows_of_a_gradient_is_charged():
    """Of `x̂ − x0` below 2.2e-308, a slope of 1e300 makes 1e-8."""
    network = Network.from_weights([[[1e300, 0.0]]], [[0.0, 0.0]], ())
    certificate = CurvatureCertificate(network)
    x0, point = tf.constant([[1e-300]], tf.float64), tf.constant([[1e-300 + 2e-308]], tf.float64)
    radius = float(radius_at(certificate, x0, point, [0], [1])[0])
    assert Fraction(radius) <= Fraction(1e-300)


@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        *(("tanh", exponent) for exponent in (15, 37, 100, 200)),
        *(("sin", 19), ("softplus", 37), ("softplus", 155)),
    ],
)
def test_what_only_guides_a_search_may_overflow(rng, name, exponent):
    """Sketches are in float32: a run does not end because they say nothing."""
    for sizes in ((4, 3, 2, 3), (4, 3, 3))[: 2 if name == "tanh" else 1]:  # each is traced
        kernels = [rng.standard_normal(shape) for shape in zip(sizes, sizes[1:], strict=False)]
        kernels[0] *= 10.0**exponent
        biases = [rng.standard_normal(size) for size in sizes[1:]]
        names = [name, "softplus"][: len(sizes) - 2]
        with np.errstate(all="ignore"):
            method = choose_method("auto", Network.from_weights(kernels, biases, names))
            found = method.certify(1e-3 * rng.standard_normal((6, 4)))
        assert set(found.status) <= {Status.CERTIFIED, Status.UNPROVED, Status.NOT_FINITE}
        assert name != "tanh" or exponent > 150 or set(found.status) == {Status.CERTIFIED}


@pytest.mark.parametrize(
    ("name", "offset", "steep", "step"), [("relu", 200.0, 1e2, 0.01), ("softplus", 30.0, 1e8, 1e-7)]
)
def test_a_square_that_overflows_below_is_not_taken_for_nothing(name, offset, steep, step):
    """Negative parts of `vᵀWᵀWv` come to −∞, to which positive ones are added in vain."""
    row = 1e153 * np.repeat([-1.0, 1.3], 8)
    total = row.sum()
    kernels = [np.full((100, 16), 0.5), row[:, None], [[-steep / total, 0.0]]]
    biases = [
        np.full(16, offset),
        np.array([-total * (offset + 1.0 / steep)]),
        np.array([1.0, 0.0]),
    ]
    network = Network.from_weights(kernels, biases, name)
    x, direction = np.zeros((1, 100)), np.full((1, 100), 0.1)
    logits = network.logits(tf.constant(np.concatenate([x, x + step * direction]))).numpy()
    assert logits[0, 0] > logits[0, 1] and logits[1, 0] < logits[1, 1] - 0.5
    for method in ("crown", "auto"):
        assert choose_method(method, network).certify(x).radius[0] < step
