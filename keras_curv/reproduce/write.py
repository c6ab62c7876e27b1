"""A reproduced table as Markdown, as CSV and as a picture."""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
from collections.abc import Sequence

from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.files import write_file, write_text
from keras_curv.reports.plot import require_plottable
from keras_curv.reproduce import recipes
from keras_curv.reproduce.measurements import COLUMNS
from keras_curv.reproduce.results import Result
from keras_curv.reproduce.tables import Row, Table


@dataclasses.dataclass(frozen=True)
class Marks:
    """What a table is of, if not all that the paper's is: nothing else may be taken for that.

    Attributes:
        name: of the table.
        examples: measured.
        quick: whether the networks are tiny.
        limited: whether there are more examples.
        seed: of the trainings.
    """

    name: str
    examples: Examples
    quick: bool = False
    limited: bool = False
    seed: int = 0

    @property
    def stem(self) -> str:
        """The name of files."""
        parts = [self.name]
        if self.quick:
            parts.append("quick")
        if self.limited and not self.quick:
            parts.append(f"first_{self.examples.count}")
        if self.seed:
            parts.append(f"seed_{self.seed}")
        return ".".join(parts)

    @property
    def warnings(self) -> list[str]:
        """What to say so that everybody sees it."""
        quick = "--quick: nets of 32 units, one epoch. These are not results."
        limited = f"Of the first {self.examples.count:,} test images only."
        return [quick] * self.quick + [limited] * self.limited


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
    table: Table, results: Sequence[Result], folder: pathlib.Path, marks: Marks
) -> dict[str, pathlib.Path]:
    """Writes Markdown, CSV and, with matplotlib, a picture; returns where."""
    files = {kind: folder / f"{marks.stem}.{kind}" for kind in ("md", "csv", "png")}
    write_text(files["md"], markdown(table, results, marks))
    write_file(files["csv"], lambda part: _write_csv(part, table, results, marks))
    if not _plot(table, results, files["png"], marks):
        files["png"].unlink(missing_ok=True)
        del files["png"]
    return files


def network(result: Result) -> str:
    """In the paper's notation."""
    return f"{result.row.layers} × [{result.recipe.width}], {result.row.activation}"


def trained(row: Row) -> str:
    """How, in a few words."""
    return _TRAININGS[row.training].format(row.weight)


def _figure(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    if COLUMNS[column].unit == "%":
        return f"{value:.2f}"
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def markdown(table: Table, results: Sequence[Result], marks: Marks) -> str:
    """The table, what its columns mean, and the commands behind its rows."""
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
    """On what terms the figures stand."""
    done = sum(result.done for result in results)
    parts = [
        f"Ours, and in brackets the paper's ({table.source}); {marks.examples.name}, ρ = "
        f"{table.radius:g}, seed {marks.seed}, by `bin/reproduce --table {marks.name}`; {done} of "
        f"{len(results)} networks."
    ]
    return " ".join([*parts, *(f"**{warning}**" for warning in marks.warnings)])


def _write_csv(path: pathlib.Path, table: Table, results, marks: Marks) -> None:
    with open(path, "w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(
            ["layers", "activation", "training", "weight", "column", "ours", "paper", "command"]
            + ["seed", "quick", "examples"]
        )
        for result in results:
            for column in table.columns:
                lines.writerow(
                    [
                        *result.row[:4],
                        column,
                        result.figures.get(column),
                        result.row.figures.get(column),
                        recipes.command(result.recipe),
                        *(marks.seed, marks.quick, marks.examples.count),
                    ]
                )


def _plot(table: Table, results, path: pathlib.Path, marks: Marks) -> bool:
    """Ours as bars, the paper's as marks, a group for each network; whether it could be drawn."""
    try:
        require_plottable(str(path))
    except InputError:
        return False
    from matplotlib.figure import Figure

    shown = [r for r in results if any(c in r.figures for c in table.plot)]
    if not shown:
        return False
    columns = [c for c in table.plot if any(c in r.figures for r in shown)]
    figure = Figure(figsize=(8.0, 1.2 + 0.32 * len(shown) * max(1, len(columns) / 2)))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    colours = ("#1f5fa8", "#d98b2b", "#4b8b3b")
    height = 0.8 / len(columns)
    for index, column in enumerate(columns):
        places = [i + (index - (len(columns) - 1) / 2) * height for i in range(len(shown))]
        ours = [r.figures.get(column, math.nan) for r in shown]  # no bar where there is none
        axes.barh(places, ours, height * 0.9, color=colours[index], label=COLUMNS[column].heading)
        paper = [
            (r.row.figures[column], p)
            for r, p in zip(shown, places, strict=True)
            if column in r.row.figures
        ]
        if paper:
            axes.plot(
                *zip(*paper, strict=True),
                "|",
                color="0.15",
                markersize=9,
                mew=1.8,
                label="the paper" if index == 0 else None,
            )
    largest = max(
        v
        for r in shown
        for v in [
            *(r.figures.get(c, 0.0) for c in columns),
            *(r.row.figures.get(c, 0.0) for c in columns),
        ]
    )
    percent = all(COLUMNS[c].unit == "%" for c in columns)
    if not percent and largest > 100.0:
        axes.set_xscale("log")
    axes.set_yticks(
        range(len(shown)),
        [f"{network(r)}\n{trained(r.row).strip('*')}" for r in shown],
        fontsize=7,
    )
    axes.invert_yaxis()
    axes.set(xlabel="%" if percent else "", title="\n".join([table.title, *marks.warnings]))
    axes.title.set_fontsize(10)
    entries = 1 + len(columns)
    figure.legend(loc="outside lower center", ncols=entries, fontsize=7, frameon=False)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    write_file(path, lambda part: figure.savefig(part, dpi=130))
    return True
