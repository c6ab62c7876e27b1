"""Rules of activations with a parameter: clipping by constants, and a slope below 0."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import node_def_pb2

from keras_curv.errors import InputError
from keras_curv.reading.ball import Ball
from keras_curv.reading.flow import Flow


def maximum(flow: Flow, edge: Ball) -> Flow:
    """The larger of each entry and its edge: a ReLU, shifted there and back.

    A server shifts nothing, and so rounds no more than is charged.
    """
    if edge.equals(0.0):
        return flow.activated("relu")
    return flow.shifted(-edge).activated("relu").shifted(edge)


def minimum(flow: Flow, edge: Ball) -> Flow:
    """The smaller of each entry and its edge."""
    minus = Ball.exact(-np.ones(flow.shift.shape))
    return maximum(flow.scaled(minus), -edge).scaled(minus)


def clipped(node: node_def_pb2.NodeDef, value: Flow) -> Flow:
    """`Clip` of `contractions.py`: `min(max(z, low), high)`."""
    _require_flow(value)
    low, high = (Ball.exact(float(node.attr[name].s)) for name in ("low", "high"))
    width = high - low
    if width.error != 0.0:
        raise InputError(f"float64 cannot hold the width of [{low.value}, {high.value}]")
    name = f"capped_relu({float(width.value)!r})"
    if low.equals(0.0):
        return value.activated(name)
    edge = low.broadcast_to(value.shift.shape)
    return value.shifted(-edge).activated(name).shifted(edge)


def sparse_sigmoid(node: node_def_pb2.NodeDef, value: Flow) -> Flow:
    """`½ (min(max(z, −1), 1) + 1)`, which a server computes of a sum z + 1 that it rounds."""
    _require_flow(value)
    ones = np.ones(value.shift.shape)
    ramp = value.shifted(Ball.exact(ones)).activated("capped_relu(2.0)")
    return ramp.scaled(Ball.exact(0.5 * ones))


def piecewise(node: node_def_pb2.NodeDef, value: Flow) -> Flow:
    """`Relu6`, `Selu` and `LeakyRelu`."""
    _require_flow(value)
    if node.op == "LeakyRelu":
        return value.activated(f"leaky_relu({float(node.attr['alpha'].f)!r})")
    return value.activated(node.op.lower())


def _require_flow(value: Flow) -> None:
    if not isinstance(value, Flow):
        raise InputError("an activation of a constant")
