"""Tensors that are looked up by integers of the input: tables of categories, bins and flags.

Whatever a graph computes of one integer that is 0, …, n − 1 is a table of n rows, and its row k is
`eₖᵀ T`, linear in the one-hot vector of k. So such an input is read as the one-hot vectors of its
integers. Each op on them alone is done here once for each category, as it stands and exactly; where
the result meets floats, the table is a kernel. No server multiplies by it, so what a product with
it is charged is more than it needs, and sound.

How many categories there are is what the graph has rows for: those of the smallest table, or the
depth of the one-hot vectors. An integer beyond them is refused in examples, where some devices fail
and others answer zeros.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import patterns
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules import registry
from keras_curv.saved_model.graph.nodes import (
    arguments_of,
    attribute,
    constant,
    data_inputs,
    node_name,
)
from keras_curv.saved_model.limits import NODES, require_at_most, require_shape

_MOST = 2**16  # categories
WHOLE = 2**24  # up to which float32 has all integers
_MOVES = ("Reshape", "Squeeze", "ExpandDims", "Transpose", "StridedSlice", "Shape")
_COMPARED: dict[str, Callable] = {
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "SelectV2": np.where,
    "Minimum": np.minimum,
    "Maximum": np.maximum,
}
_COMPUTED: dict[str, Callable] = {
    **{"Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply}
}
_ENCODE = ("GatherV2", "OneHot", "DenseBincount")
OPS = frozenset([*_COMPARED, *_COMPUTED, *_MOVES, *patterns.HANDS_ON, "Cast", *_ENCODE])


def alone(nodes: Iterable[NodeDef], places: Collection[str]) -> dict[str, str]:
    """Returns the nodes that are computed from one place and constants, each with that place.

    Args:
        nodes: of a flat graph, each after those it reads.
        places: its placeholders.
    """
    found: dict[str, str] = {place: place for place in places}
    mixed: set[str] = set()
    for node in nodes:
        if node.name in places:
            continue
        given = arguments_of(node)
        of = {found[name] for name in given if name in found}
        if len(of) > 1 or mixed.intersection(given):
            mixed.add(node.name)
        elif of:
            found[node.name] = of.pop()
    return found


def constants(nodes: Iterable[NodeDef], places: Collection[str]) -> set[str]:
    """Returns the nodes that are computed from no place, or its shape; arguments as of `alone`."""
    moving, found = {*places}, set[str]()
    for node in nodes:
        fixed = node.op == "Shape" or moving.isdisjoint(arguments_of(node))
        (found if fixed else moving).add(node.name)
    return found - {*places}


def category_counts(rewritten: Collection[NodeDef], places: Mapping[str, bool]) -> dict[str, int]:
    """Returns how many categories there are of each place that something is looked up by.

    Args:
        rewritten: the nodes that count, as they are read, each after those it reads.
        places: placeholders that are no floats, each with whether it is of truth values.
    """
    nodes = {node.name: node for node in rewritten}
    of = alone(rewritten, [node.name for node in rewritten if node.op == "Placeholder"])
    found = {place: 2 for place, truth in places.items() if truth}
    encoded: dict[str, int] = {}
    for node in rewritten:
        if node.op not in _ENCODE:
            continue
        given = data_inputs(node)
        index, known = given[node.op == "GatherV2"], given[node.op != "GatherV2"]
        place = of.get(node_name(index), "")
        if place in places and node.op == "GatherV2":
            rows = _rows(nodes, known)
            found[place] = min(rows, found.get(place, rows))
        elif place in places:
            depth = constant(nodes[node_name(known)], (tf.int32,), rank=0)
            encoded[place] = max(0 if depth is None else int(depth), encoded.get(place, 0))
    found = encoded | found
    for count in found.values():
        require_at_most(count, _MOST, "the number of categories of an input")
    return {place: count for place, count in found.items() if count > 0}


def _rows(nodes: Mapping[str, NodeDef], tensor: str) -> int:
    """Returns the number of rows of a constant table; 0 where it is none."""
    node = nodes[node_name(tensor)]
    while node.op in (*patterns.HANDS_ON, "Cast") and node.input:
        node = nodes[node_name(node.input[0])]
    sizes = attribute(node, "value").tensor.tensor_shape.dim
    return sizes[0].size if node.op == "Const" and len(sizes) else 0


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A tensor each entry of which is looked up by one integer of the input."""

    shape: tuple[int, ...]  # of one example
    # where the one-hot vector of its integer begins in `whole`, of each entry, `(size,)`
    start: np.ndarray
    # its value for each category, `(categories, size)`; integers, floats or bools
    table: np.ndarray
    whole: Flow  # the one vector that all inputs are

    @classmethod
    def input(cls, shape: tuple[int, ...], count: int, start: int, whole: Flow) -> Lookup:
        """Returns integers of the input, whose one-hot vectors are in `whole` from `start` on."""
        size = math.prod(shape)
        require_shape((count, size))
        table = np.repeat(np.arange(count)[:, None], size, axis=1)
        return cls(shape, start + count * np.arange(size), table, whole)

    def flow(self) -> Flow:
        """Returns it as a map of the one-hot vectors; InputError unless it is of floats."""
        if self.table.dtype.kind != "f":
            raise InputError(
                "an integer of the input, of which something is looked up elsewhere; encode or "
                "embed it, or cast it to a float"
            )
        count, size = self.table.shape
        require_shape((self.whole.base, size))
        kernel = np.zeros((self.whole.base, size))
        kernel[self.start + np.arange(count)[:, None], np.arange(size)] = self.table
        return dataclasses.replace(self.whole.times(Ball.exact(kernel)), shape=self.shape)

    def _with(self, table: np.ndarray) -> Lookup:
        if table.dtype.kind in "iu" and np.abs(table).max(initial=0) >= 2**31:
            raise InputError("a number of 2³¹ or more is computed, which may wrap around")
        return dataclasses.replace(self, table=table)

    def moved(self, node: NodeDef, *others: Any) -> Lookup | np.ndarray:
        """Applies an op that only rearranges entries, or tells their shape."""
        moved = registry.RULES[node.op].function(node, Flow.input(self.shape), *others)
        if not isinstance(moved, Flow):
            return moved
        if moved.kernel is not None:
            raise InputError("integers of the input can be rearranged, and not picked so")
        start, table = self.start[moved.order], self.table[:, moved.order]
        return dataclasses.replace(self, shape=moved.shape, start=start, table=table)

    def cast(self, node: NodeDef) -> Lookup:
        """Applies a `Cast`, which must change no number."""
        target = tf.dtypes.as_dtype(node.attr["DstT"].type)
        whole = bool(np.all(self.table == np.rint(self.table)))
        small = bool(np.abs(self.table).max(initial=0) <= WHOLE)
        if target in (tf.float32, tf.float64) and (self.table.dtype.kind == "f" or small):
            return self._with(self.table.astype(np.float64))
        if target in (tf.int32, tf.int64) and whole and small:
            return self._with(self.table.astype(np.int64))
        raise InputError(f"a cast to {target.name} may change an integer of the input")

    def gathered(self, node: NodeDef, rows: Any, axis: Any) -> Lookup:
        """Applies a `GatherV2` of the rows of a constant by these integers."""
        array = _exact(rows)
        if node.attr["batch_dims"].i or int(np.asarray(axis)) != 0 or array.ndim < 1:
            raise InputError("integers of the input can only choose rows of a constant")
        if self.table.dtype.kind != "i" or self.table.min() < 0 or self.table.max() >= len(array):
            raise InputError("an integer of the input chooses a row that is not there")
        return self._each(array.reshape(len(array), -1)[self.table], array.shape[1:])

    def one_hot(self, node: NodeDef, depth: Any, on: Any, off: Any) -> Lookup:
        """Applies a `OneHot` along a new last axis."""
        if node.attr["axis"].i not in (-1, len(self.shape) + 1):
            raise InputError("one-hot vectors are read along the last axis")
        return self._encoded(depth, _exact(on).reshape(()), _exact(off).reshape(()))

    def _encoded(self, depth: Any, *ends: np.ndarray) -> Lookup:
        if self.table.dtype.kind != "i":
            raise InputError("only integers are encoded")
        count = int(np.asarray(depth))
        require_shape((*self.table.shape, count))
        return self._each(np.where(self.table[..., None] == np.arange(count), *ends), (count,))

    def counted(self, node: NodeDef, depth: Any, weights: Any) -> Lookup | Flow:
        """Applies a `DenseBincount`: how often an example has each category."""
        if len(self.shape) != 1 or np.size(weights.value if isinstance(weights, Ball) else weights):
            raise InputError("categories are counted along one axis of each example, unweighted")
        each = self._encoded(depth, np.array(1.0), np.array(0.0))
        count = each.shape[1]
        if self.shape == (1,):
            return dataclasses.replace(each, shape=(count,))
        if node.attr["binary_output"].b:
            raise InputError("whether an example has a category is read of one integer only")
        return each.flow().times(Ball.exact(np.tile(np.eye(count), (self.shape[0], 1))))

    def _each(self, table: np.ndarray, shape: tuple[int, ...]) -> Lookup:
        """Returns it with several entries, of this shape, in place of each."""
        size = math.prod(shape)
        require_shape((len(table), self.table.shape[1] * size))
        start = np.repeat(self.start, size)
        return Lookup((*self.shape, *shape), start, table.reshape(len(table), -1), self.whole)


def apply(node: NodeDef, arguments: list) -> Any:
    """Returns the value of a node of which an argument is a `Lookup`.

    Raises:
        InputError: neither this op on tables is known, nor a rule for floats.
    """
    first, *others = arguments
    if isinstance(first, Lookup) and node.op in patterns.HANDS_ON:
        return first
    if isinstance(first, Lookup) and node.op == "Cast":
        return first.cast(node)
    if isinstance(first, Lookup) and node.op in _MOVES:
        return first.moved(node, *others)
    if isinstance(first, Lookup) and node.op in _ENCODE[1:]:
        encode = first.one_hot if node.op == "OneHot" else first.counted
        return encode(node, *others)
    if node.op == "GatherV2" and isinstance(others[0], Lookup):
        return others[0].gathered(node, first, others[1])
    floats = any(isinstance(a, Lookup) and a.table.dtype.kind == "f" for a in arguments)
    known = _COMPARED if floats else _COMPARED | _COMPUTED
    if node.op in known and not any(isinstance(a, Flow) for a in arguments):
        like = next(a for a in arguments if isinstance(a, Lookup))
        table = known[node.op](*(_entries(a, like) for a in arguments))
        if node.op in _COMPUTED:
            dtype = tf.as_dtype(node.attr["T"].type)
            if not dtype.is_integer or table.min() < dtype.min or table.max() > dtype.max:
                raise InputError(f"an integer of the input is computed that {dtype.name} wraps")
        return like._with(table)
    return registry.apply(node, [a.flow() if isinstance(a, Lookup) else a for a in arguments])


def folded(node: NodeDef, arguments: list) -> np.ndarray | None:
    """Returns the value of an op on integer constants, as on indices; None where it is another.

    Example:
        >>> folded(NodeDef(op="Less"), [np.array([1, -1]), np.array(0)])
        array([False,  True])
    """
    if node.op not in _COMPARED or not all(isinstance(a, np.ndarray) for a in arguments):
        return None
    require_shape(np.broadcast_shapes(*(a.shape for a in arguments)), NODES)
    found: np.ndarray = np.asarray(_COMPARED[node.op](*map(_exact, arguments)))
    return found


def _entries(value: Any, like: Lookup) -> np.ndarray:
    """Returns the entries of an argument beside those of a table."""
    if isinstance(value, Lookup):
        if value.shape != like.shape or not np.array_equal(value.start, like.start):
            raise InputError("integers of the input are computed from one another")
        return value.table
    array = _exact(value)
    if array.ndim == len(like.shape) + 1 and len(array) == 1:
        array = array[0]
    try:
        return np.broadcast_to(array, like.shape).reshape(1, -1)
    except ValueError as error:
        raise InputError(f"constants {array.shape} beside integers {like.shape}") from error


def _exact(value: Any) -> np.ndarray:
    """Returns a constant; InputError for one that is rounded, or is none."""
    if isinstance(value, Ball) and not np.any(value.error) and not np.any(value.served):
        return value.value
    if not isinstance(value, (np.ndarray, np.integer, int)):
        raise InputError("what integers of the input choose must be constants, as they are stored")
    array = np.asarray(value)
    return (
        array
        if array.dtype != object
        else np.array([int(n) for n in array.flat]).reshape(array.shape)
    )
