"""Rules of maxima over entries of an example: tournaments of pairs.

Of n entries the largest is found in ⌈log₂ n⌉ rounds (`branches.larger_of_pairs`). A pair that
several windows share is played once. A server rounds nothing of a maximum.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import branches
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules import convolution
from keras_curv.lowering.rules.image import axes_of, picked, positions_of
from keras_curv.lowering.rules.registry import rule
from keras_curv.lowering.sparse_error_ball import SparseBall
from keras_curv.lowering.stencil import Bounded
from keras_curv.network.sparse_affine import schur_bound
from keras_curv.saved_model.limits import STORED_ENTRIES, require_shape


@rule("MaxPool")
def max_pooled(node: NodeDef, flow: Flow) -> Flow:
    """Reads `MaxPool`: the largest entry of each window, padding left out."""
    height, width, channels = convolution.image_shape(node, flow)
    windows, strides = (convolution.two_axes(node, name) for name in ("ksize", "strides"))
    padding = node.attr["padding"].s.decode()
    axes = [
        convolution.axis(*each, 1, padding)
        for each in zip((height, width), windows, strides, strict=True)
    ]
    (down, down_inside), (across, across_inside) = axes
    require_shape((down.size, across.size, channels), STORED_ENTRIES)
    place = (down.T[:, None, :, None] * width + across.T[None, :, None, :])[:, :, None]
    place = place * channels + np.arange(channels)[:, None, None]
    inside = down_inside.T[:, None, None, :, None] & across_inside.T[None, :, None, None, :]
    entries = np.where(inside, place, -1)
    return largest_of(flow, entries.reshape(*entries.shape[:3], -1))


@rule("Max")
def largest_along(node: NodeDef, flow: Flow, axes: np.ndarray) -> Flow:
    """Reads `Max` over axes of each example."""
    over = _axes_over(flow, axes, "a maximum")
    kept = [axis for axis in range(len(flow.shape)) if axis not in over]
    positions = positions_of(flow).transpose([*kept, *over])
    shape = [flow.shape[axis] for axis in kept]
    if node.attr["keep_dims"].b:
        shape = [1 if axis in over else size for axis, size in enumerate(flow.shape)]
    return largest_of(flow, positions.reshape(*shape, -1))


def _axes_over(flow: Flow, axes: np.ndarray, what: str) -> list[int]:
    """Returns the axes of an example that are reduced: at least one, in order, each once."""
    if not np.size(axes):
        raise InputError(f"{what} over no axis")
    return sorted(set(axes_of(flow, axes, what)))


@rule("Mean", "Sum")
def mean(node: NodeDef, flow: Flow, axes: np.ndarray) -> Flow:
    """Reads `Mean` and `Sum` over axes of each example."""
    over = _axes_over(flow, axes, "a mean" if node.op == "Mean" else "a sum")
    kept = tuple(1 if axis in over else size for axis, size in enumerate(flow.shape))
    target = np.broadcast_to(np.arange(np.prod(kept)).reshape(kept), flow.shape).reshape(-1)
    size = math.prod(kept)
    if not node.attr["keep_dims"].b:
        kept = tuple(size for axis, size in enumerate(flow.shape) if axis not in over)
    if node.op == "Sum":
        return branches.summed(flow, target, kept)
    entries = np.ones(len(target)), (np.arange(len(target)), target)
    sums = SparseBall.exact(scipy.sparse.csr_array(entries, shape=(len(target), size)))
    return convolution.averaged(flow, sums, Bounded(schur_bound(sums.value)), kept)


def largest_of(flow: Flow, windows: np.ndarray) -> Flow:
    """Returns the largest entry of each window.

    Args:
        flow: what depends on the input.
        windows: which entries, in the new shape of an example with an axis for those of a window
            behind; −1: none, but not all of a window.
    """
    shape, items = windows.shape[:-1], windows.reshape(-1, windows.shape[-1])
    # The largest of an entry and itself is that entry.
    items = np.where(items < 0, items.max(axis=1, keepdims=True), items)
    while items.shape[1] > 1:
        flow, items = _round(flow, items)
    return picked(flow, items[:, 0].reshape(shape))


def _round(flow: Flow, items: np.ndarray) -> tuple[Flow, np.ndarray]:
    """Returns the larger of each pair of neighbours, with those that are left alone."""
    if items.shape[1] % 2:
        items = np.concatenate([items, items[:, -1:]], axis=1)
    size = flow.shift.shape[0]
    first, second = (
        np.minimum(items[:, ::2], items[:, 1::2]),
        np.maximum(items[:, ::2], items[:, 1::2]),
    )
    pairs, following = np.unique(first * size + second, return_inverse=True)
    following = following.reshape(first.shape)
    low, high = pairs // size, pairs % size
    if np.array_equal(low, high):
        return picked(flow, low), following
    return branches.larger_of_pairs(flow, low, high), following
