"""The small model that is made malicious, and how its files are changed."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

GRAPH, INDEX = "saved_model.pb", "variables/variables.index"
DATA = "variables/variables.data-00000-of-00001"


class Net(tf.Module):
    """Weights for four inputs, five hidden units and three classes."""

    def __init__(self, last=1.0):
        super().__init__()
        rng = np.random.default_rng(4)
        self.w = tf.Variable(rng.normal(size=(4, 5)), dtype=tf.float32)
        self.square = tf.Variable(rng.normal(size=(4, 4)), dtype=tf.float32)
        self.v = tf.Variable(last * rng.normal(size=(5, 3)), dtype=tf.float32)

    def __call__(self, x):
        return tf.nn.softplus(x @ self.w) @ self.v


def export(path, body=None, specs=None, net=None):
    """Saves `body(x, net)` as the default signature, or `net(x)`; returns the directory."""
    if body is specs is net is None:
        return write(path, plain_files())
    body = body or (lambda x, net: net(x))
    net = net or Net()
    specs = specs or [tf.TensorSpec((None, 4), tf.float32)]
    function = tf.function(lambda *x: body(*x, net)).get_concrete_function(*specs)
    tf.saved_model.save(net, str(path), signatures=function)
    return path


@functools.cache
def plain_files():
    """The plain model as `{relative path: bytes}`: saved once, since most are made from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = export(pathlib.Path(folder), net=Net())
        files = [file for file in path.rglob("*") if file.is_file()]
        return {str(file.relative_to(path)): file.read_bytes() for file in files}


def write(path, files):
    """Writes files of `{relative path: bytes}` into a directory; returns it."""
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@contextlib.contextmanager
def edited(path):
    """The SavedModel's message, to be changed in place."""
    file = path / GRAPH
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    yield proto.meta_graphs[0]
    file.write_bytes(proto.SerializeToString())


def cases():
    """A table of builders by name, and the decorator that enters one."""
    table = {}

    def case(name):
        def register(build):
            table[name] = build
            return build

        return register

    return table, case


def nodes_of(meta):
    for function in meta.graph_def.library.function:
        yield from function.node_def


def served_function(meta):
    """The function that answers the default signature."""
    (place, *_) = (output.name for output in meta.signature_def["serving_default"].outputs.values())
    (call,) = (node for node in meta.graph_def.node if place.startswith(f"{node.name}:"))
    library = meta.graph_def.library.function
    return next(f for f in library if f.signature.name == call.attr["f"].func.name)


def enlarge(path, old, new):
    """Puts another number in the place of a constant, and drops what tells the shapes."""
    changed = 0
    with edited(path) as meta:
        for node in nodes_of(meta):
            if node.op == "Const" and node.attr["dtype"].type == tf.int32.as_datatype_enum:
                values = tf.make_ndarray(node.attr["value"].tensor)
                if (values == old).any():
                    values = np.where(values == old, new, values).astype(np.int32)
                    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
                    changed += 1
            if "_output_shapes" in node.attr:
                del node.attr["_output_shapes"]
    assert changed
    return path


def changed(change):
    """A model whose message `change(meta)` changes."""

    def build(path, canary):
        export(path)
        with edited(path) as meta:
            change(meta)
        return path

    return build


def add_objects(meta, number, parents):
    """Plain objects, each the child of another one; returns them."""
    nodes = meta.object_graph_def.nodes
    for index in range(number):
        nodes.add().user_object.identifier = "_generic_user_object"
        parent = len(nodes) - 2 if index and parents == "chain" else 0
        nodes[parent].children.add(node_id=len(nodes) - 1, local_name=f"more{index}")
    return nodes[-number:]


def constant(nodes, name, value):
    """Adds a Const; returns its name."""
    tensor = tf.make_tensor_proto(value)
    node = nodes.add(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    node.attr["dtype"].type = tensor.dtype
    return name
