"""No point of the ball leaves the bounds, whoever looks for it; and they are as tight as known."""

import pathlib

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates import ball_bounds
from keras_curv.certificates.crown import LinearBoundCertificate, pre_activation_bounds
from keras_curv.certificates.interval import IntervalCertificate
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3), 6: (3, 8, 6, 7, 5, 9, 4)}
CASES = [
    (name, depth)
    for name in ("softplus", "sigmoid", "tanh", "relu", "softsign")
    for depth in (2, 3, 6)
]


def _build(kernels, biases, name):
    maps = [Affine(kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)]
    return Network(maps, [ACTIVATIONS[name]] * (len(maps) - 1))


def _network(rng, sizes, name, scale=1.5):
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [scale * rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    return _build(kernels, [0.5 * scale * rng.standard_normal(n) for _, n in shapes], name)


def _rivals(network, label):
    classes = np.arange(network.classes)
    return np.array([classes[classes != y] for y in label])


def _labelled(network, x):
    label = network.logits(x).numpy().argmax(axis=1)
    return label, _rivals(network, label)


def _project(delta, radius):
    length = np.linalg.norm(delta, axis=-1, keepdims=True)
    return delta * (np.minimum(length, radius[:, None]) / np.maximum(length, 1e-300))


def _ball_points(rng, x, radius, count):
    """`(count, n, dim)`: on the sphere and inside."""
    delta = rng.standard_normal((count, *x.shape))
    delta /= np.linalg.norm(delta, axis=-1, keepdims=True)
    share = np.where(np.arange(count) % 2, 1.0, rng.uniform(size=count) ** 0.3)
    return x + delta * radius[:, None] * share[:, None, None]


def _lowest_margins(network, x, label, rivals, radius, rng, steps=10):
    """By projected gradient descent, normalised steps, from the centre and at random: `(n, k)`."""
    lowest = np.full(rivals.shape, np.inf)
    for k in range(rivals.shape[1]):
        for start in (np.zeros_like(x), rng.standard_normal(x.shape)):
            delta = _project(start, 0.5 * radius)
            for step in range(steps):
                got = network.evaluate(tf.constant(x + delta), label, rivals[:, k : k + 1])
                lowest[:, k] = np.minimum(lowest[:, k], got.margin.numpy()[:, 0])
                gradient = got.gradient.numpy()[:, 0]
                gradient /= np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1e-300)
                length = radius[:, None] * (1.0 if step == 0 else 1.0 / step)
                delta = _project(delta - length * gradient, radius)
    return lowest


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_no_pre_activation_leaves_its_interval(name, depth, rng):
    network = _network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((6, network.dim))
    for size in (0.03, 0.4, 3.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        intervals = pre_activation_bounds(network, x, radius)
        assert [low.shape[1] for low, _ in intervals] == list(network.sizes[1:-1])
        points = tf.constant(_ball_points(rng, x, radius, 400).reshape(-1, network.dim))
        layers = network._forward(points)[0]
        for (low, high), z in zip(intervals, layers, strict=True):
            z = z.numpy().reshape(400, *low.shape)
            slack = 1e-13 * (1.0 + np.abs(z).max())  # rounding of the sampled values
            assert np.all(z >= low - slack) and np.all(z <= high + slack)


@pytest.mark.parametrize(("name", "depth"), [case for case in CASES if case[1] != 2])
def test_gradient_ascent_does_not_leave_the_last_interval(name, depth, rng):
    network = _network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((5, network.dim))
    radius = rng.uniform(0.05, 0.8, len(x))
    low, high = pre_activation_bounds(network, x, radius)[-1]
    # The last hidden layer as logits: unit j against a constant zero class.
    hidden = network.affines[depth - 2]
    kernel = np.concatenate([hidden.kernel, np.zeros((hidden.fan_in, 1))], axis=1)
    head = Affine(kernel, np.append(hidden.bias, 0.0))
    inner = Network([*network.affines[: depth - 2], head], network.activations[: depth - 2])
    units = np.tile(np.arange(hidden.fan_out), (len(x), 1))
    zero = np.full(len(x), hidden.fan_out)
    for sign, bound in ((1.0, low), (-1.0, -high)):
        flipped = Affine(sign * head.kernel, sign * head.bias)
        negated = Network([*inner.affines[:-1], flipped], inner.activations)
        # margin of "zero" against unit j is −(± z_j); descend on ± z_j through the swapped pair
        for j in range(hidden.fan_out):
            got = _lowest_margins(negated, x, units[:, j], zero[:, None], radius, rng, 6)
            assert np.all(got[:, 0] >= bound[:, j] - 1e-12 * (1.0 + np.abs(bound[:, j])))


def test_the_first_layer_is_exact(rng):
    network = _network(rng, SIZES[3], "tanh")
    x, radius = rng.standard_normal((7, 4)), rng.uniform(size=7)
    low, high = pre_activation_bounds(network, x, radius)[0]
    first = network.affines[0]
    reach = radius[:, None] * np.linalg.norm(first.kernel, axis=0)
    np.testing.assert_allclose(low, x @ first.kernel + first.bias - reach, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(high, x @ first.kernel + first.bias + reach, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_no_margin_falls_below_its_bound(name, depth, rng):
    network = _network(rng, SIZES[depth], name)
    x = 0.7 * rng.standard_normal((6, network.dim))
    label, rivals = _labelled(network, x)
    for size in (0.05, 0.5, 4.0):
        radius = size * rng.uniform(0.3, 1.0, len(x))
        bound = LinearBoundCertificate(network).margin_bounds(x, label, rivals, radius)
        got = _lowest_margins(network, x, label, rivals, radius, rng)
        points = _ball_points(rng, x, radius, 100)
        for k in range(rivals.shape[1]):
            args = np.tile(label, 100), np.tile(rivals[:, k], 100)
            margin = network.margin(tf.constant(points.reshape(-1, network.dim)), *args).numpy()
            got[:, k] = np.minimum(got[:, k], margin.reshape(100, -1).min(axis=0))
        assert np.all(got >= bound - 1e-12 * (1.0 + np.abs(bound)))


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh", "softsign"])
def test_small_balls_have_the_linear_bound(name, rng):
    """`f − R ‖∇f‖ − O(R²)`: with R = 1e-5 what is left of second order is below 1e-8."""
    network = _network(rng, SIZES[3], name)
    x = rng.standard_normal((6, 4))
    label, rivals = _labelled(network, x)
    bound = LinearBoundCertificate(network).margin_bounds(x, label, rivals, np.full(6, 1e-5))
    got = network.evaluate(tf.constant(x), label, rivals)
    linear = got.margin.numpy() - 1e-5 * np.linalg.norm(got.gradient.numpy(), axis=-1)
    np.testing.assert_allclose(bound, linear, rtol=0.0, atol=1e-7)


REFERENCE = ["sigmoid3", "tanh3", "tanh4", "relu2", "relu3"]


@pytest.mark.parametrize("case", REFERENCE)
def test_at_least_as_tight_as_auto_lirpa(case):
    with np.load(pathlib.Path(__file__).parents[1] / "data" / "crown_l2.npz") as data:
        part = {k.split("/")[1]: data[k] for k in data if k.startswith(f"{case}/")}
    layers = range(int(case[-1]))
    network = _build(
        [part[f"kernel{i}"] for i in layers], [part[f"bias{i}"] for i in layers], case[:-1]
    )
    certificate = LinearBoundCertificate(network)
    x, label = part["x"], part["label"]
    rivals = _rivals(network, label)
    margin = network.evaluate(tf.constant(x), label, rivals).margin.numpy()
    for eps, theirs in zip(part["eps"], part["crown_lower"], strict=True):
        radius = np.full(len(x), eps)
        # One rival at a time: a rival that is not the nearest would not get its second pass.
        ours = np.concatenate(
            [
                certificate.margin_bounds(x, label, rivals[:, k : k + 1], radius)
                for k in range(rivals.shape[1])
            ],
            axis=1,
        )
        assert np.mean(ours - theirs) >= -1e-11  # the charge for rounding
        # Interpolation between 32 points costs at most 1 % of what a margin loses to the ball.
        assert np.all(ours >= theirs - 0.01 * (margin - theirs) - 1e-11)


def test_affine_networks_are_exact(rng):
    network = _network(rng, SIZES[1], "tanh")
    x = rng.standard_normal((5, 5))
    label, rivals = _labelled(network, x)
    got = network.evaluate(tf.constant(x), label, rivals)
    margin, slope = got.margin.numpy(), np.linalg.norm(got.gradient.numpy(), axis=-1)
    exact = (margin / slope).min(axis=1)
    radius, gradients, *_ = LinearBoundCertificate(network).radii(
        x, label, rivals, np.zeros((5, 2))
    )
    assert np.all(radius <= exact[:, None]) and np.all(radius >= 0.999 * exact[:, None])
    assert np.all(gradients >= 2)


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_radii_survive_attack_and_are_the_largest(name, depth, rng):
    network = _network(rng, SIZES[depth], name, 1.2)
    x = 0.7 * rng.standard_normal((8, network.dim))
    label, rivals = _labelled(network, x)
    certificate = LinearBoundCertificate(network)
    radius, *_ = certificate.radii(x, label, rivals, np.zeros(rivals.shape))
    assert np.all(radius > 0.0) and np.all(radius == radius[:, :1])
    inside = radius[:, 0] * (1.0 - 1e-9)
    assert np.all(certificate.margin_bounds(x, label, rivals, radius[:, 0]) > 0.0)
    assert np.all(_lowest_margins(network, x, label, rivals, inside, rng) > 0.0)
    bounded = radius[:, 0] < 1e90  # many layers of sigmoid forget the input: no margin changes
    beyond = certificate.margin_bounds(x, label, rivals, radius[:, 0] * 1.0011).min(axis=1)
    assert np.all(beyond[bounded] <= 0.0)
    assert bounded.sum() >= (0 if (name, depth) == ("sigmoid", 6) else 4)


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_bound_is_below_that_of_intervals(name, scale, rng):
    network = _network(rng, (4, 7, 6, 5, 3), name, scale)
    x, radius = rng.standard_normal((40, 4)), 10.0 ** rng.uniform(-2, 3, 40)
    args = x, *_labelled(network, x), radius
    intervals = IntervalCertificate(network).margin_bounds(*args)
    lines = LinearBoundCertificate(network).margin_bounds(*args)
    slack = 1e-9 * np.max(np.abs(intervals), initial=1.0)
    assert np.all(lines >= intervals - slack)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softsign"])
def test_no_input_changes_a_class_that_is_proved_far_out(name, rng):
    kernels = [rng.standard_normal(shape) for shape in ((4, 6), (6, 5), (5, 3))]
    # The largest bias at which all is proved, or about that: attacks should come close.
    for top in (14.0, 9.0, 5.0):
        biases = [rng.standard_normal(6), rng.standard_normal(5), np.array([0.0, 0.0, top])]
        network = _build(kernels, biases, name)
        x = rng.standard_normal((10, 4))
        result = LinearBoundCertificate(network).certify(x)
        rows = np.flatnonzero(result.radius > 1e99)
        assert len(rows) or top < 14.0
        if not len(rows):
            break
        x, label = x[rows], result.prediction[rows]
        rivals = _rivals(network, label).reshape(len(rows), 2)
        for reach in (1e-3, 3.0, 1e8):
            radius = np.full(len(rows), reach)
            points = _ball_points(rng, x, radius, 64).reshape(-1, 4)
            found = network.logits(points).numpy().argmax(axis=1).reshape(64, -1)
            assert np.all(found == label)
            assert np.all(_lowest_margins(network, x, label, rivals, radius, rng, steps=4) > 0.0)


def test_rounding_is_charged_of_a_margin_that_no_input_changes(rng):
    # The bias makes the constant margin 0 but for its own rounding, of either sign.
    signs = set()
    for _ in range(12):
        inner, row = rng.standard_normal(9), 1e3 * rng.standard_normal(9)
        parts = zip(map(mpmath.mpf, row), map(mpmath.mpf, inner), strict=True)
        with mpmath.workdps(60):
            exact = mpmath.fsum(w * mpmath.tanh(z) for w, z in parts)
            margin = exact - mpmath.mpf(float(exact))
        kernels = [np.zeros((4, 9)), np.stack([row, np.zeros(9)], axis=1)]
        network = _build(kernels, [inner, np.array([-float(exact), 0.0])], "tanh")
        signs.add(mpmath.sign(margin))
        for radius in (1.0, 1e9, 1e99):
            args = np.ones((1, 4)), np.array([0]), np.array([[1]]), np.array([radius])
            assert LinearBoundCertificate(network).margin_bounds(*args).item() <= margin
    assert signs >= {-1, 1}


def test_known_radii(rng):
    network = _network(rng, SIZES[3], "softplus")
    x = rng.standard_normal((9, 4))
    label, rivals = _labelled(network, x)
    certificate = LinearBoundCertificate(network)
    free, gradients, *_ = certificate.radii(x, label, rivals, np.zeros((9, 2)))
    known = free * np.array([[9.0, 9.0], [0.3, 0.5], [9.0, 0.5]] * 3)
    radius, fewer, *_ = certificate.radii(x, label, rivals, known)
    assert np.all(radius >= known)
    np.testing.assert_array_equal(radius[::3], known[::3])  # nothing left to gain
    assert np.all(fewer[::3] < gradients[::3])
    # Same brackets to 0.1 %, not the same probes.
    np.testing.assert_allclose(radius[1::3], free[1::3], rtol=2e-3)
    np.testing.assert_array_equal(radius[2::3, 0], known[2::3, 0])
    assert np.all(radius[2::3, 1] >= free[2::3, 1] * 0.998)
    # A rival known to be far is not in the way of the others.
    weakest = certificate.margin_bounds(x, label, rivals, free[:, 0] * 1.01).argmin(axis=1)
    known = np.zeros((9, 2))
    known[np.arange(9), weakest] = 100.0
    radius, *_ = certificate.radii(x, label, rivals, known)
    assert np.all(radius[np.arange(9), 1 - weakest] > free[:, 0])
    assert np.all(radius[np.arange(9), weakest] == 100.0)


def test_a_rival_known_to_be_far_does_not_cost_the_others_their_second_pass(rng):
    network = _network(rng, (4, 12, 9, 3), "tanh", 2.0)
    x = rng.standard_normal((20, 4))
    label, rivals = _labelled(network, x)
    certificate = LinearBoundCertificate(network)
    radius = certificate.radii(x, label, rivals, np.zeros((20, 2)))[0][:, 0]
    for k in range(2):
        alone = certificate.margin_bounds(x, label, rivals[:, [k]], radius)
        asked = np.tile(np.arange(2) == k, (20, 1))
        beside = certificate._margin_bounds(x, label, rivals, radius, asked)
        np.testing.assert_allclose(beside[:, k], alone[:, 0], rtol=1e-9, atol=1e-12)


def test_served_error_is_taken_off(rng):
    network = _network(rng, SIZES[3], "tanh")
    x = rng.standard_normal((6, 4))
    label, rivals = _labelled(network, x)
    known = np.zeros(rivals.shape)

    def grows(x, label, rivals, radius):
        assert radius.shape == rivals.shape == (len(x), rivals.shape[1])
        return 0.05 + 0.1 * radius

    certificate = LinearBoundCertificate(network, grows)
    radius, *_ = certificate.radii(x, label, rivals, known)
    left = certificate.margin_bounds(x, label, rivals, radius[:, 0]) - 0.05 - 0.1 * radius
    positive = radius[:, 0] > 0.0
    assert positive.any() and np.all(left[positive] > 0.0)
    plain, *_ = LinearBoundCertificate(network).radii(x, label, rivals, known)
    assert np.all(radius[positive] < plain[positive])
    endless = LinearBoundCertificate(network, lambda x, y, t, r: np.full(t.shape, np.nan))
    assert not endless.radii(x, label, rivals, known)[0].any()


def test_nothing_is_proved_of_wrong_tied_or_overflowing_inputs(rng):
    network = _network(rng, SIZES[3], "softplus")
    x = rng.standard_normal((5, 4))
    label = network.logits(x).numpy().argmin(axis=1)
    x[0], x[1] = np.nan, 1e308
    rivals = _rivals(network, label)
    known = rng.uniform(size=rivals.shape)
    radius, *_ = LinearBoundCertificate(network).radii(x, label, rivals, known)
    np.testing.assert_array_equal(radius, known)
    kernels = [np.eye(2), np.ones((2, 2))]
    tied = Network.from_weights(kernels, [np.zeros(2), np.zeros(2)], "tanh")
    one = np.array([[1]])
    radius, *_ = LinearBoundCertificate(tied).radii(
        np.ones((1, 2)), np.array([0]), one, np.zeros((1, 1))
    )
    assert radius == 0.0


@pytest.mark.parametrize("name", ["tanh", "softplus", "relu"])
@pytest.mark.parametrize("power", [-300, -160, -20, 20, 100, 300])
def test_extreme_weights(name, power, rng):
    network = _network(rng, SIZES[3], name)
    first = network.affines[0]
    with np.errstate(over="ignore", under="ignore"):
        scaled = Affine(first.kernel * 10.0**power, first.bias)
        network = Network([scaled, *network.affines[1:]], network.activations)
        x = rng.standard_normal((4, 4))
        label, rivals = _labelled(network, x)
        radius, *_ = LinearBoundCertificate(network).radii(x, label, rivals, np.zeros((4, 2)))
        assert not np.isnan(radius).any() and np.all(radius >= 0.0)
        usable = (radius[:, 0] > 0.0) & (radius[:, 0] < 1e90)
        if power == 20:
            assert usable.any()
        got = _lowest_margins(network, x, label, rivals, radius[:, 0] * (1 - 1e-9), rng)
        assert np.all(got[usable] >= 0.0)


def _exact_margin(network, x, label, rival):
    a = [mpmath.mpf(float(v)) for v in x]
    for index, affine in enumerate(network.affines):
        columns = affine.kernel.T.tolist()
        z = [
            mpmath.fsum(mpmath.mpf(w) * v for w, v in zip(column, a, strict=True)) + mpmath.mpf(b)
            for column, b in zip(columns, affine.bias.tolist(), strict=True)
        ]
        if index < network.depth - 1:
            name = network.activations[index].name
            a = [max(v, mpmath.mpf(0)) if name == "relu" else mpmath.tanh(v) for v in z]
    return z[label] - z[rival]


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_cancellation_is_charged(name, rng):
    """At radius 0, sums that cancel to nothing: the bound stays below the margin's 50 digits."""
    rounded_up = 0
    for _ in range(40):
        kernels = [rng.standard_normal((6, 8)), rng.standard_normal((8, 7))]
        kernels.append(rng.standard_normal((7, 3)))
        for kernel in kernels:  # pairs of inputs that nearly cancel
            half = len(kernel) // 2
            kernel[:half] *= 1e7
            kernel[half : 2 * half] = -kernel[:half] * (1.0 + 1e-9)
        biases = [rng.standard_normal(kernel.shape[1]) for kernel in kernels]
        network = _build(kernels, biases, name)
        x = np.tile(rng.standard_normal(3), 2)[None]
        label, rivals = _labelled(network, x)
        certificate = LinearBoundCertificate(network)
        bound = certificate.margin_bounds(x, label, rivals, np.zeros(1))
        computed = network.evaluate(tf.constant(x), label, rivals).margin.numpy()
        with mpmath.workdps(50):
            exact = [_exact_margin(network, x[0], label[0], t) for t in rivals[0]]
        assert all(mpmath.mpf(float(b)) <= e for b, e in zip(bound[0], exact, strict=True))
        rounded_up += sum(mpmath.mpf(float(c)) > e for c, e in zip(computed[0], exact, strict=True))
    assert rounded_up >= 10  # so there was something to charge


@pytest.mark.parametrize("part", ["hidden kernel", "hidden bias", "last kernel", "last bias"])
def test_folding_errors_are_charged(part, rng):
    """Stable relus, radius 0: all is linear, and the worst change of one part is known."""
    error = 1e-3
    kernels = [rng.standard_normal((4, 6)), rng.standard_normal((6, 3))]
    biases = [np.full(6, 20.0), rng.standard_normal(3)]
    exact = _build(kernels, biases, "relu")
    x, radius = rng.standard_normal((1, 4)), np.zeros(1)
    label, rivals = _labelled(exact, x)
    label, rival = label[0], rivals[0, 0]
    w = kernels[1][:, label] - kernels[1][:, rival]
    hidden = x[0] @ kernels[0] + biases[0]
    against = np.zeros(3)
    against[[label, rival]] = -1.0, 1.0
    shifts = {  # each of norm `error`; w moves by √2 of what the last kernel does
        "hidden kernel": (np.outer(x[0], -w) / np.linalg.norm(x) / np.linalg.norm(w), 0, 0, 0),
        "hidden bias": (0, -w / np.linalg.norm(w), 0, 0),
        "last kernel": (0, 0, np.outer(hidden, against) / np.linalg.norm(hidden) / 2**0.5, 0),
        "last bias": (0, 0, 0, against / 2**0.5),
    }[part]
    changes = [error * shift for shift in shifts]
    moved = _build(
        [kernels[0] + changes[0], kernels[1] + changes[2]],
        [biases[0] + changes[1], biases[1] + changes[3]],
        "relu",
    )
    errors = [error * np.any(shift) for shift in shifts]
    folded = Network(
        [Affine(kernels[0], biases[0], *errors[:2]), Affine(kernels[1], biases[1], *errors[2:])],
        exact.activations,
    )
    one = np.array([label]), np.array([[rival]])
    worst = moved.margin(tf.constant(x), one[0], one[1][:, 0]).numpy()[0]
    bound = LinearBoundCertificate(folded).margin_bounds(x, *one, radius)[0, 0]
    plain = LinearBoundCertificate(exact).margin_bounds(x, *one, radius)[0, 0]
    assert bound <= worst < plain
    # √2 < 2 in the last map, and norms of bounds of |a| in the place of norms
    assert plain - bound <= 4.0 * (plain - worst)
    low, high = pre_activation_bounds(folded, x, radius)[0]
    z = x @ (kernels[0] + changes[0]) + biases[0] + changes[1]
    assert np.all((low <= z) & (z <= high))


def test_folding_errors_are_charged_in_depth(rng):
    exact = _network(rng, SIZES[6], "tanh", 1.5)
    error = 1e-3
    maps = [Affine(a.kernel, a.bias, error, error) for a in exact.affines]
    folded = Network(maps, exact.activations)
    x, radius = rng.standard_normal((3, 3)), np.full(3, 1e-4)
    label, rivals = _labelled(exact, x)
    bound = LinearBoundCertificate(folded).margin_bounds(x, label, rivals, radius)
    intervals = pre_activation_bounds(folded, x, radius)
    for _ in range(20):
        maps = []
        for affine in exact.affines:
            left, right = rng.standard_normal(affine.fan_in), rng.standard_normal(affine.fan_out)
            noise = np.outer(left, right) * error / np.linalg.norm(left) / np.linalg.norm(right)
            shift = error * right / np.linalg.norm(right)
            maps.append(Affine(affine.kernel + noise, affine.bias + shift))
        moved = Network(maps, exact.activations)
        for (low, high), z in zip(intervals, moved._forward(tf.constant(x))[0], strict=True):
            assert np.all((z.numpy() >= low) & (z.numpy() <= high))
        assert np.all(moved.evaluate(tf.constant(x), label, rivals).margin.numpy() >= bound)


def test_chunks_do_not_change_the_result(rng, monkeypatch):
    network = _network(rng, SIZES[6], "sigmoid", 3.0)
    x = rng.standard_normal((7, 3))
    label, rivals = _labelled(network, x)
    certificate = LinearBoundCertificate(network)
    whole = certificate.radii(x, label, rivals, np.zeros((7, 3)))
    intervals = pre_activation_bounds(network, x, 0.1)
    for entries in (600, 60):
        monkeypatch.setattr(ball_bounds, "ENTRIES", entries)
        parts = certificate.radii(x, label, rivals, np.zeros((7, 3)))
        np.testing.assert_allclose(parts[0], whole[0], rtol=2e-3)  # probes may differ by rounding
        for one, other in zip(intervals, pre_activation_bounds(network, x, 0.1), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_an_empty_batch(rng):
    network = _network(rng, SIZES[3], "tanh")
    empty = np.zeros((0, 4)), np.zeros(0, int), np.zeros((0, 2), int), np.zeros((0, 2))
    radius, gradients, *_ = LinearBoundCertificate(network).radii(*empty)
    assert radius.shape == (0, 2) and gradients.shape == (0,)
    assert [low.shape for low, _ in pre_activation_bounds(network, empty[0], 1.0)] == [
        (0, 9),
        (0, 5),
    ]


def test_what_is_refused(rng):
    network = _network(rng, SIZES[3], "tanh")
    step = Activation("step", tf.sign, None, None, (0.0, np.inf), (-np.inf, np.inf), (), ())
    with pytest.raises(InputError, match="'step'"):
        LinearBoundCertificate(Network(network.affines, [network.activations[0], step]))
    with pytest.raises(InputError, match="must be \\(n, 4\\)"):
        pre_activation_bounds(network, np.zeros((2, 5)), 1.0)
    for radius in (-1.0, np.nan):
        with pytest.raises(InputError, match="negative, nor NaN"):
            pre_activation_bounds(network, np.zeros((2, 4)), radius)
