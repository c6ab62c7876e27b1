"""Linear bounds are charged for what rounding, folding and serving change."""

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import SIZES, build, draw_network, labelled, lowest_margins
from linear_intervals import pre_activation_bounds

from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network


def test_rounding_is_charged_of_a_margin_that_no_input_changes(rng):
    # The bias makes the constant margin 0 but for its own rounding, of either sign.
    signs = set()
    for _ in range(12):
        inner, row = rng.standard_normal(9), 1e3 * rng.standard_normal(9)
        parts = zip(map(mpmath.mpf, row), map(mpmath.mpf, inner), strict=True)
        with mpmath.workdps(60):
            exact = mpmath.fsum(w * mpmath.tanh(z) for w, z in parts)
            margin = exact - mpmath.mpf(float(exact))
        kernels = [np.zeros((4, 9)), np.stack([row, np.zeros(9)], axis=1)]
        network = build(kernels, [inner, np.array([-float(exact), 0.0])], "tanh")
        signs.add(mpmath.sign(margin))
        for radius in (1.0, 1e9, 1e99):
            args = np.ones((1, 4)), np.array([0]), np.array([[1]]), np.array([radius])
            assert LinearBoundCertificate(network).margin_bounds(*args).item() <= margin
    assert signs >= {-1, 1}


def test_served_error_is_taken_off(rng):
    network = draw_network(rng, SIZES[3], "tanh")
    x = rng.standard_normal((6, 4))
    label, rivals = labelled(network, x)
    known = np.zeros(rivals.shape)

    def grows(x, label, rivals, radius):
        assert radius.shape == rivals.shape == (len(x), rivals.shape[1])
        return 0.05 + 0.1 * radius

    certificate = LinearBoundCertificate(network, grows)
    radius, *_ = certificate.prove(Question.of(x, label, rivals, known))
    left = certificate.margin_bounds(x, label, rivals, radius[:, 0]) - 0.05 - 0.1 * radius
    positive = radius[:, 0] > 0.0
    assert positive.any() and np.all(left[positive] > 0.0)
    plain, *_ = LinearBoundCertificate(network).prove(Question.of(x, label, rivals, known))
    assert np.all(radius[positive] < plain[positive])
    endless = LinearBoundCertificate(network, lambda x, y, t, r: np.full(t.shape, np.nan))
    assert not endless.prove(Question.of(x, label, rivals, known))[0].any()


@pytest.mark.parametrize(
    ("name", "power"),
    [
        *(("tanh", power) for power in (-300, -20, 100)),
        *(("softplus", power) for power in (-160, 20, 300)),
        *(("relu", power) for power in (-300, 20, 300)),
    ],
)
def test_extreme_weights(name, power, rng):
    network = draw_network(rng, SIZES[3], name)
    first = network.affines[0]
    with np.errstate(over="ignore", under="ignore"):
        scaled = Affine(first.kernel * 10.0**power, first.bias)
        network = Network([scaled, *network.affines[1:]], network.activations)
        x = rng.standard_normal((4, 4))
        label, rivals = labelled(network, x)
        radius, *_ = LinearBoundCertificate(network).prove(Question.of(x, label, rivals))
        assert not np.isnan(radius).any() and np.all(radius >= 0.0)
        usable = (radius[:, 0] > 0.0) & (radius[:, 0] < 1e90)
        if power == 20:
            assert usable.any()
        got = lowest_margins(network, x, label, rivals, radius[:, 0] * (1 - 1e-9), rng)
        assert np.all(got[usable] >= 0.0)


def test_folding_errors_are_charged_in_depth(rng):
    exact = draw_network(rng, SIZES[6], "tanh", 1.5)
    error = 1e-3
    maps = [Affine(a.kernel, a.bias, error, error) for a in exact.affines]
    folded = Network(maps, exact.activations)
    x, radius = rng.standard_normal((3, 3)), np.full(3, 1e-4)
    label, rivals = labelled(exact, x)
    bound = LinearBoundCertificate(folded).margin_bounds(x, label, rivals, radius)
    intervals = pre_activation_bounds(folded, x, radius)
    for _ in range(20):
        maps = []
        for affine in exact.affines:
            left, right = rng.standard_normal(affine.fan_in), rng.standard_normal(affine.fan_out)
            noise = np.outer(left, right) * error / np.linalg.norm(left) / np.linalg.norm(right)
            shift = error * right / np.linalg.norm(right)
            maps.append(Affine(affine.kernel + noise, affine.bias + shift))
        moved = Network(maps, exact.activations)
        for (low, high), z in zip(intervals, moved.forward(tf.constant(x))[0], strict=True):
            assert np.all((z.numpy() >= low) & (z.numpy() <= high))
        assert np.all(moved.evaluate(tf.constant(x), label, rivals).margin.numpy() >= bound)
