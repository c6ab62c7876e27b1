# ruff: noqa: E501
"""Ops that reach outside, and objects with code of their own."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import Net, cases, edited, export, nodes_of

CASES, case = cases()
HARMLESS, harmless_case = cases()


def _write(x, net, canary):
    tf.io.write_file(str(canary), "owned")
    return net(x)


def ran(canary):
    def write(value):
        canary.write_text("owned")
        return value

    return write


def _looping(x, net, canary):
    return tf.while_loop(lambda y: tf.reduce_all(tf.abs(y) < np.inf), lambda y: (y * 0.0,), (x,))[0]


BODIES = {
    "write_file": _write,
    "read_file": lambda x, n, c: n(x) + tf.cast(tf.strings.length(tf.io.read_file("/etc/passwd")), tf.float32),
    "py_function": lambda x, n, c: n(tf.ensure_shape(tf.py_function(ran(c), [x], tf.float32), (None, 4))),
    "numpy_function": lambda x, n, c: n(tf.ensure_shape(tf.numpy_function(ran(c), [x], tf.float32), (None, 4))),
    "print to a file": lambda x, n, c: (tf.print("owned", output_stream=f"file://{c}"), n(x))[1],
    "save": lambda x, n, c: (tf.raw_ops.SaveV2(prefix=str(c), tensor_names=["a"], shape_and_slices=[""], tensors=[n.v]), n(x))[1],
    "debug to a file": lambda x, n, c: n(tf.raw_ops.DebugIdentityV2(input=x, debug_urls=[f"file://{c}"])),
    "in a nested function": lambda x, n, c: tf.function(lambda y: tf.function(lambda z: _write(z, n, c))(y) * 2.0)(x),
    "in a map": lambda x, n, c: tf.map_fn(lambda row: _write(row[None], n, c)[0], x),
    "in a branch": lambda x, n, c: tf.cond(tf.reduce_sum(x) > 0, lambda: _write(x, n, c), lambda: n(x)),
    "infinite loop": lambda x, n, c: n(_looping(x, n, c)),
    "host call": lambda x, n, c: (tf.raw_ops.CollectiveReduce(input=x, group_size=2, group_key=1, instance_key=1, merge_op="Add", final_op="Id", subdiv_offsets=[0]), n(x))[1],
}  # fmt: skip
for name, body in BODIES.items():
    case(f"op: {name}")(
        lambda path, canary, body=body: export(path, lambda x, net: body(x, net, canary))
    )


@harmless_case("op: in a function that no signature calls")
def _uncalled(path, canary):
    net = Net()
    net.more = tf.function(
        lambda x: _write(x, net, canary), input_signature=[tf.TensorSpec((None, 4))]
    )
    return export(path, net=net)


@case("op: in the saver")
def _in_saver(path, canary):
    export(path, lambda x, net: _write(x, net, canary))
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        meta.saver_def.restore_op_name = output.name.split(":")[0]
    return path


@case("op: a name that writes to the terminal")
def _terminal(path, canary):
    export(path)
    with edited(path) as meta:
        next(nodes_of(meta)).op = "Wri\x1b[2J\nte"
    return path


@case("object: table with an initialiser")
def _table(path, canary):
    words = path.parent / "words.txt"
    words.write_text("a\nb\n")
    net, kind = Net(), tf.lookup.TextFileIndex
    source = tf.lookup.TextFileInitializer(
        str(words), tf.string, kind.WHOLE_LINE, tf.int64, kind.LINE_NUMBER
    )
    net.table = tf.lookup.StaticHashTable(source, 0)
    return export(path, net=net)


@case("object: registered class with an initialiser")
def _registered(path, canary):
    net = Net()
    net.table = tf.Module()
    for name in ("_initialize", "_create_resource"):
        setattr(net.table, name, tf.function(lambda: tf.constant(0.0), input_signature=[]))
    export(path, net=net)
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        nodes[table].registered_name = "tf.StaticHashTable"
    return path


@case("asset: outside of the directory")
def _asset(path, canary):
    export(path)
    with edited(path) as meta:
        meta.asset_file_def.add(filename="../../../../etc/passwd").tensor_info.name = "x:0"
    return path
