"""A live Keras model → what its export would answer, its variables as they are now."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.errors import InputError, about
from keras_curv.saved_model import limits, server
from keras_curv.saved_model.inlining import Inliner
from keras_curv.saved_model.outputs import Output, logits_of

_CHANGING = ("Assign", "Resource")  # how the names of ops begin that change variables


def answer(model: Any, output_name: str | None = None, source: str | None = None) -> server.Answer:
    """Returns what a model computes, traced here.

    Args:
        model: a built Keras model, or a callable with `name` and `inputs`.
        output_name: of the logits; None where there is no doubt.
        source: for messages; None takes the model's name.

    Raises:
        InputError: it is not built, changes variables, has an op that cannot be written out, or
            answers otherwise at inference than once it is exported, as layers do that are called
            with `training=True`.
    """
    inputs = getattr(model, "inputs", None)
    source = source or str(getattr(model, "name", repr(model)))
    if not isinstance(inputs, Sequence) or not inputs:
        if getattr(getattr(model, "base", None), "inputs", None):
            raise InputError(
                f"{source}: a {type(model).__name__} trains its base, which is what is served: "
                "pass `model.base`"
            )
        raise InputError(
            f"{model!r} is not a built Keras model whose inputs are known: give it an Input, "
            "or export it and pass the SavedModel directory"
        )
    limits.require_at_most(len(inputs), limits.INPUTS, f"{source}: the number of inputs")
    given = {_name(each): each for each in inputs}
    if len(given) < len(inputs):
        raise InputError(f"{source}: each of its inputs must have a name of its own")
    names = sorted(given)
    structure = inputs[0] if len(inputs) == 1 else getattr(model, "input", list(inputs))

    specs = [
        tf.TensorSpec((None, *given[name].shape[1:]), tf.as_dtype(given[name].dtype))
        for name in names
    ]

    def traced(**how: bool) -> server.Answer:
        def call(parts: list[tf.Tensor]) -> Any:
            named = dict(zip(names, parts, strict=True))
            x = tf.nest.map_structure(lambda each: named[_name(each)], structure)
            return model(x, **how)

        try:
            function = tf.function(call).get_concrete_function(specs)
        except InputError:
            raise
        except (ValueError, TypeError, tf.errors.OpError) as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(f"{source}: it cannot be called as it is served: {reason}") from error
        return _written(function, names, source, output_name)

    found = traced(training=False)
    try:
        where = _first_difference(found.definition, traced().definition)
    except InputError as error:
        where = str(error).removeprefix(f"{source}: ")
    if where:
        raise InputError(
            f"{source}: once exported it answers otherwise than at inference ({where}): a layer is "
            "called with training=True, or takes that for its default; build it without"
        )
    return found


def _first_difference(one: GraphDef, other: GraphDef) -> str:
    """Returns the node in which two flat graphs first differ beyond names; "" if they do not."""
    places = [{node.name: str(i) for i, node in enumerate(graph.node)} for graph in (one, other)]
    for nodes in itertools.zip_longest(one.node, other.node):
        plain = [
            node and (node.op, [_place(known, tensor) for tensor in node.input], _attributes(node))
            for node, known in zip(nodes, places, strict=True)
        ]
        if plain[0] != plain[1]:
            return f"node {(nodes[1] or nodes[0]).name!r}"
    return ""


def _place(known: dict[str, str], tensor: str) -> str:
    """Returns a tensor with the number of its node in place of the name."""
    name, *output = tensor.removeprefix("^").split(":")
    return ":".join([known[name], *output])


def _attributes(node: NodeDef) -> dict[str, bytes]:
    return {
        name: value.SerializeToString(deterministic=True)
        for name, value in node.attr.items()
        if not name.startswith("_")  # notes, which may have names
    }


def _name(given: Any) -> str:
    """Returns the name of an input; a model that has only one needs none."""
    return str(getattr(given, "name", None) or "input")


def _written(
    function: Any, names: Sequence[str], source: str, output_name: str | None
) -> server.Answer:
    """Writes out the flat graph of a function that was traced with inputs of these names."""
    definition = function.graph.as_graph_def()
    captured = {inner.op.name: outer for outer, inner in function.graph.captures}
    bodies = [definition.node, *(each.node_def for each in definition.library.function)]
    for node in itertools.chain(*bodies):
        if node.op.startswith(_CHANGING):
            raise InputError(f"{source}: it changes variables (node {node.name!r})")
    for node in definition.node:
        if node.name in captured and captured[node.name].dtype != tf.resource:
            constant = tf.make_tensor_proto(captured[node.name].numpy())
            attributes = {
                "value": attr_value_pb2.AttrValue(tensor=constant),
                "dtype": node.attr["dtype"],
            }
            node.CopyFrom(NodeDef(name=node.name, op="Const", attr=attributes))

    def value(handle: NodeDef, dtype: int) -> np.ndarray:
        resource = captured[handle.name]
        return tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.as_dtype(dtype)).numpy()

    with about(source, server.MALFORMED):
        inliner = Inliner(definition, value)
        places = zip(names, function.inputs, strict=False)  # what it captured follows them
        given = {name: inliner.write(place.op.name) for name, place in places}
        returned = logits_of(_outputs(function), output_name)
        found = server.Answer(inliner.flat, given, inliner.write(returned.tensor), inliner.claims)
    return found


def _outputs(function: Any) -> Iterator[Output]:
    structured = function.structured_outputs
    names = [f"output_{place}" for place in range(len(function.outputs))]
    if isinstance(structured, dict):
        parts = sorted(structured.items())  # in which order they are flattened
        names = [
            name if leaf is part else "" for name, part in parts for leaf in tf.nest.flatten(part)
        ]
    for name, tensor in zip(names, function.outputs, strict=True):
        yield Output(name, tensor.dtype, tensor.shape, tensor.name)
