"""What a person sees in a terminal: the table at the end, and what goes on meanwhile."""

from __future__ import annotations

import contextlib
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
from keras_curv.reports.requests import print_requests
from keras_curv.reports.wording import facts, percent, radius_name


def print_summary(summary: dict, console: Console | None = None) -> None:
    """Prints a summary: what was certified, how far, and on what terms."""
    console = console or Console()
    _print_table(summary, console)
    if "versions" in summary:
        print_requests(summary, console)


def _print_table(summary: dict, console: Console) -> None:
    title = visible(f"{summary['saved_model']} on {summary['dataset']}")
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    clean = summary["clean_accuracy"]
    table = Table()
    table.add_column(radius_name(summary), justify="right", no_wrap=True)
    heading = "certified accuracy" if clean is not None else "certified (no labels)"
    table.add_column(heading, justify="right", no_wrap=True)
    if clean is not None:
        table.add_row("0 (clean)", percent(clean))
    for radius, fraction in summary["certified_accuracy"].items():
        table.add_row(radius, percent(fraction))
    console.print(table)
    cost = (
        f"{summary['seconds']:.1f} s, {summary['gradient_evaluations']:.1f} gradients per example"
    )
    for name, text in [*facts(summary), ("cost", cost)]:
        line = Text.assemble((f"{name:>10}", "bold"), "  ", visible(text))
        console.print(line, highlight=False, soft_wrap=True)


def print_names(rows: Iterable[Sequence[str]], console: Console | None = None) -> None:
    """Names and what they stand for, in columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    (console or Console()).print(table)


@contextlib.contextmanager
def working(text: str, *, visible: bool) -> Iterator[None]:
    """A spinner on stderr while something of unknown length goes on."""
    if not visible:
        yield
        return
    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def progress_bar(total: int, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; yields what to call with the number of examples just finished."""
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
    with Progress(
        *columns, console=Console(stderr=True), disable=not visible, transient=True
    ) as progress:
        task = progress.add_task("certifying", total=total, completed=done)
        yield lambda count: progress.advance(task, count)
