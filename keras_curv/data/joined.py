"""Examples of several arrays as one vector each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from keras_curv.errors import InputError

_EXACT = 2**53  # the largest integer up to which float64 has all


class Shaped(Protocol):
    """An array, or the description of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers."""


def joined(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns each example as one vector: its arrays, flattened, in the order of names, sorted.

    Args:
        arrays: `(n, …)` of numbers; of several dtypes the result is of one that holds them all.

    Raises:
        InputError: they do not fit together.

    Example:
        >>> joined({"b": np.zeros((2, 3)), "a": np.ones((2, 1, 2))})
        array([[1., 1., 0., 0., 0.],
               [1., 1., 0., 0., 0.]])
    """
    require_joinable("x", arrays)
    kind = dtype_of(arrays)
    for name, array in arrays.items():
        wide = kind.kind == "f" and array.dtype.kind in "iu" and array.dtype.itemsize > 4
        if wide and np.any((array > _EXACT) | (array < -_EXACT)):
            raise InputError(f"x: {name!r} has integers beyond 2⁵³, which no float64 holds")
    parts = [arrays[name].reshape(len(arrays[name]), -1) for name in sorted(arrays)]
    return np.concatenate([part.astype(kind, copy=False) for part in parts], axis=1)


def dtype_of(arrays: Mapping[str, Shaped]) -> np.dtype:
    """Returns the dtype of arrays when they are joined.

    Example:
        >>> dtype_of({"a": np.zeros(1, np.float32), "b": np.zeros(1, np.int32)}).name
        'float64'
    """
    return np.result_type(*(array.dtype.newbyteorder("=") for array in arrays.values()))


def require_joinable(source: str, arrays: Mapping[str, Shaped]) -> None:
    """Refuses arrays that are not of the same examples, or hold no numbers.

    Raises:
        InputError: two differ in the number of examples, or one holds no numbers.
    """
    if not arrays:
        raise InputError(f"{source}: there is no array")
    first = min(arrays)
    for name in sorted(arrays):
        one, other = arrays[first], arrays[name]
        if len(other.shape) == 0 or 0 in other.shape or other.dtype.kind not in "fiu":
            raise InputError(
                f"{source}: {name!r} must hold numbers, (examples, …), not empty. "
                f"Received: {other.dtype} {other.shape}"
            )
        if one.shape[0] != other.shape[0]:
            raise InputError(
                f"{source}: {first!r} has {one.shape[0]} examples, but {name!r} has "
                f"{other.shape[0]}"
            )
