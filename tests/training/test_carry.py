"""Layers that carry their input along: what they make of a network, and of training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import Carry, Certifier, ClipInput, CRTModel, InputError, Recipe, curvature_bounds
from keras_curv.reading.served_model import read
from keras_curv.training.rivals.coap import COAPModel
from keras_curv.training.run.muon import Muon
from keras_curv.training.run.warm_start import start_from
from keras_curv.training.trainable.trainable_network import LiveNetwork

L = keras.layers
MODELS = {
    "one": ((4,), lambda: [Carry(L.Dense(5, "tanh")), L.Dense(6, "softplus"), L.Dense(3)]),
    "two": (
        (4,),
        lambda: [Carry(L.Dense(5, "tanh")), Carry(L.Dense(3, "softplus")), L.Dense(3)],
    ),
    "behind an image": (
        (2, 3, 1),
        lambda: [L.Rescaling(0.5, -0.2), L.Flatten(), Carry(L.Dense(5, "sigmoid")), L.Dense(3)],
    ),
    "behind a hidden layer": (
        (4,),
        lambda: [L.Dense(6, "softplus"), L.Dense(4), Carry(L.Dense(5, "tanh")), L.Dense(3)],
    ),
    "of rows": (
        (4,),
        lambda: [L.Reshape((2, 2)), Carry(L.Dense(5, "tanh")), L.Flatten(), L.Dense(3)],
    ),
    "without an activation": ((4,), lambda: [Carry(L.Dense(5)), L.Dense(6, "tanh"), L.Dense(3)]),
    "behind a convolution": (
        (4, 4, 1),
        lambda: [
            L.Conv2D(2, 2, activation="tanh"),
            L.AveragePooling2D(3),
            L.Flatten(),
            Carry(L.Dense(5, "sigmoid")),
            L.Dense(3),
        ],
    ),
}


def _model(name, rng):
    shape, layers = MODELS[name]
    model = keras.Sequential([keras.Input(shape), *layers()])
    for variable in model.weights:
        variable.assign(rng.standard_normal(variable.shape))
    return model


@pytest.mark.parametrize("name", list(MODELS))
def test_in_training_it_is_the_model(name, rng):
    model = _model(name, rng)
    network = LiveNetwork(model).now()
    x = rng.standard_normal((6, *model.input_shape[1:])).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        ours, theirs = network.logits(x.reshape(6, -1)), model(x)
        ours = LiveNetwork(model).now().logits(x.reshape(6, -1))
    # float32, in another order of multiplication.
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    gradients = (tape.gradient(each, model.trainable_variables) for each in (ours, theirs))
    for gradient, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", list(MODELS))
def test_products_and_matrices_are_one(name, rng):
    """A network runs layer by layer in float32, and by matrices in float64."""
    network = LiveNetwork(_model(name, rng)).now()
    x = rng.standard_normal((5, network.dim))
    label, rivals = np.array([0, 1, 2, 0, 1]), np.array([[1, 2], [2, 0], [0, 1], [1, 2], [0, 2]])
    short, long = (
        network.evaluate(tf.constant(x, dtype), tf.constant(label), tf.constant(rivals))
        for dtype in (tf.float32, tf.float64)
    )
    for got, expected in ((short.margin, long.margin), (short.gradient, long.gradient)):
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_a_fit_ends_with_a_certified_model(tmp_path):
    """Behind a clip with a dead zone, by a layer that carries."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(mean, 0.15, (200, 4)) for mean in (0.2, 0.8)]).astype(np.float32)
    y = np.repeat([0, 1], 200)
    first = [ClipInput(dead_zone=0.05), Carry(L.Dense(6, "softplus"))]
    last = [L.Dense(16, "softplus"), L.Dense(2)]
    base = keras.Sequential([keras.Input((4,)), *first, *last])
    model = CRTModel(base, radius=0.3)
    model.compile(keras.optimizers.Adam(0.02), jit_compile=False)
    losses = model.fit(x, y, epochs=6, verbose=0, batch_size=50).history["loss"]
    model.run_eagerly = True
    after = model.evaluate(x[::4], y[::4], batch_size=100, verbose=0, return_dict=True)
    assert after["loss"] < 0.7 * losses[0] and after["clean_accuracy"] > 0.95
    base.export(str(tmp_path / "model"), verbose=False)
    certifier = Certifier(str(tmp_path / "model"), method="crc")
    radius = certifier.certify(x[::4], y[::4]).radius
    # What the metric estimates is what the certificates say.
    assert abs(np.mean(radius > 0.3) - after["certified"]) < 0.05
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(x), model(x))


def test_inserted_layers_change_nothing_at_first(tmp_path):
    """Two layers become three, and these four; the bounds stay, up to what their proof costs."""
    finished, carry = read("saved_models/digits").network, {"carry": 7, "width": None}
    carry["width"] = finished.sizes[1]
    expected = curvature_bounds(finished).lower
    x = np.random.default_rng(0).uniform(0.0, 1.0, (5, 64)).astype(np.float32)
    directory = "saved_models/digits"
    for layers in (3, 4):
        base = Recipe(layers=layers, **carry).build((8, 8, 1), 10)
        start_from(base, directory)
        np.testing.assert_allclose(base(x.reshape(5, 8, 8, 1)), finished.logits(x), rtol=1e-4)
        directory = str(tmp_path / str(layers))
        base.export(directory, verbose=False)
        found = curvature_bounds(read(directory).network).lower
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_what_carries_is_started_from_too(rng, tmp_path):
    recipe = Recipe(layers=4, carry=5, width=8)
    base = recipe.build((8, 8, 1), 10)
    for variable in base.weights:
        variable.assign(rng.standard_normal(variable.shape))
    base.export(str(tmp_path), verbose=False)
    again = recipe.build((8, 8, 1), 10)
    start_from(again, str(tmp_path))
    for ours, theirs in zip(again.weights, base.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    others = {"layers": 2}, {"layers": 3}, {"layers": 4, "carry": 4}, {"layers": 5}
    for other in others:
        with pytest.raises(InputError, match="cannot be started from"):
            start_from(Recipe(**{"width": 8, **other}).build((8, 8, 1), 10), str(tmp_path))


def test_new_units_beside_what_carries_change_nothing_at_first(rng, tmp_path):
    finished = Recipe(layers=4, carry=5, width=8).build((8, 8, 1), 10)
    for variable in finished.weights:
        variable.assign(rng.standard_normal(variable.shape))
    finished.export(str(tmp_path), verbose=False)
    x = rng.uniform(size=(5, 8, 8, 1)).astype(np.float32)
    for layers in (4, 5):
        wider = Recipe(layers=layers, carry=7, width=11).build((8, 8, 1), 10)
        start_from(wider, str(tmp_path))
        np.testing.assert_allclose(wider(x), finished(x), rtol=1e-4, atol=1e-4)
        assert all(np.any(variable.numpy()[..., -1]) for variable in wider.weights[::2])


def test_muon_turns_the_kernel_inside():
    model = keras.Sequential([keras.Input((4,)), Carry(L.Dense(5, "tanh")), L.Dense(3)])
    optimizer = Muon(0.1, rms_rate=None)
    optimizer.build(model.trainable_variables)
    assert optimizer.adam_velocities[0] is None


def test_a_recipe_says_what_carries():
    recipe = Recipe(layers=3, carry=5, width=8)
    assert recipe.architecture == "3 × 5 that carry and 8 softplus"
    widths = [layer.output.shape[-1] for layer in recipe.build((8, 8, 1), 10).layers]
    assert widths == [64, 69, 8, 10]
    with pytest.raises(InputError, match="carry is for three layers and more"):
        Recipe(carry=5)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [Carry(L.Dense(5, "relu", name="own")), L.Dense(3)], "'relu' in layer 'own'"),
    ],
)
def test_what_training_cannot_read_is_refused(layers, message):
    base = keras.Sequential([keras.Input((4,)), *layers()])
    with pytest.raises(InputError, match=message):
        CRTModel(base, radius=0.5)


def test_coap_has_no_theory_for_it():
    base = keras.Sequential([keras.Input((4,)), Carry(L.Dense(5, "relu")), L.Dense(3)])
    with pytest.raises(InputError, match="units that carry"):
        COAPModel(base, radius=0.5)


def test_it_takes_dense_layers_alone():
    with pytest.raises(InputError, match=r"takes a keras\.layers\.Dense"):
        Carry(L.Conv2D(3, 2))
