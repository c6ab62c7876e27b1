"""`bin/certify`: exit codes, files, and what stands on stdout and stderr."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from scripts import call

from keras_curv import data

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS = ROOT / "saved_models" / "digits"


def certify(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "bin" / "certify"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "100"},
    )


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The main job once, with everything it writes."""
    folder = tmp_path_factory.mktemp("run")
    result = certify(
        "--output", folder / "rows.csv", "--summary", folder / "summary.json",
        "--plot", folder / "curve.png", "--radius", "0.25", "--radius", "0.5",
        "--batch_size", "100",
    )  # fmt: skip
    return folder, result


def test_the_main_job_succeeds_and_is_quiet(run):
    _, result = run
    assert result.returncode == 0
    assert result.stderr == ""
    assert "certified accuracy" in result.stdout and "NOT a certificate" not in result.stdout


def test_rows_and_summary_agree(run):
    folder, _ = run
    rows = read_rows(folder / "rows.csv")
    summary = json.loads((folder / "summary.json").read_text())
    radii = np.array([float(row["radius"]) for row in rows])
    correct = np.array([row["label"] == row["prediction"] for row in rows])
    assert [int(row["index"]) for row in rows] == list(range(360)) == list(range(len(radii)))
    assert summary["examples"] == 360
    assert summary["clean_accuracy"] == correct.mean() > 0.95
    assert summary["certified_accuracy"] == {
        "0.25": np.mean(radii > 0.25),
        "0.5": np.mean(radii > 0.5),
    }
    assert summary["certified_accuracy"]["0.25"] > 0.8
    assert summary["mean_radius"] == pytest.approx(radii[correct].mean())
    gradients = np.mean([int(row["gradient_evaluations"]) for row in rows])
    assert summary["gradient_evaluations"] == pytest.approx(gradients)
    assert summary["rivals"] == "all" and summary["guarantee"] == "real"
    assert summary["saved_model"] == str(DIGITS) and summary["seconds"] > 0
    assert {row["status"] for row in rows} == {"CERTIFIED", "MISCLASSIFIED"}
    assert all(float(row["radius"]) == 0 for row in rows if row["status"] == "MISCLASSIFIED")


def test_the_plot_is_an_image(run):
    folder, _ = run
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_resume_after_a_kill_gives_the_same_rows(run, script, capfd, tmp_path):
    folder, _ = run
    whole = (folder / "rows.csv").read_bytes()
    target = tmp_path / "rows.csv"
    target.write_bytes(whole[: len(whole) * 2 // 3])
    settings = (folder / "rows.csv.settings.json").read_text()
    (tmp_path / "rows.csv.settings.json").write_text(settings)
    code, _, refused = call(script, capfd, "--output", target, "--batch_size", "100")
    assert code == 2 and "exists" in refused
    code, _, _ = call(script, capfd, "--output", target, "--resume", "--batch_size", "100")
    assert code == 0
    assert target.read_bytes() == whole


def test_methods_and_guarantee(script, capfd, tmp_path):
    found = {}
    for method in ("auto", "crc", "crown"):
        file = tmp_path / f"{method}.csv"
        arguments = ("--method", method, "--limit", 20, "--output", file, "--verbose")
        code, out, _ = call(script, capfd, *arguments, "--guarantee", "float32")
        assert code == 0 and "float32: as served" in out and "proved by" in out
        rows = read_rows(file)
        found[method] = np.array([float(row["radius"]) for row in rows])
        assert {row["method"] for row in rows} <= {"", "crc", "crown", "crc_local", "lipschitz"}
    assert np.all(found["auto"] >= 0.998 * np.maximum(found["crc"], found["crown"]))
    assert found["crc"].mean() > found["crown"].mean() > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "crx"), ", coap, smoothing. Received: 'crx'"),
        (("--guarantee", "none"), "guarantee must be one of real, float32"),
        (("--method", "quadratic"), "relu"),
    ],
)
def test_methods_that_do_not_apply(script, capfd, arguments, message):
    code, out, err = call(script, capfd, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_refused_first(script, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: pathlib.Path(path) != tmp_path.resolve())
    code, out, err = call(script, capfd, "--report", tmp_path / "report.html")
    assert code == 2 and out == "" and err.endswith("cannot be written to; name another one\n")


@pytest.mark.parametrize("required, code, word", [(0.5, 0, "passed"), (0.99, 3, "FAILED")])
def test_the_gate(script, capfd, required, code, word):
    arguments = ("--radius", 0.25, "--require_certified_accuracy", required, "--limit", 50)
    result, stdout, _ = call(script, capfd, *arguments)
    assert result == code
    assert word in stdout


def test_inputs_from_a_file_without_labels(script, capfd, tmp_path):
    x, _ = data.load_all("digits")
    inputs = npz(tmp_path, x=x[:20])
    code, stdout, _ = call(script, capfd, *inputs, "--output", tmp_path / "rows.csv")
    assert code == 0 and "clean" not in stdout
    rows = read_rows(tmp_path / "rows.csv")
    assert len(rows) == 20
    assert all(row["label"] == "" and row["status"] == "CERTIFIED" for row in rows)


def test_integers_that_may_want_a_scale_are_named(script, capfd, tmp_path):
    x, y = data.load_all("digits")
    sixteenths = npz(tmp_path, x=(16.0 * x[:20]).astype(np.uint8), y=y[:20])
    code, stdout, _ = call(script, capfd, *sixteenths, "--method", "crc")
    assert code == 0 and "uint8, taken as they are" in stdout and "--input_scale" in stdout
    _, stdout, _ = call(script, capfd, *sixteenths, "--method", "crc", "--input_scale", 1 / 16)
    assert "taken as they are" not in stdout
    pixels = npz(tmp_path, x=(255.0 * x[:20]).astype(np.float32), y=(y[:20] + 1) % 10)
    _, stdout, _ = call(script, capfd, *pixels, "--method", "lipschitz")
    assert "up to 255" in stdout and "--input_scale" in stdout
    right = npz(tmp_path, x=(255.0 * x[:20]).astype(np.float32), y=y[:20])
    _, stdout, _ = call(script, capfd, *right, "--method", "lipschitz")
    assert "--input_scale" not in stdout


def test_one_rival_says_that_it_is_no_certificate(script, capfd):
    code, stdout, _ = call(script, capfd, "--rivals", "runner_up", "--limit", 20)
    assert code == 0 and "NOT a certificate" in stdout


def npz(folder, **arrays):
    path = folder / "inputs.npz"
    np.savez(path, **arrays)
    return "--inputs", path


X = np.full((3, 8, 8, 1), 0.5, np.float32)
BAD = {
    "missing directory": (lambda f: ("--saved_model", f / "none"), "does not exist"),
    "empty directory": (lambda f: ("--saved_model", f), "no saved_model.pb"),
    "unknown signature": (lambda f: ("--signature", "predict"), "it has: serve, serving_default"),
    "unknown data set": (lambda f: ("--dataset", "imagenet"), "known: digits, mnist"),
    "a file for a data set": (lambda f: ("--dataset", "mine.npz"), "by --inputs"),
    "a model of other images": (
        lambda f: ("--saved_model", ROOT / "saved_models" / "mnist_2x1024"),
        "others are given by --dataset or --inputs",
    ),
    "unknown split": (lambda f: ("--split", "validation"), "train and test"),
    "missing data": (lambda f: ("--dataset", "mnist", "--data_dir", f / "no"), "does not exist"),
    "zero radius": (lambda f: ("--radius", "0"), "positive number. Received: 0"),
    "not a number": (lambda f: ("--radius", "nan"), "positive number. Received: nan"),
    "radii between commas": (lambda f: ("--radius", "0.1,0.2"), "one number is needed"),
    "no radius": (lambda f: ("--radius=",), "one number is needed"),
    "unknown rivals": (lambda f: ("--rivals", "nearest"), "runner_up"),
    "unknown flag": (lambda f: ("--radiu", "1"), "unknown flag --radiu; did you mean --radius?"),
    "part of a flag": (lambda f: ("--model", "d"), "did you mean --model_name, --saved_model?"),
    "stray argument": (lambda f: ("mnist",), "unexpected argument 'mnist'"),
    "no examples": (lambda f: ("--limit", "0"), "at least 1"),
    "wrong shape": (lambda f: npz(f, x=np.ones((3, 64), np.float32)), "reshape x to (n, 8, 8, 1)"),
    "axes in another order": (lambda f: npz(f, x=np.ones((3, 4, 16))), "into that order"),
    "NaN": (lambda f: npz(f, x=np.where(X > 0, [[[[np.nan]]]], X)), "example 0 has NaN"),
    "infinite": (
        lambda f: npz(f, x=np.concatenate([X, np.inf * X])),
        "example 3 has NaN or infinite",
    ),
    "label range": (lambda f: npz(f, x=X, y=np.array([0, 10, 1])), "example 1 has label 10"),
    "label shape": (lambda f: npz(f, x=X, y=np.eye(3, dtype=int)), "y must be integers of shape"),
    "label type": (lambda f: npz(f, x=X, y=np.zeros(3)), "y must be integers"),
    "no x": (lambda f: npz(f, images=X), "no array 'x'"),
    "images": (
        lambda f: npz(f, images=X, y=np.arange(3), z=X[:2]),
        "no array 'x', as inputs are called, and labels y, only images, z",
    ),
    "truth values": (lambda f: npz(f, x=X > 0), "x.astype('float32') does. Received: bool"),
    "strings": (lambda f: npz(f, x=np.array([["a"]])), "must hold numbers"),
    "names for labels": (
        lambda f: npz(f, x=X, y=np.array(["cat", "dog", "cat"])),
        "of names pass numpy.unique(y, return_inverse=True)[1]",
    ),
    "truth values for labels": (lambda f: npz(f, x=X, y=np.ones(3, bool)), "pass y.astype(int)"),
    "one example": (lambda f: npz(f, x=X[0, :, 0, 0]), "of which one is x[None]"),
    "text": (lambda f: ("--inputs", touch(f / "x.csv", "1,2")), "by numpy.loadtxt"),
    "an array": (lambda f: ("--inputs", touch(f / "x.npy")), "x=numpy.load(path)"),
    "labels of an interval": (
        lambda f: (*npz(f, x=X, y=np.zeros(len(X), int)), "--property", "interval:1"),
        "property has no labels",
    ),
    "a gate without labels": (
        lambda f: (*npz(f, x=X), "--radius", "1", "--require_certified_accuracy", "0.1"),
        "each prediction counts as correct",
    ),
    "not an npz": (lambda f: ("--inputs", __file__), "cannot be read as an .npz"),
    "no folder": (lambda f: ("--output", f / "a" / "rows.csv"), "make it first"),
    "plot format": (lambda f: ("--plot", f / "curve.xyz"), "ending of a plot"),
    "report folder": (lambda f: ("--report", f / "a" / "r.html"), "make it first"),
    "report is a folder": (lambda f: ("--report", f), "is a directory"),
    "report without a name": (lambda f: ("--report", ""), "empty name"),
    "report over the rows": (lambda f: ("--report", f / "rows.csv"), "different files"),
    "report over the inputs": (
        lambda f: (*npz(f, x=X), "--report", f / "inputs.npz"),
        "different files",
    ),
    "summary over the threat": (
        lambda f: ("--threat", touch(f / "t.json", '{"scale": 0.5}'), "--summary", f / "t.json"),
        "different files",
    ),
    "report over the harms": (
        lambda f: (f"--property=harmful:{touch(f / 'h.json', HARMS)}", "--report", f / "h.json"),
        "different files",
    ),
    "a value that asks for help": (lambda f: ("--saved_model", "help"), "help does not exist"),
    "another that does": (lambda f: ("--inputs", "-h"), "-h does not exist"),
    "a model's file": (lambda f: ("--summary", f / "fingerprint.pb"), "file of a SavedModel"),
    "no flags": (lambda f: (f"--flagfile={touch(f / 'flags', chr(255))}",), "not a file of flags"),
    "gate alone": (lambda f: ("--require_certified_accuracy", "0.5"), "needs a --radius"),
    "gate on one rival": (
        lambda f: ("--require_certified_accuracy", "0.5", "--radius", "1", "--rivals", "random"),
        "no certificate",
    ),
    "resume alone": (lambda f: ("--resume",), "needs the output"),
    "no name": (lambda f: ("--saved_model", ""), "directory is empty"),
    "zero scale": (lambda f: ("--input_scale", "0"), "input_scale must be"),
    "two sources": (lambda f: (*npz(f, x=X), "--split", "train"), "--split is not for --inputs"),
    "samples without a vote": (lambda f: ("--samples", "9"), "--samples is for --method smoothing"),
    "a keras file": (lambda f: ("--saved_model", touch(f / "m.keras")), "it is no archive"),
    "over the keras file": (
        lambda f: ("--saved_model", touch(f / "m.h5"), "--report", f / "m.h5"),
        "different files",
    ),
    "not a model": (lambda f: ("--saved_model", touch(f / "saved_model.pb").parent), "SavedModel"),
}


VOTE = ("--method", "smoothing", "--deviation", "0.1")
BAD_VOTES = {
    "no deviation": (VOTE[:2], "needs a --deviation"),
    "deviation": ((*VOTE[:3], "-1"), "deviation must be a positive number. Received: -1"),
    "samples": ((*VOTE, "--samples", "0"), "samples must be an integer, at least 1. Received: 0"),
    "more samples than end": ((*VOTE, "--samples", 2**63), "samples must be at most 2^40"),
    "probability": ((*VOTE, "--failure_probability", "1"), "failure_probability must be between"),
    "rivals": ((*VOTE, "--rivals", "random"), "must be one of all, runner_up. Received: 'random'"),
    "guarantee": ((*VOTE, "--guarantee", "float32"), "--guarantee is not for --method smoothing"),
}


HARMS = '{"4": [3, 5]}'


def touch(path, text="not this"):
    path.write_text(text, encoding="latin-1")
    return path


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(script, capfd, name, tmp_path):
    arguments, message = BAD[name]
    output = [] if name in ("no folder", "resume alone") else ["--output", tmp_path / "rows.csv"]
    code, stdout, stderr = call(script, capfd, *output, *arguments(tmp_path))
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1 and stderr.startswith("certify: ")
    assert stdout == ""
    written = tmp_path / "rows.csv"
    assert not written.exists() or len(written.read_text().splitlines()) == 1  # the header


def test_the_table_is_shown_even_if_a_file_cannot_be_written(script, capfd):
    code, stdout, stderr = call(script, capfd, "--limit", "5", "--summary", "/dev/full")
    assert code == 2 and "clean" in stdout
    assert stderr.count("\n") == 1 and "cannot write /dev/full" in stderr


@pytest.mark.parametrize("name", BAD_VOTES)
def test_a_bad_vote_is_refused_before_anything_is_written(script, capfd, name, tmp_path):
    arguments, message = BAD_VOTES[name]
    code, stdout, stderr = call(script, capfd, *arguments, "--output", tmp_path / "rows.csv")
    assert code == 2 and stdout == "" and message in stderr and stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
