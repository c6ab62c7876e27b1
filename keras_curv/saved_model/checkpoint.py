"""The variables of a SavedModel, read as a server would.

`variables.index` is a table in the format of LevelDB: a footer names the block of the index, that
names the blocks of data, and these hold sorted entries, key → `BundleEntryProto`, which says in
which file, where and how large a tensor is. Every claim is held against the files there are. A
server jumps into a block, to what the end of the block lists; so whatever is listed must be an
entry that was looked at here.

Reference: `table_format.txt` of LevelDB; `tensor_bundle.h` of TensorFlow.
"""

from __future__ import annotations

import math
import os
import pathlib
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

from keras_curv.errors import InputError, about
from keras_curv.files import open_named, open_regular, read_at_most
from keras_curv.saved_model import limits
from keras_curv.saved_model.crc32c import masked_crc32c
from keras_curv.saved_model.wire import varint

_FOOTER = 48
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = 5  # bytes behind a block: its compression, and its check
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the key of a string, by which Python restores
_RANK = 254  # at most, in TensorFlow


def entries_of(
    index: bytes, sizes: Sequence[int], source: str
) -> dict[str, tensor_bundle_pb2.BundleEntryProto]:
    """Returns where each tensor lies, by its key; refuses an index that claims more than there is.

    Args:
        index: the content of `variables.index`.
        sizes: of the files of data, in bytes, in order.
        source: for messages.

    Raises:
        InputError: it is cut off, corrupt, or too large; an entry lies outside of its file, or
            the entries are not what their file consists of.
    """
    places: list[list[tuple[int, int]]] = [[] for _ in sizes]
    found: dict[bytes, tensor_bundle_pb2.BundleEntryProto] = {}
    what = f"{source}: a server cannot load its variables: the index is corrupt"
    with about(what, (DecodeError, ValueError, OverflowError, struct.error)):
        entries = index_entries(index)
        key, value = next(entries, (None, b""))
        if key != b"":
            raise ValueError("it has no header")
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(value)
        if header.num_shards != len(sizes) or header.endianness:
            raise ValueError(f"it is of {header.num_shards} files, but there are {len(sizes)}")
        for key, value in entries:
            entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
            _require_inside(key, entry, sizes)
            places[entry.shard_id].append((entry.offset, entry.size))
            found[key] = entry
        for size, parts in zip(sizes, places, strict=True):
            _require_whole(size, sorted(parts))
        named = {key.decode(): entry for key, entry in found.items()}  # no two keys become one
    return named


def tensor_of(
    entry: tensor_bundle_pb2.BundleEntryProto, file: pathlib.Path, source: str
) -> np.ndarray:
    """Returns a tensor of the checkpoint.

    Args:
        entry: where it lies.
        file: that of the entry's number.
        source: for messages.

    Raises:
        InputError: it is too large, or its check is wrong.
        OSError: the file cannot be read.
    """
    if entry.dtype == types_pb2.DT_STRING:
        raise InputError(f"{source}: a variable of strings, where numbers are needed")
    shape = [dim.size for dim in entry.shape.dim]
    limits.require_shape(shape)
    content = _content(entry, file)
    if len(content) != entry.size or masked_crc32c(content) != entry.crc32c:
        raise InputError(f"{source}: a server cannot load its variables: a checksum is wrong")
    return np.frombuffer(content, tf.as_dtype(entry.dtype).as_numpy_dtype).reshape(shape)


def string_of(entry: tensor_bundle_pb2.BundleEntryProto, file: pathlib.Path, source: str) -> bytes:
    """Returns the one string of an entry, which is stored behind its length and a check of that.

    Args:
        entry: where it lies.
        file: that of the entry's number.
        source: for messages.

    Raises:
        InputError: it is too large, or a check is wrong.
        OSError: the file cannot be read.
    """
    limits.require_at_most(entry.size, limits.GRAPH_BYTES, f"{source}: a string, in bytes,")
    content = _content(entry, file)
    what = f"{source}: a server cannot load its variables: a string is damaged"
    with about(what, (ValueError, struct.error)):
        length, place = varint(content, 0)
        check, text = content[place : place + 4], content[place + 4 :]
        fixed = struct.pack("<I", length)
        if len(text) != length or check != struct.pack("<I", masked_crc32c(fixed)):
            raise ValueError("it is not as long as it says")
        if masked_crc32c(fixed + check + text) != entry.crc32c:
            raise ValueError("its checksum is wrong")
    return text


def _content(entry: tensor_bundle_pb2.BundleEntryProto, file: pathlib.Path) -> bytes:
    with open_named(file) as stream:
        stream.seek(entry.offset)
        return stream.read(entry.size)


def tensors_of(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a checkpoint of one file of data, by their keys.

    Args:
        path: without `.index`, which is not followed where it is a link.

    Raises:
        InputError: it is damaged, or too large.
        OSError: a file is not there, is none, or cannot be read.
    """
    index = read_at_most(path.with_name(f"{path.name}.index"), limits.INDEX_BYTES)
    data = path.with_name(f"{path.name}.data-00000-of-00001")
    with open_regular(data) as stream:
        size = os.fstat(stream.fileno()).st_size
    limits.require_at_most(size, limits.VARIABLE_BYTES, f"{data}, in bytes,")
    entries = entries_of(index, [size], path.name)
    entries.pop(OBJECT_GRAPH, None)
    return {key: tensor_of(entry, data, path.name) for key, entry in entries.items()}


def _require_inside(
    key: bytes, entry: tensor_bundle_pb2.BundleEntryProto, sizes: Sequence[int]
) -> None:
    name = repr(key.decode(errors="replace")[:80])
    if not (0 <= entry.shard_id < len(sizes) and not entry.slices):
        raise ValueError(f"{name} is in no file, or in pieces")
    if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > sizes[entry.shard_id]:
        raise ValueError(f"{name} has {entry.size} bytes at {entry.offset}, outside of its file")
    if key == OBJECT_GRAPH.encode():
        if entry.dtype != types_pb2.DT_STRING or entry.shape.dim or entry.size == 0:
            raise ValueError(f"{name} is not one string")
        return
    if entry.dtype == types_pb2.DT_STRING:
        return  # of a table of words, which no op that is read takes
    limits.require_at_most(len(entry.shape.dim), _RANK, f"the rank of {name}")
    shape = [dim.size for dim in entry.shape.dim]
    width = _width(entry.dtype)
    fits = min(shape, default=0) >= 0 and math.prod(shape) * width == entry.size
    if width == 0 or entry.shape.unknown_rank or not fits:
        raise ValueError(f"{name} has {entry.size} bytes, which do not fit its shape {shape[:8]}")


def _width(number: int) -> int:
    """Returns the bytes of a number of a type; zero for strings, references and their like."""
    try:
        dtype = tf.as_dtype(number)
    except TypeError:
        return 0
    return dtype.size if dtype == dtype.base_dtype else 0


def _require_whole(size: int, parts: list[tuple[int, int]]) -> None:
    """Refuses holes and overlaps: TensorFlow writes one tensor right behind the other."""
    end = 0
    for offset, length in parts:
        if offset != end:
            raise ValueError(f"an entry starts at {offset}, but the one before ends at {end}")
        end += length
    if end != size:
        raise ValueError(f"a file has {size} bytes, but its entries end at {end}")


def index_entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields all entries, by increasing key; the first is the header."""
    footer = index[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise ValueError("it is cut off, or of another format")
    _, place = _handle(footer, 0)
    block, _ = _handle(footer, place)
    end, count, written, last = 0, 0, 0, None
    for number, (_, handle) in enumerate(_block(index, block)):
        limits.require_at_most(number + 1, limits.INDEX_BLOCKS, "the number of its blocks")
        (offset, size), _ = _handle(handle, 0)
        if offset < end:
            raise ValueError("a block does not lie behind the one before")
        end = offset + size
        for key, value in _block(index, (offset, size)):
            count, written = count + 1, written + len(key)
            limits.require_at_most(count, limits.NODES, "the number of its entries")
            limits.require_at_most(written, limits.INDEX_BYTES, "the length of its keys")
            if last is not None and key <= last:
                raise ValueError("its keys are not in order")
            last = key
            yield key, value


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = varint(data, place)
    size, place = varint(data, place)
    return (offset, size), place


def _block(index: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of a block: each shares the start of its key with the one before."""
    offset, size = handle
    block = index[offset : offset + size + _TRAILER]
    if len(block) < size + _TRAILER or size < 4:
        raise ValueError("a block lies outside of it")
    if block[size] != 0:
        raise ValueError("a block is compressed, which TensorFlow never does")
    if struct.unpack("<I", block[size + 1 :])[0] != masked_crc32c(block[: size + 1]):
        raise ValueError("the check of a block is wrong")
    (count,) = struct.unpack("<I", block[size - 4 : size])
    end = size - 4 * (count + 1)
    if end < 0:
        raise ValueError("a block is too small for its list")
    key, place, whole = b"", 0, {0}  # `whole`: where an entry with all of its key starts
    while place < end:
        start = place
        shared, place = varint(block, place)
        own, place = varint(block, place)
        length, place = varint(block, place)
        if shared > len(key) or place + own + length > end:
            raise ValueError("an entry lies outside of its block")
        limits.require_at_most(shared + own, limits.KEY_BYTES, "the length of a key")
        if shared == 0:
            whole.add(start)
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length
    if any(start not in whole for (start,) in struct.iter_unpack("<I", block[end : size - 4])):
        raise ValueError("a block lists a place where no entry starts")
