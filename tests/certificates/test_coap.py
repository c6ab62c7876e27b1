"""The polytope's bounds are the dual written out unit by unit; no attack gets inside them."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from polytope_dual import SIZES, dual_margins, dual_of, every_depth, in_ball, relu_case, weights_of

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.linear.coap import PolytopeCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.network import Network
from keras_curv.training.rivals.polytope import hidden_layers, margin_bounds


@every_depth
@pytest.mark.parametrize("radius", [0.05, 0.4, 2.0])
def test_bounds_are_the_dual_and_hold_under_sampling(depth, radius, random_network, rng):
    network, x, label, rivals = relu_case(random_network, rng, depth)
    layers = hidden_layers(network, tf.constant(x), radius)
    points = in_ball(rng, x, radius, 500)
    sampled = network.forward(tf.constant(points.reshape(-1, 5)))[0]
    for index, (layer, z) in enumerate(zip(layers, sampled, strict=True)):
        z = z.numpy().reshape(500, *layer.low.shape)
        assert np.all(z >= layer.low - 1e-12) and np.all(z <= layer.high + 1e-12)
        for row, point in enumerate(x):
            low, high = dual_of(weights_of(network), point, radius)[1][index]
            np.testing.assert_allclose(layer.low[row], low, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(layer.high[row], high, rtol=1e-11, atol=1e-11)
    unstable = sum(np.sum((layer.low < 0.0) & (layer.high > 0.0)) for layer in layers)
    assert unstable >= (0 if radius == 0.05 else 10)

    bounds = margin_bounds(network, tf.constant(x), tf.constant(label), radius).numpy()
    dual = dual_margins(weights_of(network), x, label, radius)
    np.testing.assert_allclose(bounds, dual, rtol=1e-11, atol=1e-11)
    proved = PolytopeCertificate(network).margin_bounds(x, label, rivals, np.full(6, radius))
    dual = np.take_along_axis(dual, rivals, axis=1)
    assert np.all(proved <= dual + 1e-14)
    np.testing.assert_allclose(proved, dual, rtol=1e-10, atol=1e-10)  # what rounding is charged
    logits = network.logits(tf.constant(points.reshape(-1, 5))).numpy().reshape(500, 6, 4)
    own = np.take_along_axis(logits, np.tile(label[:, None], (500, 1, 1)), axis=2)
    assert np.all(own - logits >= bounds - 1e-12)


@every_depth
def test_no_attack_reaches_inside_the_certificate(depth, random_network, rng):
    network, x, label, rivals = relu_case(random_network, rng, depth, 10)
    certificate = PolytopeCertificate(network)
    radius = certificate.prove(Question.of(x, label, rivals)).radius
    assert np.all(radius > 0.0) and np.all(radius == radius[:, :1])
    radius = radius[:, 0]
    assert np.all(certificate.margin_bounds(x, label, rivals, radius) > 0.0)
    assert np.all(certificate.margin_bounds(x, label, rivals, 1.0011 * radius).min(axis=1) <= 0.0)

    @tf.function(autograph=False)
    def attack(radius):
        args = tf.constant(x), tf.constant(label)
        return pgd_attack(network, *args, radius=radius, steps=40, restarts=4)

    found = 0
    for factor in (1.0, 2.0, 6.0):
        margin, point = attack(tf.constant(factor * radius))
        distance = np.linalg.norm(point.numpy() - x, axis=1)[margin.numpy() < 0.0]
        assert np.all(distance > radius[margin.numpy() < 0.0])
        found += len(distance)
    assert found >= 5


def test_a_small_example_by_hand():
    """`relu(z_1) − relu(z_2)` at (3, 1): with R from 1 to 3, unit 2 alone changes sign."""
    network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
    x, label = tf.constant([[3.0, 1.0]], tf.float64), tf.constant([0])
    # l = −1, u = 3: d = 3/4 and 2h = 3/4, so 3 − 3/4 · 1 − 3/4 − 2 √(1 + 9/16).
    assert margin_bounds(network, x, label, 2.0)[0, 1].numpy() == pytest.approx(-1.0, abs=1e-14)

    def bound(r):
        d = (1.0 + r) / (2.0 * r)
        return 3.0 - d - d * (r - 1.0) - r * np.hypot(1.0, d)

    expected = scipy.optimize.brentq(bound, 1.0, 3.0)
    radius = PolytopeCertificate(network).certify(x.numpy()).radius[0]
    assert 0.999 * expected <= radius <= expected


def test_a_linear_classifier_is_exact(rng):
    kernel, bias, x = (
        rng.standard_normal((5, 3)),
        rng.standard_normal(3),
        rng.standard_normal((4, 5)),
    )
    bounds = margin_bounds(
        Network.from_weights([kernel], [bias], []), tf.constant(x), tf.zeros(4, tf.int32), 0.7
    )
    differences = kernel[:, :1] - kernel
    exact = x @ differences + bias[0] - bias - 0.7 * np.linalg.norm(differences, axis=0)
    np.testing.assert_allclose(bounds, exact, rtol=1e-13, atol=1e-13)


def test_exact_where_no_unit_changes_sign(rng, random_network):
    network = random_network(rng, SIZES[3], "relu")
    kernels = [affine.kernel for affine in network.affines]
    shifts = [np.full(9, 90.0), np.full(7, 900.0)]
    logits = (shifts[0] @ kernels[1] + shifts[1]) @ kernels[2]
    network = Network.from_weights(kernels, [*shifts, -logits], "relu")
    x = rng.standard_normal((5, 5))
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    product = kernels[0] @ kernels[1] @ kernels[2]
    rivals = np.array([[t for t in range(4) if t != y] for y in label])
    margin = network.evaluate(tf.constant(x), tf.constant(label), tf.constant(rivals)).margin
    slopes = np.array([product[:, [y]] - product[:, t] for y, t in zip(label, rivals, strict=True)])
    exact = (margin.numpy() / np.linalg.norm(slopes, axis=1)).min(axis=1)
    layers = hidden_layers(network, tf.constant(x), exact.max())
    assert all(np.all(layer.low > 0.0) for layer in layers)
    for kind in (PolytopeCertificate, LinearBoundCertificate):
        radius = kind(network).certify(x).radius
        assert np.all(radius <= exact) and np.all(radius >= 0.999 * exact)


def test_lines_hold_on_any_interval():
    ends = np.array([-np.inf, -1e308, -3.0, -1e-300, -0.0, 5e-324, 1e-9, 2.0, 1e308, np.inf])
    low, high = (part.ravel() for part in np.meshgrid(ends, ends))
    low, high = low[low <= high], high[low <= high]
    lines = PolytopeCertificate.relaxation(ACTIVATIONS["relu"], low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        for z in (low, high, np.clip(0.0, low, high), low / 2.0 + high / 2.0):
            z = np.where(np.isfinite(z), z, np.clip(1e300 * np.sign(z), low, high))
            below = lines.lower_slope * z + lines.lower_intercept
            above = lines.upper_slope * z + lines.upper_intercept
            good = np.isfinite(z)
            assert np.all((below <= np.maximum(z, 0.0))[good])
            assert np.all((above >= np.maximum(z, 0.0))[good])
    assert np.all(lines.lower_slope == lines.upper_slope)
