"""A smooth clone has the model's weights and wiring, no kinks, and can be trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import Carry, CRTModel, CurvatureRegularizer, certify, smoothed, smoothed_changes
from keras_curv.errors import InputError

L = keras.layers


def _sequential(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


def _many():
    """All kinds of kinks, branches, and a model in the model."""
    inputs = keras.Input((8, 8, 1))
    normalised = L.Normalization(name="scale")
    normalised.adapt(np.random.default_rng(0).random((20, 8, 8, 1)))
    x = L.Conv2D(4, 3, activation="relu", name="conv")(normalised(inputs))
    x = L.PReLU(name="prelu")(L.BatchNormalization(name="norm")(x))
    x = keras.ops.relu(L.MaxPooling2D(2, strides=1, padding="same", name="pool")(x))
    y = L.ReLU(6.0, name="capped")(L.Conv2D(4, 1, activation="tanh", name="smooth")(x))
    x = L.LeakyReLU(name="leaky")(L.Concatenate()([x, L.Add()([x, y])]))
    x = L.GlobalMaxPooling2D(name="top")(x)
    head = _sequential(
        (8,),
        Carry(L.Dense(3, "relu"), name="carry"),
        L.Dense(5, "selu", name="selu"),
        L.Dense(5, "hard_sigmoid", name="hard"),
        L.ELU(name="elu"),
        L.Dense(3, "softmax", name="last"),
    )
    return keras.Model(inputs, head(x))


def test_what_changes_is_told():
    found = {name: (before, after) for name, before, after in smoothed_changes(_many())}
    operation = next(name for name in found if name.startswith("relu"))
    assert found == {
        "conv": ("relu", "gelu"),
        "prelu": ("PReLU", "gelu"),
        "pool": ("MaxPooling2D", "AveragePooling2D"),
        operation: ("Relu", "gelu"),
        "capped": ("ReLU", "gelu"),
        "leaky": ("LeakyReLU", "gelu"),
        "top": ("GlobalMaxPooling2D", "GlobalAveragePooling2D"),
        "carry": ("relu", "gelu"),
        "selu": ("selu", "elu"),
        "hard": ("hard_sigmoid", "sigmoid"),
        "elu": ("ELU", "elu"),
        "last": ("softmax", "linear"),
    }


def test_layers_that_augment_are_left_out(rng):
    """They do nothing at inference, but an export of the model would run them."""
    ours = [L.RandomRotation(0.1, name="turn"), L.RandomFlip(name="flip")]
    model = _sequential((4, 4, 1), *ours, L.Flatten(), L.Dense(3, "tanh"), L.Dense(2))
    x = rng.normal(size=(5, 4, 4, 1)).astype(np.float32)
    smooth = smoothed(model)
    assert {one[:1] for one in smoothed_changes(model)} == {("turn",), ("flip",)}
    np.testing.assert_array_equal(smooth(x), model(x, training=False))
    CRTModel(smooth, radius=0.1)
    with pytest.raises(InputError, match="layers that augment images"):
        certify(model, x, method="crc")
    assert (certify(smooth, x, method="crc").radius > 0.0).all()


def test_the_clone_has_the_weights_and_the_model_stays():
    model = _many()
    for layer in (model.get_layer("norm"), model.layers[-1].get_layer("last")):
        layer.set_weights([1.0 + weight for weight in layer.get_weights()])
    x = np.random.default_rng(1).random((5, 8, 8, 1), np.float32)
    before, weights = model(x).numpy(), model.get_weights()
    smooth = smoothed(model)
    for name in ("scale", "conv", "norm", "smooth"):
        theirs, own = (one.get_layer(name).get_weights() for one in (model, smooth))
        assert len(own) and all(map(np.array_equal, theirs, own))
    assert smoothed_changes(smooth) == ()
    assert np.isfinite(smooth(x)).all() and np.abs(smooth(x).numpy().sum(axis=1) - 1.0).min() > 1e-3
    smooth.set_weights([0.0 * weight for weight in smooth.get_weights()])
    assert np.array_equal(model(x), before)
    assert all(map(np.array_equal, model.get_weights(), weights))


def test_a_smooth_model_is_cloned_as_it_is():
    model = _sequential((4,), L.Dense(5, "tanh"), L.Dropout(0.5), L.Dense(3))
    x = tf.random.stateless_normal((6, 4), (0, 1))
    assert smoothed_changes(model) == () and np.array_equal(smoothed(model)(x), model(x))


def test_the_pool_is_the_same_but_for_its_average():
    smooth = smoothed(_many()).get_layer("pool")
    assert smooth.pool_size == (2, 2) and smooth.strides == (1, 1) and smooth.padding == "same"


def test_a_shared_layer_stays_shared():
    shared, inputs = L.Dense(4, "relu"), keras.Input((4,))
    model = keras.Model(inputs, L.Dense(2)(shared(shared(inputs))))
    smooth = smoothed(model, "softplus")
    kernel, bias = shared.get_weights()
    x = hidden = np.random.default_rng(0).random((3, 4), np.float32)
    for _ in range(2):
        hidden = np.logaddexp(0.0, hidden @ kernel + bias)
    last, shift = model.layers[-1].get_weights()
    assert smooth(x).numpy() == pytest.approx(hidden @ last + shift, abs=1e-5)
    assert smooth.count_params() == model.count_params()


def test_the_clone_is_saved_and_loaded(tmp_path):
    smooth, x = smoothed(_many(), "sparse_plus"), tf.ones((2, 8, 8, 1))
    smooth.save(tmp_path / "smooth.keras")
    loaded = keras.models.load_model(tmp_path / "smooth.keras")
    assert np.array_equal(loaded(x), smooth(x))


@pytest.mark.parametrize("kind", [CRTModel, CurvatureRegularizer])
def test_the_clone_is_trained(kind):
    model = _sequential(
        (8, 8, 1),
        L.Conv2D(3, 3, activation="relu"),
        L.MaxPooling2D(2),
        L.Flatten(),
        L.Dense(4),
        L.ReLU(),
        L.Dense(3, "softmax"),
    )
    with pytest.raises(InputError):
        kind(model, 0.1)
    training = kind(smoothed(model), 0.1)
    training.compile("adam")
    x = np.random.default_rng(0).random((8, 8, 8, 1), np.float32)
    history = training.fit(x, np.arange(8) % 3, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


class OwnModel(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return keras.ops.relu(super().call(inputs))


def _joined(join):
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(3)(join([inputs, L.Dense(4, "relu")(inputs)])))


REFUSED = {
    "maximum": (lambda: _joined(L.Maximum(name="m")), r"layer 'm' \(Maximum\).*work: Average"),
    "absolute": (
        lambda: _sequential((4,), L.Dense(3, keras.ops.abs, name="m"), L.Dense(2)),
        "activation 'abs' in layer 'm' has no smooth counterpart.*work: softplus, .*gelu",
    ),
    "own function": (
        lambda: _sequential((4,), L.Dense(3, lambda z: z, name="m"), L.Dense(2)),
        "activation '<lambda>' in layer 'm'",
    ),
    "threshold": (
        lambda: _sequential((4,), L.ReLU(threshold=1.0, name="m"), L.Dense(2)),
        r"layer 'm' \(ReLU\).*work: ReLU without a threshold",
    ),
    "own call": (lambda: OwnModel([keras.Input((4,)), L.Dense(3)]), "`call` of its own"),
    "not built": (lambda: keras.Sequential([L.Dense(3)]), "built Keras model: give it an Input"),
    "a layer": (lambda: L.Dense(3), "built Keras model"),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("function", [smoothed, smoothed_changes])
def test_refused_by_name(name, function):
    build, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        function(build())


@pytest.mark.parametrize("activation", ["relu", "exponential", "no_such", 3])
def test_refused_activations(activation):
    with pytest.raises(InputError, match="activation must be one of .*softplus"):
        smoothed(_sequential((4,), L.Dense(3)), activation)
