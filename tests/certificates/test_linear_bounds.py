"""Large layers are bounded forward instead of by passes back: as sound, and for sparse maps too."""

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import CASES, SIZES, ball_points, draw_network, labelled, lowest_margins
from linear_intervals import assert_inside, pre_activation_bounds

from keras_curv.certificates.linear import crown
from keras_curv.certificates.linear.bounds import linear_bounds, plan
from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.bounds.relaxation import relaxation
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.question import Question
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import SparseAffine

DEEP = [case for case in CASES if case[1] > 2]


@pytest.fixture
def forward(monkeypatch):
    monkeypatch.setattr(plan, "WORK", 0.0)


def sparse(network, maps):
    """The network with these of its maps stored sparse."""
    affines = list(network.affines)
    for index in maps:
        kernel, bias = affines[index].kernel, affines[index].bias
        norms = affines[index].norm, affines[index].magnitude_norm
        affines[index] = SparseAffine(kernel, bias, proved_norm=norms[0], proved_magnitude=norms[1])
    return Network(affines, network.activations)


def test_the_plan(rng, monkeypatch):
    network = draw_network(rng, (4, 9, 5, 6, 3), "tanh")
    assert Plan.of(network) == Plan((0, 1, 2), [], [])
    for work, back in ((0.0, (0,)), (2.0 * 5 * 36, (0, 1)), (2.0 * (5 * 36 + 6 * 81), (0, 1, 2))):
        monkeypatch.setattr(plan, "WORK", work)
        found = Plan.of(network)
        assert found.back == back and bool(found.before) == bool(found.pre) == (len(back) < 3)
    assert Plan.of(sparse(network, [0])).back == ()
    assert Plan.of(sparse(network, [1])).back == (0,)
    assert Plan.of(sparse(network, [1])).before[0] == 1.0


@pytest.mark.parametrize(("name", "depth"), DEEP)
def test_no_pre_activation_leaves_its_interval(name, depth, forward, rng):
    network = draw_network(rng, SIZES[depth], name)
    assert Plan.of(network).back == (0,)
    x = 0.7 * rng.standard_normal((6, network.dim))
    for size in (0.03, 0.4, 3.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        points = ball_points(rng, x, radius, 400)
        assert_inside(network, points, pre_activation_bounds(network, x, radius))


def test_movement_is_what_bounds_a_layer_where_the_box_is_wide(forward, rng):
    """Steep toward one point of the second layer: the interval's end is reached to a few percent.

    With n equal paths of slope 1/√n each, the box of a adds n · R/√n where R is all that there is.
    """
    n = 64
    first, second = np.full((1, n), 1.0 / np.sqrt(n)), np.full((n, 1), 1.0 / np.sqrt(n))
    kernels = [first, second, np.array([[1.0, -1.0]])]
    biases = [np.zeros(n), np.zeros(1), np.zeros(2)]
    network = Network.from_weights(kernels, biases, "relu")
    low, high = pre_activation_bounds(network, np.ones((1, 1)), 0.5)[1]
    assert low[0, 0] <= 0.5 and high[0, 0] >= 1.5
    assert low[0, 0] >= 0.5 - 1e-9 and high[0, 0] <= 1.5 + 1e-9


@pytest.mark.parametrize(("name", "depth"), DEEP)
def test_no_margin_falls_below_its_bound(name, depth, forward, rng):
    network = draw_network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((6, network.dim))
    label, rivals = labelled(network, x)
    for size in (0.05, 0.5, 4.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        bound = LinearBoundCertificate(network).margin_bounds(x, label, rivals, radius)
        got = lowest_margins(network, x, label, rivals, radius, rng)
        assert np.all(got >= bound - 1e-12 * (1.0 + np.abs(bound)))


@pytest.mark.parametrize("maps", [[0], [1], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("name", ["relu", "sigmoid", "softplus"])
def test_sparse_maps_have_about_the_bounds_of_dense_ones(name, maps, forward, rng, monkeypatch):
    monkeypatch.setattr(crown.FirstLayer, "of", lambda network: None)  # for dense maps alone
    network = draw_network(rng, (4, 9, 7, 5, 3), name)
    x, radius = rng.standard_normal((5, 4)), rng.uniform(0.05, 0.5, 5)
    args = x, *labelled(network, x), radius
    dense = LinearBoundCertificate(network).margin_bounds(*args)
    found = LinearBoundCertificate(sparse(network, maps)).margin_bounds(*args)
    # Of products with sparse maps only norms are known, so that Lipschitz constants are larger.
    np.testing.assert_allclose(found, dense, rtol=0.02, atol=1e-3)
    assert np.all(lowest_margins(network, *args, rng) >= found)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus"])
def test_a_second_layer_that_is_bounded_forward_has_the_first_one_s_curvature(name, forward, rng):
    network = draw_network(rng, (40, 12, 9, 3), name)
    x, radius = rng.standard_normal((5, 40)), np.full(5, 0.1)
    first = FirstLayer.of(network)
    least, most = Centres(network, x, first).units(radius)
    low, high = pre_activation_bounds(network, x, radius)[1]
    assert Plan.of(network).back == (0,)
    assert np.all(low >= least - 1e-9) and np.all(high <= most + 1e-9)


@pytest.mark.parametrize("name", ["tanh", "softplus", "relu"])
@pytest.mark.parametrize("scale", [1e-60, 1.0, 1e60])
@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_passes_back_may_end_at_a_small_first_layer(name, scale, off, rng, monkeypatch):
    network = draw_network(rng, (40, 7, 8, 6, 3), name)
    first = network.affines[0]
    first = Affine(first.kernel / scale, first.bias, kernel_error=off / scale)
    network = Network([first, *network.affines[1:]], network.activations)
    x, radius = scale * rng.standard_normal((5, 40)), scale * rng.uniform(0.05, 0.5, 5)
    found = pre_activation_bounds(network, x, radius)

    def lowest(balls, rows, constants, error, known):
        best = np.fmax(balls.minimum(rows, constants, error)[0], known)
        if balls.first is None or len(balls.layers) < 2:
            return best
        back = balls.to_second(rows, constants, error)[:3]
        return np.fmax(best, balls.by_curvature(*back))

    monkeypatch.setattr(Balls, "lowest", lowest)
    at_input = pre_activation_bounds(network, x, radius)
    for (low, high), (lower, higher) in zip(found, at_input, strict=True):
        near = (1e-9 + 60.0 * off) * np.abs(higher - lower).max()  # it is charged twice
        np.testing.assert_allclose(low, lower, rtol=0.0, atol=near)
        np.testing.assert_allclose(high, higher, rtol=0.0, atol=near)
    points = ball_points(rng, x, radius, 400).reshape(-1, network.dim)
    # By maps as far from the first one as may be, which take most of a point.
    direction = points / np.linalg.norm(points, axis=1, keepdims=True)
    for sign in (-1.0, 1.0):
        moved = points @ first.kernel + first.bias
        moved += sign * off / scale * (points * direction).sum(axis=1, keepdims=True) / 7**0.5
        a = [tf.constant(points), network.activations[0].value(tf.constant(moved))]
        for affine, activation in zip(network.affines[1:-1], network.activations[1:], strict=True):
            a.append(activation.value(a[-1] @ affine.kernel + affine.bias))
        for (low, high), before, affine in zip(found[1:], a[1:], network.affines[1:], strict=False):
            z = (before.numpy() @ affine.kernel + affine.bias).reshape(400, *low.shape)
            assert np.all(z >= low - 1e-13) and np.all(z <= high + 1e-13)


@pytest.mark.parametrize("name", ["relu", "relu6", "sparse_plus"])
@pytest.mark.parametrize("inputs", [5, 36])
def test_units_whose_lines_are_0_are_left_out(name, inputs, rng, monkeypatch):
    """Of each example others; whatever is left, the bounds are those of all units."""
    network = draw_network(rng, (inputs, 40, 30, 20, 3), name, scale=2.0)
    x, radius = rng.standard_normal((6, network.dim)), np.geomspace(0.001, 3.0, 6)
    label, rivals = labelled(network, x)
    found = []
    for most in (0.0, 1.0 + 1e-9):
        monkeypatch.setattr(linear_bounds, "MOST", most)
        intervals = pre_activation_bounds(network, x, radius)
        assert_inside(network, ball_points(rng, x, radius, 400), intervals)
        margins = LinearBoundCertificate(network).margin_bounds(x, label, rivals, radius)
        found.append([*np.concatenate(intervals, axis=2), margins.T])
        lines = [relaxation(network.activations[0], *ends) for ends in intervals]
        assert all(0.0 < part.sloped.mean() < 1.0 for part in lines[:2])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_radii_of_sparse_maps_survive_attack_and_gain_on_lipschitz(rng):
    network = sparse(draw_network(rng, (4, 30, 20, 3), "relu"), [0, 1])
    x = rng.standard_normal((12, 4))
    label, rivals = labelled(network, x)
    known = np.zeros(rivals.shape)
    radius = (
        LinearBoundCertificate(network).prove(Question.of(x, label, rivals, known)).radius[:, 0]
    )
    plain = (
        LipschitzCertificate(network).prove(Question.of(x, label, rivals, known)).radius.min(axis=1)
    )
    assert np.all(radius > 0.0) and radius.mean() > 1.5 * plain.mean()
    inside = radius * (1.0 - 1e-9)
    assert np.all(lowest_margins(network, x, label, rivals, inside, rng) > 0.0)


def test_rounding_and_folding_of_forward_bounds_are_charged(forward, rng):
    """Weights known to within an error: the intervals hold for every one that is as near."""
    plain = draw_network(rng, (4, 9, 5, 3), "tanh")
    error = 1e-3
    loose = [Affine(a.kernel, a.bias, error, error) for a in plain.affines]
    x, radius = rng.standard_normal((6, 4)), 0.3
    wide = pre_activation_bounds(Network(loose, plain.activations), x, radius)[1]
    for _ in range(20):
        moved = []
        for affine in plain.affines:
            step = np.linalg.qr(rng.standard_normal((max(affine.kernel.shape),) * 2))[0]
            kernel = affine.kernel + 0.999 * error * step[: affine.fan_in, : affine.fan_out]
            shift = rng.standard_normal(affine.fan_out)
            bias = affine.bias + 0.999 * error * shift / np.linalg.norm(shift)
            moved.append(Affine(kernel, bias))
        network = Network(moved, plain.activations)
        points = ball_points(rng, x, np.full(6, radius), 50).reshape(-1, 4)
        a = network.hidden(tf.constant(points))[1].numpy()
        z = (a @ moved[1].kernel + moved[1].bias).reshape(50, 6, 5)
        assert np.all(z >= wide[0]) and np.all(z <= wide[1])
