"""A list of instances, as VNN-COMP's `instances.csv`: a line `model,file,seconds` for each.

Paths are beside the list. The model is a SavedModel or a file that Keras saved. An instance that
cannot be used is answered by `refused`, with the reason, and the next one is taken.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_curv.errors import InputError, about, require_positive, visible
from keras_curv.files import read_named, require_replaceable, write_text
from keras_curv.specifications.report import in_words
from keras_curv.specifications.verify import Verifier
from keras_curv.specifications.vnnlib import MOST_BYTES

COLUMNS = (
    *("model", "vnnlib", "timeout", "result", "seconds", "reason"),
    *("counterexample", "fingerprint"),
)
REFUSED = "refused"
_BYTES = 2**26  # of a list, and of its results


class Listed(NamedTuple):
    """One line of a list: the paths of model and instance as they stand there, and seconds."""

    model: str
    vnnlib: str
    timeout: float


def read_instances(path: str | os.PathLike) -> list[Listed]:
    """Reads a list of instances.

    Raises:
        InputError: it is none, or names an ONNX model.
    """
    found = []
    for number, line in enumerate(_lines(path), 1):
        with about(f"{path}, line {number}", (ValueError, InputError)):
            if len(line) != 3:
                raise InputError(f"model,file,seconds was expected. Received: {','.join(line)}")
            if pathlib.Path(line[0]).suffix in (".onnx", ".gz"):
                raise InputError(
                    f"{line[0]} is an ONNX model, which is not read; name a SavedModel or a .keras "
                    "file in its place"
                )
            found.append(Listed(line[0], line[1], require_positive(float(line[2]), "seconds")))
    if not found:
        raise InputError(f"{path} lists no instance")
    return found


def answer_all(
    path: str | os.PathLike, output: str | None = None, resume: bool = False, **options: Any
) -> Iterator[tuple[str, str]]:
    """Answers each instance of a list; yields the result and what to say of it.

    Args:
        path: of the list.
        output: CSV file for the results, replaced after each; None writes none.
        resume: takes results from there, of the same model, instance, timeout and options.
        options: of `Verifier`.

    Raises:
        InputError: the list cannot be read, or the results cannot be written.
    """
    listed, place = read_instances(path), pathlib.Path(path).parent
    rows = _known(output, resume, listed) if output is not None else {}
    verifier, of = None, None
    for one in listed:
        answer, reason, digest = None, "", ""
        try:
            if verifier is None or of != one.model:
                verifier, of = None, one.model
                verifier = Verifier(place / one.model, **options)
            digest = _digest(verifier, place / one.vnnlib, options)
            if rows.get(one, [""])[-1] != digest:
                answer = verifier.verify(place / one.vnnlib, timeout=one.timeout)
        except InputError as error:
            reason = visible(" ".join(str(error).split()))
        if answer is not None:
            found = answer.counterexample
            point = json.dumps([part.tolist() for part in found]) if found else ""
            seconds, result = f"{answer.seconds:.3f}", answer.result.value
            rows[one] = [*_cells(one), result, seconds, answer.reason, point, digest]
            said = in_words(one.vnnlib, answer, "--output")
        elif reason:
            rows[one] = [*_cells(one), REFUSED, "", reason, "", ""]
            said = visible(f"{one.vnnlib}: {REFUSED}: ") + reason
        else:
            said = visible(f"{one.vnnlib}: {rows[one][3]}, as {output} has it")
        if output is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows.values()])
            write_text(output, text.getvalue())
        yield rows[one][3], said


def _known(output: str, resume: bool, listed: list[Listed]) -> dict[Listed, list[str]]:
    """Returns the results that are there of instances in the list."""
    require_replaceable(output)
    if not os.path.exists(output):
        return {}
    if not resume:
        raise InputError(f"{output} is there already; --resume goes on with it")
    lines = _lines(output)
    if not lines or lines[0] != [*COLUMNS] or any(len(line) != len(COLUMNS) for line in lines):
        raise InputError(f"{output} is not a file of results; name another one")
    known = {tuple(line[:3]): line for line in lines[1:]}
    return {one: known[_cells(one)] for one in listed if _cells(one) in known}


def _cells(one: Listed) -> tuple[str, str, str]:
    return one.model, one.vnnlib, repr(one.timeout)


def _digest(verifier: Verifier, vnnlib: pathlib.Path, options: dict[str, Any]) -> str:
    """Returns a fingerprint of model, instance and options."""
    with about(f"{vnnlib} cannot be read", (OSError,)):
        content = read_named(vnnlib, MOST_BYTES)
    said = f"{verifier.served.fingerprint} {sorted(options.items())} ".encode()
    return hashlib.sha256(said + content).hexdigest()


def _lines(path: str | os.PathLike) -> list[list[str]]:
    with about(f"{os.fspath(path)} cannot be read", (OSError, UnicodeDecodeError, csv.Error)):
        csv.field_size_limit(max(csv.field_size_limit(), _BYTES))  # counterexamples are long
        text = read_named(pathlib.Path(path), _BYTES).decode()
        return [line for line in csv.reader(io.StringIO(text)) if line]
