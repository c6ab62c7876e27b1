"""Graphs whose branches meet are trained as the chain of layers that certificates make of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import CRTModel, CurvatureRegularizer, curvature_bounds, smoothed
from keras_curv.network.network import FeedForward
from keras_curv.reading.served_model import read
from keras_curv.training.trainable.curvature_estimate import CurvatureEstimate
from keras_curv.training.trainable.trainable_network import LiveNetwork

L = keras.layers


def _residual(activation="tanh"):
    """The shortcut of the second block reads a quarter of what it is given."""
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(2, 3, strides=2, padding="same", activation=activation)(inputs)
    inner = L.Conv2D(3, 3, strides=2, padding="same", activation=activation)(x)
    inner = L.BatchNormalization()(L.Conv2D(3, 3, padding="same")(inner))
    x = L.Activation(activation)(L.Add()([L.Conv2D(3, 1, strides=2)(x), inner]))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def _short(activation):
    """Two hidden layers, of which the second one sees the input too."""
    inputs = keras.Input((6, 6, 1))
    x = L.Conv2D(2, 3, strides=2, padding="same", activation=activation)(inputs)
    x = L.Conv2D(2, 3, padding="same")(x) + L.Conv2D(2, 1, strides=2)(inputs)
    x = L.Flatten()(L.Activation(activation)(L.BatchNormalization()(x)))
    return keras.Model(inputs, L.Dense(3)(x))


def _dense(join, before=lambda x: x):
    inputs = keras.Input((4,))
    x = before(inputs)
    hidden = L.Dense(4, "softplus")(L.Dense(5, "tanh")(x))
    return keras.Model(inputs, L.Dense(3)(join(x, hidden)))


def _shared():
    """A layer that is called twice, by a model in the model, whose last part nothing uses."""
    shared, start = L.Dense(4, "tanh"), keras.Input((4,))
    first = shared(start)
    inside = keras.Model(start, [first, shared(first)])
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(3)(inside(shared(inputs))[0] + inputs))


GRAPHS = {  # and the sizes of the chain
    "residual": (_residual, (64, 32, 12 + 8, 12, 3)),
    "input and hidden": (lambda: _dense(lambda x, h: L.Add()([x, h])), (4, 5 + 4, 4 + 4, 3)),
    "operations": (lambda: _dense(lambda x, h: x - (x + h)), (4, 5 + 4, 4 + 4, 3)),
    "average": (lambda: _dense(lambda x, h: L.Average()([h, x, h])), (4, 5 + 4, 4 + 4, 3)),
    "difference": (lambda: _dense(lambda x, h: L.Subtract()([x, h])), (4, 5 + 4, 4 + 4, 3)),
    "concatenated": (lambda: _dense(lambda x, h: L.Concatenate()([x, h, x])), (4, 9, 8, 3)),
    "behind a layer": (
        lambda: _dense(lambda x, h: L.Add()([x, h]), L.Dense(4, "sigmoid")),
        (4, 4, 5 + 4, 4 + 4, 3),
    ),
    "called twice": (_shared, (4, 4 + 4, 4 + 4, 3)),
}


def _random(model):
    keras.utils.set_random_seed(0)
    for variable in model.trainable_variables:
        variable.assign(tf.random.normal(variable.shape, stddev=0.7))
    return model


@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_chain_is_the_model(name):
    build, sizes = GRAPHS[name]
    model = _random(build())
    live = LiveNetwork(model)
    assert live.sizes == sizes
    x = np.random.default_rng(0).normal(size=(5, *live.input_shape)).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        ours, theirs = live.now().logits(x.reshape(5, -1)), model(x)
        double = live.now().logits(tf.constant(x.reshape(5, -1), tf.float64))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # float32
    np.testing.assert_allclose(double, theirs, rtol=1e-5, atol=1e-5)
    gradients = (tape.gradient(each, model.trainable_variables) for each in (ours, theirs))
    for gradient, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["residual", "operations", "concatenated"])
def test_intervals_go_back_as_through_the_matrix(name):
    network = LiveNetwork(_random(GRAPHS[name][0]())).now()
    for index in range(1, network.depth - 1):
        shape = (2, network.sizes[index + 1])
        centre, half = (tf.random.stateless_normal(shape, (0, i)) for i in range(2))
        found = network.image_back(index, centre, tf.abs(half))
        expected = FeedForward.image_back(network, index, centre, tf.abs(half))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_reads_a_sum_twice_has_no_single_paths():
    """x + x W has entries that are sums."""
    inputs = keras.Input((4,))
    x = L.Dense(4, "tanh")(inputs)
    both = L.Activation("tanh")(L.Add()([x, L.Dense(4)(x)]))
    live = LiveNetwork(keras.Model(inputs, L.Dense(3)(both)))
    assert not live.maps[1].has_single_paths
    assert LiveNetwork(_residual()).maps[2].has_single_paths


@pytest.mark.parametrize("name", ["residual", "input and hidden"])
def test_the_estimate_is_the_proved_bound_from_below(name):
    model = _random(GRAPHS[name][0]())
    live, network = LiveNetwork(model), read(model).network
    assert network.sizes == live.sizes
    curvature = CurvatureEstimate(live.sizes, live.activations)
    curvature.start_iterations = 200
    found = tf.function(lambda: curvature.estimate(live.now()), autograph=False)()
    proved = -curvature_bounds(network).lower
    np.testing.assert_array_less(found, proved + 1e-4 * proved.max())
    np.testing.assert_array_less(0.97 * proved, found + 1e-9)


@pytest.mark.parametrize(
    "build",
    [
        lambda base: CRTModel(base, 0.2),
        lambda base: CRTModel(base, 0.2, 0.01, loss="crt"),
        lambda base: CurvatureRegularizer(base, 0.01),
    ],
    ids=["certified", "crt", "regularizer"],
)
def test_a_smoothed_residual_net_is_trained(build, tmp_path):
    base = smoothed(_short("relu"))
    model = build(base)
    assert model.live.sizes == (36, 18 + 9, 18, 3)
    model.compile(keras.optimizers.Adam(0.01))
    x = np.random.default_rng(0).random((12, 6, 6, 1), np.float32)
    history = model.fit(x, np.arange(12) % 3, batch_size=12, epochs=3, verbose=0).history
    assert history["loss"][2] < history["loss"][0]
    base.save(tmp_path / "base.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "base.keras")(x), base(x))
