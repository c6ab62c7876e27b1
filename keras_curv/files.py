"""Files that are there whole or not at all, whatever stops the process or fills the disk.

Whatever is read is a regular file: a pipe is not waited for, and a device, which may never end, is
not begun. There are two kinds of names. One that a user gave may be a link, as `open_named` takes
it. One that was found in a folder, which somebody else may have filled, must not lead elsewhere, as
`open_regular` sees to it.

A file is opened once, a new one as one that was not there before, and all that is written goes
through that descriptor: whatever takes the name's place in the meantime is not touched.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import pathlib
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from keras_curv.errors import InputError

_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # nobody waits for the end of a pipe

_KERAS_FILES = (".keras", ".h5", ".hdf5")  # how files that Keras saves a model to end
_MOST_FILES = 10_000  # of a folder that is gone on with


def part_path(path: str | pathlib.Path) -> pathlib.Path:
    """Returns the path of a file that is being written: beside it, hidden, with its suffix."""
    path = pathlib.Path(path)
    return path.with_name(f".{path.stem}.part{path.suffix}")


def is_keras_file(path: str | os.PathLike) -> bool:
    """Returns whether a path names a file that Keras saves a model to, by its ending.

    Example:
        >>> is_keras_file("digits.keras"), is_keras_file("saved_models/digits")
        (True, False)
    """
    return pathlib.Path(path).suffix.lower() in _KERAS_FILES and not os.path.isdir(path)


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


def open_named(path: str | pathlib.Path) -> BinaryIO:
    """Opens a regular file, or the one that a link leads to, to read it.

    Raises:
        OSError: it is not there, is a pipe, a device or a directory, or cannot be opened.
    """
    return open(named_descriptor(path), "rb")


def named_descriptor(path: str | pathlib.Path, flags: int = os.O_RDONLY) -> int:
    """Opens as `open_named` does; what the `opener` of Python's own files takes and returns."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a device may do something by itself
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return _regular(path, flags | _AT_ONCE)


def open_regular(path: str | pathlib.Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Opens a regular file, and no link, to read or to change it.

    Args:
        path: of a file that is there, unless `flags` have `os.O_CREAT`.
        flags: of `os.open`.

    Raises:
        OSError: it is not there, is a link, a pipe or a device, or cannot be opened.
    """
    number = _regular(path, flags | os.O_NOFOLLOW | _AT_ONCE)
    return open(number, "r+b" if flags & os.O_RDWR else "rb")


def _regular(path: str | pathlib.Path, flags: int) -> int:
    try:
        number = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return number


def open_new(path: str | pathlib.Path, mode: int = 0o666) -> BinaryIO:
    """Opens a file to write it, under a name that nothing has, not even a link to nowhere.

    Raises:
        OSError: something has that name, or it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _AT_ONCE
    return open(os.open(path, flags, mode), "wb")


def read_named(path: str | pathlib.Path, limit: int) -> bytes:
    """Reads a file of at most so many bytes that a user named.

    Raises:
        OSError: it is larger, or see `open_named`.
    """
    with open_named(path) as file:
        return _at_most(file, limit, path)


def read_at_most(path: str | pathlib.Path, limit: int) -> bytes:
    """Reads a file of at most so many bytes that was found in a folder.

    Raises:
        OSError: it is larger, or see `open_regular`.
    """
    with open_regular(path) as file:
        return _at_most(file, limit, path)


def _at_most(file: BinaryIO, limit: int, path: str | pathlib.Path) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return content


def parse_json(content: bytes) -> Any:
    """Parses JSON that means one thing: no name twice, and no number that float64 cannot hold.

    Raises:
        ValueError: it is no such JSON in UTF-8, or nests too deeply.

    Example:
        >>> parse_json(b'{"low": [0, null]}')
        {'low': [0, None]}
        >>> parse_json(b'{"low": 0, "low": 1}')
        Traceback (most recent call last):
            ...
        ValueError: 'low' is named twice
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=named_once,
            parse_int=lambda text: int(_held(text)),
            parse_float=lambda text: float(_held(text)),
            parse_constant=_held,
        )
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; ValueError where it has a name twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} is named twice")
        found[name] = value
    return found


def _held(text: str) -> str:
    """The text of a number; ValueError where float64 does not hold it."""
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:40]} is no number that float64 holds")
    return text


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
def replacing(path: str | pathlib.Path) -> Iterator[BinaryIO]:
    """Yields a file to write instead of `path`, and puts it in its place at the end.

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
        ...     _ = part.write(b"{}")
        ...     path.exists()
        False
        >>> path.read_text()
        '{}'
    """
    path = pathlib.Path(path)
    if path.is_char_device():
        with _open_device(path) as file:
            yield file
        return
    require_replaceable(path)
    part = part_path(path)
    part.unlink(missing_ok=True)
    try:
        with open_new(part) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _open_device(path: pathlib.Path) -> BinaryIO:
    """Opens a device that is there, by a link too, and nothing that has taken its name since."""
    number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    if not stat.S_ISCHR(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no device any more", str(path))
    return open(number, "wb")


@contextlib.contextmanager
def writing(path: str | pathlib.Path) -> Iterator[None]:
    """Makes an OSError an InputError that names what cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def write_file(path: str | pathlib.Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` with a file that is open, and puts what it wrote there at `path`.

    Raises:
        InputError: the file cannot be written; what was there is kept.
    """
    with writing(path), replacing(path) as part:
        write(part)


def copy_file(made: str | pathlib.Path, path: str | pathlib.Path) -> None:
    """Writes what is in a file of ours; see `write_file`."""
    with open(made, "rb") as file:
        write_file(path, lambda part: shutil.copyfileobj(file, part))


def copy_folder(made: str | pathlib.Path, folder: str | pathlib.Path, last: str) -> None:
    """Writes all that is in a folder of ours into another one, a file of a given name at the end.

    Raises:
        InputError: a file or a folder cannot be written, or has a link in its place.
    """
    made, folder = pathlib.Path(made), pathlib.Path(folder)
    for path in sorted(made.rglob("*"), key=lambda path: (path.name == last, path)):
        place = folder / path.relative_to(made)
        if path.is_file():
            copy_file(path, place)
            continue
        with writing(place):
            place.mkdir(exist_ok=True)
        if place.is_symlink():
            raise InputError(f"cannot write {place}: it is a link; remove it")


def write_text(path: str | pathlib.Path, text: str) -> None:
    """Writes a text in UTF-8, with what is none made visible; see `write_file`."""
    content = text.encode("utf-8", "backslashreplace")
    write_file(path, lambda part: part.write(content))


def write_json(path: str | pathlib.Path, result: dict) -> None:
    """Writes a summary or settings; see `write_file`."""
    write_text(path, json.dumps(result, indent=2, allow_nan=False) + "\n")


def discard_stdout() -> None:
    """Lets all that is written to stdout from now on go nowhere, as nobody reads it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
