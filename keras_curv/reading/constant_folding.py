"""What TensorFlow computes of a graph while it merely loads it, and how large that may become.

To know the shape of `Reshape(x, s)` it asks for the value of s, and where s depends on nothing but
constants it runs what leads to s: a matrix product of constants, if the graph has one there. So a
few bytes can ask for any amount of memory before a single example is seen.

Here the graph is walked as data, calls written out, since a caller's constants are constants to
what it calls. Every tensor gets a bound of its entries, the product of those of its arguments
wherever nothing better is known: arithmetic on shapes has a handful of them, and passes. Tensors
that depend on the model's input are not computed, and get none. Variables count as constants, as
which they are frozen later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import (
    graph_pb2,
    node_def_pb2,
    tensor_shape_pb2,
)

from keras_curv.errors import InputError
from keras_curv.reading import limits
from keras_curv.reading.nodes import attribute, node_name

_REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "ArgMax", "ArgMin")
_SHAPED = ("Fill", "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt",
           "StatelessRandomUniform", "StatelessRandomUniformV2", "StatelessRandomNormalV2",
           "Conv2DBackpropInput")  # fmt: skip
_PADDED = ("Pad", "PadV2", "MirrorPad")
_RESIZED = ("ResizeBilinear", "ResizeNearestNeighbor")
_BATCHED = ("SpaceToBatchND", "BatchToSpaceND")
# Ops whose result is as large as arguments say, and which arguments.
SIZED = {
    "Range": (0, 1, 2),
    "UnsortedSegmentSum": (2,),
    **dict.fromkeys(_SHAPED, (0,)),
    **dict.fromkeys(("Tile", "BroadcastTo", "OneHot", *_PADDED, *_RESIZED), (1,)),
    **dict.fromkeys(_BATCHED, (1, 2)),
}
# Arguments whose values the op's shape depends on: what TensorFlow asks for.
ASKED = {
    **SIZED,
    **dict.fromkeys(("Split", "Concat"), (0,)),
    **dict.fromkeys(("Reshape", "ExpandDims", "Transpose", "ReverseV2", "TopKV2"), (1,)),
    **dict.fromkeys(_REDUCTIONS, (1,)),
    **dict.fromkeys(("Cumsum", "Cumprod", "Reverse"), (1,)),
    **dict.fromkeys(("Slice", "SplitV", "MaxPoolV2", "RestoreV2", "SaveV2"), (1, 2)),
    "BroadcastArgs": (0, 1),
    "StridedSlice": (1, 2, 3),
    "GatherV2": (2,),
    "ConcatV2": (-1,),
}  # fmt: skip
_MOVES = ("Identity", "Cast", "Pack", "ConcatV2", "StridedSlice", "Squeeze", "ExpandDims")
_FLAT = ("Identity", "Cast", "StridedSlice", "Slice", "ConcatV2")  # keep vectors vectors
_RAISED = ("ExpandDims", "OneHot", "Pack", "Bitcast", "UnsortedSegmentSum", "Where")
_RESHAPED = {**dict.fromkeys(_SHAPED, 0), "Reshape": 1, "BroadcastTo": 1}  # by which argument
_RANK = 254.0  # the most axes that TensorFlow knows
_LONGEST = 2**10  # entries of a constant that is looked at as a shape
_STEPS = 4 * limits.NODES


class Folded(NamedTuple):
    """What is known of a tensor.

    Attributes:
        entries: at most so many; None where it depends on the input, and is not computed.
        work: entries of all that is computed on the way to it.
        product: no less than the product of its numbers, each one larger; `inf`: not known.
        flat: it is a scalar or a vector, for sure.
        rank: it has at most so many axes.
        padded: no less than the product of the sums of its rows, each one larger.
    """

    entries: float | None
    work: float = 0.0
    product: float = math.inf
    flat: bool = False
    rank: float = 1.0
    padded: float = math.inf


_INPUT = Folded(None)


def refuse_large(definition: graph_pb2.GraphDef) -> None:
    """Refuses a graph of which too much would be computed while it is loaded.

    Args:
        definition: with its functions; none is defined twice, and none calls itself.

    Raises:
        InputError: names the op and the node.
    """
    walk = _Walk(definition)
    called = {walk.callee(node) for body in walk.functions.values() for node in body.node_def}
    walk.values(definition.node, {})
    for name in sorted(walk.functions, key=lambda name: name in called):
        if name not in walk.seen:
            walk.call(name, [])


class _Walk:
    """A walk through graphs, calls written out; adds up what is computed."""

    def __init__(self, definition: graph_pb2.GraphDef):
        self.functions = {f.signature.name: f for f in definition.library.function}
        self.seen: set[str] = set()
        self.steps, self.work = 0, 0.0

    def callee(self, node: node_def_pb2.NodeDef) -> str | None:
        """The function that a node calls."""
        name = node.op if node.op in self.functions else attribute(node, "f").func.name
        return name if name in self.functions else None

    def call(self, name: str, given: Sequence[Folded]) -> Folded:
        """What a function returns, as one; arguments that are not given depend on the input."""
        self.seen.add(name)
        function = self.functions[name]
        names = [argument.name for argument in function.signature.input_arg]
        given = [*given, *[_INPUT] * (len(names) - len(given))]
        values = self.values(function.node_def, dict(zip(names, given, strict=False)))
        returned = [values.get(node_name(tensor), _INPUT) for tensor in function.ret.values()]
        known = [value.entries for value in returned if value.entries is not None]
        return Folded(
            max(known, default=None),
            sum(value.work for value in returned),
            max((value.product for value in returned), default=math.inf),
            all(value.flat for value in returned),
            max((value.rank for value in returned), default=0.0),
        )

    def values(
        self, nodes: Sequence[node_def_pb2.NodeDef], values: dict[str, Folded]
    ) -> dict[str, Folded]:
        """Of all nodes by name, and `values` with them."""
        by_name = {node.name: node for node in nodes}
        begun: set[str] = set()
        for first in by_name:
            stack = [first]
            while stack:
                name = stack[-1]
                node = by_name[name]
                inputs = [node_name(i) for i in node.input if not i.startswith("^")]
                missing = [i for i in inputs if i in by_name and i not in values]
                if missing and name not in begun and name not in values:
                    begun.add(name)
                    stack += missing
                    continue
                stack.pop()
                if name not in values:
                    # Of what is not there, or depends on itself, TensorFlow computes nothing.
                    values[name] = self._visit(node, [values.get(i, _INPUT) for i in inputs])
        return values

    def _visit(self, node: node_def_pb2.NodeDef, given: list[Folded]) -> Folded:
        self.steps += 1
        limits.require_at_most(self.steps, _STEPS, "its graph, in nodes with calls written out,")
        if callee := self.callee(node):
            return self.call(callee, given)
        places = ASKED.get(node.op, ())
        asked = [given[place] for place in places if _is_there(place, given)]
        self.work += sum(value.work for value in asked)
        if not self.work <= limits.TOTAL_ENTRIES:
            raise InputError(
                f"op {node.op} (node {node.name!r}) depends on a shape or an axis that TensorFlow "
                f"would compute while it loads, and that takes up to {self.work:.3g} entries, at "
                f"most {limits.TOTAL_ENTRIES}"
            )
        return _value(node, given)


def _value(node: node_def_pb2.NodeDef, given: list[Folded]) -> Folded:
    """Of a node that calls nothing."""
    match node.op:
        case "Const":
            shape = attribute(node, "value").tensor.tensor_shape
            entries, rank = _entries(shape), len(shape.dim)
            return Folded(entries, entries, _product(node), rank <= 1, rank, _padded(node))
        case "VarHandleOp":
            shape = attribute(node, "shape").shape
            return Folded(_entries(shape), rank=len(shape.dim))
        case "Placeholder":
            return _INPUT
        case "Shape" | "ShapeN" | "Size" | "Rank":
            # Known where the shape of the argument is, whether that is computed or not.
            work = _RANK + sum(value.work for value in given if value.entries is not None)
            product = _RANK if node.op == "Rank" else math.inf
            return Folded(_RANK if node.op.startswith("Shape") else 1.0, work, product, True)
    return _computed(node, given)


def _computed(node: node_def_pb2.NodeDef, given: list[Folded]) -> Folded:
    """Of an op that computes from its arguments alone."""
    work = sum(value.work for value in given)
    if any(not _is_there(place, given) for place in ASKED.get(node.op, ())):
        return Folded(None, work)  # TensorFlow refuses an op without its arguments
    product = math.prod(value.product for value in given) if node.op in _MOVES else math.inf
    places = SIZED.get(node.op, ())
    size = math.prod(given[place].product for place in places)
    if node.op in _PADDED:
        size = min(size, given[1].padded)
    if limits.REPEATED_ENTRIES < size < math.inf:
        raise InputError(
            f"op {node.op} (node {node.name!r}) asks for an array of up to {size:.3g} entries, at "
            f"most {limits.REPEATED_ENTRIES}"
        )
    if any(value.entries is None for value in given):
        return Folded(None, work)
    parts = [value.entries for place, value in enumerate(given) if place not in places]
    entries = math.prod(parts) * size
    flat = node.op in _FLAT and all(value.flat for value in given)
    flat = flat and not attribute(node, "new_axis_mask").i
    match node.op:
        case "Pack" | "Concat" | "ConcatV2" | "AddN":
            entries = max(entries, sum(parts))
        case "StridedSlice" if flat:
            entries = 1.0 if attribute(node, "shrink_axis_mask").i else parts[0]
        case "Reshape":
            entries = max(entries, given[1].product)  # of none, it makes 2^29 × 0
        case "Where" if given:
            entries *= max(1.0, given[0].rank)
        case "Bitcast":
            entries *= 16.0
        case "Einsum":
            entries = math.inf  # it may repeat an axis
    entries *= math.prod(1.0 + abs(by) for by in attribute(node, "explicit_paddings").list.i)
    rank = _rank(node, given)
    if rank > _RANK / 2.0:
        entries = math.inf  # TensorFlow would end the process where it computes too many axes
    return Folded(entries, work + entries, product, flat, rank)


def _rank(node: node_def_pb2.NodeDef, given: list[Folded]) -> float:
    """A bound of the axes of what an op computes."""
    ranks = [value.rank for value in given]
    if node.op in _RESHAPED:
        return given[_RESHAPED[node.op]].entries
    if node.op in ("Gather", "GatherV2", "GatherNd"):
        return sum(ranks)
    mask = attribute(node, "new_axis_mask").i
    return max([1.0, *ranks]) + (node.op in _RAISED) + (mask % 2**64).bit_count()


def _entries(shape: tensor_shape_pb2.TensorShapeProto) -> float:
    return math.prod(max(float(dim.size), 1.0) for dim in shape.dim)


def _product(node: node_def_pb2.NodeDef) -> float:
    """Of a constant's numbers: see `Folded`; also of the inverse of fractions, for small steps."""
    if (values := _numbers(node)) is None:
        return math.inf
    with np.errstate(all="ignore"):
        steps = np.where((values > 0.0) & (values < 1.0), 1.0 / values, values)
        return float(np.prod(1.0 + steps))


def _padded(node: node_def_pb2.NodeDef) -> float:
    """By how much a constant can make an array larger, as its paddings: one row for each axis."""
    values = _numbers(node)
    if values is None or values.ndim != 2:
        return math.inf
    with np.errstate(all="ignore"):
        return float(np.prod(1.0 + values.sum(axis=1)))


def _numbers(node: node_def_pb2.NodeDef) -> np.ndarray | None:
    """Of a constant, without their signs; None: it has too many, or none."""
    tensor = attribute(node, "value").tensor
    if _entries(tensor.tensor_shape) > _LONGEST:
        return None
    try:
        return np.abs(tf.make_ndarray(tensor).astype(np.float64))
    except (TypeError, ValueError, ArithmeticError):  # strings, or what TensorFlow refuses
        return None


def _is_there(place: int, given: Sequence[Folded]) -> bool:
    return -len(given) <= place < len(given)
