"""`certify --proofs`, `check` and `python -m keras_curv_check` from end to end."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from keras_curv import ExampleOptions, InputError, Smoothing, Threat, certify_examples
from keras_curv.cli.certify import COMMAND as CERTIFY
from keras_curv.cli.check import COMMAND as CHECK

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS = "saved_models/digits"


@pytest.fixture
def arguments(run_of_digits):
    return [
        *("--proofs", str(run_of_digits / "proofs")),
        *("--network", str(run_of_digits / "network.npz")),
    ]


def test_a_whole_run_is_checked(arguments, run_of_digits, capsys, tmp_path):
    whole = ["--rows", str(run_of_digits / "rows.csv"), "--inputs"]
    whole += [str(run_of_digits / "inputs.npz"), "--output", str(tmp_path / "verdicts.csv")]
    assert CHECK.call([*arguments, *whole, "--sample", "5"]) == 0
    assert "5 of 39 claims checked: 5 proved, 0 not proved" in capsys.readouterr().out
    lines = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert lines[0] == "index,status,detail" and len(lines) == 6


def test_a_row_without_a_proof_is_seen(arguments, run_of_digits, capsys, tmp_path):
    shutil.copytree(run_of_digits / "proofs", tmp_path / "proofs")
    (tmp_path / "proofs" / "32.npz").unlink()
    rows = ["--rows", str(run_of_digits / "rows.csv"), "--sample", "1"]
    assert CHECK.call(["--proofs", str(tmp_path / "proofs"), *arguments[2:], *rows]) == 3
    assert "not proved: the row has no proof" in capsys.readouterr().out


def test_the_checker_stands_alone(arguments):
    """No TensorFlow, nothing of the package, whatever it needs."""
    code = (
        "import sys; from keras_curv_check.cli import main\n"
        "try:\n"
        f"    main({[*arguments, '--sample', '2']!r})\n"
        "finally:\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not loaded & {'tensorflow', 'keras', 'keras_curv', 'scipy'}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "2 proved" in done.stdout


@pytest.mark.parametrize("missing", ["--proofs", "--network"])
def test_bad_input_is_one_line(missing, arguments, capsys, tmp_path):
    at = arguments.index(missing) + 1
    for value in (str(tmp_path / "none"), ""):
        assert CHECK.call([*arguments[:at], value, *arguments[at + 1 :]]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("check: ") and captured.err.count("\n") == 1


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_was_stopped_goes_on_with_its_proofs(run_of_digits, tmp_path):
    with np.load(run_of_digits / "inputs.npz") as file:
        x, y = file["x"], file["y"]
    names = {"output": str(tmp_path / "rows.csv"), "proofs": str(tmp_path / "proofs")}
    options = ExampleOptions(method="crc", batch_size=16, **names)
    for name in ("rows.csv", "rows.csv.settings.json"):
        shutil.copy(run_of_digits / name, tmp_path / name)
    rows = (tmp_path / "rows.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join(rows[:20]))  # a batch and a part of one
    shutil.copytree(run_of_digits / "proofs", tmp_path / "proofs")
    (tmp_path / "proofs" / "32.npz").unlink()
    certify_examples(DIGITS, (x, y), options, resume=True)
    assert (tmp_path / "rows.csv").read_text() == "".join(rows)
    made, known = (files_of(folder / "proofs") for folder in (tmp_path, run_of_digits))
    assert made.keys() == known.keys()
    for name in ("0.npz", "16.npz", "32.npz"):
        with (
            np.load(tmp_path / "proofs" / name) as one,
            np.load(run_of_digits / "proofs" / name) as other,
        ):
            assert all(np.array_equal(one[key], other[key]) for key in other.files)
    (tmp_path / "proofs" / "0.npz").unlink()
    with pytest.raises(InputError, match="no proofs of the rows from 0 on"):
        certify_examples(DIGITS, (x, y), options, resume=True)


def test_proofs_cost_nothing_in_rows(run_of_digits, tmp_path):
    with np.load(run_of_digits / "inputs.npz") as file:
        examples = file["x"], file["y"]
    output = str(tmp_path / "rows.csv")
    certify_examples(DIGITS, examples, method="crc", batch_size=16, output=output)
    assert (tmp_path / "rows.csv").read_bytes() == (run_of_digits / "rows.csv").read_bytes()


@pytest.mark.parametrize(
    "refused",
    [
        {"property": "top_2"},
        {"threat": Threat(scale=2.0)},
        {"threat": Threat(norm="linf")},
        {"rivals": "runner_up"},
        {"smoothing": Smoothing(0.5)},
    ],
)
def test_claims_without_a_format_are_refused(refused, tmp_path):
    with pytest.raises(InputError, match="proofs are written for argmax"):
        ExampleOptions(proofs=str(tmp_path / "proofs"), **refused)
    with pytest.raises(InputError, match="make it first"):
        ExampleOptions(proofs=str(tmp_path / "none" / "proofs"))


def test_requests_have_no_proofs(capsys, tmp_path):
    assert CERTIFY.call(["--proofs", str(tmp_path / "proofs"), "--requests", "logs/*"]) == 2
    captured = capsys.readouterr()
    assert "--proofs is not for --requests" in captured.err and captured.err.count("\n") == 1


def test_a_folder_that_is_there_is_not_written_over(run_of_digits):
    before, proofs = files_of(run_of_digits / "proofs"), str(run_of_digits / "proofs")
    with np.load(run_of_digits / "inputs.npz") as file, pytest.raises(InputError, match="empty"):
        certify_examples(DIGITS, (file["x"], None), method="crc", proofs=proofs)
    assert files_of(run_of_digits / "proofs") == before
