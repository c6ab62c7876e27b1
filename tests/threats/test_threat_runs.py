"""Threats in a run and on the command line: all that is written says which one it was."""

import csv
import json
import pathlib
import time

import numpy as np
import pytest
from digits_run import DIGITS, certified_digits
from scripts import call

from keras_curv import InputError, Threat, certify_examples
from keras_curv.threats.threat_file import load_threat


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return certified_digits(tmp_path_factory.mktemp("run"), 24, threat=Threat(low=0, high=1))


def test_rows_summary_and_report_say_that_the_attacker_is_confined(run):
    files, summary, _ = run
    with open(files["rows.csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["property"], row["threat"]) for row in rows} == {("argmax", "low 0.0; high 1.0")}
    assert summary["threat"] == "low 0.0; high 1.0"
    written = json.loads(pathlib.Path(files["summary.json"]).read_text())
    assert "attacker confined to [0, 1]" in written["claim"]["changes"]
    page = pathlib.Path(files["report.html"]).read_text()
    assert page.count("attacker confined to [0, 1]") >= 2
    assert "NOT a certificate for other changes" in page


def test_a_box_certifies_more_of_digits(run):
    _, summary, examples = run
    plain = certify_examples(DIGITS, examples, method="crc", radii=[0.5])
    assert summary["mean_radius"] > 1.01 * plain["mean_radius"]
    assert summary["certified_accuracy"]["0.5"] >= plain["certified_accuracy"]["0.5"]


def test_another_threat_does_not_resume(run):
    files, _, examples = run
    options = dict(method="crc", radii=[0.5], output=files["rows.csv"], resume=True)
    with pytest.raises(InputError, match="made with threat 'low 0.0; high 1.0', not 'l2'"):
        certify_examples(DIGITS, examples, **options)


def test_the_command_line_says_the_threat(script, capfd):
    arguments = "--limit=10", "--method=lipschitz", "--scale=0.5", "--box=0,1", "--radius=0.5"
    code, out, err = call(script, capfd, *arguments)
    assert code == 0, err
    assert "weights s by feature from 0.5 to 0.5; attacker confined to [0, 1]" in out
    assert "the weights s of the features" in out


@pytest.mark.parametrize("arguments, named", [
    (["--scale=0"], "weights must be positive"), (["--scale=1,2"], "scale must have 64 entries"),
    (["--scale=a"], "--scale must be numbers"), (["--box=1,0"], "low must not be above high"),
    (["--box=1"], "--box must be LOW,HIGH"), (["--box=,"], "--box must be"),
    (["--box=0,0.5"], "example 0 has"), (["--threat=no.json"], "no.json"),
    (["--threat=no.txt"], "must be a .json or .npz"),
    (["--threat=a.json", "--box=0,1"], "says all"),
    (["--scale=2", "--guarantee=float32"], "no guarantee float32"),
])  # fmt: skip
def test_bad_threats_end_in_one_line(arguments, named, script, capfd):
    code, _, err = call(script, capfd, "--limit=10", "--method=crc", *arguments)
    assert code == 2
    assert named in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("content, named", [
    ({"scale": [1.0, -1.0]}, "weights must be positive"), ({"weights": [1.0]}, "'weights'"),
    ({}, "nothing"), ([1.0], "not an object"),
    ({"frozen": [True, True]}, "all features are frozen"),
    ({"low": "a"}, "low must be numbers"), ({"frozen": [[0], [1, 2]]}, "frozen must be"),
    ({"groups": [[0, 1], 2]}, "a list of features"), ({"norm": "l7"}, "norm must be one of"),
    ({"basis": [[1.0], [2.0, 3.0]]}, "basis must be numbers"),
])  # fmt: skip
def test_files_that_are_no_threat(content, named, tmp_path):
    file = tmp_path / "threat.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=named) as raised:
        load_threat(str(file))
    assert "threat.json" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"scale": true}', "scale has a truth value"),
        ('{"scale": [1, true]}', "scale has a truth value"),
        ('{"frozen": [true, 2]}', "frozen has a truth value"),
        ('{"scale": 2, "scale": 3}', "named twice"),
        ('{"low": NaN}', "NaN is no number"),
        ('{"low": -1e999}', "-1e999 is no number"),
        ('{"scale": 1%s}' % ("0" * 400), "no number that float64 holds"),
        ('{"scale": 1%s}' % ("0" * 200), "scale must be at most 1e.150 in size. Received: 1e.200"),
        ('{"low": 1e308}', "low must be at most"),
        ('{"scale": 1e-200}', "no other has one below 1e-150. Received: 1e-200"),
        ('{"scale": "1"}', "scale must be numbers: received str"),
        ('{"groups": [[0, 1e300]]}', "a list of features by index"),
        ('{"groups": [[0, 9223372036854775808]]}', "a list of features by index"),
    ],
)
def test_json_that_python_would_make_sense_of_is_refused(text, named, tmp_path):
    file = tmp_path / "threat.json"
    file.write_text(text)
    with pytest.raises(InputError, match=named):
        load_threat(str(file))


def test_both_kinds_of_file_say_the_same(tmp_path):
    arrays = {"scale": [0.5, 2.0, 1.0], "frozen": [2], "high": [1.0, np.inf, np.inf]}
    np.savez(tmp_path / "threat.npz", **arrays)
    (tmp_path / "threat.json").write_text(json.dumps(arrays | {"high": [1.0, None, None]}))
    threats = [load_threat(str(tmp_path / f"threat.{kind}")) for kind in ("npz", "json")]
    assert threats[0] == threats[1] == Threat(**arrays)


def test_what_is_written_down_is_json(tmp_path):
    threat = Threat(low=[0.0, -np.inf], high=3.0, frozen=[True, False])
    text = json.dumps(threat.config(), allow_nan=False)
    (tmp_path / "threat.json").write_text(text)
    assert load_threat(str(tmp_path / "threat.json")) == threat == Threat(**threat.config())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("array", [
    np.array([1 + 2j, 1]), np.array(["1", "2"]), np.array([True, True]),
    np.array([1, 2], "m8[s]"), np.array([np.longdouble("1e4000")] * 2), np.array([None, 1j]),
])  # fmt: skip
def test_numbers_are_real_and_are_held(array, tmp_path):
    """A part of a number, or what it reads like, would be another threat."""
    for name in ("scale", "low", "basis"):
        with pytest.raises(InputError, match=f"{name} must"):
            Threat(**{name: array})
        if array.dtype != object:
            np.savez(tmp_path / "threat.npz", **{name: array})
            with pytest.raises(InputError, match=f"{name} must"):
                load_threat(str(tmp_path / "threat.npz"))


def test_an_archive_unpacks_to_what_a_threat_can_be(tmp_path):
    np.savez_compressed(tmp_path / "threat.npz", scale=np.ones(2**24 + 1, np.uint8))
    with pytest.raises(InputError, match="unpacks to 16777217 numbers, and 16777216 are the most"):
        load_threat(str(tmp_path / "threat.npz"))


def test_very_many_groups_are_refused_soon():
    begun = time.process_time()
    for groups, changes in (
        (np.arange(2 * 10**5) // 2, 1),
        (np.arange(2 * 10**5) // 2, 10**5),
        (np.arange(2 * 10**5), 1),
    ):
        with pytest.raises(InputError, match="in more than 65536 ways|a list of features"):
            Threat(groups=groups, changes=changes)
    assert time.process_time() - begun < 5.0


def test_a_file_that_is_not_there_is_missed_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.json does not exist; give the \.json or \.npz"):
        load_threat(str(tmp_path / "none.json"))


def test_objects_are_not_loaded_from_a_file(tmp_path):
    np.savez(tmp_path / "threat.npz", scale=np.array([{}]))
    with pytest.raises(InputError, match="scale must hold numbers"):
        load_threat(str(tmp_path / "threat.npz"))
