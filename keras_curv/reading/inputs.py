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
from keras_curv.lowering.graph import rewritten
from keras_curv.lowering.lookups import WHOLE, category_counts
from keras_curv.saved_model.graph.nodes import attribute
from keras_curv.saved_model.server import MALFORMED

FLOATS = (tf.float32, tf.float64, tf.float16)
_BY_NAME = "give arrays by name, which become these"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a model.

    Example:
        >>> specs = {"a": tf.TensorSpec((None, 2)), "b": tf.TensorSpec((None, 2, 2))}
        >>> inputs = Inputs(specs, "the model")
        >>> inputs.shape, str(inputs)
        ((6,), "inputs 'a' (2,), 'b' (2, 2), flattened and joined in this order")
        >>> x = inputs.joined({"b": np.ones((1, 2, 2)), "a": np.zeros((1, 2))})
        >>> x, [part.shape for part in inputs.split(x)]
        (array([[0., 0., 1., 1., 1., 1.]]), [(1, 2), (1, 2, 2)])
    """

    # of what a client sends, by name, in the order in which inputs are joined
    specs: Mapping[str, tf.TensorSpec]
    source: str  # for messages
    # name → number of categories, of those that are one-hot vectors
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, definition: graph_pb2.GraphDef, given: Mapping[str, str], returned: str, source: str
    ) -> Inputs:
        """Returns the inputs that placeholders stand for.

        Args:
            definition: a flat graph.
            given: name of the input → its placeholder; names sorted.
            returned: the tensor of the output.
            source: for messages.

        Raises:
            InputError: a shape is not known, or there are several, one of which is no number, or
                none of which is a float.
        """
        nodes = {node.name: node for node in definition.node}
        with about(source, (TypeError, ValueError)):
            specs = {name: _spec(nodes[place]) for name, place in given.items()}
        if len(specs) < 2:
            return cls(specs, source)
        known = ", ".join(f"{name!r} {spec.dtype.name}" for name, spec in specs.items())
        kinds = {name: spec.dtype for name, spec in specs.items()}
        if not all(kind in FLOATS or kind.is_integer or kind.is_bool for kind in kinds.values()):
            raise InputError(
                f"{source}: several inputs must be numbers, of {', '.join(k.name for k in FLOATS)} "
                f"or integers. They are: {known}"
            )
        if not any(kind in FLOATS for kind in kinds.values()):
            raise InputError(
                f"{source}: of several inputs what is no float is held fixed, and here none is one."
                f" They are: {known}"
            )
        fixed = {name: kind.is_bool for name, kind in kinds.items() if kind not in FLOATS}
        if not fixed:
            return cls(specs, source)
        with about(source, (InputError, *MALFORMED)):
            read = rewritten(definition, returned)
            found = category_counts(read, {given[name]: truth for name, truth in fixed.items()})
        return cls(specs, source, {n: found[p] for n, p in given.items() if p in found})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of one example."""
        return {name: tuple(spec.shape[1:]) for name, spec in self.specs.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: that of the one input; of several, `(total,)`."""
        shapes = [*self.shapes.values()]
        return shapes[0] if len(shapes) == 1 else (sum(self.sizes.values()),)

    @property
    def sizes(self) -> dict[str, int]:
        """Name → number of its entries in the vector."""
        return {name: math.prod(s) * self.counts.get(name, 1) for name, s in self.shapes.items()}

    @property
    def places(self) -> dict[str, np.ndarray]:
        """Name → places of its entries, `(groups, …)`, each group along its last axis."""
        ends = np.cumsum([0, *self.sizes.values()])
        last = {name: shape[-1] if shape else 1 for name, shape in self.shapes.items()} | {
            **self.counts
        }
        return {
            name: np.arange(start, start + size).reshape(-1, last[name])
            for start, (name, size) in zip(ends[:-1], self.sizes.items(), strict=True)
        }

    @property
    def fixed(self) -> list[str]:
        """Names of those that are held fixed."""
        several = len(self.specs) > 1
        return [name for name, s in self.specs.items() if several and s.dtype not in FLOATS]

    @property
    def dtype(self) -> tf.DType:
        """The type that a client sends; of several, the widest of their floats."""
        types = [spec.dtype for name, spec in self.specs.items() if name not in self.fixed]
        return max(types, key=lambda dtype: dtype.size)

    def __str__(self) -> str:
        if len(self.specs) == 1:
            return str(self.shape)
        kinds = {name: f" of {count} categories" for name, count in self.counts.items()}
        parts = (f"{name!r} {shape}{kinds.get(name, '')}" for name, shape in self.shapes.items())
        return f"inputs {', '.join(parts)}, flattened and joined in this order"

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
            for name in self.fixed:
                block = x[:, self.places[name]]
                if name not in self.counts:
                    if not np.all((block == np.rint(block)) & (np.abs(block) <= WHOLE)):
                        raise InputError(f"{self.source} takes integers at {name!r}; {_BY_NAME}")
                    continue
                if np.any((block != 0) & (block != 1)) or np.any(block.sum(axis=2) != 1):
                    raise InputError(f"{self.source} takes one-hot vectors at {name!r}; {_BY_NAME}")
            return x
        arrays = {name: plain(array) for name, array in x.items()}
        self.require({name: array.shape[1:] for name, array in arrays.items()}, "x")
        return self._encoded(arrays)

    def of_numbers(self, x: np.ndarray) -> np.ndarray:
        """Returns examples as one array, as `joined` does, of several inputs joined as they come.

        Args:
            x: `(n, …)`, each input flattened, one after the other; integers are numbers there.
        """
        if not self.fixed:
            return x.reshape(len(x), *self.shape)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), np.split(x, ends[:-1], axis=1), strict=True)
        return self._encoded({name: part.reshape(len(x), *s) for (name, s), part in parts})

    def _encoded(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns arrays by name as one, integers as one-hot vectors where they are categories."""
        found = dict(arrays)
        for name in self.fixed:
            array, dtype = arrays[name], self.specs[name].dtype
            low, high = (0, 1) if dtype.is_bool else (dtype.min, dtype.max)
            low, high = max(low, -WHOLE), min(high, WHOLE)
            if name in self.counts:
                low, high = 0, self.counts[name] - 1
            bad = np.ones(len(array), bool)
            if array.dtype.kind in "fiub":
                bad = ~((array >= low) & (array <= high) & (array == np.floor(array)))
            if np.any(bad):
                example = int(bad.reshape(len(array), -1).any(axis=1).argmax())
                raise InputError(
                    f"example {example}: {name!r} must be whole numbers from {low} to {high}, of "
                    f"which {self.source} takes {dtype.name}"
                )
            numbers = array.astype(np.int64)
            if name in self.counts:
                numbers = numbers[..., None] == np.arange(self.counts[name])
            found[name] = numbers.astype(np.float32)  # which holds each of them
        flat = joined(found)
        return flat.reshape(len(flat), *self.shape)

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Returns each input's part of examples `(n, *shape)`, as a client sends it."""
        if len(self.specs) == 1:
            return [x]
        found = []
        for name, spec in self.specs.items():
            part = x[:, self.places[name]]
            part = part.argmax(axis=-1) if name in self.counts else part
            found.append(part.reshape(len(x), *spec.shape[1:]).astype(spec.dtype.as_numpy_dtype))
        return found

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Returns examples in the model's dtype, of several inputs each part in its own."""
        with np.errstate(over="ignore"):
            x = x.astype(self.dtype.as_numpy_dtype)
            for name, spec in self.specs.items():
                if name not in self.fixed and spec.dtype != self.dtype:
                    at = self.places[name].reshape(-1)
                    x[:, at] = x[:, at].astype(spec.dtype.as_numpy_dtype)
        return x

    def drawn(self, x: np.ndarray) -> np.ndarray:
        """Returns examples with other integers at random, of what is held fixed."""
        x, rng = x.copy(), np.random.default_rng(0)
        for name in self.fixed:
            at, dtype = self.places[name], self.specs[name].dtype
            if name in self.counts:
                chosen = rng.integers(self.counts[name], size=(len(x), len(at)))
                x[:, at] = chosen[..., None] == np.arange(self.counts[name])
            else:
                low, high = max(dtype.min, -WHOLE), min(dtype.max, WHOLE)
                x[:, at] = np.clip(np.rint(x[:, at]), low, high)
        return x


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
