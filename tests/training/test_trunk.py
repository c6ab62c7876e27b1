"""Training behind a trunk: its loss is the dual value there, its metric what a certificate says."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import Certifier, ClipInput, CRTModel, CRTRegressor, InputError, Threat, data
from keras_curv.certificates.crc.two_stage import TwoStageCertificate
from keras_curv.numerics.spectral import spectral_norm_bound
from keras_curv.reading.served_model import read
from keras_curv.training.rivals.pgd import PGDModel
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.warm_start import start_from
from keras_curv.training.trainable.graph.flows import Flow, Source
from keras_curv.training.trainable.graph.live_map import LiveMap, Units
from keras_curv.training.trainable.keras_functions import absolute
from keras_curv.training.trainable.trunk import Orthogonal, taps, trunk_layers

L = keras.layers
IMAGE = (6, 6, 2)


def _base(*first, classes=3):
    keras.utils.set_random_seed(3)
    last = [L.Conv2D(5, 2, activation="sparse_plus"), L.Flatten(), L.Dense(classes)]
    return keras.Sequential([keras.Input(IMAGE), *first, *last])


def _data(count=24):
    rng = np.random.default_rng(0)
    return rng.random((count, *IMAGE)).astype(np.float32), np.arange(count) % 3


def _loss_of(model, x, y):
    """The loss at the weights that the model has when it is called; all norms converge anew."""

    def advance():
        model.lipschitz.advance()
        model.curvature.advance(model.network())

    def loss():
        return model.step_loss(tf.constant(x), y, None, training=True)[0]

    advance, loss = (tf.function(each, autograph=False) for each in (advance, loss))

    def converged():
        for _ in range(30):
            advance()
        return loss()

    return converged


def test_the_gradient_is_that_of_the_loss():
    """Through the features, L and κ, by differences of the loss, its attack and all norms anew."""
    # Of no norm in particular: where singular values are equal, as those of orthogonal
    # kernels are, the largest has no derivative.
    keras.utils.set_random_seed(0)
    shapes = [{"kernel_size": 2, "strides": 2}, {"kernel_size": 3, "padding": "same"}]
    initial = {"bias_initializer": keras.initializers.RandomNormal(0.0, 0.3, 1)}
    trunk = [L.Conv2D(8, **shape, activation=absolute, **initial) for shape in shapes]
    model = CRTModel(_base(*trunk), 0.2, attack_steps=8)
    model.compile("sgd", jit_compile=False)
    x, y = _data()
    loss_here = _loss_of(model, x, y)
    for _ in range(2):
        loss_here()
    variables = model.trainable_variables
    assert len(variables) == 8 and "conv" in variables[0].path
    loss_here()
    with tf.GradientTape() as tape:
        loss, _ = model.step_loss(tf.constant(x), y, None, training=True)
    gradients = tape.gradient(loss, [v.value for v in variables])
    rng, step = np.random.default_rng(1), 1e-3
    for variable, gradient in zip(variables, gradients, strict=True):
        direction = rng.standard_normal(variable.shape).astype(np.float32)
        direction /= np.linalg.norm(direction)
        here = variable.numpy()
        ends = []
        for sign in (1, -1):
            variable.assign(here + sign * step * direction)
            ends.append(float(loss_here()))
        variable.assign(here)
        difference = (ends[0] - ends[1]) / (2 * step)
        slope, size = np.sum(gradient.numpy() * direction), float(np.linalg.norm(gradient))
        assert slope == pytest.approx(difference, rel=0.02, abs=0.02 * size)  # kinks are crossed


@pytest.mark.slow
def test_the_metric_is_what_is_certified(tmp_path):
    """On digits; each estimate is near the bound."""
    x, y = data.load_all("digits", "train")
    unseen, labels = data.load("digits").limited(120).arrays()
    recipe = Recipe(trunk=2, filters=(8,), kernel_size=2, strides=1, layers=1, radius=0.3, ramp=0.5)
    recipe = recipe.__class__(
        **{**vars(recipe), "activation": "sparse_plus", "epochs": 12, "jit": False}
    )
    keras.utils.set_random_seed(0)
    base = recipe.build(x.shape[1:], 10)
    model = recipe.model(base, 6)
    model.fit(x, y, epochs=12, batch_size=250, verbose=0)
    model.run_eagerly = True
    seen = model.evaluate(unseen, labels, batch_size=120, verbose=0, return_dict=True)
    base.export(tmp_path / "model", verbose=False)
    two_stage = Certifier(str(tmp_path / "model"), method="two_stage")
    result = two_stage.certify_all(unseen, labels)
    assert seen["clean_accuracy"] == pytest.approx(np.mean(result.prediction == labels), abs=0.005)
    certified = np.mean(result.radius > 0.3)
    assert 0.3 < certified == pytest.approx(seen["certified"], abs=0.03)
    lipschitz = two_stage.method.lipschitz
    assert 0.95 < lipschitz < 1.0 + 1e-4
    assert float(model.lipschitz.estimate()) == pytest.approx(lipschitz, rel=0.02)


def test_the_estimate_is_that_of_the_certificate(tmp_path):
    layers = [
        L.Conv2D(6, 3, padding="same", activation=absolute),
        L.AveragePooling2D(2),
        L.BatchNormalization(),
        L.Conv2D(4, 2, activation="leaky_relu"),
    ]
    base = _base(*layers)
    model = CRTModel(base, 0.1)
    model.compile("adam", jit_compile=False)
    advance = tf.function(lambda: model.lipschitz.advance(), autograph=False)
    for _ in range(40):
        advance()
    base.export(tmp_path / "model", verbose=False)
    certificate = TwoStageCertificate(read(str(tmp_path / "model")).network)
    assert certificate.trunk_depth == 2
    # LipLT is below the product of norms, where a slope's range is not centred at 0.
    norms = [affine.norm for affine in certificate.network.affines[:2]]
    assert float(model.lipschitz.estimate()) == pytest.approx(np.prod(norms), rel=5e-3)
    assert certificate.lipschitz <= np.prod(norms) * (1.0 + 1e-9)


@pytest.mark.parametrize("channels", [4, 12])
def test_kernels_stay_orthogonal(channels):
    rng = np.random.default_rng(0)
    for shifts, shape in (
        (False, (2, 2, channels // 4, channels)),
        (True, (3, 3, channels, channels)),
    ):
        constraint = Orthogonal(shifts)
        kernel = 0.03 * rng.standard_normal(shape).astype(np.float32)
        first = trunk_layers(1 + shifts, (8, 8, channels // 4))[-1].kernel.numpy()
        moved = constraint(first + kernel * (taps(shape) if shifts else 1.0)).numpy()
        matrix = (moved.sum(axis=(0, 1)) if shifts else moved).reshape(-1, channels)
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(channels), atol=1e-5)
        assert np.abs(moved - first).max() > 0.01
        strides = 1 if shifts else 2
        layer = L.Conv2D(channels, shape[0], strides, "same")
        layer.build((None, 8, 8, shape[2]))
        layer.kernel.assign(moved)
        start = Source((8, 8, shape[2]))
        flow = Flow(layer, [start], layer.compute_output_shape((None, *start.shape))[1:])
        dense = LiveMap([Units(start)], [flow]).weights()[0].numpy()
        assert spectral_norm_bound(dense) <= 1.0 + 1e-5
        if shifts:
            assert np.all(moved * (1.0 - taps(shape)) == 0.0)
        again = Orthogonal.from_config(constraint.get_config())(first + kernel)
        np.testing.assert_array_equal(again, constraint(first + kernel))


def test_dropout_acts_on_attacked_points_alone():
    """A step's own mode reaches the layers in front of the features, and those behind them."""
    for place in range(2):
        layers = trunk_layers(2, IMAGE)
        layers.insert(1 + place, L.Dropout(0.9))
        model = CRTModel(_base(*layers), 0.2)
        model.curvature.start_iterations = model.lipschitz.start_iterations = 2
        model.compile("adam", jit_compile=False)
        x, y = map(tf.constant, _data())
        attacked, again = (model.attack(x, y, training=False) for _ in range(2))
        np.testing.assert_array_equal(attacked.worst.point, again.worst.point)
        plain, dropped = (model(x, attacked=attacked, training=mode) for mode in (False, True))
        assert np.abs(plain - dropped).max() > 1e-3
        np.testing.assert_array_equal(plain, model(x, attacked=attacked))


@pytest.mark.slow
def test_numbers_are_trained_behind_a_trunk():
    x, y = _data()
    model = CRTRegressor(_base(*trunk_layers(1, IMAGE), classes=1), 0.1, property="interval:0.5")
    model.compile("adam", loss="mse")
    losses = model.fit(x, y.astype(np.float32), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


def test_a_saved_model_goes_on_as_if_nothing_had_been(tmp_path):
    x, y = _data()
    model = CRTModel(_base(*trunk_layers(2, IMAGE)), 0.2)
    model.compile("adam", run_eagerly=True)
    model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    histories = [m.fit(x, y, shuffle=False, verbose=0).history for m in (model, loaded)]
    assert histories[0] == histories[1]
    assert float(loaded.lipschitz.estimate()) == float(model.lipschitz.estimate())


def test_a_trained_trunk_is_started_from(tmp_path):
    """Filters that it lacks have no effect at first."""
    narrow, wide = (
        Recipe(
            trunk=2, layers=1, activation="sparse_plus", filters=(filters,), kernel_size=3, pool=2
        )
        for filters in (5, 9)
    )
    trained, base = narrow.build((8, 8, 3), 4), wide.build((8, 8, 3), 4)
    for variable in trained.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, seed=1))
    trained.export(tmp_path / "model", verbose=False)
    x = np.random.default_rng(0).random((5, 8, 8, 3)).astype(np.float32)
    assert np.abs(trained(x) - base(x)).max() > 1e-2
    start_from(base, str(tmp_path / "model"))
    np.testing.assert_allclose(trained(x), base(x), rtol=1e-4, atol=1e-3)
    with pytest.raises(InputError, match="cannot be started from: its maps are between"):
        start_from(narrow.build((8, 8, 1), 4), str(tmp_path / "model"))


def test_who_has_no_theory_for_a_trunk_says_so():
    dense = [L.Flatten(), L.Dense(5, "relu"), L.Dense(3)]
    with pytest.raises(InputError, match="activation 'relu'"):
        CRTModel(keras.Sequential([keras.Input(IMAGE), *dense]), 0.1)
    trunk = trunk_layers(2, IMAGE)
    assert PGDModel(_base(*trunk), 0.1).live.trunk is None  # of any activations
    with pytest.raises(InputError, match="knows no threat and no clip"):
        CRTModel(_base(*trunk), 0.1, threat=Threat(low=0.0, high=1.0))
    with pytest.raises(InputError, match="knows no threat and no clip"):
        CRTModel(_base(ClipInput(), *trunk), 0.1)
    with pytest.raises(InputError, match="a trunk is for images"):
        Recipe(trunk=1).build((4,), 3)
    with pytest.raises(InputError, match="trunk is for the loss certified, crt"):
        Recipe(trunk=1, loss="plain")
    with pytest.raises(InputError, match="layers that do not carry. Received: trunk 1, carry 16"):
        Recipe(trunk=1, layers=3, carry=16)
