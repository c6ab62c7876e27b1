"""Checks of the arrays that users give by feature, with messages that name the array."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from keras_curv.errors import InputError, about

_NAMED = 8  # features whose names are printed
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


def require_ordered(low: np.ndarray, high: np.ndarray) -> None:
    """Refuses limits that do not fit one another."""
    if low.size > 1 < high.size and low.size != high.size:
        raise InputError(f"low and high differ in size. Received: {low.size} and {high.size}")
    if (low > high).any():
        worst = np.argmax(low > high)
        ends = [part[worst] for part in np.broadcast_arrays(low, high)]
        raise InputError(f"low must not be above high. Received: {ends[0]:g} and {ends[1]:g}")


def require_weights(scale: np.ndarray) -> None:
    """Refuses weights of features that are not positive."""
    if scale.min() < 1.0 / LARGEST:
        raise InputError(
            "weights must be positive; a feature that cannot change is frozen, and no other "
            f"has one below {1.0 / LARGEST:g}. Received: {scale.min():g}"
        )


def require_basis(basis: np.ndarray) -> None:
    """Refuses what is no matrix of directions."""
    if basis.ndim != 2 or 0 in basis.shape or not basis.any():
        raise InputError(f"basis must be (dim, q) and not 0. Received: {basis.shape}")


def box_text(low: np.ndarray, high: np.ndarray) -> str:
    """Returns in words where limits keep features."""
    low, high = np.unique(low), np.unique(high)
    if len(low) > 1 or len(high) > 1:
        return "a range of each feature"
    if not np.isfinite(low[0]):
        return f"at most {high[0]:g}"
    return f"at least {low[0]:g}" if not np.isfinite(high[0]) else f"[{low[0]:g}, {high[0]:g}]"


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
    """Returns features as bools, indices or names; InputError unless they are one of these."""
    with about("frozen must be bools, or indices of features", (TypeError, ValueError)):
        array = np.array(values).reshape(-1)
    if array.dtype == bool:
        return array
    if array.dtype.kind == "U" and all(isinstance(name, str) for name in values):
        return np.unique(array)
    if not array.size or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise InputError(
            "frozen must be bools, or indices or names of features, one at least. "
            f"Received: {array}"
        )
    return np.unique(array)


def features_at(frozen: np.ndarray, places: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns features by index where they are named; InputError for a name without a place."""
    if frozen.dtype.kind != "U":
        return frozen
    require_named(frozen.tolist(), places, "frozen")
    return np.unique(np.concatenate([places[name].reshape(-1) for name in frozen.tolist()]))


def frozen_mask(frozen: np.ndarray, dim: int) -> np.ndarray:
    """Returns the mask of features that bools or indices name, `(dim,)`; InputError for others."""
    chosen = features_at(frozen, {}).reshape(-1)
    if chosen.dtype == bool:
        return np.array(spread(chosen, dim, "frozen"))
    if chosen.max() >= dim:
        raise InputError(
            f"frozen names feature {chosen.max()}, but there are {dim} (0 to {dim - 1})"
        )
    return np.isin(np.arange(dim), chosen)


def require_named(names: Iterable[str], places: Mapping[str, np.ndarray], what: str) -> None:
    """Refuses names of features that are not there; InputError says which are."""
    for name in names:
        if name not in places:
            known = ", ".join(map(repr, list(places)[:_NAMED])) or "none"
            raise InputError(
                f"{what} names {name!r}, but the names of features are {known}: those of several "
                "inputs, of what a cut joins, or of the columns of a DataFrame"
            )


def features_text(frozen: np.ndarray) -> str:
    """Returns which features these are: their names, if they have some, or how many."""
    if frozen.dtype.kind == "U" and len(frozen) <= _NAMED:
        return ", ".join(map(repr, frozen.tolist()))
    count = int(frozen.sum() if frozen.dtype == bool else frozen.size)
    return f"{count} feature{'s' if count != 1 else ''}"


def spread(values: np.ndarray, dim: int, name: str) -> np.ndarray:
    """Returns one entry for each feature; InputError unless there are `dim` or one."""
    values = values.reshape(-1)
    if len(values) not in (1, dim):
        raise InputError(f"{name} must have {dim} entries, one for each feature, or one. "
                         f"Received: {len(values)}")  # fmt: skip
    return np.broadcast_to(values, dim)


def says(name: str, values: np.ndarray) -> bool:
    """Returns whether an array restricts anything; limits that are all infinite do not."""
    return name not in ("low", "high") or bool(np.isfinite(values).any())


def digest(values: np.ndarray) -> str:
    """Returns the numbers as text if they are few, else a digest."""
    if values.size <= 8 and values.ndim == 1:
        return ",".join(repr(value) for value in values.tolist())
    data = f"{values.dtype.str} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes()
    return f"{values.shape} sha256:{hashlib.sha256(data).hexdigest()[:16]}"
