"""Convolutions and pooling are read, trained and certified as what their definitions say.

The oracle is their definition, one output entry at a time: the weights under the window times
the pixels under it, whatever lies outside of the image being zero (and, for an average, absent).
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.errors import InputError
from keras_curv.network import sparse_affine
from keras_curv.reading import convolution, saved_model
from keras_curv.reading.ball import Ball
from keras_curv.training.live import LiveNetwork
from keras_curv.training.models import CRTModel

L = keras.layers
SIGMA = {
    "softplus": lambda z: np.logaddexp(0.0, z),
    "sigmoid": lambda z: 0.5 + 0.5 * np.tanh(z / 2.0),
    "tanh": np.tanh,
    "linear": lambda z: z,
}


# Oracle: definitions


def windows(shape, window, strides, padding, dilations=(1, 1)):
    """For each output position, the pairs (place in the window, place in the image)."""
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    if padding == "same":
        outputs = [-(-n // s) for n, s in zip(shape, strides, strict=True)]
        totals = [
            max((o - 1) * s + k - n, 0)
            for o, s, k, n in zip(outputs, strides, spans, shape, strict=True)
        ]
        before = [total // 2 for total in totals]
    else:
        outputs = [-(-(n - k + 1) // s) for n, s, k in zip(shape, strides, spans, strict=True)]
        before = [0, 0]
    for place in itertools.product(*map(range, outputs)):
        pairs = []
        for tap in itertools.product(*map(range, window)):
            source = tuple(
                o * s + t * d - b
                for o, s, t, d, b in zip(place, strides, tap, dilations, before, strict=True)
            )
            if all(0 <= i < n for i, n in zip(source, shape, strict=True)):
                pairs.append((tap, source))
        yield place, pairs


def convolve(image, kernel, strides=(1, 1), padding="valid", dilations=(1, 1)):
    """`(h, w, channels)` with `(kh, kw, channels, filters)`, in the dtype of the image."""
    found = list(windows(image.shape[:2], kernel.shape[:2], strides, padding, dilations))
    height, width = (1 + max(place[axis] for place, _ in found) for axis in (0, 1))
    output = np.zeros((height, width, kernel.shape[3]), image.dtype)
    for place, pairs in found:
        for tap, source in pairs:
            output[place] = output[place] + image[source] @ kernel[tap]
    return output


def average(image, window, strides, padding):
    found = list(windows(image.shape[:2], window, strides, padding))
    height, width = (1 + max(place[axis] for place, _ in found) for axis in (0, 1))
    output = np.zeros((height, width, image.shape[2]), image.dtype)
    for place, pairs in found:
        output[place] = sum(image[source] for _, source in pairs) / len(pairs)
    return output


def apply(layer, image):
    """One Keras layer on one image, in float64."""
    if isinstance(layer, (L.Conv2D, L.DepthwiseConv2D)):
        kernel = np.float64(layer.kernel)
        if isinstance(layer, L.DepthwiseConv2D):
            spread = np.zeros((*kernel.shape[:3], kernel.shape[2] * kernel.shape[3]))
            for channel, multiple in np.ndindex(*kernel.shape[2:]):
                target = channel * kernel.shape[3] + multiple
                spread[:, :, channel, target] = kernel[:, :, channel, multiple]
            kernel = spread
        image = convolve(image, kernel, layer.strides, layer.padding) + np.float64(layer.bias)
    elif isinstance(layer, L.AveragePooling2D):
        image = average(image, layer.pool_size, layer.strides, layer.padding)
    elif isinstance(layer, L.GlobalAveragePooling2D):
        image = image.mean(axis=(0, 1), keepdims=layer.keepdims)
    elif isinstance(layer, L.BatchNormalization):
        spread = np.sqrt(np.float64(layer.moving_variance) + np.float64(np.float32(layer.epsilon)))
        image = (image - np.float64(layer.moving_mean)) / spread
        image = image * np.float64(layer.gamma) + np.float64(layer.beta)
    elif isinstance(layer, L.Rescaling):
        image = image * np.float64(np.float32(layer.scale)) + np.float64(np.float32(layer.offset))
    elif isinstance(layer, L.Flatten):
        image = image.reshape(-1)
    elif isinstance(layer, L.Dense):
        image = image @ np.float64(layer.kernel) + np.float64(layer.bias)
    name = layer.activation.__name__ if hasattr(layer, "activation") else "linear"
    return SIGMA[name](image)


def oracle(model, x):
    outputs = []
    for image in np.float64(x):
        for layer in model.layers:
            image = apply(layer, image)
        outputs.append(image)
    return np.array(outputs)


# Random architectures


def randomise(model, rng):
    """Every weight its own; kernels of norm about one, so that activations bend."""
    for weight in model.weights:
        value = rng.standard_normal(weight.shape)
        if weight.path.endswith(("variance", "gamma")):
            value = 0.5 + value**2
        elif weight.path.endswith("kernel"):
            value *= 1.5 / np.sqrt(np.prod(weight.shape[:-1]))
        weight.assign(value)
    return model


def architecture(seed):
    """Strides 1–3, windows 1–5, odd sizes, both paddings, unequal channels, norms anywhere."""
    rng = np.random.default_rng(seed)

    def pick(*options):
        return options[rng.integers(len(options))]

    shape = (pick(7, 8, 9), pick(6, 9, 10), pick(1, 2, 3))
    layers = [L.Rescaling(0.8, offset=0.3)] if pick(0, 1) else []
    for filters in (pick(2, 3), pick(4, 5))[: pick(1, 2)]:
        options = {"strides": pick(1, 2, 3), "padding": pick("same", "valid")}
        window = (pick(1, 2, 3, 4, 5), pick(1, 2, 3, 4, 5))
        if len(layers) > 1:
            options["padding"] = "same"  # a valid window may not fit any more
        norm = pick("none", "before", "between", "after")
        layers += [L.BatchNormalization()] if norm == "before" else []
        layers += [L.Conv2D(filters, window, **options)]
        layers += [L.BatchNormalization()] if norm == "between" else []
        layers += [L.Activation(pick("softplus", "sigmoid", "tanh"))]
        layers += [L.BatchNormalization()] if norm == "after" else []
        if pick(0, 1):
            layers += [L.AveragePooling2D(pick(2, 3), strides=pick(1, 2), padding="same")]
    layers += [pick(L.Flatten(), L.GlobalAveragePooling2D())]
    layers += [L.Dense(6, activation="tanh")] if pick(0, 1) else []
    model = keras.Sequential([keras.Input(shape), *layers, L.Dense(3)])
    return randomise(model, rng), rng.standard_normal((4, *shape)).astype(np.float32)


SEEDS = range(12)


@pytest.fixture(scope="module")
def read():
    """Model, inputs and what was read, of a seed; read once."""
    known = {}

    def of(seed):
        if seed not in known:
            model, x = architecture(seed)
            known[seed] = model, x, saved_model.read(model)
        return known[seed]

    return of


def flat(x):
    return np.float64(x.reshape(len(x), -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_is_what_the_layers_define(seed, read):
    model, x, served = read(seed)
    ours = served.network.logits(flat(x)).numpy()
    np.testing.assert_allclose(ours, oracle(model, x), rtol=1e-11, atol=1e-11)
    served.check(x)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_an_export_is_the_model(seed, read, tmp_path):
    model, x, served = read(seed)
    model.export(str(tmp_path / "model"), verbose=False)
    exported = saved_model.read(tmp_path / "model")
    exported.check(x)
    for one, other in zip(exported.network.affines, served.network.affines, strict=True):
        np.testing.assert_array_equal(one.kernel, other.kernel)
        np.testing.assert_array_equal(one.bias, other.bias)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_live_network_is_the_one_that_is_read(seed, read):
    model, x, served = read(seed)
    live = LiveNetwork(model).now()
    assert live.sizes == served.network.sizes
    assert live.activations == served.network.activations
    kernels, biases = live.weights(tf.float32)
    for affine, kernel, bias in zip(served.network.affines, kernels, biases, strict=True):
        # float32: about twenty roundings of sums of up to a hundred terms.
        np.testing.assert_allclose(kernel, affine.kernel, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(bias, affine.bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_live_gradients_are_those_of_the_definition(seed, read):
    """Central differences of the float64 oracle, along random directions of all variables."""
    model, x, _ = read(seed)
    rng = np.random.default_rng(seed)
    variables = model.trainable_variables
    weights = rng.standard_normal((len(x), 3))
    with tf.GradientTape() as tape:
        logits = LiveNetwork(model).now().logits(x.reshape(len(x), -1))
        value = tf.reduce_sum(logits * np.float32(weights))
    gradients = tape.gradient(value, variables)
    kept = [variable.numpy() for variable in variables]
    for variable, gradient, before in zip(variables, gradients, kept, strict=True):
        direction = np.sign(rng.standard_normal(before.shape)).astype(np.float32)
        step, values = np.float32(2.0**-10), []
        for sign in (1, -1):
            variable.assign(before + sign * step * direction)
            moved = np.float64(variable.numpy())
            values.append((np.sum(oracle(model, x) * weights), moved))
        variable.assign(before)
        expected = values[0][0] - values[1][0]
        got = np.sum(np.float64(gradient) * (values[0][1] - values[1][1]))
        scale = np.sum(np.abs(gradient)) * 2 * step
        assert abs(got - expected) <= 2e-3 * scale + 1e-7  # third derivatives, float32


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_convolving_is_multiplying_by_the_matrix(seed, read):
    """Products, their transposes, and the second derivatives that training takes of them."""
    model, _, served = read(seed)
    rng = np.random.default_rng(seed)
    tape = tf.GradientTape(persistent=True)
    with tape:
        live = LiveNetwork(model).now()
        pairs = zip(live.products(tf.float32), live.weights(tf.float32)[0], strict=False)
        cases = []
        for product, kernel in pairs:
            a = tf.constant(rng.standard_normal((2, 3, kernel.shape[0])), tf.float32)
            t = tf.constant(rng.standard_normal((2, 3, kernel.shape[1])), tf.float32)
            cases += [
                (product.forward(a), tf.einsum("nri,io->nro", a, kernel)),
                (product.backward(t), tf.einsum("nro,io->nri", t, kernel)),
            ]
        sums = [[tf.reduce_sum(tf.sin(part)) for part in case] for case in cases]
    assert len(cases) == 2 * (served.network.depth - 1)
    for case, (ours, theirs) in zip(cases, sums, strict=True):
        # float32: about ten roundings of sums of up to a hundred terms.
        np.testing.assert_allclose(*case, rtol=1e-5, atol=1e-5)
        for variable in model.trainable_variables:
            # A bias is in no product.
            none = tf.zeros_like(variable.value)
            gradients = [tape.gradient(total, variable.value) for total in (ours, theirs)]
            gradients = [none if gradient is None else gradient for gradient in gradients]
            np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_hessian_leaves_the_curvature_bounds(seed, read):
    _, x, served = read(seed)
    network, rng = served.network, np.random.default_rng(seed)
    bounds = curvature_bounds(network)
    points = np.concatenate([flat(x), 3.0 * rng.standard_normal((8, network.dim))])
    for y, t in itertools.permutations(range(3), 2):
        label, rival = np.full(len(points), y), np.full(len(points), t)
        values = np.linalg.eigvalsh(network.hessian(points, label, rival).numpy())
        slack = 1e-9 * (1.0 + np.abs(values).max())  # eigvalsh
        assert bounds.lower[y, t] <= values.min() + slack
        assert values.max() - slack <= bounds.upper[y, t]


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_certificates_survive_attack(seed, read):
    _, x, served = read(seed)
    points = np.concatenate([flat(x), 1.0 - 2.0 * flat(x)])
    result = CurvatureCertificate(served.network, max_steps=8).certify(points)
    assert np.all(result.radius > 0.0)
    margin, _ = pgd_attack(
        served.network, tf.constant(points), tf.constant(result.prediction),
        radius=tf.constant(result.radius * (1.0 - 1e-9)), steps=40, restarts=2,
    )  # fmt: skip
    assert np.all(margin.numpy() > 0.0)


def test_a_step_of_robust_training():
    model, x = architecture(3)
    before = model.get_weights()
    trained = CRTModel(model, 0.3, 0.01)
    trained.compile("adam", run_eagerly=True)
    history = trained.fit(x, np.arange(4) % 3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    changed = zip(before, model.get_weights(), model.weights, strict=True)
    assert all(np.any(a != b) for a, b, weight in changed if "kernel" in weight.path)


# The matrix itself


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
def test_the_matrix_is_the_convolution(padding, strides, dilations, rng):
    for height, width in itertools.product((1, 2, 3), (1, 4)):
        image = rng.integers(-9, 10, (8, 11, 2)).astype(float)
        kernel = rng.integers(-9, 10, (height, width, 2, 3)).astype(float)
        matrix, shape = convolution.matrix(
            Ball.exact(kernel), image.shape, strides=strides, padding=padding.upper(),
            dilations=dilations,
        )  # fmt: skip
        expected = convolve(image, kernel, strides, padding, dilations)
        assert shape == expected.shape
        # Integers: both are exact.
        np.testing.assert_array_equal((image.reshape(-1) @ matrix.value).reshape(shape), expected)
        assert matrix.error.nnz == 0


def _adversarial_reshape():
    """Two convolutions whose composition is 2 in norm, and 4 with the reshape between them."""
    first, last = np.zeros((3, 1, 1, 1)), np.array([1.0, -1.0]).reshape(2, 1, 1, 1)
    first[[0, 2]] = 1.0
    layers = [
        L.Conv2D(1, (3, 1), strides=(2, 1), padding="same", use_bias=False),
        L.Reshape((20, 3, 1)),
        L.Conv2D(1, (2, 1), use_bias=False),
    ]
    model = keras.Sequential([keras.Input((59, 2, 1)), *layers])
    layers[0].set_weights([first])
    layers[2].set_weights([last])
    return model


@pytest.mark.parametrize("seed", range(6))
def test_the_norm_of_a_large_product_is_above_its_singular_values(seed, monkeypatch):
    """Convolutions, pools, means and whatever lies between, kept sparse."""
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 0)
    rng = np.random.default_rng(seed)
    between = [
        L.Reshape((6, 24, 2)),
        L.Permute((2, 1, 3)),
        L.AveragePooling2D(2),
        L.Rescaling(3.0),
        L.DepthwiseConv2D(2),
        L.Reshape((24, 12, 1)),
    ]
    layers = [L.Conv2D(2, 1), between[seed], L.Conv2D(3, 2, strides=2)]
    models = [keras.Sequential([keras.Input((12, 12, 1)), *layers])]
    randomise(models[0], rng)
    models += [_adversarial_reshape()] * (seed == 0)
    for model in models:
        behind = [L.Activation("softplus"), L.Flatten(), L.Dense(2)]
        model = keras.Sequential([*model.inputs, *model.layers, *behind])
        affine = saved_model.read(model).network.affines[0]
        kernel = affine.kernel.toarray() if affine.is_sparse else affine.kernel
        assert affine.is_sparse
        assert affine.norm >= np.linalg.norm(kernel, 2) * (1.0 - 1e-12)
        assert affine.magnitude_norm >= np.linalg.norm(np.abs(kernel), 2) * (1.0 - 1e-12)


MIXED_CHANNELS = {
    "pool, mean": lambda: [L.AveragePooling2D(2), L.GlobalAveragePooling2D()],
    "convolution, mean": lambda: [L.Conv2D(4, 2, strides=2), L.GlobalAveragePooling2D()],
    "convolution, reshape, convolution": lambda: [
        L.Conv2D(4, 1),
        L.Reshape((32, 8)),
        L.Conv1D(4, 3),
    ],
    "same pool": lambda: [L.AveragePooling2D(2, 2, "same")],
}


@pytest.mark.parametrize("name", MIXED_CHANNELS)
@pytest.mark.parametrize("channels", [3, 15])
def test_channels_that_change_between_maps_are_read(name, channels, rng):
    layers = [*MIXED_CHANNELS[name](), L.Flatten(), L.Dense(5, "softplus"), L.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, channels)), *layers])
    randomise(model, rng)
    x = rng.standard_normal((3, 8, 8, channels)).astype(np.float32)
    served = saved_model.read(model)
    served.check(x)
    np.testing.assert_allclose(served.network.logits(flat(x)), model(x), rtol=1e-4, atol=1e-4)


def test_no_weight_is_too_small_to_be_placed():
    matrix, _ = convolution.matrix(Ball.exact(np.full((1, 1, 1, 1), 1e-170)), (1, 2, 1))
    np.testing.assert_array_equal(matrix.dense().value, 1e-170 * np.eye(2))


def test_unknown_weights_stay_unknown_wherever_they_are_copied():
    kernel = Ball(np.zeros((1, 2, 1, 1)), np.array([0.0, 0.25]).reshape(1, 2, 1, 1))
    matrix, _ = convolution.matrix(kernel, (1, 3, 1))
    np.testing.assert_array_equal(matrix.dense().error, [[0, 0], [0.25, 0], [0, 0.25]])


def test_a_product_with_a_sparse_matrix_is_that_with_the_dense_one(rng):
    kernel = Ball(rng.standard_normal((2, 2, 1, 2)), rng.random((2, 2, 1, 2)))
    matrix, _ = convolution.matrix(kernel, (3, 3, 1), padding="SAME")
    left = Ball(rng.standard_normal((4, 9)), rng.random((4, 9)))
    for factor in (left, left[0], Ball.exact(left.value)):
        ours, theirs = factor @ matrix, factor @ matrix.dense()
        np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-12)


def test_a_shift_before_padding_is_a_bias_that_differs_between_positions(rng):
    model = keras.Sequential(
        [
            keras.Input((3, 3, 1)),
            L.Rescaling(1.0, offset=2.0),
            L.Conv2D(1, 3, padding="same", activation="tanh", kernel_initializer="ones"),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    first = saved_model.read(model).network.affines[0]
    np.testing.assert_array_equal(
        first.bias.reshape(3, 3), 2.0 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]])
    )
    assert first.kernel_error == 0.0
    _, biases = LiveNetwork(model).now().weights(tf.float32)
    np.testing.assert_array_equal(biases[0], first.bias)


def test_padding_does_not_count_in_an_average():
    model = keras.Sequential(
        [keras.Input((3, 3, 1)), L.AveragePooling2D(2, padding="same"), L.Flatten(), L.Dense(2)]
    )
    model.layers[-1].kernel.assign([[1, 0], [0, 1], [0, 0], [0, 0]])
    kernel = saved_model.read(model).network.affines[0].kernel
    np.testing.assert_array_equal(kernel[:, 0], np.array([1, 1, 0, 1, 1, 0, 0, 0, 0]) / 4)
    np.testing.assert_array_equal(kernel[:, 1], np.array([0, 0, 1, 0, 0, 1, 0, 0, 0]) / 2)


def test_folding_errors_cover_what_folding_rounds_away(rng):
    """Rescaling, convolution and pooling in exact rational arithmetic."""
    layers = [
        L.Rescaling(1 / 3, offset=0.1),
        L.Conv2D(2, 3, padding="same"),
        L.AveragePooling2D(3, strides=2, padding="same"),
        L.Flatten(),
        L.Dense(2),
    ]
    model = randomise(keras.Sequential([keras.Input((4, 5, 1)), *layers]), rng)
    affine = saved_model.read(model).network.affines[0]

    def exact(array):
        array = np.asarray(array)
        return np.array([Fraction(float(v)) for v in array.ravel()], object).reshape(array.shape)

    scale, offset = exact(np.float32(1 / 3)).item(), exact(np.float32(0.1)).item()

    def at(image):
        image = convolve(image * scale + offset, exact(layers[1].kernel), padding="same")
        image = average(image + exact(layers[1].bias), (3, 3), (2, 2), "same")
        return image.reshape(-1) @ exact(layers[-1].kernel) + exact(layers[-1].bias)

    bias = at(exact(np.zeros((4, 5, 1))))
    kernel = np.array([at(exact(unit.reshape(4, 5, 1))) - bias for unit in np.eye(20)])
    lost = np.linalg.norm(np.float64(kernel - exact(affine.kernel)), 2)
    assert 0.0 < lost <= affine.kernel_error <= 1e-13
    assert np.linalg.norm(np.float64(bias - exact(affine.bias))) <= affine.bias_error <= 1e-13


# More that is read


MORE = {
    "depthwise": (
        (6, 5, 2),
        lambda: [L.DepthwiseConv2D(3, 2, "same", depth_multiplier=3), L.Flatten()],
    ),
    "kept axes": (
        (6, 5, 2),
        lambda: [L.Conv2D(3, 2), L.GlobalAveragePooling2D(keepdims=True), L.Flatten()],
    ),
    "pooling without overlap": (
        (7, 5, 2),
        lambda: [L.AveragePooling2D((2, 1), (3, 2), "valid"), L.Conv2D(3, 2), L.Flatten()],
    ),
    "convolutions in a row": (
        (7, 6, 1),
        lambda: [L.Conv2D(2, 3, 2), L.Conv2D(3, 2, padding="same"), L.Flatten()],
    ),
    "one pixel": ((1, 1, 4), lambda: [L.Conv2D(3, 5, 3, "same"), L.Flatten()]),
}


@pytest.mark.parametrize("name", MORE)
def test_more_that_is_read(name, rng):
    shape, layers = MORE[name]
    model = keras.Sequential(
        [keras.Input(shape), *layers(), L.Dense(5, activation="softplus"), L.Dense(3)]
    )
    randomise(model, rng)
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    served = saved_model.read(model)
    expected = oracle(model, x)
    np.testing.assert_allclose(served.network.logits(flat(x)), expected, rtol=1e-11, atol=1e-11)
    live = LiveNetwork(model).now().logits(x.reshape(3, -1))
    np.testing.assert_allclose(live, expected, rtol=1e-5, atol=1e-5)


def test_a_fused_batch_normalisation_of_keras_2(rng):
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Input((5, 4, 2)),
            layers.Conv2D(3, 2, strides=2, padding="same"),
            layers.BatchNormalization(epsilon=0.01),
            layers.Activation("softplus"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    for weight in model.weights:
        weight.assign(0.5 + rng.random(weight.shape))
    x = rng.standard_normal((3, 5, 4, 2)).astype(np.float32)
    served = saved_model.read(model)
    served.check(x)
    kernel, bias, gamma, beta, mean, variance, head, last = map(np.float64, model.get_weights())
    for image, logits in zip(np.float64(x), served.network.logits(flat(x)).numpy(), strict=True):
        z = convolve(image, kernel, (2, 2), "same") + bias
        z = (z - mean) / np.sqrt(variance + np.float64(np.float32(0.01))) * gamma + beta
        expected = SIGMA["softplus"](z).mean(axis=(0, 1)) @ head + last
        np.testing.assert_allclose(logits, expected, rtol=1e-12)


# Refusals


def stack(shape, *layers):
    return lambda: keras.Sequential(
        [keras.Input(shape), *(layer() for layer in layers), L.Dense(3)]
    )


REFUSED = {
    "max pooling": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3), lambda: L.MaxPool2D(2), L.Flatten),
        "op MaxPool .*not supported; use average",
        r"\(MaxPooling2D\)",
    ),
    "dilated": (
        stack((6, 6, 1), lambda: L.Conv2D(2, 3, dilation_rate=2), L.Flatten),
        "op SpaceToBatchND .*use dilation_rate=1",
        None,
    ),
    "groups": (
        stack((4, 4, 4), lambda: L.Conv2D(2, 3, groups=2), L.Flatten),
        "op StatefulPartitionedCall",
        r"\(Conv2D\)",
    ),
    "transposed": (
        stack((4, 4, 1), lambda: L.Conv2DTranspose(2, 3), L.Flatten),
        "op Conv2DBackpropInput",
        r"\(Conv2DTranspose\)",
    ),
    "leaky relu": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3, activation="leaky_relu"), L.Flatten),
        "op LeakyRelu",
        "'leaky_relu'",
    ),
    "max over positions": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3), L.GlobalMaxPooling2D),
        "op Max",
        r"\(GlobalMaxPooling2D\)",
    ),
    "recurrent": (
        stack((2, 4, 4, 1), lambda: L.ConvLSTM2D(2, 3), L.Flatten),
        "conv_lstm2d.*while",
        r"\(ConvLSTM2D\)",
    ),
    "unknown size": (
        stack((None, None, 1), lambda: L.Conv2D(2, 3), L.GlobalAveragePooling2D),
        "input shape .* must be known",
        "input shape",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    build, read, live = REFUSED[name]
    model = build()
    with pytest.raises(InputError, match=read) as caught:
        saved_model.read(model)
    assert "\n" not in str(caught.value)
    if live:
        with pytest.raises(InputError, match=live):
            LiveNetwork(model)


def test_channels_first_is_refused_or_read_right(rng):
    """Keras lowers it to transposes on a CPU, which are read; training asks for channels_last."""
    model = stack((2, 5, 4), lambda: L.Conv2D(3, 2, data_format="channels_first"), L.Flatten)()
    with pytest.raises(InputError, match="Conv2D"):
        LiveNetwork(model)
    try:
        served = saved_model.read(model)
    except InputError as error:
        assert "Conv2D" in str(error)
    else:
        served.check(rng.standard_normal((3, 2, 5, 4)))


BODIES = {
    "explicit padding": (
        lambda x: tf.nn.conv2d(x, tf.ones((2, 2, 1, 2)), 1, [[0, 0], [1, 0], [0, 1], [0, 0]]),
        "padding EXPLICIT",
    ),
    "channels first": (
        lambda x: tf.nn.avg_pool2d(x, 1, 1, "VALID", data_format="NCHW"),
        "channels_last",
    ),
    "kernel from the input": (
        lambda x: tf.nn.conv2d(tf.ones((1, 4, 4, 4)), x, 1, "SAME"),
        "only images",
    ),
    "mean over the batch": (lambda x: tf.reduce_mean(x, axis=[0, 1]), "axes .0, 1."),
    "mean over all": (lambda x: x - tf.reduce_mean(x), "axes .0, 1, 2, 3."),
    "mean over the batch from behind": (lambda x: tf.reduce_mean(x, axis=-4), "axes .-4."),
    "batch statistics": (
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, [1.0], [0.0], is_training=True)[0],
        "at inference",
    ),
    "integers": (
        lambda x: tf.cast(tf.reduce_mean(tf.cast(x, tf.int32), axis=1), tf.float32),
        "Cast|Mean",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_ops_used_otherwise_are_refused(name):
    body, message = BODIES[name]

    class Model:
        inputs, name = [keras.KerasTensor((None, 4, 4, 1))], "graph"

        def __call__(self, x, training=False):
            return tf.reshape(body(x), (-1, 2))

    with pytest.raises(InputError, match=message):
        saved_model.read(Model())


def test_a_matrix_that_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(convolution, "STORED_ENTRIES", 2 * 16 - 1)
    model = stack((4, 4, 1), lambda: L.Conv2D(2, 1), L.Flatten)()
    with pytest.raises(
        InputError, match="op Conv2D .*2 weights at 16 positions each are too many.*strides"
    ):
        saved_model.read(model)


def test_a_window_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="spans 5 entries does not fit an axis of 4"):
        convolution.matrix(Ball.exact(np.ones((5, 1, 1, 1))), (4, 4, 1))
    with pytest.raises(InputError, match="does not fit images"):
        convolution.matrix(Ball.exact(np.ones((1, 1, 2, 1))), (4, 4, 1))
