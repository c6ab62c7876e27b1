"""Tables of a summary, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import rich.table
from rich.console import Console
from rich.text import Text

from keras_curv.errors import visible
from keras_curv.reports.wording import (
    interval,
    interval_name,
    number,
    percent,
    percent_up,
    radius_name,
)
from keras_curv.rows.row import Row


class Table(NamedTuple):
    """A table whose first column names its rows; the others are figures."""

    caption: str  # what it is about
    heads: list[str]  # of the columns
    rows: list[list[str]]  # cells of each


def slice_table(summary: dict, name: str) -> Table:
    """Returns the certified fraction in each part of a slice, with its confidence interval.

    Args:
        summary: of a run.
        name: of the slice.
    """
    heads = [text for r in summary["certified_accuracy"] for text in (r, interval_name(summary))]
    return _slices(
        summary,
        name,
        heads,
        lambda entry, r: [percent(entry["certified"][r]), interval(entry["interval"][r])],
    )


def short_slice_table(summary: dict, name: str, most: int) -> Table:
    """Returns the certified fraction in the parts of a slice, without intervals.

    Args:
        summary: of a run.
        name: of the slice.
        most: rows, of the parts that are certified least at the largest radius.
    """
    radii = [*summary["certified_accuracy"]]
    table = _slices(summary, name, radii, lambda entry, r: [percent(entry["certified"][r])])
    if len(table.rows) <= most:
        return table
    found = [
        entry["certified"][max(radii, key=float)] for entry in summary["slices"][name].values()
    ]
    least = sorted(sorted(range(len(found)), key=found.__getitem__)[:most])
    caption = f"{table.caption}: the {most} least certified of {len(found)}; the summary has all"
    return Table(caption, table.heads, [table.rows[i] for i in least])


def _slices(
    summary: dict, name: str, heads: list[str], cells: Callable[[dict, str], list[str]]
) -> Table:
    labelled = summary["clean_accuracy"] is not None
    rows = []
    for part, entry in summary["slices"][name].items():
        clean = [percent(entry["correct"] / max(entry["examples"], 1))] if labelled else []
        found = [text for radius in summary["certified_accuracy"] for text in cells(entry, radius)]
        rows.append([part, f"{entry['examples']:,}", *clean, *found])
    clean_head = ["clean"] if labelled else []
    return Table(f"Certified, by {name}", [name, "examples", *clean_head, *heads], rows)


def baseline_table(summary: dict) -> Table:
    """Returns what was lost and gained against the baseline, by radius.

    Args:
        summary: of a run with a baseline.
    """
    baseline = summary["baseline"]
    caption = [
        f"Against {baseline['saved_model']}: {baseline['compared']:,} examples",
        f"{baseline['prediction_changed']:,} predicted differently",
        *(f"{n:,} more that it refused as {name}" for name, n in baseline["unanswered"].items()),
    ]
    heads = [radius_name(summary), "baseline certifies", "lost", "gained", "lost of these"]
    rows = [
        [radius, *(f"{entry[name]:,}" for name in ("baseline", "lost", "gained"))]
        + [percent_up(entry["lost_fraction"]), f"{entry['p_value']:.2g}"]
        for radius, entry in baseline["radii"].items()
    ]
    return Table(", ".join(caption), [*heads, "paired p"], rows)


def changed_table(changed: list[tuple[Row, list[float]]], caption: str) -> Table:
    """Returns examples that changed against the baseline, one by one.

    Args:
        changed: rows, with the radii at which they changed.
        caption: of the table.
    """
    heads = ["example", "label", "before", "its radius", "now", "its radius"]
    rows = [
        [
            f"{row.file}, record {row.record}, {row.example}" if row.file else str(row.index),
            "" if row.label is None else str(row.label),
            *(str(row.baseline_prediction), number(row.baseline_radius)),
            *(str(row.prediction), number(row.radius)),
            ", ".join(map(str, radii)),
        ]
        for row, radii in changed
    ]
    return Table(caption, [*heads, "changed at"], rows)


def print_table(table: Table, console: Console) -> None:
    """Prints a table below its caption."""
    print_line(table.caption, console)
    drawn = rich.table.Table()
    for i, head in enumerate(table.heads):
        drawn.add_column(Text(visible(head)), justify="right" if i else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    console.print(drawn)


def print_line(text: str, console: Console) -> None:
    """Prints a line as it is."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)
