"""The rounding charge covers what float64 really did, and what folding may have done."""

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from single_gradient import radius_at

from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import ACTIVATION_ULPS, UNIT, gamma, margin_charge, up

mpmath.mp.dps = 50


def _logistic(z):
    return 1 / (1 + mpmath.exp(-z))


EXACT = {
    "softplus": (lambda z: mpmath.log1p(mpmath.exp(z)), _logistic),
    "sigmoid": (_logistic, lambda z: _logistic(z) * _logistic(-z)),
    "tanh": (mpmath.tanh, lambda z: mpmath.sech(z) ** 2),
}
_exactly = np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])


def _exact_margin_and_gradient(kernels, biases, names, x, label, rival):
    """Margin and gradient to 50 digits; kernels may hold mpf."""
    a, firsts = _exactly(x), []
    for kernel, bias, name in zip(kernels[:-1], biases[:-1], names, strict=True):
        z = a @ kernel + bias
        a = np.array([EXACT[name][0](v) for v in z], object)
        firsts.append(np.array([EXACT[name][1](v) for v in z], object))
    v = kernels[-1][:, label] - kernels[-1][:, rival]
    margin = a @ v + biases[-1][label] - biases[-1][rival]
    for kernel, first in zip(reversed(kernels[:-1]), reversed(firsts), strict=True):
        v = kernel @ (first * v)
    return margin, v


def _charge(network, x, label, rival):
    layers = [
        affine.norms(activation)
        for affine, activation in zip(network.affines, (*network.activations, None), strict=True)
    ]
    evaluation = network.evaluate(tf.constant(x[None]), [label], [[rival]])
    charge = margin_charge(layers, evaluation.activations, evaluation.cotangents)
    return (
        (evaluation.margin.numpy()[0, 0], evaluation.gradient.numpy()[0, 0]),
        (charge.margin.numpy()[0, 0], charge.gradient.numpy()[0, 0]),
    )


def _errors(network, computed, x, label, rival, kernels=None, biases=None):
    kernels = [_exactly(a.kernel) for a in network.affines] if kernels is None else kernels
    biases = [_exactly(a.bias) for a in network.affines] if biases is None else biases
    names = [activation.name for activation in network.activations]
    margin, gradient = _exact_margin_and_gradient(kernels, biases, names, x, label, rival)
    difference = _exactly(computed[1]) - gradient
    return (
        float(abs(mpmath.mpf(float(computed[0])) - margin)),
        float(mpmath.sqrt(sum(d * d for d in difference))),
    )


CASES = [
    ((5, 3), ()),
    ((4, 7, 3), ("softplus",)),
    ((4, 7, 3), ("sigmoid",)),
    ((4, 7, 5, 3), ("tanh", "softplus")),
    ((3, 6, 2, 5, 3), ("softplus", "sigmoid", "tanh")),
]


def _ill_conditioned(rng, sizes, names):
    """Weights of 1e8 beside 1e-8, columns that cancel, biases that cancel the rest."""
    kernels, biases = [], []
    for shape in zip(sizes[:-1], sizes[1:], strict=True):
        kernel = rng.standard_normal(shape) * 10.0 ** rng.choice([-8.0, 0.0, 8.0], shape)
        kernel[-1] = -kernel[0] * (1.0 + 1e-9 * rng.standard_normal(shape[1]))
        kernels.append(kernel)
        biases.append(rng.standard_normal(shape[1]) * 10.0 ** rng.choice([-8.0, 8.0], shape[1]))
    return Network.from_weights(kernels, biases, names)


@pytest.mark.parametrize(("sizes", "names"), CASES)
@pytest.mark.parametrize("kind", ["ordinary", "saturated", "ill-conditioned", "cancelling"])
def test_float64_is_within_the_charge(sizes, names, kind, rng, random_network):
    met = 0.0
    for _ in range(12):
        x = rng.standard_normal(sizes[0])
        scale = 20.0 if kind == "saturated" else 1.5
        if kind == "ill-conditioned":
            network = _ill_conditioned(rng, sizes, names)
            x[-1] = x[0]
        else:
            network = random_network(rng, sizes, names, scale)
        if kind == "cancelling":
            logits = network.logits(x[None]).numpy()[0]
            last = network.affines[-1]
            shifted = Affine(last.kernel, last.bias - logits)
            network = Network([*network.affines[:-1], shifted], network.activations)
        computed, charge = _charge(network, x, 1, 2)
        error = _errors(network, computed, x, 1, 2)
        assert error[0] <= charge[0] and error[1] <= charge[1]
        met = max(met, error[0])
    assert met > 0.0


def test_the_charge_of_a_linear_margin_is_of_the_right_size(rng):
    """Not too small for real errors, and within a factor of 100 of the largest that is met."""
    worst = 0.0
    for _ in range(100):
        kernel = rng.standard_normal((2, 2))
        x = rng.standard_normal(2)
        network = Network.from_weights([kernel], [-(x @ kernel)], ())
        computed, charge = _charge(network, x, 0, 1)
        error = _errors(network, computed, x, 0, 1)
        assert error[0] <= charge[0] and error[1] <= charge[1]
        worst = max(worst, error[0] / charge[0])
    assert 0.01 <= worst <= 1.0


def _as_bad_as_assumed(name, sign):
    """An activation whose σ and σ′ are as wrong as the charge says they may be."""
    entry, off = activations.get(name), sign * (ACTIVATION_ULPS - 4.0) * UNIT
    return dataclasses.replace(
        entry,
        value=lambda z: entry.value(z) * (1.0 + off),
        first=lambda z: entry.first(z) + off * entry.slope,
    )


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", list(EXACT))
@pytest.mark.parametrize("depth", [2, 3])
def test_activation_errors_are_charged(name, sign, depth):
    """A chain without fan-in, where hardly anything but the activations' own error is left."""
    kernels = [np.array([[1.0]])] * (depth - 1) + [np.array([[1.0, 0.0]])]
    biases = [np.zeros(1)] * (depth - 1) + [np.zeros(2)]
    entry = _as_bad_as_assumed(name, sign)
    network = Network(
        [Affine(k, b) for k, b in zip(kernels, biases, strict=True)], [entry] * (depth - 1)
    )
    for x in (-2.0, -0.5, 0.5, 2.0, 6.0):
        computed, charge = _charge(network, np.array([x]), 0, 1)
        error = _errors(network, computed, np.array([x]), 0, 1)
        assert error[0] <= charge[0] and error[1] <= charge[1]
        assert error[0] >= charge[0] / 200.0 or x <= 0  # the charge is not idle either


def _aligned(shape, left, right, size):
    change = np.outer(left / np.linalg.norm(left), right / np.linalg.norm(right)) * size
    assert change.shape == shape
    return change


@pytest.mark.parametrize(("sizes", "names"), CASES)
@pytest.mark.parametrize("size", [1e-9, 1e-4])
def test_folding_errors_are_charged(sizes, names, size, rng, random_network):
    """The kernels and biases moved by as much as allowed, each in its most harmful direction."""
    network = random_network(rng, sizes, names, 1.0)
    vague = Network(
        [Affine(a.kernel, a.bias, size, size) for a in network.affines], network.activations
    )
    x = rng.standard_normal(sizes[0])
    computed, charge = _charge(vague, x, 1, 2)
    evaluation = network.evaluate(tf.constant(x[None]), [1], [[2]])
    difference = np.zeros(sizes[-1])
    difference[1], difference[2] = 1.0, -1.0
    for signs in [(1.0,) * 4, (-1.0,) * 4, *rng.choice([-1.0, 1.0], (6, 4))]:
        kernels, biases = [], []
        for index, affine in enumerate(network.affines):
            left = evaluation.activations[index].numpy()[0]
            if index == network.depth - 1:
                right = difference
            else:
                above = evaluation.cotangents[network.depth - 2 - index].numpy()[0, 0]
                right = above * rng.random(above.shape)
            moved = _aligned(affine.kernel.shape, left, right, signs[index] * size * 0.999999)
            kernels.append(_exactly(affine.kernel) + _exactly(moved))
            shift = right / np.linalg.norm(right) * signs[index] * size * 0.999999
            biases.append(_exactly(affine.bias) + _exactly(shift))
        error = _errors(vague, computed, x, 1, 2, kernels, biases)
        assert error[0] <= charge[0] and error[1] <= charge[1]


@pytest.mark.parametrize("which", ["first kernel", "first bias", "last kernel", "last bias"])
@pytest.mark.parametrize("x", [0.0, 1.0])
def test_each_folding_error_counts(which, x):
    """A chain in which the error in question makes up most of its charge."""
    size = 1e-6
    errors = {
        name: size if name == which else 0.0
        for name in ("first kernel", "first bias", "last kernel", "last bias")
    }
    bias = 0.0 if "kernel" not in which else -x  # z = 0: σ″ of softplus is largest there
    affines = [
        Affine([[1.0]], [bias], errors["first kernel"], errors["first bias"]),
        Affine([[1.0, -1.0]], [0.0, 0.0], errors["last kernel"], errors["last bias"]),
    ]
    network = Network(affines, [activations.get("softplus")])
    computed, charge = _charge(network, np.array([x]), 0, 1)
    kernels, biases = [_exactly(a.kernel) for a in affines], [_exactly(a.bias) for a in affines]
    layer, part = which.split()
    target = (kernels if part == "kernel" else biases)[0 if layer == "first" else 1]
    if layer == "first":
        target += _exactly(size)[()]
    else:
        step = _exactly(size * math.sqrt(0.5) * 0.999999)[()]
        target[..., 0] += step
        target[..., 1] -= step
    error = _errors(network, computed, np.array([x]), 0, 1, kernels, biases)
    assert error[0] <= charge[0] and error[1] <= charge[1]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_radii_hold_for_every_network_within_the_folding_error(depth, rng, random_network):
    sizes, size = (3, 7, 5)[:depth] + (3,), 2e-3
    network = random_network(rng, sizes, ("tanh", "softplus")[: depth - 1])
    vague = Network(
        [Affine(a.kernel, a.bias, size, size) for a in network.affines], network.activations
    )
    x = rng.standard_normal((40, 3))
    certificate = CurvatureCertificate(vague)
    result = certificate.certify(x)
    exact = CurvatureCertificate(network).certify(x)
    assert np.all(result.radius <= exact.radius * (1.0 + 2e-4))  # two solver tolerances
    assert np.sum(result.radius > 0.0) >= 20
    for _ in range(8):
        moved = []
        for affine in network.affines:
            change = rng.standard_normal(affine.kernel.shape)
            shift = rng.standard_normal(affine.bias.shape)
            moved.append(
                Affine(
                    affine.kernel + 0.999 * size * change / np.linalg.norm(change, 2),
                    affine.bias + 0.999 * size * shift / np.linalg.norm(shift),
                )
            )
        other = Network(moved, network.activations)
        rows = result.radius > 0.0
        assert np.array_equal(other.logits(x[rows]).numpy().argmax(axis=1), result.prediction[rows])
        towards = np.stack([result.prediction[rows], result.nearest_rival[rows]])
        point = tf.constant(x[rows])
        for _ in range(20):  # walk against the gradient, out to the radius
            gradient = other.margin_and_gradient(point, *towards)[1].numpy()
            gradient /= np.linalg.norm(gradient, axis=1, keepdims=True)
            point = tf.constant(x[rows] - 0.999999 * result.radius[rows][:, None] * gradient)
        assert np.all(other.margin(point, *towards) > 0.0)


def test_a_folding_error_steepens_the_slope():
    """At x = 0 the kernel's error leaves the margin alone: only the slope can pay for it."""
    size = 1e-3
    vague = Network([Affine([[1.0, 0.0]], [1.0, 0.0], kernel_error=size)], [])
    result = CurvatureCertificate(vague).certify(np.zeros((1, 1)))
    steepest = 1.0 + math.sqrt(2.0) * size  # columns moved apart, by ‖ΔW‖ in all
    assert 0.99 < result.radius[0] <= 1.0 / steepest


def test_margins_within_rounding_are_not_certified(rng):
    """Linear margins that float64 gets wrong: the exact distance, by fractions, is never passed."""
    wrong = 0
    for _ in range(20):
        kernel = rng.standard_normal((6, 2)) * 10.0 ** rng.uniform(-4, 4, (6, 1))
        x = rng.standard_normal((30, 6))
        base = x @ (kernel[:, 0] - kernel[:, 1])
        for row in range(0, 30, 10):
            network = Network.from_weights([kernel], [[-base[row], 0.0]], ())
            certificate = CurvatureCertificate(network, max_steps=0)
            # Inputs around x that differ in the last places only.
            points = x[row] * (1.0 + 4.0 * UNIT * rng.integers(-2, 3, (20, 6)))
            label, rival = np.zeros(20, int), np.ones(20, int)
            radius = radius_at(certificate, points, points, label, rival)
            computed = network.margin(tf.constant(points), label, rival).numpy()
            for point, r, f in zip(points, radius, computed, strict=True):
                w = [Fraction(a) - Fraction(b) for a, b in kernel.tolist()]
                exact = sum(
                    wi * Fraction(xi) for wi, xi in zip(w, point.tolist(), strict=True)
                ) + Fraction(float(-base[row]))
                wrong += f > 0 >= exact
                if exact <= 0:
                    assert r == 0.0
                else:
                    assert Fraction(float(r)) ** 2 * sum(wi * wi for wi in w) <= exact**2
    assert wrong > 0


def test_radii_of_linear_margins_are_rounded_down(rng):
    kernel = rng.standard_normal((4, 2))
    network = Network.from_weights([kernel], [np.zeros(2)], ())
    x = rng.standard_normal((200, 4)) * 10.0 ** rng.uniform(-3, 3, (200, 1))
    points = x + rng.standard_normal((200, 4)) * 10.0 ** rng.uniform(-3, 6, (200, 1))
    label = network.logits(x).numpy().argmax(axis=1)
    certificate = CurvatureCertificate(network, max_steps=0)
    for point in (x, points):
        radius = radius_at(certificate, x, point, label, 1 - label)
        for row in range(200):
            y = int(label[row])
            w = [Fraction(k[y]) - Fraction(k[1 - y]) for k in kernel.tolist()]
            margin = sum(wi * Fraction(v) for wi, v in zip(w, x[row].tolist(), strict=True))
            square = Fraction(float(radius[row])) ** 2 * sum(wi * wi for wi in w)
            assert square <= margin**2 if margin > 0 else square == 0


def test_gamma_and_up():
    n = 1000
    exact = Fraction(n) * Fraction(UNIT) / (1 - Fraction(n) * Fraction(UNIT))
    assert abs(Fraction(gamma(n)) / exact - 1) <= Fraction(4 * UNIT)  # its own four roundings
    total, terms = 0.0, [0.1] * 50
    for term in terms:
        total += term
    assert Fraction(up(total, 50)) >= 50 * Fraction(0.1)
    assert up(0.0) == 0.0 and up(1.0) > 1.0
