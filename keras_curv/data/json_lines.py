"""A reader of files of JSON lines, in bounded memory."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Protocol

MAX_LINE = 8 * 2**20  # bytes; parsed, a hostile one takes up to 60 times as much
_MAX_SKIPPED = 2**28  # bytes of one line
_PIECE = 2**16  # bytes
_BEGINNING = re.compile(rb'\s*\{\s*(?:["}]|$)')


class Line(bytes):
    """A line of text."""


class Readable(Protocol):
    """A file that is read by so many bytes at a time."""

    def read(self, size: int, /) -> bytes:
        """Reads so many bytes; fewer only at the end."""
        ...


def begins_json(head: bytes) -> bool:
    """Returns whether a file that begins with these bytes is one of JSON objects.

    Example:
        >>> begins_json(b'{"instances"'), begins_json(b"GET / HTTP/1")
        (True, False)
    """
    return _BEGINNING.match(head) is not None


def read_lines(head: bytes, file: Readable) -> Iterator[Line | None]:
    """Yields the lines of a file, without their ends; None for one above `MAX_LINE`.

    Args:
        head: what was read of the file before.
        file: the rest.

    Raises:
        OSError: a line is longer than anyone can mean, such as a hole.
    """
    line, skipped, piece = bytearray(), 0, head
    while piece:
        for i, part in enumerate(piece.split(b"\n")):
            if i:
                yield None if skipped else Line(line)
                line, skipped = bytearray(), 0
            if skipped or len(line) + len(part) > MAX_LINE:
                line, skipped = bytearray(), skipped + len(line) + len(part)
            else:
                line += part
        if skipped > _MAX_SKIPPED:
            raise OSError(errno.EFBIG, f"its line has more than {_MAX_SKIPPED} bytes")
        piece = file.read(_PIECE)
    if line or skipped:
        yield None if skipped else Line(line)
