"""Convolutions and average pooling as the matrices that they are.

Each entry of such a matrix is one weight of the kernel, copied: lowering rounds nothing. A shift
before a zero-padded convolution becomes a bias that differs between positions, as it must: the
padding is not shifted.

Images are `(height, width, channels)`, flattened in that order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import scipy.sparse
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import miscompiled
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules.registry import rule
from keras_curv.lowering.sparse_error_ball import SparseBall
from keras_curv.lowering.stencil import Bounded, Stencil
from keras_curv.network.sparse_affine import schur_bound
from keras_curv.numerics.rounding import up
from keras_curv.saved_model.limits import (
    CONVOLUTION_ENTRIES,
    STORED_ENTRIES,
    charge_entries,
    require_room,
    require_shape,
)

_PADDINGS = ("SAME", "VALID")
_PLACING = 2  # passes over the entries of a matrix that is made


def matrix(
    kernel: Ball,
    image: tuple[int, ...],
    *,
    strides: tuple[int, int] = (1, 1),
    padding: str = "VALID",
    dilations: tuple[int, int] = (1, 1),
    beside: int = 0,
) -> tuple[SparseBall, tuple[int, int, int]]:
    """Returns the matrix `(in, out)` of a convolution in TensorFlow's sense, a cross-correlation.

    Args:
        kernel: `(height, width, channels, filters)`.
        image: the shape of what is convolved.
        strides, dilations: of the two axes.
        padding: "SAME" (with zeros, the odd one at the end) or "VALID".
        beside: entries of a matrix that this one is to be multiplied with.

    Returns:
        The matrix, sparse, and the shape of the convolved image.

    Raises:
        InputError: the kernel does not fit the image, or the matrix would be too large.

    Example:
        >>> moving_sum, shape = matrix(Ball.exact(np.ones((1, 2, 1, 1))), (1, 3, 1))
        >>> moving_sum.dense().value.T, shape
        (array([[1., 1., 0.],
               [0., 1., 1.]]), (1, 2, 1))
    """
    if len(image) != 3 or kernel.shape[2] != image[2]:
        raise InputError(f"a kernel {kernel.shape} does not fit images {image}, channels last")
    down, across = (
        axis(*sizes, padding)
        for sizes in zip(image[:2], kernel.shape[:2], strides, dilations, strict=True)
    )
    shape = down[0].shape[1], across[0].shape[1], kernel.shape[3]
    require_shape(shape)
    parts = kernel.value, kernel.error, kernel.served
    stored = functools.reduce(np.logical_or, (part != 0.0 for part in parts))
    _refuse_large(stored, down, across, sum(bool(part.any()) for part in parts), beside)
    which, columns, ends = places_of(stored, image, down, across)

    size = math.prod(image), math.prod(shape)
    entries = kernel.each(lambda part: part[stored][which] if part.any() else np.zeros(len(which)))
    places = scipy.sparse.csr_array((entries.value, columns, ends), shape=size)
    return SparseBall.at(places, entries), shape


def places_of(
    stored: np.ndarray,
    image: tuple[int, ...],
    down: tuple[np.ndarray, np.ndarray],
    across: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns where the entries of a convolution's matrix are, row by row and in order: which of
    the stored weights each one is, and its column; and the ends of the rows.

    Row (y, x, c) has, for each position whose window sees the pixel, the weights of one tap and c.

    Args:
        stored: which weights there are, `(height, width, channels, filters)`.
        image: the shape of what is convolved.
        down, across: see `axis`.
    """
    filters = stored.shape[3]
    (ky, top, above), (kx, left, beside) = (
        _seen_by(*each, size) for each, size in zip((down, across), image[:2], strict=True)
    )
    # A pixel is seen by as many positions as its row is, times as many as its column is.
    wide = np.tile(np.diff(beside), image[0])
    many = np.repeat(np.diff(above), image[1]) * wide
    number, wide = _ranges(np.zeros_like(many), many), np.repeat(wide, many)
    i = np.repeat(np.repeat(above[:-1], image[1]), many) + number // wide
    j = np.repeat(np.tile(beside[:-1], image[0]), many) + number % wide
    tap, position = ky[i] * stored.shape[1] + kx[j], top[i] * across[0].shape[1] + left[j]
    del number, wide, i, j
    # The same once more for each channel of the pixel.
    lengths = np.repeat(many, image[2])
    seen = _ranges(np.repeat(_before(many), image[2]), lengths)
    channel = np.tile(np.arange(image[2], dtype=np.int32), len(many))
    cell = tap[seen] * np.int32(image[2]) + np.repeat(channel, lengths)
    counts = np.count_nonzero(stored, axis=3).reshape(-1).astype(np.int32)
    held, position = counts[cell], position[seen] * np.int32(filters)
    which = _ranges(_before(counts)[cell], held)
    columns = np.repeat(position, held)
    columns += np.nonzero(stored)[3].astype(np.int32)[which]
    rows = np.append(_before(lengths), np.int32(len(seen)))
    return which, columns, np.append(_before(held), np.int32(len(which)))[rows]


def _seen_by(
    place: np.ndarray, inside: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns which cell of the window, at which output, sees each place of an axis, in order of
    the places; and where those of each place begin, with the end. See `axis`."""
    cell, output = np.nonzero(inside)
    seen = place[cell, output]
    order = np.lexsort((output, seen))
    begin = np.append(0, np.cumsum(np.bincount(seen, minlength=size)))
    cell, output = cell[order].astype(np.int32), output[order].astype(np.int32)
    return cell, output, begin.astype(np.int32)


def _before(counts: np.ndarray) -> np.ndarray:
    """Returns the sum of the counts before each."""
    return np.cumsum(counts, dtype=np.int32) - counts


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns so many consecutive numbers from each start on, one range after the other."""
    numbers = np.repeat(starts - _before(counts), counts)
    numbers += np.arange(len(numbers), dtype=np.int32)
    return numbers


def axis(
    size: int, window: int, stride: int, dilation: int, padding: str
) -> tuple[np.ndarray, np.ndarray]:
    """Places each cell of the window at each output, `(window, outputs)`, and says if inside.

    Raises:
        InputError: the padding is neither "SAME" nor "VALID", or the window does not fit.

    Reference: the formulas of `tf.nn.convolution`.
    """
    if padding not in _PADDINGS:
        raise InputError(f"padding {padding} is not supported; use 'same' or 'valid'")
    span = (window - 1) * dilation + 1
    outputs = -(-size // stride) if padding == "SAME" else (size - span) // stride + 1
    if outputs < 1 or min(stride, dilation) < 1:
        raise InputError(f"a window that spans {span} entries does not fit an axis of {size}")
    require_shape((window, outputs))
    before = max((outputs - 1) * stride + span - size, 0) // 2 if padding == "SAME" else 0
    place = np.arange(window)[:, None] * dilation + np.arange(outputs) * stride - before
    return place, (place >= 0) & (place < size)


def _refuse_large(
    stored: np.ndarray,
    down: tuple[np.ndarray, np.ndarray],
    across: tuple[np.ndarray, np.ndarray],
    parts: int,
    beside: int,
) -> None:
    """Counts the matrix of a convolution before it is made.

    Args:
        stored, down, across: see `places_of`.
        parts: how many of its value and its errors are not 0.
        beside: see `matrix`.
    """
    seen = np.multiply.outer(*(inside.sum(axis=1) for _, inside in (down, across)))
    weights = np.count_nonzero(stored, axis=(2, 3))
    positions = down[0].shape[1] * across[0].shape[1]
    # Where a tap has no weights, it is placed all the same.
    entries = int((np.maximum(weights, stored.shape[2]) * seen).sum())
    _refuse_many(int(weights[seen > 0].sum()), positions, entries)
    require_room(entries + beside)
    charge_entries(_PLACING * (1 + parts), entries, "the matrix of a convolution")


def _refuse_many(weights: int, positions: int, entries: int) -> None:
    """Refuses a matrix of so many weights at so many positions if it has too many entries."""
    if entries > CONVOLUTION_ENTRIES:
        raise InputError(
            f"{weights} weights at {positions} positions each are too many (at most "
            f"{CONVOLUTION_ENTRIES} products in all); use larger strides, fewer filters, or a "
            "smaller image"
        )


def stencil(
    kernel: Ball,
    image: tuple[int, ...],
    *,
    strides: tuple[int, int] = (1, 1),
    padding: str = "VALID",
    dilations: tuple[int, int] = (1, 1),
) -> Stencil:
    """Returns the stencil that `matrix` places over the image, of the same arguments."""
    sizes = list(zip(image[:2], kernel.shape[:2], strides, dilations, strict=True))
    spans = [(n - 1) * d + 1 for _, n, _, d in sizes]
    require_shape((*spans, *kernel.shape[2:]), STORED_ENTRIES)
    taps = Ball.exact(np.zeros((*spans, *kernel.shape[2:])))
    taps.value[:: dilations[0], :: dilations[1]] = kernel.value
    taps.error[:: dilations[0], :: dilations[1]] = kernel.error
    complete = True
    for size, window, stride, dilation in sizes:
        place, _ = axis(size, window, stride, dilation, padding)
        # The windows before the first and behind the last see nothing of the image.
        complete &= bool(place[-1, 0] - stride < 0 and place[0, -1] + stride >= size)
    return Stencil(taps, strides, complete)


@rule("Conv2D", "DepthwiseConv2dNative")
def convolved(node: NodeDef, flow: Flow, kernel: Ball) -> Flow:
    """Reads `Conv2D` and `DepthwiseConv2dNative`."""
    image = image_shape(node, flow)
    if not isinstance(kernel, Ball) or len(kernel.shape) != 4:
        raise InputError("the kernel must be a constant (height, width, channels, filters)")
    how, placed = placement(node), None
    if node.op == "DepthwiseConv2dNative":
        if kernel.shape[3] == 1:
            placed = _over_each_channel(kernel.transpose((0, 1, 3, 2)), image, **how)
        kernel = _depthwise(kernel)
    elif kernel.shape[2] and image[2] > kernel.shape[2] and image[2] % kernel.shape[2] == 0:
        kernel = of_groups(kernel, image[2] // kernel.shape[2])
    lowered, shape = matrix(kernel, image, beside=flow.stored, **how)
    if node.op == "Conv2D" and image[2] == 1:
        miscompiled.refuse_column(how["strides"], shape)
    return _times(flow, lowered, placed or stencil(kernel, image, **how), shape)


def _over_each_channel(taps: Ball, image: tuple[int, ...], **how: Any) -> Stencil:
    """Returns the stencil of filters `(height, width, 1, channels)`, of one channel each."""
    return dataclasses.replace(stencil(taps, (*image[:2], 1), **how), alone=True)


@rule("AvgPool")
def average_pooled(node: NodeDef, flow: Flow) -> Flow:
    """Reads `AvgPool`: the mean of the entries of the window that are not padding."""
    image = image_shape(node, flow)
    size = two_axes(node, "ksize")
    require_shape((*size, image[2]), STORED_ENTRIES)
    window, channels, how = Ball.exact(np.ones((*size, 1, 1))), image[2], placement(node)
    one, (height, width, _) = matrix(window, (*image[:2], 1), **how)
    _refuse_many(channels * math.prod(size), height * width, channels * int(one.value.sum()))
    sums = SparseBall.exact(scipy.sparse.kron(one.value, scipy.sparse.eye_array(channels)))
    windows = _over_each_channel(Ball.exact(np.ones((*size, 1, channels))), image, **how)
    return averaged(flow, sums, windows, (height, width, channels))


def averaged(
    flow: Flow, sums: SparseBall, windows: Stencil | Bounded, shape: tuple[int, ...]
) -> Flow:
    """Divides each sum by its number of terms; `windows` are the norms of the sums."""
    parts = Ball.exact(sums.value.sum(axis=0)).reciprocal()
    averaged = _times(flow, sums, windows, shape).scaled(parts)
    if flow.kernel is None and not np.all(parts.value == parts.value[0]):
        # At a border, few pixels may count much; in rows and columns of the matrix they do not.
        means = scipy.sparse.csr_array(sums.value * (parts.value + parts.error))
        alone = Bounded(up(schur_bound(means))).with_inputs_scaled(flow.scale)
        nearest = min(alone, *(averaged.stencils or ()), key=lambda known: known.norm)
        averaged = dataclasses.replace(averaged, stencils=(nearest,))
    return averaged


def _times(
    flow: Flow, lowered: SparseBall, placed: Stencil | Bounded, shape: tuple[int, ...]
) -> Flow:
    return dataclasses.replace(flow.times(lowered, placed), shape=shape)


def _depthwise(kernel: Ball) -> Ball:
    """Makes a kernel `(height, width, channels, multiplier)` that of an ordinary convolution."""
    height, width, channels, multiplier = kernel.shape
    require_shape((height, width, channels, channels, multiplier), STORED_ENTRIES)
    own = np.eye(channels)[:, :, None]

    def spread(weights: np.ndarray) -> np.ndarray:
        weights = weights[:, :, :, None, :] * own
        return weights.reshape(height, width, channels, channels * multiplier)

    return kernel.each(spread)


def of_groups(kernel: Ball, groups: int) -> Ball:
    """Makes a kernel whose filters see a group of channels that of an ordinary convolution."""
    height, width, channels, filters = kernel.shape
    if filters % groups:
        raise InputError(f"{filters} filters cannot be shared out among {groups} groups")
    require_shape((height, width, groups * channels, filters))

    def spread(weights: np.ndarray) -> np.ndarray:
        each = weights.reshape(height, width, 1, channels, groups, filters // groups)
        own = each * np.eye(groups)[:, None, :, None]
        return own.reshape(height, width, groups * channels, filters)

    return kernel.each(spread)


def image_shape(node: NodeDef, flow: Flow) -> tuple[int, int, int]:
    """Returns an example's shape `(height, width, channels)`; InputError if it is no image."""
    if not isinstance(flow, Flow) or len(flow.shape) != 3:
        shape = getattr(flow, "shape", ())
        raise InputError(
            f"only images (height, width, channels) are supported. Received: examples of {shape}"
        )
    if node.attr["data_format"].s not in (b"", b"NHWC"):
        raise InputError(
            "only channels_last is supported. Received: "
            + node.attr["data_format"].s.decode(errors="replace")
        )
    return flow.shape


def placement(node: NodeDef) -> dict[str, Any]:
    """Returns the attributes of a convolution that say where its kernel lies, for `matrix`."""
    return {
        "strides": two_axes(node, "strides"),
        "dilations": two_axes(node, "dilations"),
        "padding": node.attr["padding"].s.decode(),
    }


def two_axes(node: NodeDef, name: str) -> tuple[int, int]:
    """Returns the two middle numbers of an attribute; those of batch and channels must be 1."""
    batch, down, across, channels = list(node.attr[name].list.i) or [1, 1, 1, 1]
    if (batch, channels) != (1, 1):
        raise InputError(f"{name} must be 1 along the batch and the channels")
    return down, across
