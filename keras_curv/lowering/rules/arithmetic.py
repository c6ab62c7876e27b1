"""Rules of arithmetic: what is affine in the input, and what constants are folded to."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import bilinear, branches, patterns
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules.image import alike, require_constant, require_flow, with_constant
from keras_curv.lowering.rules.registry import require_float, rule
from keras_curv.lowering.rules.shape import BatchSize


@rule(*patterns.HANDS_ON, exact=True, shares=True)
def _identity(node: NodeDef, value: Value, *others: Value) -> Value:
    return value  # of several outputs, `graph.py` reads the first only


@rule("Cast", exact=True)
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
        return value.astype(object)  # Python's integers never wrap around; see `registry.py`
    raise InputError(
        f"a cast to {target.name} rounds; use float32 throughout: build a model of mixed precision "
        "again under the policy float32, and give it the same weights"
    )


def _float_of(integers: np.ndarray) -> Ball:
    if integers.dtype == np.bool_ or any(isinstance(n, BatchSize) for n in integers.flat):
        raise InputError("a float made from integers may depend on the batch size")
    if any(abs(int(n)) > 2**24 for n in integers.flat):
        raise InputError("an integer is too large for float32 to hold")
    return Ball.exact(integers.astype(np.float64))


@rule("Add", "AddV2", "BiasAdd", broadcasts=True)
def _add(node: NodeDef, a: Value, b: Value) -> Value:
    if node.op == "BiasAdd" and node.attr["data_format"].s == b"NCHW":
        b = _behind_channels(require_flow(a), require_constant(b))
    elif node.op == "BiasAdd" and node.attr["data_format"].s not in (b"", b"NHWC"):
        raise InputError("its data format is not supported")
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a + b
    if isinstance(a, Flow) and isinstance(b, Flow):
        return branches.plus(*alike(a, b))
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        flow, constant = with_constant(a, b)
        return flow.shifted(constant)
    return require_constant(a) + require_constant(b)


def _behind_channels(flow: Flow, bias: Ball) -> Ball:
    """Returns a bias of the first axis, channels first, to be broadcast against examples."""
    if bias.value.ndim != 1 or not flow.shape or bias.shape[0] != flow.shape[0]:
        raise InputError(f"a bias {bias.shape} is none of the channels of examples {flow.shape}")
    return bias.reshape((-1, *(1 for _ in flow.shape[1:])))


@rule("Sub", broadcasts=True)
def _sub(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a - b
    if isinstance(b, Flow):
        return _add(node, -b, a)
    if isinstance(a, Flow):
        return _add(node, a, -require_constant(b))
    return require_constant(a) - require_constant(b)


@rule("Mul", broadcasts=True)
def _mul(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a * b
    if isinstance(a, Flow) and isinstance(b, Flow):
        return bilinear.product(*((a, b) if a is b else alike(a, b)))
    if isinstance(b, Flow):
        a, b = b, a
    if isinstance(a, Flow):
        flow, constant = with_constant(a, b)
        return flow.scaled(constant)
    return require_constant(a) * require_constant(b)


@rule("RealDiv", "Div", broadcasts=True)
def _divide(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(b, Flow):
        return _mul(node, a, b.activated("reciprocal"))
    if isinstance(a, Flow):
        return _mul(node, a, require_constant(b).reciprocal())
    return require_constant(a) / require_constant(b)


@rule("Neg")
def _neg(node: NodeDef, value: Value) -> Value:
    require_float(node)
    return -value


@rule("Sqrt", "Rsqrt", "Square", "Reciprocal", "Inv")
def _algebraic(node: NodeDef, value: Value) -> Value:
    name = {"Inv": "reciprocal"}.get(node.op, node.op.lower())
    if isinstance(value, Flow):
        return value.activated(name)
    return getattr(require_constant(value), name)()


@rule("SquaredDifference", broadcasts=True)
def _squared_difference(node: NodeDef, a: Value, b: Value) -> Value:
    difference = _sub(node, a, b)
    return _mul(node, difference, difference)


_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


@rule("Pow")
def _power(node: NodeDef, value: Value, exponent: Value) -> Flow:
    number = require_constant(exponent)
    known = {name for power, name in _POWERS.items() if number.equals(power)}
    if not known:
        raise InputError(f"only powers of {', '.join(map(str, _POWERS))} are supported")
    return require_flow(value).activated(known.pop())


@rule("AddN")
def _add_all(node: NodeDef, *values: Value) -> Flow:
    flows = [require_flow(value) for value in values]
    return functools.reduce(lambda a, b: branches.plus(*alike(a, b)), flows)


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_normalized(
    node: NodeDef, value: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> Value:
    if node.attr["is_training"].b or node.attr["data_format"].s not in (b"", b"NHWC"):
        raise InputError("only supported at inference, with channels last")
    epsilon = Ball.exact(np.float64(node.attr["epsilon"].f))
    factor = require_constant(scale) * (require_constant(variance) + epsilon).rsqrt()
    # The mean first: where it is folded into the offset instead, `Flow.shifted` has charged it.
    centred = _add(node, value, -require_constant(mean))
    return _add(node, _mul(node, centred, factor), require_constant(offset))
