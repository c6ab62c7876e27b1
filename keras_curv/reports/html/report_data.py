"""The data of a run that a report needs: few numbers of every row, and the least robust rows."""

from __future__ import annotations

import array
import heapq
from collections.abc import Iterable

import numpy as np

from keras_curv.certificates.certificate import CORRECT, Status
from keras_curv.rows.comparison import Comparison
from keras_curv.rows.row import Row

_SHOWN = 12  # of the least robust examples


class ReportData:
    """Data of the rows of a run, taken in as they come.

    Examples are not kept; the few that are shown are read again in the end, by index.

    Args:
        comparison: with a baseline, or None.

    Attributes:
        radii: of every example; 0 where nothing is certified.
        classes: label of every example, or without labels its prediction; −1 where neither is
            known.
        correct: whether the prediction is the label; without labels, whether there is one.
        distances: of the nearest adversarial points, of every example; None: not searched.
        misclassified: the first rows whose prediction is not the label.
        lost, gained: the first rows whose certificate was lost, or gained, against the baseline,
            with the radii at which that is so.
        least_robust: rows of examples predicted as labelled, those of the smallest radius first.
    """

    def __init__(self, comparison: Comparison | None = None) -> None:
        self._comparison = comparison
        self.lost: list[tuple[Row, list[float]]] = []
        self.gained: list[tuple[Row, list[float]]] = []
        self.radii = array.array("d")
        self.classes = array.array("q")
        self.correct = array.array("b")
        self.least_robust: list[Row] = []
        self.misclassified: list[Row] = []
        self.distances: np.ndarray | None = None

    def add(self, rows: Iterable[Row]) -> None:
        """Takes rows in, but for those that are skipped."""
        rows = [row for row in rows if not row.skipped]
        for row in rows:
            self.radii.append(row.radius)
            self.classes.append(row.prediction if row.label is None else row.label)
            self.correct.append(row.status in CORRECT)
            if row.status == Status.MISCLASSIFIED.name and len(self.misclassified) < _SHOWN:
                self.misclassified.append(row)
            if self._comparison is not None:
                _keep(self.lost, row, self._comparison.lost(row))
                _keep(self.gained, row, self._comparison.gained(row))
        correct = [row for row in rows if row.status in CORRECT]
        self.least_robust = heapq.nsmallest(
            _SHOWN, self.least_robust + correct, key=lambda row: (row.radius, row.index)
        )


def _keep(kept: list[tuple[Row, list[float]]], row: Row, radii: list[float]) -> None:
    if radii and len(kept) < _SHOWN:
        kept.append((row, radii))
