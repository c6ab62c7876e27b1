"""Runs the flat graph that a signature is answered by: for the agreement check, and no more.

TensorFlow's optimizer rewrites it first, as a server's does, but for the folding of constants: that
ends the process on a convolution that is divided and then multiplied entry by entry, where it makes
a shape of the unknown batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client.session import Session

from keras_curv.errors import InputError
from keras_curv.reading.inputs import Inputs
from keras_curv.saved_model import server
from keras_curv.saved_model.graph.nodes import node_name

_COUNTS = (2, 3)  # examples that are tried
_ONLY_COMPILED = "does not support grouped convolutions"  # on a CPU, TensorFlow without XLA
_REWRITTEN = config_pb2.ConfigProto()
_REWRITTEN.graph_options.rewrite_options.constant_folding = RewriterConfig.OFF
_REWRITTEN.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0


def calls_of(
    answer: server.Answer, tensors: list[str], inputs: Inputs
) -> list[Callable[[tf.Tensor], tf.Tensor]]:
    """Returns functions that run the flat graph on a batch, each up to one tensor.

    Args:
        answer: the flat graph, which has been read. Attributes without a value are taken off.
        tensors: their names.
        inputs: what a client sends.

    Raises:
        InputError: TensorFlow does not take the graph; of the functions, that it fails on a batch.
    """
    for node in answer.definition.node:
        for name in [name for name in node.attr if node.attr[name].WhichOneof("value") is None]:
            del node.attr[name]  # a rule has asked for it
    run = _Run(answer, [name if ":" in name else f"{name}:0" for name in tensors], inputs)
    return [functools.partial(run, number) for number in range(len(tensors))]


class _Run:
    """Runs the flat graph in a session; what only XLA takes, in a compiled function."""

    def __init__(self, answer: server.Answer, outputs: list[str], inputs: Inputs):
        self._definition, self._outputs, self._inputs = answer.definition, outputs, inputs
        self._places = [*answer.given.values()]
        source, flat = inputs.source, tf.Graph()
        try:
            with flat.as_default():
                self._fetched = tf.graph_util.import_graph_def(
                    answer.definition, return_elements=outputs, name=""
                )
        except Exception as error:  # whatever TensorFlow raises on a graph that is none
            message = f"{source}: TensorFlow cannot build its graph: {_line(error)}"
            raise InputError(message) from error
        claims = _open_claims(flat, answer, source)
        self._session = Session(graph=flat, config=_REWRITTEN)
        _require_shapes(self._session, claims, inputs, self._places)
        specs = [[*inputs.specs.values()]]
        self._compiled = tf.function(
            self._alone, input_signature=specs, autograph=False, jit_compile=True
        )

    def _alone(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the graph without its placeholders, which XLA does not know."""
        definition = type(self._definition)(versions=self._definition.versions)
        definition.node.extend(n for n in self._definition.node if n.name not in self._places)
        read = {node_name(tensor) for node in definition.node for tensor in node.input}
        given = {p: part for p, part in zip(self._places, parts, strict=True) if p in read}
        return tf.graph_util.import_graph_def(definition, given, self._outputs, name="served")

    def __call__(self, number: int, x: tf.Tensor) -> tf.Tensor:
        """Returns one of the outputs for a batch."""
        try:
            parts = self._inputs.split(np.asarray(x))
            try:
                places = (f"{place}:0" for place in self._places)
                given = dict(zip(places, parts, strict=True))
                return tf.constant(self._session.run(self._fetched[number], given))
            except tf.errors.OpError as error:
                if _ONLY_COMPILED not in str(error):
                    raise
                return self._compiled([tf.constant(part) for part in parts])[number]
        except (tf.errors.OpError, TypeError, ValueError) as error:
            message = f"{self._inputs.source}: its signature fails: {_line(error)}"
            raise InputError(message) from error


def _open_claims(
    flat: tf.Graph, answer: server.Answer, source: str
) -> list[tuple[tf.Tensor, list[int | None]]]:
    """Returns the shapes that the model claims and TensorFlow does not know to be so.

    It believes them where it knows no better, as Keras knows the sizes behind a convolution.

    Raises:
        InputError: a tensor has another shape.
    """
    found: dict[tuple, tuple[tf.Tensor, list[int | None]]] = {}
    for name, shape in answer.claims:
        tensor = flat.get_tensor_by_name(name if ":" in name else f"{name}:0")
        if shape.unknown_rank:
            continue
        said = [None if dim.size == -1 else dim.size for dim in shape.dim]
        known = tensor.shape.as_list() if tensor.shape.rank is not None else [None] * len(said)
        _require_alike(tensor, said, known, source)
        if any(a is not None and b is None for a, b in zip(said, known, strict=True)):
            found[(tensor.name, *said)] = tensor, said
    return [*found.values()]


def _require_alike(
    tensor: tf.Tensor, said: list[int | None], true: Sequence[int | None], source: str
) -> None:
    """Refuses a shape that is said to be one that it cannot be."""
    alike = len(said) == len(true)
    if not alike or any(None not in (a, b) and a != b for a, b in zip(said, true, strict=True)):
        raise InputError(
            f"{source}: {tensor.name!r} is said to be of shape {said}, but is of shape {[*true]}"
        )


def _require_shapes(
    session: Session,
    claims: list[tuple[tf.Tensor, list[int | None]]],
    inputs: Inputs,
    places: list[str],
) -> None:
    """Refuses what is said of shapes and is not so for some examples: no shape depends on values.

    Raises:
        InputError: a tensor has another shape.
    """
    for count in _COUNTS if claims else ():
        sizes = [
            [count if size is None else size for size in spec.shape]
            for spec in inputs.specs.values()
        ]
        types = [spec.dtype.as_numpy_dtype for spec in inputs.specs.values()]
        parts = zip(places, sizes, types, strict=True)
        given = {f"{place}:0": np.zeros(size, dtype) for place, size, dtype in parts}
        try:
            made = session.run([tensor for tensor, _ in claims], given)
        except tf.errors.OpError as error:
            if _ONLY_COMPILED in str(error):
                return  # what Keras has compiled, and never says more of
            raise InputError(f"{inputs.source}: its signature fails: {_line(error)}") from error
        for (tensor, said), value in zip(claims, made, strict=True):
            _require_alike(tensor, said, value.shape, inputs.source)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
