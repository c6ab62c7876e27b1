"""Names from anyone, in what a terminal, a plot, a spreadsheet and a JSON parser gets."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console
from sample_rows import row
from scripts import call

from keras_curv import certify_examples, data, files
from keras_curv.cli.command import fail
from keras_curv.errors import visible
from keras_curv.reports.console import print_summary
from keras_curv.reports.requests import print_reasons, print_requests
from keras_curv.rows.row import REQUEST_COLUMNS, Row

NAMES = [
    "$\\frac{$",
    "a\x1b[2Jb",
    "\udcff",
    "[red] [link=x]",
    "a\nb",
    "=1+1",
    "\u202e",
    "$",
    "^_{",
]
DIGITS = "saved_models/digits"


def is_plain(text):
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_over_a_file_of_any_name(tmp_path, name):
    x, y = data.load_all("digits")
    path = tmp_path / f"{name}.npz"
    np.savez(path, x=x[:3], y=y[:3])
    outputs = {what: tmp_path / f"out.{what}" for what in ("csv", "json", "png", "html")}
    summary = certify_examples(
        DIGITS,
        data.load_npz(str(path)),
        method="lipschitz",
        output=str(outputs["csv"]),
        summary=str(outputs["json"]),
        plot=str(outputs["png"]),
        report=str(outputs["html"]),
    )
    assert json.loads(outputs["json"].read_text("utf-8"))["dataset"] == visible(path.name)
    shown = io.StringIO()
    print_summary(summary, Console(file=shown, width=200))
    assert visible(path.name) in shown.getvalue() and is_plain(shown.getvalue())


def test_reasons_and_versions_of_any_name():
    entry = {"examples": 3, "certified": {"0.5": 0.5}}
    hostile = "[/red]\x1b[2J[bold]"
    summary = {
        "certified_accuracy": {"0.5": 0.5},
        "versions": {hostile: entry},
        "drift": {"by": "order", "parts": [{"from": 0} | entry]},
        "baseline": None,
        "reasons": {
            "NOT_A_LOG": {
                "count": 1, "skipped": False, "text": "t", "first": hostile, "detail": hostile,
            }
        },
    }  # fmt: skip
    shown = io.StringIO()
    print_reasons(summary, Console(file=shown, width=200))
    print_requests(summary, Console(file=shown, width=200))
    assert is_plain(shown.getvalue())
    assert shown.getvalue().count(visible(hostile)) == 3


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "'quoted", "-", "＝1", "=cmd|' /C calc'!A0"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text):
    told = row(0)._replace(
        label=None, file=text, detail=text, version="-5", signature="a\x1b\udcff"
    )
    cells = told.cells(REQUEST_COLUMNS)
    by_name = dict(zip(REQUEST_COLUMNS, cells, strict=True))
    assert by_name["detail"] == by_name["file"] == f"'{text}"
    assert by_name["version"] == "-5" and by_name["signature"] == r"a\x1b\udcff"
    assert Row.parse(cells, REQUEST_COLUMNS) == told._replace(signature=r"a\x1b\udcff")
    written = io.StringIO()
    csv.writer(written).writerow(cells)
    written.getvalue().encode("utf-8")


def test_numbers_stay_numbers():
    told = row(0, 0.0)._replace(prediction=-1, nearest_rival=-1, status="NOT_A_LOG", method="")
    told = told._replace(label=None, baseline_prediction=-1)
    cells = dict(zip(REQUEST_COLUMNS, told.cells(REQUEST_COLUMNS), strict=True))
    assert cells["prediction"] == cells["nearest_rival"] == cells["baseline_prediction"] == "-1"


def test_text_that_is_no_utf_8_is_written_all_the_same(tmp_path):
    files.write_text(tmp_path / "a", "\udcff")
    assert (tmp_path / "a").read_bytes() == rb"\udcff"


def test_errors_do_not_steer_a_terminal(script, capfd):
    assert fail("certify", OSError("a\x1b[2J")) == 2
    assert is_plain(capfd.readouterr().err)
    code, _, err = call(script, capfd, "--saved_model", "a\x1b[2J\udcff")
    assert code == 2 and is_plain(err) and err.count("\n") == 1
    code, _, err = call(script, capfd, "--\x1b[2J")
    assert code == 2 and is_plain(err)
