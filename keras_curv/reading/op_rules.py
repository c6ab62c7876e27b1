"""The rules: what each op does to the numbers, as `flow.py` and `ball.py` can say it.

A rule takes the node and its arguments: `Flow` for what depends on the input, `Ball` for float
constants, integer arrays for shapes. It returns one of these, or raises `Unreadable` where it
does not cover the case. An op without a rule is refused; nothing is guessed.

The number of examples is a symbol: it may stand first in a shape, which is how a reshape shows
that it does not mix examples, but nothing may be computed from it. A model whose arithmetic looks
at the batch size could be another function for a server's batch of one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from keras_curv.network.activations import ACTIVATIONS
from keras_curv.reading import clip_rules, convolution, image_rules, patterns
from keras_curv.reading.ball import Ball
from keras_curv.reading.flow import Flow
from keras_curv.reading.limits import NODES, TENSOR_ENTRIES, require_shape


class Unreadable(Exception):
    """A rule does not apply; the text says why."""


class _BatchSize:
    """How many examples there are."""

    def __repr__(self):
        return "batch"

    def _refuse(self, *unused):
        raise Unreadable("a number is computed from the batch size, so the model may depend on it")

    __int__ = __index__ = __float__ = __bool__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse


ACTIVATION_OPS = ("Softplus", "Sigmoid", "Tanh", "Relu", "Elu", "Softsign", *patterns.NAMES)
_BATCH = _BatchSize()
_RULES: dict[str, Callable] = {}


def _rule(*ops: str):
    def register(function):
        _RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def apply(node: node_def_pb2.NodeDef, arguments: list):
    """What the node makes of its arguments.

    Raises:
        Unreadable: there is no rule for it, or the rule does not cover the case.
    """
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        require_shape(dim.size for dim in tensor.tensor_shape.dim)
        return _constant(tf.make_ndarray(tensor))
    if node.op not in _RULES:
        raise Unreadable(_WHY_NOT.get(node.op, "there is no rule that reads this op"))
    flows = [argument for argument in arguments if isinstance(argument, Flow)]
    if flows and node.op not in _EXACT:
        _require_float(node)
    if any(flow.head != "logits" for flow in flows) and node.op != "Identity":
        raise Unreadable(f"nothing may follow the final {flows[0].head}")
    _refuse_large(node.op, [a for a in arguments if isinstance(a, (Ball, np.ndarray))])
    result = _RULES[node.op](node, *arguments)
    if isinstance(result, (np.ndarray, np.integer, int)):
        return _integers(np.asarray(result))
    return result


def _integers(array: np.ndarray) -> np.ndarray:
    """Entries of a shape; those that TensorFlow's integers could not hold are refused."""
    if any(isinstance(n, int) and abs(n) >= 2**31 for n in array.reshape(-1).tolist()):
        raise Unreadable("a number of 2³¹ or more is computed, which may wrap around")
    return array


def _require_float(node: node_def_pb2.NodeDef) -> None:
    dtype = tf.as_dtype(node.attr["T"].type or tf.float32.as_datatype_enum)
    if dtype.is_integer:
        raise Unreadable("integers wrap around; cast them to a float first")
    if dtype not in (tf.float32, tf.float64):
        raise Unreadable(f"{dtype.name} rounds; only float32 and float64 are supported")


def _refuse_large(op: str, constants: list) -> None:
    """Refuses what constants would grow to, put together or broadcast against one another."""
    shapes = [constant.shape for constant in constants]
    integers = any(isinstance(constant, np.ndarray) for constant in constants)
    limit = NODES if integers else TENSOR_ENTRIES  # integers are shapes, and parts of them
    if op in ("ConcatV2", "Pack"):
        require_shape([sum(math.prod(shape) for shape in shapes)], limit)
    elif len(shapes) > 1 and op in _BROADCAST:
        require_shape(np.broadcast_shapes(*shapes), limit)


def _constant(array: np.ndarray):
    """Floats become balls; integers, shapes among them, stay as they are."""
    if array.dtype in (np.float32, np.float64):
        return Ball.exact(array.astype(np.float64))
    if array.dtype in (np.int32, np.int64, np.bool_):
        return array
    raise Unreadable(f"constants of type {array.dtype} are not supported")


# Of these, numbers come out as they went in, whatever their type.
_EXACT = (
    *(*patterns.HANDS_ON, "Cast", "Shape", "Reshape", "Squeeze", "ExpandDims", "Transpose"),
    *("Pad", "StridedSlice", "Tile", "GatherV2", "ReverseV2", "SpaceToDepth", "DepthToSpace"),
)
_BROADCAST = ("Add", "AddV2", "BiasAdd", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum")
_KNOWN = f"there are bounds for: {', '.join(ACTIVATIONS)}"
_WHY_NOT = {
    "MaxPool": "max pooling is not supported; use average pooling, or strides",
    "SpaceToBatchND": "it mixes examples, and not as a dilated convolution does",
    "Exp": f"its slope is unbounded; {_KNOWN}",
}


def _per_example(array: Ball, shape: tuple[int, ...]) -> Ball:
    """A constant broadcast against `(batch, *shape)`, as one example's entries, flattened."""
    if array.value.ndim > len(shape) and array.value.shape[0] != 1:
        raise Unreadable(f"a constant of shape {array.shape} differs between examples")
    if array.value.ndim > len(shape):
        array = array.reshape(array.shape[1:])
    try:
        return array.broadcast_to(shape).reshape((-1,))
    except ValueError:
        raise Unreadable(
            f"a constant of shape {array.shape} does not fit examples of shape {shape}"
        ) from None


def _need_constant(value) -> Ball:
    if not isinstance(value, Ball):
        raise Unreadable("both operands depend on the input, or one is not a float")
    return value


@_rule(*patterns.HANDS_ON)
def _identity(node, value, *others):
    return value  # of several outputs, `graph.py` reads the first only


@_rule("Cast")
def _cast(node, value):
    target = tf.dtypes.as_dtype(node.attr["DstT"].type)
    if node.attr["Truncate"].b:
        raise Unreadable("a cast that cuts digits off rounds by more than is charged")
    if target in (tf.float32, tf.float64):
        if isinstance(value, np.ndarray):
            return _float_of(value)
        if isinstance(value, Ball) and target == tf.float32 and value.overflows_float32():
            raise Unreadable("a constant is too large for float32")
        return value.rounded()  # in real arithmetic it keeps its value
    if isinstance(value, np.ndarray) and target in (tf.int32, tf.int64):
        return value  # a shape, or part of one, and small
    raise Unreadable(f"a cast to {target.name} rounds; use float32 or float64 throughout")


def _float_of(integers: np.ndarray) -> Ball:
    if integers.dtype == np.bool_ or any(isinstance(n, _BatchSize) for n in integers.flat):
        raise Unreadable("a float made from integers may depend on the batch size")
    if any(abs(int(n)) > 2**24 for n in integers.flat):
        raise Unreadable("an integer is too large for float32 to hold")
    return Ball.exact(integers.astype(np.float64))


@_rule("Add", "AddV2", "BiasAdd")
def _add(node, a, b):
    if node.op == "BiasAdd" and node.attr["data_format"].s not in (b"", b"NHWC"):
        raise Unreadable("only channels_last is supported")
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a + b
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        offset = _need_constant(b)
        return a.shifted(_per_example(offset, _grown(a, offset)))
    return _need_constant(a) + _need_constant(b)


@_rule("Sub")
def _sub(node, a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a - b
    if isinstance(a, Flow):
        return _add(node, a, -_need_constant(b))
    if isinstance(b, Flow):
        return _add(node, b.scaled(Ball.exact(-np.ones(b.shift.shape))), a)
    return _need_constant(a) - _need_constant(b)


@_rule("Mul")
def _mul(node, a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a * b
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        factor = _need_constant(b)
        return a.scaled(_per_example(factor, _grown(a, factor)))
    return _need_constant(a) * _need_constant(b)


@_rule("RealDiv", "Div")
def _divide(node, a, b):
    if isinstance(a, Flow):
        return _mul(node, a, _need_constant(b).reciprocal())
    return _need_constant(a) / _need_constant(b)


def _grown(flow: Flow, constant: Ball) -> tuple[int, ...]:
    """The example's shape; a constant must not broadcast it to a larger one."""
    if len(constant.shape) > len(flow.shape) + 1:
        raise Unreadable(f"a constant of shape {constant.shape} would add an axis")
    return flow.shape


@_rule("Neg")
def _neg(node, value):
    _require_float(node)
    if isinstance(value, Flow):
        return value.scaled(Ball.exact(-np.ones(value.shift.shape)))
    return -value


@_rule("Sqrt", "Rsqrt", "Square", "Reciprocal", "Inv")
def _of_constant(node, value):
    name = {"Inv": "reciprocal"}.get(node.op, node.op.lower())
    return getattr(_need_constant(value), name)()


@_rule("Maximum")
def _maximum(node, a, b):
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        return _need_constant(a).maximum(_need_constant(b))
    return clip_rules.maximum(a, _per_example(_need_constant(b), _grown(a, b)))


@_rule("Minimum")
def _minimum(node, a, b):
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        raise Unreadable("a minimum of constants")
    return clip_rules.minimum(a, _per_example(_need_constant(b), _grown(a, b)))


@_rule("MatMul", "BatchMatMulV2")
def _matmul(node, a, b):
    if not isinstance(a, Flow):
        raise Unreadable("the input must be on the left of a product")
    kernel = _need_constant(b)
    if node.attr["transpose_a"].b or node.attr["adj_x"].b:
        raise Unreadable("a product with the transposed batch mixes examples")
    if node.attr["transpose_b"].b or node.attr["adj_y"].b:
        kernel = kernel.transpose()
    if len(a.shape) != 1 or kernel.value.ndim != 2 or a.shape[0] != kernel.shape[0]:
        raise Unreadable(
            f"a product of examples {a.shape} with a matrix {kernel.shape}; only "
            "(features,) with (features, units) is supported: put a Flatten before"
        )
    return a.times(kernel)


_rule("Conv2D", "DepthwiseConv2dNative")(convolution.convolved)
_rule("AvgPool")(convolution.average_pooled)
_rule("Mean")(convolution.mean)
_rule("Clip")(clip_rules.clipped)
_rule("Relu6", "Selu", "LeakyRelu")(clip_rules.piecewise)
_RULES.update(image_rules.RULES)


@_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_normalized(node, value, scale, offset, mean, variance):
    if node.attr["is_training"].b or node.attr["data_format"].s not in (b"", b"NHWC"):
        raise Unreadable("only supported at inference, with channels last")
    epsilon = Ball.exact(np.float64(node.attr["epsilon"].f))
    factor = _need_constant(scale) * (_need_constant(variance) + epsilon).rsqrt()
    # The mean first: where it is folded into the offset instead, `Flow.shifted` has charged it.
    centred = _add(node, value, -_need_constant(mean))
    return _add(node, _mul(node, centred, factor), _need_constant(offset))


@_rule(*ACTIVATION_OPS)
def _activation(node, value):
    if not isinstance(value, Flow):
        raise Unreadable("an activation of a constant")
    return value.activated(node.op.lower())


_rule("sparse_sigmoid")(clip_rules.sparse_sigmoid)


@_rule("Softmax", "LogSoftmax")
def _head(node, value):
    if not isinstance(value, Flow) or len(value.shape) != 1:
        raise Unreadable("a softmax must be over the classes, at the end")
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    return dataclasses.replace(value, head=name)


@_rule("Shape")
def _shape(node, value):
    return np.array([_BATCH, *value.shape] if isinstance(value, Flow) else value.shape, object)


@_rule("Reshape")
def _reshape(node, value, shape):
    if isinstance(value, Ball):
        return value.reshape(tuple(int(n) for n in shape))
    if isinstance(value, np.ndarray):
        return value.reshape(tuple(int(n) for n in shape))
    if not isinstance(value, Flow):
        raise Unreadable("only supported for floats")
    size = value.shift.shape[0]
    first, *rest = list(shape) or [0]
    rest = [int(n) for n in rest]
    if first is _BATCH and -1 in rest:
        known = math.prod(n for n in rest if n != -1)
        rest[rest.index(-1)] = size // known if known else 0
    # With −1 in front, the batch is what remains: all examples, if one example fills the rest.
    keeps_batch = first is _BATCH or first == -1
    if not keeps_batch or any(n < 0 for n in rest) or math.prod(rest) != size:
        raise Unreadable(f"a reshape to {list(shape)} mixes examples or loses entries")
    return value.rearranged(np.arange(size).reshape(rest))


@_rule("Squeeze", "ExpandDims")
def _unit_axes(node, value, axis=None):
    if isinstance(value, np.ndarray):
        raise Unreadable("only supported for floats")
    flow = isinstance(value, Flow)
    shape = [_BATCH, *value.shape] if flow else list(value.shape)
    if node.op == "ExpandDims":
        place = int(np.asarray(axis))
        shape.insert(place if place >= 0 else place + len(shape) + 1, 1)
    else:
        axes = [a % len(shape) for a in node.attr["squeeze_dims"].list.i]
        if not axes and flow:
            raise Unreadable("without axes it would drop a batch of one example as well")
        axes = axes or [a for a, n in enumerate(shape) if n == 1]
        if any(shape[a] != 1 for a in axes):
            raise Unreadable(f"cannot squeeze axes {axes} of {shape}")
        shape = [n for a, n in enumerate(shape) if a not in axes]
    return _reshape(node, value, np.array(shape, object))


@_rule("Transpose")
def _transpose(node, value, order):
    axes = [int(axis) for axis in order]
    if not isinstance(value, Flow):
        return value.transpose(axes)
    if sorted(axes) != list(range(len(value.shape) + 1)) or axes[0] != 0:
        raise Unreadable(f"a transpose {axes} moves the batch axis")
    positions = np.arange(value.shift.shape[0]).reshape(value.shape)
    return value.rearranged(positions.transpose([axis - 1 for axis in axes[1:]]))


@_rule("Pack")
def _pack(node, *values):
    return np.stack([_need_integers(value) for value in values], axis=node.attr["axis"].i)


@_rule("ConcatV2")
def _concat(node, *values):
    *parts, axis = [_need_integers(value) for value in values]
    return np.concatenate(parts, axis=int(axis))


@_rule("Prod")
def _prod(node, value, axis):
    keep = node.attr["keep_dims"].b
    return np.prod(_need_integers(value), axis=tuple(np.atleast_1d(axis)), keepdims=keep)


@_rule("StridedSlice")
def _strided_slice(node, value, begin, end, strides):
    if isinstance(value, Flow):
        return image_rules.sliced(node, value, begin, end, strides)
    masked = node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i
    if len(np.atleast_1d(begin)) != 1 or masked:
        raise Unreadable("only slices of a shape are supported")
    if node.attr["shrink_axis_mask"].i:
        return _need_integers(value)[int(begin[0])]
    first = None if node.attr["begin_mask"].i else int(begin[0])
    last = None if node.attr["end_mask"].i else int(end[0])
    return _need_integers(value)[first : last : int(strides[0])]


def _need_integers(value) -> np.ndarray:
    if not isinstance(value, (np.ndarray, np.integer, int, _BatchSize)):
        raise Unreadable("only supported for shapes")
    return np.asarray(value)
