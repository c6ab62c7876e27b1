"""Layers whose units differ: a wider table, and every bound and method on networks of them."""

import numpy as np
import pytest
import tensorflow as tf
from linear_intervals import pre_activation_bounds

from keras_curv.certificates import auto
from keras_curv.certificates.linear.bounds.relaxation import relaxation
from keras_curv.certificates.linear.coap import PolytopeCertificate
from keras_curv.certificates.lipschitz import margin_lipschitz_bounds
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.local import LocalCurvature
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.unitwise import IDENTITY, UnitWise, unit_wise

SMOOTH = ("softplus", "tanh", "sigmoid")


def _of(*parts):
    return unit_wise([(IDENTITY if n == "identity" else activations.get(n), k) for n, k in parts])


def _network(rng, sizes, sigmas, scale=1.0):
    affines = [
        Affine(scale * rng.normal(size=(n, m)) / np.sqrt(n), 0.5 * rng.normal(size=m))
        for n, m in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return Network(affines, sigmas)


def _mixed(rng, depth=3, names=SMOOTH, scale=2.0):
    sigmas = [
        _of((names[i % len(names)], 4), ("identity", 2), (names[(i + 1) % len(names)], 1))
        for i in range(depth - 1)
    ]
    return _network(rng, (5, *[7] * (depth - 1), 3), sigmas, scale)


def test_units_do_what_their_activations_do():
    both = _of(("tanh", 2), ("identity", 1), ("relu", 1))
    z = tf.constant([[-1.0, 0.5, -2.0, -3.0]], tf.float64)
    np.testing.assert_allclose(both.value(z), [[np.tanh(-1), np.tanh(0.5), -2.0, 0.0]])
    np.testing.assert_allclose(both.first(z)[0, 2:], [1.0, 0.0])
    np.testing.assert_allclose(both.second(z)[0, 2:], [0.0, 0.0])
    assert not both.smooth and both.bend.tolist()[2:] == [0.0, np.inf]
    low, high = both.first_range_on(np.zeros(4), np.ones(4))
    assert (low[2], high[2]) == (1.0, 1.0) and low[0] == pytest.approx(1 - np.tanh(1) ** 2)


def test_one_kind_is_that_activation_itself():
    assert _of(("tanh", 2), ("tanh", 1)) is activations.get("tanh")
    assert isinstance(_of(("tanh", 2), ("relu", 1)), UnitWise)
    nested = unit_wise([(_of(("tanh", 2), ("relu", 1)), 3), (activations.get("relu"), 2)])
    assert [count for _, count in nested.parts] == [2, 3]
    with pytest.raises(InputError, match="is not of 4 units"):
        unit_wise([(nested, 4)])
    with pytest.raises(InputError, match="at least one unit"):
        unit_wise([])


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_hessians_and_jacobians_are_inside(depth, rng):
    network = _mixed(rng, depth)
    bounds, lipschitz = curvature_bounds(network), margin_lipschitz_bounds(network)
    x = rng.normal(size=(200, 5))
    local = LocalCurvature(network)
    anchor = local.anchor(x[:20])
    for y, t in [(0, 1), (2, 0)]:
        labels = np.full(200, y), np.full(200, t)
        values = np.linalg.eigvalsh(network.hessian(tf.constant(x), *labels).numpy())
        assert bounds.lower[y, t] <= values.min() and values.max() <= bounds.upper[y, t]
        _, gradient = network.margin_and_gradient(tf.constant(x), *labels)
        assert np.linalg.norm(gradient, axis=1).max() <= lipschitz[y, t]
        near = local.bound(anchor, np.full(20, 0.1), np.arange(20), *(each[:20] for each in labels))
        moved = x[:20] + 0.1 * _directions(rng, (20, 5))
        there = network.hessian(tf.constant(moved), *(each[:20] for each in labels)).numpy()
        assert np.all(-near <= np.linalg.eigvalsh(there).min(axis=1))


def _directions(rng, shape):
    vectors = rng.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_a_layer_that_is_carried_past_costs_nothing(rng):
    """With W_2ʰ = 0, three layers are the two-layer network, curvature and all."""
    first, second = rng.normal(size=(4, 6)), rng.normal(size=(4, 5))
    last, bias = rng.normal(size=(5, 3)), rng.normal(size=5)
    two = Network.from_weights([second, last], [bias, np.zeros(3)], "softplus")
    carried = Affine(np.concatenate([first, np.eye(4)], axis=1), np.zeros(10))
    onward = Affine(np.concatenate([np.zeros((6, 5)), second]), bias)
    sigmas = [_of(("softplus", 6), ("identity", 4)), activations.get("softplus")]
    three = Network([carried, onward, Affine(last, np.zeros(3))], sigmas)
    x = rng.normal(size=(3, 4))
    np.testing.assert_allclose(three.logits(x), two.logits(x), rtol=1e-13)
    # 1e-9: what proofs of norms cost.
    np.testing.assert_allclose(
        curvature_bounds(three).lower, curvature_bounds(two).lower, rtol=1e-9, atol=1e-300
    )
    np.testing.assert_allclose(
        margin_lipschitz_bounds(three), margin_lipschitz_bounds(two), rtol=1e-9
    )


@pytest.mark.parametrize("hinge", ["relu", "leaky_relu(0.3)", "relu6"])
def test_linear_bounds_hold(hinge, rng):
    network = _mixed(rng, 4, (hinge, "softplus"))
    x = rng.normal(size=(4, 5))
    bounds = pre_activation_bounds(network, x, 0.4)
    for _ in range(200):
        a = tf.constant(x + 0.4 * _directions(rng, x.shape))
        parts = zip(network.affines, network.activations, bounds, strict=False)
        for affine, sigma, (low, high) in parts:
            z = a @ affine.kernel + affine.bias
            assert np.all(low <= z) and np.all(z <= high)
            a = sigma.value(z)


def test_lines_of_units_that_carry_are_exact():
    sigma = _of(("relu", 1), ("identity", 1))
    lines = relaxation(sigma, np.array([[-1.0, -1.0]]), np.array([[1.0, 2.0]]))
    assert [line[0, 1] for line in lines] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("names", [SMOOTH, ("relu", "relu6")])
@pytest.mark.slow
def test_what_auto_proves_stands(names, rng):
    network = _mixed(rng, 3, names, 1.0)
    x = rng.normal(size=(4, 5))
    found = auto.choose_method("auto", network).certify(x)
    assert np.all(found.radius > 0.0)
    for _ in range(300):
        moved = x + 0.999 * found.radius[:, None] * _directions(rng, x.shape)
        assert np.all(network.logits(moved).numpy().argmax(axis=1) == found.prediction)


def test_methods_for_one_activation_say_so(rng):
    network = _network(rng, (4, 5, 3), [_of(("relu", 3), ("identity", 2))])
    with pytest.raises(InputError, match="two layers with relu .* relu × 3, identity × 2"):
        auto.choose_method("quadratic", network)
    with pytest.raises(InputError, match="'relu' is not differentiable"):
        auto.choose_method("crc", network)
    with pytest.raises(InputError, match="relu × 3, identity × 2"):
        PolytopeCertificate(network)
