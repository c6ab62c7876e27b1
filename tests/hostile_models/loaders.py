"""Models that no loader of TensorFlow takes, or that one takes otherwise than another."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.index import varint
from hostile_models.models import (
    GRAPH,
    Net,
    cases,
    changed,
    edited,
    export,
    nodes_of,
    served_function,
)
from hostile_models.restoring import restore_function, two_heads

CASES, case = cases()


def _versions(**numbers):
    def change(meta):
        for name, number in numbers.items():
            value = getattr(meta.graph_def.versions, name)
            if isinstance(value, int):
                setattr(meta.graph_def.versions, name, number)
            else:
                value.append(number)

    return changed(change)


case("loader: for a newer TensorFlow")(_versions(min_consumer=10**6))
case("loader: for any but this TensorFlow")(_versions(bad_consumers=tf.version.GRAPH_DEF_VERSION))
case("loader: from a TensorFlow before all")(_versions(producer=-1))


def _circle(meta, nodes):
    first = nodes.add(name="first", op="NoOp", input=["^second"])
    nodes.add(name="second", op="NoOp", input=["^first"])
    return first


case("loader: the main graph goes in a circle")(
    changed(lambda meta: _circle(meta, meta.graph_def.node))
)
case("loader: a function goes in a circle")(
    changed(lambda meta: _circle(meta, served_function(meta).node_def))
)
case("loader: waits for what is not there")(
    changed(lambda meta: next(iter(served_function(meta).node_def)).input.append("^nowhere"))
)


def _returns_nothing(meta):
    served_function(meta).control_ret["more"] = "nowhere"
    served_function(meta).signature.control_output.append("more")


case("loader: a function waits in the end for what is not there")(changed(_returns_nothing))


def _first_waits(meta):
    node = next(node for node in served_function(meta).node_def if node.input)
    other = served_function(meta).node_def.add(name="other", op="NoOp")
    node.input[:] = [f"^{other.name}", *node.input]


case("loader: waits before it takes anything")(changed(_first_waits))
for device in ("/device:CPU:0\n", "gpu\x1b[2J", "/job:a/job:b/device:??"):

    def _placed(meta, device=device):
        next(iter(served_function(meta).node_def)).device = device

    case(f"loader: on the device {device!r}")(changed(_placed))


def _said_shape(sizes, where):
    """A note on the shape of outputs, or of what a client gets, that is not true."""

    def build(path, canary):
        export(path)
        with edited(path) as meta:
            if where == "signature":
                outputs = meta.signature_def["serving_default"].outputs
                shapes = [output.tensor_shape for output in outputs.values()]
            else:
                place = next(iter(meta.signature_def["serving_default"].outputs.values())).name
                nodes = [n for n in meta.graph_def.node if place == f"{n.name}:0"]
                if where == "function":
                    nodes = [n for n in nodes_of(meta) if n.op == "Softplus"]
                notes = [node.attr["_output_shapes"].list for node in nodes]
                for note in notes:
                    note.ClearField("shape")
                shapes = [note.shape.add() for note in notes]
            assert shapes
            for shape in shapes:
                shape.CopyFrom(tf.TensorShape(sizes).as_proto())
        return path

    return build


for where, sizes in (
    ("signature", (None, 4)),
    ("main", (2, 3)),
    ("main", (None,)),
    ("function", (None, 6)),
    ("function", (1, 5)),
):
    case(f"said: to be of shape {sizes}, in the {where}")(_said_shape(sizes, where))


@case("loader: two variables of one key")
def _one_key(path, canary):
    """The restore function of the main graph gives both the same; Python does not."""
    two_heads(path)
    with edited(path) as meta:
        (keys,) = [
            n for n in restore_function(meta)[0].node_def if n.name == "RestoreV2/tensor_names"
        ]
        names = [key.decode() for key in tf.make_ndarray(keys.attr["value"].tensor)]
        names = ["v/.ATTRIBUTES/VARIABLE_VALUE" if n.startswith("other/") else n for n in names]
        keys.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(names))
    return path


@case("loader: inputs go by other names")
def _inputs_exchanged(path, canary):
    specs = [tf.TensorSpec((None, 4), tf.float32, name=name) for name in "ab"]
    export(path, lambda a, b, net: net(a + 2.0 * b), specs)
    with edited(path) as meta:
        inputs = meta.signature_def["serving_default"].inputs
        inputs["a"].name, inputs["b"].name = inputs["b"].name, inputs["a"].name
    return path


@case("loader: Python names the inputs otherwise")
def _keywords_exchanged(path, canary):
    specs = [tf.TensorSpec((None, 4), tf.float32, name=name) for name in "ab"]
    export(path, lambda a, b, net: net(a + 2.0 * b), specs)
    with edited(path) as meta:
        for node in meta.object_graph_def.nodes:
            if node.bare_concrete_function.argument_keywords:
                node.bare_concrete_function.argument_keywords[:] = ["b", "a"]
    return path


@case("loader: Python takes the inputs by place")
def _positional(path, canary):
    specs = [tf.TensorSpec((None, 4), tf.float32, name=name) for name in "ab"]
    export(path, lambda a, b, net: net(a + 2.0 * b), specs)
    with edited(path) as meta:
        for node in meta.object_graph_def.nodes:
            spec = node.bare_concrete_function.function_spec.fullargspec.named_tuple_value
            for pair in spec.values:
                if pair.key == "args":
                    for name in "ba":
                        pair.value.list_value.values.add().string_value = name
    return path


@case("loader: Python would restore one variable from two places")
def _two_ways(path, canary):
    two_heads(path)
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        places = {child.local_name: child.node_id for child in nodes[0].children}
        more = nodes.add()
        more.user_object.identifier = "_generic_user_object"
        nodes[0].children.add(node_id=len(nodes) - 1, local_name="signatures_too")
        # The same variable once more, under the name that another one has in the checkpoint.
        for child in nodes[0].children:
            if child.local_name == "other":
                child.node_id = places["v"]
    return path


@case("loader: Python calls another function")
def _other_function(path, canary):
    net = Net()
    spec = [tf.TensorSpec((None, 4), tf.float32, name="x")]
    functions = {
        "serving_default": tf.function(lambda x: {"logits": net(x)}, input_signature=spec),
        "bad": tf.function(lambda x: {"logits": -net(x)}, input_signature=spec),
    }
    tf.saved_model.save(net, str(path), signatures=functions)
    with edited(path) as meta:
        for node in meta.object_graph_def.nodes:
            if node.user_object.identifier == "signature_map":
                first, second = node.children
                first.node_id, second.node_id = second.node_id, first.node_id
    return path


def _field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def _twice(change):
    """Writes a second entry of a table behind the first, as no writer does."""

    def build(path, canary):
        export(path)
        with edited(path) as meta:
            definition = meta.signature_def["serving_default"]
            added = change(meta, definition)
            content = meta.SerializeToString() + added
        (path / GRAPH).write_bytes(b"\x08\x01" + _field(2, content))
        return path

    return build


@_twice
def _signature_twice(meta, definition):
    other = type(definition).FromString(definition.SerializeToString())
    next(iter(other.outputs.values())).name = "StatefulPartitionedCall:1"
    return _field(5, _field(1, b"serving_default") + _field(2, other.SerializeToString()))


@_twice
def _output_twice(meta, definition):
    (name,) = definition.outputs
    info = definition.outputs[name].SerializeToString()
    more = definition.SerializeToString() + _field(2, _field(1, name.encode()) + _field(2, info))
    del meta.signature_def["serving_default"]
    return _field(5, _field(1, b"serving_default") + _field(2, more))


@_twice
def _attribute_twice(meta, definition):
    node = next(node for node in meta.graph_def.node if node.op == "Placeholder")
    again = node.SerializeToString() + _field(
        5, _field(1, b"dtype") + _field(2, node.attr["dtype"].SerializeToString())
    )
    meta.graph_def.node.remove(node)
    content = meta.graph_def.SerializeToString() + _field(1, again)
    meta.ClearField("graph_def")
    return _field(2, content)


case("loader: a signature is said twice")(_signature_twice)
case("loader: an output is said twice")(_output_twice)
case("loader: an attribute is said twice")(_attribute_twice)


@case("loader: an op that XLA must compile")
def _compiled_op(path, canary):
    export(path)
    with edited(path) as meta:
        next(n for n in nodes_of(meta) if n.op == "Softplus").attr["_XlaMustCompile"].b = True
    return path


@case("loader: a constant captured from another node")
def _other_constant(path, canary):
    factor = tf.constant(np.float32([1.0, 2.0, 3.0, 4.0]))
    export(path, lambda x, net: net(x * factor))
    with edited(path) as meta:
        (old,) = [n for n in meta.graph_def.node if n.op == "Const" and n.name == "Const"]
        new = meta.graph_def.node.add()
        new.CopyFrom(old)
        new.name = "another"
        new.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(-factor.numpy()))
        for node in meta.object_graph_def.nodes:
            if node.WhichOneof("kind") == "constant":
                node.constant.operation = "another"
    return path
