"""No point inside a radius changes the prediction: grids, hostile search points, odd inputs."""

import numpy as np
import pytest
import tensorflow as tf
from single_gradient import radius_at

from keras_curv.certificates.certificate import Status, choose_rivals
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.question import Question
from keras_curv.curvature.bounds import CurvatureBounds
from keras_curv.network.network import Network

PLANE = [
    ((2, 3), (), 1.5),
    ((2, 5), (), 0.2),
    ((2, 7, 3), ("sigmoid",), 4.0),
    ((2, 7, 2), ("tanh",), 1.0),
    ((2, 9, 4), ("tanh",), 3.0),
    ((2, 7, 5, 3), ("tanh", "softplus"), 2.0),
    ((2, 4, 6, 5, 3), ("tanh", "softplus", "sigmoid"), 1.5),
]
untraced = pytest.mark.usefixtures("untraced")  # where each network is asked once or twice
ANGLES = np.linspace(0.0, 2.0 * np.pi, 720, endpoint=False)
DIRECTIONS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
# The outermost ring lies 1e-9 inside; a boundary point is missed by at most half an angle
# step, which is 1e-5 of the radius: any radius too large by more is caught.
RINGS = np.concatenate([np.linspace(0.1, 0.9, 5), [0.99, 1.0 - 1e-9]])


def _keeps_prediction(logits, x, prediction, radius):
    """Per row: whether the whole disc of that radius, on a fine polar grid, keeps its class."""
    radius = np.minimum(radius, 1e6)
    offsets = radius[:, None, None, None] * RINGS[None, :, None, None] * DIRECTIONS
    found = logits((x[:, None, None] + offsets).reshape(-1, 2)).argmax(axis=1)
    found = found.reshape(len(x), -1)
    return np.all((found == prediction[:, None]) | (radius == 0.0)[:, None], axis=1)


@pytest.fixture(params=PLANE, ids=lambda c: f"{len(c[0]) - 1} layers {' '.join(c[1])} {c[2]}")
def plane(request, rng, random_network):
    sizes, names, scale = request.param
    return random_network(rng, sizes, names, scale), 1.5 * rng.standard_normal((20, 2))


@untraced
def test_no_counterexample_on_a_grid(plane, plain_logits):
    network, x = plane
    certificate = CurvatureCertificate(network)
    result = certificate.certify(x)

    def logits(points):
        return plain_logits(network, points)

    assert np.all(result.status == Status.CERTIFIED)
    assert np.all(_keeps_prediction(logits, x, result.prediction, result.radius))
    assert np.all(result.adversarial_distance >= result.radius * (1.0 - 1e-12))  # rounding
    # Where primal = dual the distance is that of a real adversarial point.
    exact = result.primal_equals_dual & np.isfinite(result.radius)
    assert np.array_equal(exact, result.adversarial_distance <= result.radius * 1.001) and np.all(
        np.isfinite(result.adversarial_distance[exact])
    )
    wider = _keeps_prediction(
        logits, x, result.prediction, result.adversarial_distance * (1.0 + 1e-4)
    )
    assert not np.any(wider[exact])
    if network.depth <= 2:
        assert np.sum(exact) >= 3

    few = slice(0, 6)
    _garbage_points_are_harmless(
        certificate, x[few], result.prediction[few], result.nearest_rival[few], logits
    )


def _garbage_points_are_harmless(certificate, x, label, rival, logits):
    rng = np.random.default_rng(5)
    noise = rng.standard_normal(x.shape)
    points = [x + s * noise for s in (0.0, 1e-12, 0.01, 0.3, 3.0, 1e3, 1e8, 1e160, 1e307)]
    points += [noise * np.nan, noise * np.inf, np.zeros_like(x)]
    points += [np.where(rng.random(x.shape) < 0.5, np.nan, x)]
    for point in points:
        radius = radius_at(certificate, x, point, label, rival)
        assert np.all(radius >= 0.0)  # and not NaN
        pair = np.stack([label, rival], axis=1)

        def margin_sign(z, pair=pair):
            values = np.take_along_axis(
                logits(z), np.repeat(pair, len(z) // len(pair), axis=0), axis=1
            )
            return np.stack([values[:, 0], values[:, 1]], axis=1)

        assert np.all(_keeps_prediction(margin_sign, x, np.zeros(len(x), int), radius))


@untraced
@pytest.mark.parametrize("curvature_off_by", [1.0, 0.2])
def test_the_grid_would_notice(curvature_off_by, plain_logits):
    """The oracle of this file, tried out: with a fifth of the curvature it must object."""
    rng = np.random.default_rng(1)
    kernels = [rng.standard_normal((2, 12)), rng.standard_normal((12, 2))]
    network = Network.from_weights(kernels, [np.zeros(12), np.zeros(2)], "tanh")
    x = 0.7 * rng.standard_normal((100, 2))
    lower, upper = CurvatureCertificate(network).curvature
    bounds = CurvatureBounds(lower * curvature_off_by, upper)
    result = CurvatureCertificate(network, curvature=bounds).certify(x)
    kept = _keeps_prediction(
        lambda z: plain_logits(network, z), x, result.prediction, result.radius
    )
    assert np.all(kept) == (curvature_off_by == 1.0)


@untraced
def test_more_steps_prove_more(rng, random_network, plain_logits):
    network = random_network(rng, (2, 9, 4), ("tanh",), 2.0)
    x = rng.standard_normal((40, 2))
    before = None
    for steps in (0, 40):
        result = CurvatureCertificate(network, max_steps=steps).certify(x)
        kept = _keeps_prediction(
            lambda z: plain_logits(network, z), x, result.prediction, result.radius
        )
        assert np.all(kept) and np.all(result.radius > 0.0)
        if before is not None:
            # A search stops within the tolerance 1e-4 of its bracket; 2e-4 for two of them.
            assert np.all(result.radius >= before * (1.0 - 2e-4))
        before = result.radius


def test_zero_steps_is_the_one_gradient_certificate(rng, random_network):
    network = random_network(rng, (5, 9, 4), ("tanh",))
    certificate = CurvatureCertificate(network, max_steps=0)
    x = rng.standard_normal((20, 5))
    result = certificate.certify(x)
    rivals = choose_rivals(certificate.logits(x), result.prediction, "all", np.arange(20))
    evaluation = network.evaluate(tf.constant(x), result.prediction, rivals)
    kappa = -certificate.curvature.lower[result.prediction[:, None], rivals]
    f, h = evaluation.margin.numpy(), np.linalg.norm(evaluation.gradient, axis=2)
    expected = (2.0 * f / (h + np.sqrt(h**2 + 2.0 * kappa * f))).min(axis=1)
    np.testing.assert_allclose(result.radius, expected, rtol=1e-9)  # the rounding charge
    assert np.all(result.gradient_evaluations == 3)


def test_a_linear_model_is_solved_exactly(rng, random_network):
    network = random_network(rng, (6, 4), ())
    x = rng.standard_normal((30, 6))
    result = CurvatureCertificate(network).certify(x)
    kernel, bias = network.affines[0].kernel, network.affines[0].bias
    logits = x @ kernel + bias
    for row in range(30):
        y = logits[row].argmax()
        distances = [
            (logits[row, y] - logits[row, t]) / np.linalg.norm(kernel[:, y] - kernel[:, t])
            for t in range(4)
            if t != y
        ]
        # The rounding charge is 1e-13 or so of these margins; and never from above.
        assert result.radius[row] == pytest.approx(min(distances), rel=1e-9)
        assert result.radius[row] <= min(distances)
    assert np.all(result.primal_equals_dual)


def test_ties_are_not_certified():
    kernel = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    network = Network.from_weights([kernel], [np.zeros(3)], ())
    result = CurvatureCertificate(network).certify(
        np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 2])
    )
    assert result.status.tolist() == [Status.TIED, Status.CERTIFIED]
    assert result.radius[0] == 0.0 and result.nearest_rival[0] == -1
    assert result.radius[1] == pytest.approx(np.sqrt(0.5), rel=1e-9)


def test_a_tie_that_only_rounding_breaks_is_not_certified():
    """Margins within their own rounding error prove nothing: 0.1 + 0.2 against 0.3."""
    network = Network.from_weights([[[0.1, 0.3], [0.2, 0.0]]], [np.zeros(2)], ())
    result = CurvatureCertificate(network).certify(np.array([[1.0, 1.0]]))
    assert result.radius[0] == 0.0
    assert result.status[0] in (Status.UNPROVED, Status.TIED)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_constant_network_never_changes(depth):
    sizes = [2, 4, 3, 3][:depth] + [3]
    kernels = [np.zeros(shape) for shape in zip(sizes[:-1], sizes[1:], strict=True)]
    biases = [np.linspace(1.0, 0.0, kernel.shape[1]) for kernel in kernels]
    network = Network.from_weights(kernels, biases, ["tanh", "softplus"][: depth - 1])
    result = CurvatureCertificate(network).certify(np.array([[0.0, 0.0], [1e6, -3.0]]))
    assert np.all(result.status == Status.CERTIFIED)
    assert np.all(result.prediction == 0) and np.all(result.radius > 1e100)
    assert np.all(np.isinf(result.adversarial_distance))


@untraced
@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh"])
def test_saturated_inputs(name, rng, random_network, plain_logits):
    network = random_network(rng, (2, 6, 3), name)
    x = 1e6 * rng.standard_normal((20, 2))
    result = CurvatureCertificate(network).certify(x)
    assert np.all(np.isfinite(result.radius)) and np.all(result.radius >= 0.0)
    kept = _keeps_prediction(
        lambda z: plain_logits(network, z), x, result.prediction, result.radius
    )
    assert np.all(kept)


def _scaled_network(scale, depth=2, name="tanh"):
    rng = np.random.default_rng(8)
    sizes = [2, 5, 4, 3][:depth] + [3]
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [scale * rng.standard_normal(shape) for shape in shapes]
    biases = [rng.standard_normal(shape[1]) for shape in shapes]
    return Network.from_weights(kernels, biases, [name, "softplus"][: depth - 1])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tiny_weights(depth):
    """Weights of 1e-30: radii are huge, and the first-order distance says how huge."""
    network = _scaled_network(1e-30, depth)
    x = np.zeros((1, 2))
    result = CurvatureCertificate(network).certify(x)
    assert result.status[0] == Status.CERTIFIED
    y, t = result.prediction, result.nearest_rival
    f, g = network.margin_and_gradient(tf.constant(x), y, t)
    # f is linear as far as rounding can see, near 0; the radius is its linear root at most.
    assert result.radius[0] <= f.numpy()[0] / np.linalg.norm(g) * (1.0 + 1e-6)
    assert result.radius[0] > 1e20


@pytest.mark.parametrize("size", [1e-156, 1e-160, 1e-170, 1e-200])
def test_gradients_whose_squares_underflow(size):
    """f = 1 + size · x: the prediction changes at distance 1/size, which is finite."""
    network = Network.from_weights([[[size, 0.0], [0.0, 0.0]]], [[1.0, 0.0]], ())
    result = CurvatureCertificate(network).certify(np.zeros((1, 2)))
    crossing = np.array([[-2.0 / size, 0.0]])
    assert network.logits(crossing).numpy().argmax() == 1
    assert result.radius[0] <= 2.0 / size


def test_a_deep_gradient_whose_square_underflows():
    """Ordinary float64 weights of 1e-120, two layers: the slope is 1e-240, and not zero."""
    kernels = [1e-120 * np.eye(2)] * 2
    network = Network.from_weights(kernels, [[1.0, 0.0]] * 2, "softplus")
    result = CurvatureCertificate(network).certify(np.zeros((1, 2)))
    crossing = np.array([[-1e250, 1e250]])
    assert network.logits(crossing).numpy().argmax() == 1
    assert result.radius[0] <= np.hypot(1e250, 1e250)


@pytest.mark.parametrize("scale", [1e30, 1e75, 1e100, 1e160, 1e300])
@pytest.mark.parametrize(
    ("depth", "name"), [(1, "tanh"), (2, "tanh"), (2, "softplus"), (3, "tanh")]
)
def test_huge_weights_prove_little_and_never_crash(scale, depth, name, plain_logits):
    network = _scaled_network(scale, depth, name)
    x = np.array([[0.3, -0.2], [1.0, 2.0], [1e6, 1e6], [0.0, 0.0]])
    result = CurvatureCertificate(network).certify(x)
    assert np.all(np.isin(result.status, [Status.CERTIFIED, Status.UNPROVED, Status.NOT_FINITE]))
    assert np.all((result.radius > 0.0) == (result.status == Status.CERTIFIED))
    if scale >= 1e160:
        assert not np.any(result.status[:3] == Status.CERTIFIED)
    with np.errstate(all="ignore"):
        rows = result.status == Status.CERTIFIED
        if np.any(rows):
            kept = _keeps_prediction(
                lambda z: plain_logits(network, z),
                x[rows],
                result.prediction[rows],
                result.radius[rows],
            )
            assert np.all(kept)


def test_labels_and_inputs_that_cannot_be_certified(rng, random_network):
    certificate = CurvatureCertificate(random_network(rng, (3, 6, 4), "tanh"))
    x = rng.standard_normal((6, 3))
    prediction = certificate.logits(x).argmax(axis=1)
    label = prediction.copy()
    label[1] = (label[1] + 1) % 4
    label[2] = 17
    label[3] = -1
    x[4, 1] = np.nan
    x[5, 2] = np.inf
    result = certificate.certify(x, label)
    assert result.status.tolist()[:5] == [0, 1, 1, 1, 4]
    assert np.all(result.radius[1:5] == 0.0) and result.radius[0] > 0.0
    assert result.radius[5] == 0.0 and result.status[5] != Status.CERTIFIED
    assert np.all(result.nearest_rival[1:5] == -1)
    unlabelled = certificate.certify(x[:4])
    assert np.all(unlabelled.status == Status.CERTIFIED)
    assert certificate.certify(x[:0]).radius.shape == (0,)
    assert all(status.text for status in Status)


@pytest.fixture
def wide(rng, random_network):
    network = random_network(rng, (8, 20, 10, 6), ("tanh", "softplus"))
    return network, CurvatureCertificate(network), rng.standard_normal((40, 8))


def test_all_rivals_are_the_smallest_of_single_rivals(wide):
    network, certificate, x = wide
    result = certificate.certify(x)
    rivals = choose_rivals(certificate.logits(x), result.prediction, "all", np.arange(40))
    single = np.concatenate(
        [
            certificate.prove(Question.of(x, result.prediction, rivals[:, [t]])).radius
            for t in range(5)
        ],
        axis=1,
    )
    # Each search stops within 1e-4 of its bracket: 2e-4 between two of them.
    assert np.all(result.radius[:, None] <= single * (1.0 + 2e-4))
    np.testing.assert_allclose(result.radius, single.min(axis=1), rtol=2e-4)
    for protocol in ("runner_up", "least", "random"):
        one = certificate.certify(x, rivals=protocol)
        assert np.all(result.radius <= one.radius * (1.0 + 2e-4))
        column = np.argmax(rivals == one.nearest_rival[:, None], axis=1)
        expected = single[np.arange(40), column]
        np.testing.assert_allclose(one.radius, expected, rtol=2e-4)


def test_batches_do_not_matter(wide):
    _, certificate, x = wide
    together = certificate.certify(x)
    parts = [certificate.certify(part) for part in (x[:1], x[1:8], x[8:])]
    apart = np.concatenate([part.radius for part in parts])
    # Sums in float32 may differ with the batch and stop a search one step sooner or later;
    # both ends lie within the tolerance of the same bracket, most are alike to rounding.
    np.testing.assert_allclose(apart, together.radius, rtol=1e-4)
    close = np.abs(apart - together.radius) <= 1e-6 * together.radius
    assert np.mean(close) >= 0.9


def test_class_order_and_rotation_do_not_matter(wide, rng):
    network, certificate, x = wide
    radius = certificate.certify(x).radius
    kernels = [affine.kernel for affine in network.affines]
    biases = [affine.bias for affine in network.affines]
    order = rng.permutation(6)
    permuted = Network.from_weights(
        [*kernels[:-1], kernels[-1][:, order]],
        [*biases[:-1], biases[-1][order]],
        ("tanh", "softplus"),
    )
    result = CurvatureCertificate(permuted).certify(x)
    np.testing.assert_allclose(result.radius, radius, rtol=2e-4)  # two searches, 1e-4 each
    assert np.array_equal(order[result.prediction], certificate.certify(x).prediction)
    rotation = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    rotated = Network.from_weights(
        [rotation.T @ kernels[0], *kernels[1:]], biases, ("tanh", "softplus")
    )
    result = CurvatureCertificate(rotated).certify(x @ rotation)
    np.testing.assert_allclose(result.radius, radius, rtol=2e-4)


def test_choose_rivals():
    logits = np.array([[3.0, 1.0, 1.0, 0.0], [0.0, 2.0, 2.0, -1.0], [1.0, 1.0, 1.0, 1.0]])
    label = np.array([0, 1, 3])
    seeds = np.arange(3)
    every = choose_rivals(logits, label, "all", seeds)
    assert every.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 2]]
    assert choose_rivals(logits, label, "runner_up", seeds)[:, 0].tolist() == [1, 2, 0]
    assert choose_rivals(logits, label, "least", seeds)[:, 0].tolist() == [3, 3, 0]
    with pytest.raises(ValueError, match="'nearest'"):
        choose_rivals(logits, label, "nearest", seeds)


def test_a_random_rival_depends_on_its_seed_alone():
    rng = np.random.default_rng(0)
    logits, label = rng.standard_normal((300, 5)), rng.integers(0, 5, 300)
    seeds = np.arange(300)
    drawn = choose_rivals(logits, label, "random", seeds)[:, 0]
    assert not np.any(drawn == label)
    assert np.all(np.bincount((drawn - label) % 5, minlength=5)[1:] > 40)  # 75 ± 4.7 σ
    again = choose_rivals(logits[::-1], label[::-1], "random", seeds[::-1])[::-1, 0]
    assert np.array_equal(again, drawn)
    part = choose_rivals(logits[50:60], label[50:60], "random", seeds[50:60])[:, 0]
    assert np.array_equal(part, drawn[50:60])
    other = choose_rivals(logits, label, "random", seeds + 1000)[:, 0]
    assert not np.array_equal(other, drawn)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"tolerance": 0.0}, "tolerance.*Received: 0.0"),
        ({"tolerance": 1.0}, "tolerance.*Received: 1.0"),
        ({"max_steps": -1}, "max_steps.*Received: -1"),
    ],
)
def test_options_are_checked(option, message, rng, random_network):
    with pytest.raises(ValueError, match=message):
        CurvatureCertificate(random_network(rng, (2, 3), ()), **option)
