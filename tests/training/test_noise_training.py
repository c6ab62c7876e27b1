"""Noise training: the loss by hand, the attack inside its ball, the life of a Keras model."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from small_training import L, assert_same, data, fit

import keras_curv
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.errors import InputError
from keras_curv.training.rivals import noise
from keras_curv.training.rivals.noise import NoiseModel, noise_attack, standard_normal

KINDS = {
    "noise": {},
    "adversarial": {"radius": 0.7, "samples": 3, "ramp_steps": 4, "attack_steps": 2},
    "two classes": {"radius": 0.7, "samples": 2, "rivals": "runner_up"},
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))
METRICS = {"loss", "accuracy", "clean_accuracy", "noisy_accuracy"}


def _base():
    keras.utils.set_random_seed(5)
    layers = [L.Flatten(), L.Dense(7, "relu"), L.Dense(6, "tanh"), L.Dense(4)]
    return keras.Sequential([keras.Input((2, 2)), *layers])


def _model(kind, optimizer="adam", run_eagerly=True, **options):
    model = NoiseModel(_base(), 0.4, **KINDS[kind])
    model.compile(optimizer, metrics=["accuracy"], run_eagerly=run_eagerly, **options)
    return model


def _draws(model, count, step):
    return model.deviation * standard_normal((count, model.samples, 4), (model.seed, step))


def test_normal_numbers():
    draws = standard_normal((100_000,), (1, 2)).numpy()
    assert scipy.stats.kstest(draws, "norm").pvalue > 1e-3
    compiled = tf.function(standard_normal, jit_compile=True)(draws.shape, tf.constant([1, 2]))
    np.testing.assert_allclose(compiled, draws, atol=1e-4)  # float32, in the tails
    assert not np.any(draws == standard_normal((100_000,), (1, 3)))


def _cross_entropy(logits, label):
    logits = np.asarray(logits, np.float64)
    own = np.take_along_axis(logits, np.asarray(label)[..., None], axis=-1)[..., 0]
    return np.logaddexp.reduce(logits, axis=-1) - own


@every_kind
def test_one_step_by_hand(kind):
    x, y = data(8)
    model = _model(kind, keras.optimizers.SGD(1.0))
    flat, draws = tf.constant(x.reshape(8, 4)), _draws(model, 8, 0)
    point = flat
    if kind != "noise":
        start = 0.05 if model.ramp_steps else 1.0
        network, seen = model.live.now(), None
        if kind == "two classes":
            logits = network.logits(tf.reshape(flat[:, None] + draws, (-1, 4)))
            mean = tf.reduce_mean(tf.nn.softmax(tf.reshape(logits, (8, -1, 4))), axis=1).numpy()
            mean[np.arange(8), y] = -1.0
            seen = np.eye(4, dtype=bool)[y] | np.eye(4, dtype=bool)[mean.argmax(axis=1)]
        radius = 0.7 * start
        point = noise_attack(network, flat, draws, y, seen, radius=radius, steps=model.attack_steps)
    noisy = tf.reshape(point[:, None] + draws, (-1, 2, 2))
    repeated = np.repeat(y, model.samples)
    with tf.GradientTape() as tape:
        logits = model.base(noisy)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=repeated, logits=logits)
        )
    gradients = tape.gradient(loss, model.base.trainable_variables)
    expected = [v - g for v, g in zip(model.base.get_weights(), gradients, strict=True)]
    clean = np.mean(np.argmax(model.base(x), axis=1) == y)
    metrics = model.train_on_batch(x, y, return_dict=True)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)  # float32
    assert metrics["clean_accuracy"] == metrics["accuracy"] == pytest.approx(clean)
    noisy_accuracy = np.mean(np.argmax(logits, axis=1) == repeated)
    assert metrics["noisy_accuracy"] == pytest.approx(noisy_accuracy)
    for now, then in zip(model.base.get_weights(), expected, strict=True):
        np.testing.assert_allclose(now, then, atol=1e-5)


def _smoothed_loss(network, point, draws, label, seen=None):
    """`−log mean_j softmax(z(x̂ + ξ_j))_y`, in numpy."""
    count, samples, dim = draws.shape
    points = (np.asarray(point)[:, None] + draws).reshape(-1, dim)
    logits = network.logits(tf.constant(points)).numpy().reshape(count, samples, -1)
    if seen is not None:
        logits = np.where(seen[:, None], logits, -np.inf)
    own = np.broadcast_to(label[:, None], (count, samples))
    return -np.log(np.mean(np.exp(-_cross_entropy(logits, own)), axis=1))


@pytest.mark.parametrize("two_classes", [False, True])
def test_the_attack_stays_in_its_ball_and_gains(two_classes, rng, random_network):
    network = random_network(rng, (5, 9, 6, 4), ("tanh", "softplus"))
    x, label = tf.constant(rng.standard_normal((16, 5))), rng.integers(0, 4, 16)
    draws = 0.3 * rng.standard_normal((16, 3, 5))
    seen = None
    if two_classes:
        seen = np.eye(4, dtype=bool)[label] | np.eye(4, dtype=bool)[(label + 1) % 4]
    losses = [_smoothed_loss(network, x, draws, label, seen)]
    for steps in (1, 8):
        point = noise_attack(network, x, draws, label, seen, radius=0.6, steps=steps).numpy()
        assert np.all(np.linalg.norm(point - x, axis=1) <= 0.6 * (1.0 + 1e-12))  # rounding
        losses.append(_smoothed_loss(network, point, draws, label, seen))
    assert np.all(losses[2] > losses[0]) and losses[2].mean() >= losses[1].mean() - 1e-3
    # The first of one step goes past the ball, so it ends on the sphere, along the gradient.
    gradient, h = np.empty((16, 5)), 1e-5
    for entry, unit in enumerate(np.eye(5)):
        ends = [_smoothed_loss(network, x + t * unit, draws, label, seen) for t in (h, -h)]
        gradient[:, entry] = (ends[0] - ends[1]) / (2 * h)
    gradient /= np.linalg.norm(gradient, axis=1, keepdims=True)
    one = noise_attack(network, x, draws, label, seen, radius=0.6, steps=1)
    np.testing.assert_allclose(one, x + 0.6 * gradient, atol=1e-5)  # of the differences


def test_the_radius_rises(monkeypatch):
    radii = []

    def spy(*arguments, radius, steps):
        radii.append(float(radius))
        return noise_attack(*arguments, radius=radius, steps=steps)

    monkeypatch.setattr(noise, "noise_attack", spy)
    x, y = data(8)
    model = _model("adversarial")
    fit(model, x, y, epochs=6, validation_data=(x, y))
    assert radii[1::2] == pytest.approx([0.7] * 6)  # evaluation
    assert radii[::2] == pytest.approx([0.7 * min(0.05 + 0.95 * k / 4, 1.0) for k in range(6)])


def test_each_step_has_noise_of_its_own_and_evaluation_the_same():
    x, y = data(8)
    model = _model("noise", keras.optimizers.SGD(0.0))
    trained = fit(model, x, y, epochs=3)["loss"]
    assert len(set(trained)) == 3
    assert len({model.evaluate(x, y, verbose=0)[0] for _ in range(2)}) == 1
    assert fit(_model("noise", keras.optimizers.SGD(0.0)), x, y, epochs=3)["loss"] == trained


@pytest.mark.parametrize(
    ("kind", "compiled"), [("adversarial", {"jit_compile": True}), ("two classes", {})]
)
@pytest.mark.slow
def test_compiled_and_eager(kind, compiled):
    x, y = data(8)
    plain = _model(kind)
    loss = fit(plain, x, y, epochs=3)
    assert set(loss) == METRICS
    other = _model(kind, run_eagerly=False, **compiled)
    # float32 in another order, through Adam, which divides by small gradients.
    np.testing.assert_allclose(fit(other, x, y, epochs=3)["loss"], loss["loss"], rtol=1e-4)
    assert_same(plain.base, other.base, atol=1e-4)


def test_a_ragged_last_batch_and_validation():
    x, y = data(20)
    model = _model("adversarial", keras.optimizers.Adam(0.02), run_eagerly=False)
    history = fit(model, x, y, epochs=8, validation_data=(x[:7], y[:7]))
    assert set(history) == METRICS | {f"val_{name}" for name in METRICS}
    assert history["loss"][-1] < history["loss"][0]


def test_an_example_of_weight_zero_has_no_influence():
    x, y = data(8)
    weight = np.array([1.0, 0.0] * 4, np.float32)
    results = []
    for shift in (0.0, 3.0):
        model = _model("adversarial", keras.optimizers.SGD(1.0))
        moved = x + shift * (1.0 - weight)[:, None, None]
        model.train_on_batch(moved, y, sample_weight=weight)
        results.append(model)
    assert_same(results[0].base, results[1].base, atol=1e-6)  # sums in float32


@pytest.mark.parametrize("kind", ["noise", "two classes"])
def test_a_saved_model_goes_on_as_if_nothing_had_been(kind, tmp_path):
    x, y = data(20)
    model = _model(kind)
    fit(model, x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is NoiseModel
    histories = [fit(m, x, y) for m in (model, loaded)]
    assert histories[0] == histories[1]
    assert_same(model, loaded)


def test_every_argument_is_in_the_configuration():
    options = {
        "radius": 0.7,
        "attack_steps": 6,
        "rivals": "runner_up",
        "samples": 2,
        "ramp_steps": 11,
        "seed": 3,
    }
    model = NoiseModel(_base(), 0.3, name="mine", **options)
    copy = NoiseModel.from_config(model.get_config())
    assert copy.get_config() == model.get_config()
    assert {name: getattr(copy, name) for name in options} == options
    assert (copy.deviation, copy.name) == (0.3, "mine")


def test_what_was_trained_is_certified(tmp_path):
    """Smoothed with any activation, and on its own."""
    x = data(64)[0]
    y = np.argmax(x.reshape(64, 4), axis=1)
    model = _model("adversarial", keras.optimizers.Adam(0.02), run_eagerly=False)
    fit(model, x, y, epochs=25)
    model.base.export(tmp_path / "model", verbose=False)
    directory = str(tmp_path / "model")
    smoothed = SmoothedClassifier(directory, 0.4).certify(x, y, samples=1000)
    assert np.mean(smoothed.radius > 0.0) > 0.5
    assert np.mean(keras_curv.certify(directory, x, y, method="crown").radius > 0.0) > 0.5


REFUSED = {
    "deviation 0": ({"deviation": 0.0}, "deviation must be a positive number"),
    "deviation −1": ({"deviation": -1.0}, "deviation must be a positive number"),
    "deviation NaN": ({"deviation": np.nan}, "deviation must be a positive number"),
    "radius": ({"radius": 0.0}, "radius must be a positive number"),
    "samples": ({"samples": 0}, "samples must be an integer, at least 1"),
    "steps": ({"attack_steps": 0}, "attack_steps must be an integer, at least 1"),
    "rivals": ({"rivals": "least"}, "rivals must be one of all, runner_up"),
    "seed": ({"seed": -1}, "seed must be an integer, at least 0"),
    "ramp": ({"ramp_steps": 5}, "ramp_steps raises the radius of the attack, but there is none"),
    "negative ramp": ({"ramp_steps": -1, "radius": 1.0}, "ramp_steps must be an integer"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_bad_arguments_are_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        NoiseModel(**{"base": _base(), "deviation": 0.3, **options})


@pytest.mark.parametrize(
    ("labels", "message"), [(np.eye(4)[:3], "look one-hot"), (np.zeros(3), "must be integers")]
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        _model("noise").fit(data(3)[0], labels, verbose=0)
