"""What a node of a graph says, read without changing it."""

from __future__ import annotations

import math

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

_NOTHING = attr_value_pb2.AttrValue()


def attribute(
    node: node_def_pb2.NodeDef | function_pb2.FunctionDef, name: str
) -> attr_value_pb2.AttrValue:
    """An attribute, empty where there is none; `node.attr[name]` would add it."""
    return node.attr.get(name, _NOTHING)


def node_name(tensor: str) -> str:
    """Returns the name of the node that an input comes from, or waits for.

    Example:
        >>> node_name("dense:output:0"), node_name("x:1"), node_name("^init")
        ('dense', 'x', 'init')
    """
    return tensor.lstrip("^").split(":")[0]


def data_inputs(node: node_def_pb2.NodeDef) -> list[str]:
    """Returns its inputs, but for those that it only waits for."""
    return [given for given in node.input if not given.startswith("^")]


def scalar(node: node_def_pb2.NodeDef | None) -> float | None:
    """Returns the finite number of a constant of one float; None where it is none."""
    if node is None or node.op != "Const":
        return None
    tensor = attribute(node, "value").tensor
    if tensor.tensor_shape.dim or tensor.dtype not in (tf.float32, tf.float64):
        return None
    try:
        number = float(tf.make_ndarray(tensor))
    except (TypeError, ValueError):  # its content is not one number
        return None
    return number if math.isfinite(number) else None
