"""Layers and ops on images without a rule are refused by name."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from convolutions import L, stack

from keras_curv.errors import InputError
from keras_curv.reading import served_model
from keras_curv.training.trainable.trainable_network import LiveNetwork

REFUSED = {
    "max pooling": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3), lambda: L.MaxPool2D(2), L.Flatten),
        None,
        r"\(MaxPooling2D\)",
    ),
    "groups": (
        stack((4, 4, 4), lambda: L.Conv2D(2, 3, groups=2), L.Flatten),
        None,
        r"\(Conv2D\)",
    ),
    "transposed": (
        stack((4, 4, 1), lambda: L.Conv2DTranspose(2, 3), L.Flatten),
        None,
        r"\(Conv2DTranspose\)",
    ),
    "soft shrink": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3, activation="soft_shrink"), L.Flatten),
        "op Greater",
        "'soft_shrink'",
    ),
    "max over positions": (
        stack((4, 4, 1), lambda: L.Conv2D(2, 3), L.GlobalMaxPooling2D),
        None,
        r"\(GlobalMaxPooling2D\)",
    ),
    "one column": (  # which oneDNN computes wrongly
        stack((4, 3, 1), lambda: L.Conv2D(2, (2, 3), strides=(1, 2)), L.Flatten),
        "leaves one column",
        None,
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
    if read is None:  # it can be read, and not be trained
        assert served_model.read(model).network.classes == 3
    else:
        with pytest.raises(InputError, match=read) as caught:
            served_model.read(model)
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
        served = served_model.read(model)
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
    "mean over the batch from behind": (lambda x: tf.reduce_mean(x, axis=-4), "axis -4"),
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
        served_model.read(Model())
