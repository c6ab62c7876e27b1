"""Data and models that cannot be trained are refused, rather than read as something else."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer

L = keras.layers
BUILD = {
    "penalty": lambda base: CurvatureRegularizer(base, 0.1),
    "certified": lambda base: CRTModel(base, 0.3),
    "crt": lambda base: CRTModel(base, 0.3, loss="crt"),
}
every_kind = pytest.mark.parametrize("kind", list(BUILD))


def _base():
    return keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dense(3)])


def _compiled(kind, loss=None, **options):
    model = BUILD[kind](_base())
    model.curvature.start_iterations = 3  # a rough estimate refuses as much
    model.compile("sgd", loss, **options)
    return model


X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 2, 1, 0])

LABELS = {
    "one-hot": (np.eye(3)[Y], "look one-hot; pass integers"),
    "one-hot integers": (np.eye(3, dtype=int)[Y], "look one-hot; pass integers"),
    "of rank two": (np.stack([Y, Y], axis=1), r"integers \(n,\). Received: int64, shape .*2\)"),
    "of rank three": (Y[:, None, None], r"integers \(n,\). Received: int64"),
    "floats": (Y.astype(np.float32), r"integers \(n,\). Received: float32"),
    "halves": (Y + 0.5, r"integers \(n,\). Received: float32"),
    "booleans": (Y > 0, r"integers \(n,\). Received: bool"),
    "none": (None, "needs labels"),
}


@every_kind
def test_labels_that_are_no_class_numbers(kind):
    model = _compiled(kind)
    before = model.get_weights()
    for name, (labels, message) in LABELS.items():
        for train in (model.fit, model.evaluate):
            with pytest.raises(InputError, match=message):
                train(X, labels, verbose=0)
        for now, then in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(now, then, err_msg=name)


@every_kind
def test_examples_of_another_shape(kind):
    with pytest.raises(InputError, match=r"examples of shape \(3,\) do not fit the model"):
        _compiled(kind).fit(X[:, :3], Y, verbose=0)


def _outside(value):
    labels = Y.astype(np.int64)
    labels[3] = value
    return labels


@every_kind
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_labels_out_of_range(kind, run_eagerly):
    model = _compiled(kind, run_eagerly=run_eagerly)
    before = model.base.get_weights()
    for value in (-1, 3, 2**32 + 1):
        for train in (model.fit, model.evaluate):
            with pytest.raises(InputError, match="labels must be from 0 to 2. Received: "):
                train(X, _outside(value), verbose=0)
            with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 2"):
                train(tf.constant(X), tf.constant(_outside(value)), verbose=0)
        for now, then in zip(model.base.get_weights(), before, strict=True):
            np.testing.assert_array_equal(now, then, err_msg=str(value))


def test_labels_out_of_range_under_xla():
    """XLA drops assertions: the loss says it, and `TerminateOnNaN` stops."""
    model = _compiled("certified", jit_compile=True)
    for value in (-1, 3, 2**32 + 1):
        unseen = tf.constant(X), tf.constant(_outside(value))
        assert np.isnan(model.evaluate(*unseen, verbose=0, return_dict=True)["loss"])
    assert np.isfinite(model.evaluate(X, Y, verbose=0, return_dict=True)["loss"])


@pytest.mark.parametrize("kind", ["certified", "crt"])
def test_what_is_no_number_is_not_certified(kind):
    model = _compiled(kind)
    model.base.layers[0].kernel.assign(tf.fill((4, 7), np.nan))
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["certified"] == 0.0


LOSSES = {
    "of probabilities": (keras.losses.SparseCategoricalCrossentropy(), "from_logits=True"),
    "of probabilities, one-hot": (keras.losses.CategoricalCrossentropy(), "from_logits=True"),
    "by name": ("sparse_categorical_crossentropy", "from_logits=True"),
    "of numbers, a class": (keras.losses.MeanSquaredError(), "labels are integers"),
    "of one-hot labels": (keras.losses.CategoricalHinge(), "labels are integers"),
    "by class name": ("SparseCategoricalCrossentropy", "from_logits=True"),
    "a function": (keras.losses.sparse_categorical_crossentropy, "from_logits=True"),
    "in a list": (["sparse_categorical_crossentropy"], "from_logits=True"),
    "of numbers": ("mse", "from_logits=True"),
    "one-hot": (
        keras.losses.CategoricalCrossentropy(from_logits=True),
        r"labels are integers.*Received: loss='categorical_crossentropy'",
    ),
    "focal, one-hot": (
        keras.losses.CategoricalFocalCrossentropy(from_logits=True),
        r"labels are integers.*Received: loss='categorical_focal_crossentropy'",
    ),
}


@every_kind
@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_that_misread_labels_or_logits(kind, name):
    loss, message = LOSSES[name]
    with pytest.raises(InputError, match=message):
        _compiled(kind, loss)


def sparse_categorical_crossentropy(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


class OwnLoss(keras.losses.Loss):
    def call(self, labels, logits):
        return sparse_categorical_crossentropy(labels, logits)


@every_kind
@pytest.mark.parametrize(
    "loss",
    [
        None,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
        sparse_categorical_crossentropy,
        OwnLoss(),
    ],
)
def test_losses_that_read_them_well(kind, loss):
    assert _loss_of(kind, loss) == pytest.approx(_usual_loss(kind), rel=1e-6)  # float32


def _loss_of(kind, loss=None):
    keras.utils.set_random_seed(0)
    model = _compiled(kind, loss, run_eagerly=True)
    return model.evaluate(X, Y, verbose=0, return_dict=True)["loss"]


_usual_loss = functools.cache(_loss_of)


ARGUMENTS = [
    ({"radius": 0.0}, "radius must be a positive number. Received: 0.0"),
    ({"radius": -1.0}, "radius must be a positive number. Received: -1.0"),
    ({"radius": float("nan")}, "radius must be a positive number. Received: nan"),
    ({"radius": float("inf")}, "radius must be a positive number. Received: inf"),
    ({"gamma": -0.1}, "gamma must be a number, at least 0. Received: -0.1"),
    ({"gamma": float("nan")}, "gamma must be a number, at least 0. Received: nan"),
    ({"gamma": float("inf")}, "gamma must be a number, at least 0. Received: inf"),
    ({"rivals": 0}, "rivals must be from 1 to 2, the other classes. Received: 0"),
    ({"rivals": 3}, "rivals must be from 1 to 2, the other classes. Received: 3"),
    ({"rivals": -1}, "rivals must be from 1 to 2, the other classes. Received: -1"),
    ({"rivals": 1.5}, "rivals must be from 1 to 2, the other classes. Received: 1.5"),
    ({"rivals": 2, "loss": "crt"}, "runner-up alone. Received: rivals=2"),
    ({"rivals": 0, "loss": "crt"}, "runner-up alone. Received: rivals=0"),
    ({"loss": "trades"}, "loss must be one of certified, crt. Received: 'trades'"),
    ({"loss": None}, "loss must be one of certified, crt. Received: None"),
    ({"attack_steps": 0}, "attack_steps must be an integer, at least 1. Received: 0"),
    ({"attack_steps": 1.5}, "attack_steps must be an integer, at least 1. Received: 1.5"),
    ({"ramp_steps": -1}, "ramp_steps must be an integer, at least 0. Received: -1"),
    ({"ramp_steps": 0.5}, "ramp_steps must be an integer, at least 0. Received: 0.5"),
]


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_arguments_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        CRTModel(_base(), **{"radius": 0.3, **options})


@pytest.mark.parametrize("gamma", [-0.1, float("nan"), float("inf")])
def test_a_penalty_out_of_range(gamma):
    with pytest.raises(InputError, match=f"gamma must be a number, at least 0. Received: {gamma}"):
        CurvatureRegularizer(_base(), gamma)


def test_four_rivals_or_all_there_are():
    for classes, rivals in ((2, 1), (3, 2), (5, 4), (9, 4)):
        base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dense(classes)])
        assert CRTModel(base, 0.3).rivals == rivals
        assert CRTModel(base, 0.3, rivals=classes - 1).rivals == classes - 1
        assert CRTModel(base, 0.3, loss="crt").rivals == 1
        assert CRTModel(base, 0.3, loss="crt", rivals=1).rivals == 1


@every_kind
def test_a_base_that_cannot_be_read(kind):
    base = keras.Sequential([keras.Input((4,)), L.Dense(7, "relu"), L.Dense(3)])
    with pytest.raises(InputError, match="activation 'relu'"):
        BUILD[kind](base)


@every_kind
def test_not_compiled(kind):
    with pytest.raises(ValueError, match="compile"):
        BUILD[kind](_base()).fit(X, Y, verbose=0)
