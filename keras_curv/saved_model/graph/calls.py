"""Calls of functions that can be written out: those that say nothing of how they are computed.

A function's call is replaced by its body only where a server does the same, and computes the body
as it is written: attributes that may ask for anything else are refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError
from tensorflow.core.framework import function_pb2, op_def_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import op_def_registry

from keras_curv.errors import InputError, about
from keras_curv.saved_model.advice import advice
from keras_curv.saved_model.graph.nodes import attribute, data_inputs

CALLS = ("StatefulPartitionedCall", "PartitionedCall")
# Notes of exports beside the attributes of an op; no kernel asks for them.
_NOTES = {
    "_output_shapes",
    "_class",
    "_has_manual_control_dependencies",
    "_gradient_op_type",
    "_read_only_resource_inputs",
    "_collective_manager_ids",
    "_user_specified_name",
}
_CALL_NOTES = {"_XlaMustCompile"}
LOOPS = ("While", "StatelessWhile", "If", "StatelessIf")  # which no rule reads, whatever they say
_LOOP_NOTES = {"_lower_using_switch_merge", "_num_original_outputs", "_stateful_parallelism"}
_FUNCTION_NOTES = {"_input_shapes", "_construction_context", "_noinline", "_XlaMustCompile"}
_ARGUMENT_NOTES = {"_output_shapes", "_user_specified_name", "_has_manual_control_dependencies"}
# Options of a call: they say where and with how many threads the runtime runs it, not what.
_PLAIN_OPTIONS = {
    "device_count",
    "intra_op_parallelism_threads",
    "inter_op_parallelism_threads",
    "log_device_placement",
    "allow_soft_placement",
    "gpu_options",
    "pluggable_device_options",
    "experimental",  # as long as there is nothing in it
}
_NO_ATTRIBUTES = function_pb2.FunctionDef.ArgAttrs()


class Body:
    """The nodes of the main graph, or of a function, by name.

    Attributes:
        nodes: by name.
        arguments, returns: what a function takes, each with its attributes, and the tensors that it
            gives.
        compiled, apart: whether it is to be compiled by XLA, or not to be inlined.
    """

    def __init__(self, nodes: Iterable[NodeDef]):
        self.arguments: dict[str, function_pb2.FunctionDef.ArgAttrs] = {}
        self.returns: list[str] = []
        self.compiled = self.apart = False
        self.nodes: dict[str, NodeDef] = {}
        for node in nodes:
            if self.nodes.setdefault(node.name, node) is not node:
                raise InputError(f"two nodes are named {node.name!r}")

    @classmethod
    def of(cls, function: function_pb2.FunctionDef) -> Body:
        """Returns that of a function, which must be the same whoever calls it, and where."""
        signature = function.signature
        name, arguments = signature.name, [*signature.input_arg, *signature.output_arg]
        listed = any(argument.number_attr or argument.type_list_attr for argument in arguments)
        if signature.attr or listed:
            raise InputError(f"function {name!r} takes attributes from who calls it")
        notes = {note for noted in function.arg_attr.values() for note in noted.attr}
        if unknown := {*function.attr} - _FUNCTION_NOTES or notes - _ARGUMENT_NOTES:
            # Such as "api_implements": TensorFlow may run another function that says the same.
            raise InputError(f"function {name!r} has the attribute {min(unknown)!r}")
        body = cls(function.node_def)
        body.compiled = attribute(function, "_XlaMustCompile").b
        body.apart = attribute(function, "_noinline").b
        for place, argument in enumerate(signature.input_arg):
            body.arguments[argument.name] = function.arg_attr.get(place, _NO_ATTRIBUTES)
        if len(body.arguments) < len(signature.input_arg):
            raise InputError(f"function {name!r} has two arguments of one name")
        body.returns = [function.ret[argument.name] for argument in signature.output_arg]
        if body.nodes.keys() & set(body.arguments):
            raise InputError(f"function {name!r} has a node named as an argument")
        return body


def require_plain_call(node: NodeDef) -> None:
    """Refuses a call that says how what it calls is to be computed.

    Raises:
        InputError: it does.
        TypeError: it has other arguments than a call.
    """
    require_noted(node)
    require_arguments(node, op_definition(node))
    given = attribute(node, "f").func
    if attribute(node, "executor_type").s:
        raise InputError(f"{node.name!r} names an executor for the runtime")
    if attribute(node, "config").s or given.attr:
        raise InputError(f"{node.name!r} says how the runtime is to rewrite what it calls")
    with about(f"the options of {node.name!r} for the runtime", (DecodeError,)):
        config = config_pb2.ConfigProto.FromString(attribute(node, "config_proto").s)
    options = {field.name for field, _ in config.ListFields()} - _PLAIN_OPTIONS
    options |= {"experimental"} if config.experimental.ByteSize() else set()
    if options:
        named = ", ".join(sorted(options))
        raise InputError(
            f"with options that {node.name!r} has for the runtime ({named}), such as "
            "tf.config.optimizer.set_experimental_options sets; export it in a process without"
        )


def op_definition(node: NodeDef) -> op_def_pb2.OpDef:
    """Returns what TensorFlow knows of a node's op.

    Raises:
        InputError: nothing.
    """
    definition = op_def_registry.get(node.op)
    if definition is None:
        raise InputError(f"op {node.op} (node {node.name!r}): TensorFlow has no such op")
    return definition


def require_noted(node: NodeDef) -> None:
    """Refuses attributes that the op does not have, but for what exports write down.

    Raises:
        InputError: there is one.
    """
    known = {each.name for each in op_definition(node).attr} | _NOTES
    known |= _CALL_NOTES if node.op in CALLS else _LOOP_NOTES if node.op in LOOPS else set()
    for name in sorted(node.attr):
        if name not in known:
            raise InputError(
                f"op {node.op} (node {node.name!r}) has the attribute {name!r}, which may change "
                f"what it computes{advice(node.op)}"
            )


def require_arguments(node: NodeDef, definition: op_def_pb2.OpDef) -> None:
    """Refuses a node that has not as many arguments as it says.

    Raises:
        InputError: it has more, or fewer.
    """
    number = sum(count_of(node, argument) for argument in definition.input_arg)
    if number != len(data_inputs(node)):
        raise InputError(f"op {node.op} (node {node.name!r}) says that it has {number} arguments")


def count_of(node: NodeDef, argument: op_def_pb2.OpDef.ArgDef) -> int:
    """Returns how many tensors an argument, or an output, consists of."""
    if argument.number_attr:
        return attribute(node, argument.number_attr).i
    if argument.type_list_attr:
        return len(attribute(node, argument.type_list_attr).list.type)
    return 1


def dtype_of(node: NodeDef, place: int) -> int:
    """Returns the dtype of an output of a node, of which nothing has been checked; 0: unknown."""
    definition = op_def_registry.get(node.op)
    left_out = (
        {each.name: each.default_value.type for each in definition.attr} if definition else {}
    )
    for argument in definition.output_arg if definition else ():
        count = count_of(node, argument)
        if place < count:
            listed = attribute(node, argument.type_list_attr).list.type
            named = attribute(node, argument.type_attr).type or left_out.get(argument.type_attr, 0)
            return listed[place] if argument.type_list_attr else argument.type or named
        place -= count
    return 0
