"""Rules of products with a constant: of whole examples, of their rows, along any of their axes.

`MatMul`, `BatchMatMul`, `Einsum`, and what `contractions.py` makes of a dense layer on the last
axis are sums `y[…] = Σ x[…] K[…]`, each axis of an example or of the constant K with a letter. An
axis is

- *free*, of the example alone, and then of the result;
- *summed* over, of both and not of the result;
- *shared*, of both and of the result: K has a matrix of its own for each place on it;
- *new*, of the constant alone, and then of the result.

With an example's axes in the order free, shared, summed that is a convolution with a window of one
pixel: a pixel for each place on the free axes, a group of channels for each on the shared ones.

A server may add up in any order, which is what `Ball.__matmul__` charges. A sum over an axis of one
operand alone, which may be taken before the product, is not read.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import bilinear
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules import convolution
from keras_curv.lowering.rules.image import positions_of, require_constant, require_flow
from keras_curv.lowering.rules.registry import rule

_EQUATION = re.compile(r"([a-zA-Z]*)(\.\.\.)?([a-zA-Z]*)")
_MORE = "0123456789"  # the axes that an ellipsis stands for


def contracted(flow: Flow, kernel: Ball, taken: str, given: str, made: str) -> Flow:
    """Sums products over all axes that the result lacks; see the module.

    Args:
        flow: what depends on the input.
        kernel: the constant.
        taken, given, made: a letter for each axis of an example, of the constant, of the result.

    Raises:
        InputError: the letters do not fit the shapes or one another, or the product is too large.

    Example:
        >>> rows = Flow.input((2, 3))
        >>> contracted(rows, Ball.exact(np.ones((3, 5))), "ab", "bc", "ac").shape
        (2, 5)
    """
    shapes = f"examples {flow.shape} with a constant of shape {kernel.shape}"
    if len(taken) != len(flow.shape) or len(given) != len(kernel.shape):
        raise InputError(f"a product of {shapes} is not supported")
    sizes = dict(zip(taken, flow.shape, strict=True))
    for axis, size in zip(given, kernel.shape, strict=True):
        if sizes.setdefault(axis, size) != size or not size:
            raise InputError(f"a product of {shapes} does not fit")
    free, shared, summed, new = _kinds(taken, given, made)

    def order(axes: Sequence[str], among: Sequence[str]) -> list[int]:
        return [among.index(axis) for axis in axes]

    pixels, groups, terms = (
        math.prod(sizes[axis] for axis in axes) for axes in (free, shared, summed)
    )
    matrix = kernel.transpose(order([*summed, *shared, *new], given)).reshape((terms, -1))
    positions = positions_of(flow).transpose(order([*free, *shared, *summed], taken))
    axes = [*free, *shared, *new]
    shape = tuple(sizes[axis] for axis in axes)
    if pixels == groups == 1:
        product = flow.rearranged(positions.reshape(-1)).times(matrix)
    else:
        image = 1, pixels, groups * terms
        taps = convolution.of_groups(matrix.reshape((1, 1, *matrix.shape)), groups)
        lowered, _ = convolution.matrix(taps, image)
        flow = flow.rearranged(positions.reshape(image))
        product = flow.times(lowered, convolution.stencil(taps, image))
        if shape[-1] != taps.shape[3]:  # an image with other channels
            product = product.rearranged(positions_of(product).reshape(shape))
    product = dataclasses.replace(product, shape=shape)
    if list(made) == axes:
        return product
    return product.rearranged(positions_of(product).transpose(order(made, axes)))


def _kinds(taken: str, given: str, made: str) -> tuple[list[str], ...]:
    """Returns the axes that are free, shared, summed over, and new."""
    both = [axis for axis in taken if axis in given]
    free, new = ([axis for axis in axes if axis not in both] for axes in (taken, given))
    shared = [axis for axis in both if axis in made]
    if any(len(set(axes)) < len(axes) for axes in (taken, given, made)):
        raise InputError("an axis that is there twice, as of a diagonal, is not supported")
    if set(made) != {*free, *shared, *new}:
        raise InputError("a sum over an axis of one operand alone is not supported")
    return free, shared, [axis for axis in both if axis not in made], new


@rule("MatMul", "BatchMatMulV2")
def multiplied(node: NodeDef, one: Value, other: Value) -> Flow:
    """Reads `MatMul`, and `BatchMatMulV2` of a matrix that is the same for all examples."""
    turned = [node.attr[f"transpose_{x}"].b or node.attr[f"adj_{y}"].b for x, y in ("ax", "by")]
    if isinstance(one, Flow) and isinstance(other, Flow):
        return _of_flows(one, other, turned)
    left = isinstance(one, Flow)
    flow, kernel = (one, other) if left else (other, one)
    if not left and (not isinstance(flow, Flow) or len(flow.shape) == 1):
        raise InputError("the input must be on the left of a product")
    flow, kernel = require_flow(flow), require_constant(kernel)
    # Rows and columns: of the left one rs, of the other sc, of the product rc.
    operands = zip(("rs", "sc"), turned, strict=True)
    letters = [pair[::-1] if turn else pair for pair, turn in operands]
    if len(flow.shape) == 1:
        if turned[0]:
            raise InputError("a product with the transposed batch mixes examples")
        return contracted(flow, kernel, "s", letters[1], "c")
    if 1 in flow.shape[:-2]:
        raise InputError(
            "TensorFlow 2.21 may fail where a matrix multiplies those behind an axis of one entry "
            f"(its issue 117700), as in examples {flow.shape}; drop that axis, or use Dense"
        )
    before = _MORE[: len(flow.shape) - 2]
    taken, given = letters if left else letters[::-1]
    return contracted(flow, kernel, before + taken, given, before + "rc")


def _of_flows(one: Flow, other: Flow, turned: Sequence[bool]) -> Flow:
    """Returns the product of the matrices of each example."""
    if min(len(one.shape), len(other.shape)) < 2:
        raise InputError("a product of two batches of vectors mixes examples")
    before = _MORE[: len(one.shape) - 2]
    if one.shape[:-2] != other.shape[:-2] or 1 in one.shape[:-2]:
        raise InputError(
            f"a product of examples {one.shape} and {other.shape} is not supported: axes before "
            "the last two must be the same, and have more than one entry"
        )
    rows = [pair[::-1] if turn else pair for pair, turn in zip(("rs", "sc"), turned, strict=True)]
    return bilinear.contracted(one, other, before + rows[0], before + rows[1], before + "rc")


@rule("Einsum")
def summed(node: NodeDef, *operands: Value) -> Flow:
    """Reads `Einsum` of a tensor that depends on the input and a constant."""
    text = node.attr["equation"].s.decode(errors="replace")
    terms, _, result = text.partition("->")
    parts = [part for term in (*terms.split(","), result) if (part := _EQUATION.fullmatch(term))]
    if len(parts) != 3 or len(operands) != 2 or "->" not in text or text.count(",") != 1:
        raise InputError(f"only equations of two operands are supported. Received: {text!r}")
    first, second, made = parts
    flow, kernel = operands
    if not isinstance(flow, Flow):
        flow, kernel, first, second = kernel, flow, second, first
    if isinstance(flow, Flow) and isinstance(kernel, Flow):
        return _summed_flows(flow, kernel, *(part[0] for part in parts))
    flow, kernel = require_flow(flow), require_constant(kernel)
    if second[2]:
        raise InputError(f"an ellipsis of a constant is not supported. Received: {text!r}")
    more = len(flow.shape) + 1 - len(first[1] + first[3])
    if bool(first[2]) != bool(made[2]) or not 0 <= more <= len(_MORE) * bool(first[2]):
        raise InputError(f"{text!r} does not fit examples {flow.shape}")
    taken, result = (
        part[1] + (_MORE[:more] if part[2] else "") + part[3] for part in (first, made)
    )
    if not taken or taken[0] != result[:1] or taken[0] in second[0]:
        raise InputError(f"{text!r} mixes examples, or moves the axis of the batch")
    return contracted(flow, kernel, taken[1:], second[0], result[1:])


def _summed_flows(one: Flow, other: Flow, taken: str, given: str, made: str) -> Flow:
    if "." in taken + given + made or not taken[:1] == given[:1] == made[:1] != "":
        text = f"{taken},{given}->{made}"
        raise InputError(f"{text!r} mixes examples, moves the axis of the batch, or has ellipses")
    batch, axes = taken[0], (taken[1:], given[1:], made[1:])
    if any(batch in rest for rest in axes):
        raise InputError(f"the axis of the batch is there twice in {taken!r} or {given!r}")
    return bilinear.contracted(one, other, *axes)


@rule("RowsMatMul")
def dense_on_last_axis(node: NodeDef, flow: Flow, kernel: Ball) -> Flow:
    """Multiplies each pixel's channels by one matrix: a dense layer on the last axis.

    TensorFlow reshapes to a matrix with as many columns as the kernel has rows, multiplies, and
    reshapes back. Its rows can only be the pixels' channels, or whole examples.
    """
    require_flow(flow)
    if node.attr["transpose_a"].b or not isinstance(kernel, Ball) or len(kernel.shape) != 2:
        raise InputError("only supported with a constant matrix on the right")
    if node.attr["transpose_b"].b:
        kernel = kernel.transpose()
    if kernel.shape[0] == flow.shift.shape[0]:
        flow = flow.rearranged(np.arange(kernel.shape[0]))
    pixel = _MORE[: len(flow.shape) - 1]
    return contracted(flow, kernel, pixel + "s", "sc", pixel + "c")
