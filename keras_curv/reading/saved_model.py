"""SavedModel directory → what certification needs, without trusting it.

Loading a SavedModel runs parts of its graph, and graphs can read and write files. So:

1. take the graph and the variables, and no other file (`files.py`);
2. parse `saved_model.pb` as data, nothing else, and screen it (`screening.py`): sizes; every op of
   every graph and function must be on the list of `allow_list.py`, or it is refused by name; file
   ops only in the saver's own functions, which loading does not call; no objects but plain
   variables, constants and functions: no assets, lookup tables or resources with initialisers, no
   custom save or restore code;
3. only then load what was screened, and make sure that a server would answer by the function that
   was loaded, with the same variables (`server_agreement.py`);
4. freeze the signature, and read it op by op (`graph.py`);
5. run examples through the signature, up to the output that was read and no further, and through
   the network that was read, and refuse on disagreement beyond rounding. The op rules are the
   proof; this is its test.

A live Keras model goes through the last two steps the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.reading import graph, screening
from keras_curv.reading.files import GRAPH, ModelFiles
from keras_curv.reading.server_agreement import require_as_served

DEFAULT_SIGNATURE = "serving_default"
_INPUT_DTYPES = (tf.float32, tf.float64, tf.float16, tf.uint8, tf.int8, tf.int16, tf.int32)
_ALONE = 8  # inputs that are also served in a batch of their own, of all kinds that are tried
_TOGETHER = 3  # of these, also in one small batch
_RANDOM = 4  # inputs that are tried besides the examples
_OTHER_FORMATS = ("saved_model.pbtxt", "saved_model.cpb")


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A classifier as it is served, and the network that was read from it.

    Attributes:
        network: the mathematics.
        head: what the served output applies to the logits, a name in `graph.HEADS`.
        input_shape: of one example, without the batch.
        input_dtype: what the signature takes.
        call: the signature: `(n, *input_shape)` of `input_dtype` → `(n, outputs)`.
        call_logits: the same up to the head; None where there is none.
        source: the directory, or the Keras model's name.
        signature: its name; "" for a live model.
        fingerprint: SHA-256 of the files that were read; for a live model, of what was read.
    """

    network: Network
    head: str
    input_shape: tuple[int, ...]
    input_dtype: tf.DType
    call: Callable[[tf.Tensor], tf.Tensor]
    source: str
    signature: str = ""
    fingerprint: str = ""
    call_logits: Callable[[tf.Tensor], tf.Tensor] | None = None

    def check(self, x: np.ndarray) -> None:
        """Holds the network against the signature, on these inputs and on others near them.

        Args:
            x: `(n, *input_shape)`, a few real examples, or none. Random ones in their range are
                tried too, and multiples outside of it, so that a clip would show; and the logits
                beside what a head makes of them, so that saturation hides nothing.

        Raises:
            InputError: an output differs by more than float32 execution explains.
        """
        x = np.asarray(x, self.input_dtype.as_numpy_dtype)
        inputs = np.concatenate([x, _random_like(x)])
        if np.issubdtype(x.dtype, np.floating):
            inputs = np.concatenate([inputs, -x, 3 * x + 1]).astype(x.dtype)
        # A kernel may be chosen by the size of the batch.
        some = np.unique(np.linspace(0, len(inputs) - 1, _ALONE).astype(int))
        parts = [inputs, inputs[some[:_TOGETHER]], *(inputs[i : i + 1] for i in some)]
        self._compare(parts, self.call, graph.HEADS[self.head])
        if self.call_logits is not None:
            one = self.head == "binary_sigmoid"
            self._compare(parts, self.call_logits, lambda z: z[:, 1:] if one else z)

    def _compare(self, parts: list[np.ndarray], call, head) -> None:
        """What `call` returns of batches, beside `head` of the network's logits."""
        served = np.concatenate([np.asarray(call(tf.constant(part))) for part in parts])
        served, inputs = served.astype(np.float64), np.concatenate(parts)
        flat = inputs.reshape(len(inputs), -1).astype(np.float64)
        ours = head(self.network.logits(tf.constant(flat))).numpy()
        if served.shape != ours.shape:
            raise InputError(
                f"{self.source}: the signature returns {served.shape}, "
                f"but its graph reads as {ours.shape}"
            )
        # What float32 does to our own evaluation says what it may do to the server's.
        rounded = head(self.network.logits(tf.constant(flat, tf.float32))).numpy()
        with np.errstate(invalid="ignore"):
            scale = np.abs(ours).max(axis=1, keepdims=True)
            noise = np.abs(rounded - ours).max(axis=1, keepdims=True)
            allowed = _FLOAT32_RELATIVE * scale + _FLOAT32_NOISE * noise
            wrong = (np.abs(served - ours) > allowed) | (np.isnan(served) & np.isfinite(allowed))
        if np.any(wrong):
            worst = np.max(np.abs(np.where(wrong, served - ours, 0.0)))
            raise InputError(
                f"{self.source}: the signature and the network read from it disagree by "
                f"{worst:.3g}; the model does something that was not read. No certificate is given"
            )


def _random_like(x: np.ndarray) -> np.ndarray:
    """A few inputs between the least and the largest entry of x; of none, between 0 and 1."""
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 1.0)
    part = np.random.default_rng(0).random((_RANDOM, *x.shape[1:]))
    between = low * (1.0 - part) + max(high, low + 1.0) * part
    if np.issubdtype(x.dtype, np.integer):
        between = np.minimum(np.rint(between), np.iinfo(x.dtype).max)
    return between.astype(x.dtype)


# Where a disagreement is more than rounding: relative to the output, and to what float32 does to
# our own evaluation of the same inputs.
_FLOAT32_RELATIVE = 1e-5
_FLOAT32_NOISE = 100.0


def read(source, signature: str = DEFAULT_SIGNATURE) -> ServedModel:
    """Reads a classifier from a SavedModel directory or a live Keras model.

    Args:
        source: a directory with `saved_model.pb`; or a base path with numbered versions, of
            which the newest is taken, as TF Serving does; or a built Keras model, or any
            callable with `inputs`.
        signature: which signature of a SavedModel.

    Raises:
        InputError: it is not a SavedModel, is refused as unsafe, or has a part without a
            rule; the message names the file, op, node or signature.

    Example:
        >>> served = read("saved_models/digits")
        >>> served.network.depth, served.network.classes, served.input_shape
        (2, 10, (8, 8, 1))
    """
    try:
        if isinstance(source, (str, pathlib.Path)):
            return _read_directory(pathlib.Path(source), signature)
        return _read_live(source)
    except MemoryError as error:
        name = source if isinstance(source, (str, pathlib.Path)) else source.name
        raise InputError(f"{name}: reading it takes more memory than there is: {error}") from error


def _read_live(model) -> ServedModel:
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise InputError(
            f"{model!r} is not a built Keras model: give it an Input, call it once on data, "
            "or pass a SavedModel directory"
        )
    if len(inputs) != 1:
        raise InputError(
            f"the model {model.name!r} has {len(inputs)} inputs; certificates need exactly one"
        )
    spec = tf.TensorSpec((None, *inputs[0].shape[1:]), tf.as_dtype(inputs[0].dtype))
    function = tf.function(lambda x: model(x, training=False)).get_concrete_function(spec)
    served = _read_function(function, source=str(model.name))
    network = served.network
    around = [served.head, served.input_shape, served.input_dtype.name, network.sizes]
    digest = hashlib.sha256(repr([*around, *(a.name for a in network.activations)]).encode())
    for affine in network.affines:
        digest.update(affine.stored_bytes())
    return dataclasses.replace(served, fingerprint=digest.hexdigest())


def _read_directory(path: pathlib.Path, signature: str) -> ServedModel:
    try:
        path = resolve_directory(path)
        files = ModelFiles.read(path)
        fingerprint = files.fingerprint()
        file = str(path / GRAPH)
        meta = screening.parse(files.graph, file)
        screening.refuse_unsafe(meta, file)
        loaded = _load(files, meta, signature)
        again = ModelFiles.read(path).fingerprint()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if again != fingerprint:
        raise InputError(f"{path} changed while it was being read; try again")
    served = _read_function(loaded.signatures[signature], source=str(path))
    return dataclasses.replace(served, signature=signature, fingerprint=fingerprint)


def _load(files: ModelFiles, meta: meta_graph_pb2.MetaGraphDef, signature: str):
    """What TensorFlow loads, with a signature that a server would answer likewise."""
    path = files.path
    with files.alone() as folder:
        try:
            loaded = tf.saved_model.load(folder)
        except Exception as error:  # whatever TensorFlow raises on a broken directory
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(
                f"{path}: TensorFlow cannot load this SavedModel: "
                f"{reason.replace(folder, str(path))}"
            ) from error
        if not isinstance(getattr(loaded, "signatures", None), Mapping):
            raise InputError(f"{path}: the root of this SavedModel is not a module")
        if signature not in loaded.signatures:
            known = ", ".join(sorted(loaded.signatures)) or "none"
            raise InputError(f"{path} has no signature {signature!r}; it has: {known}")
        function, variables = loaded.signatures[signature], f"{folder}/variables/variables"
        require_as_served(meta, signature, function, variables, str(path / GRAPH))
        return loaded


def resolve_directory(path: pathlib.Path) -> pathlib.Path:
    """The directory with `saved_model.pb`: `path` itself, or its newest numbered version.

    Raises:
        InputError: there is none.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; give the directory of a SavedModel")
    if path.is_file():
        hint = ""
        if path.suffix in (".keras", ".h5"):
            hint = f"; load it with keras.models.load_model and model.export('{path.stem}')"
        raise InputError(f"{path} is a file, not a SavedModel directory{hint}")
    if (path / "saved_model.pb").is_file():
        return path
    versions = numbered_versions(path)
    if not versions:
        raise InputError(
            f"{path} has no saved_model.pb, nor a numbered version that has one; "
            "make one with model.export(directory)"
        )
    newest = versions[max(versions)]
    for entry in path.iterdir():
        newer = (version_number(entry.name) or 0) > max(versions)
        if newer and any((entry / name).exists() for name in _OTHER_FORMATS):
            raise InputError(
                f"{entry}, which is newer than {newest.name}, is a SavedModel in another format; "
                "only saved_model.pb is read"
            )
    return newest


def numbered_versions(base: pathlib.Path) -> dict[int, pathlib.Path]:
    """Versions of a model, as TF Serving counts them, that have a `saved_model.pb`.

    Raises:
        InputError: two are the same number.
    """
    found: dict[int, pathlib.Path] = {}
    for entry in sorted(base.iterdir()):
        number = version_number(entry.name)
        if number is not None and (entry / GRAPH).is_file():
            other = found.setdefault(number, entry)
            if other != entry:
                raise InputError(
                    f"{base}: {other.name} and {entry.name} are the same version; remove one"
                )
    return found


def version_number(name: str) -> int | None:
    """Which version a directory of this name is; None: TF Serving takes it for none."""
    number = int(name) if name.isascii() and name.isdigit() else 2**63
    return number if number < 2**63 else None


def _read_function(function, source: str) -> ServedModel:
    """Freezes a concrete function of one tensor, and reads it."""
    try:
        frozen = convert_variables_to_constants_v2(function)
    except Exception as error:  # a signature that assigns to variables, or has no variables left
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{source}: the signature cannot be frozen: {reason}") from error
    inputs = [tensor for tensor in frozen.inputs if tensor.dtype != tf.resource]
    if len(inputs) != 1:
        names = ", ".join(tensor.name for tensor in inputs)
        raise InputError(
            f"{source}: the signature has {len(inputs)} inputs ({names}); "
            "certificates need exactly one"
        )
    output = _pick_output(function, frozen, source)
    shape = inputs[0].shape
    if shape.rank is None or None in shape[1:]:
        raise InputError(f"{source}: the input shape {shape} must be known, all but the batch")
    definition: graph_pb2.GraphDef = frozen.graph.as_graph_def()
    network, head = graph.read_network(
        definition,
        input_node=inputs[0].op.name,
        input_shape=tuple(shape[1:]),
        output=output.name,
        source=source,
    )
    if inputs[0].dtype not in _INPUT_DTYPES:
        raise InputError(
            f"{source}: inputs of type {inputs[0].dtype.name} are not supported; use one of "
            f"{', '.join(dtype.name for dtype in _INPUT_DTYPES)}"
        )

    def up_to(tensor: str):
        pruned = frozen.prune(inputs[0].name, tensor)

        def call(x: tf.Tensor) -> tf.Tensor:
            try:
                return pruned(x)
            except tf.errors.OpError as error:
                raise InputError(f"{source}: its signature fails: {error.message}") from error

        return call

    logits = None if head == "logits" else up_to(graph.before_head(definition, output.name))
    return ServedModel(
        network=network,
        head=head,
        input_shape=tuple(shape[1:]),
        input_dtype=inputs[0].dtype,
        call=up_to(output.name),
        call_logits=logits,
        source=source,
    )


def _pick_output(function, frozen, source: str) -> tf.Tensor:
    """The one output that can be logits: the only float matrix, or the one named "logits"."""
    matrices = [
        tensor
        for tensor in frozen.outputs
        if tensor.dtype.is_floating and tensor.shape.rank in (2, None)
    ]
    structured = function.structured_outputs
    if len(matrices) != 1 and isinstance(structured, dict) and "logits" in structured:
        leaves = tf.nest.flatten(structured)
        places = [i for i, leaf in enumerate(leaves) if leaf is structured["logits"]]
        if len(leaves) == len(frozen.outputs) and len(places) == 1:
            return frozen.outputs[places[0]]
    if len(matrices) != 1:
        described = ", ".join(f"{t.dtype.name}{t.shape}" for t in frozen.outputs) or "none"
        raise InputError(
            f"{source}: the outputs ({described}) must have one float matrix (batch, classes), "
            "or one named 'logits'"
        )
    return matrices[0]
