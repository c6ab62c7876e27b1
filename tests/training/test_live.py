"""A model read layer by layer is the network that is read from its frozen graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.reading import served_model
from keras_curv.training.trainable.keras_functions import in_keras
from keras_curv.training.trainable.trainable_network import LiveNetwork

L = keras.layers


def _sequential(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


def _functional(shape, *layers):
    inputs = outputs = keras.Input(shape)
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def _nested(shape, *layers):
    """The first layers in a model of their own, and that one in another."""
    inner = keras.Sequential(layers[:1])
    middle = keras.Sequential([inner, *layers[1:2]])
    inputs = keras.Input(shape)
    outputs = middle(inputs)
    for layer in layers[2:]:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def _randomise(model, rng):
    """Weights and moving statistics that no rule could get right by chance."""
    for variable in model.weights:
        value = rng.standard_normal(variable.shape)
        if variable.path.endswith("variance"):
            value = 0.5 + value**2
        if not variable.dtype.startswith("int"):
            variable.assign(value)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            _randomise(layer, rng)
        elif isinstance(layer, L.Normalization):
            layer.finalize_state()
    return model


def _adapted(shape, rng, **options):
    layer = L.Normalization(**options)
    layer.adapt(40.0 + 13.0 * rng.standard_normal((50, *shape)))
    return layer


# Name: input shape, layers. Widths are unequal, so a transposed kernel cannot pass.
def _dilation():
    """2, where TensorFlow has the gradient of dilated convolutions; without oneDNN it has none."""
    x, kernel = tf.Variable(tf.ones((1, 9, 1))), tf.ones((3, 1, 1))
    try:
        with tf.GradientTape() as tape:
            value = tf.nn.conv1d(x, kernel, 1, "VALID", dilations=2)
        tape.gradient(value, x)
    except tf.errors.InvalidArgumentError:
        return 1
    return 2


MODELS = {
    "two layers": ((4,), lambda rng: [L.Dense(7, "softplus"), L.Dense(3)]),
    "three layers": ((4,), lambda rng: [L.Dense(7, "tanh"), L.Dense(5, "sigmoid"), L.Dense(3)]),
    "four layers": (
        (4,),
        lambda rng: [L.Dense(7, "tanh"), L.Dense(5, "sigmoid"), L.Dense(6, "softplus"), L.Dense(3)],
    ),
    "no bias": (
        (4,),
        lambda rng: [L.Dense(7, "tanh", use_bias=False), L.Dense(3, use_bias=False)],
    ),
    "activation layers": (
        (4,),
        lambda rng: [L.Dense(7), L.Activation("softplus"), L.Activation("linear"), L.Dense(3)],
    ),
    "two activations in a row": (
        (4,),
        lambda rng: [
            L.Activation("tanh"),
            L.Dense(7, "softplus"),
            L.Activation("tanh"),
            L.Dense(3),
        ],
    ),
    "affine maps in a row": (
        (4,),
        lambda rng: [L.Dense(7), L.Dense(5), L.Activation("tanh"), L.Dense(6), L.Dense(3)],
    ),
    "image": (
        (2, 3, 1),
        lambda rng: [
            L.Rescaling(1 / 3, offset=-0.2),
            L.Flatten(),
            L.Dropout(0.5),
            L.Dense(7, "softplus"),
            L.GaussianNoise(0.3),
            L.Dense(3),
        ],
    ),
    "permuted": (
        (2, 3),
        lambda rng: [L.Permute((2, 1)), L.Flatten(), L.Dense(7, "tanh"), L.Dense(3)],
    ),
    "permuted inside": (
        (4,),
        lambda rng: [
            L.Dense(6, "softplus"),
            L.Reshape((2, 3)),
            L.Permute((2, 1)),
            L.Flatten(),
            L.Dense(3),
        ],
    ),
    "dense on a matrix": (
        (3, 2),
        lambda rng: [L.Dense(5, "softplus"), L.Dense(4), L.Flatten(), L.Dense(3)],
    ),
    "einsum dense": (
        (3, 2),
        lambda rng: [
            L.EinsumDense("nlf,fo->nlo", (3, 5), activation="softplus", bias_axes="o"),
            L.EinsumDense("nlo,lom->nm", 4, activation="tanh"),
            L.EinsumDense("...m,mk->...k", 3, bias_axes="k"),
        ],
    ),
    "rescaled by channel": (
        (3, 2),
        lambda rng: [
            L.Rescaling([0.5, 2.0], offset=[1.0, -1.0]),
            L.Flatten(),
            L.Dense(5, "tanh"),
            L.Dense(3),
        ],
    ),
    "adapted normalization": (
        (3, 2),
        lambda rng: [_adapted((3, 2), rng), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3)],
    ),
    "normalization of another axis": (
        (3, 2),
        lambda rng: [_adapted((3, 2), rng, axis=1), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3)],
    ),
    "inverse normalization": (
        (4,),
        lambda rng: [
            L.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[0.1, 0.2, 0.3, 0.4], invert=True),
            L.Dense(5, "tanh"),
            L.Dense(3),
        ],
    ),
    "batch normalization": (
        (4,),
        lambda rng: [
            L.BatchNormalization(),
            L.Dense(7),
            L.BatchNormalization(scale=False),
            L.Activation("sigmoid"),
            L.BatchNormalization(center=False),
            L.Dense(3),
            L.BatchNormalization(),
        ],
    ),
    "sequence": (
        (6, 2),
        lambda rng: [
            L.ZeroPadding1D((2, 1)),
            L.Conv1D(3, 3, dilation_rate=_dilation(), padding="causal", activation="tanh"),
            L.AveragePooling1D(2, strides=1),
            L.DepthwiseConv1D(2, strides=2, depth_multiplier=2, use_bias=False),
            L.Cropping1D(1),
            L.Activation("softplus"),
            L.UpSampling1D(2),
            L.Conv1D(4, 2, strides=2),
            L.GlobalAveragePooling1D(),
            L.Dense(3),
        ],
    ),
    "separable convolution of a sequence": (
        (6, 2),
        lambda rng: [
            L.SeparableConv1D(3, 3, strides=2, depth_multiplier=2, activation="softplus"),
            L.Flatten(),
            L.Dense(3),
        ],
    ),
    "separable convolutions": (
        (5, 6, 2),
        lambda rng: [
            L.ZeroPadding2D(((2, 1), (2, 1))),
            L.SeparableConv2D(3, 2, strides=2, padding="same", activation="softplus"),
            L.UpSampling2D((1, 2)),
            L.Cropping2D(((0, 1), (1, 2))),
            L.SeparableConv2D(4, 2, dilation_rate=(2, 1), use_bias=False),
            L.Flatten(),
            L.Dense(3),
        ],
    ),
    "noise": (
        (4, 4, 1),
        lambda rng: [
            L.Conv2D(2, 2, activation="softplus"),
            L.SpatialDropout2D(0.5),
            L.Flatten(),
            L.AlphaDropout(0.5),
            L.Dense(3),
        ],
    ),
    "batch normalization of another axis": (
        (3, 2),
        lambda rng: [L.BatchNormalization(axis=1), L.Flatten(), L.Dense(5, "tanh"), L.Dense(3)],
    ),
}
# Its frozen graph has ops that `served_model.read` does not read.
UNREAD = {"dense on a matrix"}
BUILD = {"sequential": _sequential, "functional": _functional, "nested": _nested}
CASES = [(name, "sequential") for name in MODELS if name not in UNREAD] + [
    ("three layers", "functional"),
    ("image", "functional"),
    ("four layers", "nested"),
    ("batch normalization", "nested"),
]


@pytest.mark.parametrize(("name", "build"), CASES)
def test_it_is_the_network_of_the_frozen_graph(name, build, rng):
    shape, layers = MODELS[name]
    model = _randomise(BUILD[build](shape, *layers(rng)), rng)
    live, frozen = LiveNetwork(model), served_model.read(model).network
    network = live.now()
    assert live.sizes == network.sizes == frozen.sizes
    assert network.activations == frozen.activations
    kernels, biases = network.weights(tf.float64)
    for affine, kernel, bias in zip(frozen.affines, kernels, biases, strict=True):
        # float32: Keras' batch normalisation and ours round a product of up to four maps apart.
        np.testing.assert_allclose(kernel, affine.kernel, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(bias, affine.bias, rtol=1e-5, atol=1e-5)


def test_sines_that_magnify_roundings_are_read():
    """At the largest inputs of the check they turn so often that float32 says little of them."""
    keras.utils.set_random_seed(0)
    wide = keras.initializers.RandomNormal(stddev=0.375)
    sines = [L.Dense(64, "linear", kernel_initializer=wide), L.BatchNormalization()]
    sines += [L.Activation(in_keras("sin")), L.Dense(64, in_keras("sin"), kernel_initializer=wide)]
    model = _sequential((784,), *sines, L.Dense(10))
    assert [sigma.name for sigma in LiveNetwork(model).now().activations] == ["sin", "sin"]


@pytest.mark.parametrize("name", list(MODELS))
def test_it_has_the_logits_of_the_model(name, rng):
    shape, layers = MODELS[name]
    model = _randomise(_sequential(shape, *layers(rng)), rng)
    x = 3.0 * rng.standard_normal((6, *shape)).astype(np.float32)
    ours = LiveNetwork(model).now().logits(x.reshape(6, -1))
    # float32, in another order of multiplication.
    np.testing.assert_allclose(ours, model(x, training=False), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in UNREAD])
def test_margins_and_their_gradients_are_those_of_the_frozen_graph(name, rng):
    shape, layers = MODELS[name]
    model = _randomise(_sequential(shape, *layers(rng)), rng)
    x = tf.constant(rng.standard_normal((6, np.prod(shape))), tf.float32)
    frozen = served_model.read(model).network
    label = rng.integers(0, frozen.classes, 6)
    rivals = (label[:, None] + [[1, 2]]) % frozen.classes
    ours = LiveNetwork(model).now().evaluate(x, tf.constant(label), tf.constant(rivals))
    theirs = frozen.evaluate(tf.cast(x, tf.float64), tf.constant(label), tf.constant(rivals))
    for got, expected in ((ours.margin, theirs.margin), (ours.gradient, theirs.gradient)):
        scale = np.abs(expected).max()  # float32, in another order
        np.testing.assert_allclose(got, expected, atol=1e-4 * scale)


def test_a_pooled_layer_takes_no_square_of_its_inputs(monkeypatch):
    """256 filters on CIFAR-10 would need 17 GB."""
    layers = [L.Conv2D(16, 3, padding="same", activation="softplus"), L.AveragePooling2D(4)]
    live = LiveNetwork(_sequential((8, 8, 1), *layers, L.Flatten(), L.Dense(3)))
    eye, sizes = tf.eye, []
    monkeypatch.setattr(tf, "eye", lambda size: sizes.append(size) or eye(size))
    live.now()
    assert sizes == [64, 3]


@pytest.mark.parametrize("name", list(MODELS))
def test_kernels_have_the_gradients_of_the_layers(name, rng):
    """Whichever side the kernel is formed from."""
    shape, layers = MODELS[name]
    model = _randomise(_sequential(shape, *layers(rng)), rng)
    for part in LiveNetwork(model).maps:
        weight = rng.standard_normal((part.fan_in, part.fan_out)).astype(np.float32)
        with tf.GradientTape(persistent=True) as tape:
            ours = tf.reduce_sum(weight * part.weights()[0])
            theirs = tf.reduce_sum(weight * part.product(tf.eye(part.fan_in)))
            back = tf.reduce_sum(weight.T * part.transposed_product(tf.eye(part.fan_out)))
        for value in (ours, back):
            np.testing.assert_allclose(value, theirs, rtol=1e-3, atol=1e-3)
        variables = [weight for layer in part.layers for weight in layer.trainable_variables]
        for variable in variables:
            expected = tape.gradient(theirs, variable)
            for value in (ours, back):
                found = tape.gradient(value, variable)
                assert (found is None) == (expected is None)
                if found is not None:
                    scale = np.abs(expected).max()
                    np.testing.assert_allclose(found, expected, atol=1e-4 * scale)


def test_it_follows_the_weights(rng):
    model = _sequential((4,), L.Dense(7, "tanh"), L.Dense(3))
    live = LiveNetwork(model)
    before = live.now()
    model.layers[0].kernel.assign(rng.standard_normal((4, 7)))
    np.testing.assert_array_equal(live.now().weights(tf.float32)[0][0], model.layers[0].kernel)
    assert np.any(before.weights(tf.float32)[0][0] != model.layers[0].kernel.numpy())


def test_it_follows_moving_statistics(rng):
    model = _sequential((4,), L.BatchNormalization(), L.Dense(7, "tanh"), L.Dense(3))
    live = LiveNetwork(model)
    x = rng.standard_normal((6, 4)).astype(np.float32)
    model(5.0 * x + 3.0, training=True)
    np.testing.assert_allclose(live.now().logits(x), model(x, training=False), atol=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_are_those_of_the_model(name, rng):
    shape, layers = MODELS[name]
    model = _randomise(_sequential(shape, *layers(rng)), rng)
    live = LiveNetwork(model)
    x = rng.standard_normal((6, *shape)).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        theirs = tf.reduce_sum(model(x, training=False) ** 2)
        ours = tf.reduce_sum(live.now().logits(x.reshape(6, -1)) ** 2)
    variables = model.trainable_variables
    for gradient, expected in zip(
        tape.gradient(ours, variables), tape.gradient(theirs, variables), strict=True
    ):
        scale = np.abs(expected).max()  # float32, in another order
        np.testing.assert_allclose(gradient, expected, atol=1e-4 * scale)


PREPARED = {
    "rescaling": lambda: L.Rescaling(1 / 70, offset=-1.8),
    "normalization": lambda: L.Normalization(mean=127.0, variance=70.0**2),
    "batch normalization": lambda: L.BatchNormalization(
        moving_mean_initializer=keras.initializers.Constant(127.0),
        moving_variance_initializer=keras.initializers.Constant(70.0**2),
    ),
}


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", list(PREPARED))
def test_half_precision_keeps_the_digits_of_the_kernel(name, policy, rng):
    """A kernel of 1/70 beside a shift of −1.8: the difference of two such values is lost."""
    keras.config.set_dtype_policy(policy)
    try:
        model = _sequential((4,), PREPARED[name](), L.Dense(7, "softplus"), L.Dense(3))
    finally:
        keras.config.set_dtype_policy("float32")
    kernels, biases = LiveNetwork(model).now().weights(tf.float32)
    assert all(tensor.dtype == tf.float32 for tensor in (*kernels, *biases))
    first = model.layers[1].kernel.numpy()
    # bfloat16 has 8 bits for the mean and the variance that the layer holds.
    np.testing.assert_allclose(kernels[0], first / 70.0, rtol=5e-3)
    shift = -1.8 if name == "rescaling" else -127.0 / 70.0
    np.testing.assert_allclose(biases[0], shift * first.sum(axis=0), rtol=5e-3, atol=5e-3)
    np.testing.assert_array_equal(kernels[1], model.layers[2].kernel)


def test_a_large_shift_keeps_the_digits_of_the_kernel(rng):
    model = _sequential(
        (4,), L.Normalization(mean=1e6, variance=1.0), L.Dense(5, "tanh"), L.Dense(3)
    )
    kernels, _ = LiveNetwork(model).now().weights(tf.float32)
    np.testing.assert_allclose(kernels[0], model.layers[1].kernel, rtol=1e-6)  # float32


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_variables_of_other_precisions(dtype, rng):
    model = _sequential(
        (4,),
        L.BatchNormalization(dtype=dtype),
        L.Dense(7, "tanh", dtype=dtype),
        L.Dense(3, dtype=dtype),
    )
    kernels, _ = LiveNetwork(model).now().weights(tf.float32)
    assert all(kernel.dtype == tf.float32 for kernel in kernels)
