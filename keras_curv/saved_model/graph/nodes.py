"""Reads nodes of a graph without changing them."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError

_NOTHING = attr_value_pb2.AttrValue()
_SHORT = 16  # entries of a constant


def attribute(node: NodeDef | function_pb2.FunctionDef, name: str) -> attr_value_pb2.AttrValue:
    """Returns an attribute, empty where there is none; `node.attr[name]` would add it."""
    return node.attr.get(name, _NOTHING)


def node_name(tensor: str) -> str:
    """Returns the name of the node that an input comes from, or waits for.

    Example:
        >>> node_name("dense:output:0"), node_name("x:1"), node_name("^init")
        ('dense', 'x', 'init')
    """
    return tensor.lstrip("^").split(":")[0]


def data_inputs(node: NodeDef) -> list[str]:
    """Returns its inputs, but for those that it only waits for."""
    return [given for given in node.input if not given.startswith("^")]


def arguments_of(node: NodeDef) -> list[str]:
    """Returns names of the nodes that a node takes something from."""
    return [node_name(tensor) for tensor in data_inputs(node)]


def in_order(nodes: dict[str, NodeDef], last: str) -> list[str]:
    """Returns the nodes that `last` depends on, each after its inputs, without control edges."""
    order, seen, done, stack = [], set(), set(), [(last, False)]
    while stack:
        name, ready = stack.pop()
        if ready:
            order.append(name)
            done.add(name)
        elif name in seen and name not in done:
            raise InputError(f"node {name!r} depends on itself")
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            # The last one first: a constant is made where it is used, and not all of them before.
            stack += [(i, False) for i in reversed(arguments_of(nodes[name]))]
    return order


def constant(
    node: NodeDef | None, types: Collection[tf.DType], *, rank: int = 2
) -> np.ndarray | None:
    """Returns a short constant of one of some types, of at most that rank; None for all else."""
    if node is None or node.op != "Const":
        return None
    tensor = attribute(node, "value").tensor
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype not in types or len(sizes) > rank or math.prod(sizes) > _SHORT:
        return None
    try:
        return tf.make_ndarray(tensor)
    except (TypeError, ValueError):  # its content does not fit its shape
        return None


def scalar(node: NodeDef | None) -> float | None:
    """Returns the finite number of a constant of one float; None where it is none."""
    array = constant(node, (tf.float32, tf.float64), rank=0)
    return None if array is None or not np.isfinite(array) else float(array)
