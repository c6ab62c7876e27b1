"""A reader of files of requests, TFRecord or JSON lines, plain or gzip, in bounded memory.

A record of a TFRecord file is `length (8 bytes), check of the length (4), data, check of the data
(4)`, little-endian; a check is the CRC-32C of the bytes, rotated and shifted by a constant.
TensorFlow's own reader takes whatever memory a length asks for; this one has a limit.
"""

from __future__ import annotations

import os
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from keras_curv.data.json_lines import begins_json, read_lines
from keras_curv.errors import InputError
from keras_curv.files import open_named
from keras_curv.saved_model.crc32c import masked_crc32c

UNPACKED = 2**28  # bytes that a packed file may always unpack to
_DENSEST = 100  # and so many times its own size
_MEMBERS = 2**16  # packed parts of one file
_PIECE = 2**16  # bytes
MAX_RECORD = 32 * 2**20  # bytes; parsed, a hostile one takes up to 30 times as much
_GZIP = b"\x1f\x8b"


def read_records(path: str, max_unpacked: int | None = None) -> Iterator[bytes | None]:
    """Yields the records of a file, in order; None for one above `MAX_RECORD`.

    Those of a file that begins as a JSON object are its lines.

    Args:
        path: a regular file; gzip is recognised by its first bytes.
        max_unpacked: bytes that a gzip file may unpack to; None: `UNPACKED`, or a hundred times its
            own size if that is more.

    Raises:
        InputError: a record is cut off or has a wrong check, or the file unpacks to too much; the
            message names the file and the record (from 0), after the records before it have come
            out.
    """
    number = 0
    try:
        if not pathlib.Path(path).is_file():
            raise InputError(f"{path} is not a file; give files of requests")
        with open_named(path) as raw:
            file = _plain(raw, max_unpacked)
            for record in _records(file):
                yield record
                number += 1
    except _Broken as error:
        raise InputError(f"{path}: record {number} {error}; the rest is not read") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: record {number} cannot be read: {reason}") from error


class _Broken(Exception):
    """A broken record; the message says what is wrong with it."""


class _Unpacked:
    """The unpacked bytes of a gzip file, up to a limit.

    Python's own reader takes a header a byte at a time, and empty parts without end.

    Args:
        raw: the file.
        limit: bytes that may be read.
    """

    def __init__(self, raw: BinaryIO, limit: int):
        self._raw = raw
        self._limit = self._left = limit
        self._packed = b""
        self._part: Any = None
        self._parts = 0

    def read(self, size: int) -> bytes:
        """Reads so many bytes; fewer only at the end."""
        content = bytearray()
        while len(content) < size:
            piece = self._piece(size - len(content))
            if not piece:
                break
            content += piece
        self._left -= len(content)
        if self._left < 0:
            raise _Broken(f"lies beyond the {self._limit} bytes that the file may unpack to")
        return bytes(content)

    def _piece(self, most: int) -> bytes:
        """Returns some of the bytes that follow; none at the end."""
        while True:
            packed = self._packed or self._raw.read(_PIECE)
            if self._part is None:
                if not packed:
                    return b""
                self._packed = packed = packed.lstrip(b"\0")  # which may lie between parts
                if not packed:
                    continue
                self._part, self._parts = zlib.decompressobj(wbits=31), self._parts + 1
                if self._parts > _MEMBERS:
                    raise _Broken(f"lies behind {_MEMBERS} packed parts")
            piece = self._part.decompress(packed, most)
            self._packed = self._part.unconsumed_tail
            if self._part.eof:
                self._packed, self._part = self._part.unused_data, None
            elif not packed and not piece:
                raise _Broken("is cut off")
            if piece:
                return piece


def _plain(raw: BinaryIO, max_unpacked: int | None) -> BinaryIO | _Unpacked:
    """Returns the file as it is, or unpacked."""
    head = raw.read(12)
    raw.seek(0)
    # The length of a plain first record may begin like gzip; its check tells.
    if not head.startswith(_GZIP) or _length_holds(head):
        return raw
    size = os.fstat(raw.fileno()).st_size
    return _Unpacked(raw, max_unpacked or max(UNPACKED, _DENSEST * size))


def _length_holds(head: bytes) -> bool:
    """Returns whether the first 12 bytes of a record, its length and the check, agree."""
    return len(head) == 12 and masked_crc32c(head[:8]) == struct.unpack("<I", head[8:])[0]


def _records(file: BinaryIO | _Unpacked) -> Iterator[bytes | None]:
    head = file.read(12)
    if begins_json(head) and not _length_holds(head):
        yield from read_lines(head, file)
        return
    while head:
        yield _read_record(file, head)
        head = file.read(12)


def _read_record(file: BinaryIO | _Unpacked, head: bytes) -> bytes | None:
    if len(head) < 12:
        raise _Broken("is cut off")
    if not _length_holds(head):
        raise _Broken(
            "is corrupt: the check of its length is wrong, or this is neither a TFRecord file "
            "nor one of JSON lines"
        )
    (length,) = struct.unpack("<Q", head[:8])
    if length > MAX_RECORD:
        _skip(file, length + 4)
        return None
    data, check = file.read(length), file.read(4)
    if len(data) < length or len(check) < 4:
        raise _Broken("is cut off")
    if masked_crc32c(data) != struct.unpack("<I", check)[0]:
        raise _Broken("is corrupt: the check of its data is wrong")
    return data


def _skip(file: BinaryIO | _Unpacked, length: int) -> None:
    if not isinstance(file, _Unpacked):  # of holes there may be any number
        if file.tell() + length > os.fstat(file.fileno()).st_size:
            raise _Broken("is cut off")
        file.seek(length, os.SEEK_CUR)
        return
    while length:
        piece = file.read(min(length, MAX_RECORD))
        if not piece:
            raise _Broken("is cut off")
        length -= len(piece)
