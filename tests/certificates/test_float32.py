"""The guarantee level `float32`: no served margin is further from the real one than is charged."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_curv
from keras_curv import data
from keras_curv.certificates import float32
from keras_curv.certificates.best_of import choose_method
from keras_curv.certificates.certificate import Status
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.float32 import Float32Error
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, SMOOTH
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import gamma
from keras_curv.reading.ball import Ball
from keras_curv.reading.flow import Flow

ARCHITECTURES = [
    ((5, 3), ()),
    ((40, 30, 4), ("softplus",)),
    ((7, 90, 3), ("sigmoid",)),
    ((20, 6, 50, 3), ("tanh", "softplus")),
    ((6, 9, 20, 5, 4), ("softplus", "tanh", "sigmoid")),
]


def float32_network(rng, sizes, activations, scale=1.0):
    kernels = [
        np.float32(scale * rng.standard_normal((n, m)) / np.sqrt(n))
        for n, m in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    biases = [np.float32(scale * rng.standard_normal(m)) for m in sizes[1:]]
    return Network.from_weights(kernels, biases, activations)


def served_logits(network, x, order):
    """Executed in float32, the terms of every dot product added one by one in a given order."""
    value = np.float32(x)
    for index, affine in enumerate(network.affines):
        kernel, total = np.float32(affine.kernel), np.zeros((len(x), affine.fan_out), np.float32)
        for i in order.permutation(affine.fan_in + 1):
            term = np.float32(affine.bias)
            total = total + (value[:, i : i + 1] * kernel[i] if i < affine.fan_in else term)
        value = total
        if index < len(network.activations):
            value = network.activations[index].value(tf.constant(value)).numpy()
    assert value.dtype == np.float32
    return value.astype(np.float64)


def rivals_of(label, classes):
    return np.array([[t for t in range(classes) if t != y] for y in label])


def margins(logits, label, rivals):
    own = np.take_along_axis(logits, label[:, None], axis=1)
    return own - np.take_along_axis(logits, rivals, axis=1)


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
    model = keras.Sequential([keras.Input((1000,)), LAYERS.Dense(2)])
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


SERVED_AS = {name: getattr(keras.activations, name) for name in ACTIVATIONS if name != "gelu_tanh"}
SERVED_AS["gelu"] = lambda z: keras.activations.gelu(z, approximate=False)
SERVED_AS["gelu_tanh"] = lambda z: keras.activations.gelu(z, approximate=True)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_the_assumption_about_activations(name):
    """Of TensorFlow's kernels on this machine, as Keras serves them, over many float32 numbers."""
    bits = np.arange(0, 2**32, 8191, dtype=np.uint64).astype(np.uint32)
    near = np.linspace(-30.0, 30.0, 100_001, dtype=np.float32)
    z = np.concatenate([bits.view(np.float32), near])
    one_op = name in float32.ONE_OP
    z = z[np.isfinite(z) & (one_op | (np.abs(z) < 2.0**40))]
    served = tf.function(SERVED_AS[name])(tf.constant(z)).numpy().astype(float)
    exact = z.astype(float)
    real = ACTIVATIONS[name].value(tf.constant(exact)).numpy()
    size = np.abs(real) + (0.0 if one_op else 1.0 + np.abs(exact))
    allowed = float32.FLOAT32_ULPS * float32.FLOAT32_UNIT * size + float32.ACTIVATION_TINY
    worst = np.argmax(np.abs(served - real) / allowed)
    assert abs(served[worst] - real[worst]) <= allowed[worst], z[worst]


@pytest.mark.parametrize("name", sorted(set(SMOOTH) - {"gelu_tanh"}))
def test_served_activations_are_charged(rng, name):
    """Inputs far out on the left, where what is spelled out in several ops cancels."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((3,)), dense(40, name), dense(3)])
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


def test_through_a_served_model():
    x, y = data.load_all("digits")
    dense = keras.layers.Dense
    for last in (None, "softmax", "log_softmax"):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Flatten(), dense(9, "softplus"), dense(10, last)]
        )
        real = keras_curv.certify(model, x[:20], method="crc")
        served = keras_curv.certify(model, x[:20], method="crc", guarantee="float32")
        proved = real.radius > 1e-3
        assert np.all(served.radius[proved] < real.radius[proved])
        assert np.all(served.radius[proved] > 0.9 * real.radius[proved])


LAYERS = keras.layers
SERVED = {
    "pixels": [LAYERS.Rescaling(1 / 255, -0.5), LAYERS.Flatten(), LAYERS.Dense(9, "softplus")],
    "normalised": [LAYERS.Normalization(mean=3.0, variance=7.0), LAYERS.Flatten()],
    "product": [LAYERS.Flatten(), LAYERS.Dense(20), LAYERS.Dense(7, "tanh")],
    "batch norm": [
        LAYERS.Flatten(),
        LAYERS.Dense(12),
        LAYERS.BatchNormalization(),
        LAYERS.Activation("sigmoid"),
        LAYERS.BatchNormalization(),
    ],
    "convolution": [
        LAYERS.Conv2D(3, 3, activation="softplus", padding="same"),
        LAYERS.AveragePooling2D(2),
        LAYERS.Conv2D(4, 2),
        LAYERS.BatchNormalization(),
        LAYERS.Activation("tanh"),
        LAYERS.Flatten(),
    ],
}


@pytest.mark.parametrize("name", SERVED)
def test_what_reading_folds_is_charged_as_it_is_executed(rng, name):
    """TensorFlow's own float32 execution of models whose layers are not served as one product."""
    keras.utils.set_random_seed(5)
    layers = [type(layer).from_config(layer.get_config()) for layer in SERVED[name]]
    model = keras.Sequential([keras.Input((6, 6, 2)), *layers, LAYERS.Dense(4)])
    for weight in model.weights:
        if "variance" in weight.path:
            weight.assign(rng.uniform(1e-3, 4.0, weight.shape))
        elif "seed" not in weight.path:
            weight.assign(weight + 0.5 * rng.standard_normal(weight.shape))
    served = keras_curv.read(model)
    error = Float32Error(served.network)
    scale = 255.0 if name == "pixels" else 1.0
    x = np.float32(scale * rng.random((40, 6, 6, 2)))
    flat = x.reshape(40, -1).astype(float)
    real = served.network.logits(tf.constant(flat)).numpy()
    label = real.argmax(axis=1)
    rivals = rivals_of(label, 4)
    charge = error(flat, label, rivals, np.zeros(rivals.shape))
    off = np.abs(
        margins(model(x).numpy().astype(float), label, rivals) - margins(real, label, rivals)
    )
    assert np.all(off <= charge)
    assert np.max(off / charge) > 1e-4
    assert np.all(charge < 1e-2 * np.abs(real).max())


def test_intermediate_overflow_is_seen():
    """What a later scaling hides in real arithmetic, a server in float32 does not survive."""
    scalings = [LAYERS.Rescaling(factor) for factor in (1e30, 1e30, 1e-30, 1e-30)]
    model = keras.Sequential([keras.Input((3,)), *scalings, LAYERS.Dense(2)])
    served = keras_curv.read(model)
    with pytest.raises(InputError, match="may overflow in float32"):
        Float32Error(served.network)
    args = np.ones((1, 3)), np.array([0]), np.array([[1]])
    plain = Float32Error(
        Network.from_weights(
            [a.kernel for a in served.network.affines], [a.bias for a in served.network.affines], ()
        )
    )
    assert np.isfinite(plain(*args, np.zeros((1, 1))))


def test_what_cannot_be_guaranteed_is_refused():
    dense = keras.layers.Dense
    with pytest.raises(InputError, match="sigmoid may tie"):
        keras_curv.Certifier(
            keras.Sequential([keras.Input((4,)), dense(3, "sigmoid")]), guarantee="float32"
        )
    doubled = keras.Sequential([keras.Input((4,), dtype="float64"), dense(3, dtype="float64")])
    with pytest.raises(InputError, match="float64"):
        keras_curv.Certifier(doubled, guarantee="float32")
    with pytest.raises(InputError, match="real, float32"):
        keras_curv.Certifier(doubled, guarantee="float16")


def test_constants_that_the_runtime_adds_first(tmp_path):
    """TensorFlow folds two constant offsets into one, which rounds otherwise than one by one."""
    unit = float32.FLOAT32_UNIT
    rescaling = keras.layers.Rescaling
    offset = np.float32([-0.49 * unit, 0.99 * unit])
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(2, use_bias=False),
            rescaling(1.0, offset=offset.tolist()),
            rescaling(1.0, offset=1.0),
        ]
    )
    model.set_weights([np.float32([[-0.5, 1.0]])])
    model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    here, there = np.float32([[20.0 * unit]]), np.float32([[0.99 * unit]])
    classes = [np.argmax(list(served(tf.constant(x)).values())[0]) for x in (here, there)]
    assert classes == [1, 0]  # in real arithmetic 1 and 1
    radius = keras_curv.certify(tmp_path / "model", here, guarantee="float32").radius[0]
    assert 0.0 < radius <= float(here[0, 0]) - float(there[0, 0])


@pytest.mark.parametrize("offsets", [2, 3, 5])
def test_chains_of_constants_are_charged(rng, tmp_path, offsets):
    rescaling = keras.layers.Rescaling
    chain = [rescaling(1.0, offset=rng.uniform(-1.0, 1.0, 40).tolist()) for _ in range(offsets)]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(40, use_bias=False), *chain])
    model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    affine = keras_curv.read(tmp_path / "model").network.affines[0]
    x = np.float32(1e-3 * rng.standard_normal((500, 2)))
    found = list(served(tf.constant(x)).values())[0].numpy().astype(float)
    real = x.astype(float) @ affine.kernel + affine.bias
    charge = np.abs(x.astype(float)) @ affine.served_kernel_error + affine.served_bias_error
    assert np.all(np.abs(found - real) <= charge)


@pytest.mark.parametrize("is_v3", [False, True])
def test_a_fused_normalisation_is_charged(rng, tmp_path, is_v3):
    """Which takes the mean off first."""
    fused = tf.raw_ops.FusedBatchNormV3 if is_v3 else tf.raw_ops.FusedBatchNorm
    channels = 40
    mean, offset = rng.normal(30.0, 1.0, channels), rng.normal(0.0, 1e-3, channels)
    constants = [rng.uniform(0.5, 2.0, channels), offset, mean, rng.uniform(0.5, 2.0, channels)]
    scale, offset, mean, variance = (tf.constant(c, tf.float32) for c in constants)

    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 1, 1, channels), tf.float32)])
        def __call__(self, x):
            y = fused(
                x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False
            )[0]
            return {"logits": tf.reshape(y, (-1, channels))}

    module = Served()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.__call__)
    affine = keras_curv.read(tmp_path / "model").network.affines[0]
    x = np.float32(rng.normal(0.0, 1.0, (500, channels)))
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    found = served(tf.constant(x[:, None, None]))["logits"].numpy().astype(float)
    real = x.astype(float) @ affine.kernel + affine.bias
    charge = np.abs(x.astype(float)) @ affine.served_kernel_error + affine.served_bias_error
    assert np.all(np.abs(found - real) <= charge)
    assert np.max(np.abs(found - real) / charge) > 0.02


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
