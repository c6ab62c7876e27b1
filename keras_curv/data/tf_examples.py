"""Examples from TFRecord files of tf.Examples: the features that are a model's inputs, by name.

Fields that are unknown, or said twice, are refused, since readers differ in what they make of them.
TensorFlow's own op is not used: a million floats in the place of one have it overwrite its memory.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_curv.data.examples import Examples
from keras_curv.data.slices import LONGEST
from keras_curv.data.tf_record import MAX_RECORD, read_records
from keras_curv.errors import InputError, about, optional_at_least, visible
from keras_curv.saved_model.wire import require_said_once

HELD = 2**29  # bytes of examples in memory
_FILES = 10_000
_LABELS = ("y", "label")
_KINDS = {"bytes_list": "strings", "float_list": "floats", "int64_list": "integers"}

Shapes = Mapping[str, tuple[int, ...]]
Defaults = Mapping[str, np.ndarray | None]
Features = Mapping[str, tf.train.Feature]


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
    features = _features(record)
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
    return _wanted(_features(record), shapes, defaults, integers)


def _wanted(
    features: Features, shapes: Shapes, defaults: Defaults, integers: Collection[str]
) -> dict[str, np.ndarray]:
    found = {}
    for name, shape in shapes.items():
        dtype = np.int64 if name in integers else np.float32
        kind = features[name].WhichOneof("kind") if name in features else None
        if kind is None:
            default = defaults.get(name)
            if default is None:
                raise _missing(features, name)
            found[name] = default.astype(dtype).reshape(shape)
            continue
        wanted = "integers" if name in integers else "floats"
        if _KINDS[kind] != wanted:
            raise ValueError(f"the feature {name!r} has {_KINDS[kind]}, and {wanted} are wanted")
        values, size = getattr(features[name], kind).value, math.prod(shape)
        if len(values) != size:
            raise ValueError(
                f"the feature {name!r} has {len(values)} numbers, and {size} are wanted"
            )
        found[name] = np.array(values, dtype).reshape(shape)
    return found


def _missing(features: Features, name: str) -> ValueError:
    known = ", ".join(sorted(features)[:12]) or "none"
    return ValueError(f"it has no feature {name!r}; it has: {known}")


def _slice_value(features: Features, name: str) -> int | np.float32 | str:
    """Returns the one number or text of a feature to slice by."""
    kind = features[name].WhichOneof("kind") if name in features else None
    if kind is None:
        raise _missing(features, name)
    values = getattr(features[name], kind).value
    if len(values) == 1 and kind != "bytes_list":
        return np.float32(values[0]) if kind == "float_list" else values[0]
    if len(values) == 1 and len(values[0]) <= 4 * LONGEST:
        return values[0].decode("utf-8", "backslashreplace")
    raise ValueError(
        f"the feature {name!r} is a slice, and must be one number, or text of at most {LONGEST} "
        "characters"
    )


def _features(record: bytes) -> Features:
    """Returns the features of a tf.Example by name."""
    try:
        example = tf.train.Example.FromString(record)
    except DecodeError as error:
        raise ValueError("it is no tf.Example") from error
    require_said_once(record, example.DESCRIPTOR, everywhere=True)
    size = example.ByteSize()
    example.DiscardUnknownFields()
    if example.ByteSize() != size:
        raise ValueError("it is no tf.Example: it has a field that none has")
    return example.features.feature


def _label(feature: tf.train.Feature, name: str) -> int:
    """Returns the one integer of a feature."""
    values = feature.int64_list.value
    if len(values) == 1 and values[0] >= 0:
        return values[0]
    raise ValueError(f"the feature {name!r} is the label, and must be one integer, at least 0")
