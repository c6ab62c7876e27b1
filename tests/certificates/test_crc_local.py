"""Curvature on a ball holds in the ball, and no point inside a local radius changes the sign."""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.certificate import choose_rivals
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.crc_local import LocalCurvatureCertificate
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.curvature.local import LocalCurvature
from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import lanczos, stacked_norms
from keras_curv.numerics.spectral import fewer_rows

# Narrow first layers (fewer rows than inputs) and wide ones, no two sizes alike.
NETWORKS = [
    ((9, 4, 3), ("sigmoid",)),
    ((5, 7, 3), ("tanh",)),
    ((9, 5, 7, 3), ("sigmoid", "sigmoid")),
    ((3, 4, 8, 5, 3), ("softplus", "softplus", "softplus")),
    ((6, 5, 8, 4, 3), ("tanh", "softplus", "sigmoid")),
    ((12, 6, 5, 7, 8, 3), ("tanh", "softplus", "sigmoid", "tanh")),
]
COUNT = 4


@pytest.fixture(params=NETWORKS, ids=lambda c: f"{c[0]} {' '.join(c[1])}")
def network(request, rng, random_network):
    return random_network(rng, *request.param, 1.5)


def _pairs():
    """Every input against both rivals of class 0."""
    return np.repeat(np.arange(COUNT), 2), np.zeros(2 * COUNT, int), np.tile([1, 2], COUNT)


def _in_balls(rng, x, radius, count):
    """`(count, n, dim)` points, half of them on the sphere."""
    d = rng.standard_normal((count, *x.shape))
    length = np.where(rng.random((count, len(x), 1)) < 0.5, 1.0, rng.random((count, len(x), 1)))
    return x + radius[:, None] * (1.0 - 1e-12) * length * d / np.linalg.norm(d, axis=-1)[..., None]


def _smallest_eigenvalues(network, points, label, rival):
    """Over `(count, P, dim)` points, `(count, P)`."""
    count, pairs, dim = points.shape
    classes = np.tile(label, count), np.tile(rival, count)
    hessians = network.hessian(tf.constant(points.reshape(-1, dim)), *classes).numpy()
    return np.linalg.eigvalsh(hessians)[:, 0].reshape(count, pairs)


def _toward_violation(network, rng, x, radius, label, rival, rounds=6):
    """The smallest eigenvalues that random sampling and then local search find in the balls."""
    best_points = _in_balls(rng, x, radius, 60)
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


@pytest.mark.parametrize("size", [1e-6, 0.05, 0.5, 4.0])
def test_no_hessian_in_the_ball_leaves_the_bound(network, size, rng):
    x = rng.standard_normal((COUNT, network.dim))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    radius = size * np.linspace(0.5, 1.5, COUNT)  # each its own
    kappa = local.bound(local.anchor(x), radius, of, label, rival)
    met = _toward_violation(network, rng, x[of], radius[of], label, rival)
    assert np.all(met >= -kappa * (1.0 + 1e-12) - 1e-12)
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
    a = _in_balls(rng, x, radius, 150)
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
    found = local._sensitivities(anchor, local.region(anchor, radius), of, label, rival)
    points = _in_balls(rng, x[of], radius[of], 100)
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
            points = _in_balls(rng, x[of], radius[of], 20)
            assert np.all(_smallest_eigenvalues(other, points, label, rival) >= -kappa)


def _attacked(network, rng, x, radius, label, rival, error=0.0):
    """The smallest margin that projected gradient descent finds within the radius, `(P,)`."""
    worst = np.full(len(x), np.inf)
    for start in range(2):
        point = x if start == 0 else _in_balls(rng, x, radius, 1)[0]
        for step in np.geomspace(1.0, 0.01, 15):
            margin, gradient = network.margin_and_gradient(
                tf.constant(point), label, tf.constant(rival)
            )
            worst = np.minimum(worst, margin)
            slope = np.linalg.norm(gradient, axis=1, keepdims=True)
            away = point - step * radius[:, None] * gradient / slope - x
            length = np.linalg.norm(away, axis=1, keepdims=True)
            point = x + away * np.minimum(1.0, radius[:, None] * (1.0 - 1e-9) / length)
        worst = np.minimum(worst, network.margin(tf.constant(point), label, tf.constant(rival)))
    return worst


def _predicted(network, rng, count=12):
    x = rng.standard_normal((count, network.dim))
    logits = network.logits(x).numpy()
    label = logits.argmax(axis=1)
    return x, label, choose_rivals(logits, label, "all", np.arange(count))


def test_no_margin_vanishes_within_the_radius(network, rng):
    x, label, rivals = _predicted(network, rng)
    known = np.zeros(rivals.shape)
    radius, gradients, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    assert radius.shape == rivals.shape and gradients.dtype == np.int64 and np.all(gradients > 0)
    smallest = radius.min(axis=1)
    assert np.all(smallest > 0.0) and np.isfinite(radius).all()
    of = np.repeat(np.arange(len(x)), rivals.shape[1])
    worst = _attacked(network, rng, x[of], radius.ravel(), label[of], rivals.ravel())
    assert np.all(worst > 0.0)


def test_larger_than_the_global_certificate(network, rng):
    x, label, rivals = _predicted(network, rng)
    known = CurvatureCertificate(network).certify_pairs(x, label, rivals).radius
    radius, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    assert np.all(radius >= known)
    assert radius.min(axis=1).mean() > 1.01 * known.min(axis=1).mean()


def test_alone_it_is_not_below_the_global_certificate(rng, random_network):
    """On a large ball the anchored bound may be the worse one, where a network hardly bends."""
    behind = 0
    for sizes in ((5, 9, 7, 3), (6, 8, 9, 7, 3)):
        network = random_network(rng, sizes, "softplus", 0.5)
        x, label, rivals = _predicted(network, rng)
        nothing = np.zeros(rivals.shape)
        everywhere = CurvatureCertificate(network).certify_pairs(x, label, rivals).radius
        certificate = LocalCurvatureCertificate(network)
        assert np.all(certificate.radii(x, label, rivals, nothing).radius >= everywhere)
        certificate.__dict__["_everywhere"] = None
        alone = certificate.radii(x, label, rivals, nothing).radius
        behind += np.sum(alone.min(axis=1) < everywhere.min(axis=1))
    assert behind > 0  # or this test could not fail


def test_served_error_is_taken_off(rng, random_network):
    network = random_network(rng, (6, 9, 5, 3), "sigmoid", 3.0)
    x, label, rivals = _predicted(network, rng)

    def served(x, label, rivals, radius):
        assert radius.shape == rivals.shape
        return 0.2 + 0.5 * radius

    known = np.zeros(rivals.shape)
    radius, *_ = LocalCurvatureCertificate(network, served).radii(x, label, rivals, known)
    free, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    assert np.all(radius.min(axis=1) <= free.min(axis=1) * 1.02)  # where a bisection stops
    assert radius.min(axis=1).mean() < 0.99 * free.min(axis=1).mean()
    of = np.repeat(np.arange(len(x)), 2)
    worst = _attacked(network, rng, x[of], radius.ravel(), label[of], rivals.ravel())
    error = served(x, label, rivals, radius).ravel()
    assert np.all((worst > error) | (radius.ravel() == 0.0))


def test_examples_do_not_depend_on_their_batch(rng, random_network, monkeypatch):
    network = random_network(rng, (9, 5, 7, 3), "tanh", 1.5)
    x, label, rivals = _predicted(network, rng, 5)
    known = np.zeros(rivals.shape)
    together, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    monkeypatch.setattr("keras_curv.certificates.crc_local._NUMBERS_AT_ONCE", 1)
    alone, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    np.testing.assert_allclose(alone, together, rtol=1e-3)  # Lanczos starts differ


def test_nothing_to_prove(rng, random_network):
    """Margins ≤ 0, overflow and NaN keep what is known; the other rows do not suffer."""
    network = random_network(rng, (4, 9, 3), "sigmoid")
    x, label, rivals = _predicted(network, rng, 4)
    label[0], rivals[0] = rivals[0, 0], [label[0], 3 - label[0] - rivals[0, 0]]  # misclassified
    x[1, 0], x[2, 0] = np.nan, np.inf
    known = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.0], [0.1, 1e6]])
    radius, gradients, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, known)
    np.testing.assert_array_equal(radius[:3], known[:3])
    np.testing.assert_array_equal(gradients[:3], 0)
    assert radius[3, 0] > 0.1 and radius[3, 1] == 1e6
    for everything in (np.full((4, 2), 1e9), np.full((4, 2), np.inf)):  # nothing left to improve
        radius, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, everything)
        np.testing.assert_array_equal(radius, everything)
    empty = np.zeros((0, 2))
    radius, *_ = LocalCurvatureCertificate(network).radii(
        np.zeros((0, 4)), np.zeros(0, int), empty.astype(int), empty
    )
    assert radius.shape == (0, 2)


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e8, 1e100, 1e200])
@pytest.mark.parametrize("sizes", [(4, 6, 3), (4, 6, 5, 3), (6, 4, 5, 7, 3)])
def test_extreme_weights(sizes, scale, rng, random_network):
    network = random_network(rng, sizes, "softplus", scale)
    x, label, rivals = _predicted(network, rng, 4)
    radius, *_ = LocalCurvatureCertificate(network).radii(x, label, rivals, np.zeros(rivals.shape))
    assert not np.isnan(radius).any() and np.all(radius >= 0.0)
    of = np.repeat(np.arange(4), 2)
    reach = np.minimum(radius.ravel(), 1e6)
    with np.errstate(all="ignore"):
        logits = [
            network.logits(p).numpy() for p in _in_balls(rng, x[of], reach, 50) if reach.any()
        ]
    for z in logits:
        pair = np.arange(len(of))
        kept = z[pair, label[of]] > z[pair, rivals.ravel()]
        assert np.all(kept | (radius.ravel() == 0.0))


def test_an_affine_network_is_refused(rng, random_network):
    with pytest.raises(InputError, match="needs a hidden layer"):
        LocalCurvatureCertificate(random_network(rng, (3, 4), ()))


def test_far_tighter_than_the_global_bound_near_an_input(rng, random_network):
    network = random_network(rng, (12, 8, 9, 7, 3), "tanh", 1.5)
    x = rng.standard_normal((COUNT, 12))
    of, label, rival = _pairs()
    local = LocalCurvature(network)
    kappa = local.bound(local.anchor(x), np.full(COUNT, 0.01), of, label, rival)
    everywhere = -curvature_bounds(network).lower[label, rival]
    assert np.median(everywhere / kappa) > 10.0


@pytest.mark.parametrize("name", ["softplus", "sigmoid"])
@pytest.mark.parametrize("size", [1e160, 1.7e308])
def test_an_absurd_input_does_not_stop_the_others(name, size, rng):
    """What overflows on its way may be anywhere: the whole line, and no interval without ends."""
    kernels = [rng.standard_normal(shape) for shape in ((3, 4), (4, 4), (4, 3))]
    network = Network.from_weights(kernels, [np.zeros(4), np.zeros(4), np.zeros(3)], name)
    x = np.array([[0.3, -0.2, 0.1], [size, -size, size]])
    alone, both = (LocalCurvatureCertificate(network).certify(part) for part in (x[:1], x))
    assert both.radius[0] == pytest.approx(alone.radius[0], rel=1e-6) and both.radius[0] > 0.0
    assert both.radius[1] >= 0.0
