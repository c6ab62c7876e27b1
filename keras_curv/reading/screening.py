"""`saved_model.pb`, parsed as data and screened before anything is loaded.

1. The file is no larger than it may be, and neither are the tensors and shapes it writes down,
   nor the graph that it becomes when all calls are written out (`limits.py`).
2. Every op of every graph and function is on the list of `allow_list.py`.
3. The object graph holds plain variables, constants and functions only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import graph_pb2, node_def_pb2, tensor_pb2, tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from keras_curv.errors import InputError
from keras_curv.reading import allow_list, limits

_PLAIN_OBJECTS = {
    "user_object",
    "variable",
    "constant",
    "function",
    "bare_concrete_function",
    "captured_tensor",
}
_PLAIN_CLASSES = {"", "tf.TrackableConstant"}  # other registered classes rebuild themselves
# Ops that make an array as large as an argument says, and which argument. TensorFlow computes
# what a shape depends on while it loads.
_SIZED = {
    "Fill": (0,),
    "Range": (0, 1, 2),
    "Tile": (1,),
    "BroadcastTo": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "MirrorPad": (1,),
    "RandomUniform": (0,),
    "RandomStandardNormal": (0,),
    "TruncatedNormal": (0,),
    "RandomUniformInt": (0,),
    "StatelessRandomUniform": (0,),
    "StatelessRandomUniformV2": (0,),
    "StatelessRandomNormalV2": (0,),
    "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,),
    "Conv2DBackpropInput": (0,),
    "UnsortedSegmentSum": (2,),
    "SpaceToBatchND": (1, 2),
    "BatchToSpaceND": (1, 2),
}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
_MOVES = {"Const", "Identity", "Cast", "Pack", "ConcatV2", "StridedSlice", "Squeeze", "ExpandDims"}


def parse(content: bytes, source: str) -> meta_graph_pb2.MetaGraphDef:
    """The one meta graph of a SavedModel's message.

    Raises:
        InputError: it does not parse, or holds none, or several.
    """
    limits.require_at_most(len(content), limits.GRAPH_BYTES, f"{source}, in bytes,")
    proto = saved_model_pb2.SavedModel()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise InputError(f"{source} is not a SavedModel, or is cut off: {error}") from error
    if len(proto.meta_graphs) != 1:
        raise InputError(
            f"{source} has {len(proto.meta_graphs)} meta graphs; one, tagged 'serve', is supported"
        )
    return proto.meta_graphs[0]


def refuse_unsafe(meta: meta_graph_pb2.MetaGraphDef, source: str) -> None:
    """Refuses what loading must not see; nothing is run here.

    Args:
        meta: of the SavedModel.
        source: for messages.

    Raises:
        InputError: names the object, op, node or function.
    """
    if not meta.object_graph_def.nodes:
        raise InputError(
            f"{source} is a TensorFlow 1 SavedModel; export the model with TensorFlow 2"
        )
    try:
        _refuse_large(meta)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    for node in meta.object_graph_def.nodes:
        kind = node.WhichOneof("kind")
        plain = kind in _PLAIN_OBJECTS and node.registered_name in _PLAIN_CLASSES
        if not plain or node.saveable_objects or node.registered_saver:
            raise InputError(
                f"{source} holds an object of kind {node.registered_name or kind!r} with code of "
                "its own, which loading would run; only variables, constants and functions are "
                "allowed"
            )
    if meta.asset_file_def:
        raise InputError(f"{source} refers to asset files; they are not allowed")
    exposed = meta.object_graph_def.concrete_functions
    allow_list.refuse_unsafe_ops(meta.graph_def, meta.saver_def, exposed, source)


def _refuse_large(meta: meta_graph_pb2.MetaGraphDef) -> None:
    definition, objects = meta.graph_def, meta.object_graph_def
    written = len(definition.node) + sum(len(f.node_def) for f in definition.library.function)
    limits.require_at_most(written, limits.NODES, "its graph, in nodes,")
    limits.require_at_most(len(objects.nodes), limits.NODES, "its object graph")
    repeated = 0
    for message in _parts(meta):
        if isinstance(message, tensor_shape_pb2.TensorShapeProto):
            limits.require_shape(dim.size for dim in message.dim if dim.size > 0)
        elif isinstance(message, tensor_pb2.TensorProto):
            entries = math.prod(max(dim.size, 0) for dim in message.tensor_shape.dim)
            repeated += entries if not message.tensor_content else 0
    limits.require_at_most(repeated, limits.REPEATED_ENTRIES, "its constants, in entries,")
    _refuse_long_calls(definition)
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        _refuse_sizes(nodes)
        _refuse_joins(nodes)


def _parts(message: Message) -> Iterator[Message]:
    """The message and all messages in it."""
    stack = [message]
    while stack:
        message = stack.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if not field.is_repeated:
                stack.append(value)
            elif not field.message_type.GetOptions().map_entry:
                stack += value
            elif field.message_type.fields_by_name["value"].message_type is not None:
                stack += [value[key] for key in value]


def _refuse_long_calls(definition: graph_pb2.GraphDef) -> None:
    """Refuses functions that call themselves, or that become too large when written out."""
    functions = {function.signature.name: function for function in definition.library.function}
    sizes: dict[str, tuple[int, int]] = {}  # nodes when written out, depth of calls
    for first in functions:
        stack, open_ = [first], set()
        while stack:
            name = stack[-1]
            if name in sizes:
                stack.pop()
                continue
            calls = [
                called
                for node in functions[name].node_def
                for called in allow_list.called(node)
                if called in functions
            ]
            missing = [called for called in calls if called not in sizes]
            if name in open_ and missing:
                raise InputError(f"function {name!r} calls itself")
            if missing:
                open_.add(name)
                stack += missing
                continue
            nodes = len(functions[name].node_def) + sum(sizes[called][0] for called in calls)
            depth = 1 + max((sizes[called][1] for called in calls), default=0)
            what = f"function {name!r} with what it calls"
            limits.require_at_most(nodes, limits.NODES, f"{what}, in nodes,")
            limits.require_at_most(depth, limits.CALL_DEPTH, f"{what}, in depth,")
            sizes[name] = nodes, depth
    calls = [c for node in definition.node for c in allow_list.called(node) if c in sizes]
    total = len(definition.node) + sum(sizes[called][0] for called in calls)
    limits.require_at_most(total, 4 * limits.NODES, "its graph with what it calls, in nodes,")


def _refuse_joins(nodes: list[node_def_pb2.NodeDef]) -> None:
    """Refuses constants that are joined to themselves until they are too large."""
    by_name = {node.name: node for node in nodes}
    entries: dict[str, int] = {}
    for first in by_name:
        stack, open_ = [first], set()
        while stack:
            name = stack[-1]
            node = by_name[name]
            inputs = [tensor.split(":")[0].lstrip("^") for tensor in node.input]
            missing = [i for i in inputs if i in by_name and i not in entries and i not in open_]
            if missing and name not in open_:
                open_.add(name)
                stack += missing
                continue
            stack.pop()
            parts = [entries.get(i, 1) for i in inputs]
            if node.op == "Const":
                dims = node.attr["value"].tensor.tensor_shape.dim
                parts = [math.prod(max(dim.size, 0) for dim in dims)]
            joined = node.op in ("ConcatV2", "Concat", "Pack", "AddN")
            entries[name] = sum(parts) if joined else max(parts, default=1)
            if entries[name] > limits.TENSOR_ENTRIES:
                raise InputError(
                    f"op {node.op} (node {node.name!r}) joins constants to {entries[name]} "
                    f"entries, at most {limits.TENSOR_ENTRIES}"
                )


def _refuse_sizes(nodes: list[node_def_pb2.NodeDef]) -> None:
    """Refuses sizes that are too large, or computed from anything but constants and shapes."""
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if node.op not in _SIZED:
            continue
        wanted = [node.input[place] for place in _SIZED[node.op] if place < len(node.input)]
        size, seen = 1.0, set()
        while wanted:
            name = wanted.pop().split(":")[0].lstrip("^")
            source = by_name.get(name)
            if name in seen or (source is not None and source.op in _SHAPES):
                continue
            seen.add(name)
            if source is None or source.op not in _MOVES:
                raise InputError(
                    f"op {node.op} (node {node.name!r}) has a size that is computed, by "
                    f"{'the caller' if source is None else source.op}; use constants and shapes"
                )
            wanted += source.input
            if source.op == "Const":
                size = max(size, size * _largest(source))
        if not size <= limits.REPEATED_ENTRIES:
            raise InputError(
                f"op {node.op} (node {node.name!r}) asks for an array of up to {size:.3g} entries, "
                f"at most {limits.REPEATED_ENTRIES}"
            )


def _largest(node: node_def_pb2.NodeDef) -> float:
    """The most entries that an array can have whose size is made of this constant."""
    try:
        values = np.abs(np.ravel(tf.make_ndarray(node.attr["value"].tensor)).astype(np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"node {node.name!r} is not a constant: {error}") from error
    with np.errstate(over="ignore"):
        return float(np.prod(np.maximum(values, 1.0)))
