"""A reproduced table as Markdown, as CSV and as a picture."""

from __future__ import annotations

import csv
import math
import pathlib
from collections.abc import Sequence

from keras_curv.errors import InputError
from keras_curv.files import write_file, write_text
from keras_curv.plot import require_plottable
from keras_curv.reproduce import recipes
from keras_curv.reproduce.measurements import COLUMNS
from keras_curv.reproduce.results import Result
from keras_curv.reproduce.tables import Row, Table

_TRAININGS = {
    "plain": "plain",
    "penalty": "γ = {:g}, no attack",
    "crt": "CRT, γ = {:g}",
    "certified": "**certified loss**",
    "pgd": "PGD",
    "trades": "TRADES",
    "crown_ibp": "CROWN-IBP",
    "coap": "COAP",
    "noise": "noise, s = {:g}",
}


def table(
    name: str, table: Table, results: Sequence[Result], folder: pathlib.Path, *, quick, limit
) -> dict[str, pathlib.Path]:
    """Writes `name.md`, `name.csv` and, with matplotlib, `name.png`; returns where."""
    files = {"md": folder / f"{name}.md", "csv": folder / f"{name}.csv"}
    write_text(files["md"], markdown(name, table, results, quick=quick, limit=limit))
    write_file(
        files["csv"], lambda part: _write_csv(part, table, results, quick=quick, limit=limit)
    )
    picture = folder / f"{name}.png"
    if _plot(table, results, picture):
        files["png"] = picture
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


def markdown(
    name: str, table: Table, results: Sequence[Result], *, quick: bool, limit: int | None
) -> str:
    """The table, what its columns mean, and the commands behind its rows."""
    headings = [COLUMNS[column].heading for column in table.columns]
    lines = [f"# {table.title}", "", _terms(name, table, results, quick=quick, limit=limit), ""]
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


def _terms(name: str, table: Table, results, *, quick, limit) -> str:
    """On what terms the figures stand."""
    done = sum(result.done for result in results)
    parts = [
        f"Ours, and in brackets the paper's ({table.source}); ρ = {table.radius:g}, seed "
        f"{results[0].recipe.seed}, by `bin/reproduce --table {name}`; {done} of {len(results)} "
        "networks."
    ]
    if quick:
        parts.append("**--quick: nets of 32 units, one epoch. These are not results.**")
    if limit is not None:
        parts.append(f"**Of the first {limit:,} test images only.**")
    return " ".join(parts)


def _write_csv(path: pathlib.Path, table: Table, results, *, quick, limit) -> None:
    with open(path, "w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(
            ["layers", "activation", "training", "weight", "column", "ours", "paper", "command"]
            + ["seed", "quick", "limit"]
        )
        for result in results:
            for column in table.columns:
                lines.writerow(
                    [
                        *result.row[:4],
                        column,
                        result.figures.get(column),
                        result.row.figures.get(column),
                        *(recipes.command(result.recipe), result.recipe.seed, quick, limit),
                    ]
                )


def _plot(table: Table, results, path: pathlib.Path) -> bool:
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
    axes.set(xlabel="%" if percent else "", title=table.title)
    axes.title.set_fontsize(10)
    entries = 1 + len(columns)
    figure.legend(loc="outside lower center", ncols=entries, fontsize=7, frameon=False)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    write_file(path, lambda part: figure.savefig(part, dpi=130))
    return True
