"""Output in a terminal: the table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
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
