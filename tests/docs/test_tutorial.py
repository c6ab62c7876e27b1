"""The tutorial runs as printed: every block of it, in order, in one process and one folder."""

import pathlib
import re
import shlex

import numpy as np
import pytest
import scripts

TUTORIAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_shell(script, block):
    """One command; a comment below it says with which status it ends, 0 where there is none."""
    command, *comments = block.replace("\\\n", " ").strip().splitlines()
    program, subcommand, *arguments = shlex.split(command)
    assert (program, subcommand) == ("keras_curv", "certify"), command
    expected = int(comments[0].removeprefix("# status")) if comments else 0
    assert scripts.status(script, *arguments) == expected, command


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """The names that the blocks left, and the folder in which they ran."""
    folder, names = tmp_path_factory.mktemp("tutorial"), {}
    blocks = BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))
    assert {language for language, _ in blocks} == {"python", "sh"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, block in blocks:
            if language == "sh":
                run_shell(scripts.load("certify"), block)
            else:
                exec(compile(block, str(TUTORIAL), "exec"), names)
    return names, folder


@pytest.mark.slow
def test_every_block_runs_and_every_fence_is_a_block(tutorial):
    fences = re.findall(r"^```\w+$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == len(BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))) > 8


def test_the_model_is_worth_its_name(tutorial):
    """What the text says of it, with room for another processor's rounding in the training."""
    names, _ = tutorial
    radius = names["result"].radius
    assert np.mean(radius > 0.0) > 0.93
    assert np.mean(radius > 0.5) > 0.63
    assert np.mean(radius > 0.5) > np.mean(names["lighter"].radius > 0.5)


def test_a_row_is_what_python_says_too(tutorial):
    names, folder = tutorial
    row, result = names["row"], names["result"]
    assert row["index"] == "0"
    assert int(row["prediction"]) == result.prediction[0]
    assert float(row["radius"]) <= result.radius[0]
    assert float(row["radius"]) == pytest.approx(result.radius[0], rel=1e-6)
    assert set(row) >= {"label", "nearest_rival", "status", "primal_equals_dual", "method"}


def test_the_files_that_the_text_promises_are_there(tutorial):
    _, folder = tutorial
    for name in ("my_digits/saved_model.pb", "rows.csv", "summary.json", "report.html"):
        assert (folder / name).stat().st_size > 0


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    [(_, block)] = BLOCK.findall((TUTORIAL.parents[1] / "README.md").read_text(encoding="utf-8"))
    exec(compile(block, "README.md", "exec"), names)
    assert np.mean(names["result"].radius > 0.25) > 0.7
