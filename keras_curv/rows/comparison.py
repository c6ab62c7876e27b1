"""Two models on the same examples: what one certifies and the other does not."""

from __future__ import annotations

import collections
import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

import scipy.special

from keras_curv.files import replacing, writing
from keras_curv.rows.reason import Reason
from keras_curv.rows.row import Row


class Comparison:
    """Counts the examples that lost or gained their certificate against the baseline, by radius.

    The baseline certifies its own answer, so a certificate for another class counts as lost.
    Examples that it cannot answer, as when the version that served them is gone, are not compared.

    Args:
        radii: at which to count.
    """

    def __init__(self, radii: Sequence[float]):
        self._radii = tuple(radii)
        self._counts: dict[float, collections.Counter[str]] = {
            radius: collections.Counter() for radius in radii
        }
        self._compared = 0
        self._unanswered: collections.Counter[str] = collections.Counter()
        self._changed = 0

    def add(self, row: Row) -> None:
        """Counts a row in."""
        if row.baseline_status in Reason.__members__:
            self._unanswered[row.baseline_status] += 1
            return
        self._compared += 1
        self._changed += _changed(row)
        lost = self.lost(row)
        for radius, counts in self._counts.items():
            before, now = row.baseline_radius > radius, row.radius > radius
            counts["baseline"] += before
            counts["lost"] += radius in lost
            counts["gained"] += now and not before

    def gained(self, row: Row) -> list[float]:
        """Returns the radii at which this row has a certificate that the baseline has not."""
        if row.baseline_status in Reason.__members__:
            return []
        return [r for r in self._radii if row.radius > r >= row.baseline_radius]

    def lost(self, row: Row) -> list[float]:
        """Returns the radii at which this row lost its certificate."""
        kept = 0.0 if _changed(row) else row.radius
        return [r for r in self._radii if row.baseline_radius > r >= kept]

    def summary(self) -> dict:
        """Returns `compared`, `unanswered` (reason → count), `prediction_changed` and `radii`.

        The last is radius as string → `baseline` (certified by it), `lost`, `gained`,
        `lost_fraction` of those certified by the baseline, and `p_value`, see `paired_p_value`.
        """
        return {
            "compared": self._compared,
            "unanswered": dict(self._unanswered),
            "prediction_changed": self._changed,
            "radii": {
                str(radius): {name: counts[name] for name in ("baseline", "lost", "gained")}
                | {
                    "lost_fraction": counts["lost"] / max(counts["baseline"], 1),
                    "p_value": paired_p_value(counts["lost"], counts["gained"]),
                }
                for radius, counts in self._counts.items()
            },
        }


def _changed(row: Row) -> bool:
    """Returns whether the two models predict different classes."""
    both = row.prediction >= 0 and row.baseline_prediction >= 0
    return both and row.prediction != row.baseline_prediction


def paired_p_value(lost: int, gained: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test.

    It is the probability of a split of the changed examples that is at least as uneven, if each of
    them, by itself, were as likely to be lost as gained.

    Example:
        >>> paired_p_value(0, 6), paired_p_value(3, 3), paired_p_value(0, 0)
        (0.03125, 1.0, 1.0)

    Reference: McNemar, "Note on the sampling error of the difference between correlated
    proportions or percentages" (1947), with the binomial distribution in place of its limit.
    """
    tail = scipy.special.bdtr(min(lost, gained), lost + gained, 0.5) if lost + gained else 1.0
    return min(1.0, 2.0 * float(tail))


class ChangedRows:
    """Writes the rows that lost, or gained, their certificate against the baseline, and where.

    Args:
        write: takes a line, as cells.
        columns: of the line, names of attributes of `Row`.
        name: of the last column, the radii.
        radii_of: returns the radii at which a row changed.
    """

    def __init__(
        self,
        write: Callable[[Iterable], object],
        columns: Sequence[str],
        name: str,
        radii_of: Callable[[Row], list[float]],
    ):
        self._write, self._columns, self._radii_of = write, tuple(columns), radii_of
        write((*self._columns, name))

    def add(self, rows: Iterable[Row]) -> None:
        """Writes those that changed."""
        for row in rows:
            radii = self._radii_of(row)
            if radii:
                self._write([*row.cells(self._columns), " ".join(map(str, radii))])


@contextlib.contextmanager
def changed_file(
    path: str, columns: Sequence[str], name: str, radii_of: Callable[[Row], list[float]]
) -> Iterator[ChangedRows]:
    """Opens a CSV file of changed rows, which is there when all of them are."""
    with (
        writing(path),
        replacing(path) as part,
        io.TextIOWrapper(part, newline="", encoding="utf-8") as file,
    ):
        write = csv.writer(file, lineterminator="\n").writerow
        yield ChangedRows(write, columns, name, radii_of)
