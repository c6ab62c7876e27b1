"""PGD and TRADES: what a step minimises, against numpy; and the life of a Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.training.rivals import pgd, trades
from keras_curv.training.rivals.pgd import PGDModel, l2_ascent
from keras_curv.training.rivals.trades import TRADESModel

L = keras.layers
KINDS = {"pgd": PGDModel, "trades": TRADESModel}
either = pytest.mark.parametrize("kind", list(KINDS))
RADIUS, STEPS, STEP_SIZE = 0.4, 3, 2.0


def _base(activation="tanh", seed=5, dropout=0.0):
    keras.utils.set_random_seed(seed)
    layers = [L.Flatten(), L.Dense(7, activation), L.Dropout(dropout, seed=2), L.Dense(3)]
    return keras.Sequential([keras.Input((2, 2)), *layers])


def _model(kind, optimizer="sgd", base=None, options=(), run_eagerly=True, **compiled):
    options = {"attack_steps": STEPS, "step_size": STEP_SIZE, "seed": 3, **dict(options)}
    model = KINDS[kind](base or _base(), RADIUS, **options)
    model.compile(optimizer, run_eagerly=run_eagerly, **compiled)
    return model


def _data(count=16, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 2, 2)).astype(np.float32), rng.integers(0, 3, count)


def _softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Oracle:
    """The tanh net in float64, its losses, and their gradients in x, by hand."""

    def __init__(self, base):
        self.k1, self.b1, self.k2, self.b2 = (np.float64(w) for w in base.get_weights())

    def probabilities(self, x):
        return _softmax(np.tanh(x @ self.k1 + self.b1) @ self.k2 + self.b2)

    def slope(self, x, target):
        """Gradient of the cross-entropy with given probabilities; of both losses, p(x) fixed."""
        hidden = np.tanh(x @ self.k1 + self.b1)
        return (((self.probabilities(x) - target) @ self.k2.T) * (1 - hidden**2)) @ self.k1.T

    def attacked(self, x, start, target):
        def project(point):
            length = np.linalg.norm(point - x, axis=1, keepdims=True)
            return x + (point - x) * np.minimum(1.0, RADIUS / length)

        point = project(start)
        for _ in range(STEPS):
            g = self.slope(point, target)
            move = STEP_SIZE * RADIUS / STEPS * g / np.linalg.norm(g, axis=1, keepdims=True)
            point = project(point + move)
        return point

    def loss(self, kind, x, y, seed):
        """Mean of the objective, with the random start that the model draws from `seed`."""
        clean, target = self.probabilities(x), np.eye(3)[y]
        start = {"pgd": pgd.uniform_in_ball, "trades": trades.start_beside}[kind]
        start = np.float64(start(tf.constant(x, tf.float32), RADIUS, seed))
        worst = self.probabilities(self.attacked(x, start, target if kind == "pgd" else clean))
        if kind == "pgd":
            return -np.mean(np.log(worst[target > 0]))
        divergence = np.sum(clean * np.log(clean / worst), axis=1)
        return np.mean(6.0 * divergence - np.log(clean[target > 0]))


@pytest.fixture
def fixed_start(monkeypatch):
    """XLA draws other numbers from the same seed; here nothing is drawn."""

    def start(x, radius, seed):
        return x + 0.1 * radius * tf.sin(9.0 * x)

    monkeypatch.setattr(pgd, "uniform_in_ball", start)
    monkeypatch.setattr(trades, "start_beside", start)


@pytest.mark.parametrize(
    ("kind", "jit_compile"), [("pgd", False), ("trades", False), ("pgd", True)]
)
def test_the_loss_is_the_papers(kind, jit_compile, request):
    if jit_compile:
        request.getfixturevalue("fixed_start")
    x, y = _data()
    model = _model(kind, run_eagerly=False, jit_compile=jit_compile)
    loss = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    flat = np.float64(x.reshape(16, 4))
    # float32; TRADES starts at 1e-3, where the gradient has four digits left.
    expected = Oracle(model.base).loss(kind, flat, y, (3, -1))
    np.testing.assert_allclose(loss, expected, rtol=1e-5 if kind == "pgd" else 2e-3)
    # What an attack adds to the plain loss is far more than that.
    plain = -np.mean(np.log(Oracle(model.base).probabilities(flat)[np.arange(16), y]))
    assert loss > 1.1 * plain


@either
def test_a_step_goes_down_the_gradient_of_that_loss(kind, fixed_start):
    """A step of SGD, against differences of the loss at points that move with the weights.

    By the envelope theorem it need not matter that they move; with a few steps it does a little.
    """
    x, y = _data()
    options = {"attack_steps": 60}
    model = _model(kind, keras.optimizers.SGD(1.0), options=options, run_eagerly=False)
    before = model.base.get_weights()
    model.fit(x, y, batch_size=16, verbose=0)
    change = [b - a for a, b in zip(before, model.base.get_weights(), strict=True)]
    size = np.sqrt(sum(np.sum(c * c) for c in change))

    def loss(share):
        moved = [a + share * c for a, c in zip(before, change, strict=True)]
        model.base.set_weights(moved)
        return model.evaluate(x, y, verbose=0, return_dict=True)["loss"]

    step = 0.01 / size
    np.testing.assert_allclose((loss(step) - loss(-step)) / (2 * step), -(size**2), rtol=1e-2)


def test_ascent_of_known_functions():
    x = tf.zeros((3, 2))
    slopes = tf.constant([[3.0, 4.0], [0.0, -1e-30], [0.0, 0.0]])
    point = l2_ascent(lambda p: slopes * p, x, x, radius=0.5, steps=4, step_size=2.5)
    # Tiny slopes are followed, missing ones are not.
    np.testing.assert_allclose(point, [[0.3, 0.4], [0.0, -0.5], [0.0, 0.0]], atol=1e-6)
    peak = tf.constant([0.1, -0.2])
    args = {"radius": 0.5, "steps": 50, "step_size": 2.5}
    point = l2_ascent(lambda p: -tf.reduce_sum((p - peak) ** 2, axis=1), x, x, **args)
    np.testing.assert_allclose(point, np.tile(peak, (3, 1)), atol=2.5 * 0.5 / 50)
    one = l2_ascent(lambda p: slopes[:1] * p, x[:1], x[:1], radius=1.0, steps=10, step_size=2.0)
    half = l2_ascent(lambda p: slopes[:1] * p, x[:1], x[:1], radius=1.0, steps=1, step_size=0.2)
    np.testing.assert_allclose([tf.norm(one), tf.norm(half)], [1.0, 0.2], rtol=1e-6)


def test_random_starts_are_uniform_in_the_ball():
    x = tf.ones((4000, 3))
    offset = (pgd.uniform_in_ball(x, 2.0, (7, 0)) - x).numpy()
    share = (np.linalg.norm(offset, axis=1) / 2.0) ** 3
    assert share.max() <= 1.0 + 1e-6
    # Four standard errors each: of a uniform share, and of a coordinate.
    np.testing.assert_allclose(share.mean(), 0.5, atol=4 * 12**-0.5 * 4000**-0.5)
    np.testing.assert_allclose(offset.mean(axis=0), 0.0, atol=4 * 4000**-0.5)


def test_trades_without_weight_is_plain_training():
    x, y = _data(20)
    base = _base(dropout=0.3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    base.compile("adam", loss, run_eagerly=True)
    model = _model("trades", "adam", _base(dropout=0.3), {"trade_off": 0.0})
    for one in (base, model):
        one.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(base.get_weights(), model.base.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def _trained(kind, **compiled):
    x, y = _data(16)
    model = _model(kind, "adam", options={"ramp_steps": 4}, **compiled)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    return model, history


@pytest.mark.parametrize(("kind", "compiled"), [("pgd", {}), ("trades", {"jit_compile": True})])
@pytest.mark.slow
def test_compiled_and_eager_are_the_same(kind, compiled, fixed_start):
    _, expected = _trained(kind)
    _, history = _trained(kind, run_eagerly=False, **compiled)
    # float32 in another order, through six steps of Adam, which divides by small gradients.
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)


@either
def test_steps_are_traced_once(kind):
    x, y = _data(20)
    model, traces = _model(kind, run_eagerly=False), []
    step = model.train_step
    model.train_step = lambda data: traces.append("train") or step(data)
    model.make_train_function(force=True)
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    model.fit(x[:13], y[:13], batch_size=8, verbose=0)
    assert 1 <= len(traces) <= 2  # for a known batch and for any


@either
def test_evaluation_draws_the_same_and_moves_nothing(kind):
    x, y = _data()
    model = _model(kind, keras.optimizers.SGD(1e-9))
    losses = [model.evaluate(x, y, verbose=0) for _ in range(2)]
    assert losses[0] == losses[1]
    first, second = (model.fit(x, y, batch_size=16, verbose=0).history["loss"] for _ in range(2))
    assert first != second  # other points, the same weights


def test_the_radius_rises():
    model = _model("pgd", options={"ramp_steps": 10})
    for steps, share in ((0, 0.05), (5, 0.525), (10, 1.0), (20, 1.0)):
        model.optimizer.iterations.assign(steps)
        np.testing.assert_allclose(model.current_radius(True), share * RADIUS, rtol=1e-6)
        assert model.current_radius(False) == RADIUS


@either
def test_examples_without_weight_do_not_count(kind):
    x, y = _data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = _model(kind, loss=None if kind == "trades" else loss)
    x[8:] *= 100.0
    weight = np.repeat([1.0, 0.0], 8)
    weighted = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    x[8:] *= -1.0
    again = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    assert {k: round(v, 5) for k, v in weighted.items()} == {
        k: round(v, 5) for k, v in again.items()
    }


@pytest.mark.parametrize(("kind", "activation"), [("pgd", "relu"), ("trades", "silu")])
def test_any_activation(kind, activation):
    x, y = _data()
    model = _model(kind, base=_base(activation))
    before = model.base.get_weights()
    loss = model.fit(x, y, batch_size=16, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert all(np.any(a != b) for a, b in zip(before, model.base.get_weights(), strict=True))


@either
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(kind, tmp_path):
    x, y = _data(20)
    model, _ = _trained(kind)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    histories = [
        m.fit(x, y, batch_size=8, shuffle=False, verbose=0).history for m in (model, loaded)
    ]
    assert histories[0] == histories[1]


@either
def test_every_argument_is_in_the_configuration(kind):
    options = {"attack_steps": 7, "step_size": 1.5, "ramp_steps": 11, "seed": 4, "name": "mine"}
    options |= {"trade_off": 2.0} if kind == "trades" else {}
    model = KINDS[kind](_base(), 0.7, **options)
    copy = KINDS[kind].from_config(model.get_config())
    for name, value in {**options, "radius": 0.7}.items():
        assert getattr(copy, name) == value


def test_the_exported_base_is_certified(tmp_path):
    x, y = _data()
    model = _model("pgd", base=_base("relu"))
    model.fit(x, y, verbose=0)
    model.base.export(tmp_path / "exported", verbose=False)
    certificates = Certifier(str(tmp_path / "exported")).certify(x, y)
    predicted = model.predict(x, verbose=0).argmax(axis=1)
    np.testing.assert_array_equal(certificates.prediction, predicted)
    assert np.all((certificates.radius > 0.0) == (predicted == y))


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("pgd", {"radius": 0.0}, "radius must be a positive number. Received: 0.0"),
        ("pgd", {"attack_steps": 0}, "attack_steps must be an integer, at least 1"),
        ("pgd", {"step_size": -1.0}, "step_size must be a positive number"),
        ("pgd", {"ramp_steps": 1.5}, "ramp_steps must be an integer, at least 0"),
        ("trades", {"seed": -1}, "seed must be an integer, at least 0"),
        ("trades", {"trade_off": -0.1}, "trade_off must be a number, at least 0"),
    ],
)
def test_arguments_out_of_range(kind, arguments, message):
    with pytest.raises(InputError, match=message):
        KINDS[kind](_base(), **{"radius": 0.5, **arguments})


@either
def test_labels_that_are_no_class_numbers(kind):
    x, y = _data()
    model = _model(kind)
    with pytest.raises(InputError, match="look one-hot"):
        model.fit(x, np.eye(3)[y], verbose=0)
    with pytest.raises(InputError, match="labels must be from 0 to 2. Received: 1 to 3"):
        model.evaluate(x, y + 1, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 2"):
        model.evaluate(tf.constant(x), tf.constant(y + 1), verbose=0)
    histories = [model.evaluate(x, labels, verbose=0) for labels in (y, y[:, None])]
    assert histories[0] == histories[1]
