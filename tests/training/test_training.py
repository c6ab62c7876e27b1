"""What a training step minimises, against float64 arithmetic that knows nothing of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.attacks.crt import curvature_attack
from keras_curv.curvature.signed import signed_bound
from keras_curv.network.network import Network
from keras_curv.reproduce.reference_solvers import algorithm2
from keras_curv.training.models import CRTModel, CurvatureRegularizer

L = keras.layers
SIGMA = {"tanh": np.tanh, "softplus": lambda z: np.logaddexp(0.0, z)}
SLOPE = {"tanh": lambda z: 1.0 - np.tanh(z) ** 2, "softplus": lambda z: 1.0 / (1.0 + np.exp(-z))}
CONVERGED = 1000  # steps of power iteration


def _base(sizes=(4, 7, 3), activation="tanh", scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    hidden = [L.Dense(size, activation) for size in sizes[1:-1]]
    base = keras.Sequential([keras.Input(sizes[:1]), *hidden, L.Dense(sizes[-1])])
    for variable in base.weights:
        fan_in = variable.shape[0] if len(variable.shape) == 2 else 4.0
        variable.assign(scale * rng.standard_normal(variable.shape) / np.sqrt(fan_in))
    return base


def _data(count=6, classes=3, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 4)).astype(np.float32), rng.integers(0, classes, count)


def _weights(base):
    return [np.asarray(w, np.float64) for w in base.get_weights()]


def _network(weights, activation="tanh"):
    return Network.from_weights(weights[::2], weights[1::2], activation)


def _kappa(weights, activation="tanh"):
    return -signed_bound(_network(weights, activation)).lower


def _logits(weights, x, activation="tanh"):
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = SIGMA[activation](x @ kernel + bias)
    return x @ weights[-2] + weights[-1]


def _cross_entropy(logits, y):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]


def _runner_up(logits, y):
    others = np.array(logits)
    others[np.arange(len(y)), y] = -np.inf
    return others.argmax(axis=1)


def _slope(weights, x, y, t, activation):
    """∇(z_y − z_t) at x."""
    tangents = []
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        z = x @ kernel + bias
        tangents.append((kernel, SLOPE[activation](z)))
        x = SIGMA[activation](z)
    cotangent = (weights[-2][:, y] - weights[-2][:, t]).T
    for kernel, slope in reversed(tangents):
        cotangent = (cotangent * slope) @ kernel.T
    return cotangent


def _worst(weights, x, y, t, kappa, radius, activation):
    """The attack's stationary point, x̂ = x − g(x̂)/η with η = max(κ, ‖g(x̂)‖/ρ)."""
    point, kappa, largest = x, kappa[y, t], np.maximum(kappa[y, t], kappa[t, y])
    for _ in range(5000):
        g = _slope(weights, point, y, t, activation)
        eta = np.maximum(kappa, np.linalg.norm(g, axis=1) / radius)[:, None]
        step = (g + eta * (point - x)) / (eta + largest[:, None])
        if np.abs(step).max() < 1e-13:
            return point
        point = point - step
    raise AssertionError("the oracle has not converged")


def _penalised_loss(weights, x, y, gamma, activation):
    logits = _logits(weights, x, activation)
    kappa = _kappa(weights, activation)[y, _runner_up(logits, y)]
    return _cross_entropy(logits, y).mean() + gamma * kappa.mean()


def _certified_loss(weights, x, y, gamma, activation, radius):
    """Each attack is found anew for these weights: nothing is held fixed."""
    kappa = _kappa(weights, activation)
    classes = len(kappa)
    total, penalty = np.zeros(len(x)), 0.0
    for shift in range(1, classes):
        t = (y + shift) % classes
        k = kappa[y, t]
        point = _worst(weights, x, y, t, kappa, radius, activation)
        logits = _logits(weights, point, activation)
        margin = logits[np.arange(len(y)), y] - logits[np.arange(len(y)), t]
        inside = np.minimum(np.sum((point - x) ** 2, axis=1) - radius**2, 0.0)
        total += np.exp(-(margin + k / 2.0 * inside))
        penalty += k.mean() / (classes - 1)
    return np.log1p(total).mean() + gamma * penalty


def _crt_loss(points, rival):
    """The cross-entropy at given points: those of the attack are not differentiated through."""

    def loss(weights, x, y, gamma, activation):
        kappa = _kappa(weights, activation)[y, rival]
        return _cross_entropy(_logits(weights, points, activation), y).mean() + gamma * kappa.mean()

    return loss


def _differences(loss, weights, *args, step=1e-4):
    """Central differences: truncation and the 1e-9 of a proved bound leave about 1e-5."""
    gradients = []
    for index, weight in enumerate(weights):
        gradient = np.zeros_like(weight)
        for entry in np.ndindex(weight.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [w.copy() for w in weights]
                moved[index][entry] += sign * step
                ends.append(loss(moved, *args))
            gradient[entry] = (ends[0] - ends[1]) / (2.0 * step)
        gradients.append(gradient)
    return gradients


def _step(model, x, y, rate=0.5):
    """One step of gradient descent: the loss, and (old − new)/rate for each weight."""
    model.compile(keras.optimizers.SGD(rate))
    model.curvature.start_iterations = CONVERGED
    before = _weights(model.base)
    loss = model.train_on_batch(x, y)
    moved = [(b - a) / rate for b, a in zip(before, _weights(model.base), strict=True)]
    return float(loss[0] if isinstance(loss, list) else loss), moved


def _assert_gradients(ours, expected):
    for gradient, exact in zip(ours, expected, strict=True):
        # float32, and points and eigenvectors that have converged to about its square root.
        np.testing.assert_allclose(gradient, exact, atol=2e-3 * np.abs(exact).max() + 1e-5)


@pytest.mark.parametrize("activation", ["tanh", "softplus"])
@pytest.mark.parametrize("sizes", [(4, 7, 3), (4, 5, 6, 3)])
def test_a_step_of_the_regularizer_by_hand(sizes, activation):
    base, (x, y) = _base(sizes, activation), _data()
    weights, gamma = _weights(base), 0.3
    expected = _differences(_penalised_loss, weights, x, y, gamma, activation)
    loss, moved = _step(CurvatureRegularizer(base, gamma), x, y)
    assert loss == pytest.approx(_penalised_loss(weights, x, y, gamma, activation), rel=1e-5)
    _assert_gradients(moved, expected)


@pytest.mark.parametrize("activation", ["tanh", "softplus"])
def test_a_step_of_crt_by_hand(activation):
    base, (x, y) = _base((4, 7, 3), activation, 0.7), _data()
    weights, gamma, radius = _weights(base), 0.3, 0.4
    rival = _runner_up(_logits(weights, x, activation), y)
    kappa = _kappa(weights, activation)
    points = _worst(weights, x, y, rival, kappa, radius, activation)
    loss = _crt_loss(points, rival)
    value, moved = _step(CRTModel(base, radius, gamma, loss="crt", attack_steps=60), x, y)
    assert value == pytest.approx(loss(weights, x, y, gamma, activation), rel=1e-4)
    _assert_gradients(moved, _differences(loss, weights, x, y, gamma, activation))


@pytest.mark.parametrize("regime", ["all on the sphere", "some", "none"])
@pytest.mark.parametrize(
    ("sizes", "activation"),
    [((4, 7, 3), "tanh"), ((4, 7, 3), "softplus"), ((4, 5, 6, 3), "softplus")],
)
def test_a_step_of_the_certified_loss_by_hand(sizes, activation, regime):
    """On the sphere κ is not in the loss; inside the ball, all depends on it."""
    base, (x, y) = _base(sizes, activation), _data()
    weights, gamma = _weights(base), 0.0 if regime == "none" else 0.1
    kappa = _kappa(weights, activation)
    # Where the attack ends in a ball that does not hold it back.
    rivals = (y + 1) % 3, (y + 2) % 3
    free = [_worst(weights, x, y, t, kappa, 1e4, activation) for t in rivals]
    reach = np.linalg.norm(np.array(free) - x, axis=2)
    radius = {
        "all on the sphere": 0.3 * reach.min(),
        "some": (np.sort(reach, axis=None)[5:7]).mean(),  # well between two of the twelve
        "none": 1.1 * reach.max(),
    }[regime]
    args = (x, y, gamma, activation, radius)
    loss, moved = _step(CRTModel(base, radius, gamma, attack_steps=200), x, y)
    assert loss == pytest.approx(_certified_loss(weights, *args), rel=1e-4)
    _assert_gradients(moved, _differences(_certified_loss, weights, *args))


def test_without_a_penalty_the_base_trains_bit_for_bit_as_alone():
    x, y = _data(20)
    results = []
    for wrapped in (False, True):
        keras.utils.set_random_seed(3)
        base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dropout(0.3), L.Dense(3)])
        model = CurvatureRegularizer(base, gamma=0.0) if wrapped else base
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"]
        results.append((base.get_weights(), history))
    (alone, losses), (together, other_losses) = results
    assert losses == other_losses
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


class _Recorded:
    """Keeps what the loss was given; needs `run_eagerly`."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if tf.executing_eagerly():
            self.seen = (np.asarray(x), y)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


class RecordedCRT(_Recorded, CRTModel):
    pass


@pytest.mark.parametrize("loss", ["crt", "certified"])
@pytest.mark.parametrize("radius", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_attacked_points(loss, radius, steps):
    """With no κ to hold it back, one long step often lands higher than it began."""
    base, (x, y) = _base(scale=6.0), _data(40)
    model = RecordedCRT(base, radius, loss=loss, attack_steps=steps)
    model.compile("sgd", run_eagerly=True)
    for vectors in model.curvature.pair_vectors:
        vectors.assign(np.zeros(vectors.shape))
    weights = _weights(base)
    model.train_on_batch(x, y)
    points, attacked = model.seen
    points = points.reshape(40, model.rivals, 4).astype(np.float64)
    # float32 rounding of the projection.
    assert np.all(np.linalg.norm(points - x[:, None], axis=2) <= radius * (1.0 + 1e-5) + 1e-6)
    logits = _logits(weights, x)
    ranked = np.argsort(np.where(np.arange(3) == y[:, None], -np.inf, logits), axis=1)[:, ::-1]
    np.testing.assert_array_equal(attacked.rival, ranked[:, : model.rivals])
    np.testing.assert_array_equal(attacked.label, y)
    for k in range(model.rivals):
        rows, t = np.arange(40), np.asarray(attacked.rival)[:, k]
        there = _logits(weights, points[:, k])
        margin, at_start = there[rows, y] - there[rows, t], logits[rows, y] - logits[rows, t]
        assert np.all(margin <= at_start + 1e-4)  # float32, of margins of up to 30
        assert np.mean(margin < at_start) > 0.5


def test_the_attack_is_that_of_algorithm_2():
    base, (x, y) = _base(scale=0.7), _data(20)
    radius = 0.4
    model = RecordedCRT(base, radius, loss="crt", attack_steps=60)
    model.compile("sgd", run_eagerly=True)
    model.curvature.start_iterations = CONVERGED
    network = _network(_weights(base))
    bounds = signed_bound(network)
    model.train_on_batch(x, y)
    points, attacked = model.seen
    rival = np.asarray(attacked.rival)[:, 0]
    theirs = tf.function(algorithm2)(
        network,
        tf.constant(x, tf.float64),
        tf.constant(y),
        tf.constant(rival, tf.int64),
        radius=radius,
        lower=tf.constant(bounds.lower[y, rival]),
        upper=tf.constant(bounds.upper[y, rival]),
        outer_steps=50,
        inner_steps=1000,
        residual=1e-10,
    )
    exact = np.asarray(attacked.solved)[:, 0]
    assert exact.mean() > 0.8
    # Where the dual has a gap, the stationary point inside of the ball is not unique.
    np.testing.assert_allclose(points[exact], theirs.point.numpy()[exact], atol=1e-3)


def _sampled_cross_entropies(weights, x, y, radius, rng, count=100):
    """At x, at random points of the ball, and where descent on the loss ends."""
    offset = rng.standard_normal((count, 4))
    offset *= (
        radius * rng.uniform(size=(count, 1)) ** 0.25 / np.linalg.norm(offset, axis=1)[:, None]
    )
    points, labels = x + offset, np.full(count, y)
    sampled = _cross_entropy(_logits(weights, points), labels)
    for _ in range(50):
        p = np.exp(_logits(weights, points) - _logits(weights, points).max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        ascent = -sum(
            p[:, [t]] * _slope(weights, points, labels, np.full(count, t), "tanh") for t in range(3)
        )
        offset = points + 0.1 * radius * ascent / np.linalg.norm(ascent, axis=1)[:, None] - x
        offset *= np.minimum(1.0, radius / np.linalg.norm(offset, axis=1))[:, None]
        points = x + offset
    return np.concatenate([sampled, _cross_entropy(_logits(weights, points), labels)])


@pytest.mark.parametrize("scale", [0.7, 2.0])
@pytest.mark.parametrize("radius", [0.05, 0.5, 2.0])
def test_the_certified_loss_is_never_below_a_loss_in_the_ball(scale, radius, rng):
    base, (x, y) = _base(scale=scale), _data(4)
    weights = _weights(base)
    model = CRTModel(base, radius, attack_steps=100)
    model.compile("sgd")
    model.curvature.start_iterations = CONVERGED
    for image, label in zip(x, y, strict=True):
        certified = model.evaluate(image[None], np.array([label]), verbose=0)[0]
        met = _sampled_cross_entropies(weights, image, label, radius, rng)
        assert certified >= met.max() * (1.0 - 1e-5)  # float32
        if scale < 1.0 and radius < 0.1:  # nearly linear: and not far above either
            assert certified <= met.max() * 1.05


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_certified_loss_is_never_below_the_clean_one(steps):
    base, (x, y) = _base(scale=4.0), _data(40)
    model = CRTModel(base, 1.0, attack_steps=steps)
    model.compile("sgd")
    clean = _cross_entropy(_logits(_weights(base), x), y)
    for rows in range(0, 40, 8):
        loss = model.evaluate(x[rows : rows + 8], y[rows : rows + 8], verbose=0)[0]
        assert loss >= clean[rows : rows + 8].mean() * (1.0 - 1e-5)  # float32


def _state(model):
    return [variable.numpy() for variable in model.curvature.variables]


@pytest.mark.parametrize(
    "build",
    [
        lambda base: CurvatureRegularizer(base, 0.1),
        lambda base: CRTModel(base, 0.3),
    ],
)
def test_state_moves_once_a_train_step_and_nowhere_else(build):
    base, (x, y) = _base(), _data(20)
    model = build(base)
    model.compile("adam", metrics=["accuracy"])
    for steps in (0, 3):
        assert model.curvature.steps.numpy() == steps
        before, weights = _state(model), base.get_weights()
        model.predict(x, verbose=0)
        model.evaluate(x, y, batch_size=8, verbose=0)
        model(x, training=True)
        model(x, training=False)
        model.test_on_batch(x, y)
        network = model.live.now()
        label = tf.constant(y, tf.int32)
        rival = network.runner_up(network.logits(tf.constant(x)), label)
        kappa = tf.gather_nd(model.curvature.estimate(network), tf.stack([label, rival], axis=1))
        curvature_attack(network, tf.constant(x), label, rival, radius=0.3, curvature=kappa)
        for now, then in zip(_state(model), before, strict=True):
            np.testing.assert_array_equal(now, then)
        for now, then in zip(base.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(now, then)
        if steps == 0:
            model.fit(x, y, batch_size=8, verbose=0, validation_data=(x, y))  # three batches
            assert any(np.any(n != t) for n, t in zip(_state(model), before, strict=True))


@pytest.mark.parametrize("loss", ["crt", "certified"])
def test_the_radius_rises(loss):
    """A narrow ball around a nearly linear net: the attack ends on the sphere."""
    base, (x, y) = _base(scale=0.5), _data(8)
    model = CRTModel(base, 0.2, loss=loss, ramp_steps=4)
    model.compile(keras.optimizers.SGD(1e-6))
    distances = []
    for _ in range(7):
        distances.append(model.fit(x, y, verbose=0).history["attack_distance"][0])
        at_test = model.evaluate(x, y, verbose=0, return_dict=True)["attack_distance"]
        assert at_test == pytest.approx(0.2, rel=1e-4)  # the whole radius from the start
    risen = np.minimum(0.05 + 0.95 * np.arange(7) / 4, 1.0)
    np.testing.assert_allclose(distances, 0.2 * risen, rtol=1e-4)  # float32


def test_without_a_ramp_the_radius_is_whole_at_once():
    base, (x, y) = _base(scale=0.5), _data(8)
    model = CRTModel(base, 0.2)
    model.compile("sgd")
    history = model.fit(x, y, verbose=0).history
    assert history["attack_distance"][0] == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize(("loss", "rivals"), [("crt", None), ("certified", 2)])
@pytest.mark.parametrize("mode", ["train", "test"])
def test_metrics_of_a_batch(loss, rivals, mode):
    base, (x, y) = _base(scale=1.5), _data(40)
    radius = 0.3
    model = CRTModel(base, radius, loss=loss, rivals=rivals, attack_steps=4)
    model.compile("sgd", metrics=["accuracy"])
    model.curvature.start_iterations = CONVERGED
    weights = _weights(base)
    run = model.train_on_batch if mode == "train" else model.test_on_batch
    metrics = run(x, y, return_dict=True)

    logits = _logits(weights, x)
    rival = np.argsort(np.where(np.arange(3) == y[:, None], -np.inf, logits), axis=1)[:, ::-1]
    rival = rival[:, : model.rivals]
    kappa = _kappa(weights)[y[:, None], rival]
    attack = curvature_attack(
        _network(weights),
        tf.constant(x),
        tf.constant(y),
        tf.constant(rival),
        radius=radius,
        curvature=tf.constant(kappa, tf.float32),
        steps=4,
        tolerance=1e-3,
    )
    distance = np.linalg.norm(attack.point - x[:, None], axis=2)
    dual = attack.margin + kappa / 2.0 * np.minimum(distance**2 - radius**2, 0.0)
    clean = np.mean(logits.argmax(axis=1) == y)
    assert metrics["clean_accuracy"] == pytest.approx(clean)
    assert metrics["accuracy"] == pytest.approx(clean)
    assert 0.0 < np.mean(np.all(dual > 0.0, axis=1)) < clean
    assert metrics["certified"] == pytest.approx(np.mean(np.all(dual > 0.0, axis=1)))
    # float32; κ by power iteration.
    assert metrics["curvature"] == pytest.approx(kappa.mean(), rel=1e-4)
    assert metrics["attack_distance"] == pytest.approx(distance.mean(), rel=1e-3)
    solved = np.mean(attack.primal_equals_dual)
    assert 0.0 < solved < 1.0
    assert metrics["attack_success"] == pytest.approx(solved, abs=0.026)  # one attack in 40


def test_the_regularizer_reports_its_curvature():
    base, (x, y) = _base(), _data(40)
    model = CurvatureRegularizer(base, 0.1)
    model.compile("sgd")
    model.curvature.start_iterations = CONVERGED
    weights = _weights(base)
    expected = _kappa(weights)[y, _runner_up(_logits(weights, x), y)].mean()
    for run in (model.test_on_batch, model.train_on_batch):
        assert run(x, y, return_dict=True)["curvature"] == pytest.approx(expected, rel=1e-4)
