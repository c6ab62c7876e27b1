"""CRC-32C as TensorFlow writes it into TFRecord files and checkpoints."""

from __future__ import annotations

import google_crc32c

_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli), rotated right by 15 bits, plus a constant.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
