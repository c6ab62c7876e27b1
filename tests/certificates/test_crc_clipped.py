"""Certificates of classifiers that clip their input hold for every δ, and are no weaker for it."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.success_rates import success_rates
from keras_curv.certificates.float32 import Float32Error
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.clip import Clip, layers, split_clip
from keras_curv.network.network import Network
from keras_curv.threats.clipped import clipped


def _behind(seed, sizes=(2, 7, 3), activation="softplus", steep=1.5):
    rng = np.random.default_rng(seed)
    kernels = [steep * rng.standard_normal(s) for s in zip(sizes, sizes[1:], strict=False)]
    # About its median somewhere within the limits.
    biases = [-0.5 * kernels[0].sum(axis=0), *(0.1 * rng.standard_normal(n) for n in sizes[2:])]
    return Network.from_weights(kernels, biases, activation)


def _clipping(network, dead_zone=0.0, scale=None, cap=1.0):
    """The network behind `clip((x − a)/(1 − 2a), 0, 1)`, as a reader would have it."""
    ones = np.ones(network.dim)
    scale = ones / (1.0 - 2.0 * dead_zone) if scale is None else np.asarray(scale)
    offset = 0.5 - 0.5 * scale
    first = Affine(np.diag(scale), offset)
    sigmas = [activations.get(f"capped_relu({cap!r})"), *network.activations]
    return Network([first, *network.affines], sigmas)


def _points(seed, count, dim):
    """Inside the limits, outside of them, at their edges and in dead zones."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.3, 1.3, (count, dim))
    special = rng.choice([0.0, 1.0, 0.05, 0.95, -0.2, 0.5], (count, dim))
    return np.where(rng.random((count, dim)) < 0.5, special, x)


@pytest.mark.parametrize("scale", [[1.0, 1.0], [1.4, -0.8], [2.0, 0.0]])
def test_no_point_of_a_grid_is_nearer(scale):
    network = _clipping(_behind(1), scale=scale)
    x = _points(2, 40, 2)
    result = CurvatureCertificate(network).certify(x)
    axis = np.linspace(-2.0, 3.0, 401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    there = network.logits(tf.constant(grid.reshape(-1, 2))).numpy().argmax(axis=1)
    there = there.reshape(len(axis), len(axis))
    ratios = []
    for point, prediction, radius in zip(x, result.prediction, result.radius, strict=True):
        distance = np.hypot.outer(*(axis - point[:, None]))
        nearest = distance[there != prediction].min(initial=np.inf)
        assert radius <= nearest
        ratios.append(radius / nearest)
    # Were the dual to bound from the wrong side, or prove nothing, they would not be so near.
    assert np.max(ratios) > 0.97 and np.median(ratios) > 0.6


@pytest.mark.parametrize("dead_zone", [0.0, 0.1])
def test_nothing_breaks_inside_and_something_does_outside(dead_zone):
    behind = _behind(3, (12, 20, 4), steep=0.6)
    network = _clipping(behind, dead_zone)
    x = _points(4, 80, 12)
    result = CurvatureCertificate(network).certify(x)
    finite = (result.radius > 0.0) & (result.radius < 1e3)
    assert finite.sum() > 50
    x, label, radius = x[finite], result.prediction[finite], result.radius[finite]

    def attack(radius):
        args = tf.constant(x), tf.constant(label)
        return pgd_attack(network, *args, radius=radius, steps=20, restarts=4)

    broken = {}
    for share in (0.9999, 1.1, 1.5):
        margin, point = attack(tf.constant(share * radius))
        assert np.all(np.linalg.norm(point - x, axis=1) <= share * radius * (1.0 + 1e-9))
        broken[share] = np.sum(margin.numpy() < 0.0)
    assert broken[0.9999] == 0
    assert 0.5 * len(x) < broken[1.1] <= broken[1.5]


@pytest.mark.parametrize("seed", range(2))
def test_a_clip_never_costs(seed):
    """The same weights, inputs within the limits: up to where the search stops."""
    behind = _behind(seed, (8, 15, 3), steep=0.8)
    x = np.random.default_rng(seed).uniform(0.0, 1.0, (100, 8))
    plain = CurvatureCertificate(behind).certify(x).radius
    clipped = CurvatureCertificate(_clipping(behind)).certify(x).radius
    assert np.all(clipped >= plain * (1.0 - 2e-3))
    assert np.max(clipped / plain) > 1.05  # and near a corner it helps


def test_limits_out_of_reach_change_nothing():
    behind = _behind(5, (6, 10, 3), steep=0.8)
    x = np.random.default_rng(0).uniform(0.0, 1.0, (60, 6))
    plain = CurvatureCertificate(behind).certify(x).radius
    first = Affine(np.eye(6), np.full(6, 512.0))
    second = Affine(behind.affines[0].kernel, behind.affines[0].bias
                    - 512.0 * behind.affines[0].kernel.sum(axis=0))  # fmt: skip
    sigmas = [activations.get("capped_relu(1024.0)"), *behind.activations]
    wide = Network([first, second, *behind.affines[1:]], sigmas)
    np.testing.assert_allclose(CurvatureCertificate(wide).certify(x).radius, plain, rtol=2e-3)


def test_a_linear_margin_behind_a_clip():
    """Known answers: f = v₁ − v₂ + ¼; what is clipped away must be crossed first."""
    last = Affine(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.25, 0.0]))
    network = Network([Affine(np.eye(2), np.zeros(2)), last], [activations.get("capped_relu(1.0)")])
    x = np.array([[0.5, 0.0], [0.5, -3.0], [1.5, 0.5], [0.0, 0.0], [0.0, -1.0]])
    radius = CurvatureCertificate(network).certify(x, np.zeros(5, int)).radius
    # Free: 0.75/√2. Only v₁ near: then 0.5 of it is all there is, so v₂ has to come, too.
    known = [0.75 / np.sqrt(2.0), np.hypot(0.5, 3.25), np.hypot(0.75, 0.5), 0.25, 1.25]
    assert np.all(radius <= np.array(known) * (1.0 + 1e-12))
    np.testing.assert_allclose(radius[[0, 3]], np.array(known)[[0, 3]], rtol=5e-3)
    # Duality lets it move all the way, at a cost of 2², a quarter of the time.
    # Its λ, where the move jumps, is found to a quarter.
    assert 0.8 < radius[4] <= 1.0


def test_where_nothing_can_change_the_radius_is_without_end():
    last = Affine(np.zeros((2, 2)), np.array([1.0, 0.0]))
    network = Network([Affine(np.eye(2), np.zeros(2)), last], [activations.get("capped_relu(1.0)")])
    result = CurvatureCertificate(network).certify(np.zeros((1, 2)))
    assert result.radius[0] > 1e100


def test_a_scale_of_one_is_that_up_to_what_folding_left():
    """Where the real one is larger x reaches any value sooner, also from where nothing was off."""
    first = Affine(np.eye(1), np.zeros(1), kernel_error=5e-4)
    last = Affine(np.array([[0.0, 1.0]]), np.array([0.5, 0.0]))
    network = Network([first, last], [activations.get("capped_relu(1.0)")])
    radius = CurvatureCertificate(network).certify(np.zeros((1, 1))).radius.item()
    assert 0.4997 < radius <= 0.5 / (1.0 + 5e-4)


def test_what_folding_left_beside_the_diagonal_is_paid_for(rng):
    """`‖B (S + Δ)‖ ≤ 1`, B the costs, for every Δ of the norm that is charged."""
    scale, error = np.array([1.0, 0.5, -2.0]), 1e-2
    clip = Clip(scale, np.zeros(3), np.zeros(3), np.ones(3), scale_error=error)
    cost = clipped(clip, tf.zeros((1, 3), tf.float64)).reach.cost.numpy()
    delta = rng.standard_normal((200, 3, 3)) * (rng.random((200, 3, 3)) < 0.4)
    norms = np.linalg.norm(delta, axis=(1, 2), keepdims=True)
    reached = cost[:, None] * (np.diag(scale) + error * delta / np.maximum(norms, 1e-9))
    assert 0.99 < np.linalg.norm(reached, 2, axis=(1, 2)).max() <= 1.0


@pytest.mark.parametrize("method", ["crc", "auto", "crown"])
def test_what_folding_left_meets_all_of_x_and_not_one_entry(method):
    """A map as near as may be to the one that is stored: at x it has another class already."""
    error, scale = 1e-12, np.array([1e-6, 1.0])
    first = Affine(np.diag(scale), np.zeros(2), kernel_error=error)
    last = Affine(np.array([[1.0, -1.0], [0.0, 0.0]]), np.array([-0.5, 0.5]))
    network = Network([first, last], [activations.get("capped_relu(1.0)")])
    x = np.array([[0.9e6, -1e12], [0.9e6, -3e11], [0.9e6, 0.5]])
    radius = choose_method(method, network).certify(x).radius
    moved = np.diag(scale) + error * np.array([[0.0, 0.0], [1.0, 0.0]])
    z = x @ moved
    assert z[0, 0] < 0.0 and radius[0] == 0.0
    # Of the others the first entry has to fall to 0.5.
    assert np.all(radius[1:] <= (z[1:, 0] - 0.5) / np.linalg.norm(moved[:, 0])) and radius[2] > 0.0


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *itertools.product(("crc", "crown", "lipschitz"), ("relu", "capped_relu(1.0)", "relu6")),
        *(("coupled", "relu"), ("quadratic", "relu"), ("auto", "capped_relu(1.0)")),
    ],
)
def test_a_scale_that_is_flushed_to_zero_is_charged(method, name):
    """What is computed as the larger logit is by far the smaller one."""
    tiny = 2e-308
    first = np.diag([1.0, tiny]), np.zeros(2)
    last = np.array([[-1.0, 0.0], [-1e9, 0.0]]), np.array([10.0, 0.0])
    x = np.array([[0.5, 1e300]])
    exact = 10 - Fraction(0.5) - 10**9 * Fraction(tiny) * Fraction(1e300)
    assert exact < -10
    network = Network.from_weights(*zip(first, last, strict=True), name)
    result = choose_method(method, network).certify(x)
    assert result.prediction[0] == 1 or result.radius[0] == 0.0


def test_what_serving_rounds_is_taken_off():
    network = _clipping(_behind(6, (6, 10, 3), steep=0.8), 0.1)
    x = _points(7, 40, 6).astype(np.float32).astype(np.float64)
    real = choose_method("crc", network).certify(x).radius
    served = choose_method("crc", network, Float32Error(network)).certify(x).radius
    assert np.all(served <= real * (1 + 1e-3)) and np.mean(served > 0.99 * real) > 0.8


def test_success_rates_are_of_models_without_a_clip():
    """Its attack is on a smooth margin."""
    certificate = choose_method("crc", _clipping(_behind(6, (6, 10, 3))))
    x = np.random.default_rng(0).uniform(0.0, 1.0, (4, 6))
    with pytest.raises(InputError, match="does not clip"):
        success_rates(certificate, x, np.zeros(4, int), radius=0.1)


def test_a_clip_is_no_layer_of_a_summary():
    network = _behind(6, (6, 10, 3))
    assert layers(network) == {"depth": 2}
    assert layers(_clipping(network)) == {"depth": 2, "clips_input": True}


def test_other_methods_take_the_clip_for_a_layer():
    network = _clipping(_behind(8, (4, 6, 3)))
    assert split_clip(network) is not None
    x = np.random.default_rng(0).uniform(0.0, 1.0, (10, 4))
    each = {
        name: choose_method(name, network).certify(x).radius
        for name in ("crc", "lipschitz", "crown")
    }
    auto = choose_method("auto", network, tolerance=0.0).certify(x).radius
    assert np.all(auto >= np.max(list(each.values()), axis=0) * (1.0 - 2e-3))


@pytest.mark.parametrize(
    ("first", "activation"),
    [
        (np.ones((2, 2)), "capped_relu(1.0)"),  # mixes entries
        (np.eye(2)[::-1], "capped_relu(1.0)"),  # and this one moves them
        (np.eye(2), "softplus"),
        (np.eye(2), "leaky_relu(0.1)"),
    ],
)
def test_what_is_no_clip_is_not_taken_for_one(first, activation):
    network = Network.from_weights([first, np.eye(2)], [np.zeros(2)] * 2, activation)
    assert split_clip(network) is None


def test_an_entry_that_does_not_move_must_be_known_exactly():
    """What folding was off by is made good by a move of x, and by none where the scale is 0."""
    last = Affine(np.array([[1.0, 0.0], [1000.0, 0.0]]), np.array([-500.25, 0.0]))
    sigma = activations.get("capped_relu(1.0)")
    x = np.array([[0.75, 0.0]])
    for error, other in ((0.0, 0.5), (1e-3, 0.499)):
        network = Network(
            [Affine(np.diag([1.0, 0.0]), np.array([0.0, 0.5]), 0.0, error), last], [sigma]
        )
        real = np.append(x[0, :1], other) @ last.kernel + last.bias  # as far as the error allows
        assert (split_clip(network) is None) == (real[0] < real[1])
        for name in ("auto", "lipschitz", "crown"):
            radius = choose_method(name, network).certify(x).radius
            assert (radius > 0.0) == (real[0] > real[1])
