"""The certified signature at extreme scales, as TensorFlow runs it: in graphs, which flush."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.float32 import Float32Error

DENSE = keras.layers.Dense


def chain(*maps):
    """Dense layers of these kernels, biases and activations; a bias of None is none."""
    layers = [DENSE(k.shape[1], name, use_bias=b is not None) for k, b, name in maps]
    model = keras.Sequential([keras.Input((maps[0][0].shape[0],)), *layers])
    model.set_weights([np.float32(part) for k, b, _ in maps for part in (k, b) if part is not None])
    return model


def answers(model, folder, x):
    """Prediction and radius, of the signature and of `certify`, and logits alone and in a batch."""
    keras_curv.certified_serving(model, folder)
    signature = tf.saved_model.load(str(folder)).signatures["certified"]
    live = signature(tf.constant(x))
    served = [live["logits"].numpy()]
    served.append(
        np.concatenate([signature(tf.constant(x[i : i + 1]))["logits"] for i in range(len(x))])
    )
    network = keras_curv.read(model).network
    offline = CurvatureCertificate(network, Float32Error(network), max_steps=1).certify(x)
    found = [(live["class"].numpy(), live["radius"].numpy()), (offline.prediction, offline.radius)]
    return found, served


def assert_sound(found, served):
    for label, radius in found:
        for logits in served:
            certain = radius > 0.0
            own = np.take_along_axis(logits, label[:, None], axis=1)
            others = np.where(np.arange(logits.shape[1]) == label[:, None], -np.inf, logits)
            assert np.all((own > others)[certain].all(axis=1))


@pytest.mark.parametrize(
    ("down", "up", "x", "bias"), [(1e-30, 5e37, 1e-8, 0.8), (1e-28, 5e34, 5e-11, 0.6932)]
)
def test_underflow_between_two_maps(tmp_path, down, up, x, bias):
    last = np.zeros((2, 2))
    last[0, 0] = 1.0
    model = chain(
        (down * np.eye(2), None, None),
        (up * np.eye(2), np.zeros(2), "softplus"),
        (last, np.array([0.0, bias]), None),
    )
    x = np.float32([[x, 0.0], [1.0, 1.0], [0.7, 0.1]])
    found, served = answers(model, tmp_path / "model", x)
    real = keras_curv.read(model).network.logits(tf.constant(x, tf.float64)).numpy().argmax(axis=1)
    assert real[0] == 0 and served[0][0].argmax() == 1  # flushed: log 2 here
    for _, radius in found:
        assert radius[0] == 0.0
        assert np.all(radius[1:] > 0.0) or up > 2.0**120  # so near to overflow nothing is proved
    assert_sound(found, served)


def test_overflow_that_cancels(tmp_path):
    last = np.array([[3e34, 2.0**126], [0.0, -(2.0**126)]])
    model = chain((np.ones((1, 2)), None, None), (last, None, None))
    found, served = answers(model, tmp_path / "model", np.float32([[10.0], [0.1]]))
    assert not np.isfinite(served[0][0]).all()  # NaN, or inf where a server fuses its products
    for _, radius in found:
        assert radius[0] == 0.0


@pytest.mark.parametrize("seed", range(2))
def test_random_chains(seed, tmp_path):
    """Two linear maps before an activation, whose sizes only balance together."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-40.0, -20.0)
    kernels = [size * rng.standard_normal((3, 4)), rng.standard_normal((4, 5)) / size]
    kernels[1] = np.clip(kernels[1], -3e38, 3e38)
    model = chain(
        (kernels[0], None, None),
        (kernels[1], rng.standard_normal(5), "tanh"),
        (rng.standard_normal((5, 3)), np.zeros(3), None),
    )
    x = rng.standard_normal((30, 3)) * 10.0 ** rng.uniform(-12.0, 1.0, (30, 1))
    assert_sound(*answers(model, tmp_path / "model", np.float32(x)))
