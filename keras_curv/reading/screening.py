"""`saved_model.pb`, parsed as data and screened before anything is loaded.

1. The file is no larger than it may be, and neither are the tensors and shapes it writes down,
   nor anything that it lists, nor the graph that it becomes when all calls are written out
   (`limits.py`), nor what TensorFlow computes of it while it loads (`constant_folding.py`).
2. Every op of every graph and function is on the list of `allow_list.py`.
3. The object graph holds plain variables, constants and functions only, and no function is another
   one depending on who calls it, or where.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import (
    attr_value_pb2,
    function_pb2,
    graph_pb2,
    node_def_pb2,
    tensor_pb2,
    tensor_shape_pb2,
)
from tensorflow.core.protobuf import (
    meta_graph_pb2,
    saved_model_pb2,
    saved_object_graph_pb2,
    struct_pb2,
)
from tensorflow.python.framework import op_def_registry

from keras_curv.errors import InputError
from keras_curv.reading import allow_list, constant_folding, limits

_PLAIN_OBJECTS = {
    "user_object",
    "variable",
    "constant",
    "function",
    "bare_concrete_function",
    "captured_tensor",
}
_COSTLY = {FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.CPPTYPE_STRING}
_PLAIN_CLASSES = {"", "tf.TrackableConstant"}  # other registered classes rebuild themselves


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
    with _naming(source):
        _refuse_large(meta)
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
    with _naming(source):
        _refuse_variants(meta.graph_def)
    exposed = meta.object_graph_def.concrete_functions
    allow_list.refuse_unsafe_ops(meta.graph_def, meta.saver_def, exposed, source)
    with _naming(source):
        constant_folding.refuse_large(meta.graph_def)


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    """Puts the source before what is refused."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _refuse_variants(definition: graph_pb2.GraphDef) -> None:
    """Refuses functions that are not the same wherever they are called."""
    for function in definition.library.function:
        name, signature = function.signature.name, function.signature
        arguments = [*signature.input_arg, *signature.output_arg]
        listed = any(argument.number_attr or argument.type_list_attr for argument in arguments)
        if signature.attr or listed:
            raise InputError(f"function {name!r} takes attributes from who calls it")
        if "api_implements" in function.attr:
            # TensorFlow may run another one that says the same, by the device.
            raise InputError(f"function {name!r} is one of several implementations")


def _refuse_large(meta: meta_graph_pb2.MetaGraphDef) -> None:
    repeated = specified = 0
    for message in _parts(meta):
        if isinstance(message, tensor_shape_pb2.TensorShapeProto):
            limits.require_at_most(len(message.dim), limits.AXES, "a shape, in axes,")
            limits.require_shape(dim.size for dim in message.dim if dim.size > 0)
        elif isinstance(message, tensor_pb2.TensorProto):
            repeated += _entries(message) if not message.tensor_content else 0
        elif isinstance(message, struct_pb2.StructuredValue):
            specified += 1
        elif isinstance(message, attr_value_pb2.AttrValue) and message.placeholder:
            raise InputError(f"a function takes {message.placeholder!r} from who calls it")
    limits.require_at_most(specified, limits.NODES, "what its functions take and give, in parts,")
    # Each object that names a constant gets an array of its own.
    constants = {node.name: node.attr for node in meta.graph_def.node if "value" in node.attr}
    for node in meta.object_graph_def.nodes:
        if node.constant.operation in constants:
            repeated += _entries(constants[node.constant.operation]["value"].tensor)
    limits.require_at_most(repeated, limits.REPEATED_ENTRIES, "its constants, in entries,")
    _refuse_large_graph(meta.graph_def)
    _refuse_deep_objects(meta.object_graph_def)


def _entries(tensor: tensor_pb2.TensorProto) -> int:
    return math.prod(max(dim.size, 0) for dim in tensor.tensor_shape.dim)


def _refuse_large_graph(definition: graph_pb2.GraphDef) -> None:
    functions = definition.library.function
    limits.require_at_most(len(functions), limits.FUNCTIONS, "its library, in functions,")
    nodes = len(definition.node) + sum(len(function.node_def) for function in functions)
    limits.require_at_most(nodes, limits.NODES, "its graph, in nodes,")
    main, own = sum(map(_size, definition.node)), [_own_size(function) for function in functions]
    written = main + sum(own)
    limits.require_at_most(written, 4 * limits.NODES, "its graph, in nodes and what they list,")
    _refuse_long_calls(definition, main, own)


def _refuse_deep_objects(objects: saved_object_graph_pb2.SavedObjectGraph) -> None:
    """Refuses objects that are too many, or far from the first: each is loaded by its path."""
    nodes = objects.nodes
    edges = sum(len(n.children) + len(n.dependencies) + len(n.slot_variables) for n in nodes)
    limits.require_at_most(len(nodes) + edges, limits.NODES, "its object graph, with children,")
    depths = {0: 0}
    found = [0]
    for index in found:
        limits.require_at_most(depths[index], limits.OBJECT_DEPTH, "its object graph, in depth,")
        for child in nodes[index].children:
            if not 0 <= child.node_id < len(nodes):
                raise InputError(f"object {index} has a child {child.node_id}, which is not there")
            if child.node_id not in depths:
                depths[child.node_id] = depths[index] + 1
                found.append(child.node_id)


def _parts(message: Message) -> Iterator[Message]:
    """The message and all messages in it; InputError where it lists too much."""
    stack, listed, numbers = [message], 0, 0
    while stack:
        message = stack.pop()
        yield message
        in_tensor = isinstance(message, tensor_pb2.TensorProto)
        for field, value in message.ListFields():
            if field.is_repeated:
                number = in_tensor and field.cpp_type not in _COSTLY
                numbers += len(value) if number else 0
                listed += 0 if number else len(value)
                limits.require_at_most(listed, limits.FIELDS, "saved_model.pb, in what it lists,")
                limits.require_at_most(
                    numbers, limits.REPEATED_ENTRIES, "its constants, in numbers listed,"
                )
            if field.message_type is None:
                continue
            if not field.is_repeated:
                stack.append(value)
            elif not field.message_type.GetOptions().map_entry:
                stack += value
            elif field.message_type.fields_by_name["value"].message_type is not None:
                stack += [value[key] for key in value]


def _size(node: node_def_pb2.NodeDef) -> int:
    """How much a node adds to a graph: itself, what it lists, and what it says that it lists."""
    lists = [value.list for value in node.attr.values()]
    listed = sum(len(each.type) + len(each.func) + len(each.shape) for each in lists)
    size = 1 + len(node.input) + listed
    definition = op_def_registry.get(node.op)
    if definition is None:
        return size
    arguments = [*definition.input_arg, *definition.output_arg]
    counts = [argument.number_attr for argument in arguments if argument.number_attr]
    return size + sum(max(0, node.attr[count].i) for count in counts if count in node.attr)


def _own_size(function: function_pb2.FunctionDef) -> int:
    """How much a function adds to a graph, without what it calls."""
    arguments = len(function.signature.input_arg) + len(function.signature.output_arg)
    return arguments + sum(map(_size, function.node_def))


def _refuse_long_calls(definition: graph_pb2.GraphDef, main: int, own: list[int]) -> None:
    """Refuses functions that call themselves, or that become too large when written out.

    Args:
        main, own: sizes of the main graph and of each function, without what they call.
    """
    functions = {function.signature.name: function for function in definition.library.function}
    if len(functions) < len(definition.library.function):
        raise InputError("a function is defined twice")
    alone = dict(zip(functions, own, strict=True))
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
            nodes = alone[name] + sum(sizes[called][0] for called in calls)
            depth = 1 + max((sizes[called][1] for called in calls), default=0)
            what = f"function {name!r} with what it calls"
            limits.require_at_most(nodes, limits.NODES, f"{what}, in nodes,")
            limits.require_at_most(depth, limits.CALL_DEPTH, f"{what}, in depth,")
            sizes[name] = nodes, depth
    calls = [c for node in definition.node for c in allow_list.called(node) if c in sizes]
    total = main + sum(sizes[called][0] for called in calls)
    limits.require_at_most(total, 4 * limits.NODES, "its graph with what it calls, in nodes,")
