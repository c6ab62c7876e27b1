"""What a `.keras` archive or an `.h5` file consists of: a config, and the weights."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_curv.errors import InputError
from keras_curv.files import open_named, parse_json
from keras_curv.keras_file import hdf5
from keras_curv.saved_model import limits

FILE_BYTES = 7 * 2**26  # of the file and of the weights in it: the largest network's, with Adam's
_CONFIG_BYTES = 2**22
_DIRECTORY_BYTES = 2**12  # of what an archive lists
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_SIZES = {_CONFIG: _CONFIG_BYTES, _METADATA: 2**16, _WEIGHTS: FILE_BYTES}
_PIECE = 2**22


class Stored(NamedTuple):
    """A model as a file has it."""

    config: dict[str, Any]  # of the model, parsed
    weights: hdf5.Group  # where its weights are
    legacy: bool  # whether they lie as in an `.h5` file, by the names of layers
    keras_2: bool  # whether Keras 2 wrote it
    fingerprint: str  # SHA-256 of the file


def read(path: pathlib.Path) -> Stored:
    """Reads a file, and nothing that it points to.

    Raises:
        InputError: it is no such file, is too large, or has what Keras does not write.
        OSError: it cannot be read, or is no regular file.
    """
    with open_named(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        limits.require_at_most(size, FILE_BYTES, f"{path}, in bytes,")
        content = stream.read(size)
    legacy = path.suffix.lower() != ".keras"
    kind = "h5" if legacy else "keras"
    digest = hashlib.sha256(b"%d %s %d " % (len(kind), kind.encode(), len(content)))
    digest.update(content)
    with _corrupt(path):
        if legacy:
            root = hdf5.parse(content)
            config, version = _text(root, "model_config"), _text(root, "keras_version")
            weights = root.members.get("model_weights")
            if config is None or not isinstance(weights, hdf5.Group):
                raise InputError(
                    f"{path} has no model, only weights at most; save it with model.save"
                )
            limits.require_at_most(len(config), _CONFIG_BYTES, f"the config of {path}")
            parsed = parse_json(config.encode())
        else:
            parts = _members(content)
            parsed, metadata = (parse_json(bytes(parts[name])) for name in (_CONFIG, _METADATA))
            version = metadata.get("keras_version") if isinstance(metadata, dict) else None
            weights = hdf5.parse(parts[_WEIGHTS])
        if not isinstance(parsed, dict):
            raise ValueError("its config is no object")
    keras_2 = not (isinstance(version, str) and version.split(".")[0] == "3")
    return Stored(parsed, weights, legacy, keras_2, digest.hexdigest())


@contextlib.contextmanager
def _corrupt(path: pathlib.Path) -> Iterator[None]:
    """Makes whatever a broken file raises an InputError that names it."""
    try:
        yield
    except InputError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise InputError(named) from error
    except MemoryError:
        raise
    except Exception as error:  # zipfile alone raises a dozen kinds
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{path} cannot be read as a model that Keras saved: {reason}; save it again with "
            "model.save"
        ) from error


def _text(group: hdf5.Group, name: str) -> str | None:
    found = group.attributes.get(name)
    return found if isinstance(found, str) else None


def _members(content: bytes) -> dict[str, bytearray]:
    """Returns the contents of an archive's members by name.

    Raises:
        ValueError: there are others, one is missing, twice, packed otherwise than Keras does,
            encrypted, or not as large as is said.
        InputError: one is too large.
        Exception: whatever `zipfile` raises on a broken one.
    """
    end = content[-22:]
    listed = int.from_bytes(end[12:16], "little")
    if end[:4] != b"PK\5\6" or content[-42:-38] == b"PK\6\7" or listed > _DIRECTORY_BYTES:
        raise ValueError("it is no archive, is cut off, or lists far more than a model")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        for name in names:
            if name not in _SIZES:
                raise ValueError(
                    f"it has {name[:80]!r}, and only {', '.join(sorted(_SIZES))} are read"
                )
        if len(names) != len(_SIZES) or {*names} != {*_SIZES}:
            raise ValueError(f"it must have each of {', '.join(sorted(_SIZES))} once")
        return {member.filename: _unpacked(archive, member) for member in members}


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytearray:
    name = member.filename
    if member.flag_bits & 1 or member.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        raise ValueError(f"{name} is encrypted, or not packed as Keras does")
    limits.require_at_most(member.file_size, _SIZES[name], f"{name}, in bytes,")
    found = bytearray()
    try:
        with archive.open(member) as stream:
            while piece := stream.read(_PIECE):
                found += piece
                limits.require_at_most(len(found), _SIZES[name], f"{name}, in bytes,")
    except zlib.error as error:
        raise ValueError(f"{name} is damaged: {error}") from error
    if len(found) != member.file_size:
        raise ValueError(f"{name} has not as many bytes as is said")
    return found
