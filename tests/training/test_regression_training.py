"""Training of numbers: what the loss is given are the ends of what the ball makes of an output."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv import (
    CertifiedAccuracy,
    Certifier,
    ClipInput,
    CRTRegressor,
    InputError,
    Property,
    Threat,
)
from keras_curv.training.models.crt_regressor import ends
from keras_curv.training.run.callbacks import has_tensorboard

L = keras.layers
SCALE = np.array([0.5, 2.0], np.float32)
THREATS = {
    "none": Threat(),
    "scale": Threat(scale=SCALE),
    "frozen": Threat(scale=0.5, frozen=[1]),
    "box": Threat(low=-1.0, high=1.0),
}


def _base(outputs=1, clip=False, first=1.0, seed=0):
    keras.utils.set_random_seed(seed)
    layers = [L.Dense(12, "softplus"), L.Dense(outputs)]
    base = keras.Sequential([keras.Input((2,)), *([ClipInput()] if clip else []), *layers])
    layers[0].kernel.assign(np.reshape(first, (-1, 1)) * (2.0 * layers[0].kernel))
    return base


def _data(outputs=1, count=48):
    rng = np.random.default_rng(5)
    x = rng.uniform(-1.0, 1.0, (count, 2)).astype("float32")
    return x, np.sin(3.0 * x @ rng.standard_normal((2, outputs))).astype("float32")


def _converge(model, steps=200):
    advance = tf.function(lambda: model.curvature.advance(model.network()), autograph=False)
    for _ in range(steps):
        advance()


def _attacked(model, x, y):
    """Low and high ends `(n, outputs)`, once the estimate of κ has converged."""
    model.compile("sgd", run_eagerly=True)
    _converge(model)
    x = tf.constant(x)
    attacked = model.attack(x, tf.constant(y), training=False)
    outputs = model(x, attacked=attacked)
    return ends(attacked, outputs, model.minus_m(attacked))


def _loss(model, x, y, weight=None):
    return model.step_loss(tf.constant(x), tf.constant(y), weight, training=False)[0]


@pytest.mark.parametrize(("kind", "clip"), [*((kind, False) for kind in THREATS), ("none", True)])
def test_the_ends_enclose_what_the_ball_makes_of_each_output(kind, clip):
    """They are nearly tight against extremes on a grid, as κ is small against the radius."""
    threat, (x, y), radius = THREATS[kind], _data(2), 0.2
    model = CRTRegressor(_base(2, clip), radius, threat=threat, attack_steps=8)
    low, high = _attacked(model, x, y)
    side = np.linspace(-1.0, 1.0, 41)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    factor, fixed = threat.factors(2)
    move = radius * grid[np.linalg.norm(grid, axis=1) <= 1.0] * np.where(fixed, 0.0, factor)
    points = x[:, None] + move
    allowed = np.ones(points.shape[:2], bool)
    if threat.confined:
        allowed = np.all(np.abs(points) <= 1.0, axis=-1)
    found = model.base(points.reshape(-1, 2).astype("float32")).numpy().reshape(*allowed.shape, 2)
    least = np.where(allowed[..., None], found, np.inf).min(axis=1)
    most = np.where(allowed[..., None], found, -np.inf).max(axis=1)
    assert np.all(low.numpy() <= least + 1e-5) and np.all(most - 1e-5 <= high.numpy())
    wide = np.mean(high.numpy() - low.numpy())
    assert wide <= 1.25 * np.mean(most - least)


@pytest.mark.parametrize("loss", ["mse", "mae", keras.losses.Huber(0.1)])
def test_the_compiled_loss_is_that_of_the_farther_end(loss):
    x, y = _data(2)
    model = CRTRegressor(_base(2), 0.3)
    low, high = _attacked(model, x, y)
    model.compile("sgd", loss, run_eagerly=True)
    ends = np.stack([low, high])
    farther = np.abs(ends - y).argmax(axis=0)
    worst = np.take_along_axis(ends, farther[None], axis=0)[0]
    expected = np.mean(keras.losses.get(loss)(y, worst))
    assert float(_loss(model, x, y)) == pytest.approx(expected, rel=1e-4)
    assert 0.1 < np.mean(farther) < 0.9  # both happen


def test_weights_by_feature_are_those_of_a_scaled_kernel():
    x, y = _data()
    found = []
    for base, threat, inputs in (
        (_base(), Threat(scale=SCALE), x),
        (_base(first=SCALE), Threat(), x / SCALE),
    ):
        model = CRTRegressor(base, 0.4, threat=threat)
        _attacked(model, inputs, y)
        with tf.GradientTape() as tape:
            loss = _loss(model, inputs, y)
        found.append((float(loss), tape.gradient(loss, base.layers[0].kernel.value).numpy()))
    (ours, gradient), (theirs, scaled) = found
    assert ours == pytest.approx(theirs, rel=1e-4)
    np.testing.assert_allclose(gradient, SCALE[:, None] * scaled, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_metric_foretells_the_certificates():
    """It grows with training, in graph as Keras runs it."""
    (x, y), options = _data(count=200), {"threat": THREATS["box"], "property": "interval:0.25"}
    model = CRTRegressor(_base(), 0.15, ramp_steps=20, attack_steps=3, **options)
    model.compile(keras.optimizers.Adam(2e-2), jit_compile=False)
    model.run_eagerly = True
    before = model.evaluate(x, y, batch_size=200, verbose=0, return_dict=True)
    model.run_eagerly = False
    model.fit(x, y[:, 0], batch_size=50, epochs=25, verbose=0)
    after = model.evaluate(x, y, batch_size=200, verbose=0, return_dict=True)
    proved = Certifier(model.base, method="crc", **options).certify(x).radius >= 0.15
    assert after["certified"] == pytest.approx(np.mean(proved), abs=0.04)
    assert after["certified_error"] < before["certified_error"]
    assert after["clean_error"] <= after["certified_error"] + 1e-6
    assert after["certified_error"] <= after["clean_error"] + after["interval"] + 1e-6
    predicted = np.mean(np.abs(model.base(x).numpy() - y))
    assert after["clean_error"] == pytest.approx(predicted, rel=1e-4)


def test_certificates_between_epochs(tmp_path):
    x, y = _data()
    log_dir = tmp_path if has_tensorboard() else None
    counted = CertifiedAccuracy(x, None, radius=[0.01, 3.0], log_dir=log_dir)
    model = CRTRegressor(_base(), 0.15, threat=THREATS["scale"], property="interval:0.25")
    model.compile("sgd", run_eagerly=True)
    logs = model.fit(x, y, epochs=1, verbose=0, callbacks=[counted]).history
    assert logs["val_certified_accuracy_0.01"] == [1.0] and logs["val_certified_accuracy_3"] == [
        0.0
    ]
    without = CRTRegressor(_base(), 0.15)
    without.compile("sgd")
    with pytest.raises(InputError, match="give CRTRegressor a property"):
        without.fit(x, y, epochs=1, verbose=0, callbacks=[counted, NoEpoch()])
    labelled = CertifiedAccuracy(x, np.zeros(len(x), int), radius=0.1)
    with pytest.raises(InputError, match="label"):
        model.fit(x, y, epochs=1, verbose=0, callbacks=[labelled, NoEpoch()])


class NoEpoch(keras.callbacks.Callback):
    """Fails if an epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        pytest.fail("an epoch has begun")


def test_without_a_property_nothing_is_called_certified():
    x, y = _data()
    logs = {}
    for property in (None, "interval:0.25"):
        model = CRTRegressor(_base(), 0.15, property=property)
        model.compile("sgd", run_eagerly=True)
        logs[property] = set(model.evaluate(x, y, verbose=0, return_dict=True))
    assert logs["interval:0.25"] - logs[None] == {"certified"}


def test_targets_whose_size_is_not_known_before(rng):
    """Shapes as those from `from_generator`, or from a map in Python."""
    x, y = _data(2)
    for shape in ((None, None), None):
        unknown = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        unknown = unknown.map(lambda x, y, shape=shape: (x, tf.ensure_shape(_hidden(y), shape)))
        model = CRTRegressor(_base(2), 0.15)
        model.compile("sgd")
        assert np.isfinite(model.fit(unknown, epochs=1, verbose=0).history["loss"][0])
    wrong = tf.data.Dataset.from_tensor_slices((x, y[:, :1])).batch(16)
    wrong = wrong.map(lambda x, y: (x, tf.ensure_shape(_hidden(y), (None, None))))
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(wrong, epochs=1, verbose=0)


def _hidden(y):
    return tf.numpy_function(lambda y: y, [y], tf.float32)


@pytest.mark.slow
def test_training_narrows_what_is_proved():
    """At no larger a clean error than half as much again, the certified error is smaller."""
    x, y = _data(count=200)
    judge, errors = CRTRegressor(_base(), 0.2), {}
    judge.compile("sgd", run_eagerly=True)
    plain, base = _base(), _base()
    for name, model in (("plain", plain), ("robust", CRTRegressor(base, 0.2))):
        model.compile(keras.optimizers.Adam(2e-2), "mse", jit_compile=False)
        model.fit(x, y, batch_size=50, epochs=40, verbose=0)
        judge.base.set_weights((plain if name == "plain" else base).get_weights())
        _converge(judge)
        errors[name] = judge.evaluate(x, y, batch_size=200, verbose=0, return_dict=True)
    assert errors["robust"]["certified_error"] < 0.97 * errors["plain"]["certified_error"]
    assert errors["robust"]["clean_error"] < 1.5 * errors["plain"]["clean_error"]


def test_examples_count_by_their_weight():
    x, y = _data()
    model = CRTRegressor(_base(), 0.2, gamma=0.01)
    _attacked(model, x, y)
    some = np.zeros(len(x), np.float32)
    some[:10] = 1.0
    whole, part = float(_loss(model, x, y, some)), float(_loss(model, x[:10], y[:10]))
    assert whole == pytest.approx(part * 10 / len(x), rel=1e-3)


def test_images_and_a_compiled_step():
    keras.utils.set_random_seed(1)
    layers = [L.Conv2D(4, 3, 2, activation="softplus"), L.Flatten(), L.Dense(1)]
    base = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    x = np.random.default_rng(1).uniform(0.0, 1.0, (40, 8, 8, 1)).astype("float32")
    y = x.mean(axis=(1, 2, 3))
    model = CRTRegressor(base, 0.1)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=True)
    losses = model.fit(x, y, batch_size=20, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_saved_model_is_the_same(tmp_path):
    x, y = _data()
    options = {"threat": THREATS["box"], "property": Property.interval({0: 0.5})}
    model = CRTRegressor(_base(), 0.3, 0.01, **options)
    model.compile("sgd", "mae", run_eagerly=True)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.threat == model.threat and loaded.property == model.property
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, "radius"),
        ({"threat": Threat(basis=np.eye(2))}, "a basis, whose directions"),
        ({"threat": Threat(groups=[[0, 1]])}, "nothing is left|knows no categories"),
        ({"property": "argmax"}, "numbers are trained for an interval"),
        ({"property": "threshold:0.5"}, "numbers are trained for an interval"),
        ({"property": Property.interval({3: 1.0})}, "names output 3"),
        ({"attack_steps": 0}, "attack_steps"),
    ],
)
def test_what_cannot_be_trained_for_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        CRTRegressor(_base(2), **{"radius": 0.5, **options})


@pytest.mark.parametrize(
    "loss", ["binary_crossentropy", "kl_divergence", keras.losses.Hinge(), "msle", "poisson"]
)
def test_a_loss_of_labels_is_refused(loss):
    with pytest.raises(InputError, match="the targets are numbers"):
        CRTRegressor(_base(), 0.5).compile("sgd", loss)


@pytest.mark.parametrize("targets", [None, np.zeros(8), np.zeros((8, 3)), np.zeros((8, 2, 1))])
def test_targets_of_another_shape_are_refused(targets):
    model = CRTRegressor(_base(2), 0.5)
    model.compile("sgd")
    with pytest.raises(InputError, match=r"numbers \(n, 2\)"):
        model.fit(np.zeros((8, 2), np.float32), targets, verbose=0)
