"""Categories that change: the weakest of all inputs that a change leads to, by brute force."""

import itertools
import json

import numpy as np
import pytest
from attacked import ball, float32_network, model_of, scores

from keras_curv import Certifier, InputError, Property, Status, Threat, certify
from keras_curv.network.network import Network
from keras_curv.threats.categories import Categories
from keras_curv.threats.threat_file import load_threat

GROUPS = [[0, 1, 2], [5, 6]]  # of 7 features, 3 and 4 are numbers


def inputs(rng, count):
    x = rng.standard_normal((count, 7)) * 0.5
    for group in GROUPS:
        x[:, group] = np.eye(len(group))[rng.integers(0, len(group), count)]
    return x.astype(np.float32)


def all_changes(x, changes):
    """Every input that differs from x in the category of at most so many groups, x too."""
    found = []
    for choice in itertools.product(*(range(len(group)) for group in GROUPS)):
        other = x.copy()
        for group, place in zip(GROUPS, choice, strict=True):
            other[group] = np.eye(len(group))[place]
        differ = sum(np.any(other[group] != x[group]) for group in GROUPS)
        if differ <= changes:
            found.append(other)
    return found


@pytest.fixture
def model(rng, random_network):
    return model_of(float32_network(rng, random_network, (7, 9, 3), "tanh"))


@pytest.mark.parametrize(("method", "changes"), [("crc", 1), ("crc", 2), ("auto", 2), ("crown", 1)])
def test_the_radius_is_the_smallest_of_all_that_a_change_leads_to(method, changes, rng, model):
    x = inputs(rng, 12)
    threat = Threat(groups=GROUPS, changes=changes, scale=[1, 1, 1, 0.5, 2, 1, 1])
    found = certify(model, x, threat=threat, method=method)
    plain = certify(model, x, threat=Threat(frozen=[0, 1, 2, 5, 6]), method=method)
    frozen = Threat(frozen=[0, 1, 2, 5, 6], scale=[1, 1, 1, 0.5, 2, 1, 1])
    others = [all_changes(row, changes) for row in x]
    ends = np.cumsum([len(each) for each in others])[:-1]
    labels = np.repeat(plain.prediction, [len(each) for each in others])
    every = certify(model, np.concatenate(others), labels, threat=frozen, method=method)
    least = [radius.min() for radius in np.split(every.radius, ends)]
    np.testing.assert_allclose(found.radius, least, rtol=2e-3)
    np.testing.assert_array_equal(found.status == Status.CERTIFIED, found.radius > 0.0)
    fell = sum(np.any(s == Status.MISCLASSIFIED) for s in np.split(every.status, ends))
    assert 0 < fell < len(x) and (found.radius > 0.0).any()


def test_no_class_changes_with_categories_and_numbers(rng, model):
    x = inputs(rng, 12)
    found = certify(model, x, threat=Threat(groups=GROUPS, changes=2), method="crc")
    for row, prediction, radius in zip(x, found.prediction, found.radius, strict=True):
        if radius > 0.0:
            for other in all_changes(row, 2):
                points = np.tile(other, (len(moves := ball(2, radius * (1 - 1e-6), rng)), 1))
                points[:, [3, 4]] += moves
                assert np.all(model(points).numpy().argmax(axis=1) == prediction)


def test_what_a_change_alone_brings_down(rng, model):
    x = inputs(rng, 40)
    found = certify(model, x, threat=Threat(groups=GROUPS), method="crc")
    fell = found.adversarial_distance == 0.0
    assert fell.any() and (found.status[fell] == Status.UNPROVED).all()
    assert (found.radius[fell] == 0.0).all() and found.primal_equals_dual[fell].all()
    logits = model(x).numpy()
    for row in np.flatnonzero(fell):
        taken = {int(model(other[None]).numpy().argmax()) for other in all_changes(x[row], 1)}
        assert found.nearest_rival[row] in taken - {int(logits[row].argmax())}


def test_more_changes_and_labels(rng, model):
    """A second change takes something; what is not predicted as its label is not certified."""
    x = inputs(rng, 20)
    one, two = (
        certify(model, x, threat=Threat(groups=GROUPS, changes=changes), method="crc")
        for changes in (1, 2)
    )
    assert (two.radius <= one.radius).all() and (two.radius < one.radius).any()
    label = (one.prediction + (np.arange(20) % 2)) % 3
    held = certify(model, x, label, threat=Threat(groups=GROUPS), method="crc")
    np.testing.assert_allclose(held.radius[::2], one.radius[::2], rtol=1e-6)
    assert (held.status[1::2] == Status.MISCLASSIFIED).all()


@pytest.mark.parametrize("kind", ["interval", "threshold"])
def test_a_number_stays_where_it_was_before_the_change(kind, rng, random_network):
    network = scores(rng, random_network, 1)
    kernel = rng.standard_normal((7, 2)) * np.array([[0.2]] * 3 + [[0.4]] * 2 + [[0.2]] * 2)
    kernels = [kernel @ network.affines[0].kernel, network.affines[1].kernel]
    biases = [affine.bias for affine in network.affines]
    model = model_of(type(network).from_weights(
        [k.astype(np.float32) for k in kernels], [b.astype(np.float32) for b in biases], "tanh"
    ))  # fmt: skip
    x = inputs(rng, 30)
    output = model(x).numpy()[:, 0]
    value = float(np.median(output)) if kind == "threshold" else 0.4
    held = f"{kind}:{value!r}"
    found = certify(model, x, threat=Threat(groups=GROUPS), property=held, method="crc")
    assert (found.radius > 0.0).any() and (found.radius == 0.0).any()
    for row, radius in enumerate(found.radius):
        points = np.concatenate([
            [*(other + np.eye(7)[3] * a + np.eye(7)[4] * b
               for a, b in 0.999 * ball(2, radius, rng)[::37])]
            for other in all_changes(x[row], 1)
        ]).astype(np.float32)  # fmt: skip
        there = model(points).numpy()[:, 0]
        if kind == "interval":
            kept = np.abs(there - output[row]) < value
        else:
            kept = (there > value) == (output[row] > value)
        assert kept.all() or radius == 0.0
        if radius == 0.0:
            assert not kept.all()


def test_other_properties_float32_and_a_box(rng, model):
    x = inputs(rng, 12)
    real, served = (
        certify(model, x, threat=Threat(groups=GROUPS), method="crc", guarantee=guarantee)
        for guarantee in ("real", "float32")
    )
    assert (served.radius <= real.radius).all() and (served.radius > 0.9 * real.radius).any()
    boxed = certify(model, x, threat=Threat(groups=GROUPS, low=-2.0, high=2.0), method="crc")
    assert (boxed.radius >= real.radius * (1.0 - 1e-3)).all()
    top = certify(model, x, threat=Threat(groups=GROUPS), property=Property.top_k(2), method="crc")
    assert (top.radius >= real.radius).all() and (top.radius > real.radius).any()


def test_a_rival_that_takes_over_is_one_that_counts(rng):
    """Under `harmful:1` class 2 is none; where a change ties, the rival before it stays."""
    kernel = np.zeros((4, 3), np.float32)
    kernel[0], kernel[1] = [1.0, 0.0, 0.0], [0.0, 1.5, 2.0]
    model = model_of(Network.from_weights([kernel], [np.zeros(3, np.float32)], []))
    x, threat = np.array([[1.0, 0.0, 0.3, 0.4]], np.float32), Threat(groups=[[0, 1]])
    harmful = certify(model, x, threat=threat, property="harmful:1", method="crc")
    assert harmful.radius[0] == 0.0 and harmful.nearest_rival[0] == 1
    assert certify(model, x, threat=threat, method="crc").nearest_rival[0] == 2
    kernel[1] = 0.0
    tied = model_of(Network.from_weights([kernel], [np.zeros(3, np.float32)], []))
    found = certify(tied, x, threat=threat, method="crc")
    assert found.status[0] == Status.UNPROVED and found.nearest_rival[0] in (1, 2)


def test_an_infinite_radius_is_no_exact_distance(rng):
    kernel = np.zeros((4, 2), np.float32)
    kernel[2] = [0.1, 0.0]
    model = model_of(Network.from_weights([kernel], [np.float32([9.0, 0.0])], []))
    threat = Threat(groups=[[0, 1]], low=-1.0, high=1.0)
    found = certify(model, np.array([[1.0, 0.0, 0.0, 0.0]], np.float32), threat=threat)
    assert np.isinf(found.radius[0]) and not found.primal_equals_dual[0]


@pytest.mark.parametrize(("groups", "message"), [
    ([], "one group at least"), ([[0]], "two at least"), ([[0, 1], [1, 2]], "in a group twice"),
    ([[0.5, 1.0]], "two at least"), ("ab", "two at least|lists of features"),
    ([[0, -1]], "two at least"), (3, "lists of features"), ([-2, 0, 0], "from 0 on"),
    ([[True, False]], "two at least"),
])  # fmt: skip
def test_groups_that_mean_nothing(groups, message):
    with pytest.raises(InputError, match=message):
        Threat(groups=groups)


@pytest.mark.parametrize(("options", "message"), [
    ({"changes": 1}, "no groups"), ({"groups": GROUPS, "changes": 0}, "at least 1"),
    ({"groups": GROUPS, "changes": 3}, "at most 2"),
    ({"groups": GROUPS, "changes": 1.5}, "integer"),
    ({"groups": GROUPS, "changes": "a"}, "changes must be numbers"),
    ({"groups": GROUPS, "basis": np.eye(7)}, "a basis says by itself"),
    ({"groups": np.arange(90).reshape(30, 3).tolist(), "changes": 9}, "allow fewer changes"),
])  # fmt: skip
def test_threats_with_groups_that_mean_nothing(options, message):
    with pytest.raises(InputError, match=message):
        Threat(**options)


def test_inputs_and_models_that_do_not_fit(rng, model):
    x = inputs(rng, 3)
    for bad, shown in ((0.5, "0.5"), (1.0, "1 1")):
        other = x.copy()
        other[1, 5:7] = bad
        with pytest.raises(InputError, match=f"example 1 is not one-hot in group 1.*{shown}"):
            certify(model, other, threat=Threat(groups=GROUPS))
    with pytest.raises(InputError, match="groups name feature 9, but there are 7"):
        certify(model, x, threat=Threat(groups=[[8, 9]]))
    with pytest.raises(InputError, match="groups by number must have 7 entries.*Received: 5"):
        certify(model, x, threat=Threat(groups=[0, 0, 0, 1, 1]))
    with pytest.raises(InputError, match="feature 5 is frozen and in a group"):
        certify(model, x, threat=Threat(groups=GROUPS, frozen=[5]))
    with pytest.raises(InputError, match="nothing is left"):
        certify(model, x, threat=Threat(groups=GROUPS, frozen=[3, 4]))
    with pytest.raises(InputError, match="all rivals count"):
        certify(model, x, threat=Threat(groups=GROUPS), rivals="runner_up")


def test_files_and_words(tmp_path):
    by_feature = [0, 0, 0, -1, -1, 1, 1]
    expected = Threat(groups=GROUPS, changes=2, scale=2.0)
    assert Threat(groups=by_feature, changes=2, scale=2.0) == expected
    assert Threat(**expected.config()) == expected != Threat(groups=GROUPS, scale=2.0)
    assert Threat(groups=[[5, 6], [2, 1, 0]], changes=2, scale=2.0) == expected
    assert str(Threat(groups=GROUPS)) == "groups 0,1,2|5,6; changes 1"
    many = [np.arange(3 * i, 3 * i + 3).tolist() for i in range(20)]
    assert "sha256" in str(Threat(groups=many)) and Threat(groups=many) != Threat(groups=many[1:])
    assert len(str(Threat(groups=[[1, 10**12]]))) < 60
    assert "the category of at most 2 of 2 groups changed" in expected.text
    (tmp_path / "threat.json").write_text(json.dumps(expected.config()))
    np.savez(tmp_path / "threat.npz", groups=by_feature, changes=2, scale=2.0)
    for kind in ("json", "npz"):
        assert load_threat(str(tmp_path / f"threat.{kind}")) == expected


def test_the_number_of_ways():
    x = np.zeros((1, 9))
    x[:, [0, 3, 5]] = 1.0
    for changes in (1, 2, 3):
        categories = Categories([[0, 1, 2], [3, 4], [5, 6, 7, 8]], changes)
        found = {tuple(changed[0]) for changed in categories.changed(x)}
        assert len(found) == categories.ways == [6, 17, 23][changes - 1]
        assert all(sum(row) == 3.0 for row in found)


def test_a_certifier_says_what_it_holds(model):
    assert Certifier(model, threat={"groups": GROUPS}).threat.categories.ways == 3
