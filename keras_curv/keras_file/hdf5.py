"""HDF5 as Keras writes it, read byte by byte: no library parses what a stranger wrote.

Keras leaves all settings of h5py as they are. So of all that HDF5 can say these files say little:
groups by symbol tables, arrays that lie in one piece, attributes that are numbers or texts. Only
that is read. Whatever else a file has in a place that is looked at is refused: links, arrays in
other files, virtual or packed ones, references, shared messages, an object under two names.

A group is looked into when it is asked for, and an array is read only when it is asked for, which
is bounded by the bytes that the file has.

Reference: The HDF Group, HDF5 File Format Specification 3.0, sections II to IV.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from keras_curv.saved_model import limits

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_UNDEFINED = 2**64 - 1
_ENTRY = struct.Struct("<QQII16s")  # of a symbol table: name, header, kind of cache, -, scratch
_MESSAGE = struct.Struct("<HHBxxx")  # type, size, flags
_OBJECTS = 2**14  # of a file, as far as it is looked at, and of entries of its groups
_MESSAGES = 2**10  # of one object: attributes, for the most part
_DEPTH = 64  # of groups in groups
_NAME = 2**10  # bytes
_NAMES = 2**20  # bytes of the names in one group
_STEPS = 2**18  # to find texts, each of which may be the last of many
_ROOT = 56  # where the entry of the root lies, in a superblock of version 0

# Types of messages.
_SPACE, _TYPE, _LAYOUT, _ATTRIBUTE, _CONTINUATION, _TABLE = 0x01, 0x03, 0x08, 0x0C, 0x10, 0x11
_IDLE = {0x00, 0x04, 0x05, 0x0D, 0x0E, 0x12, 0x16}  # nothing, fill values, comments, times
_REFUSED = {
    0x02: "links, or is a group of a newer kind than Keras writes",
    0x06: "links, or is a group of a newer kind than Keras writes",
    0x07: "an array in other files",
    0x0B: "an array that is packed",
    0x15: "attributes of a newer kind",
}

# What says of a type that it is this one: class and version, bit field, size, properties.
_FLOATS: dict[bytes, np.dtype] = {
    struct.pack("<B3BI2H4BI", 0x11, 0x20, 31, 0, 4, 0, 32, 23, 8, 0, 23, 127): np.dtype("<f4"),
    struct.pack("<B3BI2H4BI", 0x11, 0x20, 63, 0, 8, 0, 64, 52, 11, 0, 52, 1023): np.dtype("<f8"),
}
_INTEGERS: dict[bytes, np.dtype] = {
    struct.pack("<B3BI2H", 0x10, 8 * signed, 0, 0, size, 0, 8 * size): np.dtype(f"<{kind}{size}")
    for kind, signed in (("i", 1), ("u", 0))
    for size in (1, 2, 4, 8)
}


class _Node(NamedTuple):
    """An entry of a group."""

    address: int
    cached: bytes | None


class Array:
    """An array of a file.

    Attributes:
        shape, dtype: as the file has them.
    """

    def __init__(self, content: memoryview, shape: tuple[int, ...], dtype: np.dtype):
        self._content, self.shape, self.dtype = content, shape, dtype

    def values(self) -> np.ndarray:
        """Returns its numbers; the memory is the file's."""
        return np.frombuffer(self._content, self.dtype).reshape(self.shape)


class Group:
    """A group of a file.

    Attributes:
        path: its name from the root, for messages.
    """

    def __init__(self, file: _File, path: str, messages: list[tuple[int, memoryview]]):
        self._file, self.path = file, path
        self._table = next(bytes(body) for kind, body in messages if kind == _TABLE)
        self._bodies = [body for kind, body in messages if kind == _ATTRIBUTE]

    @functools.cached_property
    def attributes(self) -> dict[str, str | list[str] | None]:
        """What is said of the group by name: a text, a list of texts, or None for what is no text.

        Raises:
            ValueError: it is not said as Keras does.
        """
        return self._file.attributes(self._bodies, self.path)

    @functools.cached_property
    def members(self) -> dict[str, Group | Array]:
        """What is in the group, by name.

        Raises:
            ValueError: anything in it is not as Keras writes it.
        """
        tree, heap = _said("<QQ", self._table)
        nodes = self._file.nodes(tree, heap, self.path)
        return {name: self._file.object(node, f"{self.path}/{name}") for name, node in nodes}

    def arrays(self) -> dict[str, Array]:
        """Returns all arrays in it and in its groups, by path from here."""
        found: dict[str, Array] = {}
        for name, member in self.members.items():
            if isinstance(member, Array):
                found[name] = member
            else:
                found |= {f"{name}/{path}": array for path, array in member.arrays().items()}
        return found


def parse(content: bytes | bytearray) -> Group:
    """Returns the root of an HDF5 file.

    Raises:
        ValueError: it is none that Keras writes. So do the methods of what is returned.

    Example:
        >>> import io, h5py
        >>> file = io.BytesIO()
        >>> with h5py.File(file, "w") as made:
        ...     made["dense/kernel"] = np.float32([[1, 2]])
        >>> parse(file.getvalue()).members["dense"].members["kernel"].values()
        array([[1., 2.]], dtype=float32)
    """
    file = _File(content)
    if file.part(0, 8) != _SIGNATURE:
        raise ValueError("it is no HDF5 file")
    versions = file.part(8, 8)
    if bytes(versions) != bytes([0, 0, 0, 0, 0, 8, 8, 0]):
        raise ValueError("it is HDF5 of another version than Keras writes")
    base, _, end, driver = _said("<4Q", file.part(24, 32))
    if base != 0 or driver != _UNDEFINED or end > len(content):
        raise ValueError("it is cut off, or does not begin at its beginning")
    root = file.object(file.node(_ROOT)[1], "")
    if not isinstance(root, Group):
        raise ValueError("its root is no group")
    return root


class _File:
    """The bytes of a file, and what was met in it."""

    def __init__(self, content: bytes | bytearray):
        self._content = memoryview(content)
        self._met: set[int] = set()
        self._held = self._entries = self._steps = 0

    def part(self, start: int, size: int) -> memoryview:
        """Returns a part of the file; ValueError where it has none there."""
        if size < 0 or start + size > len(self._content):
            raise ValueError("it points outside of itself")
        return self._content[start : start + size]

    def _meet(self, address: int) -> None:
        """Refuses what was met before, so that nothing goes in a circle or is counted twice."""
        if address in self._met:
            raise ValueError("a part of it has two names")
        limits.require_at_most(len(self._met), _OBJECTS, "the number of objects")
        self._met.add(address)

    def node(self, place: int) -> tuple[int, _Node]:
        """Returns an entry of a symbol table: where its name is, and what it names."""
        name, header, cache, _, scratch = _ENTRY.unpack(self.part(place, _ENTRY.size))
        if cache == 2:
            raise ValueError("it has a soft link")
        if cache not in (0, 1):
            raise ValueError("it has an entry of an unknown kind")
        return name, _Node(header, scratch if cache else None)

    def nodes(self, tree: int, heap: int, path: str) -> list[tuple[str, _Node]]:
        """Returns the entries of a group by name."""
        version, size, _, start = _said("<4s4xQQQ", self.part(heap, 32))
        limits.require_at_most(size, _NAMES, f"the length of the names in {path}")
        names = bytes(self.part(start, size))
        found: dict[str, _Node] = {}
        if version != b"HEAP":
            raise ValueError(f"the names of {path or 'the root'} are missing")
        for place in self._places(tree, depth=0):
            offset, node = self.node(place)
            end = names.find(b"\0", offset, offset + _NAME)
            if offset >= len(names) or end < 0:
                raise ValueError("it points outside of itself")
            name = names[offset:end].decode("utf-8")
            if not name or "/" in name or name in found:
                raise ValueError(f"{path}/{name[:80]} is no name, or is there twice")
            found[name] = node
        return list(found.items())

    def _places(self, tree: int, depth: int) -> list[int]:
        """Returns where the entries lie that a tree of symbol tables leads to."""
        self._meet(tree)
        kind = bytes(self.part(tree, 4))
        if kind == b"SNOD":
            (count,) = _said("<H", self.part(tree + 6, 2))
            self._count(count)
            return [tree + 8 + _ENTRY.size * i for i in range(count)]
        node, level, count = _said("<BBH", self.part(tree + 4, 4))
        if kind != b"TREE" or node != 0 or depth > 8:
            raise ValueError("the list of a group is none")
        self._count(count)
        children = _said(f"<{2 * count}Q", self.part(tree + 24, 16 * count))[1::2]
        leaf = b"SNOD" if level == 0 else b"TREE"
        if any(bytes(self.part(child, 4)) != leaf for child in children):
            raise ValueError("the list of a group is none")
        return [place for child in children for place in self._places(child, depth + 1)]

    def _count(self, entries: int) -> None:
        """Counts what groups list."""
        self._entries += entries
        limits.require_at_most(self._entries, _OBJECTS, "the number of entries of its groups")

    def _step(self) -> None:
        """Counts what is done for one text, or to find it."""
        self._steps += 1
        limits.require_at_most(self._steps, _STEPS, "the number of its texts")

    def object(self, node: _Node, path: str) -> Group | Array:
        """Returns the group or the array that an entry names."""
        limits.require_at_most(path.count("/"), _DEPTH, "the depth of its groups")
        self._meet(node.address)
        shown = path or "the root"
        messages = self._messages(node.address, shown)
        kinds = [kind for kind, _ in messages]
        if kinds.count(_TABLE) == 1 and not {_SPACE, _TYPE, _LAYOUT} & {*kinds}:
            table = next(bytes(body[:16]) for kind, body in messages if kind == _TABLE)
            if node.cached not in (None, table):
                raise ValueError(f"{shown} is listed as another group")
            return Group(self, path, messages)
        if any(kinds.count(kind) != 1 for kind in (_SPACE, _TYPE, _LAYOUT)) or _TABLE in kinds:
            raise ValueError(f"{path} is no group and no array")
        return self._array(dict(messages), path)

    def _messages(self, address: int, path: str) -> list[tuple[int, memoryview]]:
        """Returns type and body of the messages of an object, but for those that do nothing."""
        version, count, size = _said("<BxHxxxxI", self.part(address, 12))
        if version != 1:
            raise ValueError(f"{path} is an object of a newer kind than Keras writes")
        limits.require_at_most(count, _MESSAGES, f"the number of attributes of {path}")
        blocks, found, left = [self.part(address + 16, size)], [], count
        for block in blocks:
            place = 0
            while left and place + _MESSAGE.size <= len(block):
                kind, length, flags = _said(_MESSAGE.format, block, place)
                body = block[place + _MESSAGE.size :][:length]
                place, left = place + _MESSAGE.size + length, left - 1
                if len(body) < length or (flags & 2 and kind not in _IDLE):
                    raise ValueError(f"{path} is cut off, or has what is shared")
                if kind == _CONTINUATION:
                    blocks.append(self.part(*_said("<QQ", body)))
                elif kind in (_SPACE, _TYPE, _LAYOUT, _ATTRIBUTE, _TABLE):
                    found.append((kind, body))
                elif kind not in _IDLE:
                    what = _REFUSED.get(kind, "something that Keras does not write")
                    raise ValueError(f"{path} has {what}")
        if left:
            raise ValueError(f"{path} is cut off")
        return found

    def _array(self, messages: dict[int, memoryview], path: str) -> Array:
        """Returns an array that lies in one piece."""
        shape = _shape(messages[_SPACE], path)
        dtype = _number(messages[_TYPE])
        if dtype is None:
            raise ValueError(f"{path} holds no float32, float64 or integers")
        layout = messages[_LAYOUT]
        version, place, start, size = _said("<BBQQ", bytes(layout).ljust(18, b"\0"))
        if version != 3 or place != 1:
            kind = {0: "compact", 2: "in chunks"}.get(place, "virtual")
            raise ValueError(f"{path} is an array of another layout ({kind}) than Keras writes")
        expected = math.prod(shape) * dtype.itemsize
        if start == _UNDEFINED or size != expected:
            raise ValueError(f"{path} has no numbers, or not as many as its shape says")
        self._held += expected
        if self._held > len(self._content):
            raise ValueError("its arrays share their numbers")
        return Array(self.part(start, size), shape, dtype)

    def attributes(self, bodies: list[memoryview], path: str) -> dict[str, str | list[str] | None]:
        """Returns the texts among attributes by name; None where an attribute is no text."""
        found: dict[str, str | list[str] | None] = {}
        for body in bodies:
            version, flags, named, typed, spaced = _said("<BBHHH", body)
            if version not in (1, 3) or (flags and version == 3):
                raise ValueError(f"{path} has an attribute of another kind than Keras writes")
            place, parts = 8 if version == 1 else 9, []
            for size in (named, typed, spaced):
                parts.append(body[place : place + size])
                place += -(-size // 8) * 8 if version == 1 else size
            name = bytes(parts[0]).split(b"\0")[0].decode("utf-8")
            if name in found:
                raise ValueError(f"{path} has the attribute {name[:80]!r} twice")
            found[name] = self._texts(parts[1], _shape(parts[2], path), body[place:], path)
        return found

    def _texts(
        self, typed: memoryview, shape: tuple[int, ...], data: memoryview, path: str
    ) -> str | list[str] | None:
        """Returns the texts of an attribute."""
        kind, bits, size = _said("<BBxxI", typed)
        count = math.prod(shape)
        if len(shape) > 1 or kind not in (0x13, 0x19) or (kind == 0x19 and bits & 15 != 1):
            return [] if count == 0 else None
        if size < 1 or size * count > len(data) or (kind == 0x19 and size != 16):
            raise ValueError(f"an attribute of {path} is cut off")
        for _ in range(count):
            self._step()
        cells = [bytes(data[size * i : size * (i + 1)]) for i in range(count)]
        if kind == 0x19:  # of any length: each says where it lies
            cells = [self._from_heap(*_said("<IQI", cell)) for cell in cells]
        texts = [cell.rstrip(b"\0").decode("utf-8") for cell in cells]
        if any("\0" in text for text in texts):
            raise ValueError(f"an attribute of {path} is no text")
        return texts if shape else texts[0]

    def _from_heap(self, length: int, address: int, index: int) -> bytes:
        """Returns an object of a collection, of which a text of any length is one."""
        mark, size = _said("<4s4xQ", self.part(address, 16))
        if mark != b"GCOL":
            raise ValueError("a text is missing")
        place, heap = 16, self.part(address, size)
        while place + 16 <= size:
            self._step()
            number, held = _said("<H6xQ", heap, place)
            if number == index and number:
                if length > held or place + 16 + held > size:
                    break
                return bytes(heap[place + 16 : place + 16 + length])
            if number == 0:
                break
            place += 16 + -(-held // 8) * 8
        raise ValueError("a text is missing")


def _said(form: str, data: bytes | memoryview, offset: int = 0) -> tuple[Any, ...]:
    """Returns the numbers that bytes say; ValueError where there are too few."""
    try:
        return struct.unpack_from(form, data, offset)
    except struct.error as error:
        raise ValueError("it is cut off") from error


def _shape(space: memoryview, path: str) -> tuple[int, ...]:
    """Returns the shape that a message says; of nothing at all, that of no entry."""
    version, rank, flags, kind = _said("<4B", space)
    if version == 2 and kind == 2:
        return (0,)
    if version not in (1, 2) or rank > limits.AXES or (version == 2 and kind > 1) or flags > 1:
        raise ValueError(f"{path} has a shape that cannot be read")
    return _said(f"<{rank}Q", space, 8 if version == 1 else 4)


def _number(typed: memoryview) -> np.dtype | None:
    """Returns the dtype that a message says, of floats and integers as they usually are."""
    for known in (_FLOATS, _INTEGERS):
        for said, dtype in known.items():
            if bytes(typed[: len(said)]) == said:
                return dtype
    return None
