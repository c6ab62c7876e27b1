"""Variables that a server would restore otherwise than they are read."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import Net, cases, constant, edited, export

CASES, case = cases()
HARMLESS, harmless_case = cases()


def restore_function(meta):
    """The function by which a server restores variables, and the node that calls it."""
    (call,) = [n for n in meta.graph_def.node if n.name == meta.saver_def.restore_op_name]
    name = call.attr["f"].func.name
    (function,) = [f for f in meta.graph_def.library.function if f.signature.name == name]
    return function, call


def two_heads(path):
    """With a second kernel of the same shape, which a server could be given instead."""
    net = Net()
    net.other = tf.Variable(-net.v)
    return export(
        path, net=net, body=lambda x, net: tf.nn.softplus(x @ net.w) @ (net.v + 0.5 * net.other)
    )


def swap_places(function):
    """Restores each of two variables of the same shape to the value of the other."""
    reads = [n for n in function.node_def if n.op == "Identity" and "RestoreV2:" in n.input[0]]
    (keys,) = [n for n in function.node_def if n.name == "RestoreV2/tensor_names"]
    names = [key.decode() for key in tf.make_ndarray(keys.attr["value"].tensor)]
    places = [i for i, key in enumerate(names) if key.startswith(("v/", "other/"))]
    for node in reads:
        place = int(node.input[0].rpartition(":")[2])
        if place in places:
            node.input[0] = f"RestoreV2:tensors:{sum(places) - place}"


@case("signature: variables are restored crosswise")
def _crosswise(path, canary):
    two_heads(path)
    with edited(path) as meta:
        swap_places(restore_function(meta)[0])
    return path


@case("signature: the call is given other variables")
def _given_others(path, canary):
    """Function and checkpoint stay as they are; the main graph hands them over crosswise."""
    two_heads(path)
    with edited(path) as meta:
        name = meta.signature_def["serving_default"].outputs["output_0"].name.split(":")[0]
        (call,) = [n for n in meta.graph_def.node if n.name == name]
        handles = [n.name for n in meta.graph_def.node if n.op == "VarHandleOp"]
        shapes = {n.name: str(n.attr["shape"]) for n in meta.graph_def.node if "shape" in n.attr}
        alike = [i for i, g in enumerate(call.input) if g in handles and shapes[g].count("5") == 1]
        alike = [i for i in alike if "size: 3" in shapes[call.input[i]]]
        first, second = alike
        call.input[first], call.input[second] = call.input[second], call.input[first]
    return path


@case("signature: two variables share a name")
def _shared(path, canary):
    two_heads(path)
    with edited(path) as meta:
        for node in meta.graph_def.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = b"one"
    return path


@case("signature: a variable is restored twice")
def _twice(path, canary):
    two_heads(path)
    with edited(path) as meta:
        function, _ = restore_function(meta)
        (first, *_) = [n for n in function.node_def if n.op == "AssignVariableOp"]
        again = function.node_def.add()
        again.CopyFrom(first)
        again.name = "again"
    return path


@case("signature: the init op assigns")
def _init_assigns(path, canary):
    export(path)
    with edited(path) as meta:
        for node in meta.graph_def.node:
            if node.op == "VarHandleOp":
                value = meta.graph_def.node.add(name="read", op="ReadVariableOp", input=[node.name])
                value.attr["dtype"].CopyFrom(node.attr["dtype"])
                change = meta.graph_def.node.add(
                    name="change", op="AssignAddVariableOp", input=[node.name, "read"]
                )
                change.attr["dtype"].CopyFrom(node.attr["dtype"])
                break
        (noop,) = [n for n in meta.graph_def.node if n.op == "NoOp"]
        noop.input.append("^change")
    return path


@case("signature: restoring saves")
def _restoring_saves(path, canary):
    export(path)
    with edited(path) as meta:
        body = restore_function(meta)[0].node_def
        (restore,) = [node for node in body if node.op == "RestoreV2"]
        given = {"p": str(canary), "k": ["x"], "s": [""], "d": np.float32([1.0])}
        given = [f"{constant(body, name, value)}:output:0" for name, value in given.items()]
        body.add(name="save", op="SaveV2", input=given).attr["dtypes"].list.type.append(1)
        restore.input.append("^save")
    return path


@case("signature: two variables share a name in two containers")
def _containers(path, canary):
    two_heads(path)
    with edited(path) as meta:
        for i, node in enumerate(n for n in meta.graph_def.node if n.op == "VarHandleOp"):
            node.attr["container"].s = (b"", b"localhost")[i % 2]
            node.attr["shared_name"].s = b"%d" % (i // 2)
    return path


@case("signature: restoring goes in circles")
def _circles(path, canary):
    export(path)
    with edited(path) as meta:
        function, _ = restore_function(meta)
        for node in function.node_def:
            if node.op == "Identity" and "RestoreV2:" in node.input[0]:
                node.input[0] = f"{node.name}:output:0"
    return path
