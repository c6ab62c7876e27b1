"""Lipschitz constants from l1 and l∞: no gradient's dual norm and no corner is beyond them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.lipschitz import LipschitzCertificate, margin_lipschitz_bounds
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.curvature.liplt import KernelProduct, pre_activation_lipschitz
from keras_curv.curvature.liplt_in_norm import from_norm, pre_activation_lipschitz_in
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.threats.norms import NORMS

BALLS = ["l1", "linf"]
DUAL = {"l1": lambda w: np.abs(w).max(axis=-1), "linf": lambda w: np.abs(w).sum(axis=-1)}
LENGTH = {"l1": 1.0, "linf": 6**0.5}  # of the farthest point of a ball of 6 entries, in l2
LESS = {"l1": 1.0, "linf": 0.9}  # than what follows from l2


def corners(norm, dim):
    if norm == "l1":
        return np.eye(dim)
    return np.array([*itertools.product([-1.0, 1.0], repeat=dim)])


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize(
    ("sizes", "sigma"), [((6, 9, 3), "relu"), ((6, 8, 7, 3), "tanh"), ((6, 7, 6, 5, 3), "relu")]
)
def test_no_gradient_and_no_layer_moves_faster(norm, sizes, sigma, rng, random_network):
    network = random_network(rng, sizes, sigma, scale=2.0)
    # Features of unequal weight, one of none: where l2 with √n is loose.
    first = network.affines[0]
    kernel = first.kernel * np.array([3.0, 1.0, 0.3, 0.1, 1e-9, 0.0])[:, None]
    network = Network([Affine(kernel, first.bias), *network.affines[1:]], network.activations)
    bound = margin_lipschitz_bounds(network, NORMS[norm])
    np.testing.assert_array_equal(bound, bound.T)
    by_l2 = LENGTH[norm] * margin_lipschitz_bounds(network) * (1.0 + 1e-12)
    assert np.all(bound <= by_l2) and bound[0, 1] < LESS[norm] * by_l2[0, 1]
    x = rng.standard_normal((200, 6)) * rng.choice([0.1, 1.0, 5.0], (200, 1))
    for y in range(3):
        rivals = np.array([t for t in range(3) if t != y])
        args = np.full(200, y), np.tile(rivals, (200, 1))
        gradient = network.evaluate(tf.constant(x), *args).gradient.numpy()
        # 1e-12: rounding of the sampled gradients
        assert np.all(DUAL[norm](gradient).max(axis=0) <= bound[y, rivals] * (1.0 + 1e-12))
    layers = pre_activation_lipschitz_in(NORMS[norm], network, len(sizes) - 2)
    limit = LENGTH[norm] * np.array(pre_activation_lipschitz(network)) * (1.0 + 1e-12)
    assert np.all(np.array(layers) <= limit)
    steps = np.geomspace(1e-3, 1.0, 3)[:, None, None] * corners(norm, 6)
    for step in steps:
        here, there = (network.forward(tf.constant(x[:50, None] + e))[0] for e in (0.0, step))
        for a, b, most in zip(here, there, layers, strict=True):
            far = np.linalg.norm(b.numpy() - a.numpy(), axis=-1).max()
            assert far <= most * np.abs(step).max() * (1.0 + 1e-9)


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("scale", [1.0, 1e-120, 1e120])
def test_norms_to_l2_hold_at_all_corners(norm, scale, rng):
    for rows in ([1.0] * 7, [5.0, 1.0, 0.2, 0.2, 0.01, 1e-14, 0.0], [0.0, 0.0, 0.0, 1.0, 0, 0, 0]):
        kernel = scale * np.array(rows)[:, None] * rng.standard_normal((7, 4))
        exact = scale * np.linalg.norm(corners(norm, 7) @ (kernel / scale), axis=1).max()
        found = NORMS[norm].to_l2(kernel)
        assert exact * (1.0 - 1e-12) <= found <= 1.3 * exact
    assert NORMS[norm].to_l2(np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("norm", BALLS)
def test_what_the_product_is_off_by_is_charged(norm, rng):
    """Of a product within an error, the one that moves the farthest."""
    kernel, error = np.outer(np.ones(6), rng.standard_normal(4)), 0.3
    corner = corners(norm, 6)[-1]
    moved = corner @ kernel
    other = np.outer(corner, moved) / np.linalg.norm(corner) / np.linalg.norm(moved)
    exact = np.linalg.norm(corner @ (kernel + error * other))
    found = from_norm(NORMS[norm], KernelProduct(kernel, error), 6)
    assert exact * (1.0 - 1e-12) <= found
    assert from_norm(NORMS[norm], KernelProduct(None, np.inf, 2.0), 6) >= 2.0 * LENGTH[norm]
    assert from_norm(NORMS[norm], KernelProduct(np.full((6, 4), np.inf), 0.0), 6) == np.inf
    charged, exact = (
        margin_lipschitz_bounds(Network([Affine(k, np.zeros(2), off)], ()), NORMS[norm])[0, 1]
        for k, off in ((np.eye(6)[:, :2], 0.1), (np.eye(6)[:, :2], 0.0))
    )
    assert charged >= exact + 0.2 * LENGTH[norm]


@pytest.mark.parametrize("norm", BALLS)
def test_a_linear_margin_has_its_exact_radius(norm, rng):
    kernel = rng.standard_normal((5, 2))
    network = Network.from_weights([kernel], [np.zeros(2)], ())
    x, w = rng.standard_normal((8, 5)), kernel[:, 0] - kernel[:, 1]
    method = NormCertificate(LipschitzCertificate(network), NORMS[norm])
    found = method.certify(x)
    np.testing.assert_allclose(found.radius, np.abs(x @ w) / DUAL[norm](w), rtol=1e-9)
