"""CROWN-IBP: lines and margins hold, against the certificate's own; the loss is the paper's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.linear.bounds.relaxation import relaxation
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.training.rivals.crown_ibp import CROWNIBPModel, linear_margins, lines
from keras_curv.training.rivals.interval import interval_bounds

L = keras.layers
EAGERLY = {"run_eagerly": True}
SIZES = {1: (5, 3), 2: (4, 9, 3), 3: (4, 9, 5, 3)}
CASES = [("relu", 1), ("relu", 3), ("softplus", 2), ("sigmoid", 3), ("tanh", 2)]
WITH_LINES = (
    *("relu", "softplus", "sigmoid", "tanh", "softsign", "elu", "celu"),
    *("log_sigmoid", "squareplus", "sparse_plus"),
)


def _intervals(rng):
    low = 3.0 * rng.standard_normal(400)
    width = np.concatenate([rng.exponential(3.0, 360), 10.0 ** rng.uniform(-7, -2, 40)])
    low[380:] = -width[380:] * rng.uniform(size=20)  # narrow, around the kink
    return low, low + width


@pytest.mark.parametrize("name", WITH_LINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_value_is_beyond_the_lines(name, dtype, rng):
    activation = activations.get(name)
    low, high = (end.astype(dtype) for end in _intervals(rng))
    line = lines(activation, tf.constant(low), tf.constant(high))
    below, base, above, top = (part.numpy().astype(np.float64) for part in line)
    z = low + (high - low).astype(np.float64) * np.linspace(0.0, 1.0, 501)[:, None]
    values = activation.value(tf.constant(z)).numpy()
    # Roundings of σ, of slope times z, and of the slopes, some of which cancel.
    size = 1.0 + np.abs(z).max(axis=0)
    # A narrow interval has the tangent for a chord, 1e-6 · sup|σ″|/8 off; bisection less.
    slack = 40 * np.finfo(dtype).eps * size + 3e-7
    assert np.all(below * z + base <= values + slack)
    assert np.all(above * z + top >= values - slack)


@pytest.mark.parametrize("name", WITH_LINES)
def test_lines_are_as_close_at_the_midpoint_as_lines_can_be(name, rng):
    activation = activations.get(name)
    low, high = _intervals(rng)
    middle = (low + high) / 2.0
    line = lines(activation, tf.constant(low), tf.constant(high))
    best = relaxation(activation, low, high)
    gaps = []
    for a in ([part.numpy() for part in line], best):
        gaps.append((a[2] * middle + a[3]) - (a[0] * middle + a[1]))
    # The certificate takes constants as well, where they are better.
    assert np.mean(gaps[0] <= 1.02 * gaps[1] + 1e-6) > 0.95
    # A chord of a narrow interval has the slope at the midpoint instead of its own.
    narrow = np.where(high - low < 1e-3, 0.5 * (high - low), 0.0)
    assert np.all(gaps[0] <= 1.3 * gaps[1] + narrow + 1e-6)


@pytest.mark.parametrize("name", ["relu", "softplus", "tanh", "log_sigmoid"])
def test_the_gradient_of_lines_is_that_of_their_values(name, rng):
    activation, (low, high) = activations.get(name), _intervals(rng)
    low, high = low[:300], high[:300]
    weight = rng.standard_normal((4, 300))

    def total(low, high):
        parts = tf.stack(lines(activation, low, high))
        return tf.reduce_sum(weight * parts, axis=0)

    ends = tf.constant(low), tf.constant(high)
    with tf.GradientTape() as tape:
        tape.watch(ends)
        value = total(*ends)
    slopes = tape.gradient(value, ends)
    h = 1e-6
    for i, slope in enumerate(slopes):
        step = h * np.eye(2)[i]
        numeric = total(low + step[0], high + step[1]) - total(low - step[0], high - step[1])
        close = np.isclose(numeric / (2 * h), slope, rtol=1e-3, atol=1e-3)
        # Next to a kink, or where bisection jumps, a difference is no derivative.
        assert np.mean(close) > 0.97


def _labelled(network, x):
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    classes = np.arange(network.classes)
    return label, np.array([classes[classes != y] for y in label]).reshape(len(x), -1)


def _margins(network, x, label, rivals, radius):
    intervals = interval_bounds(network, tf.constant(x), label, rivals, radius)
    args = tf.constant(x), label, rivals, radius, intervals.hidden
    return linear_margins(network, *args).numpy(), intervals.margins.numpy()


@pytest.mark.parametrize(("name", "depth"), CASES)
def test_no_margin_is_below_its_bound(name, depth, rng, random_network):
    network = random_network(rng, SIZES[depth], name)
    x = (0.7 * rng.standard_normal((6, network.dim))).astype(np.float32)
    label, rivals = _labelled(network, x)
    for radius in (0.03, 0.4, 2.0):
        bounds, _ = _margins(network, x, label, rivals, radius)
        delta = rng.standard_normal((300, *x.shape))
        share = rng.uniform(size=(300, 1, 1)) ** 0.2
        points = x + radius * share * delta / np.linalg.norm(delta, axis=-1, keepdims=True)
        flat = tf.constant(points.reshape(-1, network.dim))
        margins = network.evaluate(flat, np.tile(label, 300), np.tile(rivals, (300, 1))).margin
        margins = margins.numpy().reshape(300, *rivals.shape)
        slack = 1e-5 * (1.0 + np.abs(margins).max())  # float32, and lines up to 3e-7
        assert np.all(margins >= bounds - slack)
        attacked, _ = pgd_attack(
            network, tf.constant(x), tf.constant(label), radius=radius, steps=15, restarts=2
        )
        assert np.all(attacked.numpy() >= bounds.min(axis=1) - slack)


@pytest.mark.parametrize("name", ["relu", "softplus", "tanh"])
def test_with_one_hidden_layer_they_are_the_first_pass_of_the_certificate(
    name, rng, random_network
):
    network = random_network(rng, (4, 9, 3), name)
    x = 0.7 * rng.standard_normal((20, 4))
    label, rivals = _labelled(network, x)
    ours, by_intervals = _margins(network, x, label, rivals, 0.3)
    proved = LinearBoundCertificate(network).margin_bounds(x, label, rivals, np.full(20, 0.3))
    # Which has a second pass besides, but pays for the distance of 32 points on smooth lines.
    assert np.all(ours <= proved + (1e-9 if name == "relu" else 1e-3))
    gap = np.mean(proved - ours) / np.mean(proved - by_intervals)
    assert gap < 0.15 and np.mean(ours > by_intervals) > 0.9


def test_a_linear_network_is_exact(rng, random_network):
    network = random_network(rng, (5, 3), "relu")
    x = rng.standard_normal((4, 5))
    label, rivals = _labelled(network, x)
    evaluation = network.evaluate(tf.constant(x), label, rivals)
    expected = evaluation.margin - 0.7 * tf.norm(evaluation.gradient, axis=-1)
    for bounds in _margins(network, x, label, rivals, 0.7):
        np.testing.assert_allclose(bounds, expected, atol=1e-12)


def _base(activation="relu", hidden=(7,)):
    keras.utils.set_random_seed(5)
    layers = [L.Flatten(), *(L.Dense(n, activation) for n in hidden), L.Dense(3)]
    return keras.Sequential([keras.Input((2, 2)), *layers])


def _data(count=16):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, 2, 2)).astype(np.float32)
    return x, np.argmax(x.reshape(count, 4)[:, :3], axis=1)


def _model(optimizer="adam", activation="relu", compiled=EAGERLY, **options):
    model = CROWNIBPModel(_base(activation), options.pop("radius", 0.3), **options)
    model.compile(optimizer, **compiled)
    return model


def _relu_margins(weights, x, y, radius):
    """Margin bounds of a two-layer relu net in numpy: by lines and by intervals, `(n, 2)`."""
    k1, b1, k2, b2 = map(np.float64, weights)
    z, spread = x @ k1 + b1, radius * np.linalg.norm(k1, axis=0)
    low, high = z - spread, z + spread
    slope = np.where(low > 0, 1.0, np.where(high < 0, 0.0, high / (high - low)))
    top = np.where((low < 0) & (high > 0), -slope * low, 0.0)
    bottom_slope = (z > 0).astype(float)
    a = (np.maximum(high, 0) + np.maximum(low, 0)) / 2
    r = (np.maximum(high, 0) - np.maximum(low, 0)) / 2
    by_lines, by_intervals = [], []
    for i, label in enumerate(y):
        for t in range(3):
            if t == label:
                continue
            w, c = k2[:, label] - k2[:, t], b2[label] - b2[t]
            omega = np.where(w > 0, w * bottom_slope[i], w * slope[i])
            value = omega @ z[i] + np.sum(np.where(w < 0, w * top[i], 0.0)) + c
            by_lines.append(value - radius * np.linalg.norm(k1 @ omega))
            by_intervals.append(w @ a[i] + c - np.abs(w) @ r[i])
    return np.reshape(by_lines, (-1, 2)), np.reshape(by_intervals, (-1, 2))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_loss_is_the_papers(jit_compile):
    x, y = _data()
    options = {"kappa": (1.0, 0.3), "beta": (1.0, 0.6), "compiled": {"jit_compile": jit_compile}}
    model = _model(**options)
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    flat = np.float64(x.reshape(16, 4))
    by_lines, by_intervals = _relu_margins(model.base.get_weights(), flat, y, 0.3)
    robust = np.log1p(np.exp(-(0.6 * by_lines + 0.4 * by_intervals)).sum(axis=1)).mean()
    logits = np.float64(model.predict(x, verbose=0))
    clean = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(16), y])
    np.testing.assert_allclose(found["loss"], 0.3 * clean + 0.7 * robust, rtol=1e-5)
    proved = np.all(np.maximum(by_lines, by_intervals) > 0, axis=1)
    np.testing.assert_allclose(found["certified"], np.mean(proved), atol=1e-6)
    np.testing.assert_allclose(found["clean_accuracy"], np.mean(logits.argmax(axis=1) == y))


def test_a_step_goes_down_the_gradient_of_that_loss():
    x, y = _data()
    model = _model(keras.optimizers.SGD(1.0), "tanh", beta=(0.7, 0.7), kappa=(0.2, 0.2))
    before = model.base.get_weights()
    model.fit(x, y, batch_size=16, verbose=0)
    change = [b - a for a, b in zip(before, model.base.get_weights(), strict=True)]
    size = np.sqrt(sum(np.sum(c * c) for c in change))
    model.optimizer.learning_rate = 0.0
    losses = []
    for share in (0.02 / size, -0.02 / size):
        moved = [a + share * c for a, c in zip(before, change, strict=True)]
        model.base.set_weights(moved)
        losses.append(model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)["loss"])
    # float32 losses, a difference of second order
    np.testing.assert_allclose(losses[0] - losses[1], -0.04 * size, rtol=1e-2)


def test_the_schedule():
    """Four steps of the ramp; with equal rates nothing else moves."""
    x, y = _data()
    still = keras.optimizers.SGD(0.0)
    options = {"kappa": (1.0, 0.2), "beta": (1.0, 0.0), "ramp_steps": 4}
    model = _model(still, **options)
    losses = [
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history["loss"][0]
        for _ in range(6)
    ]
    logits = np.float64(model.predict(x, verbose=0))
    clean = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(16), y])
    flat = np.float64(x.reshape(16, 4))
    for step, loss in enumerate(losses):
        done = min(step / 4, 1.0)
        radius = 0.3 * (0.05 + 0.95 * done)
        kappa, beta = 1.0 - 0.8 * done, 1.0 - done
        by_lines, by_intervals = _relu_margins(model.base.get_weights(), flat, y, radius)
        margins = beta * by_lines + (1.0 - beta) * by_intervals
        robust = np.log1p(np.exp(-margins).sum(axis=1)).mean()
        np.testing.assert_allclose(loss, kappa * clean + (1.0 - kappa) * robust, rtol=1e-5)
    assert losses[0] == pytest.approx(clean, rel=1e-5) and losses[4] == losses[5]
    model = _model("sgd", kappa=(1.0, 0.0))
    assert [float(model.progress(True)), model.progress(False)] == [1.0, 1.0]


def test_training_makes_certified_examples(tmp_path):
    """The exported base is certified by the library at least as often."""
    x, y = _data(256)
    options = {"kappa": (1.0, 0.0), "ramp_steps": 20, "compiled": {}}
    model = _model(keras.optimizers.Adam(0.02), "relu", **options)
    before = model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
    model.fit(x, y, batch_size=64, epochs=15, verbose=0)
    after = model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
    # With nine examples in ten where two classes are farther apart than 2 · 0.3 / √2.
    assert before["certified"] < 0.4 < 0.65 < after["certified"] < after["clean_accuracy"]
    model.base.export(tmp_path / "exported", verbose=False)
    radius = Certifier(str(tmp_path / "exported"), method="crown").certify(x, y).radius
    assert np.mean(radius >= 0.3) >= after["certified"] - 1e-6


def test_convolutions_and_depth():
    x, y = _data()
    layers = [L.Reshape((2, 2, 1)), L.Conv2D(3, 2, activation="relu"), L.Flatten()]
    dense = [L.Dense(6, "softplus"), L.Dense(5, "tanh"), L.Dense(3)]
    model = CROWNIBPModel(keras.Sequential([keras.Input((2, 2)), *layers, *dense]), 0.1)
    model.compile("adam", run_eagerly=True)
    history = model.fit(x, y, verbose=0, epochs=2).history
    assert np.isfinite(history["loss"]).all()
    network = model.live.now()
    flat = tf.constant(x.reshape(16, 4))
    _, rivals = _labelled(network, flat)
    label = network.logits(flat).numpy().argmax(axis=1)
    hidden = interval_bounds(network, flat, label, rivals, 0.1).hidden
    bounds = linear_margins(network, flat, label, rivals, 0.1, hidden).numpy()
    lowest, _ = pgd_attack(network, flat, tf.constant(label), radius=0.1, steps=10, restarts=2)
    assert np.all(lowest.numpy() >= bounds.min(axis=1) - 1e-5)


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(tmp_path):
    x, y = _data()
    options = {"kappa": (0.9, 0.1), "beta": (1.0, 0.5), "ramp_steps": 9}
    model = _model(name="mine", **options)
    model.fit(x, y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in {**options, "radius": 0.3, "name": "mine"}.items():
        assert getattr(loaded, name) == value
    histories = [m.fit(x, y, batch_size=8, shuffle=False, verbose=0) for m in (model, loaded)]
    assert histories[0].history == histories[1].history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": -1.0}, "radius must be a positive number"),
        ({"kappa": (1.0, 1.2)}, "kappa must be from 0 to 1"),
        ({"kappa": 0.5}, "kappa must be two numbers, before and after the ramp. Received: 0.5"),
        ({"beta": (1.0, -0.1)}, "beta must be a number, at least 0"),
        ({"beta": (1.0, float("nan"))}, "beta must be a number, at least 0"),
        ({"activation": "silu"}, "no lines for activation 'silu' in training"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        _model(**options)


def test_labels_that_are_no_class_numbers():
    x, y = _data()
    model = _model()
    with pytest.raises(InputError, match="look one-hot"):
        model.fit(x, np.eye(3)[y], verbose=0)
    with pytest.raises(InputError, match="labels must be from 0 to 2. Received: 1 to 3"):
        model.fit(x, y + 1, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 2"):
        model.fit(tf.constant(x), tf.constant(y + 1), verbose=0)
