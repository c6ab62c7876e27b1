"""Curvature on a ball holds in the ball."""

import numpy as np
import pytest
import tensorflow as tf
from local_networks import NETWORKS, in_balls

from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.local import LocalCurvature
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import lanczos, stacked_norms
from keras_curv.numerics.spectral import fewer_rows

COUNT = 4


@pytest.fixture(params=NETWORKS, ids=lambda c: f"{c[0]} {' '.join(c[1])}")
def network(request, rng, random_network):
    return random_network(rng, *request.param, 1.5)


def _pairs():
    """Every input against both rivals of class 0."""
    return np.repeat(np.arange(COUNT), 2), np.zeros(2 * COUNT, int), np.tile([1, 2], COUNT)


def _smallest_eigenvalues(network, points, label, rival):
    """Over `(count, P, dim)` points, `(count, P)`."""
    count, pairs, dim = points.shape
    classes = np.tile(label, count), np.tile(rival, count)
    hessians = network.hessian(tf.constant(points.reshape(-1, dim)), *classes).numpy()
    return np.linalg.eigvalsh(hessians)[:, 0].reshape(count, pairs)


def _toward_violation(network, rng, x, radius, label, rival, rounds=6):
    """The smallest eigenvalues that random sampling and then local search find in the balls."""
    best_points = in_balls(rng, x, radius, 60)
    values = _smallest_eigenvalues(network, best_points, label, rival)
    first = values.argmin(axis=0)
    point, best = best_points[first, np.arange(len(x))], values.min(axis=0)
    for attempt in range(rounds):
        step = 0.5 ** (attempt + 1) * radius[:, None]
        near = point + step * rng.standard_normal((20, *x.shape)) / np.sqrt(x.shape[1])
        away = near - x
        length = np.linalg.norm(away, axis=-1, keepdims=True)
        near = x + away * np.minimum(1.0, (1.0 - 1e-12) * radius[:, None] / length)
        values = _smallest_eigenvalues(network, near, label, rival)
        better = values.min(axis=0) < best
        point = np.where(better[:, None], near[values.argmin(axis=0), np.arange(len(x))], point)
        best = np.minimum(best, values.min(axis=0))
    return best


@pytest.mark.parametrize("size", [1e-6, 0.3, 4.0])
def test_no_hessian_in_the_ball_leaves_the_bound(network, size, rng):
    x = rng.standard_normal((COUNT, network.dim))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    radius = size * np.linspace(0.5, 1.5, COUNT)  # each its own
    pairs = local.anchor(x), radius, of, label, rival
    kappa, shared = local.bound(*pairs), local.shared_bound(*pairs)
    met = _toward_violation(network, rng, x[of], radius[of], label, rival)
    assert np.all(met >= -np.minimum(kappa, shared) * (1.0 + 1e-12) - 1e-12)
    assert np.array_equal(shared[::2], shared[1::2])
    if size == 1e-6:  # the curvature at x0 itself, to a guess's 0.1 %
        np.testing.assert_allclose(kappa, np.maximum(-met, 0.0), rtol=5e-3, atol=1e-6)


def test_two_layers_by_brute_force(rng, random_network):
    """λ_max of −W diag(d) Wᵀ, d the least product on a grid of each unit's own interval."""
    network = random_network(rng, (5, 7, 3), "tanh", 1.0)
    x, radius = rng.standard_normal((1, 5)), 0.3
    local = LocalCurvature(network)
    kappa = local.bound(local.anchor(x), np.array([radius]), [0], [2], [1])[0]
    first, last = (affine.kernel for affine in network.affines)
    z = x[0] @ first + network.affines[0].bias
    reach = radius * np.linalg.norm(first, axis=0)
    grid = z + np.linspace(-1.0, 1.0, 4001)[:, None] * reach
    t = np.tanh(grid)
    lowest = (-2.0 * t * (1.0 - t**2) * (last[:, 2] - last[:, 1])).min(axis=0)
    exact = -np.linalg.eigvalsh(first @ np.diag(lowest) @ first.T)[0]
    assert exact * (1.0 - 1e-6) <= kappa <= exact * 1.002  # the grid; the guess's 0.1 %


def test_estimates_are_what_is_proved(network, rng):
    x = rng.standard_normal((COUNT, network.dim))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    anchor, radius = local.anchor(x), np.full(COUNT, 0.2)
    proved = local.bound(anchor, radius, of, label, rival)
    np.testing.assert_allclose(
        local.estimate(anchor, radius, of, label, rival), proved, rtol=2e-3, atol=1e-8
    )


def test_wrong_estimates_are_harmless(rng, random_network, monkeypatch):
    """Every guess, direction and choice comes from Lanczos; a broken one must not matter."""
    network = random_network(rng, (9, 5, 7, 4, 3), "tanh", 1.5)
    x = rng.standard_normal((COUNT, 9))
    of, label, rival = _pairs()
    noise = np.random.default_rng(1)

    def broken(product, shape, **_):
        return np.abs(noise.standard_normal(shape[0])), noise.standard_normal(shape)

    monkeypatch.setattr(lanczos, "largest_eigenpairs", broken)
    local = LocalCurvature(network)
    radius = np.full(COUNT, 0.3)
    kappa = local.bound(local.anchor(x), radius, of, label, rival)
    assert np.all(_toward_violation(network, rng, x[of], radius[of], label, rival) >= -kappa)


def test_every_part_of_the_region_holds(network, rng):
    """Intervals, movements and drifts, layer by layer, at sampled points of the ball."""
    x = rng.standard_normal((COUNT, network.dim))
    local = LocalCurvature(network)
    anchor, radius = local.anchor(x), np.linspace(0.05, 0.8, COUNT)
    region = local.region(anchor, radius)
    anchored, jacobian = np.eye(network.dim), np.eye(network.dim)
    a = in_balls(rng, x, radius, 150)
    more = 1.0 + 1e-9
    for index, activation in enumerate(network.activations):
        affine = network.affines[index]
        difference = np.linalg.norm(jacobian - anchored, 2, axis=(-2, -1))
        assert np.all(difference <= region.drift[index] * more + 1e-12)
        assert np.all(np.linalg.norm(jacobian, 2, (-2, -1)) <= region.lipschitz[index] * more)
        jacobian, anchored = jacobian @ affine.kernel, anchored @ affine.kernel
        z = a @ affine.kernel + affine.bias
        moved = np.linalg.norm(z - anchor.pre[index], axis=-1)
        assert np.all(moved <= region.move[index] * more)
        first, second = activation.first(tf.constant(z)), activation.second(tf.constant(z))
        for values, (low, high) in (
            (first, region.slopes[index]),
            (second, region.bends[index]),
        ):
            assert np.all(values >= low) and np.all(values <= high)
        assert np.all(np.abs(first - anchor.slope[index]) <= region.change[index] * more + 1e-15)
        if index < len(region.quartic):
            u, v = rng.standard_normal((2, 150, COUNT, 1, network.dim))
            u, v = (w / np.linalg.norm(w, axis=-1, keepdims=True) for w in (u, v))
            products = (u @ jacobian)[..., 0, :] * (v @ jacobian)[..., 0, :] * second
            assert np.all(np.linalg.norm(products, axis=-1) <= region.quartic[index] * more)
        a = activation.value(tf.constant(z)).numpy()
        jacobian = jacobian * np.asarray(first)[..., None, :]
        anchored = anchored * anchor.slope[index][:, None, :]


def test_sensitivities_hold(network, rng):
    x = rng.standard_normal((COUNT, network.dim))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    anchor, radius = local.anchor(x), np.linspace(0.05, 0.8, COUNT)
    found = local.sensitivities(anchor, local.region(anchor, radius), of, label, rival)
    points = in_balls(rng, x[of], radius[of], 100)
    flat = points.reshape(-1, network.dim)
    classes = np.tile(label, 100), np.tile(rival, 100)[:, None]
    cotangents = network.evaluate(tf.constant(flat), *classes).cotangents[-2::-1]
    for (interval, centre, away), met in zip(found, cotangents, strict=True):
        met = met.numpy()[:, 0].reshape(100, len(of), -1)
        assert np.all(met >= interval.low - 1e-12) and np.all(met <= interval.high + 1e-12)
        assert np.all(np.linalg.norm(met - centre, axis=-1) <= away * (1 + 1e-9) + 1e-12)
        assert np.all(np.linalg.norm(met, axis=-1) <= interval.norm * (1 + 1e-9))


def test_perron_bound(rng):
    matrix, weight = rng.random((3, 7, 7)) ** 8, rng.random((3, 7)) * (rng.random((3, 7)) < 0.7)
    matrix += matrix.transpose(0, 2, 1)
    bound = stacked_norms.perron_bound(matrix, weight)
    exact = np.linalg.eigvalsh(weight[:, :, None] * matrix * weight[:, None, :])[:, -1]
    assert np.all(bound >= np.sqrt(exact) * (1.0 - 1e-14))
    np.testing.assert_allclose(bound, np.sqrt(exact), rtol=0.05)


@pytest.mark.parametrize("shape", [(6, 9), (9, 4), (9, 1)])
def test_fewer_rows_are_an_isometry_away(shape, rng):
    kernel = rng.standard_normal(shape)
    smaller, error = fewer_rows(kernel)
    assert smaller.shape == (min(shape), shape[1])
    u, s, vt = np.linalg.svd(kernel, full_matrices=False)
    singular = np.linalg.svd(smaller, compute_uv=False)
    assert np.abs(s - singular).max() <= error if shape[0] > shape[1] else error == 0.0
    assert error <= 1e-5 * s[0]  # √ of float64's unit, times a dimension


def test_folding_errors_are_covered(rng, random_network):
    """The bound of a net known to within kernel_error holds for every net within it."""
    network = random_network(rng, (9, 5, 7, 4, 3), ("tanh", "softplus", "sigmoid"), 1.0)
    error = 0.01
    vague = Network(
        [Affine(a.kernel, a.bias, error, error) for a in network.affines], network.activations
    )
    x = rng.standard_normal((COUNT, 9))
    of, label, rival = _pairs()
    for size in (1e-4, 0.2):
        local = LocalCurvature(vague)
        radius = np.full(COUNT, size)
        kappa = local.bound(local.anchor(x), radius, of, label, rival)
        for _ in range(6):
            moved = []
            for affine in network.affines:
                noise, shift = (
                    rng.standard_normal(affine.kernel.shape),
                    rng.standard_normal(affine.fan_out),
                )
                moved.append(
                    Affine(
                        affine.kernel + error * noise / np.linalg.norm(noise, 2),
                        affine.bias + error * shift / np.linalg.norm(shift),
                    )
                )
            other = Network(moved, network.activations)
            points = in_balls(rng, x[of], radius[of], 20)
            assert np.all(_smallest_eigenvalues(other, points, label, rival) >= -kappa)


def test_far_tighter_than_the_global_bound_near_an_input(rng, random_network):
    network = random_network(rng, (12, 8, 9, 7, 3), "tanh", 1.5)
    x = rng.standard_normal((COUNT, 12))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    kappa = local.bound(local.anchor(x), np.full(COUNT, 0.01), of, label, rival)
    everywhere = -curvature_bounds(network).lower[label, rival]
    assert np.median(everywhere / kappa) > 10.0
