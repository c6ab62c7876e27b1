"""Indices of variables that claim what is not so."""

from __future__ import annotations

import os
import struct

import tensorflow as tf

from hostile_models.models import DATA, INDEX, cases, export
from keras_curv.saved_model.crc32c import masked_crc32c

CASES, case = cases()
HARMLESS, harmless_case = cases()


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def block_of(entries):
    content = b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in entries)
    content += struct.pack("<II", 0, 1)
    return content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0"))


def index_of(entries, claimed=None):
    """A table as TensorFlow would read it; `claimed`: the size that its only block says it has."""
    return table_of(block_of(entries), claimed=claimed)


def table_of(data, handles=1, claimed=None):
    """A table of one block, which is named that often."""
    handle = varint(0) + varint(claimed or len(data) - 5)
    inner = block_of([(b"~", handle)] * handles)
    footer = varint(0) + varint(0) + varint(len(data)) + varint(len(inner) - 5)
    return data + inner + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _rewritten(change, **claims):
    def build(path, canary):
        from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

        from keras_curv.saved_model import checkpoint

        export(path)
        entries = []
        for key, value in checkpoint.index_entries((path / INDEX).read_bytes()):
            if key.startswith(b"w/"):
                entry = BundleEntryProto.FromString(value)
                change(entry)
                value = entry.SerializeToString()
            entries.append((key, value))
        (path / INDEX).write_bytes(index_of(entries, **claims))
        return path

    return build


def _shape(entry):
    entry.shape.dim[0].size = 2**58


def _bytes(entry):
    _shape(entry)
    entry.size = 2**58 * 5 * 4


def _strings(entry):
    entry.dtype = tf.string.as_datatype_enum


case("index: a shape of 2^60 entries")(_rewritten(_shape))
case("index: 2^60 bytes of data")(_rewritten(_bytes))
case("index: data at 2^60")(_rewritten(lambda entry: setattr(entry, "offset", 2**60)))
case("index: in the millionth file")(_rewritten(lambda entry: setattr(entry, "shard_id", 10**6)))
case("index: numbers as strings of any length")(_rewritten(_strings))


def _turned(entry):
    first, second = entry.shape.dim
    first.size, second.size = second.size, first.size


def _integers(entry):
    entry.dtype = tf.int32.as_datatype_enum


case("stored: with another shape of the same size")(_rewritten(_turned))
case("stored: as whole numbers")(_rewritten(_integers))


def _reference(entry):
    entry.dtype += 100


def _high_rank(entry):
    for _ in range(10**5):
        entry.shape.dim.add(size=2**60)


case("index: a block of 2^60 bytes")(_rewritten(lambda entry: None, claimed=2**60))
case("index: numbers as references")(_rewritten(_reference))
case("index: a shape of 100,000 dimensions")(_rewritten(_high_rank))


def index_entries(path):
    from keras_curv.saved_model import checkpoint

    return dict(checkpoint.index_entries((path / INDEX).read_bytes()))


@case("index: a string of 8 GiB")
def _long_string(path, canary):
    """Its check is right; TensorFlow would end the process."""
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

    entries, data = index_entries(export(path)), (path / DATA).read_bytes()
    for key, value in entries.items():
        if key == b"_CHECKPOINTABLE_OBJECT_GRAPH":
            entry = BundleEntryProto.FromString(value)
            start = varint(2**33) + struct.pack("<I", masked_crc32c(struct.pack("<Q", 2**33)))
            place = slice(entry.offset, entry.offset + len(start))
            (path / DATA).write_bytes(data[: place.start] + start + data[place.stop :])
    return path


def _empty():
    """An entry without content, which would be in order."""
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

    entry = BundleEntryProto(dtype=tf.float32.as_datatype_enum)
    entry.shape.dim.add()
    return entry.SerializeToString()


def _sharing(path, keys):
    """Writes an index of keys `(shared, own)`: so many bytes of the one before, then these."""
    content, value = varint(0) * 2 + varint(2) + b"\x08\x01", _empty()  # the header: one file
    for shared, own in keys:
        content += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
    content += struct.pack("<II", 0, 1)
    data = content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0"))
    (export(path) / INDEX).write_bytes(table_of(data))
    return path


@case("index: a letter makes a key longer")
def _long_keys(path, canary):
    """Half a megabyte or so; written out, 1.8 GB."""
    return _sharing(path, [(i, b"a") for i in range(60_000)])


@case("index: keys share all but two bytes")
def _shared_keys(path, canary):
    keys = [(4000, struct.pack(">H", i)) for i in range(1, 30_000)]
    return _sharing(path, [(0, b"a" * 4000), *keys])


@case("index: too many entries")
def _many_entries(path, canary):
    return _sharing(path, [(0, struct.pack(">I", i)) for i in range(2**16)])


@case("index: one block 20,000 times")
def _one_block(path, canary):
    entries = index_entries(export(path))
    padding = [(b"~%05d" % i, _empty()) for i in range(2_000)]
    (path / INDEX).write_bytes(table_of(block_of([*entries.items(), *padding]), handles=20_000))
    return path


@case("index: an entry within another")
def _hidden(path, canary):
    """Found only by who jumps to it, as TensorFlow does: the block lists where it starts."""
    entries = index_entries(export(path))
    hidden = b"\0" + varint(1) + varint(0) + b"v"
    unknown = _empty() + b"\x7a" + varint(len(hidden))  # a field of no name
    block = block_of([*entries.items(), (b"~", unknown + hidden)])[:-5]
    content = block[:-8] + struct.pack("<III", 0, len(block) - 8 - len(hidden), 2) + b"\0"
    data = content + struct.pack("<I", masked_crc32c(content))
    (path / INDEX).write_bytes(table_of(data))
    return path


@case("index: data with a hole of 4 GiB")
def _hole(path, canary):
    os.truncate(export(path) / DATA, 2**32)
    return path
