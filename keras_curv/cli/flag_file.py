"""Flags from files: `--flagfile=FILE` stands for the lines of the file, each a flag.

absl reads such files too, but waits for a pipe, never ends with a device, and reads a file as often
as others name it: a few hundred bytes that name one another can stand for any number of flags.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from keras_curv.errors import InputError
from keras_curv.files import read_named

_NAMES = ("--flagfile", "-flagfile")
_BYTES = 2**17  # of all files, each as often as it is named; a word on Linux may have as many
_FILES = 32


def expanded(words: Sequence[str]) -> list[str]:
    """Returns the words with the flags of files in place of their names.

    In a file a line is one word; blank lines and those that begin with `#` or `//` are comments.
    It may name further files.

    Raises:
        InputError: a file cannot be read, is no text or is too long, or too many are named.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     file.write("# mine\\n--method=crc\\n") and file.flush()
        ...     expanded(["--resume", f"--flagfile={file.name}", "--limit", "5"])
        ['--resume', '--method=crc', '--limit', '5']
    """
    rest = [*reversed(words)]
    flags: list[str] = []
    files, left = 0, _BYTES
    while rest:
        word = rest.pop()
        if word == "--":  # what follows is no flag
            return [*flags, word, *reversed(rest)]
        name, _, path = word.partition("=")
        if name not in _NAMES:
            flags.append(word)
            continue
        if word in _NAMES:
            if not rest:
                raise InputError(f"{word} needs the name of a file")
            path = rest.pop()
        files += 1
        if files > _FILES:
            raise InputError(f"--flagfile names more than {_FILES} files, one within another")
        text = _text(path.strip(), left)
        left -= len(text)
        lines = [line.strip() for line in text.splitlines()]
        flagged = [line for line in lines if line and not line.startswith(("#", "//"))]
        rest += reversed(flagged)
    return flags


def _text(path: str, most: int) -> str:
    try:
        text = read_named(os.path.expanduser(path), most).decode("utf-8")
    except OSError as error:
        raise InputError(f"--flagfile {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # of the name, or of the content
        raise InputError(f"--flagfile {path} is not a file of flags: {error}") from error
    if "\0" in text:
        raise InputError(f"--flagfile {path} is not a file of flags: there is a NUL in it")
    return text
