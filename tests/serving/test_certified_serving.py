"""The signature that certifies what it serves: a proof for float32, beside the model's own bits."""

import keras
import numpy as np
import pytest
import several_inputs
import tensorflow as tf
from crc_searching import searched

import keras_curv
from keras_curv import data
from keras_curv.errors import InputError
from keras_curv.network import sparse_affine
from keras_curv.network.activations import ACTIVATIONS, SMOOTH
from keras_curv.network.network import Network
from keras_curv.network.products import dense_product
from keras_curv.numerics import rounding
from keras_curv.serving.one_gradient import OneGradient

LAYERS = keras.layers
DENSE = LAYERS.Dense


def as_keras(network, input_shape=None):
    """A chain of Dense layers with a network's weights."""
    names = [*(activation.name for activation in network.activations), None]
    layers = [DENSE(a.fan_out, name) for a, name in zip(network.affines, names, strict=True)]
    model = keras.Sequential(
        [keras.Input(input_shape or (network.dim,)), LAYERS.Flatten(), *layers]
    )
    model.set_weights([w for affine in network.affines for w in (affine.kernel, affine.bias)])
    return model


def linear_model(kernel, bias):
    return as_keras(Network.from_weights([np.float32(kernel)], [np.float32(bias)], ()))


def exported(model, folder):
    """The signatures of the model, written and loaded again: plain logits, and the certified."""
    keras_curv.certified_serving(model, folder)
    loaded = tf.saved_model.load(str(folder))
    (name,) = loaded.signatures["serving_default"].structured_input_signature[1]

    def plain(x):
        (logits,) = loaded.signatures["serving_default"](**{name: x}).values()
        return logits

    def certified(x):
        answer = loaded.signatures["certified"](**{name: tf.constant(x, tf.float32)})
        return {key: value.numpy() for key, value in answer.items()}

    plain.keep = certified.keep = loaded  # the variables live as long as it
    plain.folder = folder
    return plain, certified


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    base = as_keras(keras_curv.read("saved_models/digits").network, (8, 8, 1))
    x, _ = data.load_all("digits")
    plain, certified = exported(base, tmp_path_factory.mktemp("digits") / "model")
    return base, np.float32(x[:301]), plain, certified


def attacked(plain, x, label, radius, steps=12):
    """Projected gradient descent through a signature: float32 points inside each ball."""
    radius = np.float64(radius)[:, None]
    rng = np.random.default_rng(2)
    own = tf.one_hot(
        label, plain(tf.constant(x)).shape[1], dtype=tf.bool, on_value=True, off_value=False
    )
    delta = rng.standard_normal(x.shape).reshape(len(x), -1)
    for _ in range(steps):
        delta *= radius / np.maximum(np.linalg.norm(delta, axis=1, keepdims=True), 1e-300)
        point = np.float32(x + (1.0 - 1e-6) * delta.reshape(x.shape))
        variable = tf.constant(point)
        with tf.GradientTape() as tape:
            tape.watch(variable)
            logits = plain(variable)
            margin = tf.reduce_sum(tf.where(own, logits, 0.0), 1) - tf.reduce_max(
                tf.where(own, -np.inf, logits), 1
            )
        gradient = np.float64(tape.gradient(margin, variable)).reshape(len(x), -1)
        size = np.linalg.norm(gradient, axis=1, keepdims=True)
        delta = delta - 2.0 * radius * gradient / np.maximum(size, 1e-300)
        off = np.float64(point).reshape(len(x), -1) - np.float64(x).reshape(len(x), -1)
        inside = np.linalg.norm(off, axis=1) < radius[:, 0]
        yield point[inside], label[inside], margin.numpy()[inside]


def test_the_digits_model(digits):
    base, x, plain, certified = digits
    answer = certified(x)
    full = keras_curv.Certifier(base, method="crc").certify_all(x)
    np.testing.assert_array_equal(answer["class"], full.prediction)
    assert np.all(answer["radius"] <= full.radius)
    assert np.mean(answer["radius"] > 0.0) > 0.99
    assert answer["radius"].mean() > 0.7 * full.radius.mean()


def test_the_first_signature_is_the_models_own(digits, tmp_path):
    base, x, plain, certified = digits
    base.export(str(tmp_path / "plain"), verbose=False)
    alone = tf.saved_model.load(str(tmp_path / "plain")).signatures["serving_default"]
    both = plain.keep.signatures["serving_default"]
    assert both.structured_input_signature == alone.structured_input_signature
    assert both.structured_outputs == alone.structured_outputs
    for count in (1, 7, len(x)):
        expected = alone(tf.constant(x[:count]))["output_0"].numpy()
        np.testing.assert_array_equal(plain(tf.constant(x[:count])), expected)
        answer = certified(x[:count])
        np.testing.assert_array_equal(answer["logits"], expected)
        np.testing.assert_array_equal(answer["class"], expected.argmax(axis=1))
        assert answer["radius"].shape == (count,) and answer["radius"].dtype == np.float32


def test_what_is_exported_can_be_certified(digits):
    """Its ops are on the allow-list, and the network that is read is the same."""
    base, x, plain, _ = digits
    theirs = keras_curv.read(base).network.affines
    for signature in ("serving_default", "certified"):
        served = keras_curv.read(plain.folder, signature)
        assert served.head == "logits"
        served.check(x[:5])
        for affine, own in zip(served.network.affines, theirs, strict=True):
            np.testing.assert_array_equal(affine.kernel, own.kernel)
            np.testing.assert_array_equal(affine.bias, own.bias)


def test_attacks_within_the_radius_change_nothing(digits):
    _, x, plain, certified = digits
    answer = certified(x)
    points = 0
    for point, label, margin in attacked(plain, x, answer["class"], answer["radius"]):
        assert np.all(margin > 0.0)
        np.testing.assert_array_equal(certified(point)["class"], label)
        points += len(point)
    assert points > 10 * len(x)
    beyond = attacked(plain, x, answer["class"], 4.0 * answer["radius"])
    assert any(np.any(margin < 0.0) for _, _, margin in beyond)


SIZES = {2: (5, 12, 4), 3: (6, 9, 14, 3), 4: (4, 8, 6, 9, 5)}


@pytest.mark.parametrize(("depth", "name"), [(2, "gelu"), (4, "sigmoid")])
def test_random_networks(random_network, rng, tmp_path, depth, name):
    base = as_keras(random_network(rng, SIZES[depth], name))
    network = keras_curv.read(base).network
    plain, certified = exported(base, tmp_path / "model")
    x = np.float32(rng.standard_normal((41, SIZES[depth][0])))
    answer = certified(x)
    full = keras_curv.CurvatureCertificate(network).certify(x)
    clear = full.radius > 1e-3
    assert np.all(answer["radius"] <= full.radius)
    assert np.all(answer["radius"][clear] > 0.2 * full.radius[clear])
    for point, label, margin in attacked(plain, x, answer["class"], answer["radius"]):
        assert np.all(margin > 0.0)
        real = network.logits(tf.constant(point, tf.float64)).numpy()
        np.testing.assert_array_equal(real.argmax(axis=1), label)


def test_the_closed_form_by_hand(tmp_path):
    """z = (3, 0) σ(x): softplus″ ≤ ¼ and w = (3, 0) give κ = 0 below, or ¾ the other way round."""
    network = Network.from_weights(
        [np.eye(2), np.float32([[-3.0, 0.0], [0.0, 0.0]])],
        [np.zeros(2), np.float32([4.0, 0.0])],
        "softplus",
    )
    _, certified = exported(as_keras(network), tmp_path / "model")
    x = np.float32([[0.5, 9.0], [-1.0, 0.0], [3.0, 0.0]])
    value, slope = np.log1p(np.exp(x[:, 0])), 1.0 / (1.0 + np.exp(-x[:, 0]))
    f, h, kappa = 4.0 - 3.0 * value, 3.0 * slope, 0.75
    expected = np.where(
        f > 0.0, 2.0 * np.abs(f) / (h + np.sqrt(h * h + 2.0 * kappa * np.abs(f))), np.abs(f) / h
    )
    found = certified(x)
    np.testing.assert_array_equal(found["class"], [0, 0, 1])
    np.testing.assert_allclose(found["radius"], expected, rtol=1e-4)
    assert np.all(found["radius"] < expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_the_slope_is_a_bound(random_network, rng, name, scale):
    """The gradient is computed in float32; its norm in float64 is never above the bound."""
    network = random_network(rng, (30, 50, 20, 4), name, scale)
    certificate = OneGradient(network)
    x = np.float32(rng.standard_normal((60, 30)))
    label = network.logits(tf.constant(x, tf.float64)).numpy().argmax(axis=1)
    rivals = np.array([np.delete(np.arange(4), y) for y in label])
    kernels = [tf.constant(affine.kernel, tf.float32) for affine in certificate.affines[:-1]]
    pre, a = [], tf.constant(x)
    for kernel, affine, activation in zip(
        kernels, network.affines, network.activations, strict=False
    ):
        pre.append(tf.matmul(a, kernel) + tf.cast(affine.bias, tf.float32))
        a = activation.value(pre[-1])
    size = tf.norm(tf.constant(x, tf.float64), axis=1)
    products = [dense_product(kernel).backward for kernel in kernels]
    args = size, tf.constant(label), tf.constant(rivals), pre
    bound = certificate.slope_bound(*args, products).numpy()
    real = network.evaluate(tf.constant(x, tf.float64), label, rivals).gradient
    norm = np.linalg.norm(real, axis=-1)
    assert np.all(bound >= norm)
    if scale == 1.0:
        assert np.median(bound / norm) < 1.01  # it is a bound of this


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_the_assumption_about_slopes(name):
    """σ′ in float32, over many float32 numbers, against itself in float64."""
    bits = np.arange(0, 2**32, 8191, dtype=np.uint64).astype(np.uint32).view(np.float32)
    z = np.concatenate([bits, np.linspace(-30.0, 30.0, 100_001, dtype=np.float32)])
    z = z[np.isfinite(z) & (np.abs(z) < 2.0**40)]
    activation = ACTIVATIONS[name]
    found = tf.function(activation.first)(tf.constant(z)).numpy().astype(float)
    off = np.abs(found - activation.first(tf.constant(z, tf.float64)).numpy())
    assert np.all(off <= rounding.ACTIVATION_ULPS * rounding.FLOAT32_UNIT * activation.slope)


def in_any_order(kernel, bias, x, rng):
    """Logits of a linear map in float32, the terms added one by one in a random order."""
    total = np.zeros((len(x), kernel.shape[1]), np.float32)
    for i in rng.permutation(kernel.shape[0]):
        total = total + np.float32(x[:, i : i + 1]) * np.float32(kernel[i])
    return total + np.float32(bias)


@pytest.mark.parametrize("size", [10.0, 1e3, 1e6])
def test_margins_near_their_rounding(rng, tmp_path, size):
    """Weights whose sums cancel: the radius holds for every order of summation."""
    common = size * rng.standard_normal((24, 1))
    kernel = np.float32(common + 1e-2 * rng.standard_normal((24, 3)))
    bias = np.float32(0.05 * rng.standard_normal(3))
    _, certified = exported(linear_model(kernel, bias), tmp_path / "model")
    x = np.float32(rng.standard_normal((300, 24)))
    answer = certified(x)
    proved = answer["radius"] > 0.0
    assert proved.any() == (size < 1e6)
    label, own = answer["class"], np.float64(kernel).T[answer["class"]]
    for rival in range(3):
        normal = own - np.float64(kernel).T[rival]
        length = np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
        point = np.float32(x - 0.999 * answer["radius"][:, None] * normal / length)
        inside = np.linalg.norm(np.float64(point) - np.float64(x), axis=1) < answer["radius"]
        for _ in range(10):
            served = in_any_order(kernel, bias, point, rng)
            assert np.all((served.argmax(axis=1) == label)[inside & proved])


# Scales of the kernels, and whether anything is proved of inputs 1e-42, 1e-20, 1, 1e20 and 3e37.
EXTREME = {
    "overflow": ([1e20, 1e20, 1e-20], "softplus", (0, 0, 0, 0, 0)),
    "huge": ([1e20, 1.0], "tanh", (0, 1, 0, 0, 0)),
    "far": ([1e15, 1e-15], "gelu", (0, 0, 0, 0, 0)),
    "subnormal": ([1e-39, 1.0], "tanh", (0, 0, 0, 0, 0)),
    "vanishing": ([1e-25, 1e-25, 1.0], "softplus", (1, 1, 1, 1, 0)),
}


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_weights(rng, tmp_path, name):
    scales, activation, expected = EXTREME[name]
    sizes = [3, *(5 for _ in scales[1:]), 3]
    kernels = [
        np.float32(scale * rng.standard_normal((n, m)))
        for scale, n, m in zip(scales, sizes[:-1], sizes[1:], strict=True)
    ]
    network = Network.from_weights(kernels, [np.zeros(m) for m in sizes[1:]], activation)
    plain, certified = exported(as_keras(network), tmp_path / "model")
    x = np.float32(rng.standard_normal((20, 3)))
    given = np.concatenate([np.float32(factor) * x for factor in (1e-42, 1e-20, 1.0, 1e20, 3e37)])
    answer = certified(given)
    label, radius = answer["class"], answer["radius"]
    assert np.all(np.isfinite(radius) & (radius >= 0.0))
    best, _, prediction = searched(network, np.float64(given), max_steps=1)  # without a graph
    np.testing.assert_array_equal(prediction[radius > 0.0], label[radius > 0.0])
    assert np.all(radius <= np.nan_to_num(best))
    for _, _, margin in attacked(plain, given, label, radius, steps=3):
        assert np.all(margin > 0.0)
    proved = np.any(radius.reshape(5, 20) > 0.0, axis=1)
    np.testing.assert_array_equal(proved, expected)


def test_inputs_that_prove_nothing(tmp_path):
    model = linear_model([[1.0, -1.0], [0.5, 0.5]], [0.0, 0.0])
    _, certified = exported(model, tmp_path / "model")
    largest = np.finfo(np.float32).max
    bad = [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0], [1.0, np.inf], [np.inf, -np.inf]]
    bad += [[0.0, 1.0], [0.0, 0.0], [1e-45, 0.0], [largest, 1.0], [largest, -largest]]
    answer = certified(np.float32([*bad, [2.0, 1.0]]))
    np.testing.assert_array_equal(answer["radius"][:-1], 0.0)
    assert answer["radius"][-1] == pytest.approx(2.0, rel=1e-5)
    assert answer["radius"][-1] < 2.0


def test_a_margin_that_cannot_change_has_a_finite_radius(tmp_path):
    _, certified = exported(linear_model(np.zeros((2, 2)), [1.0, 0.0]), tmp_path / "model")
    radius = certified(np.ones((1, 2)))["radius"]
    assert 1e6 < radius[0] < np.inf


@pytest.mark.parametrize("dense_up_to", [sparse_affine.DENSE_UP_TO, 1000])
def test_convolutions_and_what_folds(rng, tmp_path, monkeypatch, dense_up_to):
    """Layers that the reader folds: no variable holds the kernels of the backward pass, which are
    dense, or too large for it."""
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", dense_up_to)
    keras.utils.set_random_seed(5)
    base = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            LAYERS.Rescaling(1 / 255.0, -0.5),
            LAYERS.Conv2D(3, 3, activation="softplus", padding="same"),
            LAYERS.AveragePooling2D(2),
            LAYERS.BatchNormalization(),
            LAYERS.Flatten(),
            DENSE(7, "silu"),
            DENSE(4),
        ]
    )
    plain, certified = exported(base, tmp_path / "model")
    x = np.float32(255.0 * rng.random((33, 6, 6, 2)))
    answer = certified(x)
    full = keras_curv.Certifier(base, method="crc").certify_all(x)
    assert np.all(answer["radius"] <= full.radius)
    assert answer["radius"].mean() > 0.3 * full.radius.mean() > 0.0
    affines = keras_curv.read(str(tmp_path / "model")).network.affines
    assert [affine.is_sparse for affine in affines] == [dense_up_to == 1000, False, False]
    for _, _, margin in attacked(plain, x, answer["class"], answer["radius"]):
        assert np.all(margin > 0.0)


def dense_model(last=None, hidden="tanh", dtype="float32"):
    return keras.Sequential(
        [keras.Input((4,), dtype=dtype), DENSE(5, hidden, dtype=dtype), DENSE(3, last, dtype=dtype)]
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dense_model(hidden="relu"), "'relu' is not .* a certified signature needs one"),
        (lambda: np.zeros((3, 3)), "is not a built Keras model"),
        (lambda: dense_model(last="softmax"), "ends in softmax"),
        (lambda: dense_model(last="sigmoid"), "ends in sigmoid"),
        (lambda: dense_model(dtype="float64"), "takes float64"),
        (several_inputs.MODELS["joined"], "certified serving is of models of one input"),
        (lambda: keras.Sequential([DENSE(3)]), "not a built Keras model"),
        (lambda: "saved_models/digits", "give the built Keras model"),
    ],
)
def test_what_is_refused(tmp_path, build, message):
    with pytest.raises(InputError, match=message):
        keras_curv.certified_serving(build(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_existing_directory_is_left_alone(tmp_path):
    with pytest.raises(InputError, match="exists already"):
        keras_curv.certified_serving(dense_model(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_hidden_activation_is_refused(tmp_path):
    inputs = keras.Input((4,))
    hidden = DENSE(5)(inputs)
    outputs = DENSE(3)(LAYERS.Lambda(tf.function(tf.tanh))(hidden))
    with pytest.raises(InputError, match="hides its activation"):
        keras_curv.certified_serving(keras.Model(inputs, outputs), tmp_path / "model")


def test_known_curvature_is_used(rng, random_network):
    network = random_network(rng, (4, 6, 3), "tanh")
    curvature = keras_curv.curvature_bounds(network)
    flat = curvature._replace(lower=0.0 * curvature.lower)
    x = tf.constant(rng.standard_normal((9, 4)), tf.float32)
    logits = network.logits(x)
    pre = [tf.matmul(x, network.weights(tf.float32)[0][0]) + network.weights(tf.float32)[1][0]]
    products = [product.backward for product in network.products(tf.float32)]
    _, bent = OneGradient(network)(x, logits, pre, products)
    _, straight = OneGradient(network, curvature=flat)(x, logits, pre, products)
    assert np.all(straight.numpy() > bent.numpy())
