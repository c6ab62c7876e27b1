"""CRC-32C, the check of TFRecord files and of checkpoints, over bytes as NumPy arrays."""

from __future__ import annotations

import functools
import struct

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF
_PIECE = 2**18  # bytes whose remainders are in memory at a time
_GROUP = 64
_SHORT = 64  # bytes, below which arrays do not pay


def masked_crc32c(data: bytes) -> int:
    """As TensorFlow writes it down: CRC-32C, rotated right by 15 bits, plus a constant."""
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
