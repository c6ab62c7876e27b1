"""The files of a SavedModel: what is taken from a directory that anybody may have filled.

TensorFlow looks for several files of a SavedModel, and follows what it finds: a pipe for ever, a
link to anywhere. So what was read and screened is laid out in a folder of our own, with nothing
beside it, and that is what TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Iterator

from keras_curv.errors import InputError
from keras_curv.reading import limits
from keras_curv.reading.checkpoint import require_sound_checkpoint

GRAPH = "saved_model.pb"
INDEX = "variables.index"
_DATA = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a SavedModel consists of, as far as it is used.

    Attributes:
        path: the directory.
        graph: content of `saved_model.pb`.
        index: content of `variables/variables.index`; None where there is none.
        data: the files of variables, in order.
    """

    path: pathlib.Path
    graph: bytes
    index: bytes | None
    data: tuple[pathlib.Path, ...]

    @classmethod
    def read(cls, path: pathlib.Path) -> ModelFiles:
        """Reads a directory with `saved_model.pb`.

        Links may lead to regular files in the same directory, as deployments have them.

        Raises:
            InputError: a file is none, is too large, or lies elsewhere; the index is corrupt.
            OSError: a file cannot be read.
        """
        graph = _read(path / GRAPH, path, limits.GRAPH_BYTES)
        variables = path / "variables"
        if not (variables / INDEX).exists():
            return cls(path, graph, None, ())
        index = _read(variables / INDEX, path, limits.INDEX_BYTES)
        data = tuple(sorted(f for f in variables.iterdir() if _DATA.fullmatch(f.name)))
        sizes = [_require_plain(file, path).st_size for file in data]
        limits.require_at_most(sum(sizes), limits.VARIABLE_BYTES, f"{variables}, in bytes,")
        require_sound_checkpoint(index, data, str(path))
        return cls(path, graph, index, data)

    def fingerprint(self) -> str:
        """SHA-256 of names and contents."""
        digest = hashlib.sha256(GRAPH.encode() + self.graph)
        for file in self.data:
            digest.update(file.name.encode())
            with open(file, "rb") as stream:
                while piece := stream.read(2**24):
                    digest.update(piece)
        digest.update(b"" if self.index is None else INDEX.encode() + self.index)
        return digest.hexdigest()

    @contextlib.contextmanager
    def alone(self) -> Iterator[str]:
        """A directory with these files and no others, while the context lasts."""
        with tempfile.TemporaryDirectory(prefix="keras_curv_") as name:
            folder = pathlib.Path(name)
            (folder / GRAPH).write_bytes(self.graph)
            if self.index is not None:
                (folder / "variables").mkdir()
                (folder / "variables" / INDEX).write_bytes(self.index)
                for file in self.data:
                    (folder / "variables" / file.name).symlink_to(file.resolve())
            yield name


def _read(file: pathlib.Path, directory: pathlib.Path, limit: int) -> bytes:
    _require_plain(file, directory)
    # Without waiting, should it have become a pipe since.
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        content = stream.read(limit + 1)
    limits.require_at_most(len(content), limit, f"{file}, in bytes,")
    return content


def _require_plain(file: pathlib.Path, directory: pathlib.Path) -> os.stat_result:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{file} is not a regular file; a SavedModel consists of these alone")
    if not file.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{file} is a link out of {directory}; copy what it leads to")
    return status
