"""`CertifiedAccuracy` puts certificates into the logs of an epoch, and into TensorBoard."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_curv
from keras_curv import CertifiedAccuracy, CRTModel, InputError, data

X, Y = data.load_all("digits", "train")


def base():
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), dense(12, "softplus"), dense(10)]
    )


def fit(model, callback, epochs=3, **options):
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(
        X[:256], Y[:256], epochs=epochs, callbacks=[callback], verbose=0, **options
    ).history


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model after five epochs, their history, and the folder of TensorBoard's files."""
    folder, model = tmp_path_factory.mktemp("logs"), base()
    options = {"radius": [0.02, 0.1], "every": 2, "log_dir": folder}
    history = fit(model, CertifiedAccuracy(X[:40], Y[:40], **options), epochs=5)
    return model, history, folder


def logged(folder, name):
    """Steps and values of a figure."""
    events = EventAccumulator(str(folder))
    events.Reload()
    found = events.Tensors(name)
    return [e.step for e in found], [float(tf.make_ndarray(e.tensor_proto)) for e in found]


def assert_is_that_of_certify(model, history):
    radius = keras_curv.certify(model, X[:40], Y[:40]).radius
    assert history["val_certified_accuracy_0.02"][-1] == np.mean(radius > 0.02)
    assert history["val_certified_accuracy_0.1"][-1] == np.mean(radius > 0.1)
    assert 0.0 < np.mean(radius > 0.02)


def test_the_figure_is_that_of_certify(fitted):
    model, history, _ = fitted
    assert_is_that_of_certify(model, history)


def test_the_figure_of_a_wrapped_model_is_that_of_its_base():
    model = base()
    wrapped = CRTModel(model, 0.3)
    wrapped.compile("adam", run_eagerly=True)
    callback = CertifiedAccuracy(X[:40], Y[:40], radius=[0.02, 0.1])
    history = wrapped.fit(X[:64], Y[:64], callbacks=[callback], verbose=0).history
    assert_is_that_of_certify(model, history)


def test_between_certifications_the_last_figure_stays(fitted):
    _, history, folder = fitted
    figures = history["val_certified_accuracy_0.02"]
    steps, values = logged(folder / "certified", "val_certified_accuracy_0.02")
    assert steps == [0, 1, 3, 4]  # after the first epoch, each second one, and the last
    assert values == pytest.approx([figures[step] for step in steps])
    assert figures[2] == figures[1]


def test_tensorboard(fitted):
    _, _, folder = fitted
    events = EventAccumulator(str(folder / "certified"))
    events.Reload()
    assert {"curvature/minus_m_mean", "curvature/theorem4_K_mean", "certified_radius"} <= set(
        events.Tags()["tensors"]
    )
    name = "certified_accuracy_by_radius"
    steps, heights = logged(folder / "radius_curve" / "0004", name)
    assert steps == sorted(steps)
    assert heights == sorted(heights, reverse=True) and heights[-1] == 0.0


def test_other_callbacks_see_it(tmp_path):
    model = base()
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"),
        monitor="val_certified_accuracy_0.02",
        mode="max",
        save_best_only=True,
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    certified = CertifiedAccuracy(X[:20], Y[:20], radius=0.02)
    model.fit(X[:256], Y[:256], callbacks=[certified, best], verbose=0)
    assert (tmp_path / "best.keras").is_file()


def test_the_sample_is_drawn_once_and_by_its_seed():
    first, again, other = (
        CertifiedAccuracy(X, Y, radius=1.0, sample=30, seed=seed) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.x, again.x)
    assert len(first.x) == len(first.y) == 30 and not np.array_equal(first.x, other.x)
    assert len(CertifiedAccuracy(X, Y, radius=1.0, sample=None).x) == len(X)


def test_no_log_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_curv.training.run.callbacks.has_tensorboard", lambda: False)
    with pytest.raises(InputError, match="not installed: pip install"):
        CertifiedAccuracy(X, Y, radius=1.0, log_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, "radius must be a positive number. Received: 0.0"),
        ({"radius": [0.5, float("nan")]}, "Received: nan"),
        ({"radius": 1.0, "sample": 0}, "sample must be an integer, at least 1"),
        ({"radius": 1.0, "every": 0}, "every must be an integer, at least 1"),
        ({"radius": 1.0, "y": Y[:3]}, "one length"),
        ({"radius": 1.0, "x": X[:0], "y": Y[:0]}, "not 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message):
        CertifiedAccuracy(**({"x": X, "y": Y} | options))


def test_a_model_that_cannot_be_certified_is_named():
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, "relu")]
    )
    with pytest.raises(InputError, match="relu of an affine map"):
        fit(model, CertifiedAccuracy(X[:10], Y[:10], radius=1.0))
