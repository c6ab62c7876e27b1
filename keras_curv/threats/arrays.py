"""Checks of the arrays that users give by feature, with messages that name the array."""

from __future__ import annotations

import hashlib
from numbers import Real
from typing import Any

import numpy as np

from keras_curv.errors import InputError, about

LARGEST = 1e150  # for numbers about inputs and outputs: products of two are finite


def numbers(values: Any, name: str) -> np.ndarray:
    """Returns values as an array; InputError unless they are finite numbers."""
    array = _float64(values, name)
    if not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers. Received: {array.size} entries")
    return array


def number(value: Any, name: str) -> float:
    """Returns one number; InputError for anything else."""
    array = numbers(value, name)
    if array.size != 1:
        raise InputError(f"{name} must be one number. Received: {array.size}")
    return float(array.item())


def limit(values: Any, name: str, none: float) -> np.ndarray:
    """Returns a limit as an array; None or NaN becomes `none`, an infinite limit."""
    array = _float64(none if values is None else values, name).reshape(-1)
    array = np.where(np.isnan(array), none, array)
    if not array.size or (array == -none).any():
        raise InputError(f"{name} must be numbers, or {none:g} for none. Received: {-none:g}")
    return array


def _float64(values: Any, name: str) -> np.ndarray:
    """Returns values in float64, NaN where one is None.

    Raises:
        InputError: a value is not a real number, or is beyond `LARGEST` and not infinite.
    """
    with about(f"{name} must be numbers", (TypeError, ValueError, OverflowError)):
        array = np.array(values)
        if array.dtype.kind == "O":  # a list with None, or with integers beyond 64 bits
            kinds = {type(value) for value in array.flat} - {type(None)}
            other = [kind for kind in kinds if not issubclass(kind, Real) or kind is bool]
        else:
            other = [array.dtype.type] if array.size and array.dtype.kind not in "fiu" else []
        if other:
            raise TypeError(f"received {', '.join(sorted(kind.__name__ for kind in other))}")
        with np.errstate(over="ignore"):  # wider floats become infinite
            array = array.astype(np.float64)
    size = np.abs(array)
    if ((size > LARGEST) & (size < np.inf)).any():
        largest = size[np.isfinite(size)].max()
        raise InputError(f"{name} must be at most {LARGEST:g} in size. Received: {largest:g}")
    return array


def features(values: Any) -> np.ndarray:
    """Returns features as bools or as indices; InputError unless they are one of these."""
    with about("frozen must be bools, or indices of features", (TypeError, ValueError)):
        array = np.array(values).reshape(-1)
    if array.dtype == bool:
        return array
    if not array.size or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise InputError(
            f"frozen must be bools, or indices of features, one at least. Received: {array}"
        )
    return np.unique(array)


def spread(values: np.ndarray, dim: int, name: str) -> np.ndarray:
    """Returns one entry for each feature; InputError unless there are `dim` or one."""
    values = values.reshape(-1)
    if len(values) not in (1, dim):
        raise InputError(f"{name} must have {dim} entries, one for each feature, or one. "
                         f"Received: {len(values)}")  # fmt: skip
    return np.broadcast_to(values, dim)


def digest(values: np.ndarray) -> str:
    """Returns the numbers as text if they are few, else a digest."""
    if values.size <= 8 and values.ndim == 1:
        return ",".join(repr(value) for value in values.tolist())
    data = f"{values.dtype.str} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes()
    return f"{values.shape} sha256:{hashlib.sha256(data).hexdigest()[:16]}"
