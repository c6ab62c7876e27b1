"""Inputs that are no floats, beside one that is: held fixed, or categories that may change."""

from __future__ import annotations

import itertools
import json

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hostile_models.models import export
from refused import assert_refused, spec
from scripts import call, load

import keras_curv
from keras_curv.errors import InputError
from keras_curv.reading.inputs import Inputs

L, M = keras.layers, "lipschitz"  # which is exact where there is one map
RNG = np.random.default_rng(7)
X = {
    "x": RNG.normal(size=(6, 3)).astype(np.float32),
    "kind": np.array([[0], [1], [2], [3], [3], [0]]),
    "few": np.array([[0, 1], [1, 1], [4, 0], [2, 3], [0, 0], [3, 3]]),
    "flag": np.array([[True], [False]] * 3),
    "size": np.array([[3], [-2], [0], [200], [1], [7]]),
    "wide": RNG.normal(size=(6, 1)),
}
DTYPES = dict(x="float32", kind="int32", few="int64", flag="bool", size="int16", wide="float64")


def _given(*names):
    return [keras.Input(X[name].shape[1:], dtype=DTYPES[name], name=name) for name in names]


def _with_weights(model):
    rng = np.random.default_rng(1)
    model.set_weights([0.6 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def _joined(given, *parts):
    """A linear model, of which radii are known exactly."""
    return _with_weights(keras.Model(given, L.Dense(3)(L.Concatenate()([*parts]))))


def _embedded():
    x, kind = given = _given("x", "kind")
    words = L.Flatten()(L.Embedding(4, 2, mask_zero=True)(kind))
    return _joined(given, x, words, L.CategoryEncoding(4, "one_hot")(kind))


def _encoded():
    x, kind, few = given = _given("x", "kind", "few")
    encode = [L.CategoryEncoding(4, "multi_hot")(kind), L.CategoryEncoding(5, "count")(few)]
    return _joined(given, x, *encode)


def _averaged():
    x, few = given = _given("x", "few")
    return _joined(given, x, L.GlobalAveragePooling1D()(L.Embedding(5, 3)(few)))


def _cast():
    x, flag, size, wide = given = _given("x", "flag", "size", "wide")
    return _joined(given, x, *(keras.ops.cast(each, "float32") for each in (flag, size, wide)))


MODELS = {"embedded": _embedded, "encoded": _encoded, "averaged": _averaged, "cast": _cast}


def _examples(model):
    return {each.name: X[each.name] for each in model.inputs}


def _served(model, x):
    return model({n: tf.constant(a, DTYPES[n]) for n, a in x.items()}).numpy()


def _by_hand(model, x, moving):
    """Distances to the nearest change of the features that move, which come first."""
    logits = np.float64(_served(model, x))
    (weights, _), top = model.layers[-1].get_weights(), logits.argmax(axis=1)
    rows = np.arange(len(top))
    margins = logits[rows, top][:, None] - logits
    slopes = np.linalg.norm(weights[moving].T[top][:, None] - weights[moving].T[None], axis=2)
    return np.where(slopes > 0, margins / np.where(slopes > 0, slopes, 1), np.inf).min(axis=1)


@pytest.mark.parametrize(
    ("case", "saved"), [*zip(MODELS, ["", ".keras", ".keras", ""], strict=True)]
)
def test_radii_are_exact_with_the_others_fixed(case, saved, tmp_path):
    model = MODELS[case]()
    x, source = _examples(model), str(tmp_path / f"model{saved}")
    if case == "cast":
        model.export(source, verbose=False)
    elif saved:
        model.save(source)
    certifier = keras_curv.Certifier(source if saved or case == "cast" else model, method=M)
    assert sorted(certifier.served.inputs.fixed) == sorted(x.keys() - {"x", "wide"})
    moving = [0, 1, 2, 5] if case == "cast" else [0, 1, 2]
    np.testing.assert_allclose(certifier.certify(x).radius, _by_hand(model, x, moving), rtol=1e-5)
    vectors = certifier.served.inputs.joined(x)
    inputs = certifier.served.inputs
    for name, part in zip(inputs.specs, inputs.split(vectors), strict=True):
        np.testing.assert_array_equal(part, x[name])


def test_a_file_an_export_and_a_live_model_agree_in_every_container(tmp_path):
    model = _encoded()
    model.export(str(tmp_path / "model"), verbose=False)
    model.save(tmp_path / "model.keras")
    x = _examples(model)
    certifier = keras_curv.Certifier(model, method=M)
    radius = certifier.certify(x).radius
    for path in ("model", "model.keras"):
        found = keras_curv.certify(str(tmp_path / path), x, method=M).radius
        np.testing.assert_allclose(found, radius, rtol=1e-6)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros(6, int))).batch(4)
    assert len(certifier.certify_all(dataset)) == 6
    flat = {"x": X["x"][:, 0], "kind": X["kind"][:, 0]}
    one = [keras.Input((), dtype=DTYPES[name], name=name) for name in flat]
    line = keras.ops.expand_dims(one[0], 1)
    table = _joined(one, line, L.Embedding(4, 2)(one[1]))
    by_column = keras_curv.certify(table, pd.DataFrame(flat), method=M).radius
    np.testing.assert_array_equal(by_column, keras_curv.certify(table, flat, method=M).radius)


def test_categories_may_change_by_the_name_of_their_input():
    """The least radius that the other categories have, by hand; 0 where one changes the class."""
    model = _encoded()
    x = _examples(model)
    moves = {"kind": [({"kind": np.full((6, 1), k)}) for k in range(4)]}
    moves["few"] = [
        {"few": np.concatenate([np.full((6, 1), k), X["few"][:, 1:]], axis=1)} for k in range(5)
    ] + [{"few": np.concatenate([X["few"][:, :1], np.full((6, 1), k)], axis=1)} for k in range(5)]
    top = _served(model, x).argmax(axis=1)
    for names in (["kind"], ["kind", "few"]):
        least = np.full(6, np.inf)
        for change in itertools.chain.from_iterable(moves[name] for name in names):
            same = _served(model, x | change).argmax(axis=1) == top
            least = np.minimum(least, np.where(same, _by_hand(model, x | change, [0, 1, 2]), 0.0))
        found = keras_curv.certify(model, x, threat={"groups": names}, method=M)
        np.testing.assert_allclose(found.radius, least, rtol=1e-5)
        assert 0.0 < (found.radius > 0.0).mean()


def test_from_the_command_line(tmp_path, script, capfd):
    model = _embedded()
    model.export(str(tmp_path / "model"), verbose=False)
    np.savez(tmp_path / "x.npz", **_examples(model))
    flags = [
        "--saved_model",
        tmp_path / "model",
        "--inputs",
        tmp_path / "x.npz",
        "--verbose",
        "--method",
        M,
    ]
    output = tmp_path / "rows.csv"
    code, out, err = call(
        script, capfd, *flags, "--output", output, "--report", tmp_path / "r.html"
    )
    assert (code, err) == (0, "")
    assert "'kind': no floats, held as each example has them" in " ".join(out.split())
    radius = pd.read_csv(output)["radius"].to_numpy()
    np.testing.assert_allclose(
        radius, keras_curv.certify(model, _examples(model), method=M).radius, 1e-5
    )
    (tmp_path / "t.json").write_text(json.dumps({"groups": ["kind"]}))
    code, out, err = call(script, capfd, *flags, "--threat", tmp_path / "t.json")
    assert (code, err) == (0, "") and "category of at most 1 of 'kind' changed" in " ".join(
        out.split()
    )
    assert "no floats, held" not in out
    for more in (["--proofs", tmp_path / "p"], ["--input_scale", "2"]):
        code, _, err = call(script, capfd, *flags, *more)
        assert code == 2 and "all floats. Not so: kind" in err and err.count("\n") == 1
    code, _, err = call(script, capfd, *flags[:4], "--method", "smoothing", "--deviation", "0.1")
    assert code == 2 and "'kind', to which noise cannot be added" in err
    code, out, err = call(load("read"), capfd, "--saved_model", tmp_path / "model")
    assert "kind, (1,), int32, one of 4 categories, held fixed" in out


BAD = {
    "beyond the table": ({"kind": X["kind"] + 1}, "example 3: 'kind' must be .* from 0 to 3"),
    "below it": ({"kind": X["kind"] - 1}, "example 0: 'kind' must be"),
    "fractions": ({"kind": X["kind"] + 0.5}, "whole numbers from 0 to 3"),
    "NaN": ({"kind": X["kind"] * np.nan}, "whole numbers from 0 to 3"),
    "text": ({"kind": X["kind"].astype(str)}, "whole numbers from 0 to 3"),
    "an input that is not there": ({"sort": X["kind"]}, "has an array 'sort'"),
}


@pytest.fixture(scope="module")
def embedded():
    return keras_curv.Certifier(_embedded(), method=M)


@pytest.mark.parametrize("case", BAD)
def test_examples_that_do_not_fit_are_refused(case, embedded):
    change, message = BAD[case]
    with pytest.raises(InputError, match=message):
        embedded.certify({"x": X["x"], "kind": X["kind"]} | change)


def test_vectors_must_be_one_hot(embedded):
    vectors = embedded.served.inputs.joined({"x": X["x"], "kind": X["kind"]})
    assert (embedded.certify(vectors).radius > 0.0).any()
    for wrong in (vectors * 0.5, vectors * 0.0, np.ones_like(vectors)):
        with pytest.raises(InputError, match="one-hot vectors at 'kind'; give arrays by name"):
            embedded.certify(wrong)


@pytest.mark.parametrize("number", [0.5, np.nan, 2.0**25])
def test_vectors_must_have_integers(number):
    specs = {"n": spec(None, 1, dtype=tf.int32), "x": spec(None, 1)}
    inputs = Inputs(specs, "the model")
    assert inputs.joined(np.array([[3.0, 0.5]])).tolist() == [[3.0, 0.5]]
    with pytest.raises(InputError, match="takes integers at 'n'; give arrays by name"):
        inputs.joined(np.array([[number, 0.5]]))


THREATS = {
    "no name": ({"groups": ["sort"]}, "groups names 'sort', but .* are 'kind', 'x'"),
    "a basis": ({"basis": np.ones((7, 1))}, "inputs that are all floats"),
    "one entry": ({"groups": [["kind", 4]]}, "is in a group twice|features by index"),
}


@pytest.mark.parametrize("case", THREATS)
def test_threats_that_do_not_fit_are_refused(case):
    threat, message = THREATS[case]
    with pytest.raises(InputError, match=message):
        if case == "one entry":
            threat = {"groups": [["kind", "kind"]]}
        keras_curv.Certifier(_embedded(), threat=threat)


def test_named_groups_are_part_of_what_a_threat_is():
    threat = keras_curv.Threat(groups=["b", ["a", "c"], [3, 4]], changes=2)
    assert threat == keras_curv.Threat(**json.loads(json.dumps(threat.config())))
    assert str(threat) == "groups 'b'|'a','c'|3,4; changes 2"
    assert "of 'b', 'a','c', 3,4 changed" in threat.text
    with pytest.raises(InputError, match="groups names 'b'"):
        keras_curv.CRTModel(
            keras.Sequential([keras.Input((5,)), L.Dense(2, "tanh"), L.Dense(2)]),
            threat=threat,
            radius=0.1,
        )


def test_columns_of_a_table_are_groups_by_name():
    net = _with_weights(keras.Sequential([keras.Input((4,)), L.Dense(4, "tanh"), L.Dense(2)]))
    table = pd.DataFrame({"age": [0.5, 0.1], "red": [1, 0], "blue": [0, 0], "green": [0, 1]})
    named, indexed = (
        keras_curv.certify(net, table, threat={"groups": [group]}, method=M).radius
        for group in (["red", "blue", "green"], [1, 2, 3])
    )
    np.testing.assert_array_equal(named, indexed)


def test_features_behind_a_cut_are_groups_by_the_name_of_their_input():
    kinds = {"age": "float", "kind": "string_categorical", "colour": "string_categorical"}
    space = keras.utils.FeatureSpace(kinds, output_mode="concat")
    words = {"kind": np.array([["a"], ["b"]]), "colour": np.array([["red"], ["blue"]])}
    x = {"age": np.array([[1.0], [2.0]]), **words}
    space.adapt(tf.data.Dataset.from_tensor_slices(x).batch(2))
    hidden = L.Dense(4, "tanh")(space.get_encoded_features())
    model = _with_weights(keras.Model(space.get_inputs(), L.Dense(3)(hidden)))
    cut = assert_refused(model, "cut at").rpartition("cut at '")[2].partition("'")[0]
    certifier = keras_curv.Certifier(model, cut=cut, method=M, threat={"groups": ["kind"]})
    places = certifier.served.places()
    assert {name: place.shape for name, place in places.items()} == {
        **{"age": (1, 1), "kind": (1, 3), "colour": (1, 3)}
    }
    z = certifier.served.before(x)
    np.testing.assert_array_equal(z[:, places["age"][0]], x["age"])
    group = places["kind"][0].tolist()
    assert certifier.threat.categories.groups[0].tolist() == group
    indexed = keras_curv.certify(model, x, cut=cut, method=M, threat={"groups": [group]})
    np.testing.assert_array_equal(certifier.certify(x).radius, indexed.radius)
    frozen = keras_curv.certify(model, x, cut=cut, method=M, threat={"frozen": ["age"]})
    assert (frozen.radius > keras_curv.certify(model, x, cut=cut, method=M).radius).any()


TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


def _beyond(i, x, net):
    return net(tf.concat([x, tf.gather(TABLE, i + 1)], axis=1))


def _of_two(i, x, net):
    return net(tf.concat([x, tf.gather(TABLE, i[:, 0] * 2 + i[:, 1])], axis=1))


def _of_a_float(i, x, net):
    return net(tf.concat([x, tf.gather(TABLE, tf.cast(x[:, 0], tf.int32))], axis=1))


def _raw(i, x, net):
    return net(tf.concat([x, tf.gather(TABLE, i)], axis=1)) * tf.cast(
        tf.math.floormod(i, 2)[:, None], tf.float32
    )


def _wrapped(i, x, net):
    """0 − 1 is 255 there."""
    few = tf.cast(i - (i + i), tf.float32)
    return net(tf.concat([x, few[:, None], tf.gather(TABLE[:, :1], tf.cast(i, tf.int32))], axis=1))


GRAPHS = {
    "what wraps around": (_wrapped, (), "that uint8 wraps"),
    "a row beyond the table": (_beyond, (), "chooses a row that is not there"),
    "of two integers": (_of_two, (2,), "are computed from one another"),
    "of a float": (_of_a_float, (), "rounds|indices"),
    "another op": (_raw, (), "FloorMod"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_what_integers_may_not_choose_is_refused(case, tmp_path):
    body, shape, word = GRAPHS[case]
    dtype = tf.uint8 if body is _wrapped else tf.int32
    specs = [spec(None, *shape, dtype=dtype, name="i"), spec(None, 2, name="x")]
    message = assert_refused(export(tmp_path / "model", body, specs))
    assert any(each in message for each in word.split("|")), message


def test_models_without_a_float_and_of_strings_name_a_cut():
    kind, few = _given("kind", "few")
    parts = [L.Flatten()(L.Embedding(n, 2)(i)) for n, i in ((4, kind), (5, few))]
    model = _joined([kind, few], *parts)
    assert_refused(model, "what is no float is held fixed", "cut at 'concatenate")
    text, x = keras.Input((1,), dtype="string", name="text"), keras.Input((2,), name="x")
    words = L.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(text)
    message = assert_refused(_joined([x, text], x, words), "must be numbers", "'text' string")
    assert "cut at 'concatenate" in message
