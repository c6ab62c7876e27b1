"""The polytope's bounds against the dual written out unit by unit; no attack gets inside them."""

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from small_training import L, assert_same, data, fit

import keras_curv
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.coap import PolytopeCertificate
from keras_curv.certificates.crown import LinearBoundCertificate
from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.training.rivals.coap import COAPModel
from keras_curv.training.rivals.polytope import hidden_layers, margin_bounds

SIZES = {2: (5, 9, 4), 3: (5, 9, 7, 4), 4: (5, 9, 8, 7, 4)}
every_depth = pytest.mark.parametrize("depth", SIZES)


def _dual(weights, x, radius):
    """`−max J` of Wong & Kolter, term by term, for each row of the last kernel given.

    Args:
        weights: kernels and biases, in turn; the function is the last map's outputs.
        x: one point.

    Returns:
        Lower bounds of these outputs, and the intervals of the layers before.
    """
    kernels, biases = weights[::2], weights[1::2]
    intervals = []

    def lower(target, depth):
        """Of `target · z_depth`: ν_depth = −target, then down to the input."""
        nu, value = -target, 0.0
        for k in reversed(range(depth)):
            value -= nu @ biases[k]
            hat = kernels[k] @ nu
            if k == 0:
                return value - hat @ x - radius * np.sqrt(hat @ hat)
            nu = np.zeros_like(hat)
            for j, (low, high) in enumerate(zip(*intervals[k - 1], strict=True)):
                if low >= 0.0:
                    nu[j] = hat[j]
                elif high > 0.0:
                    nu[j] = high / (high - low) * hat[j]
                    value += low * max(nu[j], 0.0)

    for depth in range(1, len(kernels) + 1):
        units = np.eye(kernels[depth - 1].shape[1])
        lows = np.array([lower(unit, depth) for unit in units])
        intervals.append((lows, np.array([-lower(-unit, depth) for unit in units])))
    return lows, intervals[:-1]


def _dual_margins(weights, x, label, radius):
    """`(n, classes)`; 0 for the label itself."""
    *hidden, kernel, bias = weights
    return np.array(
        [
            _dual([*hidden, kernel[:, [y]] - kernel, bias[[y]] - bias], point, radius)[0]
            for point, y in zip(x, label, strict=True)
        ]
    )


def _case(random_network, rng, depth, count=6):
    """A network whose classes are about as frequent, in which random ones are not."""
    network = random_network(rng, SIZES[depth], "relu", 1.2)
    points = tf.constant(rng.standard_normal((1000, 5)))
    last = network.affines[-1]
    shift = np.median(network.logits(points).numpy(), axis=0)
    last = Affine(last.kernel, last.bias - shift)
    network = Network([*network.affines[:-1], last], network.activations)
    x = rng.standard_normal((count, 5))
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    rivals = np.array([[t for t in range(4) if t != y] for y in label])
    return network, x, label, rivals


def _weights(network):
    return [part for affine in network.affines for part in (affine.kernel, affine.bias)]


def _in_ball(rng, x, radius, count):
    delta = rng.standard_normal((count, *x.shape))
    delta /= np.linalg.norm(delta, axis=-1, keepdims=True)
    share = np.where(np.arange(count) % 2, 1.0, rng.uniform(size=count) ** 0.3)
    return x + radius * share[:, None, None] * delta


@every_depth
@pytest.mark.parametrize("radius", [0.05, 0.4, 2.0])
def test_bounds_are_the_dual_and_hold_under_sampling(depth, radius, random_network, rng):
    network, x, label, rivals = _case(random_network, rng, depth)
    layers = hidden_layers(network, tf.constant(x), radius)
    points = _in_ball(rng, x, radius, 500)
    sampled = network._forward(tf.constant(points.reshape(-1, 5)))[0]
    for index, (layer, z) in enumerate(zip(layers, sampled, strict=True)):
        z = z.numpy().reshape(500, *layer.low.shape)
        assert np.all(z >= layer.low - 1e-12) and np.all(z <= layer.high + 1e-12)
        for row, point in enumerate(x):
            low, high = _dual(_weights(network), point, radius)[1][index]
            np.testing.assert_allclose(layer.low[row], low, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(layer.high[row], high, rtol=1e-11, atol=1e-11)
    unstable = sum(np.sum((layer.low < 0.0) & (layer.high > 0.0)) for layer in layers)
    assert unstable >= (0 if radius == 0.05 else 10)

    bounds = margin_bounds(network, tf.constant(x), tf.constant(label), radius).numpy()
    dual = _dual_margins(_weights(network), x, label, radius)
    np.testing.assert_allclose(bounds, dual, rtol=1e-11, atol=1e-11)
    proved = PolytopeCertificate(network).margin_bounds(x, label, rivals, np.full(6, radius))
    dual = np.take_along_axis(dual, rivals, axis=1)
    assert np.all(proved <= dual + 1e-14)
    np.testing.assert_allclose(proved, dual, rtol=1e-10, atol=1e-10)  # what rounding is charged
    logits = network.logits(tf.constant(points.reshape(-1, 5))).numpy().reshape(500, 6, 4)
    own = np.take_along_axis(logits, np.tile(label[:, None], (500, 1, 1)), axis=2)
    assert np.all(own - logits >= bounds - 1e-12)


@every_depth
def test_no_attack_reaches_inside_the_certificate(depth, random_network, rng):
    network, x, label, rivals = _case(random_network, rng, depth, 10)
    certificate = PolytopeCertificate(network)
    radius = certificate.radii(x, label, rivals, np.zeros(rivals.shape)).radius
    assert np.all(radius > 0.0) and np.all(radius == radius[:, :1])
    radius = radius[:, 0]
    assert np.all(certificate.margin_bounds(x, label, rivals, radius) > 0.0)
    assert np.all(certificate.margin_bounds(x, label, rivals, 1.0011 * radius).min(axis=1) <= 0.0)

    @tf.function
    def attack(radius):
        args = tf.constant(x), tf.constant(label)
        return pgd_attack(network, *args, radius=radius, steps=40, restarts=4)

    found = 0
    for factor in (1.0, 2.0, 6.0):
        margin, point = attack(tf.constant(factor * radius))
        distance = np.linalg.norm(point.numpy() - x, axis=1)[margin.numpy() < 0.0]
        assert np.all(distance > radius[margin.numpy() < 0.0])
        found += len(distance)
    assert found >= 5


def test_a_small_example_by_hand():
    """`relu(z_1) − relu(z_2)` at (3, 1): with R from 1 to 3, unit 2 alone changes sign."""
    network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
    x, label = tf.constant([[3.0, 1.0]], tf.float64), tf.constant([0])
    # l = −1, u = 3: d = 3/4 and 2h = 3/4, so 3 − 3/4 · 1 − 3/4 − 2 √(1 + 9/16).
    assert margin_bounds(network, x, label, 2.0)[0, 1].numpy() == pytest.approx(-1.0, abs=1e-14)

    def bound(r):
        d = (1.0 + r) / (2.0 * r)
        return 3.0 - d - d * (r - 1.0) - r * np.hypot(1.0, d)

    expected = scipy.optimize.brentq(bound, 1.0, 3.0)
    radius = PolytopeCertificate(network).certify(x.numpy()).radius[0]
    assert 0.999 * expected <= radius <= expected


def test_a_linear_classifier_is_exact(rng):
    kernel, bias, x = (
        rng.standard_normal((5, 3)),
        rng.standard_normal(3),
        rng.standard_normal((4, 5)),
    )
    bounds = margin_bounds(
        Network.from_weights([kernel], [bias], []), tf.constant(x), tf.zeros(4, tf.int32), 0.7
    )
    differences = kernel[:, :1] - kernel
    exact = x @ differences + bias[0] - bias - 0.7 * np.linalg.norm(differences, axis=0)
    np.testing.assert_allclose(bounds, exact, rtol=1e-13, atol=1e-13)


def test_exact_where_no_unit_changes_sign(rng, random_network):
    network = random_network(rng, SIZES[3], "relu")
    kernels = [affine.kernel for affine in network.affines]
    shifts = [np.full(9, 90.0), np.full(7, 900.0)]
    logits = (shifts[0] @ kernels[1] + shifts[1]) @ kernels[2]
    network = Network.from_weights(kernels, [*shifts, -logits], "relu")
    x = rng.standard_normal((5, 5))
    label = network.logits(tf.constant(x)).numpy().argmax(axis=1)
    product = kernels[0] @ kernels[1] @ kernels[2]
    rivals = np.array([[t for t in range(4) if t != y] for y in label])
    margin = network.evaluate(tf.constant(x), tf.constant(label), tf.constant(rivals)).margin
    slopes = np.array([product[:, [y]] - product[:, t] for y, t in zip(label, rivals, strict=True)])
    exact = (margin.numpy() / np.linalg.norm(slopes, axis=1)).min(axis=1)
    layers = hidden_layers(network, tf.constant(x), exact.max())
    assert all(np.all(layer.low > 0.0) for layer in layers)
    for kind in (PolytopeCertificate, LinearBoundCertificate):
        radius = kind(network).certify(x).radius
        assert np.all(radius <= exact) and np.all(radius >= 0.999 * exact)


def test_lines_hold_on_any_interval():
    ends = np.array([-np.inf, -1e308, -3.0, -1e-300, -0.0, 5e-324, 1e-9, 2.0, 1e308, np.inf])
    low, high = (part.ravel() for part in np.meshgrid(ends, ends))
    low, high = low[low <= high], high[low <= high]
    lines = PolytopeCertificate.relaxation(ACTIVATIONS["relu"], low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        for z in (low, high, np.clip(0.0, low, high), low / 2.0 + high / 2.0):
            z = np.where(np.isfinite(z), z, np.clip(1e300 * np.sign(z), low, high))
            below = lines.lower_slope * z + lines.lower_intercept
            above = lines.upper_slope * z + lines.upper_intercept
            good = np.isfinite(z)
            assert np.all((below <= np.maximum(z, 0.0))[good])
            assert np.all((above >= np.maximum(z, 0.0))[good])
    assert np.all(lines.lower_slope == lines.upper_slope)


WIDE = (70, 80, 75, 6, 3)


def _relative_errors(random_network, rng, projections, repeats):
    """Of how far the bounds of the second and the third layer are from the centre."""
    network = random_network(rng, WIDE, "relu", 1.2)
    x = tf.constant(rng.standard_normal((1, 70)))

    def spreads(**options):
        layers = hidden_layers(network, x, 0.5, **options)
        return [(layer.high - layer.low).numpy()[0] for layer in layers]

    exact = spreads()
    for seed in range(repeats):
        first, *others = spreads(projections=projections, seed=(seed, projections))
        np.testing.assert_array_equal(first, exact[0])
        yield [one / other - 1.0 for one, other in zip(others, exact[1:], strict=True)]


def test_projections_converge_to_the_exact_bounds(random_network):
    sizes = []
    for projections in (4, 16, 64):
        rng = np.random.default_rng(7)
        errors = list(zip(*_relative_errors(random_network, rng, projections, 60), strict=True))
        second, third = (np.array(part) for part in errors)
        # Part of the second layer's spread is exact; all of it would have an error of 1/√(2r).
        assert 0.02 < np.sqrt(np.mean(second**2)) * np.sqrt(2.0 * projections) < 1.1
        mean = second.mean(axis=1)  # the units of one draw are not independent
        assert abs(mean.mean()) <= 4.0 * mean.std() / np.sqrt(len(mean))
        sizes.append([np.sqrt(np.mean(part**2)) for part in (second, third)])
    few, some, many = np.array(sizes)
    # 1/√r, within a third: 60 draws, and medians of four Cauchys have a tail.
    for more, fewer in ((some, few), (many, some)):
        assert np.all(more <= 0.67 * fewer)
    assert np.all(many <= 0.1)


@pytest.mark.parametrize("projections", [2, 5, 6])
def test_the_centre_of_each_estimate(projections):
    """Unit matrices: every unit has an estimate of its own, and both terms are known."""
    size, biases = 200, [np.zeros(200), *[np.full(200, 9.0)] * 2, np.zeros(200)]
    network = Network.from_weights([np.eye(size)] * 4, biases, "relu")
    balls, cubes = [], []
    for seed in range(10):
        first, second, third = hidden_layers(
            network, tf.zeros((1, size)), 1.0, projections=projections, seed=(seed, 0)
        )
        np.testing.assert_allclose(first.half, 0.25)  # of [−1, 1], with slope 1/2
        ball = (second.high - second.low) / 2.0 - 0.25
        balls.append(ball / 0.5)
        cubes.append(((third.high - third.low) / 2.0 - ball) / 0.25)
    # 2,000 draws, of standard deviation 0.52 for two rows.
    assert np.mean(balls) == pytest.approx(1.0, abs=0.05)
    if projections == 5:  # |C| and 1/|C| have one law, so an odd number of them has median 1
        assert np.median(cubes) == pytest.approx(1.0, abs=0.07)
    if projections == 6:  # between the third and the fourth, whose own medians are 0.79 and 1.26
        assert 0.97 <= np.median(cubes) <= 1.15


def test_narrow_layers_are_exact_whatever_the_projections(random_network, rng):
    network, x, label, _ = _case(random_network, rng, 4)
    args = network, tf.constant(x), tf.constant(label), 0.3
    exact = margin_bounds(*args)
    np.testing.assert_array_equal(exact, margin_bounds(*args, projections=9, seed=(1, 2)))
    for projections in (4, 5, 8):  # an even and an odd number of them, and some layers exact
        other = margin_bounds(*args, projections=projections, seed=(1, 2))
        assert np.all(np.isfinite(other)) and not np.array_equal(exact, other)


def _base(hidden=(7,), activation="relu", seed=5):
    keras.utils.set_random_seed(seed)
    layers = [L.Flatten(), *(L.Dense(size, activation) for size in hidden), L.Dense(4)]
    base = keras.Sequential([keras.Input((2, 2)), *layers])
    for variable in base.weights:
        if len(variable.shape) == 1:
            variable.assign(0.3 * keras.random.normal(variable.shape))
    return base


def _model(hidden=(7,), optimizer="adam", *, radius=0.3, options=None, **compiled):
    model = COAPModel(_base(hidden), radius, **(options or {}))
    model.compile(optimizer, **compiled)
    return model


def _robust_loss(weights, x, y, radius):
    logits = -_dual_margins(weights, x.reshape(len(x), -1).astype(np.float64), y, radius)
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])


def test_convolutions():
    """In float32 they convolve, in float64 they are matrices."""
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
    dual = _dual_margins(old, x.reshape(6, 4).astype(np.float64), y, 0.3)
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


@pytest.mark.parametrize(("hidden", "projections"), [((16,), 50), ((16, 12, 12), 7)])
def test_training_lowers_the_robust_loss(hidden, projections):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 4, 256)
    x = np.eye(4)[y].reshape(-1, 2, 2) + 0.1 * rng.standard_normal((256, 2, 2))
    options = {"projections": projections}
    model = _model(hidden, keras.optimizers.Adam(0.01), radius=0.25, options=options)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = fit(model, x.astype(np.float32), y, epochs=12, batch_size=32)
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] < 0.5 * before["loss"] and history["loss"][-1] < history["loss"][0]
    assert after["certified"] > 0.9 > before["certified"] and after["clean_accuracy"] > 0.95


def test_projections_are_new_in_every_step_and_the_same_in_evaluation():
    x, y = data(8)
    options = {"projections": 3}
    model = _model((7, 6, 5), keras.optimizers.SGD(0.0), options=options, run_eagerly=True)
    evaluated = [model.evaluate(x, y, verbose=0) for _ in range(2)]
    losses = fit(model, x, y, epochs=3)["loss"]
    evaluated.append(model.evaluate(x, y, verbose=0))
    assert len(set(losses)) == 3 and len({tuple(values) for values in evaluated}) == 1
    again = _model((7, 6, 5), keras.optimizers.SGD(0.0), options=options, run_eagerly=True)
    assert fit(again, x, y, epochs=3)["loss"] == losses
    other = _model((7, 6, 5), "sgd", options={**options, "seed": 1}, run_eagerly=True)
    assert fit(other, x, y)["loss"][0] != losses[0]


def test_compiled_by_xla():
    x, y = data(8)
    options = {"ramp_steps": 4, "projections": None}
    models = [_model((6, 5), "sgd", options=options, jit_compile=jit) for jit in (False, True)]
    losses = [fit(model, x, y, epochs=4)["loss"] for model in models]
    np.testing.assert_allclose(*losses, rtol=1e-4)  # float32, in another order
    assert_same(*(model.base for model in models), atol=1e-5)


def test_projections_compile_and_have_gradients():
    """XLA draws other numbers from the same seed: what is equal is what they estimate."""
    x, y = data(8)
    x, base = tf.reshape(x, (8, 4)), _base((7, 6, 5))
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
    model = _model((7, 6), options=options, run_eagerly=True)
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
    model = _model((12, 8), keras.optimizers.Adam(0.02), radius=0.1, jit_compile=False)
    fit(model, x, y, epochs=40)
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
        fit(_model(run_eagerly=True), x, np.eye(4)[y])
