"""The HTML report: nothing in it is fetched, run or believed; the same run gives the same bytes."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from report_pages import (
    DIGITS,
    HOSTILE,
    Page,
    rendered,
    require_accessible,
    require_self_contained,
    row,
)
from scripts import call

from keras_curv import data
from keras_curv.cli.certify import command
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.reports.html import page
from keras_curv.reports.html.cases import Case
from keras_curv.reports.html.templates import ENVIRONMENT, visible
from keras_curv.reports.wording import percent
from keras_curv.rows.row import Row
from keras_curv.runs.certify_examples import certify_examples


def test_the_report_is_self_contained_and_accessible(digits_report):
    folder, result = digits_report
    parsed = require_self_contained((folder / "report.html").read_text(encoding="utf-8"))
    require_accessible(parsed)
    assert len(parsed.all("svg")) == 1 + 10  # the curve, and a histogram of each class
    assert len(parsed.all("img")) == 3 * 12 + 1  # a misclassified one
    for fact in (
        result["fingerprint"],
        "digits test",
        "all (a certificate of the classifier)",
        "real arithmetic on the stored weights",
        "keras_curv.certify_examples",
        tf.__version__,
    ):
        assert fact in parsed.text
    for fraction in result["certified_accuracy"].values():
        assert percent(fraction) in parsed.text


def test_the_least_robust_are_shown_with_a_point_beyond_the_radius(digits_report):
    folder, _ = digits_report
    lines = (folder / "rows.csv").read_text().splitlines()[1:]
    rows = [Row.parse(line.split(",")) for line in lines]
    least = sorted((row.radius, row.index) for row in rows if row.status == "CERTIFIED")[:12]
    text = Page((folder / "report.html").read_text(encoding="utf-8")).text
    shown = re.findall(
        r"Example (\d+): predicted \d"
        r"Radius ([\d.]+) by crc, nearest rival \d. Predicted \d at distance ([\d.]+)\.(?!\d)",
        text,
    )
    assert [int(index) for index, _, _ in shown] == [index for _, index in least]
    for (_, radius, distance), (exact, _) in zip(shown, least, strict=True):
        assert float(radius) <= exact < float(distance) < 1.5 * exact


def test_the_same_run_gives_the_same_bytes_whole_or_resumed(digits_report, tmp_path):
    folder, _ = digits_report
    whole = (folder / "report.html").read_bytes()
    rows = (folder / "rows.csv").read_bytes()
    settings = (folder / "rows.csv.settings.json").read_text()
    for name, kept in (("some", len(rows) * 2 // 3), ("all", len(rows))):
        target = tmp_path / f"{name}.csv"
        target.write_bytes(rows[:kept])
        (tmp_path / f"{name}.csv.settings.json").write_text(settings)
        certify_examples(
            DIGITS,
            data.load("digits").limited(60),
            method="crc",
            batch_size=25,
            radii=(0.25, 0.5),
            output=str(target),
            resume=True,
            report=str(tmp_path / f"{name}.html"),
        )
        assert (tmp_path / f"{name}.html").read_bytes() == whole, name


def test_hostile_names_are_text(tmp_path):
    x, _ = data.load_all("digits")
    np.savez(tmp_path / HOSTILE, x=x[:3])
    shutil.copytree(DIGITS, tmp_path / HOSTILE[:-4])
    path = tmp_path / "report.html"
    certify_examples(
        str(tmp_path / HOSTILE[:-4]),
        data.load_npz(str(tmp_path / HOSTILE)),
        method="crc",
        report=str(path),
        command=["bin/certify", f"--inputs={HOSTILE}", "\udcff", "</style></pre><script>"],
    )
    text = path.read_text(encoding="utf-8")
    parsed = require_self_contained(text)
    assert "\u202e" not in text and "&lt;img" in text
    assert r"onerror=alert(1)>&lt;'\u202e\n.npz" in parsed.text
    assert len(parsed.all("img")) == 3 * 3  # none of theirs


def test_text_cannot_become_markup():
    nasty = "</p><script>alert('1')</script>\x00\u2028\ud800"
    text = ENVIRONMENT.from_string('<p title="{{ it }}">{{ it }}</p>').render(it=nasty)
    parsed = Page(text)
    assert [name for name, _ in parsed.tags] == ["p"]
    assert parsed.text == parsed.all("p")[0]["title"] == visible(nasty)
    text.encode("utf-8")  # a lone surrogate would not


def test_no_example_certified():
    rows = [row(i, 0.0, "UNPROVED") for i in range(3)]
    text = rendered(rows, [Case(r, np.zeros(2)) for r in rows]).text
    assert text.count("no positive radius could be proved, nearest rival 1") == 3
    assert text.count("No adversarial point was found") == 3


def test_infinite_radii_and_many_classes():
    parsed = rendered([row(i, np.inf, label=i) for i in range(40)])
    assert len(parsed.all("svg")) == 1 + 24 and "24 of 40 classes" in parsed.text


def test_the_command_makes_the_report_again(script, capfd, tmp_path):
    def report(name, *words):
        path = tmp_path / name
        code, _, err = call(script, capfd, *words, "--report", path)
        assert code == 0, err
        return path.read_text(encoding="utf-8")

    inputs = tmp_path / "it's a <name>.npz"
    x, y = data.load_all("digits")
    np.savez(inputs, x=x[:6], y=y[:6])
    options = ("--inputs", inputs, "--radius", 0.25, "--radius", 0.4, "--method", "crown")
    first = report("a.html", *options, "--output", tmp_path / "rows.csv")
    shown = re.search(r"<pre><code>(.*?)</code></pre>", first).group(1)
    words = command()
    assert Page(shown).text == " ".join(map(page.shlex.quote, words))
    assert words[:2] == ["keras_curv", "certify"] and words[-1] == "--report=report.html"
    assert report("b.html", *words[2:-1]) == first


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, rng):
    x = rng.normal(size=(2, 3)).astype(np.float32)
    examples = Examples.from_arrays("mine", x, None)
    for report, message in ((tmp_path / "no" / "r.html", "make it first"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=message):
            certify_examples(None, examples, report=str(report))
    with pytest.raises(InputError, match="different files"):
        same = str(tmp_path / "same.html")
        certify_examples(None, examples, summary=same, report=same)
