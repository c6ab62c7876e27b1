"""Ops that move the axis of the batch, as unrolled recurrent layers do, read as ones that do not.

- Keras moves the steps of a sequence in front of the batch and takes them apart: `Unpack` of a
  `Transpose` becomes `Unpack` along the axis of the steps.
- It stacks the outputs of all steps in front and moves the batch back: `Transpose` of `Pack`
  becomes `Pack` along a later axis.
- It begins with a state of zeros for each example: `Fill` of a shape that begins with the batch
  size of a tensor becomes `FillLike`, which also takes that tensor.

As in `patterns.py`, the new node *is* the function of the ops that it stands for.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.lowering.patterns import NodeFinder
from keras_curv.saved_model.graph.nodes import constant

_INTEGERS = (tf.int32, tf.int64)


def steps(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    """Returns the `Unpack` of a tensor instead of its transpose, if the node is one of these.

    Example:
        >>> from keras_curv.saved_model.graph.nodes import data_inputs
        >>> function = tf.function(lambda x: tf.unstack(tf.transpose(x, (1, 0, 2)))[0])
        >>> graph = function.get_concrete_function(tf.ones((2, 3, 4))).graph.as_graph_def()
        >>> nodes = {node.name: node for node in graph.node}
        >>> found = steps(NodeFinder(nodes), nodes["unstack"])
        >>> found.attr["axis"].i, data_inputs(found)
        (1, ['x'])
    """
    if node.op != "Unpack" or not node.input:
        return None
    moved = source(node.input[0])
    order = _order(source, moved)
    if moved is None or order is None or not 0 <= node.attr["axis"].i < len(order):
        return None
    axis = order.pop(node.attr["axis"].i)
    if axis == 0 or order != sorted(order):
        return None
    new = NodeDef(name=node.name, op="Unpack", input=[moved.input[0]], attr=dict(node.attr))
    new.attr["axis"].i = axis
    return new


def stacked(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    """Returns `Pack` along a later axis where the node is the transpose of `Pack` along the first.

    Example:
        >>> function = tf.function(lambda x: tf.transpose(tf.stack([x, x]), (1, 0, 2)))
        >>> graph = function.get_concrete_function(tf.ones((3, 4))).graph.as_graph_def()
        >>> nodes = {node.name: node for node in graph.node}
        >>> stacked(NodeFinder(nodes), nodes["transpose"]).attr["axis"].i
        1
    """
    order, packed = _order(source, node), source(node.input[0]) if node.input else None
    if order is None or packed is None or packed.op != "Pack" or packed.attr["axis"].i != 0:
        return None
    axis = order.index(0)
    if axis == 0 or order[:axis] + order[axis + 1 :] != list(range(1, len(order))):
        return None
    new = NodeDef(name=node.name, op="Pack", input=packed.input, attr=dict(packed.attr))
    new.attr["axis"].i = axis
    return new


def filled(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    """Returns `FillLike` where the node fills a shape that begins with a tensor's batch size.

    Example:
        >>> function = tf.function(lambda x: x + tf.zeros((tf.shape(x)[0], 4)))
        >>> spec = tf.TensorSpec((None, 4))
        >>> graph = function.get_concrete_function(spec).graph.as_graph_def()
        >>> nodes = {node.name: node for node in graph.node}
        >>> filled(NodeFinder(nodes), nodes["zeros"]).op
        'FillLike'
    """
    if node.op != "Fill" or len(node.input) != 2:
        return None
    sizes = source(node.input[0])
    first = source(sizes.input[0]) if sizes is not None and sizes.op == "Pack" else None
    shape = source(first.input[0]) if first is not None and first.op == "StridedSlice" else None
    if shape is None or shape.op != "Shape":
        return None
    inputs = [shape.input[0], *node.input]
    return NodeDef(name=node.name, op="FillLike", input=inputs, attr=dict(node.attr))


def _order(source: NodeFinder, node: NodeDef | None) -> list[int] | None:
    """Returns the axes of a `Transpose` by a constant, each once; else None."""
    if node is None or node.op != "Transpose" or len(node.input) != 2:
        return None
    order = constant(source(node.input[1]), _INTEGERS, rank=1)
    if order is None or sorted(order.tolist()) != list(range(len(np.atleast_1d(order)))):
        return None
    return order.tolist()
