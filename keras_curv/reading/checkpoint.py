"""The index of a SavedModel's variables, checked before TensorFlow follows it.

`variables.index` is a table in the format of LevelDB: a footer names the block of the index, that
names the blocks of data, and these hold sorted entries, key → `BundleEntryProto`, which says in
which file, where and how large a tensor is. TensorFlow allocates what an entry claims, and ends
the process where it cannot; so here every claim is held against the files there are.

Reference: `table_format.txt` of LevelDB; `tensor_bundle.h` of TensorFlow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

from keras_curv.crc32c import masked_crc32c
from keras_curv.errors import InputError

_FOOTER = 48
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = 5  # bytes behind a block: its compression, and its check
_OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"


class _Broken(Exception):
    """What is wrong with the index."""


def require_sound_index(index: bytes, sizes: Sequence[int], source: str) -> None:
    """Refuses an index that claims more than there is.

    Args:
        index: the content of `variables.index`.
        sizes: of the files of data, in bytes, in order.
        source: for messages.

    Raises:
        InputError: it is cut off, corrupt, or an entry lies outside of its file.
    """
    try:
        entries = list(_entries(index))
        if not entries or entries[0][0] != b"":
            raise _Broken("it has no header")
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries[0][1])
        if header.num_shards != len(sizes) or header.endianness:
            raise _Broken(f"it is of {header.num_shards} files, but there are {len(sizes)}")
        for key, value in entries[1:]:
            _require_inside(key, tensor_bundle_pb2.BundleEntryProto.FromString(value), sizes)
    except (_Broken, DecodeError) as error:
        raise InputError(
            f"{source}: TensorFlow cannot load its variables: the index is corrupt: {error}"
        ) from error


def _require_inside(key: bytes, entry, sizes: Sequence[int]) -> None:
    name = repr(key.decode(errors="replace")[:80])
    if not (0 <= entry.shard_id < len(sizes) and not entry.slices):
        raise _Broken(f"{name} is in no file, or in pieces")
    if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > sizes[entry.shard_id]:
        raise _Broken(f"{name} has {entry.size} bytes at {entry.offset}, outside of its file")
    if key == _OBJECT_GRAPH:
        if entry.dtype != types_pb2.DT_STRING or entry.shape.dim or entry.size == 0:
            raise _Broken(f"{name} is not one string")
        return
    shape = [dim.size for dim in entry.shape.dim]
    try:
        width = tf.as_dtype(entry.dtype).size
    except TypeError:
        width = 0
    if width == 0 or min(shape, default=0) < 0 or math.prod(shape) * width != entry.size:
        raise _Broken(f"{name} has {entry.size} bytes, which do not fit its shape {shape[:8]}")


def _entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = index[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise _Broken("it is cut off, or of another format")
    _, place = _handle(footer, 0)
    block, _ = _handle(footer, place)
    for _, handle in _block(index, block):
        inner, _ = _handle(handle, 0)
        yield from _block(index, inner)


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = _varint(data, place)
    size, place = _varint(data, place)
    return (offset, size), place


def _block(index: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block: each shares the start of its key with the one before."""
    offset, size = handle
    block = index[offset : offset + size + _TRAILER]
    if len(block) < size + _TRAILER or size < 4:
        raise _Broken("a block lies outside of it")
    if block[size] != 0:
        raise _Broken("a block is compressed, which TensorFlow never does")
    if struct.unpack("<I", block[size + 1 :])[0] != masked_crc32c(block[: size + 1]):
        raise _Broken("the check of a block is wrong")
    (restarts,) = struct.unpack("<I", block[size - 4 : size])
    end = size - 4 * (restarts + 1)
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        if shared > len(key) or place + own + length > end:
            raise _Broken("an entry lies outside of its block")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            raise _Broken("a number is cut off")
        number |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return number, place
    raise _Broken("a number has too many digits")
