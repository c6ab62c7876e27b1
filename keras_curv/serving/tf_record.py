"""A reader of TFRecord files, plain or gzip, in bounded memory.

A record is `length (8 bytes), check of the length (4), data, check of the data (4)`, little-endian;
a check is the CRC-32C of the bytes, rotated and shifted by a constant. TensorFlow's own reader
takes whatever memory a length asks for; this one has a limit.
"""

from __future__ import annotations

import gzip
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from keras_curv.errors import InputError
from keras_curv.reading.crc32c import masked_crc32c

MAX_RECORD = 32 * 2**20  # bytes; parsed, a hostile one takes up to 30 times as much
_GZIP = b"\x1f\x8b"


def read_records(path: str) -> Iterator[bytes | None]:
    """Yields the records of a TFRecord file, in order; None for one above `MAX_RECORD`.

    Args:
        path: a regular file; gzip is recognised by its first bytes.

    Raises:
        InputError: a record is cut off or has a wrong check; the message names the file and the
            record (from 0), after the records before it have come out.
    """
    number = 0
    try:
        if not pathlib.Path(path).is_file():
            raise InputError(f"{path} is not a file; give TFRecord files of requests")
        with open(path, "rb") as raw, _plain(raw) as file:
            while head := file.read(12):
                yield _read_record(file, head)
                number += 1
    except _Broken as error:
        raise InputError(f"{path}: record {number} {error}; the rest is not read") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: record {number} cannot be read: {reason}") from error


class _Broken(Exception):
    """A broken record; the message says what is wrong with it."""


def _plain(raw: BinaryIO) -> BinaryIO | gzip.GzipFile:
    """Returns the file as it is, or decompressed."""
    head = raw.read(12)
    raw.seek(0)
    # The length of a plain first record may begin like gzip; its check tells.
    return gzip.open(raw) if head.startswith(_GZIP) and not _length_holds(head) else raw


def _length_holds(head: bytes) -> bool:
    """Whether the first 12 bytes of a record, its length and the check, fit each other."""
    return len(head) == 12 and masked_crc32c(head[:8]) == struct.unpack("<I", head[8:])[0]


def _read_record(file: BinaryIO | gzip.GzipFile, head: bytes) -> bytes | None:
    if len(head) < 12:
        raise _Broken("is cut off")
    if not _length_holds(head):
        raise _Broken("is corrupt: the check of its length is wrong, or this is no TFRecord file")
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


def _skip(file: BinaryIO | gzip.GzipFile, length: int) -> None:
    while length:
        piece = file.read(min(length, MAX_RECORD))
        if not piece:
            raise _Broken("is cut off")
        length -= len(piece)
