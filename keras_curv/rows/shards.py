"""Rows that many workers leave side by side, a file for each batch, until they are joined."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import hmac
import io
import json
import os
import pathlib
import secrets
import shutil
import uuid
from collections.abc import Sequence

from keras_curv.errors import InputError
from keras_curv.files import open_new, read_at_most
from keras_curv.rows.row import EXAMPLE_COLUMNS, Row
from keras_curv.rows.row_file import LONGEST_ROW, lines, most_bytes

_KEY_BYTES = 32
_CODE_LENGTH = 65  # a SHA-256 and the end of its line


class Shards:
    """A folder of batches of rows, which any number of workers fill in any order.

    A file gets its name when it is whole, and rows depend on nothing but the settings, which the
    name of the folder stands for: so a batch that is certified twice, or whose worker died, is
    there once, and what a killed run left is good for the next.

    Each file ends in a code that is made with the run's random key, which lies beside the folder
    as long as that does. Rows that anybody else has put there are certified again.

    Args:
        output: beside which the folder lies, where all workers can write.
        settings: of the run; must have `batch_size`.
        count: how many examples there are.
        columns: of the rows, names of attributes of `Row`.

    Raises:
        InputError: from all methods, where the folder cannot be read or written.

    Example:
        >>> import tempfile
        >>> shards = Shards(tempfile.mkdtemp() + "/rows.csv", {"batch_size": 2}, count=5)
        >>> shards.prepare()
        >>> shards.missing(2)
        [2, 4]
    """

    def __init__(
        self, output: str, settings: dict, *, count: int, columns: Sequence[str] = EXAMPLE_COLUMNS
    ):
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.folder = pathlib.Path(os.path.abspath(f"{output}.shards-{digest}"))
        self._size = settings["batch_size"]
        self._count = count
        self._most = most_bytes(min(self._size, count), settings)
        self._columns = tuple(columns)
        self._key_file = self.folder.with_name(f".{self.folder.name}.key")
        self._key = b""

    def missing(self, start: int, stop: int | None = None) -> list[int]:
        """Returns the first examples of batches that are not there whole.

        Args:
            start: the first example of a batch.
            stop: the example before which to end; None is after the last.
        """
        firsts = range(start, self._count if stop is None else stop, self._size)
        return [first for first in firsts if self.read(first) is None]

    def prepare(self, *, resumed: bool = False) -> None:
        """Makes the folder, and forgets what an earlier run could not certify.

        Args:
            resumed: go on with the key of that run, if there is one.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            if self.folder.is_symlink():
                raise InputError(f"{self.folder} is a link; remove it")
            for refusal in self.folder.glob("*.refused"):
                refusal.unlink()
            self._key = (resumed and self._kept_key()) or self._new_key()
        except OSError as error:
            raise self._failed(error) from error

    def write(self, rows: Sequence[Row]) -> None:
        """Leaves one batch."""
        text = lines(row.cells(self._columns) for row in rows).decode()
        self._put(f"{rows[0].index}.csv", text + self._code(text))

    def refuse(self, first: int, reason: str) -> None:
        """Leaves the reason why a batch cannot be certified."""
        self._put(f"{first}.refused", reason)

    def read(self, first: int) -> list[Row] | None:
        """Returns one batch; None if it is not there whole."""
        indices = list(range(first, min(first + self._size, self._count)))
        try:
            text = self._text(self.folder / f"{first}.csv", self._most)
            text, code = text[:-_CODE_LENGTH], text[-_CODE_LENGTH:]
            if not hmac.compare_digest(code.encode(), self._code(text).encode()):
                return None
            rows = [Row.parse(cells, self._columns) for cells in csv.reader(io.StringIO(text))]
        except (FileNotFoundError, ValueError, KeyError, csv.Error):
            return None  # not there, or of a disk that lost power; it is certified again
        except OSError as error:
            raise self._failed(error) from error
        return rows if [row.index for row in rows] == indices else None

    def rows(self, first: int) -> list[Row]:
        """Returns one batch that workers are done with.

        Raises:
            InputError: it was refused; or it is not there.
        """
        rows = self.read(first)
        if rows is not None:
            return rows
        refusal = self.folder / f"{first}.refused"
        try:
            raise InputError(self._text(refusal, LONGEST_ROW))
        except FileNotFoundError:
            pass
        except UnicodeDecodeError as error:
            raise InputError(f"{refusal} is no text: {error}") from error
        except OSError as error:
            raise self._failed(error) from error
        raise InputError(
            f"the rows from {first} on are not in {self.folder}, where workers should have left "
            "them; is it on a file system that all of them share? Go on with --resume"
        )

    def remove(self) -> None:
        """Removes the folder with all that is in it, and the key."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._key_file.unlink(missing_ok=True)

    def _kept_key(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return read_at_most(self._key_file, _KEY_BYTES)
        return None

    def _new_key(self) -> bytes:
        key = secrets.token_bytes(_KEY_BYTES)
        self._key_file.unlink(missing_ok=True)
        with open_new(self._key_file, 0o600) as file:
            file.write(key)
        return key

    def _code(self, rows: str) -> str:
        """Returns the last line of a file of these rows."""
        return hmac.new(self._key, rows.encode(), hashlib.sha256).hexdigest() + "\n"

    def _text(self, file: pathlib.Path, most: int) -> str:
        return read_at_most(file, most).decode("utf-8")

    def _put(self, name: str, text: str) -> None:
        partial = self.folder / f"{uuid.uuid4().hex}.part"
        try:
            with open_new(partial) as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.folder / name)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> InputError:
        reason = error.strerror or error
        return InputError(f"cannot use {self.folder}, the place of rows by batch: {reason}")
