"""Activations that a graph spells out in several ops, recognised exactly.

TensorFlow has no op for silu, gelu or mish: Keras writes them as small graphs, in which several
paths lead from one tensor to one result. A pattern is such a graph with `Z` for the tensor. The
ops must be these, in this order (but for the operands of sums and products), and the constants
these numbers, so that what is recognised *is* the function of `network/activations.py`, in real
arithmetic. A graph that differs in anything is read op by op, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.network.gated import GELU_SCALE, GELU_TANH_CUBE, GELU_TANH_SCALE
from keras_curv.saved_model.graph.nodes import data_inputs, scalar

Pattern = Any  # `Z`, a number, or an op and the patterns of its operands
Z = object()
_CUBE = ("Mul", GELU_TANH_CUBE, ("Pow", Z, 3.0))
_GATE = ("Tanh", ("Mul", GELU_TANH_SCALE, ("AddV2", Z, _CUBE)))
_NEGATIVE_PART = ("RealDiv", ("Minimum", Z, 0.0), 1.0)
_SIGMOID = ("RealDiv", ("Relu6", ("AddV2", Z, 3.0)), 6.0)
_RAMP = ("SelectV2", ("GreaterEqual", Z, 1.0), 1.0, ("Mul", 0.5, ("AddV2", Z, 1.0)))
_HINGE = ("SelectV2", ("Less", Z, 1.0), ("Mul", 0.25, ("Pow", ("AddV2", Z, 1.0), 2.0)), Z)

# Activations, as Keras 3 and TensorFlow write them; the constants of gelu are those of float32.
PATTERNS = (
    ("silu", ("Mul", Z, ("Sigmoid", Z))),
    ("silu", ("Mul", Z, ("Sigmoid", ("Mul", 1.0, Z)))),
    ("gelu", ("Mul", ("Mul", 0.5, Z), ("Erfc", ("Mul", ("Neg", Z), GELU_SCALE)))),
    ("gelu_tanh", ("Mul", ("Mul", 0.5, Z), ("AddV2", 1.0, _GATE))),
    ("mish", ("Mul", Z, ("Tanh", ("Softplus", Z)))),
    ("celu", ("AddV2", ("Maximum", Z, 0.0), ("Mul", 1.0, ("Expm1", _NEGATIVE_PART)))),
    ("log_sigmoid", ("Neg", ("Softplus", ("Neg", Z)))),
    ("tanh_shrink", ("Sub", Z, ("Tanh", Z))),
    ("squareplus", ("RealDiv", ("AddV2", Z, ("Sqrt", ("AddV2", ("Square", Z), 4.0))), 2.0)),
    ("hard_silu", ("Mul", Z, _SIGMOID)),
    ("sparse_sigmoid", ("SelectV2", ("LessEqual", Z, -1.0), 0.0, _RAMP)),
    ("sparse_plus", ("SelectV2", ("LessEqual", Z, -1.0), ("ZerosLike", Z), _HINGE)),
)
NAMES = frozenset(name for name, _ in PATTERNS)
_COMMUTE = ("Mul", "AddV2", "Maximum", "Minimum")
HANDS_ON = ("Identity", "IdentityN", "StopGradient", "PreventGradient")


def contracted(nodes: dict[str, NodeDef]) -> dict[str, NodeDef]:
    """Returns the graph with a single node, whose op is the activation, where a pattern ends.

    Args:
        nodes: of a flat graph, by name.

    Example:
        >>> import tensorflow as tf
        >>> graph = tf.function(lambda z: z * tf.sigmoid(z)).get_concrete_function(tf.ones(1)).graph
        >>> nodes = contracted({node.name: node for node in graph.as_graph_def().node})
        >>> nodes["mul"].op, nodes["mul"].input
        ('silu', ['z'])
    """
    source = NodeFinder(nodes)
    return {name: _contracted(source, node) for name, node in nodes.items()}


def _contracted(source: NodeFinder, node: NodeDef) -> NodeDef:
    for activation, pattern in PATTERNS:
        if node.op == pattern[0]:
            for argument in _matches(source, node.name, pattern, None):
                attributes = {"T": node.attr["T"]}
                return NodeDef(name=node.name, op=activation, input=[argument], attr=attributes)
    return node


def _matches(
    source: NodeFinder, tensor: str, pattern: Pattern, argument: str | None
) -> Iterator[str | None]:
    """Yields all nodes that may be `Z` in a match of `tensor`; it is `argument`, if known."""
    node = source(tensor)
    if pattern is Z:
        if node is not None and argument in (None, node.name):
            yield node.name
    elif node is None:
        return
    elif isinstance(pattern, float):
        if scalar(node) == pattern:
            yield argument
    elif node.op == pattern[0]:
        inputs = data_inputs(node)
        orders = [inputs, inputs[::-1]] if node.op in _COMMUTE else [inputs]
        for order in orders:
            yield from _all_match(source, order, pattern[1:], argument)


def _all_match(
    source: NodeFinder, tensors: list[str], patterns: Sequence[Pattern], argument: str | None
) -> Iterator[str | None]:
    if len(tensors) != len(patterns):
        return
    if not tensors:
        yield argument
        return
    for found in _matches(source, tensors[0], patterns[0], argument):
        yield from _all_match(source, tensors[1:], patterns[1:], found)


class NodeFinder:
    """The node behind a tensor, past ops that hand it on; None if it is not a first output.

    Args:
        nodes: of a flat graph, by name.
    """

    def __init__(self, nodes: dict[str, NodeDef]):
        self._nodes = nodes
        self._found: dict[str, NodeDef | None] = {}

    def __call__(self, tensor: str) -> NodeDef | None:
        """Returns the node behind a tensor, or None."""
        passed = []
        while tensor not in self._found:
            passed.append(tensor)
            name, _, index = tensor.partition(":")
            node = self._nodes[name]
            if node.op == "IdentityN":
                tensor = node.input[int(index or 0)]
            elif index not in ("", "0"):
                self._found[tensor] = None
            elif node.op in HANDS_ON:
                tensor = node.input[0]
            else:
                self._found[tensor] = node
        self._found |= dict.fromkeys(passed, self._found[tensor])
        return self._found[tensor]
