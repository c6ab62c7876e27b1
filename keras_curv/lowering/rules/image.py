"""Rules of ops that pick entries of an example, or place them among zeros; and of what needs them.

Padding, slices, repeats and their like are matrices of zeros and ones. A permutation moves what is
known; of any other, the product with its matrix is folded as every product is. Nothing that such a
matrix does rounds, so the charge of a product is more than it needs, and sound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering.branches import picked
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules import convolution
from keras_curv.lowering.rules.registry import rule
from keras_curv.lowering.stencil import Bounded
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, require_shape


def broadcast(flow: Flow, shape: tuple[int, ...]) -> Flow:
    """Repeats each example along axes of one entry."""
    return flow if shape == flow.shape else picked(flow, np.broadcast_to(positions_of(flow), shape))


@rule("PadV2")
@rule("Pad", exact=True)
def padded(node: NodeDef, flow: Flow, paddings: np.ndarray, constant: Ball | None = None) -> Flow:
    """Reads `Pad` and `PadV2`: constants around each example."""
    before_and_behind = _of_each_axis(flow, paddings)
    positions = _padded(positions_of(flow), before_and_behind)
    result = picked(flow, positions)
    if constant is None or constant.equals(0.0):
        return result
    if not isinstance(constant, Ball) or constant.value.size != 1:
        raise InputError("it pads with something else than one constant")
    around = positions.reshape(-1) < 0
    return result.shifted(constant.each(lambda part: np.where(around, part.reshape(()), 0.0)))


def sliced(node: NodeDef, value: Flow | Ball, *ends: np.ndarray) -> Flow | Ball:
    """Reads `StridedSlice` of each example, whose batch must be taken whole, or of a constant."""
    index = _index_of(node, *ends)
    if isinstance(value, Ball):
        return value.each(lambda part: np.asarray(part[tuple(index)]))
    _require_whole_batch(index, len(value.shape))
    positions = positions_of(value)[None][tuple(index)]
    return picked(value, np.asarray(positions[0]))


def _index_of(node: NodeDef, begin: np.ndarray, end: np.ndarray, strides: np.ndarray) -> list:
    """Returns the index, as of NumPy, that a `StridedSlice` takes."""
    masks = {
        name: node.attr[f"{name}_mask"].i
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    kinds = [masks[name] for name in ("ellipsis", "new_axis", "shrink_axis")]
    if kinds[0] & kinds[1] or kinds[2] & (kinds[0] | kinds[1] | masks["begin"] | masks["end"]):
        raise InputError("masks of a slice that contradict one another are not supported")
    index: list = []
    for place, numbers in enumerate(zip(begin, end, strides, strict=True)):
        first, last, stride = (int(number) for number in numbers)
        bit = 1 << place
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(None)
        elif masks["shrink_axis"] & bit:
            index.append(first)
        else:
            start = None if masks["begin"] & bit else first
            stop = None if masks["end"] & bit else last
            index.append(slice(start, stop, stride))
    return index


def _require_whole_batch(index: list, rank: int) -> None:
    named = sum(part is not None and part is not Ellipsis for part in index)
    if index and index[0] is Ellipsis and named <= rank:
        return
    if not index or index[0] not in (slice(None, None, 1), slice(0, None, 1)):
        raise InputError("a slice of the batch mixes examples, or depends on how many there are")


@rule("Tile", exact=True)
def tiled(node: NodeDef, flow: Flow, multiples: np.ndarray) -> Flow:
    """Reads `Tile` of each example."""
    require_flow(flow)
    batch, *times = [int(number) for number in multiples]
    if batch != 1 or len(times) != len(flow.shape) or min(times, default=1) < 1:
        raise InputError(f"a repetition {[batch, *times]} is not one of each example")
    shape = [size * many for size, many in zip(flow.shape, times, strict=True)]
    require_shape(shape, EXAMPLE_ENTRIES)
    return picked(flow, np.tile(positions_of(flow), times))


@rule("GatherV2", exact=True)
def gathered(
    node: NodeDef, value: Flow | np.ndarray, indices: np.ndarray, axis: np.ndarray
) -> Flow | np.ndarray:
    """Reads `GatherV2` along an axis of each example, or from a shape."""
    if not isinstance(indices, np.ndarray) or node.attr["batch_dims"].i:
        raise InputError("only supported with constant indices, alike for all examples")
    indices = np.array([int(i) for i in indices.flat], np.int64).reshape(indices.shape)
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or int(axis) not in (0, -1) or np.any(indices < 0):
            raise InputError("only supported for shapes, and for what depends on the input")
        return value[indices]
    (place,) = axes_of(value, axis, "a choice")
    if np.any(indices < 0) or np.any(indices >= value.shape[place]):
        raise InputError("an index is out of range")
    shape = [*value.shape[:place], *indices.shape, *value.shape[place + 1 :]]
    require_shape(shape, EXAMPLE_ENTRIES)
    return picked(value, np.take(positions_of(value), indices, axis=place))


@rule("ReverseV2", exact=True)
def reversed_along(node: NodeDef, flow: Flow, axes: np.ndarray) -> Flow:
    """Reads `ReverseV2` along axes of each example."""
    places = axes_of(flow, axes, "a reversal")
    return picked(flow, np.flip(positions_of(flow), tuple(places)))


@rule("Roll", exact=True)
def rolled(node: NodeDef, flow: Flow, shifts: np.ndarray, axes: np.ndarray) -> Flow:
    """Reads `Roll` along axes of each example."""
    places, shifts = axes_of(flow, axes, "a roll"), np.atleast_1d(shifts)
    if len(shifts) != len(places):
        raise InputError(f"{len(shifts)} shifts do not fit {len(places)} axes")
    return picked(flow, np.roll(positions_of(flow), tuple(map(int, shifts)), tuple(places)))


@rule("SpaceToDepth", exact=True)
def blocks_to_channels(node: NodeDef, flow: Flow) -> Flow:
    """Reads `SpaceToDepth`."""
    height, width, channels = convolution.image_shape(node, flow)
    size = node.attr["block_size"].i
    if height % size or width % size:
        raise InputError(f"blocks of {size} do not fit an image of {height} × {width}")
    down, across = height // size, width // size
    blocks = positions_of(flow).reshape(down, size, across, size, channels)
    return picked(flow, blocks.transpose(0, 2, 1, 3, 4).reshape(down, across, -1))


@rule("DepthToSpace", exact=True)
def channels_to_blocks(node: NodeDef, flow: Flow) -> Flow:
    """Reads `DepthToSpace`."""
    height, width, channels = convolution.image_shape(node, flow)
    size = node.attr["block_size"].i
    if channels % size**2:
        raise InputError(f"{channels} channels are no blocks of {size} × {size}")
    blocks = positions_of(flow).reshape(height, width, size, size, channels // size**2)
    blocks = blocks.transpose(0, 2, 1, 3, 4)
    return picked(flow, blocks.reshape(height * size, width * size, -1))


@rule("Conv2DBackpropInput")
def transposed_convolved(node: NodeDef, sizes: np.ndarray, kernel: Ball, flow: Flow) -> Flow:
    """Reads `Conv2DBackpropInput`: the product with the transposed matrix of a convolution."""
    image = convolution.image_shape(node, flow)
    if not isinstance(kernel, Ball) or len(kernel.shape) != 4:
        raise InputError("the kernel must be a constant (height, width, filters, channels)")
    batch, *rest = list(sizes)
    if isinstance(batch, (int, np.integer)):
        raise InputError("it is for one size of the batch only")
    shape = tuple(int(size) for size in rest)
    require_shape(shape, EXAMPLE_ENTRIES)
    how = convolution.placement(node)
    lowered, small = convolution.matrix(kernel, shape, **how)
    if small != image:
        raise InputError(f"images {image} are not what a convolution makes of images {shape}")
    known = Bounded(convolution.stencil(kernel, shape, **how).magnitude)
    product = flow.times(lowered.transpose(), known)
    return dataclasses.replace(product, shape=shape)


@rule("DilatedConv2D", "DilatedDepthwiseConv2dNative")
def dilated(
    node: NodeDef,
    flow: Flow,
    kernel: Ball,
    block: np.ndarray,
    paddings: np.ndarray,
    crops: np.ndarray,
) -> Flow:
    """Reads a dilated convolution, which TensorFlow spells as one of every block-th pixel.

    Every phase of the padded image is convolved without padding and put back in its place: that is
    the convolution of the padded image with dilations `block`, cropped afterwards.
    """
    require_flow(flow)
    dilations, around, cut = (
        np.asarray(array).astype(np.int64) for array in (block, paddings, crops)
    )
    one_axis = len(dilations) == 1 and len(flow.shape) == 2
    if one_axis:
        flow = flow.rearranged(positions_of(flow)[None])
        dilations = np.concatenate([[1], dilations])
        around, cut = (np.concatenate([[[0, 0]], array]) for array in (around, cut))
    plain = (1, 1)
    if (
        dilations.shape != (2,)
        or around.shape != (2, 2)
        or cut.shape != (2, 2)
        or dilations.min() < 1
        or min(around.min(), cut.min()) < 0
        or len(flow.shape) != 3
        or node.attr["padding"].s != b"VALID"
        or convolution.two_axes(node, "strides") != plain
        or convolution.two_axes(node, "dilations") != plain
    ):
        raise InputError("this way of dilating a convolution is not supported")
    flow = picked(flow, _padded(positions_of(flow), [*around, (0, 0)]))
    if any(size % block for size, block in zip(flow.shape, dilations, strict=False)):
        raise InputError("the padded image is not a multiple of the dilation")
    plain_node = NodeDef()
    plain_node.CopyFrom(node)
    plain_node.op = node.op.removeprefix("Dilated")
    plain_node.attr["dilations"].list.i[:] = [1, *(int(number) for number in dilations), 1]
    flow = convolution.convolved(plain_node, flow, kernel)
    rows, columns = (
        slice(int(first), size - int(last))
        for (first, last), size in zip(cut, flow.shape, strict=False)
    )
    positions = positions_of(flow)[rows, columns]
    return picked(flow, positions[0] if one_axis else positions)


def _padded(positions: np.ndarray, paddings: Iterable[Any]) -> np.ndarray:
    pairs = [(int(before), int(behind)) for before, behind in paddings]
    require_shape(
        [size + sum(pair) for size, pair in zip(positions.shape, pairs, strict=True)],
        EXAMPLE_ENTRIES,
    )
    return np.pad(positions, pairs, constant_values=-1)


def _of_each_axis(flow: Flow, paddings: np.ndarray) -> list[tuple[int, int]]:
    """Returns the paddings of an example's axes; refuses one of the batch."""
    rank = len(require_flow(flow).shape) + 1
    pairs = [(int(before), int(behind)) for before, behind in paddings]
    if len(pairs) != rank or pairs[0] != (0, 0) or min(min(pair) for pair in pairs) < 0:
        raise InputError(f"a padding {pairs} is not one of each example")
    return pairs[1:]


def positions_of(flow: Flow) -> np.ndarray:
    """Returns the numbers of an example's entries, in its shape."""
    return np.arange(flow.shift.shape[0]).reshape(flow.shape)


def require_flow(flow: Value) -> Flow:
    """Returns the flow; InputError for anything else."""
    if not isinstance(flow, Flow):
        raise InputError("only supported for what depends on the input")
    return flow


def require_constant(value: Value) -> Ball:
    """Returns the floats; InputError for anything else."""
    if not isinstance(value, Ball):
        raise InputError(
            "both operands depend on the input, or one is not a float, which is not supported here"
        )
    return value


def axes_of(flow: Flow, axes: np.ndarray, what: str) -> list[int]:
    """Returns axes as those of an example, one less; InputError where one is the batch's."""
    rank = len(require_flow(flow).shape) + 1
    places = [int(axis) for axis in np.ravel(axes)]
    if not all(-rank < place < rank and place for place in places):
        named = f"axis {places[0]}" if len(places) == 1 else f"the axes {places}"
        raise InputError(f"{what} along {named} mixes the batch, or there is no such axis")
    return [place % rank - 1 for place in places]


def per_example(flow: Flow, constant: Value) -> Ball:
    """Broadcasts a constant against the flow; returns one example's entries, flattened."""
    array, shape = require_constant(constant), flow.shape
    if len(array.shape) > len(shape) + 1:
        raise InputError(f"a constant of shape {array.shape} would add an axis")
    if array.value.ndim > len(shape) and array.value.shape[0] != 1:
        raise InputError(f"a constant of shape {array.shape} differs between examples")
    if array.value.ndim > len(shape):
        array = array.reshape(array.shape[1:])
    try:
        return array.broadcast_to(shape).reshape((-1,))
    except ValueError:
        raise InputError(
            f"a constant of shape {array.shape} does not fit examples of shape {shape}"
        ) from None


def with_constant(flow: Flow, constant: Value) -> tuple[Flow, Ball]:
    """Broadcasts a flow and a constant against one another, example by example.

    Returns:
        The flow, and the constant's entries for an example, flattened.
    """
    shape = require_constant(constant).shape[-len(flow.shape) or None :]
    try:
        shape = np.broadcast_shapes(flow.shape, shape)
    except ValueError:
        shape = flow.shape  # which `per_example` refuses
    require_shape(shape, EXAMPLE_ENTRIES)
    flow = broadcast(flow, shape)
    return flow, per_example(flow, constant)


def alike(a: Flow, b: Flow) -> tuple[Flow, Flow]:
    """Broadcasts both flows against one another, example by example."""
    if len(a.shape) != len(b.shape):
        raise InputError(f"examples {a.shape} and {b.shape} would mix, or an axis be added")
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise InputError(f"examples {a.shape} and {b.shape} do not fit") from None
    require_shape(shape, EXAMPLE_ENTRIES)
    return broadcast(a, shape), broadcast(b, shape)
