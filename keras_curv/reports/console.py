"""Output in a terminal: the table at the end, and the progress before."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from keras_curv.errors import visible
from keras_curv.files import discard_stdout
from keras_curv.reports.requests import all_refused, print_reasons, print_requests
from keras_curv.reports.tables import baseline_table, print_line, print_table, short_slice_table
from keras_curv.reports.wording import (
    caveats,
    describe,
    facts,
    headline,
    interval,
    interval_name,
    model_name,
    percent,
    radius_name,
)

_LINE_AFTER = 30.0  # seconds, where stderr is no terminal
_MOST_LINES = 100
_MOST_PARTS = 12  # of a slice


class _Output(Console):
    """Stdout whose reader may stop at any time, as `… | head` does."""

    def on_broken_pipe(self) -> None:
        """Writes the rest nowhere, where rich would end the process with a status of its own."""
        discard_stdout()


def print_summary(summary: dict, console: Console | None = None, *, verbose: bool = False) -> None:
    """Prints a summary: the verdict, what was certified, how far, and at what cost.

    Args:
        summary: of a run.
        console: to print on; default: stdout.
        verbose: prints all terms, and not only those that limit the claim.
    """
    console = console or _Output()
    if nothing := all_refused(summary):
        console.print(nothing, style="bold", highlight=False, markup=False, soft_wrap=True)
    if summary.get("verdict") is not None:
        _print_verdict(summary["verdict"], console)
    if "versions" in summary:
        print_reasons(summary, console)
    _print_table(summary, console)
    _print_terms(summary, console, verbose)
    if "versions" in summary:
        print_requests(summary, console)
    if summary["baseline"] is not None:
        print_table(baseline_table(summary), console)


def _print_verdict(verdict: dict, console: Console) -> None:
    colour = "green" if verdict["passed"] else "red"
    for text, style in [
        (headline(verdict), f"bold {colour}"),
        *((describe(c), "") for c in verdict["checks"]),
    ]:
        console.print(Text(visible(text), style), highlight=False, soft_wrap=True)
    console.print()


def _print_table(summary: dict, console: Console) -> None:
    title = visible(f"{model_name(summary)} on {summary['dataset']}")
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    clean = summary["clean_accuracy"]
    table = Table()
    table.add_column(radius_name(summary), justify="right", no_wrap=True)
    heading = "certified accuracy" if clean is not None else "certified (no labels)"
    table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(interval_name(summary), justify="right", no_wrap=True)
    if clean is not None:
        table.add_row("0 (clean)", percent(clean))
    for radius, fraction in summary["certified_accuracy"].items():
        ends = summary["certified_interval"][radius]
        table.add_row(radius, percent(fraction), interval(ends))
    console.print(table)
    for name in summary["slices"]:
        print_table(short_slice_table(summary, name, _MOST_PARTS), console)


def _print_terms(summary: dict, console: Console, verbose: bool) -> None:
    spent = f"{summary['seconds']:.1f} s"
    spent += f", {summary['gradient_evaluations']:.1f} gradients per example"
    lines = [*facts(summary), ("cost", spent)]
    if not verbose:
        word = " example " if summary["examples"] == 1 else " examples "
        counts = lines[0][1].replace(" ", word, 1)
        print_line(f"{counts}, {spent}", console)
        lines = caveats(summary)
    for name, text in lines:
        line = Text.assemble((f"{name:>10}", "bold"), "  ", visible(text))
        console.print(line, highlight=False, soft_wrap=True)


def print_names(rows: Iterable[Sequence[str]]) -> None:
    """Prints names and what they stand for, in columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@contextlib.contextmanager
def working(text: str, *, visible: bool) -> Iterator[None]:
    """Shows a spinner on stderr during work of unknown length; where stderr is no terminal, prints
    a line once the work has taken long."""
    console = Console(stderr=True)
    if not visible:
        yield
        return
    if not _is_watched(console):
        timer = threading.Timer(_LINE_AFTER, print, [text], {"file": sys.stderr, "flush": True})
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    with console.status(text):
        yield


@contextlib.contextmanager
def progress_bar(total: int, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr, or now and then a line if stderr is no terminal.

    Yields what to call with the number of examples just finished.
    """
    console = Console(stderr=True)
    if not visible:
        yield lambda count: None
        return
    if not _is_watched(console):
        with working(
            f"certifying {total - done:,} examples", visible=True
        ):  # the first may be slow
            yield _Lines(total, done).advance
        return
    # The bar moves by the batch, which a slow model may take minutes for; the spinner and the clock
    # say that it is at work.
    columns = (
        SpinnerColumn(),
        TextColumn("certifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("certifying", total=total, completed=done)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Prints lines about the progress of long work, a limited number in all."""

    def __init__(self, total: int, done: int):
        self._total, self._resumed, self._done, self._told = total, done, done, done
        self._started = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        """Adds this many examples, and tells of them where it is time to."""
        self._done += count
        now, left = time.monotonic(), self._total - self._done
        few = (self._done - self._told) * _MOST_LINES < self._total
        if few or now - self._last < _LINE_AFTER or not left:
            return
        self._last, self._told = now, self._done
        spent = now - self._started
        still = spent * left / (self._done - self._resumed)
        print(
            f"certifying: {self._done:,} of {self._total:,} examples in {_clock(spent)}, "
            f"about {_clock(still)} left",
            file=sys.stderr,
            flush=True,
        )


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _is_watched(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter
