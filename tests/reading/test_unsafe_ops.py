"""Models with ops that reach outside are refused unloaded, and nothing of them runs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import Net, edited, export
from refused import assert_refused, spec

from keras_curv.errors import InputError
from keras_curv.reading import served_model

L = keras.layers


def _write(x, net, marker):
    tf.io.write_file(marker, "owned")
    return net(x)


def _python(x, net, marker):
    return tf.ensure_shape(tf.py_function(lambda v: net(v), [x], tf.float32), (None, 3))


def _numpy(x, net, marker):
    return tf.ensure_shape(tf.numpy_function(lambda v: v[:, :3], [x], tf.float32), (None, 3))


def _read(x, net, marker):
    size = tf.strings.length(tf.io.read_file("/etc/passwd"))
    return net(x) + tf.cast(size, tf.float32)


def _print(x, net, marker):
    tf.print(x)
    return net(x)


def _save(x, net, marker):
    saved = tf.raw_ops.SaveV2(
        prefix=marker, tensor_names=["a"], shape_and_slices=[""], tensors=[net.v]
    )
    with tf.control_dependencies([saved]):
        return net(tf.identity(x))


def _restore(x, net, marker):
    stolen = tf.raw_ops.RestoreV2(
        prefix=marker, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
    )
    return net(x) + tf.reshape(stolen[0], (1, 3))


def _merge(x, net, marker):
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=[marker], destination_prefix=marker + "2")
    return net(x)


def _data(x, net, marker):
    for line in tf.data.TextLineDataset("/etc/passwd"):
        x += tf.cast(tf.strings.length(line), tf.float32)
    return net(x)


def _debug(x, net, marker):
    return net(tf.raw_ops.DebugIdentityV2(input=x, debug_urls=[f"file://{marker}"]))


def _files(x, net, marker):
    return net(x) + tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32)


def _nested(x, net, marker):
    @tf.function
    def inner(x):
        return _write(x, net, marker)

    @tf.function
    def outer(x):
        return inner(x) * 2.0

    return outer(x)


def _saver_like(x, net, marker):
    @tf.function
    def __inference__traced_save(x):
        return _read(x, net, marker)

    return __inference__traced_save(x)


def _mapped(x, net, marker):
    return tf.map_fn(lambda row: _write(row[None], net, marker)[0], x)


HOSTILE = {
    "write_file": (_write, "WriteFile"),
    "py_function": (_python, "EagerPyFunc"),
    "numpy_function": (_numpy, "PyFunc"),
    "read_file": (_read, "ReadFile"),
    "print": (_print, "StringFormat"),
    "save": (_save, "SaveV2"),
    "restore": (_restore, "RestoreV2"),
    "merge": (_merge, "MergeV2Checkpoints"),
    "dataset": (_data, ""),
    "debug": (_debug, "DebugIdentityV2"),
    "matching_files": (_files, "MatchingFiles"),
    "nested": (_nested, "WriteFile"),
    "named like the saver": (_saver_like, "ReadFile"),
    "mapped": (_mapped, ""),
}


def hostile(tmp_path, body):
    """The model, and the file that it would write."""
    marker = tmp_path / "marker"
    path = export(tmp_path / "model", lambda x, net: body(x, net, str(marker)))
    return path, marker


def assert_nothing_ran(marker):
    assert list(marker.parent.glob("marker*")) == []


@pytest.mark.parametrize("case", HOSTILE)
def test_ops_that_reach_outside_are_refused_unloaded(case, tmp_path, nothing_is_loaded):
    body, op = HOSTILE[case]
    path, marker = hostile(tmp_path, body)
    assert_refused(path, op, "not on the list of ops that are safe")
    assert_nothing_ran(marker)


def test_an_unsafe_function_that_no_signature_calls_is_never_run(tmp_path, nothing_is_loaded):
    net, marker = Net(), tmp_path / "marker"
    net.initialise = tf.function(
        lambda x: _write(x, net, str(marker)), input_signature=[spec(None, 4)]
    )
    served = served_model.read(export(tmp_path / "model", net=net))
    served.check(np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(served.network.affines[0].kernel, net.w)
    assert_nothing_ran(marker)


def name_as_saver(meta, function):
    """Adds a node that calls it and names that node in `saver_def`; the real saver stays."""
    node = meta.graph_def.node.add(name="helper", op="StatefulPartitionedCall")
    node.attr["f"].func.name = function
    meta.saver_def.filename_tensor_name = "helper:0"


def assert_unread_and_unrun(path, marker):
    """Refused; and if not, at least say what got as far as to run."""
    try:
        served_model.read(path).check(np.ones((2, 4), np.float32))
    except InputError:
        assert_nothing_ran(marker)
        return
    assert_nothing_ran(marker)
    pytest.fail("it was read")


@pytest.mark.parametrize("body", [_save, _restore, _write, _merge])
def test_a_saver_that_is_the_signature_is_refused(body, tmp_path, nothing_is_loaded):
    """The saver's own functions may save; naming the served one as the saver must not help."""
    path, marker = hostile(tmp_path, body)
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        meta.saver_def.filename_tensor_name = output.name
    assert_refused(path)
    assert_nothing_ran(marker)


def test_a_signature_that_is_the_saver_is_refused(tmp_path):
    """The object graph hands out functions too: serving must not reach the one that saves."""
    path, marker = hostile(tmp_path, _save)
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        nodes = meta.graph_def.node
        serving = next(node for node in nodes if node.name == output.name.split(":")[0])
        name_as_saver(meta, serving.attr["f"].func.name)
        nodes.remove(serving)
    assert_unread_and_unrun(path, marker)


def test_registered_classes_are_refused(tmp_path):
    """TensorFlow makes a table of any object that carries this name, and runs its initialiser."""
    net, marker = Net(), tmp_path / "marker"
    net.table = tf.Module()
    net.table._initialize = tf.function(
        lambda: _save(tf.zeros((1, 4)), net, str(marker)), input_signature=[]
    )
    net.table._create_resource = tf.function(lambda: tf.constant(0.0), input_signature=[])
    path = export(tmp_path / "model", net=net)
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        nodes[table].registered_name = "tf.StaticHashTable"
        children = {child.local_name: child.node_id for child in nodes[table].children}
        (name,) = nodes[children["_initialize"]].function.concrete_functions
        name_as_saver(meta, name)
    assert_unread_and_unrun(path, marker)
