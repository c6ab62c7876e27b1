"""Examples from TFRecord files of tf.Examples: the features that are a model's inputs, by name.

A tf.Example is `{1: {1: {1: name, 2: {1: bytes, 2: floats, 3: integers}}, …}}` on the wire of
protobuf. It is read as that and as nothing else: a field that is unknown, or said twice, is
refused, since readers differ in what they make of it; and so is a length beyond the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_curv.data.examples import Examples
from keras_curv.data.slices import LONGEST
from keras_curv.data.tf_record import MAX_RECORD, read_records
from keras_curv.errors import InputError, about, optional_at_least, visible
from keras_curv.saved_model.wire import varint

HELD = 2**29  # bytes of examples in memory
_FILES = 10_000
_PARTS = 2**16  # of an example: features, their names and lists, and numbers that are not packed
_LABELS = ("y", "label")
_KINDS = {1: "strings", 2: "floats", 3: "integers"}
_VARINT, _BYTES, _FOUR = 0, 2, 5  # wire types
_ONE, _TWO, _THREE = ({n: _BYTES for n in range(1, most + 1)} for most in (1, 2, 3))
_FLOATS = {1: _FOUR}

Shapes = Mapping[str, tuple[int, ...]]
Defaults = Mapping[str, np.ndarray | None]
Features = Mapping[str, tuple[int, memoryview]]


def is_tfrecord(path: str) -> bool:
    """Returns whether a path, or a shell pattern, names TFRecord files.

    Example:
        >>> [is_tfrecord(path) for path in ("a.tfrecord", "b/*.tfrecord-*-of-00004", "c.npz")]
        [True, True, False]
    """
    return ".tfrecord" in os.path.basename(path)


@dataclasses.dataclass(frozen=True)
class TFExamples:
    """TFRecord files of tf.Examples, to be read once it is known which features are wanted.

    Attributes:
        pattern: a file, or a shell pattern of several, which are read in the order of their names.
        limit: the first so many examples; None: all.
    """

    pattern: str
    limit: int | None = None

    @property
    def paths(self) -> list[str]:
        """The files."""
        return sorted(glob.glob(self.pattern)) or [self.pattern]

    def limited(self, limit: int | None) -> TFExamples:
        """Returns the first `limit` examples; None keeps them all."""
        optional_at_least(limit, 1, "the limit")
        return self if limit is None else dataclasses.replace(self, limit=limit)

    def read(
        self,
        shapes: Shapes,
        defaults: Defaults | None = None,
        slices: Sequence[str] = (),
        integers: Collection[str] = (),
    ) -> Examples:
        """Reads the features of a model; labels are a feature `y` or `label`, one integer.

        Args:
            shapes: name of each feature → its shape.
            defaults: what a feature is in examples that leave it out; None: they must not.
            slices: names of features of one number or text, to count the examples by.
            integers: names of those that are integers; the others are floats.

        Raises:
            InputError: a file cannot be read, a record is no tf.Example, or a feature is missing,
                of another type or length; the message names file, record and feature.
        """
        paths = self.paths
        if len(paths) > _FILES:
            raise InputError(f"{self.pattern} names {len(paths)} files, at most {_FILES} are read")
        columns: dict[str, list[np.ndarray]] = {name: [] for name in shapes}
        parts: dict[str, list[int | np.float32 | str]] = {name: [] for name in slices}
        labels: list[int | None] = []
        room = HELD // max(4 * sum(map(math.prod, shapes.values())), 1)
        for where, record in _records(paths, self.limit):
            if len(labels) >= room:
                raise InputError(
                    f"{self.pattern}: its examples take more than {HELD >> 20} MiB; give fewer "
                    "files, or a limit"
                )
            with about(where, (ValueError,)):
                known = shapes, defaults or {}, slices, integers
                found, label, values = parse_example(record, *known)
            for name, column in columns.items():
                column.append(found[name])
            for name, value in zip(slices, values, strict=True):
                if parts[name] and type(parts[name][0]) is not type(value):
                    raise InputError(f"{where}: the feature {name!r} is of another type in others")
                parts[name].append(value)
            labels.append(label)
        if not labels:
            raise InputError(f"{self.pattern} has no records")
        if None in labels and any(label is not None for label in labels):
            raise InputError(f"{self.pattern}: record {labels.index(None)} has no label, others do")
        x: Any = {name: np.stack(column) for name, column in columns.items()}
        x = x if len(x) > 1 else next(iter(x.values()))
        y = None if labels[0] is None else np.array(labels, np.int64)
        sliced = {name: np.array(values) for name, values in parts.items()}
        examples = Examples.from_arrays(
            visible(pathlib.Path(self.pattern).name), x, y, slices=sliced
        )
        again = TFExamples(os.path.abspath(self.pattern), self.limit)
        args = dict(shapes), defaults, tuple(slices), tuple(integers)
        origin = functools.partial(again.read, *args)
        return dataclasses.replace(examples, path=self.pattern, origin=origin)


def _records(paths: list[str], limit: int | None) -> Iterator[tuple[str, bytes]]:
    """Yields records, each with words for where it is."""
    number = 0
    for path in paths:
        for place, record in enumerate(read_records(path)):
            if number == limit:
                return
            number += 1
            if record is None:
                raise InputError(f"{path}: record {place} has more than {MAX_RECORD} bytes")
            yield f"{path}: record {place}", record


def parse_example(
    record: bytes,
    shapes: Shapes,
    defaults: Defaults,
    slices: Sequence[str] = (),
    integers: Collection[str] = (),
) -> tuple[dict[str, np.ndarray], int | None, list[int | np.float32 | str]]:
    """Returns the features of a serialized tf.Example as float32 or int64, its label, if it has
    one, and its value for each slice.

    Args:
        record: the tf.Example.
        shapes, defaults, slices, integers: see `TFExamples.read`.

    Raises:
        ValueError: it is none, or does not fit; the message names the feature.

    Example:
        >>> record = bytes.fromhex("0a 0f 0a 0d 0a 01 78 12 08 12 06 0a 04 00 00 00 3f")
        >>> parse_example(record, {"x": (1,)}, {})
        ({'x': array([0.5], dtype=float32)}, None, [])
    """
    features = _features(memoryview(record))
    labels = [name for name in _LABELS if name in features and name not in shapes]
    if len(labels) > 1:
        raise ValueError("it has both a feature 'y' and a feature 'label'; leave one out")
    label = _label(features[labels[0]], labels[0]) if labels else None
    values = [_slice_value(features, name) for name in slices]
    return _wanted(features, shapes, defaults, integers), label, values


def parse_features(
    record: bytes, shapes: Shapes, defaults: Defaults, integers: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the features of a serialized tf.Example, as `parse_example` does, whatever else it
    has."""
    return _wanted(_features(memoryview(record)), shapes, defaults, integers)


def _wanted(
    features: Features, shapes: Shapes, defaults: Defaults, integers: Collection[str]
) -> dict[str, np.ndarray]:
    found = {}
    for name, shape in shapes.items():
        kind, content = features.get(name, (0, memoryview(b"")))
        if kind == 0:
            default = defaults.get(name)
            if default is None:
                raise _missing(features, name)
            kept = np.int64 if name in integers else np.float32
            found[name] = default.astype(kept).reshape(shape)
            continue
        if kind != (3 if name in integers else 2):
            wanted = "integers" if name in integers else "floats"
            raise ValueError(f"the feature {name!r} has {_KINDS[kind]}, and {wanted} are wanted")
        whole, size = name in integers, math.prod(shape)
        values = np.array(_integers(content, size), np.int64) if whole else _floats(content)
        if len(values) != size:
            count = f"more than {size}" if whole and len(values) > size else len(values)
            raise ValueError(f"the feature {name!r} has {count} numbers, and {size} are wanted")
        found[name] = values.reshape(shape)
    return found


def _missing(features: Features, name: str) -> ValueError:
    known = ", ".join(sorted(features)[:12]) or "none"
    return ValueError(f"it has no feature {name!r}; it has: {known}")


def _slice_value(features: Features, name: str) -> int | np.float32 | str:
    """Returns the one number or text of a feature to slice by."""
    kind, content = features.get(name, (0, memoryview(b"")))
    if kind == 0:
        raise _missing(features, name)
    values: list[Any]
    if kind == 1:
        values = [bytes(text) for _, text in _fields(content, _ONE, [_PARTS])]
        if len(values) == 1 and len(values[0]) <= 4 * LONGEST:
            return values[0].decode("utf-8", "backslashreplace")
    elif len(values := [*_floats(content)] if kind == 2 else _integers(content, 1)) == 1:
        return values[0]
    raise ValueError(
        f"the feature {name!r} is a slice, and must be one number, or text of at most {LONGEST} "
        "characters"
    )


def _features(example: memoryview) -> dict[str, tuple[int, memoryview]]:
    """Returns each feature's kind, a number of `_KINDS` or 0, and its list."""
    found: dict[str, tuple[int, memoryview]] = {}
    budget = [_PARTS]
    for features in _only(example, _ONE, budget).values():
        for _, entry in _fields(features, _ONE, budget):
            parts = _only(entry, _TWO, budget)
            try:
                name = bytes(parts.get(1, b"")).decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError("the name of a feature is no text") from error
            if name in found:
                raise ValueError(f"it has two features {name[:80]!r}")
            held = _only(parts.get(2, memoryview(b"")), _THREE, budget)
            if len(held) > 1:
                raise ValueError(f"the feature {name[:80]!r} has two lists")
            found[name] = next(iter(held.items()), (0, memoryview(b"")))
    return found


def _only(part: memoryview, known: Mapping[int, int], budget: list[int]) -> dict[int, memoryview]:
    """Returns the fields of a message that has no others, each at most once."""
    found: dict[int, memoryview] = {}
    for number, content in _fields(part, known, budget):
        if number in found:
            raise ValueError("it is no tf.Example: a field is said twice")
        found[number] = content
    return found


def _fields(
    part: memoryview, known: Mapping[int, int], budget: list[int]
) -> Iterator[tuple[int, memoryview]]:
    """Yields number and content of each field; ValueError for one that is not known.

    Args:
        part: the message.
        known: number → wire type, with a length or of four bytes, which may also come packed.
        budget: how many fields there may still be.
    """
    place, end = 0, len(part)
    while place < end:
        budget[0] -= 1
        if budget[0] < 0:
            raise ValueError(f"it has more than {_PARTS} parts; write its lists packed")
        tag, place = varint(part, place)
        number, wire = tag >> 3, tag & 7
        if number not in known or wire not in (known[number], _BYTES):
            raise ValueError("it is no tf.Example: it has a field that none has")
        size = 4
        if wire == _BYTES:
            size, place = varint(part, place)
        if size > end - place:
            raise ValueError("it is no tf.Example: a length leads beyond its end")
        yield number, part[place : place + size]
        place += size


def _floats(content: memoryview) -> np.ndarray:
    pieces = [bytes(piece) for _, piece in _fields(content, _FLOATS, [_PARTS])]
    if any(len(piece) % 4 for piece in pieces):
        raise ValueError("it is no tf.Example: a list of floats is cut off")
    return np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)


def _integers(content: memoryview, most: int) -> list[int]:
    """Returns the integers of a list, packed or not; of many, one more than `most`."""
    found: list[int] = []
    place = 0
    try:
        while place < len(content) and len(found) <= most:
            tag, place = varint(content, place)
            part, end = content, place + 1
            if tag == 8 | _BYTES:
                size, place = varint(content, place)
                end = place + size
                part = content[:end]
            elif tag != 8 | _VARINT:
                raise ValueError("it has a field that none has")
            if end > len(content):
                raise ValueError("a length leads beyond its end")
            while place < end and len(found) <= most:
                number, place = varint(part, place)
                found.append((number + 2**63) % 2**64 - 2**63)
    except ValueError as error:
        raise ValueError(f"it is no tf.Example: {error}") from error
    return found


def _label(feature: tuple[int, memoryview], name: str) -> int:
    """Returns the one integer of a feature."""
    kind, content = feature
    with contextlib.suppress(ValueError):
        values = _integers(content, 1) if kind == 3 else []
        if len(values) == 1 and values[0] >= 0:
            return values[0]
    raise ValueError(f"the feature {name!r} is the label, and must be one integer, at least 0")
