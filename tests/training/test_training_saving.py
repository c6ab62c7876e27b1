"""A saved and loaded model trains on like the original."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_training import L, assert_same, build, data, fit, wrap

from keras_curv.reading import served_model
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.trainable.trainable_network import LiveNetwork

KINDS = ("penalty", "certified")  # whose other loss is one of its options
every_kind = pytest.mark.parametrize("kind", KINDS)


def _model(kind, optimizer="adam"):
    hidden = [(7, "tanh"), (5, "softplus")]
    return build(kind, optimizer, hidden=hidden)


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    """A kind, and a model of it that was trained, to be looked at."""
    model = _model(request.param)
    fit(model, *data(20))
    return request.param, model


@every_kind
def test_a_saved_model_goes_on_as_if_nothing_had_been(kind, tmp_path, recwarn):
    x, y = data(20)
    model = _model(kind)
    fit(model, x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.name == model.name
    assert not [str(w.message) for w in recwarn if "compile" in str(w.message)]
    assert_same(model, loaded)
    for a, b in zip(model.curvature.variables, loaded.curvature.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.curvature.steps.numpy() == 3
    assert loaded.optimizer.iterations.numpy() == 3
    histories = [fit(m, x, y) for m in (model, loaded)]
    assert histories[0] == histories[1]
    assert_same(model, loaded)


@every_kind
def test_saved_without_having_been_compiled(kind, tmp_path):
    keras.utils.set_random_seed(5)
    base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dense(3)])
    model = wrap(kind, base)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(model, loaded)
    loaded.compile("sgd", run_eagerly=True)
    fit(loaded, np.zeros((4, 4), np.float32), np.arange(4) % 3)


@every_kind
def test_a_configuration_may_be_used_twice(kind):
    model = _model(kind)
    config = model.get_config()
    for _ in range(2):
        assert type(model).from_config(config).get_config() == model.get_config()


def test_every_argument_is_in_the_configuration():
    base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dense(5)])
    options = {"loss": "certified", "rivals": 3, "attack_steps": 7, "ramp_steps": 11}
    model = CRTModel(base, 0.7, 0.2, name="mine", **options)
    copy = CRTModel.from_config(model.get_config())
    for name in ("radius", "gamma", "objective", "rivals", "attack_steps", "ramp_steps", "name"):
        assert getattr(copy, name) == getattr(model, name)
    assert (copy.radius, copy.gamma, copy.rivals, copy.attack_steps) == (0.7, 0.2, 3, 7)


def test_weights_alone(trained, tmp_path):
    kind, model = trained
    other = _model(kind)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(model, other)
    assert other.curvature.steps.numpy() == 3


@every_kind
def test_checkpoints_of_tensorflow(kind, tmp_path):
    x, y = data(20)
    model, other = _model(kind), _model(kind)
    fit(model, x, y)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    fit(other, x[:8], y[:8])  # so that its optimiser has variables to be overwritten
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    assert other.optimizer.iterations.numpy() == 3
    for a, b in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    histories = [fit(m, x, y) for m in (model, other)]
    assert histories[0] == histories[1]
    assert_same(model, other)


def test_the_exported_base_is_the_network_that_was_trained(trained, tmp_path):
    x, (_, model) = data(20)[0], trained
    model.base.export(tmp_path / "exported", verbose=False)
    served = served_model.read(tmp_path / "exported")
    served.check(x)
    flat = x.reshape(20, 4)
    logits = served.network.logits(tf.constant(flat, tf.float64))
    np.testing.assert_allclose(logits, model.predict(x, verbose=0), atol=1e-5)  # float32
    kernels, _ = LiveNetwork(model.base).now().weights(tf.float64)
    for affine, kernel in zip(served.network.affines, kernels, strict=True):
        np.testing.assert_array_equal(affine.kernel, kernel)
