"""Finds the call by which `tf.saved_model.load` would answer a signature, from the files alone.

TF Serving answers by the main graph. Python answers by a graph of objects that stands beside it,
and gives variables what a graph of objects in the checkpoint says. The files can make them two
different models, so that both are followed, and must lead to one call: of the same function, with
the same variables, inputs and outputs.

Nothing is loaded. Whatever else loading would run, such as the functions by which an object
restores itself, is refused, and so is a part that would replace a method of an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, struct_pb2
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedBareConcreteFunction, SavedObject
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from keras_curv.errors import InputError, about
from keras_curv.saved_model import limits

_KINDS = (
    *("user_object", "function", "variable", "bare_concrete_function", "constant"),
    "captured_tensor",
)
# By these an object of Python finds and restores what belongs to it.
_METHODS = frozenset(dir(tf.__internal__.tracking.AutoTrackable))
_CAPTURE = re.compile(r"capture_\d+")  # how a function names the constants that it captured
_VALUE = "VARIABLE_VALUE"
_NOTHING = (
    struct_pb2.StructuredValue(none_value=struct_pb2.NoneValue()),
    struct_pb2.StructuredValue(list_value=struct_pb2.ListValue()),
)


class Argument(NamedTuple):
    """One argument of a function that answers a signature."""

    kind: str  # "input", "variable" or "constant"
    # of the input, of the variable's key in the checkpoint, or of the constant's node in the main
    # graph
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Call(NamedTuple):
    """The call of a function that answers a signature."""

    function: str  # its name
    arguments: tuple[Argument, ...]  # in the order in which the function takes them
    # names of the signature's outputs, in the order in which the function returns them
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        arguments, outputs = ", ".join(map(str, self.arguments)), ", ".join(self.outputs)
        return f"{self.function}({arguments}), which returns {outputs}"


def loaded_call(
    meta: meta_graph_pb2.MetaGraphDef, checkpoint: bytes | None, signature: str
) -> Call:
    """Returns the call by which a model that Python has loaded answers a signature.

    Args:
        meta: of the SavedModel.
        checkpoint: the graph of objects in the checkpoint; None where there are no variables.
        signature: its name.

    Raises:
        InputError: it cannot be loaded, or loading would do more than that.
        LookupError, TypeError, ValueError: the graph of objects is none.
    """
    with about("the graph of objects in the checkpoint", (DecodeError,)):
        stored = TrackableObjectGraph.FromString(checkpoint or b"")
    return _Objects(meta, stored).call(signature)


class _Objects:
    """The graph of objects of a SavedModel, and that of its checkpoint."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef, stored: TrackableObjectGraph):
        self._nodes = meta.object_graph_def.nodes
        self._functions = meta.object_graph_def.concrete_functions
        self._stored = stored
        for nodes in (self._nodes, stored.nodes):
            edges = sum(1 + len(node.children) for node in nodes)
            limits.require_at_most(edges, limits.OBJECTS, "the graph of objects")
        self._children = [_children(node, len(self._nodes)) for node in self._nodes]
        slots = (slot for node in self._nodes for slot in node.slot_variables)
        self._slots = {slot.slot_variable_node_id for slot in slots}
        for number, node in enumerate(self._nodes):
            self._require_plain(number, node)

    def _require_plain(self, number: int, node: SavedObject) -> None:
        """Refuses an object that loading would run, or that is another one than it seems."""
        kind = node.WhichOneof("kind")
        if kind not in _KINDS:
            raise InputError(f"object {number} is of the kind {kind!r}, which loading would run")
        named = node.registered_name or node.registered_saver
        if named and (kind, named) != ("constant", "tf.TrackableConstant"):
            raise InputError(f"object {number} is of a class of its own, {named!r}")
        if node.saveable_objects:
            raise InputError(f"object {number} has functions of its own to restore it")
        for name in self._children[number]:
            if kind == "user_object" and (name in _METHODS or name.startswith("_self_")):
                raise InputError(f"object {number} has a part named {name!r}, as a method of it")

    def call(self, signature: str) -> Call:
        """Returns the call by which the signature is answered."""
        place = self._children[0].get("signatures")
        if place is None or self._nodes[place].user_object.identifier != "signature_map":
            raise InputError("tf.saved_model.load would find no signatures in it")
        number = self._children[place].get(signature)
        if number is None or self._nodes[number].WhichOneof("kind") != "bare_concrete_function":
            raise InputError("tf.saved_model.load would not find that signature")
        bare = self._nodes[number].bare_concrete_function
        name = bare.concrete_function_name
        if name not in self._functions:
            raise InputError(f"tf.saved_model.load would not find the function {name!r}")
        if any(not _CAPTURE.fullmatch(part) for part in self._children[number]):
            raise InputError(f"the function {name!r} has parts of its own")
        function = self._functions[name]
        inputs = _inputs(bare, function.canonicalized_input_signature)
        outputs = sorted(_specs(function.output_signature.dict_value.fields, "output"))
        keys = self._keys()
        captured = (self._captured(number, keys) for number in function.bound_inputs)
        return Call(name, (*(Argument("input", x) for x in inputs), *captured), tuple(outputs))

    def _captured(self, number: int, keys: Mapping[int, set[int]]) -> Argument:
        """Returns the argument that an object stands for, which a function is given."""
        if not 0 <= number < len(self._nodes):
            raise InputError(f"object {number}, which a function is given, is not there")
        node = self._nodes[number]
        kind = node.WhichOneof("kind")
        if self._children[number]:
            raise InputError(f"object {number}, which a function is given, has parts of its own")
        if kind == "constant":
            return Argument("constant", node.constant.operation)
        if kind != "variable" or number in self._slots:
            raise InputError(f"object {number}, which a function is given, is no variable")
        places = keys.get(number, set())
        if len(places) != 1:
            raise InputError(f"a variable, object {number}, would be restored from several places")
        (place,) = places
        if sum(place in others for others in keys.values()) > 1:
            raise InputError(f"a variable, object {number}, would share its value with another one")
        stored = self._stored.nodes[place]
        if [each.name for each in stored.attributes] != [_VALUE] or stored.children:
            raise InputError(f"a variable, object {number}, would not be restored as it is")
        if stored.HasField("registered_saver"):
            raise InputError(f"a variable, object {number}, would be restored by code of its own")
        return Argument("variable", stored.attributes[0].checkpoint_key)

    def _keys(self) -> dict[int, set[int]]:
        """Returns, for each object, the objects in the checkpoint that it may be restored from.

        TensorFlow walks both graphs at once, and of two ways to one object takes the one that it
        comes by first. Here all ways are taken.
        """
        if not self._stored.nodes:
            return {}
        count = len(self._stored.nodes)
        children = [_children(node, count) for node in self._stored.nodes]
        found: dict[int, set[int]] = {0: {0}}
        waiting, pairs = [(0, 0)], 0
        while waiting:
            ours, stored = waiting.pop()
            for name in self._children[ours].keys() & children[stored].keys():
                pair = self._children[ours][name], children[stored][name]
                if pair[1] not in found.setdefault(pair[0], set()):
                    found[pair[0]].add(pair[1])
                    waiting.append(pair)
                    pairs += 1
                    limits.require_at_most(pairs, limits.OBJECTS, "the graph of objects, in pairs,")
        return found


def _children(node: SavedObject, count: int) -> dict[str, int]:
    """Returns the parts of an object by name."""
    parts = {child.local_name: child.node_id for child in node.children}
    if len(parts) < len(node.children):
        raise InputError("an object has two parts of one name")
    if any(not 0 <= number < count for number in parts.values()):
        raise InputError("an object has a part that is not there")
    return parts


def _inputs(bare: SavedBareConcreteFunction, signature: struct_pb2.StructuredValue) -> list[str]:
    """Returns names of a function's inputs, in the order in which it takes them.

    They are passed by name, and sorted as Python spells them. Positional ones, as a signature that
    was edited could have, are refused.
    """
    positional, *named = signature.tuple_value.values
    if len(named) != 1 or positional.tuple_value.values:
        raise InputError("the signature's inputs are not by name")
    names = sorted(_specs(named[0].dict_value.fields, "input"), key=_spelled)
    spelled = [_spelled(name) for name in names]
    if len(set(spelled)) < len(names):
        raise InputError("two inputs would have one name in Python")
    if [_spelled(name) for name in bare.argument_keywords] != spelled:
        raise InputError("the signature's inputs have other names, or another order, in Python")
    for pair in bare.function_spec.fullargspec.named_tuple_value.values:
        if pair.key in ("args", "varargs", "defaults") and pair.value not in _NOTHING:
            raise InputError("the signature's inputs are not by name alone")
    return names


def _specs(fields: Mapping[str, struct_pb2.StructuredValue], what: str) -> Iterable[str]:
    """Returns names of tensors; refuses a field that is none."""
    for name, value in fields.items():
        if value.WhichOneof("kind") != "tensor_spec_value":
            raise InputError(f"the {what} {name!r} of the signature is no tensor in Python")
    return fields.keys()


def _spelled(name: str) -> str:
    """Returns the name of an input as an argument in Python, as TensorFlow makes it."""
    spelled = "".join(letter if letter.isalnum() else "_" for letter in name)
    return spelled if spelled[:1].isalpha() else f"arg_{spelled}"
