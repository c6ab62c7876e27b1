"""A certification run as one HTML file, for people who were not there.

`report.html.j2` is the page; here are the figures that it shows. The file has all in it: style,
drawings and pictures, no script, nothing to fetch; its own content security policy forbids both.
It follows the reader's light or dark scheme and the width of the screen. The same run gives the
same bytes, in one go or resumed: there is no time in it.
"""

from __future__ import annotations

import functools
import pathlib
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.certificates.certificate import Status, last_radius
from keras_curv.reports.html import charts
from keras_curv.reports.html.cases import Case
from keras_curv.reports.html.examples import gallery
from keras_curv.reports.html.pictures import is_image
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.html.templates import ENVIRONMENT
from keras_curv.reports.requests import request_reasons, request_tables
from keras_curv.reports.tables import Table, baseline_table, changed_table, slice_table
from keras_curv.reports.wording import (
    claim,
    describe,
    facts,
    headline,
    interval,
    interval_name,
    is_usual,
    model_name,
    nearest_rival,
    number,
    of_the_prediction,
    percent,
    radius_name,
    radius_units,
)
from keras_curv.rows.tally import mean_radius

_CLASSES = 24  # drawn at most

_PROVED = {
    "real": (
        "For every example with a radius r and all {changes}: {holds}. This "
        "holds in real arithmetic on the stored weights; the rounding of this computation is "
        "charged to r, what a server loses by running the model in float32 is not."
    ),
    "float32": (
        "For every example with a radius r and all {changes}: {holds}. This "
        "holds for what a server computes in float32, in any order of its sums, with IEEE single "
        "precision and ordinary products: no TF32, bfloat16, Winograd or FFT."
    ),
    "probabilistic": (
        "Certified is the model smoothed by noise, not the model itself. For every example, with "
        "probability at least 1 − α over the noise drawn here, its radius r is such that for "
        "every change δ of it with ‖δ‖₂ < r, in the vote under noise, {holds}."
    ),
}


def render(
    summary: dict,
    settings: dict,
    report_data: ReportData,
    cases: list[Case],
    command: Sequence[str] | None = None,
) -> str:
    """Renders the page.

    Args:
        summary: of the run.
        settings: of the run, what decides its rows.
        report_data: its rows.
        cases: the least robust ones, and some that are misclassified; see `cases.find_cases`.
        command: that makes the run again, word by word; None: it was made from Python.

    Returns:
        HTML, in which all names are escaped.
    """
    model = pathlib.PurePath(summary["saved_model"]).name or summary["saved_model"]
    clean, certified = summary["clean_accuracy"], summary["certified_accuracy"]
    radius = radius_name(summary)
    shares = [] if clean is None else [("0 (clean)", percent(clean), "")]
    ends = summary["certified_interval"]
    shares += [(at, percent(share), interval(ends[at])) for at, share in certified.items()]
    counts = {Status[name]: count for name, count in summary["statuses"].items() if count}
    searched = any(case.point is not None for case in cases) or is_usual(summary)
    searched &= summary["guarantee"] != "probabilistic"
    shapes = list(dict.fromkeys(case.x.shape for case in cases))
    rival = functools.partial(nearest_rival, summary)
    wrong = [case for case in cases if case.row.status == Status.MISCLASSIFIED.name]
    proved = [case for case in cases if case.row.status != Status.MISCLASSIFIED.name]
    galleries, mistakes = (
        [
            gallery([case for case in some if case.x.shape == shape], rival, searched)
            for shape in dict.fromkeys(case.x.shape for case in some)
        ]
        for some in (proved, wrong)
    )
    return ENVIRONMENT.get_template("report.html.j2").render(
        title=f"Certified robustness of {model_name(summary, model)} on {summary['dataset']}",
        summary=summary,
        shares=shares,
        interval_name=interval_name(summary),
        verdict=summary.get("verdict") and _banner(summary["verdict"]),
        compared=_compared(summary, report_data),
        slices=[slice_table(summary, name) for name in summary["slices"]],
        radius=radius,
        curve=charts.curve(
            np.array(report_data.radii),
            certified,
            clean,
            f"{radius}, {radius_units(summary)}",
            report_data.distances,
        ),
        attacked=report_data.distances is not None,
        proved=_PROVED[summary["guarantee"]].format(**claim(summary)),
        terms=[("model", summary["saved_model"]), ("data", summary["dataset"]), *facts(summary)],
        statuses=[(s.name.lower(), f"{n:,}", _meaning(summary, s)) for s, n in counts.items()],
        of_the_prediction=of_the_prediction(summary),
        classes=_classes(summary, report_data),
        searched=searched,
        galleries=galleries,
        mistakes=mistakes,
        drawn=any(is_image(shape) for shape in shapes),
        shown=len(proved),
        tables=request_tables(summary) if "versions" in summary else [],
        reasons=request_reasons(summary) if "versions" in summary else [],
        command=None if command is None else [shlex.quote(word) for word in command],
        settings=_settings(summary, settings),
    )


def _banner(verdict: dict) -> dict[str, Any]:
    """Returns the words of a verdict: a headline, and a line for each requirement."""
    lines = [(check["passed"], describe(check)) for check in verdict["checks"]]
    return {"passed": verdict["passed"], "headline": headline(verdict), "lines": lines}


def _compared(summary: dict, report_data: ReportData) -> list[Table]:
    """Returns the tables of what changed against the baseline; none without one."""
    if summary["baseline"] is None:
        return []
    tables = [baseline_table(summary)]
    for changed, word in ((report_data.lost, "lost"), (report_data.gained, "gained")):
        if changed:
            caption = f"The first examples whose certificate was {word}"
            tables.append(changed_table(changed, caption))
    return tables


def _meaning(summary: dict, status: Status) -> str:
    """Returns what a status says of an example, by what the run is about."""
    if status is Status.CERTIFIED and not (is_usual(summary) and summary["rivals"] == "all"):
        return f"for {claim(summary)['changes']}: {claim(summary)['holds']}"
    if not of_the_prediction(summary) and status is Status.MISCLASSIFIED:
        return "the property does not hold at the example itself; there is nothing to certify"
    return status.text


def _classes(summary: dict, report_data: ReportData) -> dict[str, Any]:
    """Returns the histograms of the classes, the table of the same, and whether any class is
    known, as of numbers that are predicted none is."""
    radii, classes = np.array(report_data.radii), np.array(report_data.classes)
    correct = np.array(report_data.correct)
    labelled, certified = summary["clean_accuracy"] is not None, summary["certified_accuracy"]
    order = np.argsort(classes, kind="stable")
    names, starts = np.unique(classes[order], return_index=True)
    of_class = dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))
    medians = {k: float(mean_radius(np.median, radii[mine])) for k, mine in of_class.items()}
    kept = sorted(sorted(medians, key=lambda k: medians[k])[:_CLASSES])
    end = last_radius(radii)
    zeros = {k: int(np.sum(radii[of_class[k]] == 0.0)) for k in kept}
    shown, rows = [], []
    for k in kept:
        mine, name = of_class[k], str(k) if k >= 0 else "none"
        total, median = len(mine), number(medians[k])
        having = f"{total - zeros[k]:,} with a radius, {zeros[k]:,} without"
        drawing = charts.histogram(radii[mine], end, f"Class {name}: {having}")
        shown.append((name, f"{total:,}", median, drawing))
        shares = [np.mean(correct[mine])] if labelled else []
        shares += [np.mean(radii[mine] > float(radius)) for radius in certified]
        rows.append((name, f"{total:,}", *map(percent, shares), median))
    heads = ["class", "examples", *(["clean"] if labelled else [])]
    heads += [*(f"at {radius}" for radius in certified), "median radius"]
    table = dict(heads=heads, rows=rows, known=bool(np.any(classes >= 0)))
    return dict(shown=shown, count=len(of_class), end=end, **table)


def _settings(summary: dict, settings: dict) -> list[tuple[str, Any]]:
    """Returns names and values of what decides the rows and the page."""
    versions = {
        "keras_curv": settings["version"],
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": metadata.version("keras"),  # which a certificate does not load
        "numpy": np.__version__,
    }
    others = {name: value for name, value in settings.items() if name != "version"}
    radii = {"radii": ", ".join(summary["certified_accuracy"])}
    return list((versions | {"saved_model": summary["saved_model"]} | others | radii).items())
