"""The terminal's tables of a run over logged requests."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from keras_curv.reports.console import print_table
from keras_curv.reports.wording import percent, percent_up


def print_requests(summary: dict, console: Console | None = None) -> None:
    """Prints the summary of `certify_requests`, readable."""
    console = console or Console()
    print_table(summary, console)
    radii = list(summary["certified_accuracy"])
    versions = [(name or "unknown", entry) for name, entry in summary["versions"].items()]
    _print_fractions("version", versions, radii, console)
    drift = summary["drift"]
    if drift["by"] == "time":
        heading = "from"
    else:
        heading = "from row"
        console.print("Not all requests have timestamps: over the order of files and records.")
    _print_fractions(heading, [(str(p["from"]), p) for p in drift["parts"]], radii, console)
    for name, reason in summary["reasons"].items():
        verb = "skipped" if reason["skipped"] else "refused"
        detail = f": {reason['detail']}" if reason["detail"] else ""
        _plain(
            console,
            f"{verb} {reason['count']:,} {name}: {reason['text']}; first {reason['first']}{detail}",
        )
    if summary["baseline"] is not None:
        _print_comparison(summary["baseline"], console)


def _print_fractions(heading: str, rows: list, radii: list[str], console: Console) -> None:
    """Prints for each version or part how many examples it has, and the fraction at each radius."""
    table = Table()
    table.add_column(heading, no_wrap=True)
    for name in ("examples", *(f"> {radius}" for radius in radii)):
        table.add_column(name, justify="right", no_wrap=True)
    for name, entry in rows:
        fractions = [percent(entry["certified"][radius]) for radius in radii]
        table.add_row(name, f"{entry['examples']:,}", *fractions)
    console.print(table)


def _print_comparison(baseline: dict, console: Console) -> None:
    _plain(
        console,
        f"against {baseline['saved_model']}: {baseline['compared']:,} examples, "
        f"{baseline['prediction_changed']:,} predicted differently",
    )
    table = Table()
    for name in ("l2 radius", "baseline certifies", "lost", "gained", "lost of these"):
        table.add_column(name, justify="right", no_wrap=True)
    for radius, entry in baseline["radii"].items():
        counts = [f"{entry[name]:,}" for name in ("baseline", "lost", "gained")]
        table.add_row(radius, *counts, percent_up(entry["lost_fraction"]))
    console.print(table)


def _plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
