"""A certification run as one HTML file, for people who were not there.

The file has all in it: style, drawings and pictures, no script, nothing to fetch; its own content
security policy forbids both. It follows the reader's light or dark scheme and the width of the
screen. The same run gives the same bytes, in one go or resumed: there is no time in it.
"""

from __future__ import annotations

import pathlib
import platform
import shlex
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_curv.certificates.certificate import Status
from keras_curv.reports.html import charts
from keras_curv.reports.html.cases import Case
from keras_curv.reports.html.examples import gallery
from keras_curv.reports.html.markup import Markup, element, join
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.plot import last_radius
from keras_curv.reports.wording import facts, number, percent, units

_STYLE = Markup(pathlib.Path(__file__).with_name("style.css").read_text(encoding="utf-8"))
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CLASSES = 24  # drawn at most

_PROVED = {
    "real": (
        "For every example with a radius r and every change δ of it with ‖δ‖₂ < r, the predicted "
        "class keeps the largest logit. This holds in real arithmetic on the stored weights; the "
        "rounding of this computation is charged to r, what a server loses by running the model "
        "in float32 is not."
    ),
    "float32": (
        "For every example with a radius r and every change δ of it with ‖δ‖₂ < r, the predicted "
        "class keeps the largest logit. This holds for what a server computes in float32, in any "
        "order of its sums, with IEEE single precision and ordinary products: no TF32, bfloat16, "
        "Winograd or FFT."
    ),
    "probabilistic": (
        "Certified is the model smoothed by noise, not the model itself. For every example, with "
        "probability at least 1 − α over the noise drawn here, its radius r is such that for "
        "every change δ of it with ‖δ‖₂ < r the predicted class wins the vote under noise."
    ),
}
_ONE_RIVAL = (
    "This is not a certificate of the classifier. Each radius holds against one rival class only "
    "(rivals: {}); against another one the prediction may change within it."
)


def render(
    summary: dict,
    settings: dict,
    gathered: ReportData,
    cases: list[Case],
    command: Sequence[str] | None = None,
) -> str:
    """The page.

    Args:
        summary: what `run.certify_examples` returns.
        settings: of the run, what decides its rows.
        gathered: its rows.
        cases: the least robust ones; see `cases.find_cases`.
        command: that makes the run again, word by word; None: it was made from Python.

    Returns:
        HTML, in which all names are escaped.
    """
    model = pathlib.PurePath(summary["saved_model"]).name or summary["saved_model"]
    title = f"Certified robustness of {model} on {summary['dataset']}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", **{"http-equiv": "Content-Security-Policy"}, content=_POLICY),
        element("title", title),
        element("style", _STYLE),
    )
    main = element(
        "main",
        element("h1", title),
        *_result(summary, gathered),
        *_proved(summary),
        *_classes(summary, gathered),
        *_least_robust(summary, cases),
        *_rerun(summary, settings, command),
    )
    page = element("html", head, element("body", main), lang="en")
    return f"<!doctype html>\n{page}\n"


def _result(summary: dict, gathered: ReportData):
    clean, certified = summary["clean_accuracy"], summary["certified_accuracy"]
    yield element("p", _subtitle(summary), class_="subtitle")
    if summary["rivals"] != "all":
        yield element("p", _ONE_RIVAL.format(summary["rivals"]), class_="warning")
    rows = [(radius, percent(fraction)) for radius, fraction in certified.items()]
    if clean is not None:
        rows.insert(0, ("0 (clean)", percent(clean)))
    table = _table(
        "Share of all examples that are predicted as labelled, and proved to stay so within the "
        "radius"
        if clean is not None
        else "Share of all examples whose prediction is proved to stay within the radius",
        ("l2 radius", "certified accuracy" if clean is not None else "certified"),
        rows,
    )
    scale = units(summary["input_scale"])
    drawing = charts.curve(gathered.radii, certified, clean, scale)
    yield element("div", table, element("figure", drawing), class_="result")


def _subtitle(summary: dict) -> str:
    count = f"{summary['examples']:,} example{'s' if summary['examples'] != 1 else ''}"
    shape = " × ".join(map(str, summary["input_shape"]))
    return (
        f"{count}; a network of {summary['depth']} affine maps, {shape} inputs and "
        f"{summary['classes']} classes"
    )


def _proved(summary: dict):
    yield element("h2", "What is proved")
    yield element("p", _PROVED[summary["guarantee"]])
    terms = [("model", summary["saved_model"]), ("data", summary["dataset"]), *facts(summary)]
    yield _list_of_terms(terms)
    counts = {Status[name]: count for name, count in summary["statuses"].items() if count}
    rows = [(status.name.lower(), f"{count:,}", status.text) for status, count in counts.items()]
    yield _table("What came of the examples", ("status", "examples", "meaning"), rows, numbers=(1,))


def _classes(summary: dict, gathered: ReportData):
    radii, classes, correct = gathered.radii, gathered.classes, gathered.correct
    labelled = summary["clean_accuracy"] is not None
    names = np.unique(classes)
    yield element("h2", f"Radii by {'class' if labelled else 'predicted class'}")
    medians = {name: float(np.median(radii[classes == name])) for name in names}
    if len(names) > _CLASSES:
        note = f"The {_CLASSES} of {len(names)} classes whose median radius is smallest. "
        names = sorted(sorted(names, key=medians.get)[:_CLASSES])
    else:
        note = ""
    end = last_radius(radii)
    counts = {name: charts.histogram_counts(radii[classes == name], end) for name in names}
    zeros = {name: int(np.sum(radii[classes == name] == 0.0)) for name in names}
    highest = max(max(counts[name].max(), zeros[name]) for name in names)
    note += (
        f"How many examples of a class have which radius, all on the same axes: up to {end:.3g} "
        f"across, {highest:,} examples high. Above each stand the number of examples and their "
        "median radius. The orange bar on the left counts those without a radius, wrong or "
        "unproved; in the median they are 0."
    )
    yield element("p", note, class_="note")
    drawn, rows = [], []
    for name in names:
        mine = classes == name
        called = str(name) if name >= 0 else "none"
        total, median = int(mine.sum()), number(medians[name])
        having = f"{total - zeros[name]:,} with a radius, {zeros[name]:,} without"
        described = f"Class {called}: {having}"
        drawing = charts.histogram(counts[name], zeros[name], highest, end, described)
        caption = element(
            "figcaption", element("strong", f"Class {called}"), f" {total:,}, median {median}"
        )
        drawn.append(element("figure", caption, drawing))
        shares = [np.mean(radii[mine] > float(r)) for r in summary["certified_accuracy"]]
        shares = [np.mean(correct[mine]), *shares] if labelled else shares
        rows.append((called, f"{total:,}", *(percent(share) for share in shares), median))
    yield element("div", *drawn, class_="classes")
    heads = [f"at {radius}" for radius in summary["certified_accuracy"]]
    heads = ["class", "examples", *(["clean"] if labelled else []), *heads, "median radius"]
    table = _table("Certified accuracy within each class", heads, rows)
    yield element("details", element("summary", "The same as a table"), table)


def _least_robust(summary: dict, cases: list[Case]):
    yield element("h2", "The least robust examples")
    if not cases:
        yield element("p", "No example has a correct prediction that could be proved.")
        return
    searched = summary["guarantee"] != "probabilistic"
    text = (
        "Of the examples predicted as labelled"
        if summary["clean_accuracy"] is not None
        else "Of the examples with a prediction"
    )
    text += f", the {len(cases)} with the smallest radius"
    if searched:
        text += (
            ", each with the closest adversarial point that a search (projected gradient descent "
            "in balls of varying size) found. The distance to the nearest one there is, is between "
            "the radius and the distance found; where the two are close, little is left to prove. "
            "Points may leave the range of pixels, as the proof allows; pictures are clipped."
        )
        if summary["rivals"] != "all":
            text += " The radius is against one rival only, so a point may be nearer than it."
    else:
        text += ". Adversarial points of a classifier smoothed by noise are not searched for."
    yield element("p", text)
    yield gallery(cases, searched)


def _rerun(summary: dict, settings: dict, command: Sequence[str] | None):
    yield element("h2", "How to make this again")
    if command is None:
        yield element(
            "p",
            "The run was made from Python, by ",
            element("code", "keras_curv.certify_examples"),
            " with the settings below.",
        )
    else:
        words = (element("span", shlex.quote(word)) for word in command)
        yield element("pre", element("code", Markup(" ".join(words))))
    yield element(
        "p",
        "With the same files, settings and versions, every row and this page come out the same. "
        "The fingerprint is the SHA-256 of the model that was read.",
        class_="note",
    )
    versions = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }
    known = {"saved_model": summary["saved_model"], **settings}
    known["radii"] = ", ".join(summary["certified_accuracy"])
    known = {"keras_curv": known.pop("version"), **versions, **known}
    yield _table("Settings and versions", ("name", "value"), known.items(), numbers=())


def _list_of_terms(terms) -> Markup:
    return element("dl", *(join(element("dt", name), element("dd", text)) for name, text in terms))


def _table(caption: str, heads, rows, numbers: tuple[int, ...] | None = None) -> Markup:
    """A table whose first column names its rows; `numbers` are the columns set to the right."""
    numbers = range(len(heads)) if numbers is None else numbers
    kinds = ["number" if i in numbers else None for i in range(len(heads))]
    top = [element("th", h, scope="col", class_=k) for h, k in zip(heads, kinds, strict=True)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", class_=kinds[0]),
            *(element("td", c, class_=k) for c, k in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *top)),
        element("tbody", *body),
    )
    return element("div", table, class_="scroll")
