"""TFRecord files, plain or gzip, read as data in bounded memory.

A record is `length (8 bytes), check of the length (4), data, check of the data (4)`, little-endian;
a check is the CRC-32C of the bytes, rotated and shifted by a constant. TensorFlow's own reader
takes whatever memory a length asks for; this one has a limit.
"""

from __future__ import annotations

import functools
import gzip
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from keras_curv.errors import InputError

MAX_RECORD = 32 * 2**20  # bytes; parsed, a hostile one takes up to 30 times as much
_GZIP = b"\x1f\x8b"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF
_PIECE = 2**18  # bytes whose remainders are in memory at a time
_GROUP = 64
_SHORT = 64  # bytes, below which arrays do not pay


def read_records(path: str) -> Iterator[bytes | None]:
    """The records of a TFRecord file, in order; None for one above `MAX_RECORD`.

    Args:
        path: a regular file; gzip is recognised by its first bytes.

    Raises:
        InputError: names the file and the record (from 0) that is cut off or has a wrong check;
            the records before it have come out.
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
    """What is wrong with a record."""


def _plain(raw: BinaryIO) -> BinaryIO:
    head = raw.read(12)
    raw.seek(0)
    # The length of a plain first record may begin like gzip; its check tells.
    return gzip.open(raw) if head.startswith(_GZIP) and not _length_holds(head) else raw


def _length_holds(head: bytes) -> bool:
    return len(head) == 12 and masked_crc32c(head[:8]) == struct.unpack("<I", head[8:])[0]


def _read_record(file: BinaryIO, head: bytes) -> bytes | None:
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


def _skip(file: BinaryIO, length: int) -> None:
    while length:
        piece = file.read(min(length, MAX_RECORD))
        if not piece:
            raise _Broken("is cut off")
        length -= len(piece)


def masked_crc32c(data: bytes) -> int:
    """The check of a TFRecord: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ONES


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli).

    The remainder of a string is the XOR of those of its bytes, each followed by as many zeros as
    bytes come after it: a look-up by place and byte. So 64 bytes at a time become one remainder of
    four bytes, then 64 of these become one, and so on. Zeros in front change nothing.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    state = _ONES
    for start in range(0, len(data), _PIECE):
        state = _advance(state, data[start : start + _PIECE])
    return state ^ _ONES


def _advance(state: int, data: bytes) -> int:
    if len(data) < _SHORT:
        for byte in data:
            state = int(_BYTES[(state ^ byte) & 255]) ^ (state >> 8)
        return state
    values = np.frombuffer(data, np.uint8).copy()
    values[:4] ^= np.frombuffer(struct.pack("<I", state), np.uint8)
    remainders, level = _fold(values[:, None], _tables(0)), 1
    while len(remainders) > 1:
        remainders = _fold(remainders.view(np.uint8).reshape(-1, 4), _tables(level))
        level += 1
    return int(remainders[0])


def _fold(parts: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """The remainders of `_GROUP` parts each, `(n, bytes)` to `(n / _GROUP,)`."""
    count, size = parts.shape
    groups = np.zeros((-(-count // _GROUP) * _GROUP, size), np.uint8)
    groups[len(groups) - count :] = parts
    columns = np.arange(_GROUP * size)
    return np.bitwise_xor.reduce(tables[columns, groups.reshape(-1, _GROUP * size)], axis=1)


@functools.cache
def _tables(level: int) -> np.ndarray:
    """Remainder of each value of each byte at each place of a group, `(_GROUP * bytes, 256)`."""
    last = _BYTES[None] if level == 0 else _STATES
    places = [last]
    for _ in range(_GROUP - 1):
        places.insert(0, _shift(places[0], level))
    return np.concatenate(places)


def _shift(states: np.ndarray, level: int) -> np.ndarray:
    """What becomes of the states after a zero byte, or after `_GROUP ** level` of them."""
    if level == 0:
        return _BYTES[states & 255] ^ (states >> 8)
    after = _shifted_states(level)
    return np.bitwise_xor.reduce([after[k][states >> 8 * k & 255] for k in range(4)])


@functools.cache
def _shifted_states(level: int) -> np.ndarray:
    states = _STATES
    for _ in range(_GROUP):
        states = _shift(states, level - 1)
    return states


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_BYTES = _byte_table()  # remainder of each byte alone
_STATES = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
