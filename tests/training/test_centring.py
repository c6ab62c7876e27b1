"""Steps of centred activations, against the net that has them; what is left is a plain net."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import certify
from keras_curv.errors import InputError
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.trainer import train

L = keras.layers


def _base(*hidden):
    keras.utils.set_random_seed(0)
    hidden = hidden or (L.Dense(8, "softplus"), L.Dense(7, "softplus"))
    return keras.Sequential([keras.Input((4,)), *hidden, L.Dense(3)])


def _data(rng):
    return rng.standard_normal((40, 4)).astype(np.float32), rng.integers(3, size=40)


def _moved(rng, jit=False, steps=1, run_eagerly=False, **options):
    x, y = _data(rng)
    model = CRTModel(_base(), 0.3, **options)
    model.compile(keras.optimizers.SGD(0.1), jit_compile=jit, run_eagerly=run_eagerly)
    before = model.base.get_weights()
    losses = [model.train_on_batch(x, y) for _ in range(steps)]
    moved = [now - then for now, then in zip(model.base.get_weights(), before, strict=True)]
    return model, losses, moved


def test_a_step_is_that_of_the_centred_net():
    """Compiled by XLA, against one by hand: of `ΔW_plain − μ Δb_plain` and `Δb_plain − μ ΔW`."""
    model, loss, moved = _moved(np.random.default_rng(3), jit=True, centre=True)
    _, same, plain = _moved(np.random.default_rng(3), run_eagerly=True)
    np.testing.assert_allclose(loss, same, rtol=1e-5)  # float32, in another order
    x, _ = _data(np.random.default_rng(3))
    a = x
    for index, (kernel, bias) in enumerate(zip(plain[::2], plain[1::2], strict=True)):
        mean = np.zeros(len(kernel)) if index == 0 else a.mean(axis=0)
        expected = kernel - np.outer(mean, bias)
        np.testing.assert_allclose(moved[2 * index], expected, atol=1e-6)  # float32
        np.testing.assert_allclose(moved[2 * index + 1], bias - mean @ expected, atol=1e-6)
        first = _base().layers[index]
        a = np.log1p(np.exp(a @ first.kernel.numpy() + first.bias.numpy()))
    for mean, layer in zip(model.centring.means, model.base.layers[1:], strict=True):
        assert mean.shape == (layer.kernel.shape[0],)


def test_means_run_and_evaluation_moves_nothing(rng):
    model, _, _ = _moved(rng, steps=3, centre=True, run_eagerly=True)
    x, y = _data(rng)
    before = [mean.numpy() for mean in model.centring.means]
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    for mean, then in zip(model.centring.means, before, strict=True):
        np.testing.assert_array_equal(mean.numpy(), then)
    assert model.centring.steps.numpy() == 3


def test_the_exported_net_has_nothing_of_it(tmp_path):
    """Same layers, same outputs, and its certificates are those of the net in memory."""
    recipe = Recipe(layers=3, width=16, epochs=2, centre=True, radius=0.3, jit=False)
    train(recipe, str(tmp_path / "model"), limit=40)
    base = recipe.build((8, 8, 1), 10)
    served = tf.saved_model.load(str(tmp_path / "model"))
    assert len(served.weights) == len(base.variables) == 6
    for variable, weight in zip(base.variables, served.weights, strict=True):
        variable.assign(weight)
    x = np.random.default_rng(0).uniform(size=(5, 8, 8, 1)).astype(np.float32)
    np.testing.assert_allclose(base(x), served.serve(x), rtol=1e-6, atol=1e-6)  # float32
    ours = certify(base, x, np.argmax(base(x), axis=1), method="crown")
    theirs = certify(str(tmp_path / "model"), x, np.argmax(base(x), axis=1), method="crown")
    np.testing.assert_allclose(ours.radius, theirs.radius, rtol=1e-6)
    assert json.loads((tmp_path / "model" / "recipe.json").read_text())["centre"]


def test_a_saved_model_goes_on_as_if_nothing_had_been(rng, tmp_path):
    model, _, _ = _moved(rng, steps=2, centre=True, run_eagerly=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, y = _data(rng)
    for one in (model, loaded):
        one.train_on_batch(x, y)
    for ours, theirs in zip(model.base.get_weights(), loaded.base.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)  # float32


@pytest.mark.parametrize(
    "hidden",
    [
        (L.Reshape((2, 2, 1)), L.Conv2D(3, 2, activation="softplus"), L.Flatten()),
        (L.Dense(5, "softplus"), L.Dropout(0.5)),
        (L.Dense(5, "softplus"), L.BatchNormalization()),
    ],
    ids=["convolution", "dropout", "normalised"],
)
def test_other_layers_are_refused(hidden):
    with pytest.raises(InputError, match="centre is for dense layers"):
        CRTModel(_base(*hidden), 0.3, centre=True)


def test_a_layer_without_bias_is_refused():
    hidden = L.Dense(5, "softplus"), L.Dense(4, "softplus", use_bias=False)
    with pytest.raises(InputError, match="use_bias"):
        CRTModel(_base(*hidden), 0.3, centre=True)


@pytest.mark.parametrize("options", [{"loss": "pgd"}, {"filters": (4,)}, {"carry": 4, "layers": 3}])
def test_recipes_that_have_no_such_steps(options):
    with pytest.raises(InputError, match="centre is for the loss"):
        Recipe(centre=True, **options)
