"""Gates of the command: JUnit, annotations, slices of files; the same verdict however it is run."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from scripts import call

from keras_curv import data

GATE = (
    "--require",
    "0.1=0.9",
    "--require",
    "site:0.25=0.99",
    "--slice",
    "class",
    "--method",
    "crown",
)


@pytest.fixture
def file(tmp_path):
    x, y = data.load_all("digits")
    path = tmp_path / "x.npz"
    np.savez(path, x=x[:24], y=y[:24], site=np.arange(24) % 3)
    return path


def test_a_gate_that_fails_is_told_everywhere(script, capfd, file, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    files = ("--junit", tmp_path / "j.xml", "--report", tmp_path / "r.html")
    code, out, err = call(script, capfd, "--inputs", file, *GATE, *files)
    assert (code, err) == (3, "")
    assert out.startswith("FAILED: 1 of 2 requirements not met\npassed: certified")
    (line,) = [line for line in out.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=keras_curv site%3A0.25=0.99::FAILED: certified ")
    assert "%25" in line and "in site " in line
    suite = ElementTree.parse(tmp_path / "j.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert cases["0.1=0.9"] is None and "in site " in cases["site:0.25=0.99"].get("message")
    page = (tmp_path / "r.html").read_text()
    assert 'class="verdict failed"' in page and "1 of 2 requirements not met" in page
    assert "--require=site:0.25=0.99" in page  # the command makes the verdict again


def test_a_resumed_run_gives_the_same_verdict(script, capfd, file, tmp_path):
    rows, first, again = tmp_path / "rows.csv", tmp_path / "1.json", tmp_path / "2.json"
    run = "--inputs", file, *GATE, "--batch_size", 8, "--output", rows
    call(script, capfd, *run, "--summary", first)
    rows.write_bytes(rows.read_bytes()[:-700])
    code, _, _ = call(script, capfd, *run, "--summary", again, "--resume")
    assert code == 3
    one, two = (json.loads(path.read_text()) for path in (first, again))
    assert one.pop("seconds") > 0 < two.pop("seconds") and one == two
    assert [part["examples"] for part in one["slices"]["site"].values()] == [8, 8, 8]


REFUSED = {
    "bare": (("--require", "0.9"), "needs a --radius"),
    "spelling": (("--require", "0.5~0.9"), "is not spelled"),
    "no array": (("--slice", "size"), "no array 'size' to slice by; it has: x, y, site"),
    "x": (("--slice", "x"), "an array beside x and y"),
    "junit alone": (("--junit", "j.xml"), "there are none; require one"),
    "confidence": (("--confidence", "1"), "confidence must be between 0 and 1"),
    "property": (("--slice", "class", "--property", "top_2"), "the slice class is for"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(script, capfd, file, name):
    arguments, message = REFUSED[name]
    code, out, err = call(script, capfd, "--inputs", file, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_named_data_set_has_no_slices_but_classes(script, capfd):
    code, _, err = call(script, capfd, "--slice", "site", "--limit", 4, "--method", "crown")
    assert code == 2 and "digits test has no slice 'site'; it has: class" in err


def test_arrays_beside_several_inputs(tmp_path):
    """One of another dtype is only a slice; one of theirs is an input, too."""
    path = tmp_path / "two.npz"
    one = np.ones((3, 1), np.float32)
    np.savez(path, a=one, b=one, sex=np.array([[0], [1], [0]], np.float32), site=["n", "s", "n"])
    examples = data.load_npz(str(path), None, ["site", "sex"])
    assert [*examples.inputs] == ["a", "b", "sex"]
    assert examples.slices["site"].parts == ("n", "s")
    assert examples.origin().slices["sex"].places.tolist() == [0, 1, 0]
