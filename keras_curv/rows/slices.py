"""Parts of a run's examples: counts and certified fractions of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_curv.certificates.certificate import CORRECT
from keras_curv.numerics.clopper_pearson import clopper_pearson
from keras_curv.rows.row import Row

BY_CLASS = "class"


class Fraction:
    """Counts rows, and those of them that are certified at each radius.

    Args:
        radii: at which to count.

    Attributes:
        examples: rows counted.
        correct: those of them with a prediction that is not known to be wrong.
    """

    def __init__(self, radii: Sequence[float]):
        self.examples = self.correct = 0
        self._certified = dict.fromkeys(radii, 0)

    def add(self, row: Row) -> None:
        """Counts a row in."""
        self.examples += 1
        self.correct += row.status in CORRECT
        for radius in self._certified:
            self._certified[radius] += row.radius > radius

    def summary(self) -> dict:
        """Returns `examples`, and `certified`: radius as string → fraction of them."""
        count = max(self.examples, 1)
        certified = {str(r): n / count for r, n in self._certified.items()}
        return {"examples": self.examples, "certified": certified}

    def intervals(self, confidence: float) -> dict[str, list[float]]:
        """Returns radius as string → confidence interval of the certified fraction."""
        ends = confidence_interval([*self._certified.values()], self.examples, confidence)
        return {str(r): end for r, end in zip(self._certified, ends, strict=True)}


class SliceTally:
    """Counts rows by the part of a slice that they are in.

    Args:
        part_of: the name of a row's part.
        radii: at which certified fractions are reported.
        confidence: of their intervals.
    """

    def __init__(self, part_of: Callable[[Row], str], radii: Sequence[float], confidence: float):
        self._part_of, self._radii, self._confidence = part_of, radii, confidence
        self._parts: dict[str, Fraction] = {}

    def add(self, row: Row) -> None:
        """Counts a row in."""
        self._parts.setdefault(self._part_of(row), Fraction(self._radii)).add(row)

    def summary(self) -> dict[str, dict]:
        """Returns each part's name → `Fraction.summary`, how many are `correct`, and `interval`,
        as `Fraction.intervals` gives it; numbers first, in order."""
        return {
            name: part.summary()
            | {"correct": part.correct, "interval": part.intervals(self._confidence)}
            for name, part in sorted(self._parts.items(), key=lambda item: _order(item[0]))
        }


def class_of(row: Row) -> str:
    """Returns the class that a row counts for: its label, or without labels its prediction."""
    if row.label is not None:
        return str(row.label)
    return str(row.prediction) if row.prediction >= 0 else "none"


def confidence_interval(
    certified: Sequence[int], examples: int, confidence: float
) -> list[list[float]]:
    """Returns the Clopper–Pearson interval of each fraction, rounded outwards.

    If the examples are drawn independently of one another, and of the model, from where the model
    will be used, then each interval holds the fraction there with at least this confidence.

    Args:
        certified: how many of the examples are certified.
        examples: how many there are; of none nothing is known, and each interval is [0, 1].
        confidence: of the interval, which leaves half of the rest on either side.

    Example:
        >>> [round(end, 4) for end in confidence_interval([9], 10, 0.95)[0]]
        [0.555, 0.9975]
    """
    if not examples:
        return [[0.0, 1.0] for _ in certified]
    wins, alpha = np.asarray(certified), (1.0 - confidence) / 2.0
    low = clopper_pearson(wins, examples, alpha)
    high = 1.0 - clopper_pearson(examples - wins, examples, alpha)
    return [[float(a), float(b)] for a, b in zip(low, high, strict=True)]


def _order(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (False, number, name) if math.isfinite(number) else (True, 0.0, name)
