"""The wrappers are Keras models: what `fit` offers works with them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_training import KINDS, L, assert_same, build, data, fit, wrap

METRICS = {
    "penalty": {"loss", "curvature", "accuracy"},
    "certified": {
        "loss",
        "curvature",
        "accuracy",
        "clean_accuracy",
        "certified",
        "attack_distance",
        "attack_success",
    },
}
METRICS["crt"] = METRICS["certified"]
every_kind = pytest.mark.parametrize("kind", KINDS)
# The two losses of CRTModel differ in what an attack is for, and in no part of its life.
either_model = pytest.mark.parametrize("kind", ["penalty", "certified"])


@every_kind
def test_training_lowers_its_loss(kind):
    x = data()[0]
    y = np.argmax(x.reshape(20, 4), axis=1)
    model = build(kind, keras.optimizers.Adam(0.01), run_eagerly=False)
    losses = fit(model, x, y, epochs=15)["loss"]
    assert losses[-1] < 0.9 * losses[0]


@either_model
def test_one_dataset_or_arrays(kind):
    x, y = data(20)
    arrays, dataset = build(kind), build(kind)
    fit(arrays, x, y)
    dataset.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), shuffle=False, verbose=0)
    assert_same(arrays, dataset)


@either_model
def test_labels_of_any_integer_type_and_in_a_column(kind):
    x, y = data(8)
    one = build(kind)
    fit(one, x, y)
    for dtype in ("uint8", "int32", "int64"):
        other = build(kind)
        fit(other, x, y.astype(dtype)[:, None])
        assert_same(one, other)


@either_model
def test_callbacks_and_validation(kind, tmp_path):
    x, y = data(20)
    model = build(kind, keras.optimizers.Adam(0.1))
    seen = []
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: seen.append(logs)),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.EarlyStopping("val_loss", patience=100),
    ]
    history = fit(model, x, y, epochs=2, validation_data=(x[:7], y[:7]), callbacks=callbacks)
    expected = METRICS[kind] | {f"val_{name}" for name in METRICS[kind]} | {"learning_rate"}
    assert set(history) == expected
    assert all(np.isfinite(values).all() and len(values) == 2 for values in history.values())
    assert len(seen) == 6 and all(set(logs) == METRICS[kind] for logs in seen)
    assert set(model.evaluate(x, y, verbose=0, return_dict=True)) == METRICS[kind]
    other = build(kind, keras.optimizers.Adam(0.1))
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "best.weights.h5")
    assert_same(model, other)


def _gradient(model, x, y, **options):
    """Old minus new weights after one step of gradient descent of rate one."""
    before = model.base.get_weights()
    metrics = model.train_on_batch(x, y, return_dict=True, **options)
    moved = [old - new for old, new in zip(before, model.base.get_weights(), strict=True)]
    return metrics["loss"], moved


def _sgd(kind):
    return build(kind, keras.optimizers.SGD(1.0))


@either_model
def test_an_example_of_weight_zero_has_no_influence(kind):
    (x, y), weight = data(8), np.array([1.0, 2.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0])
    loss, moved = _gradient(_sgd(kind), x, y, sample_weight=weight)
    x[weight == 0.0] += 3.0
    y[weight == 0.0] = (y[weight == 0.0] + 1) % 4
    other_loss, other_moved = _gradient(_sgd(kind), x, y, sample_weight=weight)
    assert loss == pytest.approx(other_loss, rel=1e-6)
    for a, b in zip(moved, other_moved, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)  # float32
    x[weight == 1.0] += 3.0
    assert _gradient(_sgd(kind), x, y, sample_weight=weight)[0] != pytest.approx(loss, rel=1e-3)


@either_model
def test_weights_scale_loss_and_penalty_alike(kind):
    x, y = data(8)
    loss, moved = _gradient(_sgd(kind), x, y)
    for weight in (np.full(8, 1.0), np.full((8, 1), 1.0), np.full(8, 2.0), np.full(8, 0.0)):
        other_loss, other_moved = _gradient(_sgd(kind), x, y, sample_weight=weight)
        factor = weight.flat[0]
        assert other_loss == pytest.approx(factor * loss, rel=1e-5)
        for a, b in zip(moved, other_moved, strict=True):
            np.testing.assert_allclose(b, factor * a, atol=1e-5)  # float32


@either_model
def test_class_weights_are_sample_weights(kind):
    (x, y), factor = data(8), np.array([1.0, 0.0, 3.0, 0.5])
    loss, moved = _gradient(_sgd(kind), x, y, sample_weight=factor[y])
    other_loss, other_moved = _gradient(_sgd(kind), x, y, class_weight=dict(enumerate(factor)))
    assert loss == pytest.approx(other_loss)
    for a, b in zip(moved, other_moved, strict=True):
        np.testing.assert_array_equal(a, b)


@either_model
def test_frozen_layers_stay(kind):
    x, y = data(8)
    keras.utils.set_random_seed(5)
    base = keras.Sequential([keras.Input((2, 2)), L.Flatten(), L.Dense(7, "tanh"), L.Dense(4)])
    base.layers[1].trainable = False
    model = wrap(kind, base)
    model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
    before = base.get_weights()
    fit(model, x, y)
    moved = [np.any(a != b) for a, b in zip(before, base.get_weights(), strict=True)]
    assert moved == [False, False, True, True]


def test_a_base_without_trainable_weights_is_warned_of():
    x, y = data(8)
    base = keras.Sequential([keras.Input((2, 2)), L.Flatten(), L.Dense(7, "tanh"), L.Dense(4)])
    base.trainable = False
    model = wrap("certified", base)
    model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
    before = base.get_weights()
    with pytest.warns(UserWarning, match="no trainable weights"):
        fit(model, x, y)
    for now, then in zip(base.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


@either_model
def test_statistics_of_batch_normalization_move_once_a_step(kind):
    x, y = data(8)
    layers = [keras.Input((2, 2)), L.Flatten(), L.BatchNormalization(momentum=0.5)]
    base = keras.Sequential([*layers, L.Dense(7, "tanh"), L.Dense(4)])
    model = wrap(kind, base)
    model.compile(keras.optimizers.SGD(1e-3), run_eagerly=True)
    norm = base.layers[1]
    model.evaluate(x, y, verbose=0)
    np.testing.assert_array_equal(norm.moving_mean, np.zeros(4))
    fit(model, x, y)
    # Half the way to the batch's mean, at the points that the loss is taken at.
    reach = 0.0 if kind == "penalty" else 0.15
    np.testing.assert_allclose(
        norm.moving_mean, x.reshape(8, 4).mean(axis=0) / 2, atol=reach + 1e-6
    )
    assert np.any(norm.moving_mean.numpy() != 0.0)


@pytest.mark.parametrize("kind", ["certified", "crt"])
def test_weights_count_in_metrics(kind):
    x, y = data(8)
    model = build(kind)
    y[:5] = model.predict(x[:5], verbose=0).argmax(axis=1)
    each = [
        model.test_on_batch(x[i : i + 1], y[i : i + 1], return_dict=True) for i in range(len(x))
    ]
    weight = np.arange(8.0)
    together = model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
    for name in ("clean_accuracy", "certified"):
        values = [float(metrics[name]) for metrics in each]
        assert 0.0 < np.mean(values) < 1.0
        assert together[name] == pytest.approx(np.average(values, weights=weight))
