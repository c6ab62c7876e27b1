"""Rules of ops that resize images: `ResizeBilinear` and `ResizeNearestNeighbor`.

Along an axis of n pixels that becomes m, pixel o of the result lies at `(o + ½) n/m − ½`, by
TensorFlow's half-pixel centres. Bilinear, it mixes the two pixels that it lies between, which count
by how near they are; or it is the nearest one. Beyond the outermost pixels their own values go on.

Real weights are those of exact arithmetic. A server computes places in float32, off by at most
`4u (n + 1)`, and so are the weights of the two pixels and of their neighbours. As a result is
`a + (b − a) w`, three times, some 8u of each of these pixels may be lost besides.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import scipy.sparse
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules.image import picked, positions_of
from keras_curv.lowering.rules.registry import rule
from keras_curv.lowering.sparse_error_ball import SparseBall, entries_at
from keras_curv.lowering.stencil import Bounded
from keras_curv.network.sparse_affine import schur_bound
from keras_curv.numerics.rounding import FLOAT32_UNIT, UNIT, up
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, charge, require_shape

_SEEN = 4  # pixels along an axis that a server may mix into one: two, and their neighbours


@rule("ResizeBilinear")
def bilinear(node: NodeDef, flow: Flow, size: np.ndarray) -> Flow:
    """Reads `ResizeBilinear` of each example."""
    shape = _resized_shape(node, flow, size)
    charge(_SEEN**2 * shape[0] * shape[1] * shape[2], "resizing")
    axes = [interpolation(n, m) for n, m in zip(flow.shape[:2], shape[:2], strict=True)]
    channels = scipy.sparse.eye_array(shape[2])
    value, seen = (
        scipy.sparse.csr_array(scipy.sparse.kron(scipy.sparse.kron(down, across), channels))
        for down, across in zip(*axes, strict=True)
    )
    off = (8.0 * sum(flow.shape[:2]) + 32.0) * FLOAT32_UNIT
    seen.sort_indices()
    entries = entries_at(seen, value)
    weights = SparseBall.at(seen, Ball(entries, 8.0 * UNIT * entries, off * seen.data))
    product = flow.times(weights, Bounded(up(schur_bound(value), 16)))
    return dataclasses.replace(product, shape=shape)


@rule("ResizeNearestNeighbor")
def nearest(node: NodeDef, flow: Flow, size: np.ndarray) -> Flow:
    """Reads `ResizeNearestNeighbor` of each example."""
    shape = _resized_shape(node, flow, size)
    rows, columns = (nearest_pixels(n, m) for n, m in zip(flow.shape[:2], shape[:2], strict=True))
    return picked(flow, positions_of(flow)[np.ix_(rows, columns)])


def interpolation(n: int, m: int) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """Returns weights from n pixels to m, `(n, m)`, and ones where a server's may not be 0."""
    twice = (2 * np.arange(m) + 1) * n - m  # 2m times the place
    first = twice // (2 * m)
    beyond = twice - 2 * m * first
    pixels = np.concatenate([first, first + 1]).clip(0, n - 1)
    results = np.tile(np.arange(m), 2)
    weights = scipy.sparse.csr_array(
        (np.concatenate([2 * m - beyond, beyond]) / (2 * m), (pixels, results)), shape=(n, m)
    )
    around = (first[:, None] + np.arange(-1, _SEEN - 1)).clip(0, n - 1)
    entries = np.ones(around.size), (around.reshape(-1), np.repeat(np.arange(m), _SEEN))
    seen = scipy.sparse.csr_array(entries, shape=(n, m))
    return weights, seen.minimum(scipy.sparse.csr_array(np.ones((n, m))))


def nearest_pixels(n: int, m: int) -> np.ndarray:
    """Returns which of n pixels is nearest to each of m; refuses it if float32 may take another."""
    twice = (2 * np.arange(m) + 1) * n
    exact = Fraction(float(np.float32(n) / np.float32(m))) == Fraction(n, m)
    edge = np.minimum(twice % (2 * m), -twice % (2 * m)) / (2 * m)
    # Where the ratio is exact a place is rounded once, and one on the edge not at all.
    near = edge[edge > 0.0] < 2.0 * FLOAT32_UNIT * n if exact else edge < 8.0 * FLOAT32_UNIT * n
    if np.any(near):
        raise InputError(f"from {n} pixels to {m}, two pixels are equally near")
    return (twice // (2 * m)).clip(0, n - 1)


def _resized_shape(node: NodeDef, flow: Flow, size: np.ndarray) -> tuple[int, int, int]:
    if not isinstance(flow, Flow) or len(flow.shape) != 3:
        raise InputError("only supported for images (height, width, channels)")
    if not isinstance(size, np.ndarray) or size.shape != (2,) or size.min() < 1:
        raise InputError("the size must be two positive constants")
    if node.attr["align_corners"].b or not node.attr["half_pixel_centers"].b:
        raise InputError("only supported with half-pixel centres, as tf.image.resize has it")
    shape = int(size[0]), int(size[1]), flow.shape[2]
    require_shape(shape, EXAMPLE_ENTRIES)
    return shape
