"""SavedModel directory → what certification needs, without trusting it.

A stranger's model is never loaded: TensorFlow would run parts of it, and follow all that it finds.
Instead:

1. take the graph and the variables, and no other file (`files.py`, `checkpoint.py`);
2. parse `saved_model.pb` as data, and find what a server would answer the signature with
   (`server.py`), written out as one flat graph of ops and constants (`inlining.py`);
3. read that graph op by op (`graph.py`); every op has a rule, which bounds what it makes;
4. only then let TensorFlow have it, to run examples through it and through the network that was
   read, and refuse on disagreement beyond rounding. The op rules are the proof; this is its test.

A live Keras model is traced (`live_model.py`), and goes through the last three steps the same way.
So does a file that Keras saved, of which a live model is made anew (`keras_file/`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.files import is_keras_file
from keras_curv.lowering import graph
from keras_curv.lowering.rules.registry import SMOOTHING
from keras_curv.network.activation import Activation
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import FLOAT32_UNIT
from keras_curv.process import usual_floats
from keras_curv.reading import live_model
from keras_curv.reading.before import Before
from keras_curv.reading.execution import calls_of
from keras_curv.reading.inputs import Inputs
from keras_curv.saved_model import meta_graph, server
from keras_curv.saved_model.files import GRAPH, ModelFiles, resolve_directory

DEFAULT_SIGNATURE = "serving_default"
_INPUT_DTYPES = (tf.float32, tf.float64, tf.float16, tf.uint8, tf.int8, tf.int16, tf.int32)
_ALONE = 8  # inputs that are also served in a batch of their own, of all kinds that are tried
_TOGETHER = 3  # of these, also in one small batch
_RANDOM = 4  # inputs that are tried besides the examples


@dataclasses.dataclass(frozen=True, repr=False)
class ServedModel:
    """A classifier as it is served, and the network that was read from it.

    Attributes:
        network: the mathematics.
        head: what the served output applies to the logits, a name in `graph.HEADS`.
        inputs: names, shapes and type of what the signature takes. Of several inputs the network
            takes one vector: each flattened, one after the other, in the order of sorted names.
        call: the signature: `(n, *input_shape)` of `input_dtype` → `(n, outputs)`.
        call_logits: the same up to the head; None where there is none.
        cut: name of the layer or tensor behind which the model is read; None: all of it is. Then
            the network, the inputs and the signature are those of the part behind.
        cut_tensor: what that name means; "" without a cut.
        defaults: where a server takes tf.Examples, of which the inputs are features: what each is
            where it is left out, None if it must not be; None where it takes the inputs themselves.
        before: the part before the cut, of a live model; else None, and examples are what flows
            at the cut.
        parts: name → places of what is computed of one input alone, of what a cut joins; none
            where that is not known.
        source: the directory, or the Keras model's name.
        signature: its name; "" for a live model.
        fingerprint: SHA-256 of the files that were read; for a live model, of what was read.
    """

    network: Network
    head: str
    inputs: Inputs
    call: Callable[[tf.Tensor], tf.Tensor]
    source: str
    signature: str = ""
    fingerprint: str = ""
    call_logits: Callable[[tf.Tensor], tf.Tensor] | None = None
    cut: str | None = None
    cut_tensor: str = ""
    defaults: Mapping[str, np.ndarray | None] | None = None
    before: Before | None = None
    parts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def joined(self, x: Any) -> np.ndarray:
        """Returns examples as one array `(n, *input_shape)`: of a live model that is cut, what it
        makes of them before the cut; else see `Inputs.joined`.

        Raises:
            InputError: they do not fit the model.
        """
        return self.inputs.joined(x if self.before is None else self.before(x))

    def __repr__(self) -> str:
        behind = f" behind {self.cut!r}" if self.cut else ""
        takes, sizes = str(self.inputs), " → ".join(map(str, self.network.sizes))
        return f"<ServedModel {self.source!r}{behind}: {takes}, {sizes}, {self.head}>"

    def places(self, columns: Sequence[str] = ()) -> Mapping[str, np.ndarray]:
        """Returns the features that have names: name → places in the flattened input, `(…, size)`.

        Args:
            columns: names of the entries of a model with one input; it may have none.
        """
        if self.cut is not None:
            return self.parts
        if len(self.inputs.specs) > 1:
            return self.inputs.places
        return {str(name): np.array([[i]]) for i, name in enumerate(columns)}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example, without the batch; of several inputs, `(total,)`."""
        return self.inputs.shape

    @property
    def input_dtype(self) -> tf.DType:
        """The type that the signature takes."""
        return self.inputs.dtype

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
        inputs = np.concatenate([x, self.inputs.drawn(inputs[len(x) :])])
        # A kernel may be chosen by the size of the batch.
        some = np.unique(np.linspace(0, len(inputs) - 1, _ALONE).astype(int))
        parts = [inputs, inputs[some[:_TOGETHER]], *(inputs[i : i + 1] for i in some)]
        self._compare(parts, self.call, graph.HEADS[self.head])
        if self.call_logits is not None:
            one = self.head == "binary_sigmoid"
            self._compare(parts, self.call_logits, lambda z: z[:, 1:] if one else z)

    def _compare(
        self,
        parts: list[np.ndarray],
        call: Callable[[tf.Tensor], tf.Tensor],
        head: Callable[[tf.Tensor], tf.Tensor],
    ) -> None:
        """Compares what `call` returns of batches with `head` of the network's logits."""
        served = np.concatenate([np.asarray(call(tf.constant(part))) for part in parts])
        served, inputs = served.astype(np.float64), np.concatenate(parts)
        flat = inputs.reshape(len(inputs), -1).astype(np.float64)
        ours = head(self.network.logits(tf.constant(flat))).numpy()
        if served.shape != ours.shape:
            raise InputError(
                f"{self.source}: the signature returns {served.shape}, "
                f"but its graph reads as {ours.shape}"
            )
        # The effect of float32 on our own evaluation says what it may do to the server's.
        single = tf.constant(flat, tf.float32)
        rounded = [head(_coarse(self.network, seed).logits(single)) for seed in range(_COARSE)]
        with np.errstate(invalid="ignore"):
            scale = np.abs(ours).max(axis=1, keepdims=True)
            noise = np.abs(np.array(rounded) - ours).max(axis=(0, 2))[:, None]
            allowed = _FLOAT32_RELATIVE * scale + _FLOAT32_NOISE * noise
            wrong = (np.abs(served - ours) > allowed) | (np.isnan(served) & np.isfinite(allowed))
        if np.any(wrong):
            worst = np.max(np.abs(np.where(wrong, served - ours, 0.0)))
            raise InputError(
                f"{self.source}: the signature and the network read from it disagree by "
                f"{worst:.3g}; the model does something that was not read. No certificate is given"
            )


def _coarse(network: Network, seed: int) -> Network:
    """Returns the network as a server may compute it where an activation loses digits.

    TensorFlow's elu is `exp(z) − 1`: near 0 it is exact beside 1, and not beside itself. Keras'
    squareplus, `(z + √(z² + 4)) / 2`, is so beside |z|. By how much a server is off there, up to
    `16 u φ (1 + |z|)` (`served_floor`), is chance; one u of that is lost or gained here by every
    unit, as a seed says.
    """

    def off(sigma: Activation, place: int, z: tf.Tensor) -> tf.Tensor:
        signs = np.random.default_rng((seed, place)).choice([-1.0, 1.0], z.shape[-1])
        lost = tf.constant(FLOAT32_UNIT * signs * sigma.served_floor, z.dtype)
        return sigma.value(z) + lost * (1.0 + tf.abs(z))

    coarse = copy.copy(network)
    coarse.activations = tuple(
        dataclasses.replace(sigma, value=functools.partial(off, sigma, place))
        for place, sigma in enumerate(network.activations)
    )
    return coarse


def _random_like(x: np.ndarray) -> np.ndarray:
    """Returns a few inputs between the least and the largest entry of x; of none, from 0 to 1."""
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 1.0)
    part = np.random.default_rng(0).random((_RANDOM, *x.shape[1:]))
    between = low * (1.0 - part) + max(high, low + 1.0) * part
    if np.issubdtype(x.dtype, np.integer):
        between = np.minimum(np.rint(between), np.iinfo(x.dtype).max)
    return between.astype(x.dtype)


# A disagreement beyond these is more than rounding: relative to the output, and to the effect of
# float32 on our own evaluation of the same inputs.
_FLOAT32_RELATIVE = 1e-5
_FLOAT32_NOISE = 100.0
_COARSE = 3  # evaluations of ours that say so, as in one what is lost may cancel


@usual_floats
def read(
    source: Any,
    signature: str = DEFAULT_SIGNATURE,
    *,
    output_name: str | None = None,
    scores: bool = False,
    cut: str | None = None,
) -> ServedModel:
    """Reads a classifier from a SavedModel directory, a file of Keras, or a live Keras model.

    Args:
        source: a directory with `saved_model.pb`; or a base path with numbered versions, of
            which the newest is taken, as TF Serving does; or a `.keras` or `.h5` file that
            `model.save` wrote; or a built Keras model, or any callable with `inputs`.
        signature: which signature of a SavedModel; a file has none.
        output_name: of the logits, where a model has several outputs and none of that name. Those
            of a live model that returns a list are "output_0", "output_1", … as in its export.
        scores: take a model of one number too, which is no class.
        cut: a layer, or of a SavedModel a tensor or node, behind which the model is read as if it
            began there; see `saved_model/graph/cut.py` for how names are matched.

    Raises:
        InputError: it is not a SavedModel, is refused as unsafe, or has a part without a
            rule; the message names the file, op, node or signature.

    Example:
        >>> served = read("saved_models/digits")
        >>> served.network.depth, served.network.classes, served.input_shape
        (2, 10, (8, 8, 1))
        >>> served
        <ServedModel 'saved_models/digits': (8, 8, 1), 64 → 256 → 10, logits>
    """
    try:
        if isinstance(source, str) and not source:
            raise InputError("the name of the SavedModel's directory is empty")
        if isinstance(source, (str, pathlib.Path)):
            served = _read_path(pathlib.Path(source), signature, output_name, cut)
        else:
            served = _read_live(source, output_name, cut)
    except MemoryError as error:
        name = source if isinstance(source, (str, pathlib.Path)) else source.name
        raise InputError(f"{name}: reading it takes more memory than there is: {error}") from error
    if served.network.classes < 2 and not scores:
        raise InputError(
            f"{served.source}: the output is one number without a sigmoid, so the classes are not "
            "defined; use two logits, or a sigmoid, or ask for the property threshold or interval"
        )
    return served


def _read_path(
    path: pathlib.Path, signature: str, output_name: str | None, cut: str | None
) -> ServedModel:
    """Reads a directory or a file; a refusal that advises smoothing says what loads its model."""
    is_file = is_keras_file(path)
    try:
        return (_read_file if is_file else _read_directory)(path, signature, output_name, cut)
    except InputError as error:
        if SMOOTHING not in str(error):
            raise
        loads = f"TFSMLayer({str(path)!r}, call_endpoint={signature!r})"
        loads = f"models.load_model({str(path)!r})" if is_file else f"layers.{loads}"
        known = f"{SMOOTHING}; with model = keras.{loads}, if you trust it"
        raise InputError(str(error).replace(SMOOTHING, known)) from error


def _read_file(
    path: pathlib.Path, signature: str, output_name: str | None, cut: str | None
) -> ServedModel:
    """Reads a file of Keras: its model is made anew, and read as a live one."""
    if signature != DEFAULT_SIGNATURE:
        raise InputError(f"{path} has no signatures, as a SavedModel has. Received: {signature!r}")
    from keras_curv.keras_file import model  # which loads Keras; a SavedModel needs none

    try:
        live, fingerprint = model.load(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    served = _read_answer(live_model.answer(live, output_name, str(path), cut), str(path), cut)
    return dataclasses.replace(served, fingerprint=fingerprint)


def _read_live(model: Any, output_name: str | None, cut: str | None) -> ServedModel:
    answer = live_model.answer(model, output_name, cut=cut)
    served = _read_answer(answer, str(model.name), cut)
    if answer.before is not None:
        before = Before(live_model.specs_of(model), answer.before, served.source)
        served = dataclasses.replace(served, before=before)
    network = served.network
    around = [served.head, served.input_shape, served.input_dtype.name, network.sizes]
    around += [] if cut is None else [served.cut_tensor]
    around += [served.inputs.shapes] if len(served.inputs.specs) > 1 else []
    around += [served.inputs.counts] if served.inputs.counts else []
    digest = hashlib.sha256(repr([*around, *(a.name for a in network.activations)]).encode())
    for affine in network.affines:
        stored = affine.stored_bytes()
        digest.update(b"%d %d %d " % (*affine.kernel.shape, len(stored)) + stored)
    return dataclasses.replace(served, fingerprint=digest.hexdigest())


def _read_directory(
    path: pathlib.Path, signature: str, output_name: str | None, cut: str | None
) -> ServedModel:
    try:
        path = resolve_directory(path)
        files = ModelFiles.read(path)
        fingerprint = files.fingerprint()
        file = str(path / GRAPH)
        meta = meta_graph.parse(files.graph, file)
        answer = server.answer(
            meta, signature, files.tensor, files.object_graph(), file, output_name, cut
        )
        again = ModelFiles.read(path).fingerprint()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if again != fingerprint:
        raise InputError(f"{path} changed while it was being read; try again")
    served = _read_answer(answer, str(path), cut)
    return dataclasses.replace(served, signature=signature, fingerprint=fingerprint)


def _read_answer(answer: server.Answer, source: str, cut: str | None) -> ServedModel:
    """Reads a flat graph, then gives it to TensorFlow."""
    definition = answer.definition
    places = answer.given.values()
    try:
        inputs = Inputs.of(definition, answer.given, answer.returned, source)
    except InputError as error:
        advice = graph.cut_advice(definition, places, answer.returned)
        raise InputError(f"{error}{advice}") from error
    network, head, before_head = graph.read_network(
        definition,
        inputs=dict(zip(answer.given.values(), inputs.shapes.values(), strict=True)),
        output=answer.returned,
        source=source,
        counts={answer.given[name]: count for name, count in inputs.counts.items()},
    )
    if inputs.dtype not in _INPUT_DTYPES:
        raise InputError(
            f"{source}: inputs of type {inputs.dtype.name} are not supported; use one of "
            f"{', '.join(dtype.name for dtype in _INPUT_DTYPES)}"
            f"{graph.cut_advice(definition, places, answer.returned)}"
        )
    tensors = [answer.returned] if before_head is None else [answer.returned, before_head]
    calls = calls_of(answer, tensors, inputs)
    return ServedModel(
        network=network,
        head=head,
        inputs=inputs,
        call=calls[0],
        call_logits=None if before_head is None else calls[1],
        source=source,
        cut=cut,
        cut_tensor=answer.cut.tensor if answer.cut else "",
        defaults=answer.defaults,
        parts=answer.parts,
    )
