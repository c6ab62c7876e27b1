"""Files that are there whole or not at all, whatever stops the process or fills the disk.

Nor is anything read or written elsewhere than where its name says: in a folder that somebody else
has filled, a link may lead anywhere, and a pipe never end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import stat
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from keras_curv.errors import InputError

_HERE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # of a pipe, too, nobody waits for the end

_MOST_FILES = 10_000  # of a folder that is gone on with


def part_path(path: str | pathlib.Path) -> pathlib.Path:
    """Returns the path of a file that is being written: beside it, hidden, with its suffix."""
    path = pathlib.Path(path)
    return path.with_name(f".{path.stem}.part{path.suffix}")


def require_replaceable(path: str | pathlib.Path) -> None:
    """Refuses a place where a link, a pipe or a directory lies, but not a device as `/dev/stdout`.

    Raises:
        InputError: one does, or nobody can tell.
    """
    path = pathlib.Path(path)
    with writing(path), contextlib.suppress(FileNotFoundError):
        kind = path.lstat().st_mode
        if stat.S_ISREG(kind) or path.is_char_device():
            return
        if stat.S_ISLNK(kind):
            raise InputError(f"cannot write {path}: it is a link; name the file that it leads to")
        raise InputError(f"cannot write {path}: what is there is not a regular file")


def open_at_once(path: str | pathlib.Path) -> BinaryIO:
    """Opens a file to read it, without waiting, should it have become a pipe since it was seen."""
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def open_regular(path: str | pathlib.Path, *, write: bool = False) -> BinaryIO:
    """Opens a regular file that is there, to read or to change it.

    Raises:
        OSError: it is not there, is a link, a pipe or a device, or cannot be opened.
    """
    try:
        number = os.open(path, _HERE | (os.O_RDWR if write else os.O_RDONLY))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(number, "r+b" if write else "rb")


def read_at_most(path: str | pathlib.Path, limit: int) -> bytes:
    """Reads a regular file of at most so many bytes.

    Raises:
        OSError: it is larger, or see `open_regular`.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return content


def require_plain_folder(folder: str | pathlib.Path) -> None:
    """Refuses a folder that holds anything but files and folders, at any depth, or very many.

    Raises:
        InputError: it holds a link, a pipe or a device.
        OSError: it cannot be read.
    """
    count = 0
    for place, folders, names in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in (*folders, *names)):
            kind, count = path.lstat().st_mode, count + 1
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise InputError(f"{path} is a link, a pipe or a device; remove it")
            if count > _MOST_FILES:
                raise InputError(f"{folder} holds more than {_MOST_FILES} files")


@contextlib.contextmanager
def replacing(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields where to write instead of `path`, and puts that in its place at the end.

    So a kill leaves at `path` what was there before, and so does an exception, which also removes
    the part, and the space that it takes, again. A device, as `/dev/stdout` in a terminal, is
    written itself.

    Raises:
        InputError: a link or a pipe is there.
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
    path = pathlib.Path(path)
    if path.is_char_device():
        yield path
        return
    require_replaceable(path)
    part = part_path(path)
    part.unlink(missing_ok=True)
    part.touch(exist_ok=False)  # nobody's link
    try:
        yield part
        os.replace(part, path)
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
    """Writes a text in UTF-8, with what is none made visible; see `write_file`."""
    content = text.encode("utf-8", "backslashreplace")
    write_file(path, lambda part: part.write_bytes(content))


def write_json(path: str | pathlib.Path, result: dict) -> None:
    """Writes a summary or settings; see `write_file`."""
    write_text(path, json.dumps(result, indent=2, allow_nan=False) + "\n")


def discard_stdout() -> None:
    """Lets all that is written to stdout from now on go nowhere, as nobody reads it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
