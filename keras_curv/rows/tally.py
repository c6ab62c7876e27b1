"""Rows summed up as they come: accuracies, mean radius, what proved how many."""

from __future__ import annotations

import array
import collections
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from keras_curv.certificates.certificate import CORRECT, Status, certified_fraction
from keras_curv.errors import visible
from keras_curv.rows.comparison import Comparison
from keras_curv.rows.row import Row
from keras_curv.rows.slices import SliceTally, confidence_interval


class Tally:
    """Sums rows up as they come; of each example it keeps a number or two.

    Args:
        at: radii at which certified accuracy is reported.
        confidence: of the intervals of certified accuracy.
        slices: partitions of the examples by name, each with what names the part of a row.
        baseline: what the rows are compared with, by name; None: with nothing.

    Attributes:
        radii: of every example; 0 where nothing is certified.
        comparison: with the baseline, or None.
    """

    def __init__(
        self,
        at: Sequence[float],
        *,
        confidence: float = 0.95,
        slices: Mapping[str, Callable[[Row], str]] | None = None,
        baseline: str | None = None,
    ):
        self.radii = array.array("d")
        self._at, self._confidence = tuple(at), confidence
        self._slices = {
            name: SliceTally(part_of, self._at, confidence)
            for name, part_of in (slices or {}).items()
        }
        self._baseline = baseline
        self.comparison = None if baseline is None else Comparison(at)
        self._statuses: collections.Counter[str] = collections.Counter()
        self._methods: collections.Counter[str] = collections.Counter()
        self._labelled = True
        self._gradients = 0
        self._exact = 0
        self._of_met = array.array("d")

    def add(self, rows: Iterable[Row]) -> None:
        """Counts rows in, but for those that are skipped."""
        for row in rows:
            if row.skipped:
                continue
            self.radii.append(row.radius)
            self._statuses[row.status] += 1
            self._methods[row.method] += bool(row.method)
            self._labelled &= row.label is not None
            self._gradients += row.gradient_evaluations
            self._exact += row.primal_equals_dual
            if row.status in CORRECT and 0.0 < row.adversarial_distance < math.inf:
                self._of_met.append(row.radius / row.adversarial_distance)
            for slices in self._slices.values():
                slices.add(row)
            if self.comparison is not None:
                self.comparison.add(row)

    def certified_accuracy(self, radius: float) -> float:
        """Returns the fraction of all examples that are correct and have a larger radius."""
        return certified_fraction(np.array(self.radii), radius)

    def summary(self) -> dict:
        """Returns the result of the run, as JSON can hold it.

        Returns:
            `examples`; `clean_accuracy` (None without labels); `certified_accuracy`, radius as
            string → fraction of all examples; `certified_interval`, radius → the two ends of its
            confidence interval, and `confidence`, see `confidence_interval`; `slices`, name → see
            `SliceTally.summary`; `mean_radius` and `median_radius` over the
            correct ones (None where there are none, "inf" where infinite); `statuses`, name →
            count; `gradient_evaluations`, mean per example, summed over its rivals;
            `primal_equals_dual`, the fraction of all examples whose radius is exact; `methods`,
            name → how many radii it proved; `met`, the number of correct examples near which an
            adversarial point was met, and `proved_of_met`, the median of radius over the distance
            of that point (None where none was met); `baseline`, its name as `saved_model` and
            `Comparison.summary`, or None.
        """
        count = len(self.radii)
        correct = sum(self._statuses[name] for name in CORRECT)
        # Only certified examples have a positive radius, so zeros pad the correct ones.
        radii = np.array(self.radii)
        values = np.sort(radii)[count - correct :]
        certified = [int(np.sum(radii > r)) for r in self._at]
        intervals = confidence_interval(certified, count, self._confidence)
        return {
            "examples": count,
            "clean_accuracy": correct / count if count and self._labelled else None,
            "certified_accuracy": {str(float(r)): self.certified_accuracy(r) for r in self._at},
            "confidence": self._confidence,
            "certified_interval": dict(zip(map(str, self._at), intervals, strict=True)),
            "slices": {name: slices.summary() for name, slices in self._slices.items()},
            "mean_radius": json_number(mean_radius(np.mean, values)) if correct else None,
            "median_radius": json_number(mean_radius(np.median, values)) if correct else None,
            "statuses": {status.name: self._statuses[status.name] for status in Status},
            "gradient_evaluations": self._gradients / count if count else 0.0,
            "primal_equals_dual": self._exact / count if count else 0.0,
            "methods": {name: number for name, number in self._methods.most_common() if number},
            "met": len(self._of_met),
            "proved_of_met": float(np.median(self._of_met)) if self._of_met else None,
            "baseline": self.comparison
            and {"saved_model": visible(self._baseline)} | self.comparison.summary(),
        }


def mean_radius(mean: Callable[[np.ndarray], float], values: np.ndarray) -> float:
    """Returns a mean, or the median, of radii; finite if they are, even if their sum is not."""
    with np.errstate(over="ignore"):
        found = mean(values)
        if math.isinf(found) and np.isfinite(values).all():
            found = mean(values / len(values)) * len(values)
    return found


def json_number(value: float) -> float | str:
    """Returns a number as JSON can hold it; infinity has to be text."""
    return "inf" if math.isinf(value) else float(value)
