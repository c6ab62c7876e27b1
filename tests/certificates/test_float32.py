"""The guarantee level `float32`: no served margin is further from the real one than is charged."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from served_margins import ARCHITECTURES, float32_network, margins, rivals_of, served_logits

import keras_curv
from keras_curv.certificates import float32
from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.certificate import Status
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.method import ServedError
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.network.activations import ACTIVATIONS, SMOOTH
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import gamma
from keras_curv.training.trainable.keras_functions import in_keras


@pytest.mark.parametrize(("sizes", "activations"), ARCHITECTURES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("radius", [0.0, 0.1, 10.0])
def test_served_margins_are_within_the_charge(rng, sizes, activations, scale, radius):
    network = float32_network(rng, sizes, activations, scale)
    x = np.float32(rng.standard_normal((30, sizes[0]))).astype(float)
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    rivals = rivals_of(label, sizes[-1])
    charge = Float32Error(network)(x, label, rivals, np.full(rivals.shape, radius))
    worst = 0.0
    for _ in range(10):
        direction = rng.standard_normal(x.shape)
        length = radius * rng.random((30, 1)) ** 0.1
        inside = x + length * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        inside = np.float32(inside).astype(float)
        off = np.linalg.norm(inside - x, axis=1) <= radius  # rounding may have left the ball
        real = margins(network.logits(tf.constant(inside)).numpy(), label, rivals)
        served = margins(served_logits(network, inside, rng), label, rivals)
        assert np.all(np.abs(served - real)[off] <= charge[off])
        worst = max(worst, np.max(np.abs(served - real) / charge, initial=0.0))
    if scale == 1.0 and radius == 0.0:
        assert worst > 1e-3  # it is a bound of this, and not of something else entirely


@pytest.mark.parametrize("activations", [(), ("softplus",)])
def test_the_bias_may_be_the_first_term(activations):
    """XLA's dot product of one row begins with it; here it swallows a thousand products."""
    bias = np.array([1.5 * 2**24, 1.5 * 2**24 - 300.0])
    kernel = np.repeat([[0.9, 1.1]], 1000, axis=0).astype(np.float32)
    layers = [(kernel, bias), (np.eye(2), np.zeros(2))][: 1 + len(activations)]
    network = Network.from_weights(*zip(*layers, strict=True), activations)
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(2)])
    model.layers[0].set_weights([kernel, bias])
    read = keras_curv.read(model).network
    x, total = np.ones((1, 1000)), np.float32(bias)
    for row in kernel:
        total = total + row
    served = np.float64(total[:1] - total[1:])
    args = x, np.array([0]), np.array([[1]])
    for known in (network, read):
        real = margins(known.logits(tf.constant(x)).numpy(), *args[1:])
        assert np.abs(served - real).item() > 200.0
        assert np.all(np.abs(served - real) <= Float32Error(known)(*args, np.zeros((1, 1))))


def test_the_charge_grows_with_the_radius(rng):
    network = float32_network(rng, (6, 9, 3), ("tanh",))
    error = Float32Error(network)
    x, label, rivals = np.ones((2, 6)), np.array([0, 1]), np.array([[1], [2]])
    values = [error(x, label, rivals, np.full((2, 1), r)) for r in (0.0, 0.5, 2.0, 1e9)]
    assert all(np.all(a < b) for a, b in zip(values[:-1], values[1:], strict=True))


def test_slopes_are_those_that_the_ball_reaches(rng):
    """z is off by 0.01 or so, which tells only where the ball, not that error, leaves the flat."""
    kernel = np.array([[1e6, 0.0], [-1e6, 0.0], [1e5, 0.0]], np.float32)
    network = Network.from_weights(
        [kernel, np.eye(2)], [np.array([-20.0, 0.0]), np.zeros(2)], "softplus"
    )
    error, pair = Float32Error(network), (np.array([0]), np.array([[1]]))
    x = np.array([[0.3, 0.3, 0.0]], np.float32).astype(float)
    near, far = (error(x, *pair, np.full((1, 1), radius)).item() for radius in (0.0, 2e-4))
    moved = x + np.linspace(1.5e-4, 1.999e-4, 50)[:, None] * np.array([0.0, 0.0, 1.0])
    moved = np.float32(moved).astype(float)
    labels = np.zeros(50, int), np.ones((50, 1), int)
    real = margins(network.logits(tf.constant(moved)).numpy(), *labels)
    served = [margins(served_logits(network, moved, rng), *labels) for _ in range(20)]  # any order
    worst = np.abs(np.array(served) - real).max()
    assert near < 1e-3 < worst <= far


def test_slopes_are_those_that_the_error_reaches(rng):
    """At x itself: the unit is off, but a server's sums in another order may switch it on."""
    kernel = np.array([[1e6, 0.0], [-1e6, 0.0], [1.0, 0.0], [1.0, 0.0]], np.float32)
    network = Network.from_weights([kernel, np.eye(2)], [np.zeros(2)] * 2, "relu")
    a = np.float32(rng.uniform(0.3, 0.6, 200)).astype(float)
    x = np.stack([a, a, 0.0 * a + np.float32(0.02), 0.0 * a - np.float32(0.021)], axis=1)
    labels = np.zeros(200, int), np.ones((200, 1), int)
    charge = Float32Error(network)(x, *labels, np.zeros((200, 1)))
    real = margins(network.logits(tf.constant(x)).numpy(), *labels)
    served = [margins(served_logits(network, x, rng), *labels) for _ in range(10)]
    worst = np.abs(np.array(served) - real).max(axis=0)
    assert worst.max() > 1e-3 and np.all(worst <= charge)


def convex_margin():
    """Its first gradient at −3 proves 3.2 of 13, the search nearly all."""
    return Network.from_weights(
        [np.array([[-1.0]]), np.array([[1.0, 0.0]])],
        [np.zeros(1), np.array([0.0, np.log1p(np.exp(-10.0))])],
        "softplus",
    )


def test_a_radius_far_beyond_that_of_one_gradient_is_not_cut_short():
    network = convex_margin()
    x = np.array([[-3.0]])
    real = CurvatureCertificate(network).certify(x)
    certificate = CurvatureCertificate(network, Float32Error(network), max_steps=12)
    served = certificate.certify(x)
    assert 12.5 < served.radius[0] <= real.radius[0] <= 13.0
    assert served.gradient_evaluations[0] <= 2 * (12 + 12) + 3  # two searches, not more


class ErrorBeyond(ServedError):
    """Serving is exact up to a radius, and anything beyond."""

    def __init__(self, radius):
        self.radius = radius

    def __call__(self, x, label, rivals, radius):
        return np.where(radius <= self.radius, 0.0, np.inf)


@pytest.mark.parametrize("radius", [5.0, 9.0])
def test_nothing_is_proved_beyond_what_serving_was_charged_for(radius):
    certificate = CurvatureCertificate(convex_margin(), ErrorBeyond(radius))
    assert 3.0 < certificate.certify(np.array([[-3.0]])).radius[0] <= radius


def test_a_rival_is_charged_up_to_its_own_radius_not_that_of_a_nearer_one():
    """What `auto` needs, as another method may prove more of the nearer one."""
    kernels = [-np.eye(2), np.array([[1.0, 1.0, 0.0], [0.0, -1.0, 0.0]])]
    biases = [np.zeros(2), np.array([0.0, np.log(2.0) - 0.05, np.log1p(np.exp(-10.0))])]
    network = Network.from_weights(kernels, biases, "softplus")
    certificate = CurvatureCertificate(network, Float32Error(network))
    args = np.array([[-3.0, 0.0]]), np.array([0]), np.array([[1, 2]]), np.zeros((1, 2))
    near, far = certificate.prove(Question.of(*args)).radius[0]
    assert near < 0.11 and far > 3.0
    question = Question.of(*args)
    every = question.goal.up_to(12.9)._replace(every_rival=True)
    near, far = certificate.prove(question._replace(goal=every)).radius[0]
    assert near < 0.11 and far > 12.5


def test_a_near_rival_is_not_charged_for_a_far_one():
    """Nor the far one up to the near one's radius only."""
    kernels = [np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])]
    network = Network.from_weights(kernels, [np.array([0.0, -1.0, -8.0])], ())
    certificate = CurvatureCertificate(network, ErrorBeyond(2.0))
    args = np.zeros((1, 2)), np.array([0]), np.array([[1, 2]]), np.zeros((1, 2))
    near, far = certificate.prove(Question.of(*args)).radius[0]
    assert near == pytest.approx(1.0) and far == 0.0


def test_what_may_overflow_is_charged_without_end(rng):
    network = float32_network(rng, (6, 9, 3), ("softplus",))
    huge = Network.from_weights(
        [1e20 * network.affines[0].kernel, 1e20 * network.affines[1].kernel],
        [affine.bias for affine in network.affines],
        "softplus",
    )
    args = np.ones((1, 6)), np.array([0]), np.array([[1, 2]])
    assert np.all(np.isinf(Float32Error(huge)(*args, np.zeros((1, 2)))))
    assert np.all(np.isinf(Float32Error(network)(*args, np.full((1, 2), 1e39))))
    assert np.all(np.isinf(Float32Error(network)(*args, np.full((1, 2), np.inf))))


def test_subnormal_weights_are_charged():
    """A server may flush them to zero: then the margin is lost, so nothing may be proved."""
    tiny = np.float32(2.0**-140)
    network = Network.from_weights([np.diag([tiny, tiny])], [np.zeros(2)], ())
    x = np.array([[3.0, 1.0]])
    real = CurvatureCertificate(network).certify(x)
    served = CurvatureCertificate(network, Float32Error(network)).certify(x)
    assert real.radius[0] == pytest.approx(np.sqrt(2.0), rel=1e-6)
    assert served.radius[0] == 0.0


def test_a_prediction_that_only_float32_flips_is_not_certified():
    """1e8 + 1 − 1e8 is 1 in real arithmetic, and 0 in float32: class 0 only seems to win."""
    kernel = np.zeros((3, 2), np.float32)
    kernel[:, 0] = 1e8, 1.0, -1e8
    network = Network.from_weights([kernel], [np.array([0.0, 0.5])], ())
    x = np.ones((1, 3))
    assert network.logits(tf.constant(x)).numpy()[0].argmax() == 0
    in_float32 = served_logits(network, x, np.random.default_rng(3))
    orders = [served_logits(network, x, np.random.default_rng(s))[0].argmax() for s in range(20)]
    assert in_float32.shape == (1, 2) and 1 in orders
    assert CurvatureCertificate(network).certify(x).radius[0] > 0.0
    assert CurvatureCertificate(network, Float32Error(network)).certify(x).radius[0] == 0.0


@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 5.0]))
@settings(max_examples=8, deadline=None)
def test_float32_never_proves_more_than_real(seed, scale):
    rng = np.random.default_rng(seed)
    network = float32_network(rng, (4, 7, 3), ("sigmoid",), scale)
    x = np.float32(rng.standard_normal((8, 4))).astype(float)
    real = CurvatureCertificate(network).certify(x)
    served = CurvatureCertificate(network, Float32Error(network)).certify(x)
    assert np.all(served.radius <= real.radius * (1.0 + 2e-4))  # the search's own tolerance
    assert np.mean(served.radius) > 0.95 * np.mean(real.radius)


SERVED_AS = {name: in_keras(name) for name in ACTIVATIONS}


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"exponential"}))
def test_the_assumption_about_activations(name):
    """Of TensorFlow's kernels on this machine, as Keras serves them, over many float32 numbers."""
    bits = np.arange(0, 2**32, 8191, dtype=np.uint64).astype(np.uint32)
    near = np.linspace(-30.0, 30.0, 100_001, dtype=np.float32)
    z = np.concatenate([bits.view(np.float32), near])
    one_op = ACTIVATIONS[name].served_floor == 0.0
    z = z[np.isfinite(z) & (one_op | (np.abs(z) < 2.0**40))]
    served = tf.function(SERVED_AS[name])(tf.constant(z)).numpy().astype(float)
    exact = z.astype(float)
    real = ACTIVATIONS[name].value(tf.constant(exact)).numpy()
    size = np.abs(real) + (0.0 if one_op else 1.0 + np.abs(exact))
    allowed = float32.FLOAT32_ULPS * float32.FLOAT32_UNIT * size + float32.ACTIVATION_TINY
    worst = np.argmax(np.abs(served - real) / allowed)
    assert abs(served[worst] - real[worst]) <= allowed[worst], z[worst]


def test_an_unbounded_slope_is_refused():
    weights = [np.eye(2), np.eye(2)], [np.zeros(2)] * 2
    with pytest.raises(InputError, match="'exponential' has an unbounded slope"):
        Float32Error(Network.from_weights(*weights, "exponential"))


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_served_activations_are_charged(rng, name):
    """Inputs far out on the left, where what is spelled out in several ops cancels."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((3,)), dense(40, in_keras(name)), dense(3)])
    model.layers[0].bias.assign(rng.uniform(-12.0, 0.0, 40))
    served = keras_curv.read(model)
    x = np.float32(rng.standard_normal((200, 3)))
    real = served.network.logits(tf.constant(x.astype(float))).numpy()
    label = real.argmax(axis=1)
    rivals = rivals_of(label, 3)
    charge = Float32Error(served.network)(x, label, rivals, np.zeros(rivals.shape))
    found = margins(model(x).numpy().astype(float), label, rivals)
    assert np.all(np.abs(found - margins(real, label, rivals)) <= charge)


def test_long_sums_are_charged_in_full():
    """Beyond 4,096 terms, n u is less than what n roundings may do."""
    terms = 9000
    flow = Flow.input((terms,)).times(Ball.exact(np.ones((terms, 1))))
    assert np.all(flow.affine().served_kernel_error >= gamma(terms, float32.FLOAT32_UNIT))
    assert np.all(
        Affine(np.ones((terms, 1)), np.zeros(1)).served_kernel_error
        >= gamma(terms, float32.FLOAT32_UNIT)
    )
    assert gamma(terms, float32.FLOAT32_UNIT) > (terms + 1) * float32.FLOAT32_UNIT


def test_a_pair_that_never_differs_has_radius_zero(rng):
    """Two equal columns, whose logits a sum in another order may tell apart."""
    last = rng.standard_normal((50, 3))
    last[:, 2] = last[:, 0]
    biases = [rng.standard_normal(50), np.array([35.0, 0.0, 35.0])]
    network = Network.from_weights([rng.standard_normal((4, 50)), last], biases, "softplus")
    x = rng.standard_normal((40, 4))
    for method in ("auto", "crc", "lipschitz"):
        found = choose_method(method, network, Float32Error(network)).certify(x)
        assert np.all(found.radius == 0.0)
        assert not np.any(found.status == Status.CERTIFIED)


def test_constants_that_may_overflow_have_no_float32_guarantee(rng):
    """In real arithmetic 1/√(b²) · b is 1, and in float32 1/√∞ · b is 0."""
    big = Ball.exact(np.full(3, np.float64(np.float32(1e30))))
    factor = (big * big).rsqrt() * big
    np.testing.assert_allclose(factor.value, 1.0, rtol=1e-12)
    assert np.all(np.isinf(factor.served))
    flow = Flow.input((4,)).times(Ball.exact(rng.standard_normal((4, 3)))).scaled(factor)
    network = Network([flow.affine()], [])
    with pytest.raises(InputError, match="may overflow in float32"):
        Float32Error(network)
    assert np.all(CurvatureCertificate(network).certify(rng.standard_normal((5, 4))).radius > 0.0)
