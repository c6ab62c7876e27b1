"""The data of a run that a report needs: few numbers of every row, and the least robust rows."""

from __future__ import annotations

import array
import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from keras_curv.certificates.certificate import Status
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.rows.row import Row

_BATCH = 256  # examples read at a time to find the few again
_CORRECT = (Status.CERTIFIED.name, Status.UNPROVED.name)


class ReportData:
    """Data of the rows of a run, taken in as they come.

    Examples are not kept; the few that are shown are read again in the end, by index.

    Args:
        count: how many of the least robust examples to keep.

    Attributes:
        least_robust: rows of examples predicted as labelled, those of the smallest radius first.
    """

    def __init__(self, count: int = 12) -> None:
        self.least_robust: list[Row] = []
        self._count = count
        self._radii = array.array("d")
        self._classes = array.array("q")
        self._correct = array.array("b")

    def add(self, rows: Iterable[Row]) -> None:
        """Takes rows in."""
        rows = list(rows)
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
        """Radius of every example; 0 where nothing is certified."""
        return np.array(self._radii)

    @property
    def classes(self) -> np.ndarray:
        """Label of every example, or without labels its prediction; −1 is none."""
        return np.array(self._classes)

    @property
    def correct(self) -> np.ndarray:
        """Whether the prediction is the label; without labels, whether there is one."""
        return np.array(self._correct, bool)


def read_again(examples: Examples, indices: Sequence[int]) -> np.ndarray:
    """Reads a few examples of a stream, `(len(indices), *shape)`, in one pass.

    Raises:
        InputError: the stream has become shorter.
    """
    wanted = set(indices)
    found: dict[int, np.ndarray] = {}
    start = min(wanted)
    for x, _ in examples.batches(_BATCH, start):
        inside = wanted.intersection(range(start, start + len(x)))
        found |= {index: np.array(x[index - start]) for index in inside}
        start += len(x)
        if len(found) == len(wanted):
            return np.stack([found[index] for index in indices])
    raise InputError(f"{examples.name} has no example {min(wanted - found.keys())} any more")
