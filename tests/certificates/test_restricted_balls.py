"""Linear bounds hold on what a threat leaves of a ball, however little that is.

The minorants of the first layer are taken at points of the whole l2 ball; what is known of the part
that is left holds at none of the others.
"""

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import labelled

from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.threats.norms import NORMS

COUNT = 5

# Ranges of σ′ and σ″ of the others are in test_activations.py.
FEW = "softplus", "tanh", "gelu", "sparse_plus"


def boxed(network, half):
    """Within `±half`."""
    return PinnedNetwork(network.affines, network.activations, None, limits=(-half, half))


def one_unit(weights, activations, bias, share):
    """Of the margin `±σ(w·x) + bias`, σ the first activation; the second one changes nothing."""
    kernels = [weights, [[1.0]], [[share, 0.0]]]
    biases = [[0.0], [100.0], [bias - 100.0 * share, 0.0]]
    return Network.from_weights(kernels, biases, activations)


def assert_bounds_hold(certificate, x, points, radius):
    """At `(m, n, dim)` points that the attacker can reach: each layer's interval, and margins."""
    network, (label, rivals) = certificate.network, labelled(certificate.network, x)
    balls = certificate.balls_of(certificate.centres_of(x), radius)
    balls.bound_layers()
    pre, _ = network.forward(tf.constant(points.reshape(-1, network.dim)))
    for z, layer in zip(pre, balls.layers, strict=True):
        z = z.numpy().reshape(*points.shape[:2], -1)
        slack = 1e-12 * (1.0 + np.abs(z).max(axis=(0, 1)))
        assert np.all(layer.low <= z + slack) and np.all(z <= layer.high + slack)
    bound = certificate.margin_bounds(x, label, rivals, radius)
    logits = network.logits(points.reshape(-1, network.dim)).numpy().reshape(*points.shape[:2], 2)
    margins = (logits[..., 0] - logits[..., 1]) * (1 - 2 * label)
    assert np.all(bound[:, 0] <= margins.min(axis=0) + 1e-12 * (1.0 + np.abs(logits).max()))


def random_network(rng, name, dim, aligned=0.0):
    """With first kernels of which all entries are alike, the more so the more they are aligned."""
    scale = 10.0 ** rng.uniform(-0.5, 1.0)
    first = (rng.standard_normal((dim, 4)) + aligned * rng.standard_normal(4)) * scale
    kernels = [first, rng.standard_normal((4, 3)), rng.standard_normal((3, 2))]
    biases = [3.0 * rng.standard_normal(4), rng.standard_normal(3), 0.3 * rng.standard_normal(2)]
    return Network.from_weights(kernels, biases, (name, "softplus"))


@pytest.mark.parametrize("name", FEW)
def test_in_a_box(name, rng):
    half = 0.1 * rng.uniform(0.5, 1.5, 2)
    certificate = LinearBoundCertificate(boxed(random_network(rng, name, 2), half))
    x = rng.uniform(-1.0, 1.0, (COUNT, 2)) * half
    points = rng.uniform(-1.0, 1.0, (400, COUNT, 2))
    points = np.concatenate([points, np.sign(points)]) * half
    distance = np.linalg.norm(points - x, axis=2, keepdims=True)
    for radius in np.geomspace(0.05, 20.0, 8):
        inside = x + (points - x) * np.minimum(1.0, radius / distance)
        assert_bounds_hold(certificate, x, inside, np.full(COUNT, radius))


@pytest.mark.parametrize("name", FEW)
def test_in_an_octahedron(name, rng):
    dim = 64  # the l2 ball reaches up to eight times as far
    network = random_network(rng, name, dim, aligned=3.0)
    x = rng.standard_normal((COUNT, dim)) / dim
    corners = np.concatenate([np.eye(dim), -np.eye(dim)])
    mixtures = rng.dirichlet(np.full(2 * dim, 0.02), 200) @ corners
    offsets = np.concatenate([corners, mixtures])[:, None]
    certificate = LinearBoundCertificate(network, norm=NORMS["l1"])
    for radius in np.geomspace(0.01, 2.0, 8):
        assert_bounds_hold(certificate, x, x + radius * offsets, np.full(COUNT, radius))


@pytest.mark.parametrize("radius", [0.2, 2.0, 4.7, 6.0, 11.0])
def test_a_sine_in_a_narrow_box(radius):
    """At 2π from its middle sin is what it is there, and in the box it has next to no curvature."""
    network = boxed(one_unit([[1.0]], ("sin", "elu"), 0.05, 1.0), np.array([0.1]))
    pair = np.zeros((1, 1)), np.array([0]), np.array([[1]])
    bound = LinearBoundCertificate(network).margin_bounds(*pair, np.array([radius]))
    assert 0.05 - np.sin(0.1) - 1e-6 < bound.item() <= 0.05 - np.sin(0.1)
    radius = LinearBoundCertificate(network).certify(pair[0]).radius.item()
    assert radius == pytest.approx(np.arcsin(0.05), rel=0.01)


def test_a_dip_that_an_octahedron_does_not_leave():
    """silu falls to −0.278 and rises to 0 again: of 100 inputs l2 balls reach ten times as far."""
    network = one_unit(np.ones((100, 1)), ("silu", "elu"), 0.2, 1.0)
    pair = np.zeros((1, 100)), np.array([0]), np.array([[1]])
    certificate = LinearBoundCertificate(network, norm=NORMS["l1"])
    for radius in (0.3, 0.6, 1.0, 1.2):
        exact = 0.2 - radius / (1.0 + np.exp(radius))
        bound = certificate.margin_bounds(*pair, np.array([radius])).item()
        assert exact - 1e-6 < bound <= exact + 1e-12
