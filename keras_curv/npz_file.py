"""The arrays of an .npz file: what their headers say, and their rows one after the other.

The headers are looked at first: a few bytes can stand for any number of examples, and none is read
that nobody asked for.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from keras_curv.errors import InputError, labels_from
from keras_curv.files import named_descriptor

_PIECE = 2**22  # bytes that are read at once
_DIRECTORY = 2**24  # bytes of the list of arrays, at most
_MOST_ARRAYS = 2**10
_HEADER = 10_000  # bytes of what describes an array; NumPy has the same limit
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes them
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class StoredArray(NamedTuple):
    """An array in an archive."""

    name: str  # of the array
    dtype: np.dtype  # dtype, shape: as its header has them
    shape: tuple[int, ...]
    fortran: bool  # whether the first index runs fastest
    header: int  # bytes of the header
    packed: int  # bytes that the array takes in the file

    @property
    def row(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Bytes of all."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile(zipfile.ZipFile):
    """An .npz file that is read without trusting it.

    Args:
        path: of a regular file.

    Raises:
        ValueError: two arrays have the same name, or there are very many.
        Exception: whatever `zipfile` raises on a broken one.
    """

    fp = None  # of a file that could not be opened, which `ZipFile` closes all the same

    def __init__(self, path: str):
        self._stream = _Bounded(path, opener=named_descriptor)
        try:
            super().__init__(self._stream)
            self._require_distinct()
        except BaseException:
            self._stream.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        super().close()
        if hasattr(self, "_stream"):
            self._stream.close()

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return [name.removesuffix(".npy") for name in self.namelist()]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._stream.fileno()).st_size

    def _require_distinct(self) -> None:
        names = self.names
        if len(names) > _MOST_ARRAYS:
            raise ValueError(f"it has {len(names)} arrays, and {_MOST_ARRAYS} are the most")
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"{min(twice)[:80]!r} is in it twice")

    def described(self, name: str, kinds: str = "fiu") -> StoredArray | None:
        """Returns what the header of an array says; None where there is no such array.

        Args:
            name: of the array.
            kinds: of dtypes that it may have, as NumPy abbreviates them; no objects.

        Raises:
            InputError: the array is of another kind.
            ValueError: it is not as long as it says.
        """
        if f"{name}.npy" not in self.namelist():
            return None
        info = self.getinfo(f"{name}.npy")
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise ValueError(f"{name} is encrypted, or not packed as np.savez_compressed does")
        with self.open(info) as stream:
            start = io.BytesIO(stream.read(_HEADER))
        version = np.lib.format.read_magic(start)
        if version not in _READERS:
            raise ValueError(f"{name} is of version {version}; only 1.0 and 2.0 hold numbers")
        shape, fortran, dtype = _READERS[version](start, max_header_size=_HEADER)
        if dtype.kind not in kinds:
            known = f"; {name}.astype('float32') does" if dtype.kind == "b" else ""
            instead = labels_from(dtype.kind) if name == "y" else known
            received = f"{name} must hold numbers{instead}. Received: {dtype}"
            raise InputError(f"{self._stream.name}: {received}")
        if not all(n >= 0 for n in shape):
            raise ValueError(f"{name} has the shape {shape}")
        array = StoredArray(name, dtype, shape, fortran, start.tell(), info.compress_size)
        if info.file_size != array.header + array.size:
            bytes_held = f"{name} has {info.file_size} bytes"
            raise ValueError(f"{bytes_held}, which do not fit its shape {shape}")
        return array

    def whole(self, array: StoredArray) -> np.ndarray:
        """Reads an array."""
        with self._from(array, 0) as stream:
            flat = np.frombuffer(_exactly(stream, array.size, array.name), array.dtype)
        return flat.reshape(array.shape, order="F" if array.fortran else "C")

    def rows(self, array: StoredArray, size: int, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yields rows `start` to `stop` of an array, so many at a time."""
        with self._from(array, start * array.row) as stream:
            for begin in range(start, stop, size):
                shape = min(size, stop - begin), *array.shape[1:]
                content = _exactly(stream, shape[0] * array.row, array.name)
                yield np.frombuffer(content, array.dtype).reshape(shape)

    def _from(self, array: StoredArray, offset: int) -> IO[bytes]:
        stream = self.open(f"{array.name}.npy")
        stream.seek(array.header + offset)
        return stream


class _Bounded(io.FileIO):
    """A file that is read in pieces: a list of a GiB of arrays is none that anybody has written."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads a piece."""
        if size is not None and size > _DIRECTORY:
            raise ValueError(f"its list of arrays has {size} bytes")
        return super().read(_DIRECTORY if size is None or size < 0 else size) or b""


def _exactly(stream: IO[bytes], size: int, name: str) -> bytearray:
    content = bytearray()
    while len(content) < size:
        piece = stream.read(min(_PIECE, size - len(content)))
        if not piece:
            raise ValueError(f"{name} is cut off")
        content += piece
    return content
