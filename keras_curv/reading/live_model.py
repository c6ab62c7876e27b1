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
from keras_curv.reading.joined_parts import parts_of
from keras_curv.reading.named_layer import named_layer, outputs_of
from keras_curv.saved_model import limits, server
from keras_curv.saved_model.graph.inlining import Inliner
from keras_curv.saved_model.graph.outline import advising, find_cut
from keras_curv.saved_model.outputs import Output, logits_of

_CHANGING = ("Assign", "Resource")  # how the names of ops begin that change variables
_READING = ("ResourceGather", "ResourceGatherNd")  # which do not, though they begin so


def answer(
    model: Any, output_name: str | None = None, source: str | None = None, cut: str | None = None
) -> server.Answer:
    """Returns what a model computes, traced here.

    Args:
        model: a built Keras model, or a callable with `name` and `inputs`.
        output_name: of the logits; None where there is no doubt.
        source: for messages; None takes the model's name.
        cut: the layer, by its name or of a nested model by `outer/inner`, or a tensor as of a
            SavedModel, behind which the model is certified.

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
    specs = specs_of(model)
    if len(specs) < len(inputs):
        raise InputError(f"{source}: each of its inputs must have a name of its own")
    names = [*specs]
    structure = inputs[0] if len(inputs) == 1 else getattr(model, "input", list(inputs))

    layer = None if cut is None else named_layer(model, cut, source)

    def call(parts: list[tf.Tensor], **how: bool) -> Any:
        named = dict(zip(names, parts, strict=True))
        x = tf.nest.map_structure(lambda each: named[_name(each)], structure)
        return model(x, **how)

    def before(parts: list[tf.Tensor]) -> tf.Tensor:
        with outputs_of(layer) as made:
            call(parts, training=False)
        graph = tf.compat.v1.get_default_graph()
        return made[0] if made else graph.get_tensor_by_name(f"{tensor}:{place or 0}")

    def traced(**how: bool) -> server.Answer:
        def bound(parts: list[tf.Tensor]) -> Any:
            return call(parts, **how)

        try:
            with outputs_of(layer) as made:
                function = tf.function(bound).get_concrete_function([*specs.values()])
        except InputError:
            raise
        except (ValueError, TypeError, tf.errors.OpError) as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(f"{source}: it cannot be called as it is served: {reason}") from error
        what = f"{source}: the layer {cut!r}"
        at = None if layer is None else _one_tensor(made, function, what)
        return _written(function, names, source, output_name, cut, at)

    found = traced(training=False)
    try:
        where = _first_difference(found.definition, traced().definition)
    except InputError as error:
        where = str(error).removeprefix(f"{source}: ")
    if where:
        raise InputError(
            f"{source}: once exported it answers otherwise than at inference ({where}): a layer is "
            "called with training=True, or takes that for its default, as layers that augment "
            "images do; build the model that is served without it"
        )
    if found.cut is None:
        return found
    tensor, _, place = found.cut.tensor.partition(":")
    return found._replace(before=tf.function(before, input_signature=[[*specs.values()]]))


def specs_of(model: Any) -> dict[str, tf.TensorSpec]:
    """Returns what a model takes, by name, in the order of names."""
    found = {
        _name(each): tf.TensorSpec((None, *each.shape[1:]), tf.as_dtype(each.dtype))
        for each in model.inputs
    }
    return dict(sorted(found.items()))


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
        # Notes may have names, and bodies of loops have, which no rule reads.
        if not name.startswith("_") and value.WhichOneof("value") != "func"
    }


def _name(given: Any) -> str:
    """Returns the name of an input; a model that has only one needs none."""
    return str(getattr(given, "name", None) or "input")


def _one_tensor(made: list[Any], function: Any, what: str) -> str:
    """Returns the tensor that a layer has made in a function."""
    tensors = [tensor for each in made for tensor in tf.nest.flatten(each)]
    if len(tensors) != 1 or tensors[0].graph is not function.graph:
        how = f"makes {len(tensors)} tensors" if len(tensors) != 1 else "runs within a loop"
        raise InputError(f"{what} {how}, where a cut needs one; name another layer or tensor")
    return tensors[0].name


def _written(
    function: Any,
    names: Sequence[str],
    source: str,
    output_name: str | None,
    cut: str | None = None,
    at: str | None = None,
) -> server.Answer:
    """Writes out the flat graph of a function that was traced with inputs of these names.

    Of a cut `at` is the tensor, if it is known.
    """
    definition = function.graph.as_graph_def(add_shapes=cut is not None)
    captured = {inner.op.name: outer for outer, inner in function.graph.captures}
    bodies = [definition.node, *(each.node_def for each in definition.library.function)]
    for node in itertools.chain(*bodies):
        if node.op.startswith(_CHANGING) and node.op not in _READING:
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
        returned = logits_of(_outputs(function), output_name)
        inputs = zip(names, function.inputs, strict=False)  # what it captured follows them
        places = {name: place.op.name for name, place in inputs}
        begin = None
        if cut is None:
            inliner = Inliner(definition, value)
            given = {name: inliner.write(place) for name, place in places.items()}
        else:
            begin = find_cut(definition, places, returned.tensor, cut, at)
            inliner = Inliner(definition, value, [begin])
            given = {cut: begin.node}
        with advising(definition, places, returned.tensor):
            found = inliner.write(returned.tensor)
    parts = {} if begin is None else parts_of(function.graph, begin.tensor, places)
    return server.Answer(inliner.flat, given, found, inliner.claims, begin, parts=parts)


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
