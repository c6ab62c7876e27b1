"""The graph behind one tensor, written out: calls become what they call, variables their values.

Graph and functions are data here; TensorFlow sees none of them. They become a flat graph of
ops, each with the attributes that its definition has, and no others: `graph.py` reads it, and a
session that is given the same graph can do no more than what was read. Only what the tensor is
computed from is looked at, and no more of it than `limits.py` allows.

`calls.py` says which calls can be replaced by what they call.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from keras_curv.errors import InputError
from keras_curv.saved_model import limits
from keras_curv.saved_model.graph.calls import (
    CALLS,
    Body,
    count_of,
    op_definition,
    require_arguments,
    require_noted,
    require_plain_call,
)
from keras_curv.saved_model.graph.cut import Cut
from keras_curv.saved_model.graph.nodes import attribute, data_inputs

# Ops that may stand in a function that XLA compiles: in its kernels, a bilinear resize by 3 is
# another function. Keras has it compile convolutions in groups.
_COMPILED = {
    *("Conv2D", "ExpandDims", "Squeeze", "SpaceToBatchND", "BatchToSpaceND"),
    *("Const", "Identity", "ReadVariableOp", *CALLS),
}
_OF_VARIABLES = {"ReadVariableOp", "DisableCopyOnRead", "VarIsInitializedOp"}
_STEPS = 2**20  # from a tensor to where it comes from


@dataclasses.dataclass(eq=False)
class Frame:
    """One call of a function, or the main graph."""

    body: Body  # of the function
    # argument → tensor of the caller
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    caller: Frame | None = None  # None for the main graph
    depth: int = 0  # how many calls lie between it and the main graph
    # what TensorFlow puts before the names of its nodes where it writes the call out
    prefix: str = ""
    compiled: bool = False  # whether it, or what calls it, is compiled by XLA
    # those that are made in it, by node
    calls: dict[str, Frame] = dataclasses.field(default_factory=dict)
    # node → its name in the flat graph
    written: dict[str, str] = dataclasses.field(default_factory=dict)


class Inliner:
    """Writes out what lies behind tensors of one main graph.

    Args:
        definition: the main graph, and its functions.
        variable: gives the value of a variable, of the node that is its handle, and of the type as
            which it is read.
        cuts: tensors that are written as placeholders, and what they are computed from is not.

    Attributes:
        flat: the graph without calls and variables, as far as it has been written.
        claims: tensors of it, each with a shape that the model says it has.

    Example:
        >>> inner = tf.function(lambda x: tf.tanh(x))
        >>> graph = tf.function(lambda x: -inner(x)).get_concrete_function(tf.ones(2)).graph
        >>> inliner = Inliner(graph.as_graph_def())
        >>> inliner.write("Neg"), sorted(node.op for node in inliner.flat.node)
        ('Neg', ['Identity', 'Neg', 'Placeholder', 'Tanh'])
    """

    def __init__(
        self,
        definition: graph_pb2.GraphDef,
        variable: Callable[[NodeDef, int], np.ndarray] | None = None,
        cuts: Iterable[Cut] = (),
    ):
        self.flat = graph_pb2.GraphDef()
        self.claims: list[tuple[str, TensorShapeProto]] = []
        self._library = {f.signature.name: f for f in definition.library.function}
        if len(self._library) < len(definition.library.function):
            raise InputError("a function is defined twice")
        self._main = Frame(Body(definition.node))
        self._bodies: dict[str, Body] = {}
        self._variable, self._cuts = variable, {cut.tensor: cut for cut in cuts}
        self._values: dict[tuple[str, int], str] = {}
        self._names: set[str] = set()
        self._places: set[str] = set()  # of cuts
        self._spent: collections.Counter[str] = collections.Counter()

    def write(self, tensor: str) -> str:
        """Writes what a tensor of the main graph is computed from; returns the tensor.

        Raises:
            InputError: it is too large, or says that it is to be computed otherwise.
            LookupError, TypeError, ValueError: it is not a graph that TensorFlow takes.
        """
        waiting: list[tuple[Frame, NodeDef, NodeDef]] = []
        last = self._written(self._main, tensor, waiting)
        self._write_inputs(waiting)
        return last

    def write_idle(self) -> None:
        """Writes the other nodes of the functions that are called so far, and of what these call.

        Nobody asks for them, but TensorFlow loads a function only if it takes all of its nodes.

        Raises:
            InputError, LookupError, TypeError, ValueError: as of `write`.
        """
        waiting: list[tuple[Frame, NodeDef, NodeDef]] = []
        frames = [*self._main.calls.values()]
        for frame in frames:  # grows
            for node in frame.body.nodes.values():
                inner = self.called(frame, node) if node.op in CALLS else None
                if inner is not None:
                    frames.append(inner)
                elif node.op not in _OF_VARIABLES:
                    self.write_node(frame, node, waiting)
        self._write_inputs(waiting)

    def _write_inputs(self, waiting: list[tuple[Frame, NodeDef, NodeDef]]) -> None:
        """Writes what nodes take, and what that is computed from."""
        while waiting:
            frame, node, flat = waiting.pop()
            flat.input.extend(self._written(frame, given, waiting) for given in data_inputs(node))

    def spend(self, number: int, limit: int, what: str) -> None:
        """Counts so many more of something, of which all together have a limit."""
        self._spent[what] += number
        limits.require_at_most(self._spent[what], limit, what)

    def _written(self, frame: Frame, tensor: str, waiting: list) -> str:
        """Returns the tensor of the flat graph; leaves what its node takes to be written."""
        shapes: list[TensorShapeProto] = []
        frame, node, place = self._source(frame, tensor, shapes)
        found = f"{frame.prefix}{node.name}" + (f":{place}" if place else "")
        if found in self._cuts:
            found = self._written_cut(self._cuts[found])
        elif node.op == "ReadVariableOp":
            found = self.value(frame, node, waiting)
        else:
            self.write_node(frame, node, waiting)
        self.claims += [(found, shape) for shape in shapes]
        return found

    def _written_cut(self, cut: Cut) -> str:
        """Writes a placeholder for the tensor of the cut, once; returns its name."""
        if cut.tensor not in self._places:
            self._places.add(cut.tensor)
            place = self.new(cut.node, "Placeholder")
            place.attr["dtype"].type = cut.dtype
            place.attr["shape"].shape.CopyFrom(cut.shape)
        return cut.node

    def write_node(self, frame: Frame, node: NodeDef, waiting: list) -> str:
        """Writes a node without its inputs, once; returns its name in the flat graph."""
        if node.name not in frame.written:
            flat = self.copied(node, frame.prefix)
            frame.written[node.name] = flat.name
            waiting.append((frame, node, flat))
        return frame.written[node.name]

    def _source(
        self, frame: Frame, tensor: str, shapes: list[TensorShapeProto]
    ) -> tuple[Frame, NodeDef, int]:
        """Follows a tensor through calls and arguments to an output of a node.

        All that is said of its shape on the way goes to `shapes`.
        """
        while True:
            self.spend(1, _STEPS, "the graph, in steps through its calls,")
            name, *output = tensor.split(":")
            if name in frame.given and frame.caller is not None:
                shapes += _said(frame.body.arguments[name].attr.get("_output_shapes"), 0)
                frame, tensor = frame.caller, frame.given[name]
                continue
            node = frame.body.nodes[name]
            self.require_readable(frame, node)
            place = _place(node, output, in_main=frame.caller is None)
            shapes += _said(node.attr.get("_output_shapes"), place)
            inner = self.called(frame, node) if node.op in CALLS else None
            if inner is None:
                return frame, node, place
            frame, tensor = inner, inner.body.returns[place]

    def require_readable(self, frame: Frame, node: NodeDef) -> None:
        """Refuses an op that is compiled by XLA, or is a function."""
        if frame.compiled and node.op not in _COMPILED:
            raise InputError(
                f"op {node.op} (node {node.name!r}) is compiled by XLA, where it may be something "
                "else; export the model without jit_compile"
            )
        if node.op in self._library:
            raise InputError(f"op {node.op} (node {node.name!r}) is a function of the model")

    def called(self, frame: Frame, node: NodeDef) -> Frame | None:
        """Returns the call that a node makes."""
        if node.name in frame.calls:
            return frame.calls[node.name]
        require_plain_call(node)
        name = node.attr["f"].func.name
        if name not in self._library:
            raise InputError(f"node {node.name!r} calls {name!r}, which is not there")
        if name not in self._bodies:
            self._bodies[name] = Body.of(self._library[name])
        body, depth = self._bodies[name], frame.depth + 1
        limits.require_at_most(depth, limits.CALL_DEPTH, f"function {name!r}, in depth of calls,")
        self.spend(1, limits.FUNCTIONS, "the graph, in calls written out,")
        what = "what its functions are called with, in arguments,"
        self.spend(len(body.arguments), limits.NODES, what)
        given = dict(zip(body.arguments, data_inputs(node), strict=True))
        compiled = frame.compiled or body.compiled or attribute(node, "_XlaMustCompile").b
        if body.apart and (not compiled or len(body.returns) > 1):
            # TensorFlow computes it from the shapes that notes say its arguments have, and may take
            # one output for another.
            raise InputError(f"function {name!r} is not to be inlined, which may change what it is")
        prefix = f"{frame.prefix}{node.name}/"
        limits.require_at_most(len(prefix), limits.KEY_BYTES, "the name of a call, in letters,")
        frame.calls[node.name] = Frame(body, given, frame, depth, prefix, compiled)
        return frame.calls[node.name]

    def value(self, frame: Frame, node: NodeDef, waiting: list) -> str:
        """Returns the constant that a variable is where it is read; writes each once."""
        (given,) = data_inputs(node)
        frame, handle, _ = self._source(frame, given, [])
        if frame.caller is not None or self._variable is None:
            raise InputError(f"op {handle.op} (node {handle.name!r}) is no variable of the model")
        require_noted(node)
        key = handle.name, node.attr["dtype"].type
        if key not in self._values:
            array = self._variable(handle, node.attr["dtype"].type)
            self.spend(array.size, limits.TOTAL_ENTRIES, "its variables, in entries,")
            constant = self.new(handle.name, "Const")
            tensor = constant.attr["value"].tensor
            tensor.dtype = tf.as_dtype(array.dtype).as_datatype_enum
            constant.attr["dtype"].type = tensor.dtype
            for size in array.shape:
                tensor.tensor_shape.dim.add(size=size)
            tensor.tensor_content = array.tobytes()
            self._values[key] = constant.name
        return self._values[key]

    def new(self, name: str, op: str) -> NodeDef:
        """Adds a node to the flat graph, named as TensorFlow names it."""
        limits.require_at_most(len(self._names) + 1, limits.NODES, "the graph with its calls")
        limits.require_at_most(len(name), limits.KEY_BYTES, "the name of a node, in letters,")
        if name in self._names:
            raise InputError(f"two nodes would be named {name!r} once calls are written out")
        self._names.add(name)
        return self.flat.node.add(name=name, op=op)

    def copied(self, node: NodeDef, prefix: str) -> NodeDef:
        """Adds the node without its inputs, with all attributes of its op."""
        self.spend(node.ByteSize(), limits.GRAPH_BYTES, "the graph with its calls, in bytes,")
        definition = op_definition(node)
        require_noted(node)
        require_arguments(node, definition)
        copy = self.new(prefix + node.name, node.op)
        for known in definition.attr:
            value = node.attr[known.name] if known.name in node.attr else known.default_value
            if value.placeholder:
                raise InputError(f"a function takes {value.placeholder!r} from who calls it")
            if known.name not in node.attr and not known.HasField("default_value"):
                raise InputError(f"node {node.name!r} has no attribute {known.name!r}")
            self._require_small(value)
            copy.attr[known.name].CopyFrom(value)
        return copy

    def _require_small(self, value: attr_value_pb2.AttrValue) -> None:
        for shape in (value.shape, value.tensor.tensor_shape):
            limits.require_at_most(len(shape.dim), limits.AXES, "a shape, in axes,")
            limits.require_shape(dim.size for dim in shape.dim if dim.size > 0)
        if not value.tensor.tensor_content:
            sizes = (max(dim.size, 0) for dim in value.tensor.tensor_shape.dim)
            repeated = math.prod(sizes) if value.HasField("tensor") else 0
            self.spend(repeated, limits.REPEATED_ENTRIES, "its constants, in entries,")


def _said(note: attr_value_pb2.AttrValue | None, place: int) -> Sequence[TensorShapeProto]:
    """Returns what a note says of the shape of an output; nothing where there is none."""
    if note is None:
        return ()
    if place >= len(note.list.shape):
        raise InputError("a note on the shapes of outputs leaves one out")
    return (note.list.shape[place],)


def _place(node: NodeDef, output: list[str], *, in_main: bool) -> int:
    """Returns the number of the output that is meant by what follows the node's name."""
    if in_main:
        (number,) = output or ["0"]
        return _number(node, number)
    name, number = output if len(output) == 2 else (*output, "0")
    start = 0
    for argument in op_definition(node).output_arg:
        count = count_of(node, argument)
        if argument.name == name and _number(node, number) < count:
            return start + int(number)
        start += count
    raise InputError(f"node {node.name!r} has no output {name!r}")


def _number(node: NodeDef, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"node {node.name!r} has no output {text!r}")
    return int(text)
