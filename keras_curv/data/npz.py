"""Examples from an .npz file: in memory, or of a large one as they are asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from keras_curv.data.examples import Examples, as_labels, require_fitting
from keras_curv.data.joined import dtype_of, joined, require_joinable
from keras_curv.data.slices import KINDS, LARGEST, Slice
from keras_curv.errors import InputError, visible
from keras_curv.npz_file import NpzFile, StoredArray

WHOLE = 2**30  # bytes: what is larger is known by the examples that are asked for
IN_MEMORY = 2**29  # bytes: smaller files are read at once
_DENSEST = 200  # times its packed size: no larger array beyond WHOLE is unpacked
_PIECE = 2**22  # bytes
_INPUTS = 2**8  # arrays; no model that is read has more
_INSTEAD = {
    ".csv": "make one of text by numpy.loadtxt(path, delimiter=',', skiprows=1) and numpy.savez",
    ".npy": "numpy.savez(new, x=numpy.load(path)) makes one of it",
}


def load_npz(
    path: str, limit: int | None = None, slices: Sequence[str] = (), inputs: Sequence[str] = ()
) -> Examples:
    """Reads the arrays `x`, and `y` if there are labels, of an `.npz` file.

    Where there is no `x`, each array but `y` is one of several inputs, by its name. An array to
    slice by is one, too, unless its dtype is not that of the others.

    Args:
        path: of the file. Of half a GiB or more it is read a batch at a time, and must stay as it
            is meanwhile.
        limit: only the first so many; of a large file, no more is read.
        slices: names of arrays of one value for each example, to count the examples by.
        inputs: names of the arrays that are inputs, where `x` is one of several.

    Raises:
        InputError: there is no such file, it is no npz file, it has neither an array `x` nor
            several, or beside `x` others and no `y`, an array does not hold numbers, or stands for
            far more than is stored, or two differ in length.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.npz"
        >>> np.savez(path, x=np.zeros((3, 2)), y=np.array([0, 1, 0]))
        >>> examples = load_npz(path)
        >>> examples.count, examples.shape, next(examples.batches(2, 1))[1].tolist()
        (3, (2,), [1, 0])
    """
    with _readable(path):
        state = _state(path)
        with NpzFile(path) as file:
            parts = {name: _described_slice(path, file, name) for name in slices}
            x, y = _inputs(path, file, parts, inputs), file.described("y")
            alone = [*x] == ["x"]
            known = x["x"] if alone else _as_one(path, x)
            require_fitting(path, known, y)
            arrays = [*x.values(), *([] if y is None else [y])]
            count = known.shape[0]
            if limit is not None and sum(array.size for array in arrays) > WHOLE:
                count = min(count, max(limit, 1))
            sliced = {
                name: Slice.by(name, file.whole(array), count) for name, array in parts.items()
            }
            if sum(array.size for array in arrays) <= IN_MEMORY:
                whole = {name: file.whole(array) for name, array in x.items()}
                labels = None if y is None else file.whole(y)
                held = Examples.from_arrays(path, whole["x"] if alone else whole, labels)
                return _named(held, path, limit, sliced, inputs)
            _require_stored(arrays, count, file.size)
            fingerprint = _fingerprint(file, arrays, count)

    def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        with _readable(path), NpzFile(path) as file:
            if _state(path) != state:
                raise InputError(f"{path} changed since its examples were first read; try again")
            labels = file.rows(y, size, start, count) if y else itertools.repeat(None)
            parts = zip(
                *(file.rows(array, size, start, count) for array in x.values()), strict=True
            )
            for part, label in zip(parts, labels, strict=False):
                held = part[0] if alone else joined(dict(zip(x, part, strict=True)))
                yield held, None if label is None else as_labels(label)

    shapes = None if alone else {name: array.shape[1:] for name, array in x.items()}
    examples = Examples(path, count, known.shape[1:], batches, fingerprint, inputs=shapes)
    return _named(examples, path, limit, sliced, inputs)


def beside_x(path: str, slices: Sequence[str] = ()) -> list[str]:
    """Returns the names of arrays that an `.npz` file has beside an array `x`, but for labels.

    Raises:
        InputError: it cannot be read.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.npz"
        >>> np.savez(path, x=np.zeros((3, 2)), kind=np.zeros((3, 1), int), y=np.zeros(3))
        >>> beside_x(path)
        ['kind']
    """
    with _readable(path), NpzFile(path) as file:
        return sorted({*file.names} - {"x", "y", *slices}) if "x" in file.names else []


def _described_slice(path: str, file: NpzFile, name: str) -> StoredArray:
    """Returns what the header of an array to slice by says."""
    array = file.described(name, KINDS) if name in file.names else None
    if array is None:
        known = ", ".join(file.names[:99]) or "none"
        raise InputError(f"{path} has no array {name!r} to slice by; it has: {known}")
    if array.size > LARGEST:
        raise InputError(
            f"{path}: {name} has {array.size} bytes, and an array to slice by has {LARGEST} at most"
        )
    return array


def _inputs(
    path: str, file: NpzFile, slices: dict[str, StoredArray], inputs: Sequence[str]
) -> dict[str, StoredArray]:
    """Returns the array `x`, or without one the other arrays, each an input by its name."""
    if missing := {*inputs} - {*file.names}:
        raise InputError(
            f"{path} has no array {min(missing)!r}; it has: {', '.join(file.names[:99])}"
        )
    if inputs:
        found = {name: file.described(name) for name in sorted(inputs)}
        return {name: array for name, array in found.items() if array is not None}
    names = ["x"] if "x" in file.names else sorted({*file.names} - {"y", *slices})
    if names != ["x"]:
        dtypes = {array.dtype for name in names if (array := file.described(name))}
        names = sorted([*names, *(n for n, array in slices.items() if {array.dtype} == dtypes)])
    if names != ["x"] and not 2 <= len(names) <= _INPUTS:
        known = ", ".join(file.names[:99]) or "none"
        raise InputError(f"{path} has no array 'x', as inputs are called; it has: {known}")
    others = sorted({*file.names} - {"x", *slices})
    if names == ["x"] and others and "y" not in others:
        raise InputError(
            f"{path} has x and {', '.join(others[:99])}, but no 'y'; call the labels y, or leave "
            "out what is not x; of a model with an input x beside others, name all: inputs=[…]"
        )
    described = {name: file.described(name) for name in names}
    return {name: array for name, array in described.items() if array is not None}


def _as_one(path: str, arrays: dict[str, StoredArray]) -> StoredArray:
    """Returns the description of several arrays when they are joined."""
    require_joinable(
        f"{path} has no array 'x', as inputs are called, and labels y, only {', '.join(arrays)}: "
        "numpy.savez(path, x=inputs, y=labels) makes one that has; as several inputs by name these "
        "do not fit",
        arrays,
    )
    first, *_ = arrays.values()
    total = sum(math.prod(array.shape[1:]) for array in arrays.values())
    return first._replace(shape=(first.shape[0], total), dtype=dtype_of(arrays))


def _named(
    examples: Examples,
    path: str,
    limit: int | None,
    slices: dict[str, Slice],
    inputs: Sequence[str],
) -> Examples:
    return dataclasses.replace(
        examples,
        name=visible(pathlib.Path(path).name),
        path=path,
        origin=functools.partial(
            load_npz, os.path.abspath(path), limit, tuple(slices), tuple(inputs)
        ),
        slices=slices,
    ).limited(limit)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Makes whatever a broken file raises an InputError that names it."""
    try:
        if not pathlib.Path(path).is_file():
            what = "is no file" if pathlib.Path(path).exists() else "does not exist"
            raise InputError(f"{path or repr(path)} {what}; give an .npz file with an array x")
        yield
    except InputError:
        raise
    except Exception as error:  # zipfile, zlib, OSError, ValueError, RecursionError
        suffix = pathlib.Path(path).suffix
        how = _INSTEAD.get(suffix, "numpy.savez(path, x=x, y=y) writes one")
        raise InputError(f"{path} cannot be read as an .npz file: {error}; {how}") from error


def _state(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _require_stored(arrays: list[StoredArray], count: int, size: int) -> None:
    """Refuses what would grow to far more than the file holds, `size` bytes.

    Together, too: in a zip archive any number of arrays may share the same bytes.
    """
    for array in arrays:
        if array.fortran and len(array.shape) > 1:
            raise ValueError(
                f"{array.name} is stored by columns; write np.ascontiguousarray({array.name})"
            )
    unpacked = sum(count * array.row for array in arrays)
    packed = min(sum(array.packed for array in arrays), size)
    if unpacked > max(WHOLE, _DENSEST * packed):
        raise ValueError(
            f"{', '.join(array.name for array in arrays)} would grow from {packed} bytes to "
            f"{unpacked}; write it with np.savez, unpacked, or ask for fewer examples"
        )


def _fingerprint(file: NpzFile, arrays: list[StoredArray], count: int) -> str:
    """Returns what `fingerprint_of` would for the whole arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        labels = array.name == "y"
        dtype = np.dtype(np.int64) if labels else array.dtype
        digest.update(f"{dtype.str} {(count, *array.shape[1:])} ".encode())
        for part in file.rows(array, max(_PIECE // array.row, 1), 0, count):
            digest.update((as_labels(part) if labels else part).data)
    return digest.hexdigest()
