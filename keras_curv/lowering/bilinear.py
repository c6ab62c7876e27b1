"""Products and quotients of two flows, by squares and reciprocals of affine maps of both.

    xy = u² − v²,   u = (x/a + a y)/2,  v = (x/a − a y)/2,   a > 0

is exact for every a, so a product is a layer of two units with the activation `square`. Lines
around these lose least where `x/a` and `a y` have ranges of one length: then at most half the
product of the ranges of x and y, twice what McCormick's envelope of xy loses. The ranges are those
of a ball that nobody knows yet, so a is chosen by how far x and y move at a few samples. It is a
power of two: scaling by it rounds nothing.

A quotient is a product with `reciprocal`, of what is positive. A softmax inside a network is
`1 / Σ_j exp(z_j − z_i)`, entry by entry, which keeps its invariance to shifts and has no product.

The server multiplies x by y itself. In real arithmetic this is the same function; in float32 its
roundings are other ones, which nothing here charges: `float32` refuses the activation `square`.

Reference: McCormick, "Computability of global solutions to factorable nonconvex programs" (1976).
"""

from __future__ import annotations

import math

import numpy as np

from keras_curv.errors import InputError
from keras_curv.lowering.branches import joined, picked, plus, summed
from keras_curv.lowering.chain import Source, ancestors
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.network.unitwise import IDENTITY
from keras_curv.numerics.rounding import TINY
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, charge_entries, require_shape

_PRODUCTS = EXAMPLE_ENTRIES // 4  # of one op: two units each, with a few numbers for each
_FARTHEST = 20  # the scale is at most 2 to this
_MANY = 4  # times as many numbers
_SAMPLES = 8
_APART = 0.01  # of a sample from the next
_TYPICAL = 0.25  # size of what is first computed of an input, by trial


def product(one: Flow, other: Flow) -> Flow:
    """Returns the product of two flows of one shape, entry by entry."""
    if one is other:
        return one.activated("square")
    for flow, constant in ((one, other), (other, one)):
        if constant.kernel is None and constant.scale.equals(0.0):
            return flow.scaled(constant.shift)
    size = one.shift.shape[0]
    require_shape((size,), _PRODUCTS)
    return _summed_products(one, other, np.arange(size), one.shape)


def _summed_products(one: Flow, other: Flow, target: np.ndarray, shape: tuple[int, ...]) -> Flow:
    """Returns sums of products of entries, as `branches.summed` of them; see the module."""
    size, scale = one.shift.shape[0], _scale(one, other)
    x, y = (
        flow.rearranged(np.arange(size)).scaled(Ball.exact(np.full(size, factor / 2.0)))
        for flow, factor in ((one, 1.0 / scale), (other, scale))
    )
    squares = joined([plus(x, y), plus(x, -y)]).activated("square")
    signs = Ball.exact(np.repeat([1.0, -1.0], size))
    return summed(squares.scaled(signs), np.tile(target, 2), shape)


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
    require_shape(shape, _PRODUCTS)

    def spread(flow: Flow, own: str) -> Flow:
        places = np.arange(flow.shift.shape[0]).reshape(flow.shape)
        places = places.transpose([own.index(axis) for axis in axes if axis in own])
        places = places.reshape([sizes[axis] if axis in own else 1 for axis in axes])
        return picked(flow, np.broadcast_to(places, shape).reshape(-1))

    target = np.arange(math.prod(kept)).repeat(math.prod(shape) // math.prod(kept))
    one, other = (_as_base(flow, math.prod(shape)) for flow in (one, other))
    result = _summed_products(spread(one, taken), spread(other, given), target, kept)
    return _as_base(result, result.base)


def softmax(flow: Flow, axis: int) -> Flow:
    """Returns the softmax along an axis of each example."""
    classes, size = flow.shape[axis], flow.shift.shape[0]
    require_shape((size * classes,), EXAMPLE_ENTRIES)
    if classes == 1:
        raise InputError("a softmax of one entry is 1, whatever the input is")
    shape = tuple(np.delete(flow.shape, axis).tolist())
    flow = _as_base(flow, size * classes)
    positions = np.moveaxis(np.arange(size).reshape(flow.shape), axis, -1).reshape(-1, classes)
    own, others = np.nonzero(~np.eye(classes, dtype=bool))
    apart = picked(flow, positions[:, others].reshape(-1))
    apart = plus(apart, -picked(flow, positions[:, own].reshape(-1)))
    target = np.arange(size).reshape(-1, classes)[:, own]
    total = summed(apart.activated("exponential"), target, (size,))
    shares = total.shifted(Ball.exact(np.ones(size))).activated("reciprocal")
    back = np.moveaxis(np.arange(size).reshape(*shape, classes), -1, axis)
    return shares.rearranged(back)


def _as_base(flow: Flow, size: int) -> Flow:
    """Returns the flow as the output of a layer of its own, if it has a kernel and that size is
    many times its own: that of its copies, which would each hold all its weights, or of its base,
    which a later layer would have to carry."""
    grows = flow.kernel is not None and size >= _MANY * flow.shift.shape[0]
    return flow.activated(IDENTITY) if grows else flow


def _scale(one: Flow, other: Flow) -> float:
    """Returns a power of two, about the square root of how much farther `one` moves than `other`.

    Root mean squares are compared: where few entries move far, as factors of a normalisation whose
    variance is small, these lose most of a bound. It is an estimate, which makes bounds tighter or
    looser, and never wrong.
    """
    with np.errstate(all="ignore"):
        moved = [np.diff(values, axis=0)[::2] for values in _sampled([one, other])]
        first, second = (np.sqrt(np.mean(moves**2)) for moves in moved)
        ratio = np.log2(first / second)
    if not np.isfinite(ratio):
        return 1.0
    return float(2.0 ** np.clip(np.rint(ratio / 2.0), -_FARTHEST, _FARTHEST))


def _sampled(flows: list[Flow]) -> list[np.ndarray]:
    """Returns the flows' values at pairs of inputs that are close, `(samples, size)` each.

    The inputs are of such a size that what is first computed of them is about `_TYPICAL`.
    """
    given, *sources = ancestors(source for flow in flows for source in flow.sources)
    maps = [(source, source.affine) for source in sources if source.affine is not None]
    stored = sum(affine.kernel.size for _, affine in maps) + sum(flow.stored for flow in flows)
    charge_entries(2 * _SAMPLES, stored, "samples of a product")
    rng = np.random.default_rng(0)
    x, apart = rng.normal(size=(2, _SAMPLES // 2, given.size))
    x = np.stack([x, x + _APART * apart], axis=1).reshape(_SAMPLES, -1)
    first = [affine.kernel for source, affine in maps if source.depth == 1]
    first = first or [flow.kernel.value for flow in flows if flow.kernel is not None]
    sizes = [float(np.median(np.abs(x @ kernel))) for kernel in first]
    values = {given: _TYPICAL * x / max([*sizes, TINY]) if sizes else x}

    def base(of: tuple[Source, ...]) -> np.ndarray:
        return np.concatenate([values[source] for source in of], axis=1)

    def at(flow: Flow) -> np.ndarray:
        if flow.kernel is None:
            return base(flow.sources)[:, flow.order] * flow.scale.value + flow.shift.value
        return base(flow.sources) @ flow.kernel.value + flow.shift.value

    for source, affine in maps:
        values[source] = source.activated(base(source.sources) @ affine.kernel + affine.bias)
    return [at(flow) for flow in flows]
