"""A reproduced table as Markdown, as CSV and as a picture."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.files import write_text
from keras_curv.reports.drawing import require_drawable, write_figure
from keras_curv.reproduce import recipes
from keras_curv.reproduce.measurements import COLUMNS
from keras_curv.reproduce.tables import Row, Table
from keras_curv.training.run.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Result:
    """A row of the table with what was measured."""

    row: Row  # as in the paper
    recipe: Recipe  # by which the network was trained
    figures: dict[str, float]  # column → figure; columns not measured yet are left out
    seconds: float | None  # of training and certification; None: not trained yet, or resumed
    done: bool  # whether all figures that this network can have are measured


@dataclasses.dataclass(frozen=True)
class Marks:
    """The terms of a table, which say where it covers less than the paper's."""

    name: str  # of the table
    examples: Examples  # measured
    quick: bool = False  # whether the networks are tiny
    limited: bool = False  # whether some of the test set was left out
    seed: int = 0  # of the trainings

    @property
    def stem(self) -> str:
        """Name of the files, without a suffix."""
        limited = self.limited and not self.quick
        parts = {
            self.name: True,
            "quick": self.quick,
            f"first_{self.examples.count}": limited,
            f"seed_{self.seed}": self.seed,
        }
        return ".".join(part for part, applies in parts.items() if applies)

    @property
    def warnings(self) -> list[str]:
        """Warnings that every form of the table shows."""
        quick = "--quick: nets of 32 units, one epoch. These are not results."
        limited = f"Of the first {self.examples.count:,} test images only."
        return [quick] * self.quick + [limited] * self.limited


_COLOURS = ("#1f5fa8", "#d98b2b", "#4b8b3b")
_TRAININGS = {
    "plain": "plain",
    "penalty": "γ = {:g}, no attack",
    "crt": "CRT, γ = {:g}",
    "certified": "**certified loss**",
    "pgd": "PGD",
    "trades": "TRADES",
    "crown_ibp": "CROWN-IBP",
    "coap": "COAP",
    "noise": "adversarial noise, s = {:g}",
}


def table(
    paper: Table, results: Sequence[Result], folder: pathlib.Path, marks: Marks
) -> dict[str, pathlib.Path]:
    """Writes Markdown, CSV and, with matplotlib, a picture; returns the files."""
    files = {kind: folder / f"{marks.stem}.{kind}" for kind in ("md", "csv", "png")}
    write_text(files["md"], markdown(paper, results, marks))
    write_text(files["csv"], _csv(paper, results, marks))
    if not _plot(paper, results, files["png"], marks):
        files["png"].unlink(missing_ok=True)
        del files["png"]
    return files


def network(result: Result) -> str:
    """Returns the architecture in the paper's notation."""
    return f"{result.row.layers} × [{result.recipe.width}], {result.row.activation}"


def trained(row: Row) -> str:
    """Returns the method of training in a few words."""
    return _TRAININGS[row.training].format(row.weight)


def _figure(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    if COLUMNS[column].unit == "%":
        return f"{value:.2f}"
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def markdown(table: Table, results: Sequence[Result], marks: Marks) -> str:
    """Returns the table, the meaning of its columns, and the commands behind its rows."""
    headings = [COLUMNS[column].heading for column in table.columns]
    lines = [f"# {table.title}", "", _terms(table, results, marks), ""]
    lines.append("| " + " | ".join(["network", "training", *headings]) + " |")
    lines.append("| --- | --- |" + " ---: |" * len(headings))
    known = [result for result in results if result.figures]
    for result in known:
        cells = [network(result), trained(result.row)]
        for column in table.columns:
            ours = _figure(column, result.figures.get(column))
            theirs = result.row.figures.get(column)
            cells.append(ours if theirs is None else f"{ours} ({_figure(column, theirs)})")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Columns:", ""]
    lines += [f"- {COLUMNS[c].heading}: {COLUMNS[c].meaning}." for c in table.columns]
    lines += ["", "Commands, and seconds of training and certification on this machine:", ""]
    for result in known:
        took = "" if result.seconds is None else f", {result.seconds:.0f} s"
        command = recipes.command(result.recipe)
        lines.append(f"- {network(result)}, {trained(result.row)}: `{command}`{took}")
    rest = [f"{network(r)}, {trained(r.row)}" for r in results if not r.figures]
    if rest:
        lines += ["", f"Not run: {'; '.join(rest)}."]
    return "\n".join(lines) + "\n"


def _terms(table: Table, results: Sequence[Result], marks: Marks) -> str:
    """Returns a line on the terms of the figures: examples, ρ, seed, command."""
    done = sum(result.done for result in results)
    parts = [
        f"Ours, and in brackets the paper's ({table.source}); {marks.examples.name}, ρ = "
        f"{table.radius:g}, seed {marks.seed}, by `keras_curv reproduce --table {marks.name}`; "
        f"{done} of {len(results)} networks."
    ]
    return " ".join([*parts, *(f"**{warning}**" for warning in marks.warnings)])


def _csv(table: Table, results: Sequence[Result], marks: Marks) -> str:
    """Returns all figures, one a line."""
    headings = ["layers", "activation", "training", "weight", "column", "ours", "paper", "command"]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*headings, "seed", "quick", "examples"])
    for result in results:
        command = recipes.command(result.recipe)
        for column in table.columns:
            figures = result.figures.get(column), result.row.figures.get(column)
            terms = marks.seed, marks.quick, marks.examples.count
            lines.writerow([*result.row[:4], column, *figures, command, *terms])
    return text.getvalue()


def _plot(table: Table, results: Sequence[Result], path: pathlib.Path, marks: Marks) -> bool:
    """Draws our figures as bars and the paper's as marks; returns whether it could."""
    try:
        require_drawable(path)
    except InputError:
        return False
    shown = [result for result in results if any(c in result.figures for c in table.plot)]
    if not shown:
        return False
    columns = [c for c in table.plot if any(c in result.figures for result in shown)]
    write_figure(
        path,
        lambda figure: _draw(figure, table, shown, columns, marks),
        dpi=130,
        figsize=(8.0, 1.2 + 0.32 * len(shown) * max(1, len(columns) / 2)),
        layout="constrained",
    )
    return True


def _draw(
    figure: Figure, table: Table, shown: Sequence[Result], columns: Sequence[str], marks: Marks
) -> None:
    axes = figure.add_subplot()
    height, largest = 0.8 / len(columns), 0.0
    for index, (column, colour) in enumerate(zip(columns, _COLOURS, strict=False)):
        places = [i + (index - (len(columns) - 1) / 2) * height for i in range(len(shown))]
        # NaN draws nothing.
        ours = [result.figures.get(column, math.nan) for result in shown]
        theirs = [result.row.figures.get(column, math.nan) for result in shown]
        axes.barh(places, ours, height * 0.9, color=colour, label=COLUMNS[column].heading)
        known = [value for value in theirs if not math.isnan(value)]
        label = "the paper" if known and index == 0 else None
        axes.plot(theirs, places, "|", color="0.15", markersize=9, mew=1.8, label=label)
        largest = max([largest, *known, *(value for value in ours if not math.isnan(value))])
    percent = all(COLUMNS[c].unit == "%" for c in columns)
    if not percent and largest > 100.0:
        axes.set_xscale("log")
    names = [f"{network(result)}\n{trained(result.row).strip('*')}" for result in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="%" if percent else "", title="\n".join([table.title, *marks.warnings]))
    axes.title.set_fontsize(10)
    figure.legend(loc="outside lower center", ncols=1 + len(columns), fontsize=7, frameon=False)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
