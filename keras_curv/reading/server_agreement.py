"""A server and `tf.saved_model.load` read a SavedModel in two ways; here they must agree.

TF Serving goes by the main graph: it runs the saver's restore op, then the init op, and answers a
signature by the nodes that its definition names. `tf.saved_model.load` goes by the object graph, in
functions and in variables. Nothing in the format ties the two, so one model could be certified
and another one served. What is asked for here is what TensorFlow and Keras export:

- the signature is one call of a function, the one that loading returns for it, of what a client
  sends and nothing in its place, with outputs of the same names in their order;
- the restore op is one call of a function that assigns tensors of the checkpoint to variables, each
  once and as it is, and does no more; the init op does nothing, and no signature assigns, saves or
  restores anything;
- every variable is its own; those of the call have a tensor of the checkpoint each, and that is
  what loading gave them;
- no call asks the runtime for another way to compute it, as in fewer bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from keras_curv.errors import InputError
from keras_curv.reading import allow_list
from keras_curv.reading.nodes import attribute, node_name

_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_RESTORING = ("Const", "Identity", "RestoreV2", "AssignVariableOp", "NoOp")
_CHANGING = ("Assign", "Save", "Restore", "MergeV2Checkpoints")  # how names of ops begin
# What a call may ask of the runtime: where and with how many threads it runs, not what.
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


class _Differs(Exception):
    """What a server would do otherwise."""


def require_as_served(
    meta: meta_graph_pb2.MetaGraphDef, signature: str, loaded, checkpoint: str, source: str
) -> None:
    """Refuses a signature that a server would answer otherwise than the loaded function.

    Args:
        meta: of the SavedModel, screened.
        signature: its name.
        loaded: the concrete function that `tf.saved_model.load` returns for it.
        checkpoint: prefix of the files of variables.
        source: for messages.

    Raises:
        InputError: the two differ, or are not made as TensorFlow makes them.
    """
    try:
        server = _Server(meta)
        server.require_plain_calls()
        server.require_nothing_assigned()
        values = loaded.captured_inputs
        if set(loaded.structured_outputs) != set(meta.signature_def[signature].outputs):
            raise _Differs("with outputs of other names")
        arguments = server.arguments(signature, captured=len(values))
        keys = server.restored_keys() if values else {}
        stored = tf.train.load_checkpoint(checkpoint) if keys else None
        for node, value in zip(arguments, values, strict=True):
            if node.op == "Const":
                _require_equal(node, tf.make_ndarray(node.attr["value"].tensor), value)
            elif node.op == "VarHandleOp" and node.name in keys:
                dtype = tf.as_dtype(node.attr["dtype"].type)
                value = tf.raw_ops.ReadVariableOp(resource=value, dtype=dtype)
                _require_equal(node, stored.get_tensor(keys[node.name]), value)
            else:
                raise _Differs(f"it would be given {node.name!r}, which is not restored")
    except (
        *(_Differs, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
        *(DecodeError, tf.errors.OpError),
    ) as error:
        raise InputError(
            f"{source}: a server would answer the signature {signature!r} otherwise than the "
            f"function that loading the model gives: {error}; export it again"
        ) from error


def _require_equal(node, served, loaded) -> None:
    served, loaded = np.asarray(served), np.asarray(loaded)
    if served.dtype != loaded.dtype or served.tobytes() != loaded.tobytes():
        raise _Differs(f"{node.name!r} would have another value")


class _Server:
    """What a server does with the main graph."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef):
        self._meta = meta
        self._nodes = {node.name: node for node in meta.graph_def.node}
        self._functions = {f.signature.name: f for f in meta.graph_def.library.function}

    def arguments(self, signature: str, captured: int) -> list[node_def_pb2.NodeDef]:
        """What the signature's function is called with, after what a client sends."""
        definition = self._meta.signature_def[signature]
        outputs = [definition.outputs[name].name for name in sorted(definition.outputs)]
        call = self._nodes[node_name(outputs[0])]
        if call.op not in _CALLS or call.attr["f"].func.name != self._loaded_function(signature):
            raise _Differs("by another function")
        if outputs != [f"{call.name}:{i}" for i in range(len(outputs))]:
            raise _Differs("with its outputs in another order")
        given = [self._nodes[node_name(tensor)] for tensor in _data(call)]
        sent, rest = given[: len(given) - captured], given[len(given) - captured :]
        named = sorted(tensor.name for tensor in definition.inputs.values())
        if definition.defaults or named != sorted(f"{node.name}:0" for node in sent):
            raise _Differs("given something else than a client sends")
        for node in sent:
            if node.op != "Placeholder" or node.input:
                raise _Differs(f"given {node.name!r} in place of what a client sends")
        return rest

    def require_plain_calls(self) -> None:
        """That no call says how it is to be computed."""
        for node in self._all():
            if attribute(node, "executor_type").s:
                raise _Differs(f"by an executor that {node.name!r} names")
            config = config_pb2.ConfigProto.FromString(attribute(node, "config_proto").s)
            options = {field.name for field, _ in config.ListFields()}
            if not options <= _PLAIN_OPTIONS or config.experimental.ByteSize():
                raise _Differs(f"with options that {node.name!r} has for the runtime")

    def _all(self) -> Iterator[node_def_pb2.NodeDef]:
        yield from self._nodes.values()
        for function in self._functions.values():
            yield from function.node_def

    def _loaded_function(self, signature: str) -> str | None:
        """The name of the function that the object graph has for a signature."""
        nodes = self._meta.object_graph_def.nodes
        place = 0
        for name in ("signatures", signature):
            children = [c.node_id for c in nodes[place].children if c.local_name == name]
            if len(children) != 1:
                return None
            (place,) = children
        return nodes[place].bare_concrete_function.concrete_function_name or None

    def require_nothing_assigned(self) -> None:
        """That neither the init op nor a signature changes what was restored."""
        signatures, collections = self._meta.signature_def, self._meta.collection_def
        init = [_INIT_SIGNATURE] if _INIT_SIGNATURE in signatures else []
        first = [tensor.name for name in init for tensor in signatures[name].outputs.values()]
        for name in _INIT_COLLECTIONS:
            first += collections[name].node_list.value if name in collections else []
        for name in map(node_name, first):
            if self._nodes[name].op != "NoOp" or self._nodes[name].input:
                raise _Differs(f"the init op {name!r} would run first")
        seen, called = set(), set()
        for name, definition in signatures.items():
            outputs = [tensor.name for tensor in definition.outputs.values()]
            for node in self._behind(outputs, seen, called):
                if node.op.startswith(_CHANGING):
                    raise _Differs(f"the signature {name!r} changes or saves variables")

    def _behind(
        self, tensors: list[str], seen: set[str], called: set[str]
    ) -> Iterator[node_def_pb2.NodeDef]:
        """The nodes of the main graph behind these tensors, and those of functions they call.

        Nodes in `seen` and functions in `called` are left out; both grow.
        """
        waiting = [node_name(tensor) for tensor in tensors]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += map(node_name, self._nodes[name].input)
            yield from self._with_calls(self._nodes[name], called)

    def _with_calls(self, node, called: set[str]) -> Iterator[node_def_pb2.NodeDef]:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            yield node
            for name in set(allow_list.called(node)) & self._functions.keys() - called:
                called.add(name)
                waiting += self._functions[name].node_def

    def restored_keys(self) -> dict[str, str]:
        """Variable → the key of what it is restored to, in the checkpoint."""
        variables = [node for node in self._nodes.values() if node.op == "VarHandleOp"]
        shared = {attribute(node, "shared_name").s for node in variables} - {b""}
        apart = any(attribute(node, "container").s for node in variables)
        if len(shared) < len(variables) or apart:
            raise _Differs("two of its variables would be one, or one without a name")
        saver = self._meta.saver_def
        call = self._nodes[saver.restore_op_name]
        if any(i.startswith("^") for n in (call, *variables) for i in n.input):
            raise _Differs("restoring would wait for something else")
        function = self._functions.get(call.attr["f"].func.name)
        if call.op not in _CALLS or function is None:
            raise _Differs("its variables would not be restored by a function")
        names = [argument.name for argument in function.signature.input_arg]
        given = dict(zip(names, map(node_name, _data(call)), strict=True))
        file = {name for name in names if given[name] == node_name(saver.filename_tensor_name)}
        body = {node.name: node for node in function.node_def}
        found: dict[str, str] = {}
        for node in function.node_def:
            if node.op not in _RESTORING:
                raise _Differs(f"restoring would also run {node.op}")
            if node.op.startswith("Assign"):
                variable = given.get(node.input[0])
                if node.op != "AssignVariableOp" or variable is None or variable in found:
                    raise _Differs(f"restoring would assign {node.input[0]!r} in another way")
                found[variable] = _key(body, node.input[1], file)
        return found


def _key(body: dict, tensor: str, file: set[str]) -> str:
    """The key in the checkpoint of a tensor in the restore function."""
    node = body[node_name(tensor)]
    for _ in body:  # as often, and they go in circles
        if node.op != "Identity":
            break
        tensor, node = node.input[0], body[node_name(node.input[0])]
    if node.op != "RestoreV2" or node.input[0] not in file:
        raise _Differs(f"restoring would compute a value ({node.name!r})")
    keys, slices = (
        tf.make_ndarray(body[node_name(given)].attr["value"].tensor) for given in node.input[1:3]
    )
    place = int(tensor.rpartition(":")[2])
    if slices[place] != b"":
        raise _Differs("restoring would take a slice")
    return keys[place].decode()


def _data(node: node_def_pb2.NodeDef) -> list[str]:
    """Its inputs, but for those that it only waits for."""
    return [given for given in node.input if not given.startswith("^")]
