"""Training against the polytope's bounds: the loss by hand, its metrics, what it saves."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from polytope_dual import SIZES, dual_margins
from small_training import L, assert_same, data, fit

import keras_curv
from keras_curv.certificates.linear.coap import PolytopeCertificate
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.training.rivals.coap import COAPModel
from keras_curv.training.rivals.polytope import margin_bounds


def _base(hidden=(7,), activation="relu", seed=5):
    keras.utils.set_random_seed(seed)
    layers = [L.Flatten(), *(L.Dense(size, activation) for size in hidden), L.Dense(4)]
    base = keras.Sequential([keras.Input((2, 2)), *layers])
    for variable in base.weights:
        if len(variable.shape) == 1:
            variable.assign(0.3 * keras.random.normal(variable.shape))
    return base


def _model(
    hidden=(7,), optimizer="adam", *, radius=0.3, options=None, run_eagerly=True, **compiled
):
    model = COAPModel(_base(hidden), radius, **(options or {}))
    model.compile(optimizer, run_eagerly=run_eagerly, **compiled)
    return model


def _robust_loss(weights, x, y, radius):
    logits = -dual_margins(weights, x.reshape(len(x), -1).astype(np.float64), y, radius)
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])


def test_convolutions():
    """Convolutions run as such in float32, and as matrices in float64."""
    keras.utils.set_random_seed(2)
    layers = [L.Conv2D(3, 2, activation="relu"), L.Conv2D(2, 2, activation="relu"), L.Flatten()]
    base = keras.Sequential([keras.Input((4, 4, 2)), *layers, L.Dense(5, "relu"), L.Dense(3)])
    network = COAPModel(base, 0.3).live.now()
    x, label = np.random.default_rng(4).standard_normal((5, 32)), tf.range(5) % 3
    bounds = [
        margin_bounds(network, tf.constant(x, dtype), label, 0.3, projections=projections)
        for dtype in (tf.float32, tf.float64)
        for projections in (None, 30)  # 30: of 32 inputs
    ]
    np.testing.assert_allclose(bounds[0], bounds[2], atol=1e-5)
    assert np.abs(bounds[1] - bounds[0]).max() < 0.5 and not np.array_equal(bounds[0], bounds[1])


@pytest.mark.parametrize("hidden", [(7,), (6, 5), (5, 4, 3)])
def test_one_step_by_hand(hidden):
    """The loss is that of the dual, the step along its central differences."""
    x, y = data(6)
    model = _model(hidden, keras.optimizers.SGD(0.5), options={"projections": None})
    old = [weight.astype(np.float64) for weight in model.base.get_weights()]
    history = fit(model, x, y)
    dual = dual_margins(old, x.reshape(6, 4).astype(np.float64), y, 0.3)
    proved = np.mean(
        [np.delete(row, label).min() > 0.0 for row, label in zip(dual, y, strict=True)]
    )
    assert history["loss"][0] == pytest.approx(_robust_loss(old, x, y, 0.3), rel=1e-5)
    assert history["certified"][0] == pytest.approx(proved)
    for index, new in enumerate(model.base.get_weights()):
        step = (old[index] - new) / 0.5
        for entry in np.ndindex(new.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [weight.copy() for weight in old]
                moved[index][entry] += sign * 1e-5
                ends.append(_robust_loss(moved, x, y, 0.3))
            # float32 in the step; a kink between the two ends would show as a larger error
            assert step[entry] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=2e-6)


def test_the_radius_rises():
    x, y = data(6)
    still = keras.optimizers.SGD(0.0)
    model = _model((6, 5), still, options={"ramp_steps": 4, "projections": None})
    weights = [weight.astype(np.float64) for weight in model.base.get_weights()]
    losses = fit(model, x, y, epochs=6)["loss"]
    shares = np.minimum(0.05 + 0.95 * np.arange(6) / 4.0, 1.0)
    expected = [_robust_loss(weights, x, y, 0.3 * share) for share in shares]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    fresh = _model((6, 5), options={"ramp_steps": 4, "projections": None})
    full = fresh.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(full, expected[-1], rtol=1e-5)


def test_training_lowers_the_robust_loss():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 4, 256)
    x = np.eye(4)[y].reshape(-1, 2, 2) + 0.1 * rng.standard_normal((256, 2, 2))
    options = {"projections": 7}
    optimizer = keras.optimizers.Adam(0.01)
    model = _model((16, 12, 12), optimizer, radius=0.25, options=options, run_eagerly=False)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = fit(model, x.astype(np.float32), y, epochs=12, batch_size=32)
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] < 0.5 * before["loss"] and history["loss"][-1] < history["loss"][0]
    assert after["certified"] > 0.9 > before["certified"] and after["clean_accuracy"] > 0.95


def test_projections_are_new_in_every_step_and_the_same_in_evaluation():
    x, y = data(8)
    options = {"projections": 3}
    model = _model((7, 6, 5), keras.optimizers.SGD(0.0), options=options)
    evaluated = [model.evaluate(x, y, verbose=0) for _ in range(2)]
    losses = fit(model, x, y, epochs=3)["loss"]
    evaluated.append(model.evaluate(x, y, verbose=0))
    assert len(set(losses)) == 3 and len({tuple(values) for values in evaluated}) == 1
    again = _model((7, 6, 5), keras.optimizers.SGD(0.0), options=options)
    assert fit(again, x, y, epochs=3)["loss"] == losses
    other = _model((7, 6, 5), "sgd", options={**options, "seed": 1})
    assert fit(other, x, y)["loss"][0] != losses[0]


@pytest.mark.slow
def test_compiled_by_xla():
    x, y = data(8)
    options = {"ramp_steps": 4, "projections": None}
    models = [
        _model((6, 5), "sgd", options=options, run_eagerly=not jit, jit_compile=jit)
        for jit in (False, True)
    ]
    losses = [fit(model, x, y, epochs=4)["loss"] for model in models]
    np.testing.assert_allclose(*losses, rtol=1e-4)  # float32, in another order
    assert_same(*(model.base for model in models), atol=1e-5)


def test_projections_compile_and_have_gradients():
    """XLA draws other numbers from the same seed: what is equal is what they estimate."""
    x, y = data(8)
    x, base = tf.reshape(x, (8, 4)), _base((7, 6))
    live = COAPModel(base, 0.3).live

    @tf.function(jit_compile=True)
    def step(seed, projections=3):
        with tf.GradientTape() as tape:
            bound = margin_bounds(live.now(), x, y, 0.3, projections=projections, seed=seed)
            total = tf.reduce_sum(bound)
        return total, tape.gradient(total, base.trainable_variables)

    exact = tf.reduce_sum(margin_bounds(live.now(), x, y, 0.3))
    totals, gradients = zip(*(step(tf.constant([0, seed])) for seed in range(30)), strict=True)
    assert (
        np.median(totals) == pytest.approx(float(exact), rel=0.1)
        and len(set(map(float, totals))) == 30
    )
    assert all(np.any(part) and np.all(np.isfinite(part)) for one in gradients for part in one)


def test_a_saved_model_goes_on_as_if_nothing_had_been(tmp_path):
    x, y = data(20)
    options = {"projections": 4, "ramp_steps": 9, "seed": 3}
    model = _model((7, 6), options=options)
    fit(model, x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is COAPModel and loaded.name == model.name
    for name, value in {**options, "radius": 0.3}.items():
        assert getattr(loaded, name) == loaded.get_config()[name] == value
    histories = [fit(one, x, y) for one in (model, loaded)]
    assert histories[0] == histories[1]
    assert_same(model, loaded)


def test_weights_of_examples_count():
    x, y = data(8)
    weight = np.array([1.0, 0.0] * 4)
    part, weighted = (_model((7, 6), options={"projections": None}) for _ in range(2))
    one = part.evaluate(x[::2], y[::2], verbose=0, return_dict=True)
    two = weighted.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    assert two["loss"] == pytest.approx(one["loss"] / 2.0, rel=1e-5)  # Keras' mean is over all
    for name in ("certified", "clean_accuracy"):
        assert two[name] == pytest.approx(one[name])


def test_the_exported_base_is_certified(tmp_path):
    x, y = data(20)
    model = _model((12, 8), keras.optimizers.Adam(0.02), radius=0.1, run_eagerly=False)
    fit(model, x, y, epochs=20)
    model.base.export(tmp_path / "exported", verbose=False)
    crown = keras_curv.certify(str(tmp_path / "exported"), x, y, method="crown")
    kernels, biases = model.live.now().weights(tf.float64)
    network = Network.from_weights(
        [k.numpy() for k in kernels], [b.numpy() for b in biases], "relu"
    )
    coap = PolytopeCertificate(network).certify(x.reshape(20, 4), y)
    np.testing.assert_array_equal(crown.prediction, coap.prediction)
    right = coap.status == keras_curv.Status.CERTIFIED
    np.testing.assert_array_equal(right, crown.status == keras_curv.Status.CERTIFIED)
    assert right.sum() >= 10 and set(coap.method[right]) == {"coap"}
    ratio = crown.radius[right] / coap.radius[right]
    assert np.all((0.5 <= ratio) & (ratio <= 2.0))
    certified = model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)["certified"]
    assert certified == pytest.approx(np.mean(coap.radius >= 0.1))


def test_what_is_refused(random_network, rng):
    base = _base()
    for radius in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="radius must be a positive number"):
            COAPModel(base, radius)
    with pytest.raises(InputError, match="projections must be an integer, at least 1"):
        COAPModel(base, 0.1, projections=0)
    with pytest.raises(InputError, match="ramp_steps must be an integer, at least 0"):
        COAPModel(base, 0.1, ramp_steps=-1)
    with pytest.raises(InputError, match="seed must be an integer, at least 0"):
        COAPModel(base, 0.1, seed=-1)
    with pytest.raises(InputError, match="'softplus'.*supported: relu"):
        COAPModel(_base(activation="softplus"), 0.1)
    with pytest.raises(InputError, match="relu networks. Received: activation 'tanh'"):
        PolytopeCertificate(random_network(rng, SIZES[2], "tanh"))
    x, y = data(8)
    with pytest.raises(InputError, match="look one-hot"):
        fit(_model(), x, np.eye(4)[y])
