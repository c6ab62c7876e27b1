"""A server and `tf.saved_model.load` read a SavedModel in two ways; here they must agree.

TF Serving goes by the main graph: it runs the saver's restore op, then the init op, and answers a
signature by the nodes that its definition names. `tf.saved_model.load` goes by the object graph, in
functions and in variables. Nothing in the format ties the two, so one model could be certified
and another one served. What is asked for here is what TensorFlow and Keras export:

- the signature is one call of a function, the one that loading returns for it, its outputs in
  the order of their names;
- the restore op is one call of a function that assigns tensors of the checkpoint to variables, each
  once and as it is; the init op does nothing, and no signature assigns anything;
- so every variable of the call has a tensor of the checkpoint, and that is what loading gave it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from keras_curv.errors import InputError
from keras_curv.reading import allow_list

_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"


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
        server.require_nothing_assigned()
        values = loaded.captured_inputs
        arguments = server.arguments(signature)
        keys = server.restored_keys() if values else {}
        stored = tf.train.load_checkpoint(checkpoint) if keys else None
        for node, value in zip(arguments[len(arguments) - len(values) :], values, strict=True):
            if node.op == "Const":
                _require_equal(node, tf.make_ndarray(node.attr["value"].tensor), value)
            elif node.name in keys:
                dtype = tf.as_dtype(node.attr["dtype"].type)
                value = tf.raw_ops.ReadVariableOp(resource=value, dtype=dtype)
                _require_equal(node, stored.get_tensor(keys[node.name]), value)
            else:
                raise _Differs(f"it would be given {node.name!r}, which is not restored")
    except (_Differs, ValueError, KeyError, IndexError, TypeError, tf.errors.OpError) as error:
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

    def arguments(self, signature: str) -> list[node_def_pb2.NodeDef]:
        """What the function is called with that answers the signature."""
        definition = self._meta.signature_def[signature]
        outputs = [definition.outputs[name].name for name in sorted(definition.outputs)]
        call = self._nodes[_name(outputs[0])]
        if call.op not in _CALLS or call.attr["f"].func.name != self._loaded_function(signature):
            raise _Differs("by another function")
        if outputs != [f"{call.name}:{i}" for i in range(len(outputs))]:
            raise _Differs("with its outputs in another order")
        return [self._nodes[_name(given)] for given in _data(call)]

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
        for name in map(_name, first):
            if self._nodes[name].op != "NoOp" or self._nodes[name].input:
                raise _Differs(f"the init op {name!r} would run first")
        for name, definition in signatures.items():
            outputs = [tensor.name for tensor in definition.outputs.values()]
            for node in self._behind(outputs):
                if node.op.startswith("Assign"):
                    raise _Differs(f"the signature {name!r} changes variables ({node.name!r})")

    def _behind(self, tensors: list[str]) -> Iterator[node_def_pb2.NodeDef]:
        """The nodes of the main graph behind these tensors, and those of functions they call."""
        waiting, seen = [_name(tensor) for tensor in tensors], set()
        called: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting += map(_name, self._nodes[name].input)
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
        shared = [
            (node.attr["container"].s, node.attr["shared_name"].s or node.name.encode())
            for node in self._nodes.values()
            if node.op == "VarHandleOp"
        ]
        if len(set(shared)) < len(shared):
            raise _Differs("two of its variables would be one")
        saver = self._meta.saver_def
        call = self._nodes[saver.restore_op_name]
        function = self._functions.get(call.attr["f"].func.name)
        if call.op not in _CALLS or function is None:
            raise _Differs("its variables would not be restored by a function")
        names = [argument.name for argument in function.signature.input_arg]
        given = dict(zip(names, map(_name, _data(call)), strict=True))
        file = {name for name in names if given[name] == _name(saver.filename_tensor_name)}
        body = {node.name: node for node in function.node_def}
        found: dict[str, str] = {}
        for node in body.values():
            if set(allow_list.called(node)) & self._functions.keys():
                raise _Differs("restoring would call further functions")
            if node.op.startswith("Assign"):
                variable = given.get(node.input[0])
                if node.op != "AssignVariableOp" or variable is None or variable in found:
                    raise _Differs(f"restoring would assign {node.input[0]!r} in another way")
                found[variable] = _key(body, node.input[1], file)
        return found


def _key(body: dict, tensor: str, file: set[str]) -> str:
    """The key in the checkpoint of a tensor in the restore function."""
    node = body[_name(tensor)]
    for _ in body:  # as often, and they go in circles
        if node.op != "Identity":
            break
        tensor, node = node.input[0], body[_name(node.input[0])]
    if node.op != "RestoreV2" or node.input[0] not in file:
        raise _Differs(f"restoring would compute a value ({node.name!r})")
    keys, slices = (
        tf.make_ndarray(body[_name(given)].attr["value"].tensor) for given in node.input[1:3]
    )
    place = int(tensor.rpartition(":")[2])
    if slices[place] != b"":
        raise _Differs("restoring would take a slice")
    return keys[place].decode()


def _data(node: node_def_pb2.NodeDef) -> list[str]:
    """Its inputs, but for those that it only waits for."""
    return [given for given in node.input if not given.startswith("^")]


def _name(tensor: str) -> str:
    """Of the node that a tensor comes from."""
    return tensor.lstrip("^").split(":")[0]
