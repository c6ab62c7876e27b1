"""Rules of activations, of the larger of two tensors, and of a softmax at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.lowering import bilinear, branches, miscompiled, patterns
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow, Value
from keras_curv.lowering.rules.image import alike, per_example, require_constant, require_flow
from keras_curv.lowering.rules.registry import rule
from keras_curv.network.activation import Activation
from keras_curv.network.piecewise import capped_relu, clip, leaky_relu
from keras_curv.network.unitwise import unit_wise

ACTIVATION_OPS = (
    *("Softplus", "Sigmoid", "Tanh", "Relu", "Elu", "Softsign", "Exp", "Sin"),
    *patterns.NAMES,
)
_PARAMETERS = 64  # different ones of one layer, each with lines of its own
_LEAST_SLOPE = 2.0**-60  # of a slope that is not 0; a server may flush what is much smaller
_NEAR = 2.0**10  # of an edge: so far a shift there and back takes less than it gives


@rule("Maximum", broadcasts=True)
def _maximum(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, Flow) and isinstance(b, Flow):
        a, b = alike(a, b)
        miscompiled.refuse_multiples(a, b)
        return branches.larger(a, b)
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        return require_constant(a).maximum(require_constant(b))
    return _larger_than(a, per_example(a, b))


@rule("Minimum", broadcasts=True)
def _minimum(node: NodeDef, a: Value, b: Value) -> Value:
    if isinstance(a, Flow) and isinstance(b, Flow):
        return -branches.larger(*(-flow for flow in alike(a, b)))
    if isinstance(b, Flow):
        a, b = b, a
    if not isinstance(a, Flow):
        raise InputError("the minimum of two constants is not supported; export it as one")
    return -_larger_than(-a, -per_example(a, b))


def _larger_than(flow: Flow, edge: Ball) -> Flow:
    """Returns the larger of each entry and its edge: a ReLU, shifted there and back.

    A server shifts nothing, and so rounds no more than is charged. From an edge far away nothing
    else would come back either: that is an activation of its own.
    """
    if edge.equals(0.0):
        return flow.activated("relu")
    if np.max(np.abs(edge.value), initial=0.0) <= _NEAR:
        return flow.shifted(-edge).activated("relu").shifted(edge)
    _require_stored(edge, "edges beyond 1024")
    found = _by_unit(flow, edge.value, lambda low: clip(low, np.inf))
    if found is None:
        raise InputError(
            f"a layer has more than {_PARAMETERS} different edges, some of them beyond 1024, from "
            "which float32 would bring back no digits; clip by one number, or scale the input"
        )
    return found


@rule("Clip")
def _clipped(node: NodeDef, value: Flow) -> Flow:
    """Reads `Clip` of `contractions.py`: `min(max(z, low), high)`."""
    require_flow(value)
    low, high = (float(node.attr[name].s) for name in ("low", "high"))
    return value.activated(capped_relu(high) if low == 0.0 else clip(low, high))


@rule("sparse_sigmoid")
def _sparse_sigmoid(node: NodeDef, value: Flow) -> Flow:
    """Reads `½ (min(max(z, −1), 1) + 1)`, which a server computes of a sum z + 1 that it rounds."""
    require_flow(value)
    ones = np.ones(value.shift.shape)
    ramp = value.shifted(Ball.exact(ones)).activated("capped_relu(2.0)")
    return ramp.scaled(Ball.exact(0.5 * ones))


@rule("Abs", "Relu6", "Selu", "LeakyRelu")
def _piecewise(node: NodeDef, value: Flow) -> Flow:
    """Reads `Abs`, `Relu6`, `Selu` and `LeakyRelu`."""
    require_flow(value)
    if node.op == "LeakyRelu":
        slope = float(node.attr["alpha"].f)
        if 0.0 < abs(slope) < _LEAST_SLOPE:
            raise InputError(
                f"a slope of {slope:g}, which a server may take for 0, is not supported"
            )
        return value.activated(f"leaky_relu({slope!r})")
    return value.activated(node.op.lower())


@rule("PRelu")
def _slopes_by_unit(node: NodeDef, value: Flow, slopes_below: Value) -> Flow:
    """Reads `PRelu` of `contractions.py`: `max(z, 0) + c max(−z, 0)`, a leaky ReLU of slope −c.

    Units of one slope are put next to one another, and back.
    """
    factor = per_example(require_flow(value), slopes_below)
    slopes = -factor.value
    _require_stored(factor, "the slopes")
    if factor.overflows_float32():
        raise InputError("the slopes must be numbers that float32 can hold")
    tiny = (slopes != 0.0) & (np.abs(slopes) < _LEAST_SLOPE)
    found = None if tiny.any() else _by_unit(value, slopes, leaky_relu)
    if found is None:
        below = (-value).activated("relu")
        return branches.plus(value.activated("relu"), below.scaled(factor))
    return found


def _require_stored(constant: Ball, what: str) -> None:
    if np.any(constant.error) or np.any(constant.served):
        raise InputError(f"{what} must be constants as they are stored")


def _by_unit(
    value: Flow, parameters: np.ndarray, make: Callable[[float], Activation]
) -> Flow | None:
    """Returns an activation with a parameter for each unit; None: too many parameters differ."""
    distinct, kind = np.unique(parameters, return_inverse=True)
    if len(distinct) > _PARAMETERS:
        return None
    order = np.argsort(kind.reshape(-1), kind="stable")
    counts = np.bincount(kind.reshape(-1), minlength=len(distinct)).tolist()
    each = [make(float(parameter)) for parameter in distinct]
    if len(each) == 1:
        return value.activated(each[0])
    sigma = unit_wise(zip(each, counts, strict=True))
    result = value.rearranged(order).activated(sigma)
    return result.rearranged(np.argsort(order).reshape(value.shape))


@rule(*(set(ACTIVATION_OPS) - {"sparse_sigmoid"}))
def _activation(node: NodeDef, value: Value) -> Flow:
    return require_flow(value).activated(activation_name(node.op))


def activation_name(op: str) -> str:
    """Returns what Keras calls the activation that an op of `ACTIVATION_OPS` is."""
    return "exponential" if op == "Exp" else op.lower()


@rule("Softmax", "LogSoftmax")
def _head(node: NodeDef, value: Value) -> Flow:
    if not isinstance(value, Flow) or len(value.shape) != 1:
        if node.op == "LogSoftmax":
            raise InputError("a log_softmax must be over the classes, at the end")
        return bilinear.softmax(require_flow(value), len(value.shape) - 1)
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    return dataclasses.replace(value, head=name)
