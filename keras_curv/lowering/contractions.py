"""Chains of ops that are read as one, as only together they keep examples apart or stay tight.

- Clipping by constants: `Maximum`, `Minimum` and `Relu` after one another become one `Clip`.
- A dense layer on the last axis: `Reshape`, `MatMul`, `Reshape` become `RowsMatMul` before the last
  reshape. The first one has the batch in a product, of which no rule computes.
- `PReLU`: `relu(z) + c · relu(−z)` with a constant c for each unit, as Keras spells it, is `PRelu`.
- `max(z, c z)` with one constant 0 ≤ c ≤ 1 is `LeakyRelu`, as TensorFlow's optimizer makes of it.
- Normalisation by an example's own moments: Keras spells `(x − m) s + b` as `x s + (b − m s)`.
  Where s depends on the input, the first form has one product of tensors, not two.
- Unrolled recurrent layers, see `batch_axis.py`.
- Counts of categories: `DenseBincount` of a size that is clipped to one number is of that number.
- Dilated convolutions: `SpaceToBatchND`, a convolution, `BatchToSpaceND` become one.

As in `patterns.py`, the contracted node *is* the function of the chain. Others are left alone.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.lowering import batch_axis
from keras_curv.lowering.patterns import NodeFinder
from keras_curv.saved_model.graph.nodes import constant, data_inputs, scalar

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")
_INTEGERS = (tf.int32, tf.int64)
_LONGEST = 8  # of a chain of clipping ops


def contracted(nodes: dict[str, NodeDef]) -> dict[str, NodeDef]:
    """Returns the graph with a single node where such a chain ends.

    Args:
        nodes: of a flat graph, by name.

    Example:
        >>> graph = tf.function(lambda z: tf.clip_by_value(z, -1.0, 2.0)).get_concrete_function(
        ...     tf.ones(1)
        ... ).graph
        >>> node = contracted({node.name: node for node in graph.as_graph_def().node})
        >>> node["clip_by_value"].op, node["clip_by_value"].input
        ('Clip', ['z'])
    """
    source = NodeFinder(nodes)
    found = {}
    for name, node in nodes.items():
        ends = (read(source, node) for read in _READERS)
        found[name] = next(filter(None, ends), node)
        multiplied = _rows(source, node)
        if multiplied is not None:
            found[multiplied.name] = multiplied
            found[name] = _with(node, node.op, [multiplied.name, *node.input[1:]])
        for part in _normalized(source, node):
            found[part.name] = part
    return found


def _with(node: NodeDef, op: str, inputs: list[str], name: str | None = None) -> NodeDef:
    """Returns the node with its attributes, another op and other inputs."""
    new = NodeDef(name=name or node.name, op=op, input=inputs)
    for key, value in node.attr.items():
        new.attr[key].CopyFrom(value)
    return new


def _clip(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    """Returns `min(max(z, low), high)` of a chain that ends here, if it has both ends."""
    steps, last = [], node
    for _ in range(_LONGEST):
        step = _clipping(source, last)
        if step is None:
            break
        steps.append(step)
        argument = source(step[0])
        if argument is None:
            break
        last = argument
    low, high = -math.inf, math.inf
    for _, op, number in reversed(steps):
        bound = max if op == "Maximum" else min
        low, high = bound(low, number), bound(high, number)
    if len(steps) < 2 or not -math.inf < low < high < math.inf:
        return None
    new = _with(node, "Clip", [steps[-1][0]])
    new.attr["low"].s, new.attr["high"].s = repr(low).encode(), repr(high).encode()
    return new


def _clipping(source: NodeFinder, node: NodeDef) -> tuple[str, str, float] | None:
    """Returns the argument of a node that clips, the op, and the number that it clips at."""
    inputs = data_inputs(node)
    if node.op == "Relu":
        return inputs[0], "Maximum", 0.0
    if node.op in ("Maximum", "Minimum") and len(inputs) == 2:
        for argument, other in (inputs, inputs[::-1]):
            number = scalar(source(other))
            if number is not None and scalar(source(argument)) is None:
                return argument, node.op, number
    return None


def _rows(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    """Returns the product before a `Reshape`, of rows that another one before it has made."""
    if node.op != "Reshape" or len(node.input) < 2:
        return None
    product = source(node.input[0])
    if product is None or product.op != "MatMul" or len(product.input) != 2:
        return None
    before = source(product.input[0])
    if before is None or before.op != "Reshape":
        return None
    shape = constant(source(before.input[1]), _INTEGERS)
    if shape is not None and shape.reshape(-1)[:1].tolist() != [-1]:
        return None  # it is for one size of the batch only
    inputs = [before.input[0], product.input[1]]
    # No node of a graph has a space in its name.
    return _with(product, "RowsMatMul", inputs, f"{product.name} in rows, for {node.name}")


def _prelu(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    if node.op not in ("Add", "AddV2") or len(node.input) != 2:
        return None
    for above, below in (node.input, node.input[::-1]):
        positive, product = source(above), source(below)
        if positive is None or product is None or (positive.op, product.op) != ("Relu", "Mul"):
            continue
        for factor, mirrored in (product.input[:2], product.input[1::-1]):
            negative = source(mirrored)
            minus = source(negative.input[0]) if negative and negative.op == "Relu" else None
            if minus is None or minus.op != "Neg":
                continue
            arguments = source(positive.input[0]), source(minus.input[0])
            if arguments[0] is not None and arguments[0] is arguments[1]:
                return _with(node, "PRelu", [positive.input[0], factor])
    return None


def _leaky(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    if node.op != "Maximum" or node.attr["T"].type != tf.float32 or len(node.input) != 2:
        return None
    for above, below in (node.input, node.input[::-1]):
        argument, product = source(above), source(below)
        if argument is None or product is None or product.op != "Mul":
            continue
        for other, factor in (product.input[:2], product.input[1::-1]):
            slope = scalar(source(factor))
            if slope is not None and 0.0 <= slope <= 1.0 and source(other) is argument:
                new = NodeDef(name=node.name, op="LeakyRelu", input=[above])
                new.attr["T"].CopyFrom(node.attr["T"])
                new.attr["alpha"].f = slope
                return new
    return None


def _normalized(source: NodeFinder, node: NodeDef) -> list[NodeDef]:
    """Returns nodes of `((x − m) r) g + b`, the last of the given name, if the node is
    `x (r g) + (b − m (r g))` and r the `Rsqrt` of a mean; none otherwise."""
    if node.op not in ("Add", "AddV2") or len(node.input) != 2:
        return []
    for scaled, offset in (node.input, node.input[::-1]):
        for x, scale in _factors(source, source(scaled)):
            moved, bias = _moved(source, source(offset), source(scale))
            parts = _of_mean(source, source(scale))
            if moved is None or parts is None:
                continue

            def part(op: str, *inputs: str) -> NodeDef:
                return _with(node, op, list(inputs), f"{inputs[0]} {op}, for {node.name}")

            nodes = [part("Sub", x, moved)]
            for factor in parts:
                nodes.append(part("Mul", nodes[-1].name, factor))
            if bias is not None:
                nodes.append(part("AddV2", nodes[-1].name, bias))
            nodes[-1].name = node.name
            return nodes
    return []


def _moved(
    source: NodeFinder, node: NodeDef | None, scale: NodeDef | None
) -> tuple[str | None, str | None]:
    """Returns m and b of `b − m s`, in any spelling, b None where there is none; None, None."""
    if node is None:
        return None, None
    negative = [(node, None)]
    if node.op in ("Add", "AddV2") and len(node.input) == 2:
        one, other = node.input
        negative += [(source(one), other), (source(other), one)]
    for product, bias in negative:
        for factor, same in _factors(source, product):
            minus = source(factor)
            if source(same) is scale and minus is not None and minus.op == "Neg":
                return minus.input[0], bias
    if node.op == "Sub" and len(node.input) == 2:
        for mean, same in _factors(source, source(node.input[1])):
            if source(same) is scale:
                return mean, node.input[0]
    return None, None


def _factors(source: NodeFinder, node: NodeDef | None) -> list[tuple[str, str]]:
    return _both(node, "Mul")


def _of_mean(source: NodeFinder, scale: NodeDef | None) -> list[str] | None:
    """Returns the factors of a scale that is the `Rsqrt` of a mean + ε, times another perhaps."""
    if scale is None:
        return None
    for root, others in [(scale, [])] + [
        (source(one), [other]) for one, other in _factors(source, scale)
    ]:
        if root is None or root.op != "Rsqrt":
            continue
        total = source(root.input[0])
        if total is None or total.op not in ("Add", "AddV2"):
            continue
        if any((term := source(each)) and term.op == "Mean" for each in total.input):
            return [root.name, *others]
    return None


def _dilated(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    if node.op != "BatchToSpaceND":
        return None
    inner, one_axis = source(node.input[0]), False
    if inner is not None and inner.op == "Squeeze":
        if list(inner.attr["squeeze_dims"].list.i) not in ([1], [-3]):
            return None
        inner, one_axis = source(inner.input[0]), True
    if inner is None or inner.op not in _CONVOLUTIONS:
        return None
    spread = source(inner.input[0])
    if one_axis:
        if spread is None or spread.op != "ExpandDims" or not _is_axis(source(spread.input[1])):
            return None
        spread = source(spread.input[0])
    if spread is None or spread.op != "SpaceToBatchND":
        return None
    if not _same_constant(source(spread.input[1]), source(node.input[1])):
        return None
    inputs = [spread.input[0], inner.input[1], *spread.input[1:3], node.input[2]]
    return _with(inner, f"Dilated{inner.op}", inputs, node.name)


def _counted(source: NodeFinder, node: NodeDef) -> NodeDef | None:
    if node.op != "DenseBincount" or len(node.input) != 3:
        return None
    above = source(node.input[1])
    for most, rest in _both(above, "Minimum"):
        for least, _ in _both(source(rest), "Maximum"):
            if _same_constant(source(most), source(least)):
                return _with(node, node.op, [node.input[0], most, node.input[2]])
    return None


def _both(node: NodeDef | None, op: str) -> list[tuple[str, str]]:
    """Returns both orders of the arguments of a node of this op; none for other nodes."""
    if node is None or node.op != op or len(node.input) != 2:
        return []
    return [(node.input[0], node.input[1]), (node.input[1], node.input[0])]


def _is_axis(node: NodeDef | None) -> bool:
    """Returns whether it is axis 1 of a sequence, `(batch, here, length, channels)`."""
    array = constant(node, _INTEGERS)
    return array is not None and array.size == 1 and int(array.reshape(())) in (1, -3)


def _same_constant(one: NodeDef | None, other: NodeDef | None) -> bool:
    first, second = (constant(each, _INTEGERS) for each in (one, other))
    return first is not None and second is not None and np.array_equal(first, second)


_READERS = (
    _clip,
    _counted,
    _dilated,
    _prelu,
    _leaky,
    batch_axis.steps,
    batch_axis.stacked,
    batch_axis.filled,
)
