"""The rules of ops that only rearrange entries, and of those that compute shapes.

The number of examples is the symbol `BATCH`: it may stand first in a shape, which is how a reshape
shows that it does not mix examples, but nothing may be computed from it. A model whose arithmetic
looks at the batch size could be another function for a server's batch of one.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import branches
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules import image
from keras_curv.lowering.rules.registry import rule
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, require_shape


class BatchSize:
    """The number of examples."""

    def __repr__(self) -> str:
        return "batch"

    def _refuse(self, *unused: object) -> NoReturn:
        raise InputError("a number is computed from the batch size, so the model may depend on it")

    __int__ = __index__ = __float__ = __bool__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse


BATCH = BatchSize()


@rule("Shape", exact=True)
def _shape(node: NodeDef, value: Value) -> np.ndarray:
    return np.array([BATCH, *value.shape] if isinstance(value, Flow) else value.shape, object)


@rule("Reshape", exact=True, shares=True)
def _reshape(node: NodeDef, value: Value, shape: np.ndarray) -> Value:
    if isinstance(value, (Ball, np.ndarray)):
        return value.reshape(tuple(int(n) for n in shape))
    if not isinstance(value, Flow):
        raise InputError("only supported for floats")
    size = value.shift.shape[0]
    first, *rest = list(shape) or [0]
    rest = [int(n) for n in rest]
    if first is BATCH and -1 in rest:
        known = math.prod(n for n in rest if n != -1)
        rest[rest.index(-1)] = size // known if known else 0
    # With −1 in front, the batch is what remains: all examples, if one example fills the rest.
    keeps_batch = first is BATCH or first == -1
    if not keeps_batch or any(n < 0 for n in rest) or math.prod(rest) != size:
        raise InputError(f"a reshape to {list(shape)} mixes examples or loses entries")
    return value.rearranged(np.arange(size).reshape(rest))


@rule("Squeeze", "ExpandDims", exact=True)
def _unit_axes(node: NodeDef, value: Value, axis: np.ndarray | None = None) -> Value:
    if isinstance(value, np.ndarray):
        raise InputError("only supported for floats")
    flow = isinstance(value, Flow)
    shape = [BATCH, *value.shape] if flow else list(value.shape)
    if node.op == "ExpandDims":
        place = int(np.asarray(axis))
        shape.insert(place if place >= 0 else place + len(shape) + 1, 1)
    else:
        axes = [a % len(shape) for a in node.attr["squeeze_dims"].list.i]
        if not axes and flow:
            raise InputError("without axes it would drop a batch of one example as well")
        axes = axes or [a for a, n in enumerate(shape) if n == 1]
        if any(shape[a] != 1 for a in axes):
            raise InputError(f"cannot squeeze axes {axes} of {shape}")
        shape = [n for a, n in enumerate(shape) if a not in axes]
    return _reshape(node, value, np.array(shape, object))


@rule("Transpose", exact=True)
def _transpose(node: NodeDef, value: Value, order: np.ndarray) -> Value:
    axes = [int(axis) for axis in order]
    if not isinstance(value, Flow):
        return value.transpose(axes)
    if sorted(axes) != list(range(len(value.shape) + 1)) or axes[0] != 0:
        raise InputError(
            f"a transpose {axes} moves the batch axis, as TimeDistributed does; Dense and "
            "EinsumDense act on every step by themselves"
        )
    moved = [axis - 1 for axis in axes[1:]]
    return value.rearranged(image.positions_of(value).transpose(moved))


@rule("Pack", joins=True)
def _pack(node: NodeDef, *values: Any) -> Value:
    axis = node.attr["axis"].i
    flows = [value for value in values if isinstance(value, Flow)]
    if not flows:
        return np.stack([_need_integers(value) for value in values], axis=axis)
    if len(flows) < len(values):
        raise InputError("only supported where all parts depend on the input")
    one = NodeDef(op="ExpandDims")
    apart = [image.require_flow(_unit_axes(one, flow, np.array(axis))) for flow in flows]
    return branches.joined(apart, *image.axes_of(apart[0], np.array(axis), "a stack"))


@rule("ConcatV2", joins=True)
def _concat(node: NodeDef, *values: Any) -> Value:
    if not any(isinstance(value, Flow) for value in values):
        *parts, axis = [_need_integers(value) for value in values]
        return np.concatenate(parts, axis=int(axis))
    *flows, axis = values
    if not all(isinstance(flow, Flow) for flow in flows):
        raise InputError("only supported where all parts depend on the input")
    return branches.joined(flows, *image.axes_of(flows[0], axis, "a concatenation"))


@rule("Split", "SplitV")
def _split(node: NodeDef, *arguments: Any) -> tuple[Value, ...]:
    """Reads `Split` and `SplitV` along an axis of each example, or `Split` of a constant."""
    if node.op == "Split":
        axis, flow = arguments
        sections = node.attr["num_split"].i
        if isinstance(flow, Ball):
            parts = np.split(np.arange(flow.shape[int(axis)]), sections)
            return tuple(flow.each(lambda a: np.take(a, part, int(axis))) for part in parts)  # noqa: B023
    else:
        flow, sizes, axis = arguments
        sections = np.cumsum([int(size) for size in sizes])[:-1].tolist()
        if any(int(size) < 1 for size in sizes):
            raise InputError(f"sizes {[int(size) for size in sizes]} of parts are not supported")
    (place,) = image.axes_of(flow, axis, "a split")
    if node.op == "SplitV" and sum(int(size) for size in sizes) != flow.shape[place]:
        raise InputError("the sizes of the parts are not that of the whole")
    parts = np.split(image.positions_of(flow), sections, axis=place)
    return tuple(image.picked(flow, part) for part in parts)


@rule("Unpack")
def _unpack(node: NodeDef, flow: Flow) -> tuple[Flow, ...]:
    """Reads `Unpack` along an axis of each example, as a tuple of flows."""
    image.require_flow(flow)
    (place,) = image.axes_of(flow, np.array(node.attr["axis"].i), "a list of parts")
    parts = np.moveaxis(image.positions_of(flow), place, 0)
    if len(parts) != node.attr["num"].i:
        raise InputError("the number of the parts is not that of the whole")
    return tuple(image.picked(flow, part) for part in parts)


@rule("FillLike")
def _filled(node: NodeDef, flow: Flow, shape: np.ndarray, constant: Ball) -> Flow:
    """Reads `FillLike` of `batch_axis.py`: one number, in a shape of so many examples."""
    image.require_flow(flow)
    if np.ndim(shape) != 1 or len(shape) < 2 or shape[0] is not BATCH:
        raise InputError("only supported for a shape that begins with the batch")
    sizes = tuple(int(size) for size in shape[1:])
    require_shape(sizes, EXAMPLE_ENTRIES)
    nothing = flow.rearranged(np.zeros(sizes, np.int64)).scaled(
        Ball.exact(np.zeros(sizes)).reshape((-1,))
    )
    return nothing.shifted(constant.broadcast_to(sizes).reshape((-1,)))


@rule("Prod")
def _prod(node: NodeDef, value: Value, axis: np.ndarray) -> Any:
    keep = node.attr["keep_dims"].b
    return np.prod(_need_integers(value), axis=tuple(np.atleast_1d(axis)), keepdims=keep)


_MASKS = ("begin", "end", "shrink_axis", "ellipsis", "new_axis")


@rule("StridedSlice", exact=True)
def _strided_slice(
    node: NodeDef, value: Value, begin: np.ndarray, end: np.ndarray, strides: np.ndarray
) -> Value:
    if isinstance(value, (Flow, Ball)):
        return image.sliced(node, value, begin, end, strides)
    masks = {name: node.attr[f"{name}_mask"].i for name in _MASKS}
    unread = masks["ellipsis"] or masks["new_axis"] or max(masks.values()) > 1
    if len(np.atleast_1d(begin)) != 1 or unread:
        raise InputError("only slices of a shape are supported")
    if masks["shrink_axis"]:
        return _need_integers(value)[int(begin[0])]
    first = None if masks["begin"] else int(begin[0])
    last = None if masks["end"] else int(end[0])
    return _need_integers(value)[first : last : int(strides[0])]


def _need_integers(value: Value) -> np.ndarray:
    if not isinstance(value, (np.ndarray, np.integer, int, BatchSize)):
        raise InputError("only supported for shapes")
    return np.asarray(value)
