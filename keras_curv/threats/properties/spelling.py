"""Spellings of properties: `argmax`, `top_3`, `harmful:3,5`, `threshold:0.7`, `linear:y0>y1`."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from keras_curv.errors import InputError, about
from keras_curv.files import parse_json, read_named

_FORMS = (
    "argmax, top_3, harmful:3,5, harmful:TABLE.json, threshold:0.7, interval:0.1, linear:y0>y1, "
    "linear:FILE.txt"
)
_INDEX = re.compile(r" *-?[0-9]{1,18} *", re.ASCII)
_TABLE_BYTES = 2**20
_TOP = re.compile(r"top_([0-9]{1,9})", re.ASCII)


def spelled(spelling: str) -> tuple[str, Any]:
    """Returns the kind of property and its argument from a spelling.

    - `top_3`;
    - `harmful:3,5`, classes; `harmful:4>3,5;7>1`, by label; or `harmful:TABLE.json`, a file with
      an object of labels and lists of classes, `{"4": [3, 5], "7": [1]}`;
    - `threshold:0.7` for a model of one output, `threshold:2=0.7,3=0.1` for outputs 2 and 3;
    - `interval:0.1` for every output, `interval:2=0.1` for output 2;
    - `linear:y0 > y3 + 0.5; y1 < 2`, conditions on outputs; or `linear:FILE.txt`, one in each line.

    Raises:
        InputError: it is none of these.

    Example:
        >>> spelled("top_3"), spelled("harmful:4>3,5;7>1")
        (('top_k', 3), ('harmful', {4: [3, 5], 7: [1]}))
    """
    name, _, rest = spelling.partition(":")
    top = _TOP.fullmatch(spelling)
    if spelling == "argmax":
        return "argmax", None
    if top:
        return "top_k", int(top[1])
    with about(f"the property {spelling!r} cannot be read", (ValueError,)):
        if name == "harmful" and rest.endswith(".json"):
            return name, _table(pathlib.Path(rest))
        if name == "harmful" and ">" in rest:
            return name, _unique(part.split(">") for part in rest.split(";"))
        if name == "harmful":
            return name, _classes(rest)
        if name == "linear":
            return name, _lines(pathlib.Path(rest)) if rest.endswith(".txt") else rest
        if name in ("threshold", "interval"):
            return name, _values(rest)
    raise InputError(f"a property must be one of {_FORMS}. Received: {spelling!r}")


def _index(text: str) -> int:
    if _INDEX.fullmatch(text):
        return int(text)
    raise ValueError(f"{text[:80]!r} is not a whole number, as of a class or an output")


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a number") from error


def _classes(text: str) -> list[int]:
    return [_index(part) for part in text.split(",")]


def _values(text: str) -> float | dict[int, float]:
    if "=" not in text:
        return _real(text)
    pairs = [part.split("=") for part in text.split(",")]
    values = {_index(output): _real(value) for output, value in pairs}
    if len(values) < len(pairs):
        raise ValueError("an output is named twice")
    return values


def _unique(
    pairs: Iterable, classes: Callable[[Any], list[int]] = _classes
) -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for label, harmful in pairs:
        if _index(label) in table:
            raise ValueError(f"label {_index(label)} is named twice")
        table[_index(label)] = classes(harmful)
    return table


def _table(path: pathlib.Path) -> dict[int, list[int]]:
    """Reads the table of a file."""
    with about(f"{path} cannot be read", (OSError,)):
        content = read_named(path, _TABLE_BYTES)
    what = f'{path} must be an object of labels and lists of classes, {{"4": [3, 5]}}'
    with about(what, (ValueError,)):
        table = parse_json(content)
        if not isinstance(table, dict) or not all(isinstance(row, list) for row in table.values()):
            raise ValueError("not an object of lists")
        return _unique(table.items(), lambda some: [_whole(rival) for rival in some])


def _lines(path: pathlib.Path) -> str:
    """Reads the text of a file."""
    with about(f"{path} cannot be read", (OSError, UnicodeDecodeError)):
        return read_named(path, _TABLE_BYTES).decode()


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no class")
    return value
