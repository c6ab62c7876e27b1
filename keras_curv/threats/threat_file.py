"""Threats from files and from the command line."""

from __future__ import annotations

import contextlib
import math
import pathlib
from typing import Any

from keras_curv.errors import InputError, about
from keras_curv.files import parse_json, read_named
from keras_curv.npz_file import NpzFile
from keras_curv.numerics.spelled import parse_number
from keras_curv.threats.threat import NAMES, UNRESTRICTED, Threat

_JSON_BYTES = 2**23  # larger arrays are for .npz
_NUMBERS = 2**24  # of all arrays; in float64 they are 128 MiB
_WORDS = ("norm", "frozen", "groups")  # which are no numbers, or not only
_NPZ_KINDS = {
    "norm": "U",
    "frozen": "fiub",
    "basis": "fiuU",
}  # kinds of dtypes that differ from "fiu"


def load_threat(path: str) -> Threat:
    """Reads a threat from a .json or .npz file of arrays named like the arguments of `Threat`.

    In JSON null stands for a missing limit, alone or in a list, and "2/255" for that fraction.

    Raises:
        InputError: the file cannot be read, has an unknown name, or is no threat.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     file.write('{"scale": [0.5, 2.0], "low": [0, null]}') and file.flush()
        ...     print(load_threat(file.name))
        scale 0.5,2.0; low 0.0,-inf
    """
    suffix = pathlib.Path(path).suffix
    if suffix not in (".json", ".npz"):
        raise InputError(f"{path} must be a .json or .npz file")
    try:
        arrays = _from_json(path) if suffix == ".json" else _from_npz(path)
    except FileNotFoundError as error:
        raise InputError(
            f"{path} does not exist; give the .json or .npz file of a threat"
        ) from error
    except InputError:
        raise
    except Exception as error:  # zipfile, OSError, ValueError: whatever a broken file raises
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as a threat: {reason}") from error
    if not arrays:
        raise InputError(f"{path} must have some of {', '.join(NAMES)}. Received: nothing")
    with about(path):
        threat = Threat.of(arrays)
    return threat


def parse_threat(
    path: str | None, scale: str | None, box: str | None, norm: str | None = None
) -> Threat:
    """Returns the threat of `--threat`, or of its shortcuts `--scale`, `--box` and `--norm`.

    Args:
        path: the path of a file, without any other argument.
        scale: weights, one or as many as features, between commas.
        box: `LOW,HIGH`; either may be left out.
        norm: "l2", "l1" or "linf"; None is l2.

    Raises:
        InputError: an argument cannot be read, or is given beside a file.

    Example:
        >>> print(parse_threat(None, "0.5", "0,"))
        scale 0.5; low 0.0
    """
    if path is not None:
        if any(shortcut is not None for shortcut in (scale, box, norm)):
            raise InputError("--threat says all: no --scale, --box or --norm beside it")
        return load_threat(path)
    options: dict[str, Any] = {} if norm is None else {"norm": norm}
    if scale is not None:
        weights = [_number(part, "--scale") for part in scale.split(",")]
        options["scale"] = weights[0] if len(weights) == 1 else weights
    if box is not None:
        ends = box.split(",")
        if len(ends) != 2 or not any(end.strip() for end in ends):
            raise InputError(
                f"--box must be LOW,HIGH, one of which may be empty. Received: {box!r}"
            )
        for name, end in zip(("low", "high"), ends, strict=True):
            options[name] = _number(end, "--box") if end.strip() else None
    return Threat(**options) if options else UNRESTRICTED


def _number(text: str, flag: str) -> float:
    with contextlib.suppress(ValueError):
        if not math.isnan(found := parse_number(text)):
            return found
    raise InputError(f"{flag} must be numbers between commas. Received: {text!r}")


def _from_json(path: str) -> dict[str, Any]:
    found = parse_json(read_named(path, _JSON_BYTES))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    for name, value in found.items():
        kinds = _kinds(value)
        if bool in kinds and (name != "frozen" or len(kinds) > 1):
            raise ValueError(f"{name} has a truth value, which is no number")
    return {
        key: value if key in _WORDS else _numbers(value)
        for key, value in found.items()
        if value is not None
    }


def _numbers(value: Any) -> Any:
    """Returns nested lists with the fractions in them, as "2/255", as numbers."""
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return parse_number(value) if isinstance(value, str) and "/" in value else value


def _kinds(value: Any) -> set[type]:
    """Returns the types of all values in nested lists."""
    kinds, rest = set(), [value]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        else:
            kinds.add(type(one))
    return kinds


def _from_npz(path: str) -> dict[str, Any]:
    with NpzFile(path) as file:
        described = [file.described(name, _NPZ_KINDS.get(name, "fiu")) for name in file.names]
        arrays = [array for array in described if array is not None]
        if len(arrays) < len(described):
            raise ValueError("it holds what is no array")
        count = sum(math.prod(array.shape) for array in arrays)
        size = sum(array.size for array in arrays)
        if count > _NUMBERS or size > 16 * _NUMBERS:
            raise ValueError(f"it unpacks to {count} numbers, and {_NUMBERS} are the most")
        return {array.name: file.whole(array)[()] for array in arrays}
