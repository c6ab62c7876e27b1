"""A sketch says about how steep units are, and what a curvature bound comes to, or less."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.curvature.local import LocalCurvature
from keras_curv.curvature.sketch import CurvatureSketch, sketch
from keras_curv.numerics.batches import in_batches

DEEP = [((9, 40, 30, 3), "sigmoid"), ((12, 30, 40, 50, 3), "tanh"), ((30, 20, 60, 3), "softplus")]


@pytest.fixture(params=DEEP, ids=lambda c: f"{c[0]} {c[1]}")
def network(request, rng, random_network):
    sizes, name = request.param
    return random_network(rng, sizes, (name,) * (len(sizes) - 2), 1.5)


def test_norms_of_jacobians_are_about_right(network, rng):
    x = rng.standard_normal((50, network.dim))
    found = sketch(network, x)
    jacobian = np.broadcast_to(np.eye(network.dim), (50, network.dim, network.dim))
    a = x
    for index, activation in enumerate(network.activations):
        affine = network.affines[index]
        jacobian, z = jacobian @ affine.kernel, a @ affine.kernel + affine.bias
        np.testing.assert_allclose(found.pre[index], z, atol=1e-9)
        np.testing.assert_allclose(found.slope[index], activation.first(tf.constant(z)), atol=1e-12)
        ratio = found.steepness[index] / np.linalg.norm(jacobian, axis=1)
        assert 0.8 < np.mean(ratio) < 1.2
        assert np.quantile(ratio, 0.02) > 0.3
        assert np.quantile(ratio, 0.98) < 2.0
        jacobian = jacobian * found.slope[index][:, None]
        a = activation.value(tf.constant(z)).numpy()


def test_many_inputs_are_sketched_as_each_alone(network, rng, monkeypatch):
    x = rng.standard_normal((10, network.dim))
    together = sketch(network, x)
    few = functools.partial(in_batches, at_once=3 * 8 * max(network.sizes))
    monkeypatch.setattr("keras_curv.curvature.sketch.in_batches", few)
    for field, other in zip(together, sketch(network, x), strict=True):
        for part, same in zip(field, other, strict=True):
            np.testing.assert_allclose(part, same, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.5, 3.0])
def test_a_sketched_curvature_is_seldom_above_the_bound_and_of_its_size(network, radius, rng):
    x, rival = rng.standard_normal((20, network.dim)), rng.integers(1, 3, 20)
    local, label, radii = LocalCurvature(network), np.zeros(20, int), np.full(20, radius)
    bound = local.bound(local.anchor(x), radii, np.arange(20), label, rival)
    sketched = CurvatureSketch(local)(x, label, rival, radii)
    assert np.all(sketched <= bound * 1.2)
    assert 0.3 < np.mean(sketched / bound) < 1.0
