"""A job: the examples of a run as a stream, and the model that certifies them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from keras_curv.errors import InputError
from keras_curv.reports.html.cases import Case
from keras_curv.rows.row import BASELINE_COLUMNS, EXAMPLE_COLUMNS, QUALIFIED, Row
from keras_curv.rows.slices import BY_CLASS, class_of
from keras_curv.rows.tally import Tally
from keras_curv.runs.options import RunOptions


class Sink(Protocol):
    """Takes rows as they come."""

    def add(self, rows: Iterable[Row]) -> None:
        """Takes more rows."""


class Job(abc.ABC):
    """A model that is read and bounded once, and the examples to certify with it.

    Attributes:
        settings: all that rows depend on, as JSON can hold it; has `batch_size`.
        count: how many rows there will be.
        columns: of the rows, names of attributes of `Row`.
        changed_columns: of the files of rows that changed against the baseline.
        timed: whether the summary that is written says how long the run took.
    """

    settings: dict
    count: int
    columns: Sequence[str] = EXAMPLE_COLUMNS
    changed_columns: ClassVar[Sequence[str]] = (
        *("index", "label", "prediction", "radius", "status"),
        *BASELINE_COLUMNS,
    )
    timed: ClassVar[bool] = True

    @abc.abstractmethod
    def batches(self, start: int) -> Iterator[list[Row]]:
        """Certifies a batch after the other and yields their rows.

        Args:
            start: the first row to certify, which begins a batch.

        Raises:
            InputError: an example cannot be read or certified.
        """

    @abc.abstractmethod
    def require_rows(self, rows: Sequence[Row]) -> None:
        """Refuses rows of an earlier run, the first ones, that are not of these examples.

        Raises:
            InputError: a row says what this job says of no example, or of another one.
        """

    @abc.abstractmethod
    def remote_factory(self) -> Callable[[], Job]:
        """Returns a function that can be pickled, and makes this job again in another process.

        It reads model and examples from the same places, and raises InputError if they differ.

        Raises:
            InputError: the model or the examples are in memory only.
        """

    @abc.abstractmethod
    def facts(self) -> dict:
        """Returns what the summary says beside the settings that needs no rows."""

    @abc.abstractmethod
    def cases(self, rows: Sequence[Row]) -> list[Case]:
        """Reads the examples of a few rows again and searches adversarial points near them.

        Raises:
            InputError: the examples are not there any more.
        """

    @property
    def distances(self) -> np.ndarray | None:
        """Returns the distances of the nearest adversarial points, of every example, once they are
        searched; None where they are not."""
        return None

    def claimed(self, rows: list[Row]) -> list[Row]:
        """Returns rows with their claim, if they have columns for it."""
        if not set(QUALIFIED) <= set(self.columns):
            return rows
        claim = {name: self.settings[name] for name in QUALIFIED}
        return [row._replace(**claim) for row in rows]

    def tally(self, options: RunOptions) -> Tally:
        """Returns what sums the rows up."""
        return Tally(options.radii, **self.tallied(options))

    def tallied(self, options: RunOptions) -> dict[str, Any]:
        """Returns the arguments of `Tally` beside the radii."""
        known = {"confidence": options.confidence, "slices": self.slices(options)}
        return known | {"baseline": options.baseline}

    def slices(self, options: RunOptions) -> dict[str, Callable[[Row], str]]:
        """Returns each slice that is reported or required, with what names the part of a row.

        Raises:
            InputError: the examples have no such array.
        """
        return {name: self.part_of(name) for name in options.sliced}

    def part_of(self, name: str) -> Callable[[Row], str]:
        """Returns what names the part of a slice that a row is in.

        Raises:
            InputError: the examples have no such array.
        """
        if name != BY_CLASS:
            raise InputError(f"these examples have no slices but {BY_CLASS!r}. Received: {name!r}")
        return class_of

    def sinks(self) -> Iterator[Any]:
        """Yields context managers of further sinks, to be entered for the run."""
        yield from ()


def same_job(make: Callable[..., Job], arguments: Sequence, settings: dict) -> Job:
    """Makes a job again in another process, and checks that its settings are the same.

    Args:
        make: with `arguments`, makes the job; all can be pickled.
        settings: of the job as it was made first.

    Raises:
        InputError: they differ.
    """
    job = make(*arguments)
    for key, wanted in settings.items():
        if job.settings[key] != wanted:
            raise InputError(
                f"this worker has {key} {job.settings[key]!r} where the run began with {wanted!r}; "
                "all machines need the same package, model and data at the same places"
            )
    return job
