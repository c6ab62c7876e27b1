"""The files of a SavedModel: what is taken from a directory that anybody may have filled.

Only regular files in it are read, under the names that a server looks for: no pipe, which would be
waited for, and no link to anywhere else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Mapping

import numpy as np
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from keras_curv.errors import InputError
from keras_curv.files import open_named
from keras_curv.saved_model import limits
from keras_curv.saved_model.checkpoint import OBJECT_GRAPH, entries_of, string_of, tensor_of

GRAPH = "saved_model.pb"
INDEX = "variables.index"
_DATA = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
_DATA_NAME = "variables.data-{:05d}-of-{:05d}"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The files of a SavedModel, as far as they are used.

    Attributes:
        path: the directory.
        graph: content of `saved_model.pb`.
        index: content of `variables/variables.index`; None where there is none.
        data: the files of variables, in order.
        entries: where each tensor lies in them, by its key.
    """

    path: pathlib.Path
    graph: bytes
    index: bytes | None
    data: tuple[pathlib.Path, ...]
    entries: Mapping[str, BundleEntryProto]

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
            return cls(path, graph, None, (), {})
        index = _read(variables / INDEX, path, limits.INDEX_BYTES)
        data = tuple(sorted(f for f in variables.iterdir() if _DATA.fullmatch(f.name)))
        sizes = [_require_plain(file, path).st_size for file in data]
        count = len(data)
        if [f.name for f in data] != [_DATA_NAME.format(i, count) for i in range(count)]:
            raise InputError(f"{path}: a server cannot load its variables: a file is missing")
        entries = entries_of(index, sizes, str(path))
        limits.require_at_most(sum(sizes), limits.VARIABLE_BYTES, f"{variables}, in bytes,")
        return cls(path, graph, index, data, entries)

    def tensor(self, key: str) -> np.ndarray:
        """Returns the tensor that the variables have under a key.

        Raises:
            InputError: there is none, or it is damaged.
            OSError: its file cannot be read.
        """
        if key not in self.entries:
            raise InputError(f"{self.path}: a server cannot load its variables: no {key[:80]!r}")
        entry = self.entries[key]
        return tensor_of(entry, self.data[entry.shard_id], str(self.path))

    def object_graph(self) -> bytes | None:
        """Returns the graph of objects in the checkpoint; None where there is no checkpoint.

        Raises:
            InputError: it is damaged, or too large.
            OSError: its file cannot be read.
        """
        if OBJECT_GRAPH not in self.entries:
            return None
        entry = self.entries[OBJECT_GRAPH]
        return string_of(entry, self.data[entry.shard_id], str(self.path))

    def fingerprint(self) -> str:
        """Returns SHA-256 of names and contents, each after its length to keep them apart."""
        index = [] if self.index is None else [(INDEX, self.index)]
        digest = hashlib.sha256()
        for name, content in [(GRAPH, self.graph), *index]:
            digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)) + content)
        for file in self.data:
            with open_named(file) as stream:
                size = os.fstat(stream.fileno()).st_size
                digest.update(b"%d %s %d " % (len(file.name), file.name.encode(), size))
                while piece := stream.read(min(2**24, size)):
                    digest.update(piece)
                    size -= len(piece)
        return digest.hexdigest()


def _read(file: pathlib.Path, directory: pathlib.Path, limit: int) -> bytes:
    _require_plain(file, directory)
    with open_named(file) as stream:
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
