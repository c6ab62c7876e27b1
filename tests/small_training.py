"""The small model, data and comparison that the tests of training share."""

import keras
import numpy as np

from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer

L = keras.layers
KINDS = ("penalty", "certified", "crt")


def wrap(kind, base, ramp_steps=0):
    if kind == "penalty":
        return CurvatureRegularizer(base, 0.1)
    return CRTModel(base, 0.3, 0.1, loss=kind, ramp_steps=ramp_steps)


def build(
    kind, optimizer="adam", *, hidden=((7, "tanh"),), ramp_steps=0, run_eagerly=True, **options
):
    """A compiled model; seeded, so that two calls give equal ones."""
    keras.utils.set_random_seed(5)
    layers = [L.Flatten(), *(L.Dense(*layer) for layer in hidden), L.Dense(4)]
    base = keras.Sequential([keras.Input((2, 2)), *layers])
    model = wrap(kind, base, ramp_steps)
    model.curvature.start_iterations = 3
    model.compile(optimizer, metrics=["accuracy"], run_eagerly=run_eagerly, **options)
    return model


def data(count=20):
    rng = np.random.default_rng(1)
    return rng.standard_normal((count, 2, 2)).astype(np.float32), rng.integers(0, 4, count)


def fit(model, x, y, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, **options).history


def assert_same(one, other, **tolerance):
    assert len(one.get_weights()) == len(other.get_weights())
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 0.0}))
