"""Compares two folders that `freeze.py` has written, case by case."""

import collections
import csv
import io
import math
import pathlib
import re
from typing import NamedTuple

import numpy as np

IDENTICAL, WITHIN, DIFFERENT, MISSING = "identical", "within tolerance", "DIFFERENT", "MISSING"
RADII = ("radius", "baseline_radius")
_NUMBER = re.compile(r"-?\b\d+\.\d+(?:e[+-]?\d+)?|-?\b\d+e[+-]?\d+")


class Found(NamedTuple):
    """Result of comparing one case.

    Attributes:
        verdict: one of the four above.
        down, up: the largest relative change of a number each way; of rows, of a radius.
        detail: which columns of how many rows, or which arrays or lines differ.
    """

    verdict: str
    down: float = 0.0
    up: float = 0.0
    detail: str = ""


def compare(old, new, tolerance=1e-9, only=None):
    """Prints how two folders differ; returns whether they differ by more than the tolerance."""
    before, after = (cases_of(pathlib.Path(folder), only or [""]) for folder in (old, new))
    counts, down, up = collections.Counter(), 0.0, 0.0
    for name in sorted({*before, *after}):
        found = compared(before.get(name), after.get(name), tolerance)
        counts[found.verdict] += 1
        down, up = min(down, found.down), max(up, found.up)
        change = f" {found.down:+.1e} {found.up:+.1e}" if found.down or found.up else ""
        print(f"{found.verdict:16} {name}{change} {found.detail}".rstrip())
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (IDENTICAL, WITHIN))
    wrong = f"{counts[DIFFERENT]} {DIFFERENT}, {counts[MISSING]} {MISSING}"
    print(f"{counts.total()} cases: {words}, {wrong}; changes from {down:+.1e} to {up:+.1e}")
    return bool(counts[DIFFERENT] or counts[MISSING] or not counts)


def cases_of(folder, only):
    """Returns the files of a folder by the name of their case."""
    paths = (path for path in folder.rglob("*.*") if path.is_file())
    cases = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
    return {name: path for name, path in cases.items() if named(name, only)}


def named(name, words):
    """Returns whether the name of a case contains one of these words."""
    return any(word in name for word in words)


def compared(old, new, tolerance):
    """Compares the two files of a case, either of which may be None."""
    if old is None or new is None:
        return Found(MISSING, detail="in the old folder" if old is None else "in the new folder")
    if old.suffix != new.suffix:
        return Found(DIFFERENT, detail=f"was {old.suffix}, is {new.suffix}: {message(old, new)}")
    if old.suffix == ".npz":
        return compared_arrays(old, new, tolerance)
    if old.read_bytes() == new.read_bytes():
        return Found(IDENTICAL)
    return (compared_rows if old.suffix == ".csv" else compared_lines)(old, new, tolerance)


def message(*paths):
    """Returns the first line of whichever file is a message."""
    for path in paths:
        if path.suffix in (".refused", ".failed"):
            return path.read_text().partition("\n")[0]
    return ""


def change(old, new):
    """Returns the relative change between two numbers; infinite if one of them is not finite."""
    if old == new or (math.isnan(old) and math.isnan(new)):
        return 0.0
    if not (math.isfinite(old) and math.isfinite(new)) or old == 0.0:
        return math.inf if not new < old else -math.inf
    return (new - old) / abs(old)


def verdict_of(changes, other, tolerance, detail):
    """Returns the verdict on changes of numbers and on everything else that differs."""
    beyond = other or any(abs(one) > tolerance for one in changes)
    down, up = min(changes, default=0.0), max(changes, default=0.0)
    return Found(DIFFERENT if beyond else WITHIN, min(down, 0.0), max(up, 0.0), detail)


def compared_rows(old, new, tolerance):
    """Compares rows: radii by their relative change, everything else as text."""
    before, after = ([*csv.DictReader(io.StringIO(path.read_text()))] for path in (old, new))
    if len(before) != len(after):
        return Found(DIFFERENT, detail=f"{len(before)} rows, now {len(after)}")
    changes, differing = [], collections.Counter()
    for a, b in zip(before, after, strict=True):
        for column in [*a, *(name for name in b if name not in a)]:
            if a.get(column) == b.get(column):
                continue
            differing[column] += 1
            if column in RADII and column in a and column in b:
                changes.append(change(float(a[column]), float(b[column])))
    words = ", ".join(f"{column} in {count} rows" for column, count in differing.items())
    return verdict_of(changes, any(c not in RADII for c in differing), tolerance, words)


def compared_lines(old, new, tolerance):
    """Compares texts line by line: numbers with a point by their change, the rest as it is."""
    before, after = (path.read_text().splitlines() for path in (old, new))
    if len(before) != len(after):
        return Found(DIFFERENT, detail=f"{len(before)} lines, now {len(after)}")
    changes, other, differing = [], False, []
    for i, (a, b) in enumerate(zip(before, after, strict=True), start=1):
        if a == b:
            continue
        differing.append(i)
        numbers = [[float(one) for one in _NUMBER.findall(line)] for line in (a, b)]
        if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
            other = True
        else:
            changes += map(change, *numbers)
    some = ", ".join(map(str, differing[:5]))
    detail = f"{len(differing)} lines: {some}{', …' if len(differing) > 5 else ''}"
    return verdict_of(changes, other, tolerance, detail)


def compared_arrays(old, new, tolerance):
    """Compares arrays: radii entry by entry, others relative to their largest entry."""
    with np.load(old) as before, np.load(new) as after:
        names = sorted({*before.files, *after.files})
        changes, other, differing = [], False, []
        for name in names:
            a, b = (part[name] if name in part.files else None for part in (before, after))
            if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
                other = True
                differing.append(name)
            elif a.tobytes() != b.tobytes():
                differing.append(name)
                if a.dtype.kind == "f":
                    changes += changes_of(name, a, b)
                else:
                    other = True
    if not differing:
        return Found(IDENTICAL)
    return verdict_of(changes, other, tolerance, ", ".join(differing))


def changes_of(name, a, b):
    """Returns the two largest changes of an array of floats, down and up."""
    a, b = a.astype(float), b.astype(float)
    if name.endswith("radius") or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return [change(*pair) for pair in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
    relative = (b - a) / max(np.abs(a).max(), np.finfo(np.float64).tiny)
    return [float(relative.min()), float(relative.max())]
