"""Properties in a run: rows, summary, report and resuming say which one it was."""

import csv
import json
import pathlib

import numpy as np
import pytest
from digits_run import DIGITS, certified_digits
from scripts import call

from keras_curv import certify, certify_examples
from keras_curv.errors import InputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return certified_digits(tmp_path_factory.mktemp("run"), 40, property="top_2", batch_size=16)


def test_rows_and_summary_say_the_property(run):
    files, summary, (x, y) = run
    with open(files["rows.csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["property"] for row in rows} == {"top_2"}
    assert summary["property"] == "top_2"
    assert json.loads(pathlib.Path(files["summary.json"]).read_text())["property"] == "top_2"
    found = certify(DIGITS, x, y, property="top_2", method="crc")
    np.testing.assert_allclose([float(row["radius"]) for row in rows], found.radius, rtol=1e-6)
    plain = certify(DIGITS, x, y, method="crc")
    assert (found.radius >= plain.radius).all() and found.radius.mean() > 1.1 * plain.radius.mean()


def test_the_report_says_it_in_words(run):
    files, _, _ = run
    page = pathlib.Path(files["report.html"]).read_text()
    assert "the label stays among the 2 largest logits. This holds in real" in page
    assert "NOT a certificate of the prediction" in page and "keeps the largest" not in page


def test_another_property_does_not_resume(run):
    files, _, examples = run
    options = dict(method="crc", radii=[0.5], batch_size=16, output=files["rows.csv"], resume=True)
    with pytest.raises(InputError, match="made with property 'top_2', not 'argmax'"):
        certify_examples(DIGITS, examples, **options)
    again = certify_examples(DIGITS, examples, property="top_2", **options)
    assert again["certified_accuracy"] == run[1]["certified_accuracy"]


def test_the_command_line_takes_a_property(script, capfd):
    arguments = "--limit=20", "--method=crc", "--property=harmful:3,5", "--radius=0.5"
    code, out, err = call(script, capfd, *arguments)
    assert code == 0, err
    assert "no class of 3,5 gets above the label" in out


@pytest.mark.parametrize("spelling, named", [
    ("top_10", "needs more than 10 classes"), ("harmful:10", "0 to 9"), ("interval:-1", "positive"),
    ("harmful:no.json", "no.json"), ("anything", "must be one of"), ("linear:y11>0", "output 11"),
])  # fmt: skip
def test_bad_properties_end_in_one_line(spelling, named, script, capfd):
    code, _, err = call(script, capfd, "--limit=20", "--method=crc", f"--property={spelling}")
    assert code == 2
    assert named in err and err.count("\n") == 1 and "Traceback" not in err


def test_smoothing_is_for_argmax(script, capfd):
    code, _, err = call(script, capfd, "--method=smoothing", "--deviation=1", "--property=top_2")
    assert code == 2 and "--property" in err
