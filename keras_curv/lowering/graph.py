"""A flat TensorFlow graph → a network, in three steps.

1. **Rewrite**: several ops that are one activation (`patterns.py`), or one op only together
   (`contractions.py`), become one node.
2. **Interpret**: each node's rule (`rules/`) makes its value of its arguments' values; one without
   a rule is refused by name. Affine maps between two activations are folded (`flow.py`).
3. **Finish**: branches become a chain of layers (`chain.py`), and what follows the logits a head.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError, about
from keras_curv.lowering import contractions, lookups, patterns
from keras_curv.lowering.advised_cut import advised_cut
from keras_curv.lowering.chain import Source, chain
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.lookups import Lookup
from keras_curv.lowering.miscompiled import Paddings, refuse_outputs
from keras_curv.lowering.rules.activations import ACTIVATION_OPS, activation_name
from keras_curv.lowering.rules.registry import apply, require_rule, shares_numbers
from keras_curv.network.network import Network, Scores
from keras_curv.saved_model.graph.calls import LOOPS
from keras_curv.saved_model.graph.nodes import arguments_of, data_inputs, in_order, node_name
from keras_curv.saved_model.limits import (
    CLASSES,
    NODE,
    NODES,
    OP,
    PASS,
    TOTAL_ENTRIES,
    VECTOR_PASS,
    TooLarge,
    charge,
    one_budget,
    require_at_most,
)
from keras_curv.saved_model.server import MALFORMED

# Functions that a served output may apply to the logits; each keeps their order in real arithmetic.
HEADS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "logits": tf.identity,
    "softmax": tf.math.softmax,
    "log_softmax": tf.math.log_softmax,
    "sigmoid": tf.sigmoid,
    "binary_sigmoid": lambda logits: tf.sigmoid(logits[:, 1:]),
}

_HEAD_OPS = ("Sigmoid", "Softmax", "LogSoftmax")


@one_budget()
def read_network(
    definition: graph_pb2.GraphDef,
    *,
    inputs: Mapping[str, tuple[int, ...]],
    output: str,
    source: str,
    counts: Mapping[str, int] | None = None,
) -> tuple[Network, str, str | None]:
    """Reads a flat graph of constants and placeholders.

    Args:
        definition: without functions or variables.
        inputs: placeholder → shape of one example, in the order in which they are one vector.
        output: the tensor with logits, or with what a head of `HEADS` makes of them.
        source: for messages.
        counts: placeholder → number of categories, of those that are read as one-hot vectors.

    Returns:
        The network, the name of the head, and the tensor that the head is applied to, if any.

    Raises:
        InputError: an op without a rule, or used in a way its rule does not cover.
    """
    with about(f"{source}: its graph cannot be read", (LookupError, ValueError)):
        slices = _slices(inputs, counts or {})
        nodes = [node for node in rewritten(definition, output) if node.name not in slices]

    def advice(node: NodeDef, error: InputError) -> str:
        with contextlib.suppress(InputError, *MALFORMED):
            args = definition, nodes, slices, output, node.name
            return advised_cut(*args, late=isinstance(error, TooLarge))
        return ""

    # Before any work, and loops before what Keras puts around them.
    one = lookups.alone(nodes, slices)
    looked_up = {name for name, place in one.items() if place in (counts or {})}
    looked_up |= lookups.constants(nodes, slices)
    for node in sorted(nodes, key=lambda node: node.op not in LOOPS):
        if node.op not in lookups.OPS or node.name not in looked_up:
            with _naming(node, source, advice):
                require_rule(node)
    with about(f"{source}: its graph cannot be read"):
        there = {node.name: node for node in definition.node}
        refuse_outputs(there[name] for name in in_order(there, node_name(output)))
    with about(source):
        charge(OP * sum(node.op != "Const" for node in nodes), "its graph")
    values = _Values(slices, nodes)
    for node in nodes:
        # `Affine` refuses what overflows.
        with _naming(node, source, advice), np.errstate(all="ignore"):
            values.compute(node)
    with about(source), np.errstate(all="ignore"):
        network, head = _finished(values[output])
        return network, head, _before_head(definition, output, head)


def cut_advice(definition: graph_pb2.GraphDef, places: Collection[str], output: str) -> str:
    """Returns a clause that names a cut, where one would do for a graph whose inputs are refused.

    Args:
        definition, output: as of `read_network`.
        places: its placeholders.
    """
    with contextlib.suppress(InputError, *MALFORMED):
        nodes = [node for node in rewritten(definition, output) if node.name not in places]
        return advised_cut(definition, nodes, places, output)
    return ""


def rewritten(definition: graph_pb2.GraphDef, output: str) -> list[NodeDef]:
    """Returns the nodes that a tensor is computed from, rewritten, each after those it reads."""
    require_at_most(len(definition.node), NODES, "the graph of the signature, in nodes,")
    charge(NODE * len(definition.node), "it")
    nodes = {node.name: node for node in definition.node}
    nodes = {name: nodes[name] for name in in_order(nodes, node_name(output))}
    nodes = contractions.contracted(patterns.contracted(nodes))
    return [nodes[name] for name in in_order(nodes, node_name(output))]


class _Values:
    """The values of nodes, as far as they are computed and somebody asks for them again.

    Args:
        inputs: placeholder → its value.
        nodes: those that will be computed.
    """

    def __init__(self, inputs: Mapping[str, Flow | Lookup], nodes: Sequence[NodeDef]):
        self._values: dict[str, Any] = {**inputs}
        self._readers = collections.Counter(name for node in nodes for name in arguments_of(node))
        self._held = sum(_entries(value)[0] for value in inputs.values())
        self._shared: set[str] = set()  # nodes whose numbers another value holds too
        self._paddings = Paddings()

    def __getitem__(self, tensor: str) -> Any:
        """Returns the value of a tensor, of a node with one output or with a tuple of them."""
        name, _, index = tensor.partition(":")
        value = self._values[name]
        if isinstance(value, tuple):
            return value[int(index or 0)]
        if index not in ("", "0"):
            raise InputError(f"tensor {tensor!r}: ops with several outputs are not supported")
        return value

    def compute(self, node: NodeDef) -> None:
        """Applies the rule of a node, and lets go of arguments that nobody asks for again."""
        arguments = [self[tensor] for tensor in data_inputs(node)]
        if any(isinstance(argument, Lookup) for argument in arguments):
            value = lookups.apply(node, arguments)
        elif (value := lookups.folded(node, arguments)) is None:
            value = apply(node, arguments)
        self._paddings.see(node, arguments, value)
        shares, names = shares_numbers(node), arguments_of(node)
        size, vector = (0, 0) if shares else _entries(value)
        if node.op != "Const":
            charge(size * PASS + vector * VECTOR_PASS, "it")
        self._values[node.name] = value
        self._readers.subtract(names)
        for name in {name for name in names if not self._readers[name]}:
            self._held -= 0 if name in self._shared else _entries(self._values[name])[0]
            self._values[name] = None
        if shares:
            self._shared.update((node.name, *names))
        self._held += size
        require_at_most(self._held, TOTAL_ENTRIES, "what constants are folded to, in entries,")


def _slices(
    inputs: Mapping[str, tuple[int, ...]], counts: Mapping[str, int]
) -> dict[str, Flow | Lookup]:
    """Returns each of several inputs as its part of the one vector that all of them are."""
    sizes = {name: math.prod(shape) * counts.get(name, 1) for name, shape in inputs.items()}
    whole, start = Flow.input((sum(sizes.values()),)), 0
    found: dict[str, Flow | Lookup] = {}
    for name, shape in inputs.items():
        if name in counts:
            found[name] = Lookup.input(shape, counts[name], start, whole)
        else:
            part = np.arange(start, start + sizes[name]).reshape(shape)
            found[name] = whole.rearranged(part)
        start += sizes[name]
    return found


@contextlib.contextmanager
def _naming(
    node: NodeDef, source: str, advice: Callable[[NodeDef, InputError], str]
) -> Iterator[None]:
    """Makes whatever reading a node raises an InputError that names it, and a cut that would do."""
    try:
        yield
    except InputError as error:
        what = f"op {node.op} (node {node.name!r}): {error}{advice(node, error)}"
        raise InputError(f"{source}: {what}") from error
    except MALFORMED as error:
        # Arguments that the op itself would not take, or a use that its rule does not foresee.
        raise InputError(
            f"{source}: op {node.op} (node {node.name!r}) cannot be read: {error}"
        ) from error


def _entries(value: Any) -> tuple[int, int]:
    """Returns how many numbers a value holds beside its layers, and how many of an example."""
    if isinstance(value, tuple):
        parts = [_entries(part) for part in value]
        return sum(held for held, _ in parts), sum(vector for _, vector in parts)
    if isinstance(value, Flow):
        vector = value.shift.shape[0]
        return vector + value.stored, vector
    if isinstance(value, Lookup):
        return value.table.size, 0
    return math.prod(np.shape(value.value if isinstance(value, Ball) else value)), 0


def pre_activations(definition: graph_pb2.GraphDef, output: str) -> list[tuple[str, str]]:
    """Returns names of the activations before a tensor, in order, each with its argument's name.

    If `output` is computed from a chain, `read_network` makes layers of these. If branches meet it
    does not: layers are then fewer than activations, or have units that carry.

    Args:
        definition: a flat graph; variables may be read in it.
        output: a tensor, or its node.

    Example:
        >>> function = tf.function(lambda x: tf.tanh(2.0 * x) + 1.0)
        >>> graph = function.get_concrete_function(tf.ones((1, 2))).graph
        >>> pre_activations(graph.as_graph_def(), "add")
        [('tanh', 'mul')]
    """
    nodes = patterns.contracted({node.name: node for node in definition.node})
    path = [nodes[name] for name in in_order(nodes, node_name(output))]
    inputs = ((node.op, node.input[0]) for node in path if node.op in ACTIVATION_OPS)
    return [(activation_name(op), source) for op, source in inputs]


def _before_head(definition: graph_pb2.GraphDef, output: str, name: str) -> str | None:
    """Returns the tensor that the head before `output` is applied to; None where there is none.

    Ops that turn out to change nothing may follow it: a slice of everything, padding of no width.
    """
    if name == "logits":
        return None
    source = patterns.NodeFinder({node.name: node for node in definition.node})
    head = source(output)
    while head is not None and head.op not in _HEAD_OPS:
        head = source(head.input[0]) if head.input else None
    if head is None:
        raise InputError(f"{output!r} has no head")
    name, _, index = head.input[0].partition(":")
    return f"{name}:{index or 0}"


def _finished(flow: Any) -> tuple[Network, str]:
    """Returns the network up to the logits, and the name of the head behind them."""
    if not isinstance(flow, Flow):
        raise InputError("the output does not depend on the input")
    if len(flow.shape) != 1:
        raise InputError(f"the output must be (batch, classes). Received: {flow.shape}")
    if flow.shape[0] > CLASSES:
        raise InputError(
            f"the model has {flow.shape[0]} classes, of which each is held against every other; at "
            f"most {CLASSES} are supported"
        )
    last = flow.sources[-1]
    if flow.head == "logits" and last.sigma is not None and flow.is_base:
        return _without_last_activation(last)
    affines, sigmas = chain(flow.made())
    if flow.shape == (1,) and flow.head == "logits":
        return Scores(affines, sigmas), flow.head
    return Network(affines, sigmas), flow.head


def _without_last_activation(last: Source) -> tuple[Network, str]:
    """Returns the network before an activation that nothing follows, which then is a head.

    A strictly increasing function of every logit keeps their order; of one logit, only sigmoid says
    where its classes part.
    """
    assert last.sigma is not None
    affines, sigmas = chain(last)
    if last.sigma.name != "sigmoid":
        raise InputError(
            f"the output is {last.sigma.name} of an affine map; end the model in logits, "
            "softmax or sigmoid"
        )
    if last.size > 1:
        return Network(affines, sigmas), "sigmoid"
    one = affines[-1]
    if one.is_sparse:
        raise InputError(f"an output of {one.fan_in} entries is too large; pool before it")
    two: dict[str, Any] = {}
    for name in ("kernel", "bias", "served_kernel_error", "served_bias_error"):
        part = getattr(one, name)
        two[name] = np.concatenate([np.zeros_like(part), part], axis=-1)
    affines[-1] = dataclasses.replace(one, **two)
    return Network(affines, sigmas), "binary_sigmoid"
