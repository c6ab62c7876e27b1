"""Rows of a certification run: what one example came to, as CSV that survives a kill."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from keras_curv.errors import InputError, about
from keras_curv.files import open_regular, parse_json, read_at_most, write_json
from keras_curv.rows.row import EXAMPLE_COLUMNS, Row

LONGEST_ROW = 2**16  # bytes; a name of a file may have 4,096 letters, and a detail 200
_LONGEST_SETTINGS = 2**22
_ANY_ROWS, _A_ROW = 2**26, 2**10  # bytes
_COUNTED = 10**6  # rows too many
# What a fingerprint tells, which itself says nothing to a reader.
_OF = {
    "fingerprint": "another model",
    "baseline_fingerprint": "another baseline",
    "dataset_fingerprint": "other examples",
}


def most_bytes(count: int, settings: dict) -> int:
    """Returns how many bytes so many rows of a run may take, where the settings are repeated."""
    return _ANY_ROWS + count * (_A_ROW + len(json.dumps(settings)))


def settings_path(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of the settings that the rows at `path` were made with."""
    return path.with_name(path.name + ".settings.json")


class RowFile:
    """A CSV file of rows, flushed as they come, that an interrupted run can go on with.

    Beside `path` lies `path.settings.json`, which says what the rows were made with: a run
    resumes only with the same settings. It resumes at a whole batch, so that every row is
    computed in the company in which an unbroken run would have computed it. Rows of an unfinished
    batch stay in the file, too, and the batch is written on from there; they are taken back only
    if the rows come out differently.

    Args:
        path: None keeps nothing.
        settings: of the run, JSON; must have `batch_size`.
        count: how many rows a finished run has.
        resume: go on with an existing file.
        columns: of the rows, names of attributes of `Row`.

    Attributes:
        rows: those that an existing file holds already.
        resumed: whether there was one.

    Raises:
        InputError: the file exists and `resume` is not given; it was made with other settings, or
            has more rows; it is not a file of rows; it cannot be written; another run writes it.
    """

    def __init__(
        self,
        path: str | None,
        settings: dict,
        *,
        count: int,
        resume: bool = False,
        columns: Sequence[str] = EXAMPLE_COLUMNS,
    ):
        self.rows: list[Row] = []
        self.resumed = False
        self._columns = tuple(columns)
        self._file: BinaryIO | None = None
        self._end = 0  # of the rows that are kept
        if path is None:
            return
        self._path = target = pathlib.Path(path)
        try:
            if target.exists():
                if not resume:
                    raise InputError(
                        f"{path} exists; go on with it by --resume, remove it, or name another "
                        "output"
                    )
                _require_same(target, settings)
                self._file, self.resumed = open_regular(target, os.O_RDWR), True
                self._require_alone(self._file)
                size, most = os.fstat(self._file.fileno()).st_size, most_bytes(count, settings)
                if size > most:
                    raise InputError(
                        f"{path} has {size} bytes, and {count} rows of this run have {most} at most"
                    )
                self.rows, self._end = _read_rows(
                    self._file, target, settings["batch_size"], count, self._columns
                )
                if len(self.rows) == count:
                    self._file.truncate(self._end)  # what a kill left of a row too many
            else:
                write_json(settings_path(target), settings)
                self._file = open_regular(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                self._require_alone(self._file)
            if self._end == 0:
                self._append(self._file, lines([self._columns]))
        except OSError as error:
            self.__exit__()
            raise self._unwritable(error) from error
        except InputError:
            self.__exit__()
            raise

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows; they are with the operating system when this returns."""
        if self._file is None or not rows:
            return
        try:
            self._append(self._file, lines(row.cells(self._columns) for row in rows))
        except OSError as error:
            raise self._unwritable(error) from error

    def _append(self, file: BinaryIO, text: bytes) -> None:
        file.seek(self._end)
        there = file.read()
        if not text.startswith(there):
            file.seek(self._end)
            file.truncate()
            there = b""
        file.write(text[len(there) :])
        file.flush()
        self._end += len(text)

    def _require_alone(self, file: BinaryIO) -> None:
        """Refuses a file that another run writes, and keeps others from it until it is closed."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another run is writing {self._path}; wait for its end, or name another output"
            ) from error
        except OSError:
            pass  # a file system that has no locks

    def _unwritable(self, error: OSError) -> InputError:
        reason = error.strerror or error
        return InputError(f"cannot write {self._path}: {reason}; rows that it holds are kept")

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk, which `write` has reported
                self._file.close()


def lines(rows: Iterable[Sequence[str]]) -> bytes:
    """Returns rows of cells as they stand in a file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _require_same(target: pathlib.Path, settings: dict) -> None:
    beside = settings_path(target)
    try:
        before = parse_json(read_at_most(beside, _LONGEST_SETTINGS))
        if not isinstance(before, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{target} cannot be resumed: {beside.name}, which says how it was made, is missing "
            "or broken"
        ) from error
    for key in settings:
        if before.get(key) != settings[key]:
            was = f"{key} {before.get(key)!r}, not {settings[key]!r}"
            raise InputError(
                f"{target} was made with {_OF.get(key, was)}; resume with the same "
                "settings, or name another output"
            )


def _read_rows(
    file: BinaryIO, target: pathlib.Path, batch_size: int, count: int, columns: tuple[str, ...]
) -> tuple[list[Row], int]:
    """Returns the rows to keep, all of a finished file or whole batches, and where they end."""
    rows: list[Row] = []
    header, ends = _line(file, target), [file.tell()]
    if header is None:
        return [], 0
    if header != ",".join(columns).encode():
        raise InputError(f"{target} is not a file of rows: its header is {header[:80]!r}")
    while (line := _line(file, target)) is not None:
        if len(rows) == count:
            more = 1 + sum(1 for _ in range(_COUNTED) if _line(file, target) is not None)
            raise InputError(
                f"{target} has {count + more} rows, but there are only {count} examples"
            )
        rows.append(_row(line, len(rows), target, columns))
        ends.append(file.tell())
    if len(rows) < count:
        rows = rows[: len(rows) // batch_size * batch_size]
    return rows, ends[len(rows)]


def _line(file: BinaryIO, target: pathlib.Path) -> bytes | None:
    """Returns the next line; None where none was finished."""
    line = file.readline(LONGEST_ROW)
    if len(line) == LONGEST_ROW:
        raise InputError(f"{target} is not a file of rows: a line has {LONGEST_ROW} bytes or more")
    return line[:-1] if line.endswith(b"\n") else None


def _row(line: bytes, number: int, target: pathlib.Path, columns: tuple[str, ...]) -> Row:
    where = f"{target}, line {number + 2}, is not a row"
    with about(where, (ValueError, KeyError, StopIteration, csv.Error)):
        row = Row.parse(next(csv.reader([line.decode()], strict=True)), columns)
        if row.index != number:
            raise ValueError(f"row {number} has index {row.index}")
    return row
