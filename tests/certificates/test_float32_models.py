"""The guarantee level `float32` of models as they are served: folding, constants, normalisation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from served_margins import margins, rivals_of

import keras_curv
from keras_curv import data
from keras_curv.certificates import float32
from keras_curv.certificates.float32 import Float32Error
from keras_curv.errors import InputError
from keras_curv.network.network import Network


def test_through_a_served_model():
    x, y = data.load_all("digits")
    dense = keras.layers.Dense
    for last in (None, "log_softmax"):
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
    model = keras.Sequential([keras.Input((3,)), *scalings, keras.layers.Dense(2)])
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
