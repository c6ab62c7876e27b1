"""What a report needs of a run: two numbers for every row, and the few least robust rows."""

from __future__ import annotations

import array
import heapq
from collections.abc import Iterable

import numpy as np

from keras_curv.certificates.certificate import Status
from keras_curv.rows.row import Row

_CORRECT = (Status.CERTIFIED.name, Status.UNPROVED.name)


class ReportData:
    """Takes rows in as they come; examples are read again in the end, by index.

    Args:
        count: of the least robust examples to keep: predicted as labelled, smallest radius first.

    Attributes:
        least_robust: their rows.
    """

    def __init__(self, count: int = 12):
        self.least_robust: list[Row] = []
        self._count = count
        self._radii = array.array("d")
        self._classes = array.array("q")
        self._correct = array.array("b")

    def add(self, rows: Iterable[Row]) -> None:
        """Counts rows in, but for those that are skipped."""
        rows = [row for row in rows if not row.skipped]
        for row in rows:
            self._radii.append(row.radius)
            self._classes.append(row.prediction if row.label is None else row.label)
            self._correct.append(row.status in _CORRECT)
        correct = [row for row in rows if row.status in _CORRECT]
        self.least_robust = heapq.nsmallest(
            self._count, self.least_robust + correct, key=lambda row: (row.radius, row.index)
        )

    @property
    def radii(self) -> np.ndarray:
        """Of every example; 0 where nothing is certified."""
        return np.array(self._radii)

    @property
    def classes(self) -> np.ndarray:
        """The label of every example, or without labels its prediction; −1 is none."""
        return np.array(self._classes)

    @property
    def correct(self) -> np.ndarray:
        """Whether the prediction is the label; without labels, whether there is one."""
        return np.array(self._correct, bool)
