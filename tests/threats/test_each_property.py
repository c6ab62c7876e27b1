"""Properties: none is broken inside its radius, by brute force on nets that are small enough."""

import json
import math

import keras
import numpy as np
import pytest
from attacked import METHODS_AND_SIGMAS, ball, drawn, model_of, of, scores

from keras_curv import Property, Status, certify, data, read
from keras_curv.errors import InputError
from keras_curv.threats.properties.property import ARGMAX


def rank(logits, label):
    """How many classes are above the label."""
    return (logits > logits[:, [label]]).sum(axis=1)


@pytest.mark.parametrize("method, k", [
    ("auto", 2), ("crc", 1), ("crc", 2), ("crc", 3), ("crown", 3), ("lipschitz", 2),
    ("interval", 2),
])  # fmt: skip
def test_the_label_stays_among_the_k_largest(method, k, rng, random_network):
    network = drawn(rng, random_network, (3, 7, 6))
    x = rng.standard_normal((12, 3))
    ranked = network.logits(x).numpy().argsort(axis=1)[:, ::-1]
    label = ranked[np.arange(12), [0] * 6 + [1] * 3 + [2] * 3]
    held = Property.top_k(k)
    found = of(network, held, method)(x, label)
    some = 0
    for one, y, radius, status in zip(x, label, found.radius, found.status, strict=True):
        here = rank(network.logits(one[None]).numpy(), y)[0]
        assert (status == Status.MISCLASSIFIED) == (here >= k)
        if radius > 0.0:
            around = network.logits(one + ball(3, radius, rng)).numpy()
            assert rank(around, y).max() < k
            some += 1
    assert some >= 4


def farthest_top_k(network, one, y, k, rng, start):
    """A radius at which the label was seen to leave the k largest: bisection over samples."""
    low, high = start, 64.0 * start
    directions = ball(3, 1.0, rng)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for _ in range(20):
        middle = (low + high) / 2.0
        reached = [network.logits(one + t * middle * directions).numpy() for t in (0.5, 0.75, 1.0)]
        broken = max(rank(some, y).max() for some in reached) >= k
        low, high = (low, middle) if broken else (middle, high)
    return high


@pytest.mark.parametrize("k", [2, 3])
def test_radii_of_top_k_are_near_to_what_brute_force_finds(k, rng, random_network):
    """A flat net: curvature loses little, so that what the choice of rivals loses would show."""
    network = random_network(rng, (3, 9, 6), "softplus", scale=0.7)
    x = rng.standard_normal((6, 3))
    label = network.logits(x).numpy().argmax(axis=1)
    found = of(network, Property.top_k(k), "crc")(x, label)
    plain = of(network, ARGMAX, "crc")(x, label)
    assert (found.radius > plain.radius).all()
    for one, y, radius in zip(x, label, found.radius, strict=True):
        assert radius < farthest_top_k(network, one, y, k, rng, radius) < 3.0 * radius


@pytest.mark.parametrize("k", [2, 3])
def test_what_is_decided_of_top_k_is_what_radii_say(k):
    """Which rivals may pass is told by the radius of each, not by the smallest alone."""
    x, y = data.load("digits").limited(60).arrays()
    x, network, held = x.reshape(len(x), -1), read("saved_models/digits").network, Property.top_k(k)
    radius = of(network, held, "crc")(x, y).radius
    for decide in (0.8, 1.0):
        decided = of(network, held, "crc", decide=[decide])(x, y).radius
        assert (radius > 1.0001 * decide).any()
        assert (decided > decide)[radius > 1.0001 * decide].all()


def test_top_1_of_the_predicted_class_is_argmax(rng, random_network):
    network, x = drawn(rng, random_network, (3, 7, 5)), rng.standard_normal((9, 3))
    one, plain = of(network, Property.top_k(1))(x), of(network, ARGMAX)(x)
    for name in ("prediction", "radius", "nearest_rival", "status", "method"):
        np.testing.assert_array_equal(getattr(one, name), getattr(plain, name))


def test_more_may_pass_farther_out(rng, random_network):
    network, x = drawn(rng, random_network, (4, 9, 6)), rng.standard_normal((9, 4))
    radii = np.array([of(network, Property.top_k(k), "crown")(x).radius for k in range(1, 6)])
    assert (np.diff(radii, axis=0) >= -1e-3 * radii[:-1]).all() and (
        radii[-1] > 1.5 * radii[0]
    ).any()


@pytest.mark.parametrize("table", [[1, 4], {0: [1], 2: [3, 4], 3: [0, 1], 4: [4]}])
def test_no_harmful_class_gets_above_the_label(table, rng, random_network):
    network, x = drawn(rng, random_network, (3, 7, 5)), rng.standard_normal((25, 3))
    label = rng.integers(5, size=25)
    found = of(network, Property.harmful(table))(x, label)
    of_label = table if isinstance(table, dict) else dict.fromkeys(range(5), table)
    logits = network.logits(x).numpy()
    for i, y in enumerate(label):
        harmful = [t for t in of_label.get(y, []) if t != y]
        holds = (logits[i, harmful] < logits[i, y]).all()
        assert (found.status[i] == Status.MISCLASSIFIED) == (not holds)
        if not harmful:
            assert found.radius[i] == math.inf and found.nearest_rival[i] == -1
        elif holds:
            assert found.nearest_rival[i] in harmful and found.radius[i] > 0.0
            around = network.logits(x[i] + ball(3, found.radius[i], rng)).numpy()
            assert (around[:, harmful] < around[:, [y]]).all()


def test_fewer_rivals_are_no_nearer(rng, random_network):
    network, x = drawn(rng, random_network, (3, 7, 5)), rng.standard_normal((9, 3))
    plain = of(network, ARGMAX)(x)
    harmful = of(network, Property.harmful([0, 1]))(x)
    assert (harmful.radius >= plain.radius * (1.0 - 1e-2)).all()


@pytest.mark.parametrize(
    "method, activation", [case for case in METHODS_AND_SIGMAS if case[0] != "two_stage"]
)
def test_an_output_stays_in_its_interval(method, activation, rng, random_network):
    network, tau = scores(rng, random_network, 1, activation), 0.3
    x = rng.standard_normal((8, 2))
    found = of(network, Property.interval(tau), method)(x)
    assert (found.radius > 0.0).all() and set(found.nearest_rival) <= {0, 1}
    at_x = network.logits(x).numpy()
    for one, radius, value in zip(x, found.radius, at_x, strict=True):
        moved = np.abs(network.logits(one + ball(2, radius, rng)).numpy() - value)
        assert moved.max() < tau


def test_radii_of_intervals_are_near_to_what_a_grid_finds(rng, random_network):
    network, tau = scores(rng, random_network, 1, "softplus"), 0.05
    x = rng.standard_normal((8, 2))
    found = of(network, Property.interval(tau))(x)
    for one, radius, rival in zip(x, found.radius, found.nearest_rival, strict=True):
        moved = network.logits(one + ball(2, 1.05 * radius, rng)) - network.logits(one[None])
        moved = moved.numpy()[:, 0]
        assert moved.max() > tau if rival == 1 else moved.min() < -tau


@pytest.mark.parametrize("threat", [{}, {"scale": [2.0]}, {"scale": [2.0, 1.0], "frozen": [1]}])
def test_an_interval_is_around_what_was_given_and_not_what_was_served(threat):
    """Float32 numbers are 1/16 apart there; `tanh` is steep at x, and flat at the boundary."""
    dim, scale = len(threat.get("scale", [1.0])), threat.get("scale", [1.0])[0]
    model = keras.Sequential([keras.Input((dim,)), keras.layers.Dense(1, "tanh")])
    model.add(keras.layers.Dense(1))
    first = np.eye(dim, 1)
    model.set_weights([first, np.array([-1e6]), np.eye(1), np.zeros(1)])
    x = np.zeros((1, dim))
    x[:, 0] = 1e6 + 0.03
    for method in ("crown", "auto"):
        found = certify(model, x, property="interval:0.9", method=method, threat=threat)
        change = found.radius.item() * scale
        moved = np.tanh(0.03 + np.array([-change, change])) - np.tanh(0.03)
        assert 1.0 < change and np.abs(moved).max() <= 0.9


def test_of_no_examples_nothing_is_held(rng, random_network):
    network = scores(rng, random_network, 2)
    for held in (Property.interval(0.2), Property.threshold(0.5)):
        assert len(of(network, held, "crown")(np.zeros((0, 2))).radius) == 0


def test_all_outputs_must_hold(rng, random_network):
    network = scores(rng, random_network, 2)
    x = rng.standard_normal((8, 2))
    taus = {0: 0.3, 1: 0.1}
    both = of(network, Property.interval(taus))(x)
    alone = [of(network, Property.interval({j: tau}))(x).radius for j, tau in taus.items()]
    np.testing.assert_allclose(both.radius, np.minimum(*alone), rtol=1e-2)
    decides = both.nearest_rival // 2
    assert set(decides) <= {0, 1} and (decides == np.argmin(alone, axis=0)).mean() > 0.8


def test_a_score_stays_on_its_side(rng, random_network):
    network, x = scores(rng, random_network, 1), rng.standard_normal((20, 2))
    limit = 0.2
    above = network.logits(x).numpy()[:, 0] > limit
    found = of(network, Property.threshold(limit))(x, np.ones(20, int))
    np.testing.assert_array_equal(found.prediction, above)
    np.testing.assert_array_equal(found.status == Status.MISCLASSIFIED, ~above)
    found = of(network, Property.threshold(limit))(x)
    np.testing.assert_array_equal(found.nearest_rival, ~above)
    assert set(above) == {True, False} and (found.radius > 0.0).all()
    for one, radius, side in zip(x, found.radius, above, strict=True):
        around = network.logits(one + ball(2, radius, rng)).numpy()[:, 0]
        assert ((around > limit) == side).all()


def test_thresholds_of_several_outputs(rng, random_network):
    network, x = scores(rng, random_network, 3), rng.standard_normal((20, 2))
    limits = {0: 0.1, 2: -0.3}
    found = of(network, Property.threshold(limits))(x)
    logits = network.logits(x).numpy()
    np.testing.assert_array_equal(
        found.prediction, (logits[:, 0] > 0.1) + 2 * (logits[:, 2] > -0.3)
    )
    for one, radius, value in zip(x, found.radius, logits, strict=True):
        around = network.logits(one + ball(2, radius, rng)).numpy()
        for j, limit in limits.items():
            assert ((around[:, j] > limit) == (value[j] > limit)).all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_threshold_of_a_probability(outputs, rng, random_network):
    model = model_of(scores(rng, random_network, outputs), "sigmoid")
    x = rng.standard_normal((10, 2)).astype(np.float32)
    found = certify(model, x, property="threshold:0=0.8")
    above = np.asarray(model(x))[:, 0] > 0.8
    np.testing.assert_array_equal(found.prediction, above)
    for one, radius, side in zip(x, found.radius, above, strict=True):
        around = one + ball(2, radius * (1.0 - 1e-3), rng)
        assert ((np.asarray(model(around.astype(np.float32)))[:, 0] > 0.8) == side).all()


def test_a_regression_model_is_read(tmp_path, rng, random_network):
    model = model_of(scores(rng, random_network, 1))
    model.export(tmp_path / "model", verbose=False)
    x = rng.standard_normal((5, 2)).astype(np.float32)
    found = certify(tmp_path / "model", x, property=Property.interval(0.2))
    assert (found.status == Status.CERTIFIED).all() and (found.prediction == -1).all()
    with pytest.raises(InputError, match="classes are not"):
        from keras_curv import read

        read(tmp_path / "model")
    with pytest.raises(InputError, match="one number without a sigmoid"):
        certify(tmp_path / "model", x)
    with pytest.raises(InputError, match="y means nothing"):
        certify(tmp_path / "model", x, np.zeros(5, int), property="interval:0.2")


def test_served_in_float32_a_threshold_holds_too(rng, random_network):
    model = model_of(scores(rng, random_network, 1))
    x = rng.standard_normal((10, 2)).astype(np.float32)
    real, served = (
        certify(model, x, property="threshold:0.2", guarantee=level, method="crc").radius
        for level in ("real", "float32")
    )
    assert (served < real).all() and (served > 0.99 * real).mean() > 0.7


@pytest.mark.parametrize("spelling", [
    "argmax", "top_3", "harmful:3,5", "harmful:0>1,2;4>3", "threshold:0.7",
    "threshold:0=0.5,2=-1.0", "interval:0.1", "interval:1=0.25",
])  # fmt: skip
def test_spellings(spelling):
    held = Property.parse(spelling)
    assert held.spelling == spelling and held == Property.parse(held.spelling)


def test_a_table_is_read_from_a_file(tmp_path):
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"7": [1], "4": [5, 3]}))
    assert Property.parse(f"harmful:{file}") == Property.harmful({4: [3, 5], 7: [1]})


@pytest.mark.parametrize("spelling, match", [
    ("top", "must be one of"), ("top_0", "k must be an integer"), ("best", "must be one of"),
    ("harmful:", "cannot be read"), ("harmful:a", "not a whole"), ("harmful:-1", "at least 0"),
    ("harmful:1>2;1>3", "named twice"), ("harmful:none.json", "No such file"),
    ("harmful:0>0;1>1", "harmful for another"),
    ("threshold:", "'' is not a number"), ("threshold:nan", "must be a number"),
    ("threshold:0=1,0=2", "named twice"), ("interval:0", "τ must be a positive number"),
    ("harmful:1_0", "not a whole"), ("harmful:" + "9" * 400, "not a whole"),
    ("harmful:" + ",".join(map(str, range(11_000))), "characters to spell, and 50000 are the most"),
    ("threshold:1e151", "threshold must be at most"), ("interval:" + "9" * 400, "must be a number"),
    ("threshold:" + ",".join(f"{i}=1" for i in range(63)), "names 63 outputs; name 62 at most"),
    ("interval:-1", "τ must be a positive"), ("interval:inf", "must be a number"),
])  # fmt: skip
def test_spellings_that_mean_nothing(spelling, match):
    with pytest.raises(InputError, match=match) as raised:
        Property.parse(spelling)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[1]", "{", "3", '{"a": [1]}', '{"1": 2}', '{"1": [2.5]}', "{}",
                                  '{"1": [2], "1": [3]}', '{"1": [[2]]}', '{"1_0": [2]}',
                                  '{"1": [true]}', '{"1": [2]}' + " " * 2**20])  # fmt: skip
def test_tables_that_mean_nothing(text, tmp_path):
    file = tmp_path / "table.json"
    file.write_text(text)
    with pytest.raises(InputError):
        Property.parse(f"harmful:{file}")


@pytest.mark.parametrize("spelling, match", [
    ("top_4", "needs more than 4 classes"), ("harmful:4", r"0 to 3"), ("harmful:4>1", r"0 to 3"),
    ("threshold:9=0.1", r"names output 9, but the model has 4"),
])  # fmt: skip
def test_properties_that_a_network_cannot_have(spelling, match, rng, random_network):
    network = random_network(rng, (2, 4), [])
    with pytest.raises(InputError, match=match):
        Property.parse(spelling).network(network)


def test_an_interval_needs_a_slope_to_be_bounded(rng, random_network):
    network = random_network(rng, (2, 5, 3), "exponential")
    with pytest.raises(InputError, match="interval:0.5 is not for exponential, whose slope"):
        Property.parse("interval:0.5").network(network)


def test_properties_that_a_head_hides(rng, random_network):
    model = model_of(random_network(rng, (2, 5, 3), "tanh"), "softmax")
    x = np.zeros((1, 2), np.float32)
    for spelling, match in [("threshold:0.2", "Received: softmax"), ("interval:1", "softmax")]:
        with pytest.raises(InputError, match=match):
            certify(model, x, property=spelling)
    with pytest.raises(InputError, match="no guarantee float32 for top_2"):
        certify(model, x, property="top_2", guarantee="float32")
    with pytest.raises(InputError, match="are for argmax"):
        certify(model, x, property="top_2", rivals="runner_up")
    with pytest.raises(InputError, match="between 0 and 1"):
        certify(model_of(scores(rng, random_network, 1), "sigmoid"), x, property="threshold:1.5")
