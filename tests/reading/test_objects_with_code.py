"""Objects that loading would give code of their own are refused, or never looked at."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from hostile_models.models import Net, edited, export
from refused import assert_refused

from keras_curv.reading import served_model

L = keras.layers


def _table(tmp_path):
    keys, values = tf.constant(["a"]), tf.constant([1.0])
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)


def _file_table(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    number, line = tf.lookup.TextFileIndex.LINE_NUMBER, tf.lookup.TextFileIndex.WHOLE_LINE
    source = tf.lookup.TextFileInitializer(str(words), tf.string, line, tf.int64, number)
    return tf.lookup.StaticHashTable(source, 0)


def _mutable_table(tmp_path):
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)


def _asset(tmp_path):
    (tmp_path / "words.txt").write_text("a\n")
    return tf.saved_model.Asset(str(tmp_path / "words.txt"))


OBJECTS = {"table": _table, "table of a file": _file_table, "table that grows": _mutable_table}


@pytest.mark.parametrize("make", [*OBJECTS.values(), _asset], ids=[*OBJECTS, "asset"])
@pytest.mark.parametrize("used", [False, True])
def test_objects_with_code_of_their_own_are_refused(make, used, tmp_path, nothing_is_loaded):
    net = Net()
    net.extra = make(tmp_path)

    def body(x, net):
        if used and hasattr(net.extra, "size"):
            return net(x) + tf.cast(net.extra.size(), tf.float32)
        return net(x)

    assert_refused(export(tmp_path / "model", body, net=net))


def _with_table(path):
    """A plain model with a child object that only functions hang on, and nothing unsafe."""
    net = Net()
    net.table = tf.Module()
    for name in ("_initialize", "_create_resource"):
        setattr(net.table, name, tf.function(lambda: tf.constant(0.0), input_signature=[]))
    return export(path, net=net)


CHANGES = {
    "resource": lambda node: node.resource.SetInParent(),
    "asset": lambda node: node.asset.SetInParent(),
    "registered class": lambda node: setattr(node, "registered_name", "tf.StaticHashTable"),
    "registered saver": lambda node: setattr(node, "registered_saver", "Custom.saver"),
    "save functions": lambda node: node.saveable_objects["VARIABLE_VALUE"].SetInParent(),
}


@pytest.mark.parametrize("case", CHANGES)
def test_objects_that_loading_would_run_are_refused(case, tmp_path, nothing_is_loaded):
    """A server does not look at them; Python could find other variables after loading."""
    path = _with_table(tmp_path / "model")
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        CHANGES[case](nodes[table])
    assert_refused(path, f"object {table} ")


def test_a_part_named_as_a_method_is_refused(tmp_path, nothing_is_loaded):
    """Loading would ask it for the parts of the object."""
    path = _with_table(tmp_path / "model")
    with edited(path) as meta:
        meta.object_graph_def.nodes[0].children[0].local_name = "_trackable_children"
    assert_refused(path, "'_trackable_children', as a method")


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_function_that_is_given_an_object_that_is_not_there_is_refused(number, tmp_path):
    """Python would take the last object for number −1."""
    path = export(tmp_path / "model")
    with edited(path) as meta:
        for function in meta.object_graph_def.concrete_functions.values():
            function.bound_inputs[:] = [number] * len(function.bound_inputs)
    assert_refused(path, f"object {number}, which a function is given, is not there")


def test_a_child_object_with_functions_alone_is_fine(tmp_path):
    assert served_model.read(_with_table(tmp_path / "model")).network.classes == 3


def test_data_sets_are_refused(tmp_path, nothing_is_loaded):
    net = Net()
    net.data = tf.data.Dataset.range(3)
    assert_refused(export(tmp_path / "model", net=net))


def test_tensorflow_1_models_are_refused(tmp_path, nothing_is_loaded):
    path = tmp_path / "model"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4))
        w = tf.compat.v1.get_variable("w", (4, 3), use_resource=True)
        logits = x @ w
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, str(path), {"x": x}, {"logits": logits})
    assert_refused(path, "TensorFlow 1")
