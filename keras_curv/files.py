"""Files that are there whole or not at all, whatever stops the process or fills the disk."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator

from keras_curv.errors import InputError


def part_path(path: str | pathlib.Path) -> pathlib.Path:
    """Where a file lies while it is being written: beside it, hidden, with the same suffix."""
    path = pathlib.Path(path)
    return path.with_name(f".{path.stem}.part{path.suffix}")


@contextlib.contextmanager
def replacing(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields where to write instead of `path`, and puts that in its place at the end.

    So a kill leaves at `path` what was there before, and so does an exception, which also removes
    the part, and the space that it takes, again. A link stays a link. What is no regular file, as
    `/dev/stdout`, is written itself.

    Raises:
        OSError: it cannot be written.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "summary.json"
        >>> with replacing(path) as part:
        ...     _ = part.write_text("{}")
        ...     path.exists()
        False
        >>> path.read_text()
        '{}'
    """
    target = pathlib.Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield pathlib.Path(path)
        return
    part = part_path(target)
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: str | pathlib.Path) -> Iterator[None]:
    """Makes an OSError an InputError that names what cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def write_file(path: str | pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Calls `write` with a path, and puts what it wrote there at `path`.

    Raises:
        InputError: the file cannot be written; what was there is kept.
    """
    with writing(path), replacing(path) as part:
        write(part)


def write_text(path: str | pathlib.Path, text: str) -> None:
    """Writes a text in UTF-8; see `write_file`."""
    write_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: str | pathlib.Path, result: dict) -> None:
    """Writes a summary or settings; see `write_file`."""
    write_text(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
