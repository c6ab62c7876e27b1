"""Intervals go back through layers as through the matrix of their map."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.network.network import FeedForward
from keras_curv.training.trainable.trainable_network import LiveNetwork

L = keras.layers
IMAGE, SEQUENCE = (6, 5, 2), (9, 3)


def _normalised():
    layer = L.Normalization(axis=-1)
    layer.adapt(np.random.default_rng(0).normal(size=(9, *IMAGE)))
    return layer


STACKS = {  # what is behind the first map, its input, and whether it goes by layers
    "convolution": (lambda: [L.Conv2D(3, 3, strides=2)], IMAGE, True),
    "padded": (lambda: [L.Conv2D(3, 3, padding="same")], IMAGE, True),
    "depthwise": (lambda: [L.DepthwiseConv2D(2, depth_multiplier=2)], IMAGE, True),
    "scaled": (
        lambda: (
            [L.Rescaling(-0.5, 1.0), L.ZeroPadding2D(1), L.Conv2D(3, 3)]
            + [L.BatchNormalization(gamma_initializer=keras.initializers.RandomNormal(seed=1))]
        ),
        IMAGE,
        True,
    ),
    "normalised": (lambda: [_normalised(), L.Cropping2D(1), L.Conv2D(3, 2)], IMAGE, True),
    "turned": (lambda: [L.Permute((2, 1, 3)), L.Conv2D(3, 3)], IMAGE, True),
    "causal": (lambda: [L.Conv1D(4, 3, padding="causal")], SEQUENCE, True),
    "two convolutions": (lambda: [L.Conv2D(3, 2), L.Conv2D(2, 2)], IMAGE, False),
    "pooled": (lambda: [L.Conv2D(3, 2), L.AveragePooling2D(2, 1)], IMAGE, False),
    "behind a pool": (lambda: [L.AveragePooling2D((2, 1)), L.Conv2D(3, 2)], IMAGE, True),
    "separable": (lambda: [L.SeparableConv2D(3, 2)], IMAGE, False),
    "repeated": (lambda: [L.UpSampling2D(2), L.Conv2D(3, 3)], IMAGE, False),
}


@pytest.mark.parametrize("name", list(STACKS))
def test_layers_and_matrix_give_the_same(name):
    layers, shape, by_layers = STACKS[name]
    keras.utils.set_random_seed(0)
    stack = [L.Activation("softplus"), *layers(), L.Activation("tanh"), L.Flatten(), L.Dense(3)]
    base = keras.Sequential([keras.Input(shape), *stack])
    live = LiveNetwork(base)
    assert live.maps[1].has_single_paths == by_layers
    centre, half = (tf.random.stateless_normal((4, live.sizes[2]), (0, i)) for i in range(2))
    images, gradients = [], []
    for kind in (type(live.now()), FeedForward):
        with tf.GradientTape() as tape:
            found = kind.image_back(live.now(), 1, centre, tf.abs(half))
            total = sum(tf.reduce_sum(tf.sin(part)) for part in found)
        images.append(found)
        gradients.append(tape.gradient(total, base.trainable_variables[:-2]))
    for ours, theirs in zip(images[0], images[1], strict=True):
        assert ours.numpy() == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-5)
    for ours, theirs in zip(gradients[0], gradients[1], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or ours.numpy() == pytest.approx(theirs.numpy(), rel=1e-3, abs=1e-3)
