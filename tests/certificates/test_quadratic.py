"""The quadratic certificate of two-layer ReLU networks, attacked and held against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_curv.certificates.linear import quadratic
from keras_curv.certificates.linear.quadratic import QuadraticCertificate, parabolas
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import batches

SIZES = [(2, 5, 3), (3, 11, 4), (7, 4, 2), (6, 40, 5)]


def _logits(network, x):
    first, last = network.affines
    return np.maximum(x @ first.kernel + first.bias, 0.0) @ last.kernel + last.bias


def _against_all(label, classes):
    others = np.arange(classes - 1) + (np.arange(classes - 1) >= np.asarray(label)[:, None])
    return np.asarray(others, np.int64)


def _case(rng, random_network, sizes, count=6, scale=1.5):
    network = random_network(rng, sizes, "relu", scale)
    x = rng.standard_normal((count, sizes[0]))
    label = _logits(network, x).argmax(axis=1)
    return network, x, label, _against_all(label, sizes[-1])


def _margins(network, x, label, rivals):
    logits = _logits(network, x)
    return np.take_along_axis(logits, label[:, None], 1) - np.take_along_axis(logits, rivals, 1)


def _attacked(rng, network, x, label, rivals, radius, starts=12, steps=60):
    """The lowest margin met within each radius, `(n, k)`, by sampling and projected gradients."""
    first, last = network.affines
    shape = (starts, *rivals.shape, x.shape[1])
    w = last.kernel.T[label][:, None] - last.kernel.T[rivals]
    c = last.bias[label][:, None] - last.bias[rivals]
    delta = rng.standard_normal(shape)
    size = rng.random((*shape[:-1], 1)) ** (1.0 / x.shape[1])
    size[: starts // 2] = 1.0
    limit = radius[..., None]
    delta *= limit * size / np.linalg.norm(delta, axis=-1, keepdims=True)
    lowest = np.full(rivals.shape, np.inf)
    for step in range(steps):
        z = (x[:, None] + delta) @ first.kernel + first.bias
        lowest = np.minimum(lowest, (np.sum(w * np.maximum(z, 0.0), axis=-1) + c).min(axis=0))
        gradient = (w * (z > 0.0)) @ first.kernel.T
        norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
        delta = delta - 0.3 * 0.93**step * limit * gradient / np.maximum(norm, 1e-300)
        length = np.linalg.norm(delta, axis=-1, keepdims=True)
        delta *= np.minimum(1.0, limit / np.maximum(length, 1e-300))
    return lowest


ends = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(ends, ends, st.booleans())
def test_parabolas_bound_relu(one, other, below):
    low, high = min(one, other), max(one, other)
    square, slope, constant = parabolas(np.array(low), np.array(high), np.array(below))
    z = np.concatenate([np.linspace(low, high, 101), np.clip([0.0], low, high)])
    gap = np.maximum(z, 0.0) - ((square * z + slope) * z + constant)
    # What 1e-12 has to cover: 16 roundings at the largest of the terms.
    slack = 1e-14 * (max(abs(low), abs(high)) + 1e-300) * 4.0
    assert np.all((gap if below else -gap) >= -slack)
    assert square >= 0.0 and slope >= 0.0


def test_parabolas_by_hand():
    low = np.array([-1.0, -1.0, -3.0, -1.0, -3.0, 1.0, -2.0])
    high = np.array([1.0, 3.0, 1.0, 2.5, 1.0, 2.0, -1.0])
    below = np.array([False, False, False, True, True, True, False])
    assert parabolas(low, high, below).T == pytest.approx(
        np.array(
            [
                [1 / 4, 1 / 2, 1 / 4],  # (z + 1)²/4
                [1 / 16, 10 / 16, 9 / 16],  # touches 0 at −1, and z at 3 with slope 1
                [1 / 16, 6 / 16, 9 / 16],  # (z + 3)²/16
                [0, 1, 0],
                [0, 0, 0],
                [0, 1, 0],
                [0, 0, 0],
            ]
        )
    )
    assert parabolas(np.array(-2.0), np.array(3.0), np.array(True)) == pytest.approx([0.2, 0.4, 0])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rho", [0.0, 0.1, 0.7, 4.0])
def test_the_quadratic_is_below_the_margin(sizes, rho, rng, random_network):
    network, x, label, rivals = _case(rng, random_network, sizes, count=20)
    rival = rivals[:, 0]
    q = QuadraticCertificate(network).quadratics(x, label, rival, np.full(20, rho))
    kernel = network.affines[0].kernel
    for _ in range(300):
        delta = rng.standard_normal(x.shape)
        delta *= rho / np.linalg.norm(delta, axis=1, keepdims=True)
        delta *= rng.choice([1.0, rng.random()])
        value = q.constant + np.sum(q.linear * delta, axis=1)
        value += 0.5 * np.sum(q.diagonal * (delta @ kernel) ** 2, axis=1)
        error = q.constant_error + q.linear_error * rho
        margin = _margins(network, x + delta, label, rival[:, None])[:, 0]
        # The test's own evaluation rounds as well, by no more than is charged.
        assert np.all(value - 2.0 * error <= margin)
    assert np.all(q.constant_error <= 1e-11) and np.all(q.linear_error <= 1e-11)
    if rho == 0.0:  # the tangent
        assert q.constant == pytest.approx(_margins(network, x, label, rivals)[:, 0])
        assert np.all(q.diagonal == 0.0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scale", [0.3, 1.5, 6.0])
def test_no_certified_radius_can_be_attacked(sizes, scale, rng, random_network):
    network, x, label, rivals = _case(rng, random_network, sizes, count=15, scale=scale)
    known = np.zeros(rivals.shape)
    radius, gradients, *_ = QuadraticCertificate(network).prove(
        Question.of(x, label, rivals, known)
    )
    assert np.all(radius > 0.0) and np.all(np.isfinite(radius)) and np.all(gradients > 0)
    lowest = _attacked(rng, network, x, label, rivals, radius)
    # The attack touches the sphere; 1e-9 is its own rounding of a margin.
    assert np.all(lowest >= -1e-9)
    # The bounds are not idle: a few times further the attack succeeds, for nearly all.
    broken = _attacked(rng, network, x, label, rivals, 5.0 * radius).min(axis=1) < 0.0
    assert np.mean(broken) > 0.5


def _distance_to_zero(q, kernel, row):
    """min ‖δ‖ with Q(δ) ≤ 0, in two dimensions, from the root along each direction."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200_001)
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    a = 0.5 * ((direction @ kernel) ** 2 @ q.diagonal[row])
    b, c = direction @ q.linear[row], q.constant[row]
    root = np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0))
    real = b * b - 4.0 * a * c >= 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = np.stack([(-b - root) / (2.0 * a), (-b + root) / (2.0 * a), -c / b])
    usable = real & (roots > 0.0) & (np.abs(a) > 1e-12 * np.array([[1.0], [1.0], [-np.inf]]))
    usable[2] = (np.abs(a) <= 1e-12) & (roots[2] > 0.0)
    return np.where(usable, roots, np.inf).min()


def test_the_radius_is_the_distance_to_zero_of_the_quadratic(rng, random_network):
    """The S-lemma is exact, whether or not Q is convex."""
    exact = indefinite = 0
    for _ in range(25):
        network, x, label, rivals = _case(rng, random_network, (2, 6, 3), count=2)
        certificate = QuadraticCertificate(network)
        q = certificate.quadratics(x, label, rivals[:, 0], np.full(2, 1.0))
        kernel = network.affines[0].kernel
        lowest = [np.linalg.eigvalsh((kernel * d) @ kernel.T)[0] for d in q.diagonal]
        kappa = np.maximum(-np.array(lowest), 0.0)
        with np.errstate(divide="ignore"):
            displacement = certificate.distances.nearest(q, kappa)
        radius = certificate.radius_at(q, kappa, displacement, x)
        for row in range(2):
            distance = _distance_to_zero(q, kernel, row)
            if q.constant[row] > 0.0 and distance < 1e6:
                # The grid of angles is that coarse, squared, and the bisection for η.
                assert radius[row] == pytest.approx(distance, rel=1e-6)
                exact += 1
                indefinite += kappa[row] > 0.0
    assert exact > 25 and indefinite > 10


def test_displacements_and_curvatures_that_are_bad_cost_only_radius(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (3, 9, 3), count=8)
    certificate = QuadraticCertificate(network)
    rho = np.full(8, 0.8)
    q = certificate.quadratics(x, label, rivals[:, 0], rho)
    kappa = np.array([certificate.curvature_bound(d) for d in q.diagonal])
    best = certificate.radius_at(q, kappa, certificate.distances.nearest(q, kappa), x)
    for factor in (1.0, 1.5, 10.0):
        for _ in range(20):
            d = rng.standard_normal(x.shape)
            radius = certificate.radius_at(q, factor * kappa, d, x)
            assert np.all(radius <= best * (1.0 + 1e-6))


def test_curvature_of_the_quadratic_is_bounded_closely(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (6, 40, 5))
    certificate = QuadraticCertificate(network)
    q = certificate.quadratics(x, label, rivals[:, 0], np.full(len(x), 0.5))
    kernel = network.affines[0].kernel
    for diagonal in q.diagonal:
        smallest = min(np.linalg.eigvalsh(kernel @ np.diag(diagonal) @ kernel.T)[0], 0.0)
        bound = certificate.curvature_bound(diagonal)
        assert bound >= -smallest - 1e-12 and bound == pytest.approx(-smallest, rel=1e-9, abs=1e-12)


def test_a_network_without_kinks_nearby_gets_its_exact_distance():
    # All units stay active: the margin is linear, and 2 away from its boundary.
    network = Network.from_weights(
        [np.eye(2), np.eye(2)],
        [np.array([50.0, 50.0]), np.array([2.0 * np.sqrt(2.0), 0.0])],
        "relu",
    )
    radius, *_ = QuadraticCertificate(network).prove(
        Question.of(np.zeros((1, 2)), np.array([0]), np.array([[1]]), np.zeros((1, 1)))
    )
    assert radius[0, 0] == pytest.approx(2.0, rel=1e-6)


def test_known_radii_are_kept_and_only_the_others_searched(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (6, 40, 5))
    certificate = QuadraticCertificate(network)
    fresh, all_gradients, *_ = certificate.prove(Question.of(x, label, rivals))
    known = np.where(rng.random(rivals.shape) < 0.5, 3.0 * fresh, 0.0)
    radius, gradients, *_ = certificate.prove(Question.of(x, label, rivals, known))
    assert np.all(radius >= known) and np.all(radius[known > 0.0] == known[known > 0.0])
    assert np.all(radius.min(axis=1) >= 0.97 * fresh.min(axis=1))
    assert np.all(gradients <= all_gradients)
    radius, *_ = certificate.prove(Question.of(x, label, rivals, np.full(rivals.shape, 1e3)))
    assert np.all(radius == 1e3)


def test_all_rivals_share_one_radius(rng, random_network, monkeypatch):
    """The least of them is what each alone would get, whichever is asked first."""
    network, x, label, rivals = _case(rng, random_network, (6, 40, 5), count=100)
    certificate = QuadraticCertificate(network)
    together, *_ = certificate.prove(Question.of(x, label, rivals))
    alone = [
        certificate.prove(Question.of(x, label, rivals[:, j : j + 1]))[0]
        for j in range(rivals.shape[1])
    ]
    least = np.min(alone, axis=0)[:, 0]
    assert together.min(axis=1) == pytest.approx(least, rel=0.02)
    assert np.all(together.min(axis=1) > 0.998 * least)
    # Where another rival takes the lead as the ball grows, the ball of the first is too large.
    monkeypatch.setattr(quadratic, "LEADERS", 1)
    first, *_ = certificate.prove(Question.of(x, label, rivals))
    assert np.any(first.min(axis=1) < 0.98 * least)


def test_folding_errors_are_charged(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (3, 11, 4))
    size = 0.02
    loose = Network(
        [Affine(a.kernel, a.bias, size, size) for a in network.affines], network.activations
    )
    exact, *_ = QuadraticCertificate(network).prove(Question.of(x, label, rivals))
    radius, *_ = QuadraticCertificate(loose).prove(Question.of(x, label, rivals))
    assert np.all(radius.min(axis=1) < exact.min(axis=1)) and np.any(radius > 0.0)
    for _ in range(20):
        moved = []
        for affine in network.affines:
            turn, bias = (
                rng.standard_normal(affine.kernel.shape),
                rng.standard_normal(len(affine.bias)),
            )
            kernel = affine.kernel + size * turn / np.linalg.norm(turn, 2)
            moved.append(Affine(kernel, affine.bias + size * bias / np.linalg.norm(bias)))
        other = Network(moved, network.activations)
        positive = radius > 0.0
        lowest = _attacked(rng, other, x, label, rivals, radius, starts=4, steps=20)
        assert np.all(lowest[positive] >= -1e-9)


def test_a_folding_error_of_the_worst_kind_is_charged(rng, random_network):
    """The first kernel moved, as far as it may be, straight against the margin."""
    network, x, label, rivals = _case(rng, random_network, (3, 11, 2), count=12)
    first, last = network.affines
    for size in (0.003, 0.03):
        loose = Network([Affine(first.kernel, first.bias, size), last], network.activations)
        radius, *_ = QuadraticCertificate(loose).prove(Question.of(x, label, rivals))
        assert np.any(radius > 0.0)
        for i in np.flatnonzero(radius[:, 0]):
            w = last.kernel[:, label[i]] - last.kernel[:, rivals[i, 0]]
            gradient = w * (x[i] @ first.kernel + first.bias > 0.0)
            moved = np.outer(x[i], gradient)
            kernel = first.kernel - size * moved / np.linalg.norm(moved)
            other = Network([Affine(kernel, first.bias), last], network.activations)
            row = slice(i, i + 1)
            lowest = _attacked(rng, other, x[row], label[row], rivals[row], radius[row])
            assert lowest[0, 0] >= -1e-9


def test_the_served_error_is_taken_off_the_margin(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (3, 11, 4))

    def served_error(x, label, rivals, radius):
        return 0.05 + 0.1 * radius

    certificate = QuadraticCertificate(network, served_error)
    radius, *_ = certificate.prove(Question.of(x, label, rivals))
    exact, *_ = QuadraticCertificate(network).prove(Question.of(x, label, rivals))
    assert np.all(radius.min(axis=1) <= exact.min(axis=1)) and np.any(radius > 0.0)
    lowest = _attacked(rng, network, x, label, rivals, radius)
    error = served_error(x, label, rivals, radius)
    assert np.all((lowest >= error - 1e-9) | (radius == 0.0))


def test_examples_that_prove_nothing(rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (3, 11, 4))
    certificate = QuadraticCertificate(network)
    wrong = _logits(network, x).argmin(axis=1)
    others = _against_all(wrong, 4)
    radius, *_ = certificate.prove(Question.of(x, wrong, others, np.zeros(others.shape)))
    assert np.all(radius == 0.0)
    radius, *_ = certificate.prove(Question.of(x, wrong, others, np.full(others.shape, 0.25)))
    assert np.all(radius == 0.25)
    for bad in (np.nan, np.inf, 1e200):
        radius, *_ = certificate.prove(Question.of(np.full_like(x, bad), label, rivals))
        assert np.all(radius == 0.0)
    empty, gradients, *_ = certificate.prove(Question.of(x[:0], label[:0], rivals[:0]))
    assert empty.shape == (0, 3) and gradients.shape == (0,)


def test_a_tie_has_no_radius():
    network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "relu")
    radius, *_ = QuadraticCertificate(network).prove(
        Question.of(np.ones((1, 2)), np.array([0]), np.array([[1]]), np.zeros((1, 1)))
    )
    assert radius[0, 0] == 0.0


@pytest.mark.parametrize("first", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("last", [1e-60, 1.0, 1e60])
def test_extreme_weights(first, last, rng, random_network):
    network, x, label, rivals = _case(rng, random_network, (3, 11, 4))
    one, two = network.affines
    scaled = Network(
        [
            Affine(first * one.kernel, first * one.bias),
            Affine(last * two.kernel, two.bias * (first * last)),
        ],
        network.activations,
    )
    plain, *_ = QuadraticCertificate(network).prove(Question.of(x, label, rivals))
    radius, *_ = QuadraticCertificate(scaled).prove(Question.of(x, label, rivals))
    assert radius == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(
    ("steep", "away"), [(1e100, 1e80), (1e143, 1e20), (1e126, 1e37), (1e150, 1e13), (1e152, 1e11)]
)
def test_a_coefficient_that_underflows_is_charged(steep, away):
    """f = 1 − relu(s x)/(s X), at x = −X: the boundary is 2X away, and w k₂ is 0 in float64."""
    kernels = [np.array([[steep]]), np.array([[0.0, 1.0 / steep / away]])]
    network = Network.from_weights(kernels, [np.zeros(1), np.array([1.0, 0.0])], "relu")
    found = QuadraticCertificate(network).certify(np.array([[-away]]))
    assert 0.0 <= found.radius.item() <= 2.0 * away


def test_dead_and_constant_networks(rng):
    x, label, rivals = rng.standard_normal((4, 3)), np.zeros(4, np.int64), np.ones((4, 1), np.int64)
    for kernel in (np.zeros((3, 5)), rng.standard_normal((3, 5))):
        network = Network.from_weights(
            [kernel, np.zeros((5, 2))], [np.full(5, -1.0), np.array([1.0, 0.0])], "relu"
        )
        radius, *_ = QuadraticCertificate(network).prove(Question.of(x, label, rivals))
        assert np.all(radius > 100.0) and not np.any(np.isnan(radius))


@pytest.mark.parametrize(
    ("sizes", "activation", "message"),
    [
        ((3, 4, 2), "softplus", "2 layers, activations softplus"),
        ((3, 4, 5, 2), "relu", "3 layers, activations relu, relu"),
        ((3, 2), "relu", "1 layers, activations none"),
    ],
)
def test_other_networks_are_refused_by_name(sizes, activation, message, rng, random_network):
    with pytest.raises(InputError, match=message):
        QuadraticCertificate(random_network(rng, sizes, activation))


@pytest.mark.parametrize("sizes", SIZES)
def test_a_search_that_ends_early_leaves_next_to_nothing(sizes, rng, random_network, monkeypatch):
    network, x, label, rivals = _case(rng, random_network, sizes, count=40)
    none = np.zeros(rivals.shape)
    found = QuadraticCertificate(network).prove(Question.of(x, label, rivals, none))
    monkeypatch.setattr(quadratic, "SEARCH", 60)
    monkeypatch.setattr(quadratic, "CLOSED", 1.0 + 1e-12)
    longer = QuadraticCertificate(network).prove(Question.of(x, label, rivals, none))
    share = found.radius.min(axis=1) / longer.radius.min(axis=1)
    assert np.mean(share) > 0.997  # r(ρ) has steps, at which either may end
    assert found.gradients.sum() < 0.9 * longer.gradients.sum()


def test_batches_side_by_side_change_nothing(rng, random_network, monkeypatch):
    network, x, label, rivals = _case(rng, random_network, SIZES[1], count=9)
    none = np.zeros(rivals.shape)
    alone = QuadraticCertificate(network).prove(Question.of(x, label, rivals, none))
    monkeypatch.setattr(batches, "processors", lambda: 2)
    beside = QuadraticCertificate(network).prove(Question.of(x, label, rivals, none))
    np.testing.assert_allclose(beside.radius, alone.radius, rtol=1e-9)
    np.testing.assert_array_equal(beside.gradients, alone.gradients)
