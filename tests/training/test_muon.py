"""A step of Muon is orthogonal, of dense layers as Keras has it, and of convolutions too."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.training.run.muon import Muon

L = keras.layers


def _stepped(optimizer, variables, rng):
    """The change of each variable by one step with random gradients."""
    optimizer.build(variables)
    before = [variable.numpy() for variable in variables]
    optimizer.apply([tf.constant(rng.normal(size=v.shape), tf.float32) for v in variables])
    return [old - variable.numpy() for old, variable in zip(before, variables, strict=True)]


@pytest.mark.parametrize(
    "layer",
    [L.Conv2D(12, (3, 2)), L.Conv1D(3, 5, data_format="channels_last")],
    ids=["2-D", "1-D"],
)
def test_a_step_of_a_convolution_is_orthogonal(layer, rng):
    layer.build((None, 8, 8, 2)[: 4 if isinstance(layer, L.Conv2D) else 3])
    kernel, bias = _stepped(Muon(0.05, rms_rate=None), layer.trainable_variables, rng)
    singular = np.linalg.svd(kernel.reshape(-1, kernel.shape[-1]), compute_uv=False)
    assert np.all((0.5 < singular / 0.05) & (singular / 0.05 < 1.3))  # five iterations
    assert np.all(np.abs(bias) > 0.0)


def test_dense_layers_are_trained_as_by_keras(rng):
    moved = []
    for optimizer in (Muon, keras.optimizers.Muon):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), L.Dense(4), L.Dense(3, name="logits")])
        given = optimizer(0.05, exclude_layers=["logits"], rms_rate=None)
        moved.append(_stepped(given, model.trainable_variables, np.random.default_rng(0)))
    for ours, theirs in zip(*moved, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "shape, jit", [((520, 560), False), ((513, 620), True), ((620, 514), False)]
)
def test_large_matrices_are_those_of_keras_too(shape, jit):
    """With singular values over three orders of magnitude, as gradients have, in fewer products."""
    rng, side = np.random.default_rng(0), min(shape)
    gradient = rng.normal(size=shape) @ np.diag(np.logspace(-3, 0, shape[1]))
    gradient = tf.constant(gradient, tf.float32)
    ours, theirs = (
        tf.function(one(0.05).zeropower_via_newtonschulz5, jit_compile=jit)(gradient, 5).numpy()
        for one in (Muon, keras.optimizers.Muon)
    )
    assert np.linalg.norm(theirs, 2) > 0.5
    # float32, with side terms in a product, and squares of what is small.
    assert np.linalg.norm(ours - theirs, 2) < 4e-7 * side


def test_what_is_excluded_stays_with_adam():
    layer = L.Conv2D(4, 3, name="logits")
    layer.build((None, 8, 8, 2))
    optimizer = Muon(0.05, exclude_layers=["logits"])
    optimizer.build(layer.trainable_variables)
    assert all(velocity is not None for velocity in optimizer.adam_velocities)


def test_it_is_saved_with_a_model(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 1)), L.Conv2D(2, 3), L.Flatten(), L.Dense(3)])
    model.compile(Muon(0.05, rms_rate=None), "mse")
    model.save(tmp_path / "model.keras")
    assert isinstance(keras.models.load_model(tmp_path / "model.keras").optimizer, Muon)
