"""Messages of protobuf in which nothing is said twice.

A field that a message has twice, or a key that a table has twice, is merged or taken once, and not
by every reader in the same way. A writer writes each once: so what is said twice is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from keras_curv.errors import InputError
from keras_curv.saved_model import limits

_FIXED = {1: 8, 5: 4}  # bytes of the wire types that have no length


def require_said_once(content: bytes, kind: Descriptor, *, everywhere: bool = False) -> None:
    """Refuses a message that says something twice, in any part that has tables.

    Args:
        content: that has been parsed as such a message.
        kind: of the message.
        everywhere: looks at all other parts, too.

    Raises:
        InputError: it does, or has too many parts.
    """
    fields = 0
    waiting = [(memoryview(content), kind)]
    while waiting:
        part, kind = waiting.pop()
        known, seen = _known(kind, everywhere), set()
        for number, value in _fields(part):
            fields += 1
            if fields > limits.FIELDS:
                limits.require_at_most(fields, limits.FIELDS, "the message, in fields,")
            if number not in known:
                continue  # of a newer TensorFlow
            field, said, is_table, inner = known[number]
            if isinstance(value, memoryview):  # else it is of another type, which no reader takes
                if inner is not None:
                    waiting.append((value, inner))
                if is_table:
                    said = number, _key(value, field)
            if said is None:
                continue
            if said in seen:
                raise InputError(f"it says {field.full_name} twice, of which a server may take one")
            seen.add(said)


@functools.cache
def _known(
    kind: Descriptor, everywhere: bool
) -> dict[int, tuple[FieldDescriptor, Any, bool, Descriptor | None]]:
    """Returns the fields of a message by number.

    With each one: what must not be said twice, its number or the name of the choice that it is one
    of (None: it may be repeated); whether it is a table; and its kind, if that is looked at.
    """
    known = {}
    for number, field in kind.fields_by_number.items():
        choice, inner = field.containing_oneof, field.message_type
        said: int | str | None = number if choice is None else choice.name
        tables = inner is not None and (everywhere or _has_tables(inner))
        said = None if field.is_repeated else said
        known[number] = field, said, _is_table(field), inner if tables else None
    return known


def _is_table(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@functools.cache
def _has_tables(kind: Descriptor) -> bool:
    """Returns whether any part of such a message can be a table."""
    seen, waiting = {kind.full_name}, [kind]
    while waiting:
        for field in waiting.pop().fields:
            if _is_table(field):
                return True
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                waiting.append(inner)
    return False


def _key(entry: memoryview, field: FieldDescriptor) -> bytes | int:
    """Returns the key of an entry of a table; "" or 0 where it has none, as a reader does."""
    text = field.message_type.fields_by_number[1].cpp_type == _STRING
    found = (value for number, value in _fields(entry) if number == 1)
    keys = [value for value in found if isinstance(value, memoryview) == text]
    if len(keys) > 1:
        raise InputError(f"it says a key of {field.full_name} twice")
    if not keys:
        return b"" if text else 0
    return keys[0] if isinstance(keys[0], int) else bytes(keys[0])


_STRING = FieldDescriptor.CPPTYPE_STRING


def _fields(part: memoryview) -> Iterator[tuple[int, Any]]:
    """Yields number and content of each field of a message."""
    place, end = 0, len(part)
    while place < end:
        tag, place = varint(part, place)
        wire = tag & 7
        if wire in _FIXED:
            size = _FIXED[wire]
            number = int.from_bytes(part[place : place + size], "little")
        elif wire in (0, 2):
            number, place = varint(part, place)
            size = number if wire == 2 else 0
        else:
            raise InputError("it has a group, which no writer makes")
        yield tag >> 3, part[place : place + size] if wire == 2 else number
        place += size


def varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Returns the number that begins at a place, of seven bits a byte, and the place behind it.

    Raises:
        ValueError: it is cut off, or has more than 64 bits.
    """
    if place < len(data) and data[place] < 128:
        return data[place], place + 1  # as most are
    number = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[place]
        number |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return number, place
    raise ValueError("a number has too many digits")
