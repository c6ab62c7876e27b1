"""Options of a run over logged requests, its exit codes and its refusals."""

import json

import pytest
from certified_requests import BAD, RADII, X
from logged import predict, write
from scripts import call


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        ((), 0, "1 examples predicted differently"),
        (("--require_certified_accuracy", 0.1), 0, "passed: certified"),
        (("--require_certified_accuracy", 1), 3, "FAILED: certified"),
        (("--max_lost", 0), 3, "FAILED: lost"),
        (("--max_lost", 1), 0, "passed: lost"),
        (("--max_lost", 1, "--require_certified_accuracy", 1), 3, "FAILED: certified"),
    ],
)
def test_exit_codes(script, capfd, base, batches, tmp_path, arguments, code, text):
    records = [predict(x, version=1) for x in batches(30, 10)] + [
        predict(X, "y"),
        BAD["classify"][0],
    ]
    file = write(tmp_path / "log", records)
    summary = tmp_path / "summary.json"
    options = ("--requests", file, "--radius", RADII[0], "--method", "crown", "--summary", summary)
    sides = ("--saved_model", base / "10", "--baseline", base)
    found, out, err = call(script, capfd, *options, *sides, *arguments)
    assert found == code and err == ""
    verdict = json.loads(summary.read_text())["verdict"]
    assert (verdict is None) if not arguments else verdict["passed"] == (code == 0)
    if arguments:
        assert text in out
    assert "refused 1 WRONG_INPUTS" in out and "(y), not (x)" in out
    assert "skipped 1 CLASSIFY" in out


def test_a_gate_that_decides_gives_the_same_verdict(script, capfd, base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x, version=1) for x in batches(30, 10)])
    gate = "--max_lost", 0, "--require_certified_accuracy", 0.1, "--radius", RADII[0]
    sides = "--saved_model", base / "10", "--baseline", base, "--requests", file
    checks = []
    for more in ((), ("--decide",)):
        summary = tmp_path / "summary.json"
        call(script, capfd, *sides, *gate, *more, "--summary", summary)
        checks.append(json.loads(summary.read_text())["verdict"]["checks"])
    assert checks[0] == checks[1]
    assert [check["passed"] for check in checks[0]] == [True, False]


REFUSED = {
    "no file": (("--requests", "none*"), "no file matches"),
    "a directory": (("--requests", "/tmp"), "/tmp is not a file"),
    "inputs too": (("--inputs", "x.npz"), "--inputs is not for --requests"),
    "scale": (("--input_scale", 255), "--input_scale is not for --requests"),
    "rivals": (("--rivals", "random"), "--rivals is not for --requests"),
    "smoothing": (("--method", "smoothing"), "smoothing certifies another classifier"),
    "gate alone": (("--max_lost", 0), "--max_lost needs a --radius"),
    "no baseline": (("--max_lost", 0, "--radius", 1), "name one"),
    "fraction": (("--max_lost", 2, "--radius", 1), "from 0 to 1"),
    "lost alone": (("--lost", "lost.csv"), "name one"),
    "baseline": (("--baseline", "/nowhere"), "/nowhere does not exist"),
    "limit": (("--limit", 0), "at least 1"),
    "resume": (("--resume",), "needs the output"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_options(script, capfd, base, tmp_path, name):
    arguments, message = REFUSED[name]
    file = write(tmp_path / "log", [predict(X)])
    options = ("--saved_model", base, "--requests", file, "--method", "crown")
    code, out, err = call(script, capfd, *options, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_log_is_never_overwritten(script, capfd, base, tmp_path):
    file = write(tmp_path / "log", [predict(X)])
    before = open(file, "rb").read()
    for option in ("--output", "--summary", "--plot"):
        name = file if option != "--plot" else write(tmp_path / "log.png", [predict(X)])
        arguments = ("--saved_model", base, "--requests", name, option, name)
        code, _, err = call(script, capfd, *arguments)
        assert code == 2 and "must all be different" in err
    assert open(file, "rb").read() == before


def test_requests_options_without_requests(script, capfd):
    for option in ("model_name", "max_unpacked"):
        code, _, err = call(script, capfd, f"--{option}", 1, "--radius", 1)
        assert code == 2 and f"--{option} is for --requests" in err
