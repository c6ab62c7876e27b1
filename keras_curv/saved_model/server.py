"""Finds the graph by which a server answers a signature, from the files alone.

TF Serving imports the main graph, runs the saver's restore op, then the init op, and answers a
signature by the tensors that its definition names. Here each of these steps is followed in the
files, or the model is refused:

- the restore op is one call of a function that assigns tensors of the checkpoint to variables, each
  once and as it is, and does no more; the init op does nothing;
- every variable is its own; what it is restored to has the type and shape that it says;
- no signature has an op that could change a variable, and the one that is asked for has none that
  could reach outside (`pure_ops.py`);
- what a client sends goes to places of its own, and what it gets is written out by `inlining.py`;
- every loader takes the graph (`loadable.py`), and TensorFlow takes no node of it for another one
  (`node_names.py`);
- a model that Python loads answers by the same call of the same function (`object_graph.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf import meta_graph_pb2

from keras_curv.errors import InputError, about
from keras_curv.saved_model import limits, object_graph
from keras_curv.saved_model.advice import advice
from keras_curv.saved_model.graph import loadable
from keras_curv.saved_model.graph.calls import CALLS, Body, require_plain_call
from keras_curv.saved_model.graph.cut import Cut
from keras_curv.saved_model.graph.inlining import Inliner
from keras_curv.saved_model.graph.node_names import require_names_of_their_own
from keras_curv.saved_model.graph.nodes import attribute, data_inputs, node_name
from keras_curv.saved_model.graph.outline import advising, find_cut
from keras_curv.saved_model.graph.pure_ops import PURE_OPS, is_harmless_beside
from keras_curv.saved_model.graph.reach import Reach
from keras_curv.saved_model.object_graph import Argument
from keras_curv.saved_model.outputs import Output, logits_of
from keras_curv.saved_model.parsed_features import find_features

_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_GIVEN = ("Placeholder", "VarHandleOp")  # to the function that restores
_RESTORING = ("Const", "Identity", "RestoreV2", "AssignVariableOp", "NoOp")
_CHANGING = ("Assign", "Save", "Restore", "MergeV2Checkpoints")  # how names of ops begin
# The probable reason that an exported model assigns.
_TRAINS = (
    "; random layers do, as for augmentation, and batch normalizations in training mode, into "
    "which a Resizing layer of Keras puts those behind it (keras-team/keras, pull request 23166): "
    "export a function that calls the model with training=False, as docs/methods.md shows"
)
# Exceptions that are raised if a graph is not one that TensorFlow takes.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

Tensor = Callable[[str], np.ndarray]


class Answer(NamedTuple):
    """The flat graph by which a signature is answered."""

    definition: graph_pb2.GraphDef  # of ops, constants and placeholders
    given: dict[str, str]  # name of each input → its placeholder; names sorted
    returned: str  # the tensor with the logits, or with what a head makes of them
    # tensors, each with a shape that the model says it has
    claims: Sequence[tuple[str, TensorShapeProto]]
    # behind which the graph begins, and the only input; None: nothing is cut off
    cut: Cut | None = None
    # computes what flows at the cut from all inputs, by sorted names; None: unknown
    before: Callable[[list[tf.Tensor]], tf.Tensor] | None = None
    # where tf.Examples are sent, whose features are the inputs: what each is in those that leave it
    # out, None if they must not; None where the inputs are sent themselves
    defaults: Mapping[str, np.ndarray | None] | None = None
    parts: Mapping[str, np.ndarray] = {}  # name → places, of what the cut joins; see `ServedModel`


def answer(
    meta: meta_graph_pb2.MetaGraphDef,
    signature: str,
    stored: Tensor,
    objects: bytes | None,
    source: str,
    output_name: str | None = None,
    cut: str | None = None,
) -> Answer:
    """Returns what a server computes for a signature.

    Args:
        meta: of the SavedModel.
        signature: its name.
        stored: gives the tensor that the checkpoint has under a key.
        objects: the graph of objects in the checkpoint; None where there is no checkpoint.
        source: for messages.
        output_name: of the logits; None where there is no doubt.
        cut: the tensor behind which the model is certified, see `cut.py`; None: all of it is.

    Raises:
        InputError: a step is not made as TensorFlow makes it.
    """
    known = sorted(set(meta.signature_def) - {_INIT_SIGNATURE})
    if not meta.object_graph_def.nodes:
        raise InputError(
            f"{source} is a TensorFlow 1 SavedModel; export the model with TensorFlow 2"
        )
    if list(meta.meta_info_def.tags) != ["serve"]:
        raise InputError(f"{source}: its graph must be tagged 'serve', and nothing else")
    if signature not in known:
        advice = "" if known else "; write a Keras model with model.export(directory)"
        names = ", ".join(known) or "none"
        raise InputError(f"{source} has no signature {signature!r}; it has: {names}{advice}")
    with about(f"{source}: the signature {signature!r} cannot be read", (InputError, *MALFORMED)):
        server = _Server(meta, stored)
        found = server.answer(signature, output_name, cut)
        server.require_loaded_alike(signature, objects)
    return found


class _Server:
    """A server's steps with the main graph."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef, stored: Tensor):
        self._meta = meta
        self._stored = stored
        self._nodes = {node.name: node for node in meta.graph_def.node}
        self._functions = {f.signature.name: f for f in meta.graph_def.library.function}
        if len(self._functions) < len(meta.graph_def.library.function):
            raise InputError("a function is defined twice")
        self._keys: dict[str, tuple[str, int]] | None = None

    def answer(self, signature: str, output_name: str | None, cut: str | None) -> Answer:
        """Returns the graph behind the signature's logits, as far as the cut."""
        if self._meta.asset_file_def or "saved_model_assets" in self._meta.collection_def:
            raise InputError("it refers to asset files; they are not allowed")
        self._require_nothing_changed(signature)
        definition = self._meta.signature_def[signature]
        places = self._places(definition)
        outputs = [*self._outputs(definition)]
        logits = logits_of(outputs, output_name)
        graph, begin = self._meta.graph_def, None
        cuts: dict[str, Cut] = {}
        features = {} if cut is not None else find_features(graph, places, logits.tensor)
        if cut is not None:
            begin = cuts[cut] = find_cut(graph, places, logits.tensor, cut)
        cuts |= {name: feature.cut for name, feature in features.items()}
        inliner = Inliner(graph, self._restored, cuts.values())
        given = {name: each.node for name, each in cuts.items()}
        if not cuts:
            given = {name: inliner.write(place) for name, place in places.items()}
        with advising(graph, places, logits.tensor):
            returned = inliner.write(logits.tensor)
        reach = Reach.of(self._nodes, self._functions, (output.tensor for output in outputs))
        loadable.require_version(self._meta.graph_def.versions)
        loadable.require_graphs(self._nodes.values(), reach)
        require_names_of_their_own(reach)
        claims = [*inliner.claims, (returned, logits.shape.as_proto())]
        if not cuts:
            claims += [(given[name], info.tensor_shape) for name, info in definition.inputs.items()]
            inliner.write_idle()
        defaults = {name: feature.default for name, feature in features.items()} or None
        return Answer(inliner.flat, given, returned, claims, begin, defaults=defaults)

    def require_loaded_alike(self, signature: str, objects: bytes | None) -> None:
        """Refuses a model that answers otherwise where `tf.saved_model.load` has loaded it.

        Raises:
            InputError: it does, or it cannot be loaded so.
        """
        served = self._call(self._meta.signature_def[signature])
        loaded = object_graph.loaded_call(self._meta, objects, signature)
        pairs = zip(served.arguments, loaded.arguments, strict=False)
        alike = all(one == other or self._of_one_value(one, other) for one, other in pairs)
        alike &= len(served.arguments) == len(loaded.arguments)
        if not alike or served[0] != loaded[0] or served.outputs != loaded.outputs:
            raise InputError(
                "a server and tf.saved_model.load would answer it otherwise: the one by "
                f"{served}, the other by {loaded}; export the model again"
            )

    def _of_one_value(self, one: Argument, other: Argument) -> bool:
        """Returns whether both are variables with one value, as Keras 3 stores each twice."""
        if not one.kind == other.kind == "variable":
            return False
        first, second = self._stored(one.name), self._stored(other.name)
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and first.tobytes() == second.tobytes()

    def _call(self, definition: meta_graph_pb2.SignatureDef) -> object_graph.Call:
        """Returns the call of a function by which a server answers a signature."""
        names = {info.name: name for name, info in definition.outputs.items()}
        (node, *others) = {node_name(tensor) for tensor in names}
        call = self._nodes[node]
        tensors = [f"{node}:{place}" for place in range(len(definition.outputs))]
        if others or call.op not in CALLS or sorted(names) != sorted(tensors):
            raise InputError(
                "the signature is not answered by one call of a function, as "
                "tf.saved_model.save writes it, so that tf.saved_model.load would answer otherwise"
            )
        sent = {place: name for name, place in self._places(definition).items()}
        arguments = tuple(self._argument(given, sent) for given in data_inputs(call))
        outputs = tuple(names[tensor] for tensor in tensors)
        return object_graph.Call(attribute(call, "f").func.name, arguments, outputs)

    def _argument(self, given: str, sent: Mapping[str, str]) -> Argument:
        """Returns the argument that a tensor of the main graph is."""
        name = given.removesuffix(":0")
        if name in sent:
            return Argument("input", sent[name])
        op = self._nodes[name].op if name in self._nodes else None
        if op == "VarHandleOp":
            return Argument("variable", self._key(name)[0])
        if op == "Const":
            return Argument("constant", name)
        raise InputError(f"the signature's function is given {given!r}, which is computed first")

    def _places(self, definition: meta_graph_pb2.SignatureDef) -> dict[str, str]:
        """Returns the node that each input goes to, by sorted names."""
        inputs = dict(sorted(definition.inputs.items()))
        limits.require_at_most(len(inputs), limits.INPUTS, "the number of inputs")
        if not inputs:
            raise InputError("the signature has no input; certificates need one, or several")
        for info in inputs.values():
            place = self._nodes[node_name(info.name)]
            if info.name != f"{place.name}:0" or place.op != "Placeholder" or place.input:
                raise InputError(f"{info.name!r} is not a place for what a client sends")
            if info.dtype != place.attr["dtype"].type or definition.defaults:
                raise InputError("what a client sends would be replaced, or be of another type")
        places = {name: node_name(info.name) for name, info in inputs.items()}
        if len(set(places.values())) < len(places):
            raise InputError(f"inputs {', '.join(places)} are not each of one place of their own")
        return places

    def _outputs(self, definition: meta_graph_pb2.SignatureDef) -> Iterator[Output]:
        for name, info in sorted(definition.outputs.items()):
            node, _, place = info.name.partition(":")
            dtype, call = info.dtype, self._nodes[node]
            if call.op in CALLS and call.attr["Tout"].list.type[int(place)] != dtype:
                raise InputError(f"the output {name!r} is of another type than is said")
            shape = tf.TensorShape(info.tensor_shape)
            yield Output(name, tf.as_dtype(dtype), shape, info.name)

    def _require_nothing_changed(self, signature: str) -> None:
        """Refuses an init op, or any signature, that changes what was restored."""
        signatures, collections = self._meta.signature_def, self._meta.collection_def
        init = [_INIT_SIGNATURE] if _INIT_SIGNATURE in signatures else []
        first = [tensor.name for name in init for tensor in signatures[name].outputs.values()]
        for name in _INIT_COLLECTIONS:
            first += collections[name].node_list.value if name in collections else []
        for name in map(node_name, first):
            if self._nodes[name].op != "NoOp" or self._nodes[name].input:
                raise InputError(
                    f"the init op {name!r} would run first, as of a table of words; only a graph "
                    "that needs none is read"
                )
        for name in sorted(signatures, key=lambda name: name != signature):
            outputs = [tensor.name for tensor in signatures[name].outputs.values()]
            for where, body in Reach.of(self._nodes, self._functions, outputs).bodies():
                for node in body:
                    if node.op not in PURE_OPS:
                        self._require_harmless(node, where, name, asked=name == signature)

    def _require_harmless(self, node: NodeDef, where: str, name: str, *, asked: bool) -> None:
        """Refuses an op that is not pure, or, of a signature that is not asked for, has a state."""
        what = f"op {node.op} (node {node.name!r} in {where})"
        safe = "is not on the list of ops that are safe to serve"
        if node.op.startswith(_CHANGING):
            raise InputError(f"{what} changes or saves variables, and {safe}{_TRAINS}")
        if asked:
            raise InputError(f"{what} {safe}{advice(node.op)}")
        if node.op not in self._functions and not is_harmless_beside(node.op):
            raise InputError(
                f"{what}, of the signature {name!r}, has a state or is unknown, and so might "
                "change variables; export the model without that signature"
            )

    def _restored(self, handle: NodeDef, read: int) -> np.ndarray:
        """Returns the value that a server restores a variable to, read as some type."""
        if handle.op != "VarHandleOp":
            raise InputError(f"op {handle.op} (node {handle.name!r}) is not a variable")
        key, dtype = self._key(handle.name)
        array, shape = self._stored(key), attribute(handle, "shape").shape
        types = {tf.as_dtype(array.dtype).as_datatype_enum, attribute(handle, "dtype").type}
        if {dtype, read} | types != {read}:
            raise InputError(f"the variable {handle.name!r} is stored as another type")
        if shape.unknown_rank or tuple(dim.size for dim in shape.dim) != array.shape:
            raise InputError(
                f"the variable {handle.name!r} is stored with another shape than it has: "
                f"{array.shape}"
            )
        return array

    def _key(self, variable: str) -> tuple[str, int]:
        """Returns the key of a variable's value in the checkpoint, and its type there."""
        if self._keys is None:
            self._keys = self._restored_keys()
        if variable not in self._keys:
            raise InputError(
                f"the variable {variable!r} is not restored; if tf.saved_model.save wrote a "
                "model of Keras 3, use model.export(directory) instead"
            )
        return self._keys[variable]

    def _restored_keys(self) -> dict[str, tuple[str, int]]:
        """Returns each variable's key in the checkpoint, and its type there."""
        variables = [node for node in self._nodes.values() if node.op == "VarHandleOp"]
        shared = {attribute(node, "shared_name").s for node in variables} - {b""}
        apart = any(attribute(node, "container").s for node in variables)
        if len(shared) < len(variables) or apart:
            raise InputError("two of its variables would be one, or one without a name")
        saver = self._meta.saver_def
        call = self._nodes[saver.restore_op_name]
        if any(i.startswith("^") for n in (call, *variables) for i in n.input):
            raise InputError("restoring would wait for something else")
        function = self._functions.get(call.attr["f"].func.name)
        if call.op not in CALLS or function is None:
            raise InputError("its variables would not be restored by a function")
        require_plain_call(call)
        body = Body.of(function)
        tensors = (tensor.removesuffix(":0") for tensor in data_inputs(call))
        given = dict(zip(body.arguments, tensors, strict=True))
        if any(self._nodes[name].op not in _GIVEN for name in given.values()):
            raise InputError("restoring would compute something first")
        file_name = saver.filename_tensor_name.removesuffix(":0")
        file = {argument for argument, name in given.items() if name == file_name}
        lists: dict[str, np.ndarray] = {}
        found: dict[str, tuple[str, int]] = {}
        for node in function.node_def:
            if node.op not in _RESTORING:
                raise InputError(f"restoring would also run {node.op}")
            if node.op.startswith("Assign"):
                variable = given.get(node.input[0])
                if variable is None or variable in found:
                    raise InputError(f"restoring would assign {node.input[0]!r} in another way")
                found[variable] = _key(body.nodes, node.input[1], file, lists)
        return found


def _key(body: dict, tensor: str, file: set[str], lists: dict) -> tuple[str, int]:
    """Returns the key in the checkpoint of a tensor in the restore function, and its type there."""
    node = body[node_name(tensor)]
    if node.op == "Identity":
        tensor, node = node.input[0], body[node_name(node.input[0])]
    if node.op != "RestoreV2" or node.input[0] not in file:
        raise InputError(f"restoring would compute a value ({node.name!r})")
    keys, slices = (_strings(body[node_name(given)], lists) for given in node.input[1:3])
    name, output, place = tensor.split(":")
    if output != "tensors" or slices[int(place)] != b"":
        raise InputError("restoring would take a slice")
    return keys[int(place)].decode(), node.attr["dtypes"].list.type[int(place)]


def _strings(node: NodeDef, lists: dict) -> np.ndarray:
    if node.op != "Const":
        raise InputError(f"restoring would compute what it restores ({node.name!r})")
    if node.name not in lists:
        tensor = node.attr["value"].tensor
        limits.require_shape([dim.size for dim in tensor.tensor_shape.dim], limits.NODES)
        if tensor.tensor_content:
            raise InputError(f"what is restored is named in two ways ({node.name!r})")
        lists[node.name] = tf.make_ndarray(tensor)
    return lists[node.name]
