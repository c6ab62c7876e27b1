"""Constants that stand for far more than is stored."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import add_objects, cases, edited, export, nodes_of

CASES, case = cases()
HARMLESS, harmless_case = cases()


def _outer(x, net):
    wide = tf.reshape(net.w, (1, 20))
    for size in (20, 400, 160_000):
        wide = tf.reshape(tf.reshape(wide, (size, 1)) + tf.reshape(wide, (1, size)), (1, size**2))
    return net(x) + wide[:, :3]


case("constant: broadcast against itself")(lambda path, canary: export(path, _outer))


@case("constant: joined to itself forty times")
def _joined(path, canary):
    def body(x, net):
        shape = tf.constant([-1, 4])
        for _ in range(40):
            shape = tf.concat([shape, tf.constant([7, 7])], 0)
        return net(tf.reshape(x, shape[:2]))

    export(path, body)
    with edited(path) as meta:
        for node in nodes_of(meta):
            if node.op == "ConcatV2":
                node.input[1] = node.input[0]
            node.attr.pop("_output_shapes", None)
    return path


@case("constant: one number that stands for 2^33")
def _constant(path, canary):
    export(path, lambda x, net: net(x + tf.zeros((1, 4))))
    with edited(path) as meta:
        for node in nodes_of(meta):
            node.attr.pop("_output_shapes", None)
            if node.op == "Const":
                tensor = node.attr["value"].tensor
                tensor.Clear()
                tensor.dtype = tf.float32.as_datatype_enum
                tensor.float_val.append(0.5)
                tensor.tensor_shape.dim.add().size = 2**33
    return path


@case("constant: a bound in a specification")
def _specification(path, canary):
    export(path)
    with edited(path) as meta:
        for function in meta.object_graph_def.concrete_functions.values():
            spec = function.output_signature.bounded_tensor_spec_value
            for bound in (spec.minimum, spec.maximum):
                bound.dtype = tf.float32.as_datatype_enum
                bound.float_val.append(0.5)
                bound.tensor_shape.dim.add().size = 2**34
    return path


@case("constant: a shape of seventeen axes")
def _axes(path, canary):
    export(path, lambda x, net: net(x + tf.zeros((1, 4))))
    with edited(path) as meta:
        for node in nodes_of(meta):  # whichever of its functions comes first
            for _ in range(17 if node.op == "Const" else 0):
                node.attr["value"].tensor.tensor_shape.dim.add().size = 1
    return path


@harmless_case("constant: named by a hundred objects")
def _named(path, canary):
    export(path)
    with edited(path) as meta:
        node = meta.graph_def.node.add(name="big", op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        tensor = node.attr["value"].tensor
        tensor.dtype = tf.float32.as_datatype_enum
        tensor.float_val.append(0.5)
        tensor.tensor_shape.dim.add().size = 2**20
        for each in add_objects(meta, 100, "first"):
            each.constant.operation = "big"
    return path
