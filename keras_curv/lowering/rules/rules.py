"""The rules: what each op does to the numbers, as `flow.py` and `error_ball.py` can say it.

A rule takes the node and its arguments: `Flow` for what depends on the input, `Ball` for float
constants, integer arrays for shapes. It returns one of these, or raises `InputError` where it
does not cover the case. An op without a rule is refused; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import branches, miscompiled, patterns, products
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules import clip, convolution, image, pool, resizing, shape
from keras_curv.lowering.rules.image import require_constant
from keras_curv.lowering.rules.shape import BatchSize
from keras_curv.saved_model.advice import advice
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, NODES, TENSOR_ENTRIES, require_shape

ACTIVATION_OPS = (
    *("Softplus", "Sigmoid", "Tanh", "Relu", "Elu", "Softsign", "Exp", "Sin"),
    *patterns.NAMES,
)
Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def apply(node: NodeDef, arguments: list) -> Value | tuple[Flow, ...]:
    """Returns the value of the node, from those of its arguments.

    Raises:
        InputError: there is no rule for it, or the rule does not cover the case.
    """
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        require_shape(dim.size for dim in tensor.tensor_shape.dim)
        return _constant(tf.make_ndarray(tensor))
    require_rule(node)
    flows = [argument for argument in arguments if isinstance(argument, Flow)]
    if flows and node.op not in _EXACT:
        _require_float(node)
    if any(flow.head != "logits" for flow in flows) and node.op != "Identity":
        raise InputError(f"nothing may follow the final {flows[0].head}")
    _refuse_large(node.op, [a for a in arguments if isinstance(a, (Ball, np.ndarray))])
    result = _RULES[node.op](node, *arguments)
    if isinstance(result, (np.ndarray, np.integer, int)):
        return _integers(np.asarray(result))
    return result


def require_rule(node: NodeDef) -> None:
    """Refuses an op that no rule reads."""
    if node.op != "Const" and node.op not in _RULES:
        why = _WHY_NOT.get(node.op, "there is no rule that reads this op")
        raise InputError(why + advice(node.op))


def _integers(array: np.ndarray) -> np.ndarray:
    """Entries of a shape; those that TensorFlow's integers could not hold are refused."""
    if any(isinstance(n, int) and abs(n) >= 2**31 for n in array.reshape(-1).tolist()):
        raise InputError("a number of 2³¹ or more is computed, which may wrap around")
    return array


def _require_float(node: NodeDef) -> None:
    dtype = tf.as_dtype(node.attr["T"].type or tf.float32.as_datatype_enum)
    if dtype.is_integer:
        raise InputError("integers wrap around; cast them to a float first")
    if dtype not in (tf.float32, tf.float64):
        raise InputError(f"{dtype.name} rounds; only float32 and float64 are supported")


def _refuse_large(op: str, constants: list) -> None:
    """Refuses what constants would grow to, put together or broadcast against one another."""
    shapes = [constant.shape for constant in constants]
    integers = any(isinstance(constant, np.ndarray) for constant in constants)
    limit = NODES if integers else TENSOR_ENTRIES  # integers are shapes, and parts of them
    if op in ("ConcatV2", "Pack"):
        require_shape([sum(math.prod(shape) for shape in shapes)], limit)
    elif len(shapes) > 1 and op in _BROADCAST:
        require_shape(np.broadcast_shapes(*shapes), limit)


def _constant(array: np.ndarray) -> Ball | np.ndarray:
    """Floats become balls; integers, shapes among them, stay as they are."""
    if array.dtype in (np.float32, np.float64):
        return Ball.exact(array.astype(np.float64))
    if array.dtype in (np.int32, np.int64, np.bool_):
        return array
    raise InputError(f"constants of type {array.dtype} are not supported")


# Of these, numbers come out as they went in, whatever their type.
_EXACT = (
    *(*patterns.HANDS_ON, "Cast", "Shape", "Reshape", "Squeeze", "ExpandDims", "Transpose"),
    *("Pad", "StridedSlice", "Tile", "GatherV2", "ReverseV2", "SpaceToDepth", "DepthToSpace"),
)
_BROADCAST = ("Add", "AddV2", "BiasAdd", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum")
_WHY_NOT = {
    "SpaceToBatchND": "it mixes examples, and not as a dilated convolution does",
    "MaxPoolV2": "only supported with windows that are attributes",
}


def _per_example(flow: Flow, constant: Value) -> Ball:
    """A constant broadcast against the flow, as one example's entries, flattened."""
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


@_rule(*patterns.HANDS_ON)
def _identity(node: NodeDef, value: Value, *others: Value) -> Value:
    return value  # of several outputs, `graph.py` reads the first only


@_rule("Cast")
def _cast(node: NodeDef, value: Value) -> Value:
    target = tf.dtypes.as_dtype(node.attr["DstT"].type)
    if node.attr["Truncate"].b:
        raise InputError("a cast that cuts digits off rounds by more than is charged")
    if target in (tf.float32, tf.float64):
        if isinstance(value, np.ndarray):
            return _float_of(value)
        if isinstance(value, Ball) and target == tf.float32 and value.overflows_float32():
            raise InputError("a constant is too large for float32")
        return value.rounded()  # in real arithmetic it keeps its value
    if isinstance(value, np.ndarray) and target in (tf.int32, tf.int64):
        if value.dtype == np.bool_:
            raise InputError("truth values are no numbers here")
        return value.astype(object)  # Python's integers, which wrap around nowhere: see `_integers`
    raise InputError(f"a cast to {target.name} rounds; use float32 or float64 throughout")


def _float_of(integers: np.ndarray) -> Ball:
    if integers.dtype == np.bool_ or any(isinstance(n, BatchSize) for n in integers.flat):
        raise InputError("a float made from integers may depend on the batch size")
    if any(abs(int(n)) > 2**24 for n in integers.flat):
        raise InputError("an integer is too large for float32 to hold")
    return Ball.exact(integers.astype(np.float64))


@_rule("Add", "AddV2", "BiasAdd")
def _add(node: NodeDef, a: Value, b: Value) -> Value:
    if node.op == "BiasAdd" and node.attr["data_format"].s == b"NCHW":
        b = _behind_channels(image.require_flow(a), require_constant(b))
    elif node.op == "BiasAdd" and node.attr["data_format"].s not in (b"", b"NHWC"):
        raise InputError("its data format is not supported")
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a + b
    if isinstance(a, Flow) and isinstance(b, Flow):
        return branches.plus(*_alike(a, b))
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        return a.shifted(_per_example(a, b))
    return require_constant(a) + require_constant(b)


def _behind_channels(flow: Flow, bias: Ball) -> Ball:
    """A bias of the first axis of an example, channels first, to be broadcast against it."""
    if bias.value.ndim != 1 or not flow.shape or bias.shape[0] != flow.shape[0]:
        raise InputError(f"a bias {bias.shape} is none of the channels of examples {flow.shape}")
    return bias.reshape((-1, *(1 for _ in flow.shape[1:])))


@_rule("Sub")
def _sub(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a - b
    if isinstance(b, Flow):
        return _add(node, -b, a)
    if isinstance(a, Flow):
        return _add(node, a, -require_constant(b))
    return require_constant(a) - require_constant(b)


@_rule("Mul")
def _mul(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a * b
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        return a.scaled(_per_example(a, b))
    return require_constant(a) * require_constant(b)


@_rule("RealDiv", "Div")
def _divide(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, Flow):
        return _mul(node, a, require_constant(b).reciprocal())
    return require_constant(a) / require_constant(b)


@_rule("Neg")
def _neg(node: NodeDef, value: Value) -> Value:
    _require_float(node)
    return -value


@_rule("Sqrt", "Rsqrt", "Square", "Reciprocal", "Inv")
def _of_constant(node: NodeDef, value: Value) -> Ball:
    name = {"Inv": "reciprocal"}.get(node.op, node.op.lower())
    return getattr(require_constant(value), name)()


def _alike(a: Flow, b: Flow) -> tuple[Flow, Flow]:
    """Both flows broadcast against one another, example by example."""
    if len(a.shape) != len(b.shape):
        raise InputError(f"examples {a.shape} and {b.shape} would mix, or an axis be added")
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise InputError(f"examples {a.shape} and {b.shape} do not fit") from None
    require_shape(shape, EXAMPLE_ENTRIES)
    return image.broadcast(a, shape), image.broadcast(b, shape)


@_rule("AddN")
def _add_all(node: NodeDef, *values: Value) -> Flow:
    flows = [image.require_flow(value) for value in values]
    return functools.reduce(lambda a, b: branches.plus(*_alike(a, b)), flows)


@_rule("Maximum")
def _maximum(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, Flow) and isinstance(b, Flow):
        a, b = _alike(a, b)
        miscompiled.refuse_multiples(a, b)
        return branches.larger(a, b)
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        return require_constant(a).maximum(require_constant(b))
    return clip.maximum(a, _per_example(a, b))


@_rule("Minimum")
def _minimum(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, Flow) and isinstance(b, Flow):
        return -branches.larger(*(-flow for flow in _alike(a, b)))
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        raise InputError("the minimum of two constants is not supported; export it as one")
    return clip.minimum(a, _per_example(a, b))


_rule("Conv2D", "DepthwiseConv2dNative")(convolution.convolved)
_rule("AvgPool")(convolution.average_pooled)
_rule("Mean")(pool.mean)
_rule("MaxPool")(pool.max_pooled)
_rule("Max")(pool.largest_along)
_rule("Clip")(clip.clipped)
_rule("Abs", "Relu6", "Selu", "LeakyRelu")(clip.piecewise)


@_rule("PRelu")
def _prelu(node: NodeDef, value: Flow, factor: Value) -> Flow:
    return clip.slopes_by_unit(node, value, _per_example(value, factor))


_RULES.update(image.RULES | products.RULES | resizing.RULES | shape.RULES)


@_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_normalized(
    node: NodeDef,
    value: Value,
    scale: Value,
    offset: Value,
    mean: Value,
    variance: Value,
) -> Value:
    if node.attr["is_training"].b or node.attr["data_format"].s not in (b"", b"NHWC"):
        raise InputError("only supported at inference, with channels last")
    epsilon = Ball.exact(np.float64(node.attr["epsilon"].f))
    factor = require_constant(scale) * (require_constant(variance) + epsilon).rsqrt()
    # The mean first: where it is folded into the offset instead, `Flow.shifted` has charged it.
    centred = _add(node, value, -require_constant(mean))
    return _add(node, _mul(node, centred, factor), require_constant(offset))


@_rule(*ACTIVATION_OPS)
def _activation(node: NodeDef, value: Value) -> Flow:
    return image.require_flow(value).activated(activation_name(node.op))


def activation_name(op: str) -> str:
    """Returns what Keras calls the activation that an op of `ACTIVATION_OPS` is."""
    return "exponential" if op == "Exp" else op.lower()


_rule("sparse_sigmoid")(clip.sparse_sigmoid)


@_rule("Softmax", "LogSoftmax")
def _head(node: NodeDef, value: Value) -> Flow:
    if not isinstance(value, Flow) or len(value.shape) != 1:
        raise InputError("a softmax must be over the classes, at the end")
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    return dataclasses.replace(value, head=name)
