"""The part of a live model before its cut: from what the model takes to what flows at the cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.data.containers import is_table, of_table, plain
from keras_curv.errors import InputError, about
from keras_curv.reading.inputs import Inputs

_AT_ONCE = 64  # examples


@dataclasses.dataclass(frozen=True)
class Before:
    """What is computed before a cut."""

    specs: Mapping[str, tf.TensorSpec]  # of what the model takes, by name, in the order of names
    # the parts of a batch, in that order → what flows at the cut
    call: Callable[[list[tf.Tensor]], tf.Tensor]
    source: str  # for messages

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of one example."""
        return {name: tuple(spec.shape[1:]) for name, spec in self.specs.items()}

    def __call__(self, x: Any) -> np.ndarray:
        """Returns what flows at the cut for examples.

        Args:
            x: as the model takes them, `(n, …)`; name → array; a DataFrame; of several inputs of
                one float type also all of them, flattened and joined in the order of names.

        Raises:
            InputError: they do not fit the model, or it fails on them.
        """
        parts = [
            _as(part, spec, f"{self.source}: the input {name!r}")
            for part, (name, spec) in zip(self._parts(x), self.specs.items(), strict=True)
        ]
        count = len(parts[0])
        if any(len(part) != count for part in parts):
            lengths = ", ".join(str(len(part)) for part in parts)
            raise InputError(f"{self.source}: inputs of as many examples. Received: {lengths}")
        found = []
        with about(f"{self.source}: its part before the cut fails", (tf.errors.OpError,)):
            for start in range(0, max(count, 1), _AT_ONCE):
                some = [tf.constant(part[start : start + _AT_ONCE]) for part in parts]
                found.append(self.call(some).numpy())
        return np.concatenate(found)

    def _parts(self, x: Any) -> list[Any]:
        """Returns examples as one array for each input."""
        if is_table(x):
            x = of_table(x, {name: tuple(s.shape[1:]) for name, s in self.specs.items()})
        if isinstance(x, Mapping):
            known = ", ".join(self.specs)
            if x.keys() != self.specs.keys():
                named = ", ".join(map(str, x))
                raise InputError(f"{self.source} takes the inputs {known}. Received: {named}")
            return [x[name] for name in self.specs]
        if len(self.specs) == 1:
            return [x]
        inputs = Inputs(self.specs, self.source)
        return inputs.split(inputs.joined(x))


def _as(part: Any, spec: tf.TensorSpec, what: str) -> np.ndarray:
    """Returns one input in the model's dtype."""
    with about(what, (ValueError,)):  # rows of several lengths
        array = plain(part)
    wanted = spec.dtype.as_numpy_dtype
    if array.ndim == 0 or not spec.shape[1:].is_compatible_with(array.shape[1:]):
        shape = tuple(spec.shape[1:])
        raise InputError(f"{what} takes examples of shape {shape}. Received: {array.shape[1:]}")
    if spec.dtype == tf.string:
        return array.astype(object)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} takes {spec.dtype.name}. Received: {array.dtype}")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
    if not spec.dtype.is_floating and np.any(converted != array):
        raise InputError(f"{what} takes {spec.dtype.name}, and there are other numbers")
    return converted
