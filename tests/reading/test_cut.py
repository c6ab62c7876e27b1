"""The part of a model behind a cut is read and certified as if it began there."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hostile_models.models import Net, export
from refused import assert_refused, spec

import keras_curv
from keras_curv.errors import InputError
from keras_curv.reading import served_model
from keras_curv.saved_model import limits
from keras_curv.saved_model.graph.cut import Way

L = keras.layers


def _backbone():
    """A convolution that is frozen, and a head behind it."""
    x = keras.Input((6, 6, 2), name="image")
    h = L.Conv2D(3, 3, activation="selu", name="conv")(x)
    h = L.GlobalAveragePooling2D(name="avg_pool")(h)
    out = L.Dense(4, name="last")(L.Dense(5, "tanh", name="head")(h))
    model = keras.Model(x, out, name="frozen")
    rng = np.random.default_rng(2)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def model():
    return _backbone()


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(3).normal(size=(5, 6, 6, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def features(model, x):
    return keras.Model(model.input, model.get_layer("avg_pool").output)(x).numpy()


@pytest.fixture(scope="module", params=["live", "directory", "m.keras", "m.h5"])
def source(request, model, tmp_path_factory):
    if request.param == "live":
        return model
    path = tmp_path_factory.mktemp("saved") / request.param
    if path.suffix:
        model.save(path)
    else:
        model.export(str(path), verbose=False)
    return path


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    model.export(str(path), verbose=False)
    return path


def test_logits_behind_the_cut_are_those_of_keras(source, model, features):
    """Of features that no image has, too: what is read is a function of them alone."""
    served = served_model.read(source, cut="avg_pool")
    z = np.concatenate([features, 3 * features - 1])
    behind = keras.Model(model.get_layer("avg_pool").output, model.output)
    ours = served.network.logits(np.float64(z)).numpy()
    np.testing.assert_allclose(ours, behind(z).numpy(), rtol=2e-5, atol=2e-5)
    served.check(features)
    assert served.input_shape == (3,) and served.cut == "avg_pool"
    assert served.cut_tensor.endswith("/avg_pool_1/Mean")


def test_a_live_model_takes_its_usual_input(model, x, features, directory):
    options = dict(cut="avg_pool", method="crc")
    radius = keras_curv.certify(model, x, **options).radius
    assert (radius > 0.0).all()
    given = keras_curv.certify(directory, features, **options).radius
    np.testing.assert_allclose(radius, given, rtol=1e-4)
    y = keras_curv.certify(directory, features, **options).prediction
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    by_batch = keras_curv.certify(model, batches, **options)
    np.testing.assert_allclose(by_batch.radius, radius, rtol=1e-6)
    with pytest.raises(InputError, match=r"'image' takes examples of shape \(6, 6, 2\)"):
        keras_curv.certify(model, features, **options)
    with pytest.raises(InputError, match="example 0 has NaN"):
        keras_curv.certify(model, np.full_like(x, np.nan), **options)


def test_a_file_takes_what_flows_at_the_cut(directory, x):
    with pytest.raises(InputError, match=r"\(6, 6, 2\) do not fit .* takes \(3,\)"):
        keras_curv.certify(directory, x, cut="avg_pool")


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("pool", ["no layer or tensor of that name", "avg_pool"]),
        ("", ["no layer or tensor of that name", "head"]),
        ("head_1/Tanh:1", ["passes it by", "avg_pool"]),
        ("avg_pool:one", ["no layer or tensor"]),
        ("frozen_1/head_1/Tanh:9", ["passes it by"]),
        ("frozen_1/head_1/\n\x1b[2J", ["no layer or tensor"]),
        ("last", ["that is the output"]),
    ],
)
def test_names_that_mean_no_cut_are_refused(cut, words, directory, model):
    for source in (directory, model):
        message = assert_refused(source, *words, cut=cut)
        assert message.isprintable()


@pytest.mark.parametrize("cut", ["frozen_1/head_1/Tanh", "head_1/Tanh:0", "head"])
def test_a_layer_a_node_and_a_tensor_are_names(cut, directory, model):
    for source in (directory, model):
        assert served_model.read(source, cut=cut).input_shape == (5,)


def test_a_name_that_may_be_two_layers_is_refused_with_both(tmp_path):
    """Keras names the nodes of `dense` as those of `dense_1` may be named."""
    dense = [L.Dense(3, "tanh", name=name) for name in ("dense", "dense_1")]
    model = keras.Sequential([keras.Input((2,)), *dense, L.Dense(2, name="last")])
    model.export(str(tmp_path / "model"), verbose=False)
    words = "one", "dense_1/Tanh", "dense_1_2/Tanh"
    assert_refused(tmp_path / "model", *words, cut="dense_1")
    served = served_model.read(model, cut="dense_1")  # a live model knows its layers
    assert served.cut_tensor.endswith("/dense_1_2/Tanh")


def _skipped():
    x = keras.Input((3,), name="given")
    h = L.Dense(4, "tanh", name="inner")(x)
    return keras.Model(x, L.Dense(2)(L.Concatenate(name="both")([h, x])))


def test_what_passes_the_cut_by_is_refused(tmp_path):
    model = _skipped()
    model.export(str(tmp_path / "model"), verbose=False)
    for source in (model, tmp_path / "model"):
        assert_refused(source, "'inner'", "passes it by", "both", cut="inner")
        assert served_model.read(source, cut="both").input_shape == (7,)


def test_of_two_inputs_the_one_that_joins_later_passes_the_cut_by():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    h = L.Dense(3, "tanh", name="inner")(a)
    model = keras.Model([a, b], L.Dense(2)(L.Add(name="sum")([h, b])))
    assert_refused(model, "the input 'b' passes it by", cut="inner")
    x = {name: np.random.default_rng(1).normal(size=(4, 3)) for name in "ab"}
    radius = keras_curv.certify(model, x, cut="sum").radius
    table = np.concatenate([x["a"], x["b"]], axis=1)
    np.testing.assert_array_equal(keras_curv.certify(model, table, cut="sum").radius, radius)
    with pytest.raises(InputError, match="takes the inputs a, b. Received: a"):
        keras_curv.certify(model, {"a": x["a"]}, cut="sum")
    with pytest.raises(InputError, match="as many examples. Received: 4, 2"):
        keras_curv.certify(model, {"a": x["a"], "b": x["b"][:2]}, cut="sum")


def test_a_layer_of_a_nested_model(model, x):
    inner = keras.Model(model.input, model.get_layer("avg_pool").output, name="backbone")
    head = keras.Sequential([keras.Input((3,)), L.Dense(3, name="avg_pool")], name="top")
    given = keras.Input((6, 6, 2))
    whole = keras.Model(given, L.Dense(2)(head(inner(given))))
    assert_refused(whole, "name one", "backbone/avg_pool", "top/avg_pool", cut="avg_pool")
    for cut in ("backbone/avg_pool", "backbone"):
        made = served_model.read(whole, cut=cut).before(x)
        np.testing.assert_allclose(made, inner(x).numpy(), rtol=1e-6)


def test_a_layer_that_is_used_twice_is_no_cut():
    x, shared = keras.Input((3,)), L.Dense(3, "tanh", name="shared")
    model = keras.Model(x, L.Dense(2)(shared(shared(x))))
    assert_refused(model, "'shared' makes 2 tensors", cut="shared")
    assert "call" not in vars(shared)


def test_words_and_categories_before_the_cut():
    """Strings are looked up and embedded; behind that all is as ever."""
    word = keras.Input((2,), dtype="string", name="word")
    h = L.Embedding(4, 3, name="embed")(L.StringLookup(vocabulary=["a", "b", "c"])(word))
    model = keras.Model(word, L.Dense(2)(L.Dense(4, "tanh")(L.Flatten(name="flat")(h))))
    words = np.array([["a", "b"], ["c", "?"], ["a", "a"]])
    result = keras_curv.certify(model, words, cut="flat")
    assert len(result) == 3 and served_model.read(model, cut="flat").input_shape == (6,)
    certifier = keras_curv.Certifier(model, cut="flat")
    z = keras.Model(word, model.get_layer("flat").output)(words).numpy()
    np.testing.assert_array_equal(certifier.served.before(words), z)
    assert_refused(model, "cut at 'embed' to certify the part behind it")


def test_a_table_of_a_live_model_that_is_cut():
    model = keras.Sequential([keras.Input((2,)), L.Dense(3, "tanh", name="h"), L.Dense(2)])
    table = pd.DataFrame({"age": [1.0, 2.0], "height": [0.5, 0.25]})
    radius = keras_curv.certify(model, table, cut="h").radius
    np.testing.assert_array_equal(
        keras_curv.certify(model, table.to_numpy(), cut="h").radius, radius
    )


@pytest.mark.parametrize(
    ("layer", "cut"),
    [
        (L.Activation(keras.ops.cosh, name="norm"), "norm"),
        (L.LSTM(4, name="memory"), "memory"),
    ],
)
def test_a_refusal_names_a_cut_that_would_do(layer, cut):
    x = keras.Input((3, 2))
    h = L.Dense(2, "tanh")(x)
    model = keras.Model(x, L.Dense(3)(L.Flatten()(layer(h))))
    message = assert_refused(model, "to certify the part behind it")
    named = message.rpartition("cut at '")[2].partition("'")[0]
    assert named.endswith(cut)
    assert (keras_curv.certify(model, np.ones((2, 3, 2)), cut=named).radius >= 0.0).all()


def test_a_network_that_is_too_large_is_cut_behind_its_last_pooling(model, x, monkeypatch):
    """One behind the refused layer would only be refused at the next one."""
    monkeypatch.setattr(limits, "TOTAL_ENTRIES", 400)
    with pytest.raises(InputError, match=r"at most 400; cut at 'avg_pool'"):
        served_model.read(model)
    monkeypatch.undo()
    assert keras_curv.certify(model, x, cut="avg_pool").radius.shape == (5,)


def test_inputs_of_several_types_are_given_before_a_cut():
    a, b = keras.Input((1,), name="a"), keras.Input((1,), dtype="int32", name="b")
    h = L.Concatenate(name="both")([a, L.Flatten()(L.Embedding(5, 2)(b))])
    model = keras.Model([a, b], L.Dense(2)(L.Dense(3, "tanh")(h)))
    x = {"a": np.ones((2, 1)), "b": np.array([[1], [4]])}
    assert len(keras_curv.certify(model, x, cut="both")) == 2
    with pytest.raises(InputError, match="'b' takes int32, and there are other numbers"):
        keras_curv.certify(model, x | {"b": np.array([[0.5], [1.0]])}, cut="both")


def test_what_a_server_must_not_run_is_refused_before_a_cut_too(tmp_path):
    def body(x, net):
        tf.print(x)
        return net(x * 2.0)

    path = export(tmp_path / "model", body)
    assert_refused(path, "not on the list of ops that are safe", cut="mul")


def test_an_op_without_a_rule_before_the_cut(tmp_path):
    """Also where it is one of two outputs of an op that is cut at."""

    def body(x, net):
        left, right = tf.split(tf.sort(x), 2, axis=1, name="halves")
        return net(tf.concat([left, left], axis=1, name="twice"))

    path = export(tmp_path / "model", body)
    message = assert_refused(path, "op TopKV2", "to certify the part behind it")
    named = message.rpartition("cut at '")[2].partition("'")[0]
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    for cut in (named, "halves:0", "twice"):
        served = served_model.read(path, cut=cut)
        served.check(np.ones((2, *served.input_shape), np.float32))
    assert served_model.read(path, cut="halves:0").input_shape == (2,)
    ours = served_model.read(path, cut="twice").network.logits(np.float64(x)).numpy()
    np.testing.assert_allclose(ours, Net()(x).numpy(), rtol=2e-5, atol=2e-5)


def test_a_shape_that_nobody_knows_is_refused(tmp_path):
    def body(x, net):
        return net(tf.reshape(tf.sort(x), (-1, 4)))

    path = export(tmp_path / "model", body, [spec(None, None)])
    assert_refused(path, "the shape of what flows there is not known", cut="sort/TopKV2")


def test_every_way_passes_a_bottleneck():
    def function(x, y):
        both = tf.tanh(x) + tf.exp(x)
        late = tf.nn.relu(both) * y
        return tf.nn.softplus(tf.reshape(late, (-1, 2))) + late

    graph = tf.function(function).get_concrete_function(tf.ones((1, 2)), tf.ones((1, 2))).graph
    nodes = {node.name: node for node in graph.as_graph_def().node}
    assert Way(nodes, {"x": "x", "y": "y"}, "add_1").bottlenecks() == ["mul"]
    assert Way(nodes, {"x": "x"}, "add_1").bottlenecks() == ["add", "Relu", "mul"]
