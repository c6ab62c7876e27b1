"""Sums over the rows of logged requests: by version, over time, and by reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from keras_curv.rows.reason import Reason
from keras_curv.rows.row import Row
from keras_curv.rows.slices import Fraction
from keras_curv.rows.tally import Tally
from keras_curv.serving.requests import Survey

PARTS = 10


class Parts:
    """The certified fraction over time, in equal parts.

    They are parts of the time between the first and the last request where all have a timestamp,
    else of the order of the rows.
    """

    def __init__(self, survey: Survey, radii: Sequence[float]):
        self.by = "order" if survey.times is None else "time"
        self._first = 0 if survey.times is None else survey.times[0]
        length = survey.count if survey.times is None else survey.times[1] - self._first + 1
        self._length = length
        self._parts = [Fraction(radii) for _ in range(min(PARTS, length))]

    def add(self, row: Row) -> None:
        """Counts a row in."""
        place = row.index if self.by == "order" else row.timestamp - self._first
        inside = min(max(place, 0), self._length - 1)  # a record that is no request has no time
        self._parts[inside * len(self._parts) // self._length].add(row)

    def summary(self) -> dict:
        """Returns `by` ("time" or "order"), and the `parts` that are not empty, each with its first
        row or second."""
        count = len(self._parts)
        starts = [self._first + -(-k * self._length // count) for k in range(count)]
        return {
            "by": self.by,
            "parts": [
                {"from": start if self.by == "order" else _date(start)} | part.summary()
                for start, part in zip(starts, self._parts, strict=True)
                if part.examples
            ],
        }


class RequestTally(Tally):
    """Sums rows up as they come, over all versions and by version, time and reason.

    Args:
        at: radii at which to report.
        survey: of the log.
        **options: of `Tally`.
    """

    def __init__(self, at: Sequence[float], survey: Survey, **options: Any):
        super().__init__(at, **options)
        self._versions: dict[str, Fraction] = {}
        self._parts = Parts(survey, at)
        self._reasons: dict[str, dict] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Counts rows in."""
        rows = list(rows)
        super().add(rows)
        for row in rows:
            if row.reason is not None:
                self._count_reason(row, row.reason)
            if row.skipped:
                continue
            version = "" if row.reason is Reason.NO_VERSION else row.version
            self._versions.setdefault(version, Fraction(self._at)).add(row)
            self._parts.add(row)

    def _count_reason(self, row: Row, reason: Reason) -> None:
        first = {
            "count": 0,
            "skipped": reason.skipped,
            "text": reason.text,
            "first": f"{row.file}, record {row.record}, example {row.example}",
            "detail": row.detail,
        }
        self._reasons.setdefault(row.status, first)["count"] += 1

    def summary(self) -> dict:
        """Returns the result of the run, as JSON can hold it.

        Returns:
            All of `Tally.summary`, over requests that are not skipped; how many examples
            were `refused`, and records `skipped`; `reasons`, name → count, text, where it first
            came and with what detail; `versions`, version ("" where none is known) → see
            `Fraction.summary`; `drift`, see `Parts.summary`.
        """
        reasons = self._reasons.values()
        return super().summary() | {
            "refused": sum(r["count"] for r in reasons if not r["skipped"]),
            "skipped": sum(r["count"] for r in reasons if r["skipped"]),
            "reasons": self._reasons,
            "versions": {
                version: self._versions[version].summary()
                for version in sorted(self._versions, key=lambda v: (len(v), v))
            },
            "drift": self._parts.summary(),
        }


def _date(seconds: int) -> str:
    try:
        date = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return str(seconds)
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")
