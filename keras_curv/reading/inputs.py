"""The input that a client sends, or several of them joined to one vector.

A network takes one vector. If a model has several inputs it is all of them, each flattened, one
after the other in the order of their names, sorted as Python sorts them. Proofs are about that
vector: the attacker moves all inputs together, and δ is the l2 norm of all their changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from keras_curv.data.containers import is_table, of_table, plain
from keras_curv.data.joined import joined
from keras_curv.errors import InputError, about
from keras_curv.saved_model.nodes import attribute


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a model.

    Attributes:
        specs: of what a client sends, by name, in the order in which inputs are joined.
        source: for messages.

    Example:
        >>> specs = {"a": tf.TensorSpec((None, 2)), "b": tf.TensorSpec((None, 2, 2))}
        >>> inputs = Inputs(specs, "the model")
        >>> inputs.shape, str(inputs)
        ((6,), "inputs 'a' (2,), 'b' (2, 2), flattened and joined in this order")
        >>> x = inputs.joined({"b": np.ones((1, 2, 2)), "a": np.zeros((1, 2))})
        >>> x, [part.shape for part in inputs.split(x)]
        (array([[0., 0., 1., 1., 1., 1.]]), [(1, 2), (1, 2, 2)])
    """

    specs: Mapping[str, tf.TensorSpec]
    source: str

    @classmethod
    def of(cls, definition: graph_pb2.GraphDef, given: Mapping[str, str], source: str) -> Inputs:
        """Returns the inputs that placeholders stand for.

        Args:
            definition: a flat graph.
            given: name of the input → its placeholder; names sorted.
            source: for messages.

        Raises:
            InputError: a shape is not known, or there are several of other types than one float.
        """
        nodes = {node.name: node for node in definition.node}
        with about(source, (TypeError, ValueError)):
            specs = {name: _spec(nodes[place]) for name, place in given.items()}
        inputs = cls(specs, source)
        types = {spec.dtype for spec in specs.values()}
        if len(specs) > 1 and (len(types) > 1 or not inputs.dtype.is_floating):
            known = ", ".join(f"{name!r} {spec.dtype.name}" for name, spec in specs.items())
            raise InputError(
                f"{source}: several inputs must be of one float type. They are: {known}; export a "
                "model that takes floats and casts them, and freeze what nobody changes (Threat)"
            )
        return inputs

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of one example."""
        return {name: tuple(spec.shape[1:]) for name, spec in self.specs.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: that of the one input; of several, `(total,)`."""
        shapes = [*self.shapes.values()]
        return shapes[0] if len(shapes) == 1 else (sum(math.prod(shape) for shape in shapes),)

    @property
    def dtype(self) -> tf.DType:
        """The type that a client sends."""
        return next(iter(self.specs.values())).dtype

    def __str__(self) -> str:
        if len(self.specs) == 1:
            return str(self.shape)
        parts = ", ".join(f"{name!r} {shape}" for name, shape in self.shapes.items())
        return f"inputs {parts}, flattened and joined in this order"

    def require(self, shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
        """Refuses arrays by name that are not those of the inputs.

        Args:
            shapes: name → shape of one example.
            what: that has the arrays, for messages.

        Raises:
            InputError: one is missing, or too many, or has another shape.
        """
        takes = f"{self.source}, which takes {self}"
        for name in sorted(self.shapes.keys() - shapes.keys()):
            raise InputError(f"{what} has no array {name!r} for {takes}")
        for name in sorted(shapes.keys() - self.shapes.keys()):
            raise InputError(f"{what} has an array {name!r}, which is no input of {takes}")
        for name, shape in self.shapes.items():
            if shapes[name] != shape:
                raise InputError(
                    f"{what}: examples {name!r} of shape {shapes[name]} do not fit {takes}"
                )

    def joined(self, x: Any) -> np.ndarray:
        """Returns examples as one array `(n, *shape)`.

        Args:
            x: such an array, which is handed on; name → array, for each input; or a DataFrame.

        Raises:
            InputError: see `require`; examples of another shape; or arrays by name differ in
                dtype or number of examples.
        """
        if isinstance(x, (list, tuple)) and len(self.specs) > 1 and np.ndim(x[0]) > 1:
            raise InputError(
                "x must be arrays by name, or one array of all inputs, joined in the order of "
                f"their names. Received: {len(x)} arrays; the names are {', '.join(self.specs)}"
            )
        if is_table(x):
            x = of_table(x, self.shapes)
        if not isinstance(x, Mapping):
            with about("x must be an array of examples", (ValueError,)):  # rows of several lengths
                x = plain(x)
            if x.ndim == 0:
                kind = type(x[()]).__name__
                raise InputError(f"x must be an array of examples. Received: {kind}")
            if x.shape[1:] != self.shape:
                alone = x.shape == self.shape
                advice = "; one example is x[None]" if alone else reshaping(x.shape[1:], self.shape)
                raise InputError(
                    f"examples of shape {x.shape[1:]} do not fit {self.source}, which takes {self}"
                    f"{advice}"
                )
            return x
        arrays = {name: plain(array) for name, array in x.items()}
        self.require({name: array.shape[1:] for name, array in arrays.items()}, "x")
        flat = joined(arrays)
        return flat.reshape(len(flat), *self.shape)

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns each input's part of examples `(n, *shape)`."""
        if len(self.specs) == 1:
            return [x]
        shapes = self.shapes.values()
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = np.split(x, ends[:-1], axis=1)
        return [part.reshape(len(x), *s) for part, s in zip(parts, shapes, strict=True)]


def _spec(placeholder: NodeDef) -> tf.TensorSpec:
    shape = tf.TensorShape(attribute(placeholder, "shape").shape)
    if not shape.rank or None in shape[1:]:
        raise InputError(f"the input shape {shape} must be known, all but the batch")
    return tf.TensorSpec(shape, tf.as_dtype(attribute(placeholder, "dtype").type))


def reshaping(have: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Returns advice to reshape examples, to end a message with, where that would help.

    Example:
        >>> reshaping((64,), (8, 8, 1))
        '; reshape x to (n, 8, 8, 1)'
        >>> reshaping((3, 8, 8), (8, 8, 3))
        '; its axes may be in another order: x.transpose(0, 2, 3, 1)'
    """
    if math.prod(have) != math.prod(wanted):
        return f"; it needs {math.prod(wanted)} entries an example, not {math.prod(have)}"
    several = [tuple(size for size in shape if size > 1) for shape in (have, wanted)]
    if several[0] == several[1] or min(map(len, several)) < 2:
        return f"; reshape x to (n, {', '.join(map(str, wanted))})"
    if have == (wanted[-1], *wanted[:-1]):  # a reshape would shuffle the pixels
        order = [0, *range(2, len(wanted) + 1), 1]
        return f"; its axes may be in another order: x.transpose({', '.join(map(str, order))})"
    return "; bring each example's entries into that order"
