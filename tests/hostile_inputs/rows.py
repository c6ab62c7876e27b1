"""Rows to go on with that no run has written."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import tempfile

import numpy as np
from hostile_models import models

from keras_curv.files import part_path
from keras_curv.runs.certify_examples import certify_examples

CASES = {}
FILES = ("rows.csv", "rows.csv.settings.json")
X = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)
Y = np.array([0, 1, 2, 0, 1])


def attempt(folder):
    """Goes on with the rows, and writes all that a run can write."""
    models.export(folder / "model")
    certify_examples(
        str(folder / "model"),
        (X, Y),
        method="lipschitz",
        batch_size=2,
        output=str(folder / "rows.csv"),
        resume=True,
        summary=str(folder / "out.json"),
        report=str(folder / "out.html"),
    )


@functools.cache
def whole():
    """What a run leaves."""
    with tempfile.TemporaryDirectory() as folder:
        attempt(pathlib.Path(folder))
        return {name: pathlib.Path(folder, name).read_bytes() for name in FILES}


def _case(name):
    def register(change):
        def build(folder):
            models.write(folder, whole())
            change(folder)

        CASES[f"rows: {name}"] = build
        return change

    return register


def _line(number, place, cell):
    def change(folder):
        lines = (folder / "rows.csv").read_text().split("\n")
        cells = lines[number].split(",")
        cells[place] = cell
        lines[number] = ",".join(cells)
        (folder / "rows.csv").write_text("\n".join(lines))

    return change


_CELLS = {
    0: ("7", "-1", "", "x", "9" * 400, "9" * 5000, "+0", " 0", "0_0", "00", "٠"),
    1: ("2", "-5", "x", "99", "9" * 400),
    2: ("3", "-2", "-1", str(2**63), str(2**70), "1.5"),
    3: ("3", "-2", "x", str(2**63)),
    4: ("nan", "-1.0", "inf", "1e999", "1e+308", "1e308", "5e-324", "1e-310", "0x1", "x"),
    5: ("SURE", "", "CERTIFIED", "certified", "CLASSIFY"),
    6: ("-1", "x", str(2**63 - 1), str(2**63), "9" * 400),
    7: ("2", "yes"),
    8: ("runner_up", "none", ""),
    9: ("\x1b[2J", '"', "mine", "a" * 60_000),
}
for place, values in _CELLS.items():
    for value in values:
        _case(f"cell {place} is {value[:9]!r}")(_line(1, place, value))


def _content(name, file, change):
    _case(name)(lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes())))


def _claimed(content):
    """The largest and the smallest radii, of every row."""
    header, *lines = content.decode().splitlines()
    cells = [line.split(",") for line in lines]
    for number, row in enumerate(cells):
        row[2:6] = str(number % 3), "-1", ("1e+308", "5e-324")[number % 2], "CERTIFIED"
    return "\n".join([header, *map(",".join, cells), ""]).encode()


_content("radii of both ends", FILES[0], _claimed)
_content("a million rows of 60 bytes", FILES[0], lambda b: b + b.splitlines(True)[1] * 10**6)
_content("4 rows of a GiB", FILES[0], lambda b: b + (b"0" * 2**16 + b"\n") * 2**14)
_case("a TiB of holes")(lambda folder: os.truncate(folder / FILES[0], 2**40))
_content("settings with a name twice", FILES[1], lambda b: b.replace(b"{", b'{"seed": 1,', 1))
_content("settings with 400 digits", FILES[1], lambda b: b.replace(b"2", b"9" * 400, 1))
_content("a line of 2^24 bytes", FILES[0], lambda b: b + b"5," * 2**23)
_content("a hundred thousand rows", FILES[0], lambda b: b + b.splitlines(True)[1] * 100_000)
_content("bytes that are no text", FILES[0], lambda b: b + b"\xff\xfe\n")
_content("NUL", FILES[0], lambda b: b[:-1] + b"\0\n")
_content("another header", FILES[0], lambda b: b"a" + b)
_content("settings that nest", FILES[1], lambda b: b"[" * 10**6)
_content("settings of 2^26 bytes", FILES[1], lambda b: b + b" " * 2**26)
_content("settings of another kind", FILES[1], lambda b: b"[1]")
_content("settings that are no text", FILES[1], lambda b: b"\xff")
for key in ("fingerprint", "rivals", "method", "seed", "batch_size", "guarantee"):

    def _other(content, key=key):
        return json.dumps(json.loads(content) | {key: "x"}).encode()

    _content(f"settings with another {key}", FILES[1], _other)

for file in (
    *FILES,
    "out.json",
    "out.html",
    *(part_path(name).name for name in ("out.json", "out.html")),
):

    def _replaced(folder, make, file=file):
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    _case(f"{file} leads elsewhere")(
        lambda folder, replaced=_replaced: replaced(
            folder, lambda path: path.symlink_to(path.parent / "outside")
        )
    )
    _case(f"{file} is a pipe")(lambda folder, replaced=_replaced: replaced(folder, os.mkfifo))
