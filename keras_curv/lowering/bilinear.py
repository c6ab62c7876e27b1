"""Products and quotients of two flows, by squares and reciprocals of affine maps of both.

    xy = u² − v²,   u = (x/a + a y)/2,  v = (x/a − a y)/2,   a > 0

is exact for every a, so a product is a layer of two units with the activation `square`. Lines
around these lose least where u and v have the ranges of `x/a` and of `a y` alike: then they lose at
most `(range of x)(range of y)/4` on each side, as McCormick's envelope of xy does. The ranges are
those of a ball that nobody knows yet, so a is chosen by how far x and y move at a few samples. It
is a power of two: scaling by it rounds nothing.

A quotient is a product with `reciprocal`, of what is positive. A softmax inside a network is
`1 / Σ_j exp(z_j − z_i)`, entry by entry, which keeps its invariance to shifts and has no product.

The server multiplies x by y itself. In real arithmetic this is the same function; in float32 its
roundings are other ones, which nothing here charges: `float32` refuses the activation `square`.

Reference: McCormick, "Computability of global solutions to factorable nonconvex programs" (1976).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.lowering.branches import joined, plus, summed
from keras_curv.lowering.chain import ancestors
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.sparse_error_ball import SparseBall
from keras_curv.lowering.stencil import Bounded
from keras_curv.numerics.rounding import up
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, charge_entries, require_shape

_FARTHEST = 20  # the scale is at most 2 to this


def product(one: Flow, other: Flow) -> Flow:
    """Returns the product of two flows of one shape, entry by entry."""
    if one is other:
        return one.activated("square")
    for flow, constant in ((one, other), (other, one)):
        if constant.kernel is None and constant.scale.equals(0.0):
            return flow.scaled(constant.shift)
    size = one.shift.shape[0]
    require_shape((2 * size,), EXAMPLE_ENTRIES)
    scale = _scale(one, other)
    x, y = (
        flow.rearranged(np.arange(size)).scaled(Ball.exact(np.full(size, factor / 2.0)))
        for flow, factor in ((one, 1.0 / scale), (other, scale))
    )
    squares = joined([plus(x, y), plus(x, -y)]).activated("square")
    ones = np.ones(size)
    entries = np.concatenate([ones, -ones]), (np.arange(2 * size), np.tile(np.arange(size), 2))
    difference = scipy.sparse.csr_array(entries, shape=(2 * size, size))
    result = squares.times(SparseBall.exact(difference), Bounded(up(math.sqrt(2.0))))
    return dataclasses.replace(result, shape=one.shape)


def contracted(one: Flow, other: Flow, taken: str, given: str, made: str) -> Flow:
    """Returns sums of products of two flows, as an einsum of each example.

    Args:
        one, other: the flows.
        taken, given, made: a letter for each axis of an example of one, of the other, of the
            result.

    Example:
        >>> x = Flow.input((2, 3))
        >>> contracted(x, x, "ac", "bc", "ab").shape
        (2, 2)
    """
    sizes = dict(zip(taken, one.shape, strict=True))
    for axis, size in zip(given, other.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise InputError(f"a product of examples {one.shape} and {other.shape} does not fit")
    if any(len(set(axes)) < len(axes) for axes in (taken, given, made)):
        raise InputError("an axis that is there twice, as of a diagonal, is not supported")
    if not set(made) <= set(sizes):
        raise InputError("an axis of the result that no operand has is not supported")
    axes = [*made, *(axis for axis in sizes if axis not in made)]
    shape, kept = tuple(sizes[axis] for axis in axes), tuple(sizes[axis] for axis in made)
    require_shape(shape, EXAMPLE_ENTRIES // 2)

    def spread(flow: Flow, own: str) -> Flow:
        places = np.arange(flow.shift.shape[0]).reshape(flow.shape)
        places = places.transpose([own.index(axis) for axis in axes if axis in own])
        places = places.reshape([sizes[axis] if axis in own else 1 for axis in axes])
        return flow.rearranged(np.broadcast_to(places, shape).reshape(-1))

    target = np.arange(math.prod(kept)).repeat(math.prod(shape) // math.prod(kept))
    return summed(product(spread(one, taken), spread(other, given)), target, kept)


def softmax(flow: Flow, axis: int) -> Flow:
    """Returns the softmax along an axis of each example."""
    classes, size = flow.shape[axis], flow.shift.shape[0]
    require_shape((size * classes,), EXAMPLE_ENTRIES)
    if classes == 1:
        raise InputError("a softmax of one entry is 1, whatever the input is")
    shape = tuple(np.delete(flow.shape, axis).tolist())
    positions = np.moveaxis(np.arange(size).reshape(flow.shape), axis, -1).reshape(-1, classes)
    own, others = np.nonzero(~np.eye(classes, dtype=bool))
    apart = flow.rearranged(positions[:, others].reshape(-1))
    apart = plus(apart, -flow.rearranged(positions[:, own].reshape(-1)))
    target = np.arange(size).reshape(-1, classes)[:, own]
    total = summed(apart.activated("exponential"), target, (size,))
    shares = total.shifted(Ball.exact(np.ones(size))).activated("reciprocal")
    back = np.moveaxis(np.arange(size).reshape(*shape, classes), -1, axis)
    return shares.rearranged(back)


def _scale(one: Flow, other: Flow) -> float:
    """Returns a power of two, about the square root of how much farther `one` moves than `other`.

    It is an estimate, which makes bounds tighter or looser, and never wrong.
    """
    with np.errstate(all="ignore"):
        apart = [np.abs(np.diff(_probed(flow), axis=0))[::2] for flow in (one, other)]
        ratio = np.log2(apart[0] / apart[1])
    ratio = ratio[np.isfinite(ratio)]
    if not len(ratio):
        return 1.0
    return float(2.0 ** np.clip(np.rint(np.median(ratio) / 2.0), -_FARTHEST, _FARTHEST))


def _probed(flow: Flow) -> np.ndarray:
    """Returns the flow's values at pairs of samples that are close, `(samples, size)`."""
    for source in ancestors(flow.sources):
        _ = source.probes  # each is made of those before it
    base = np.concatenate([source.probes for source in flow.sources], axis=1)
    charge_entries(2 * len(base), flow.stored, "samples of a product")
    if flow.kernel is None:
        return base[:, flow.order] * flow.scale.value + flow.shift.value
    return base @ flow.kernel.value + flow.shift.value
