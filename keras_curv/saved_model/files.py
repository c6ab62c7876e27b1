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
from keras_curv.files import is_keras_file, open_named
from keras_curv.saved_model import limits
from keras_curv.saved_model.checkpoint import OBJECT_GRAPH, entries_of, string_of, tensor_of

GRAPH = "saved_model.pb"
INDEX = "variables.index"
_DATA = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
_DATA_NAME = "variables.data-{:05d}-of-{:05d}"
_ODD_VERSION = re.compile(r"(?=.*[\s+-])\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_OTHER_FORMATS = ("saved_model.pbtxt", "saved_model.cpb")


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The files of a SavedModel, as far as they are used."""

    path: pathlib.Path  # the directory
    graph: bytes  # content of `saved_model.pb`
    index: bytes | None  # content of `variables/variables.index`; None where there is none
    data: tuple[pathlib.Path, ...]  # the files of variables, in order
    entries: Mapping[str, BundleEntryProto]  # where each tensor lies in them, by its key

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


def resolve_directory(path: pathlib.Path) -> pathlib.Path:
    """Returns the directory with `saved_model.pb`: `path` itself, or its newest numbered version.

    Raises:
        InputError: there is none.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give the directory of a SavedModel, or a .keras file"
        )
    if path.is_file():
        hint = ""
        if is_keras_file(path):
            hint = f"; load it with keras.models.load_model and model.export('{path.stem}')"
        raise InputError(
            f"{path} is a file, not a SavedModel directory{hint or ', nor a .keras or .h5 file'}"
        )
    versions = numbered_versions(path)
    if (path / GRAPH).is_file():
        if versions:
            raise InputError(
                f"{path} has a {GRAPH} beside numbered versions, which a server would take; "
                "give the directory of one of them"
            )
        return path
    if not versions:
        raise InputError(
            f"{path} has no saved_model.pb, nor a numbered version that has one; "
            "make one with model.export(directory)"
        )
    newest = versions[max(versions)]
    for entry in path.iterdir():
        newer = (version_number(entry.name) or 0) > max(versions)
        if newer and any((entry / name).exists() for name in _OTHER_FORMATS):
            raise InputError(
                f"{entry}, which is newer than {newest.name}, is a SavedModel in another format; "
                "only saved_model.pb is read"
            )
    return newest


def numbered_versions(base: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns versions of a model, as TF Serving counts them, that have a `saved_model.pb`.

    Raises:
        InputError: two are the same number, or one is spelled as only some parsers take it.
    """
    found: dict[int, pathlib.Path] = {}
    for entry in sorted(base.iterdir()):
        number = version_number(entry.name)
        if number is None and _ODD_VERSION.fullmatch(entry.name) and entry.is_dir():
            raise InputError(
                f"{base}: a server may take {entry.name!r} for a version; rename or remove it"
            )
        graph = entry / GRAPH
        if number is not None and os.path.lexists(graph) and not graph.is_file():
            raise InputError(f"{graph} is not a file; a server would wait for it, or fail")
        if number is not None and graph.is_file():
            other = found.setdefault(number, entry)
            if other != entry:
                raise InputError(
                    f"{base}: {other.name} and {entry.name} are the same version; remove one"
                )
    return found


def version_number(name: str) -> int | None:
    """Returns which version a directory of this name is; None: it is none."""
    number = int(name) if name.isascii() and name.isdigit() else 2**63
    return number if number < 2**63 else None
