"""Behind a trunk: no input of the ball has another class, and each part of the proof is needed."""

import fractions
import itertools

import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import ball_points, lowest_margins, rivals_of

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.two_stage import TwoStageCertificate
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.numerics.rounding import activation_errors

TRUNKS = [["abs"], ["relu"], ["leaky_relu(3.0)"], ["abs", "abs", "relu6"], ["tanh", "selu"]]
HEADS = [["softplus"], ["sparse_plus"], ["tanh", "softplus"]]


def _drawn(rng, trunk, head, dim=4, classes=3, scale=1.2):
    names = [*trunk, *head]
    sizes = [dim, *(7 - i % 3 for i in range(len(names))), classes]
    shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
    kernels = [scale * rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    biases = [0.4 * rng.standard_normal(n) for _, n in shapes]
    return Network.from_weights(kernels, biases, names)


def _rotation(rng, size):
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def _radii(certificate, x):
    label = certificate.network.logits(x).numpy().argmax(axis=1)
    rivals = rivals_of(certificate.network, label)
    found = certificate.prove(Question.of(x, label, rivals))
    return label, rivals, found


@pytest.mark.parametrize(
    ("trunk", "head"), zip(TRUNKS, itertools.cycle(HEADS), strict=False), ids=str
)
def test_no_margin_of_the_ball_is_negative(trunk, head, rng):
    for scale in (0.6, 1.5):
        network = _drawn(rng, trunk, head, scale=scale)
        x = scale * rng.standard_normal((30, network.dim))
        label, rivals, found = _radii(TwoStageCertificate(network), x)
        radius = 0.9999 * found.radius.min(axis=1)
        assert np.all(radius > 0.0)
        lowest = lowest_margins(network, x, label, rivals, radius, rng)
        points = ball_points(rng, x, radius, 200).reshape(-1, network.dim)
        times = len(points) // len(x)
        margins = network.margins(points, np.tile(label, times), np.tile(rivals, (times, 1)))[0]
        assert lowest.min() > 0.0 and margins.numpy().min() > 0.0


@pytest.mark.parametrize("trunk", TRUNKS, ids=str)
def test_no_two_features_are_farther_apart(trunk, rng):
    network = _drawn(rng, trunk, ["softplus"])
    certificate = TwoStageCertificate(network)
    x = rng.standard_normal((500, network.dim))
    near = x + 10.0 ** rng.uniform(-6, 1, (500, 1)) * rng.standard_normal(x.shape)
    ends = [network.hidden(tf.constant(one))[len(trunk)].numpy() for one in (x, near)]
    stretch = np.linalg.norm(ends[0] - ends[1], axis=1) / np.linalg.norm(x - near, axis=1)
    assert stretch.max() <= certificate.lipschitz * (1.0 + 1e-9)
    assert stretch.max() >= 0.1 * certificate.lipschitz  # or the bound says nothing


def test_a_trunk_that_is_a_rotation_costs_nothing(rng):
    """|x| of positive numbers is x, a rotation back, and the head is all that there is."""
    dim = 5
    turn = _rotation(rng, dim)
    first, last = rng.standard_normal((dim, 8)), rng.standard_normal((8, 3))
    biases = [np.full(dim, 50.0), rng.standard_normal(8) - 50.0 * first.sum(axis=0), np.zeros(3)]
    network = Network.from_weights([turn, first, last], biases, ["abs", "softplus"])
    plain = Network.from_weights(
        [turn @ first, last], [biases[1] + 50.0 * first.sum(axis=0), biases[2]], "softplus"
    )
    x = rng.standard_normal((40, dim))
    label, rivals, found = _radii(TwoStageCertificate(network), x)
    alone = CurvatureCertificate(plain).prove(Question.of(x, label, rivals))
    weakest = alone.radius.min(axis=1)
    np.testing.assert_allclose(found.radius.min(axis=1), weakest, rtol=2e-3)


def test_the_slope_of_the_trunk_divides(rng):
    """Thrice the trunk, a third of the kernel behind: the same network, and the same radius."""
    kernels = [_rotation(rng, 4), rng.standard_normal((4, 6)), rng.standard_normal((6, 3))]
    biases = [rng.standard_normal(4), rng.standard_normal(6), np.zeros(3)]
    x = rng.standard_normal((20, 4))
    names = ["abs", "softplus"]
    once = TwoStageCertificate(Network.from_weights(kernels, biases, names))
    kernels = [3.0 * kernels[0], kernels[1] / 3.0, kernels[2]]
    thrice = TwoStageCertificate(
        Network.from_weights(kernels, [3.0 * biases[0], *biases[1:]], names)
    )
    assert thrice.lipschitz == pytest.approx(3.0 * once.lipschitz)
    radii = [_radii(one, x)[2].radius.min(axis=1) for one in (once, thrice)]
    np.testing.assert_allclose(*radii, rtol=1e-3)


@pytest.mark.parametrize("shift", [0.0, 2.0**30, 2.0**44])
def test_errors_of_features_are_charged(shift, rng):
    """Features beside a large bias lose digits; they are compared with exact ones."""
    kernel = rng.standard_normal((3, 4))
    bias = shift + rng.standard_normal(4)
    second = 2.0 * np.eye(4)  # so that the first map's errors alone would be too few
    back = -2.0 * bias + rng.standard_normal(4)
    head = [rng.standard_normal((4, 6)), rng.standard_normal((6, 3))]
    network = Network.from_weights(
        [kernel, second, *head],
        [bias, back, np.zeros(6), np.zeros(3)],
        ["abs", "abs", "softplus"],
    )
    certificate = TwoStageCertificate(network)
    x = rng.standard_normal((10, 3))
    found = network.hidden(tf.constant(x))[:3]
    error = activation_errors(network.layer_norms[:2], found)[-1].numpy()
    for row, bound in enumerate(error):
        exact = _exact(x[row], [(kernel, bias), (second, back)])
        away = [
            float(fractions.Fraction(a) - b)
            for a, b in zip(found[2].numpy()[row], exact, strict=True)
        ]
        assert np.linalg.norm(away) <= bound
    label, rivals, proved = _radii(certificate, x)
    inside = certificate.curved.prove(Question.of(found[2].numpy(), label, rivals)).radius
    left = (inside - error[:, None]) / certificate.lipschitz
    assert np.all(proved.radius <= np.maximum(left, 0.0) * (1.0 + 1e-12))
    assert (error.min() > 1e-3) == (shift == 2.0**44)


@pytest.mark.parametrize("shift", [0.0, 2.0**42])
def test_what_can_be_proved_is_decided(shift, rng):
    """With less search; but one that ended just above L times the radius would leave no room for
    errors of features beside a large bias."""
    bias = shift + rng.standard_normal(4)
    network = Network.from_weights(
        [
            3 * _rotation(rng, 4),
            np.eye(4),
            rng.standard_normal((4, 6)),
            rng.standard_normal((6, 3)),
        ],
        [bias, 3.0 - bias, np.zeros(6), np.zeros(3)],
        ["abs", "abs", "softplus"],
    )
    x = rng.standard_normal((60, 4))
    full = TwoStageCertificate(network).certify(x)
    aim = np.quantile(full.radius[full.radius > 0.0], 0.3)
    decided = TwoStageCertificate(network).certify(x, decide=[aim])
    np.testing.assert_array_equal(decided.radius > aim, full.radius > aim)
    assert np.count_nonzero(decided.radius > aim) > 30
    fewer = decided.gradient_evaluations.sum() < full.gradient_evaluations.sum()
    assert fewer == (shift == 0.0)


def test_a_radius_beyond_all_numbers_is_not_infinite():
    """Features that do not move, and a margin that moves by 1e-160 of what they would."""
    kernels = [np.zeros((2, 2)), 1e-20 * np.eye(2), 1e-140 * np.eye(2)]
    biases = [np.ones(2), np.zeros(2), np.array([1e220, 0.0])]
    network = Network.from_weights(kernels, biases, ["abs", "softplus"])
    radius = TwoStageCertificate(network).certify(np.zeros((1, 2))).radius
    assert 1e300 < radius[0] < np.inf


def _exact(x, maps):
    """|… | of affine maps, in fractions."""
    values = [fractions.Fraction(float(v)) for v in x]
    for kernel, bias in maps:
        values = [
            abs(
                sum(v * fractions.Fraction(float(k)) for v, k in zip(values, column, strict=True))
                + fractions.Fraction(float(b))
            )
            for column, b in zip(kernel.T, bias, strict=True)
        ]
    return values


def test_what_no_attacker_moves_takes_no_part_in_the_slope(rng):
    network = _drawn(rng, ["abs"], ["softplus"])
    pinned = np.array([True, False, False, False])
    held = PinnedNetwork(network.affines, network.activations, pinned)
    x = rng.standard_normal((20, 4))
    label, rivals, found = _radii(TwoStageCertificate(held), x)
    free = _radii(TwoStageCertificate(network), x)[2].radius
    assert np.all(found.radius >= free * (1.0 - 1e-3))
    radius = 0.9999 * found.radius.min(axis=1)
    for point in ball_points(rng, x, radius, 300):
        moved = np.where(pinned, x, point)
        assert network.margins(tf.constant(moved), label, rivals)[0].numpy().min() > 0.0


def test_auto_asks_for_it_and_decides_with_it(rng):
    kernels = [_rotation(rng, 4), _rotation(rng, 4), rng.standard_normal((4, 6))]
    network = Network.from_weights(
        [*kernels, rng.standard_normal((6, 3))],
        [np.zeros(4), np.zeros(4), np.zeros(6), np.zeros(3)],
        ["abs", "abs", "softplus"],
    )
    x = rng.standard_normal((60, 4))
    best, alone = choose_method("auto", network), choose_method("two_stage", network)
    assert {one.name for one in best.methods} == {"lipschitz", "two_stage", "coupled"}
    radius = alone.certify(x).radius
    assert np.all(best.certify(x).radius >= radius)
    aims = [np.quantile(radius, 0.5)]
    for name in ("auto", "two_stage"):
        decided = choose_method(name, network).certify(x, decide=aims).radius
        assert np.all((decided > aims[0]) >= (radius > aims[0] * (1.0 + 1e-3)))
    smooth = Network.from_weights(kernels, [np.zeros(4), np.zeros(4), np.zeros(6)], "softplus")
    assert "two_stage" not in {one.name for one in choose_method("auto", smooth).methods}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["softplus"], "Received: softplus; use crc"),
        (["abs"], "use lipschitz or crown"),
        (["softplus", "relu"], "Received: softplus, relu; use lipschitz or crown"),
        ([], "Received: none; use crc"),
    ],
)
def test_what_it_is_not_for(names, words):
    count = len(names) + 1
    network = Network.from_weights([np.eye(2)] * count, [np.zeros(2)] * count, names)
    with pytest.raises(InputError, match=words):
        TwoStageCertificate(network)


def test_refusals():
    args = [np.eye(2)] * 3, [np.zeros(2)] * 3, ["abs", "softplus"]
    network = Network.from_weights(*args)
    with pytest.raises(InputError, match="no guarantee float32"):
        TwoStageCertificate(network, Float32Error(network, "logits"))
    steep = Network.from_weights(
        [1e200 * np.eye(2)] * 2 + args[0][1:], [np.zeros(2)] * 4, ["abs", "abs", "softplus"]
    )
    with pytest.raises(InputError, match="infinite, or overflows"):
        TwoStageCertificate(steep)
    sigma = activations.get("abs"), activations.get("softplus")
    direct = np.array([[0.0, 0.0], [1.0, 0.0]])
    numbers = PinnedNetwork(network.affines, sigma, np.array([False, True]), direct)
    with pytest.raises(InputError, match="properties of classes"):
        TwoStageCertificate(numbers)
