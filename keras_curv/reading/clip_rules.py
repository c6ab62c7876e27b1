"""Rules of activations with a parameter: clipping by constants, and a slope below 0."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError
from keras_curv.network.piecewise import leaky_relu
from keras_curv.network.unitwise import unit_wise
from keras_curv.reading import joins
from keras_curv.reading.ball import Ball
from keras_curv.reading.flow import Flow
from keras_curv.reading.image_rules import require_flow

_SLOPES = 64  # different ones of one layer, each with lines of its own; beyond, two ReLUs a unit
_LEAST_SLOPE = 2.0**-60  # of a slope that is not 0; a server may flush what is much smaller


def maximum(flow: Flow, edge: Ball) -> Flow:
    """The larger of each entry and its edge: a ReLU, shifted there and back.

    A server shifts nothing, and so rounds no more than is charged.
    """
    if edge.equals(0.0):
        return flow.activated("relu")
    return flow.shifted(-edge).activated("relu").shifted(edge)


def minimum(flow: Flow, edge: Ball) -> Flow:
    """The smaller of each entry and its edge."""
    return -maximum(-flow, -edge)


def clipped(node: NodeDef, value: Flow) -> Flow:
    """`Clip` of `contractions.py`: `min(max(z, low), high)`."""
    require_flow(value)
    low, high = (Ball.exact(float(node.attr[name].s)) for name in ("low", "high"))
    width = high - low
    if width.error != 0.0:
        raise InputError(f"float64 cannot hold the width of [{low.value}, {high.value}]")
    name = f"capped_relu({float(width.value)!r})"
    if low.equals(0.0):
        return value.activated(name)
    edge = low.broadcast_to(value.shift.shape)
    return value.shifted(-edge).activated(name).shifted(edge)


def sparse_sigmoid(node: NodeDef, value: Flow) -> Flow:
    """`½ (min(max(z, −1), 1) + 1)`, which a server computes of a sum z + 1 that it rounds."""
    require_flow(value)
    ones = np.ones(value.shift.shape)
    ramp = value.shifted(Ball.exact(ones)).activated("capped_relu(2.0)")
    return ramp.scaled(Ball.exact(0.5 * ones))


def piecewise(node: NodeDef, value: Flow) -> Flow:
    """`Abs`, `Relu6`, `Selu` and `LeakyRelu`."""
    require_flow(value)
    if node.op == "LeakyRelu":
        slope = float(node.attr["alpha"].f)
        if 0.0 < abs(slope) < _LEAST_SLOPE:
            raise InputError(
                f"a slope of {slope:g}, which a server may take for 0, is not supported"
            )
        return value.activated(f"leaky_relu({slope!r})")
    return value.activated(node.op.lower())


def slopes_by_unit(node: NodeDef, value: Flow, factor: Ball) -> Flow:
    """`PRelu` of `contractions.py`: `max(z, 0) + c max(−z, 0)`, a leaky ReLU with the slope −c.

    Units of one slope are put next to one another, and back.
    """
    require_flow(value)
    slopes = -factor.value
    distinct, kind = np.unique(slopes, return_inverse=True)
    tiny = (distinct != 0.0) & (np.abs(distinct) < _LEAST_SLOPE)
    if factor.overflows_float32() or np.any(factor.error) or np.any(factor.served):
        raise InputError("the slopes must be constants as they are stored")
    if len(distinct) > _SLOPES or np.any(tiny):
        below = (-value).activated("relu")
        return joins.plus(value.activated("relu"), below.scaled(factor))
    order = np.argsort(kind.reshape(-1), kind="stable")
    counts = np.bincount(kind.reshape(-1), minlength=len(distinct)).tolist()
    each = [leaky_relu(float(slope)) for slope in distinct]
    sigma = unit_wise(zip(each, counts, strict=True))
    result = value.rearranged(order).activated(sigma)
    return result.rearranged(np.argsort(order).reshape(value.shape))
