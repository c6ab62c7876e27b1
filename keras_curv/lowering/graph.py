"""A frozen TensorFlow graph, read op by op into affine maps and activations.

Each op has a rule (`rules/`); one without a rule is refused by name and node. Activations of
several ops are contracted to one before (`patterns.py`), what is affine between two activations is
folded (`flow.py`), and branches become a chain in the end (`chain.py`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError, about
from keras_curv.lowering import contractions, patterns
from keras_curv.lowering.chain import chain
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.miscompiled import Paddings, refuse_outputs
from keras_curv.lowering.rules.activations import ACTIVATION_OPS, activation_name
from keras_curv.lowering.rules.registry import apply, require_rule, shares_numbers
from keras_curv.network.network import Network, Scores
from keras_curv.saved_model.limits import (
    CLASSES,
    NODE,
    NODES,
    OP,
    PASS,
    TOTAL_ENTRIES,
    VECTOR_PASS,
    charge,
    one_budget,
    require_at_most,
)
from keras_curv.saved_model.nodes import data_inputs, node_name
from keras_curv.saved_model.server import MALFORMED

# What a served output may apply to the logits; each keeps their order in real arithmetic.
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
) -> tuple[Network, str]:
    """Reads a flat graph of constants and placeholders.

    Args:
        definition: without functions or variables.
        inputs: placeholder → shape of one example, in the order in which they are one vector.
        output: the tensor with logits, or with what a head of `HEADS` makes of them.
        source: for messages.

    Returns:
        The network, and the name of the head.

    Raises:
        InputError: an op without a rule, or used in a way its rule does not cover.
    """
    with about(f"{source}: its graph cannot be read", (LookupError, ValueError)):
        require_at_most(len(definition.node), NODES, "the graph of the signature, in nodes,")
        charge(NODE * len(definition.node), "it")
        values: dict[str, Any] = _slices(inputs)
        nodes = {node.name: node for node in definition.node}
        needed = _in_order(nodes, node_name(output))
        refuse_outputs(nodes[name] for name in needed)
        nodes = patterns.contracted({name: nodes[name] for name in needed})
        nodes = contractions.contracted(nodes)
        order = _in_order(nodes, node_name(output))
    unread = [name for name in order if name not in values]
    for name in unread:  # before any work
        with _naming(nodes[name], source):
            require_rule(nodes[name])
    with about(source):
        charge(OP * sum(nodes[name].op != "Const" for name in unread), "its graph")
    held = sum(_entries(values[name]) for name in inputs)
    readers = collections.Counter(i for name in unread for i in _arguments(nodes[name]))
    shared: set[str] = set()  # whose numbers another value holds too
    paddings = Paddings()
    for name in unread:
        node = nodes[name]
        given = _arguments(node)
        with _naming(node, source), np.errstate(all="ignore"):  # `Affine` refuses what overflows
            arguments = [_value_of(values, i) for i in data_inputs(node)]
            values[name] = apply(node, arguments)
            paddings.see(node, arguments, values[name])
            size = 0 if shares_numbers(node) else _entries(values[name])
            if node.op != "Const":
                vector = _vector(values[name]) if size else 0
                charge(size * PASS + vector * VECTOR_PASS, "it")
            readers.subtract(given)
            for i in {i for i in given if not readers[i]}:
                held -= 0 if i in shared else _entries(values[i])
                values[i] = None  # nobody asks again
            if shares_numbers(node):
                shared.update((name, *given))
            held += size
            require_at_most(held, TOTAL_ENTRIES, "what constants are folded to, in entries,")
    with about(source), np.errstate(all="ignore"):
        flow = _value_of(values, output)
        if not isinstance(flow, Flow):
            raise InputError("the output does not depend on the input")
        found = _finish(flow)
    return found


def _slices(inputs: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Each of several inputs as its part of the one vector that all of them are."""
    ends = np.cumsum([0, *(math.prod(shape) for shape in inputs.values())])
    whole = Flow.input((int(ends[-1]),))
    return {
        name: whole.rearranged(np.arange(start, start + math.prod(shape)).reshape(shape))
        for start, (name, shape) in zip(ends[:-1], inputs.items(), strict=True)
    }


@contextlib.contextmanager
def _naming(node: NodeDef, source: str) -> Iterator[None]:
    """Makes whatever reading a node raises an InputError that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: op {node.op} (node {node.name!r}): {error}") from error
    except MALFORMED as error:
        # Arguments that the op itself would not take, or a use that its rule does not foresee.
        raise InputError(
            f"{source}: op {node.op} (node {node.name!r}) cannot be read: {error}"
        ) from error


def _arguments(node: NodeDef) -> list[str]:
    """Names of the nodes that it takes something from."""
    return [node_name(tensor) for tensor in data_inputs(node)]


def _vector(value: Any) -> int:
    """Entries of an example, of what depends on the input."""
    if isinstance(value, tuple):
        return sum(_vector(part) for part in value)
    return value.shift.shape[0] if isinstance(value, Flow) else 0


def _entries(value: Any) -> int:
    """How many numbers a constant holds, or a flow beside its layers."""
    if isinstance(value, tuple):
        return sum(_entries(part) for part in value)
    if isinstance(value, Flow):
        return _vector(value) + value.stored
    return math.prod(np.shape(value.value if isinstance(value, Ball) else value))


def pre_activations(definition: graph_pb2.GraphDef, output: str) -> list[tuple[str, str]]:
    """Names of the activations on the way to a tensor, in order, each with that of its argument.

    Where `output` is computed from a chain, these are what `read_network` makes layers of. Where
    branches meet they are not: layers are then fewer than activations, or have units that carry.

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
    path = [nodes[name] for name in _in_order(nodes, node_name(output))]
    inputs = ((node.op, node.input[0]) for node in path if node.op in ACTIVATION_OPS)
    return [(activation_name(op), source) for op, source in inputs]


def before_head(definition: graph_pb2.GraphDef, output: str) -> str:
    """The tensor that the head before `output` is applied to.

    Ops that turn out to change nothing may follow it: a slice of everything, padding of no width.

    Example:
        >>> function = tf.function(lambda x: tf.identity(tf.nn.softmax(2.0 * x)))
        >>> graph = function.get_concrete_function(tf.ones((1, 2))).graph
        >>> before_head(graph.as_graph_def(), "Identity:0")
        'mul:0'
    """
    source = patterns.NodeFinder({node.name: node for node in definition.node})
    head = source(output)
    while head is not None and head.op not in _HEAD_OPS:
        head = source(head.input[0]) if head.input else None
    if head is None:
        raise InputError(f"{output!r} has no head")
    name, _, index = head.input[0].partition(":")
    return f"{name}:{index or 0}"


def _finish(flow: Flow) -> tuple[Network, str]:
    if len(flow.shape) != 1:
        raise InputError(f"the output must be (batch, classes). Received: {flow.shape}")
    if flow.shape[0] > CLASSES:
        raise InputError(
            f"the model has {flow.shape[0]} classes, of which each is held against every other; at "
            f"most {CLASSES} are supported"
        )
    source = flow.sources[-1]
    if flow.head == "logits" and source.sigma is not None and flow.is_base:
        # Nothing follows the last activation: it is a head. A strictly increasing function of
        # every logit keeps their order; of one logit, only sigmoid says where its classes part.
        affines, sigmas = chain(source)
        name, classes = source.sigma.name, affines[-1].fan_out
        if name != "sigmoid":
            raise InputError(
                f"the output is {name} of an affine map; end the model in logits, "
                "softmax or sigmoid"
            )
        if classes > 1:
            return Network(affines, sigmas), "sigmoid"
        last = affines[-1]
        if last.is_sparse:
            raise InputError(f"an output of {last.fan_in} entries is too large; pool before it")
        two: dict[str, Any] = {}
        for name in ("kernel", "bias", "served_kernel_error", "served_bias_error"):
            part = getattr(last, name)
            two[name] = np.concatenate([np.zeros_like(part), part], axis=-1)
        affines[-1] = dataclasses.replace(last, **two)
        return Network(affines, sigmas), "binary_sigmoid"
    affines, sigmas = chain(flow.made())
    if flow.shape == (1,) and flow.head == "logits":
        return Scores(affines, sigmas), flow.head
    return Network(affines, sigmas), flow.head


def _in_order(nodes: dict[str, NodeDef], last: str) -> list[str]:
    """The nodes that `last` depends on, each after its inputs; control edges are left out."""
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
            stack += [(i, False) for i in reversed(_arguments(nodes[name]))]
    return order


def _value_of(values: dict[str, Any], tensor: str) -> Any:
    """What a tensor is, of a node with one output or with a tuple of them."""
    name, _, index = tensor.partition(":")
    value = values[name]
    if isinstance(value, tuple):
        return value[int(index or 0)]
    if index not in ("", "0"):
        raise InputError(f"tensor {tensor!r}: ops with several outputs are not supported")
    return value
