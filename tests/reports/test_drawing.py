"""Pictures do not obey settings of matplotlib that lie in a folder, nor run programs."""

import os
import pathlib
import subprocess
import sys

import matplotlib
import pytest

from keras_curv.errors import InputError
from keras_curv.reports.drawing import require_drawable, write_figure

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAW = """
import os, sys

sys.argv = ["certify"]
from keras_curv.reports.drawing import require_drawable, write_figure
here = os.getcwd()
for name in ("plot.png", "plot.svg"):
    require_drawable(name)
    write_figure(name, lambda figure: figure.add_subplot().set_title("a_b $x$"), dpi=50)
assert os.getcwd() == here
"""
SETTINGS = {
    "LaTeX": lambda file: file.write_text("text.usetex: True\nbackend: module://evil\n"),
    "other sizes": lambda file: file.write_text("savefig.bbox: tight\nfont.size: 30\n"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe: \x00"),
    "a pipe": os.mkfifo,
    "a link to nowhere": lambda file: file.symlink_to("nowhere"),
}


def drawn(folder):
    """A program is found before LaTeX, and says so if it is run."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("latex", "pdflatex", "xelatex", "gs"):
        (folder / "bin" / name).write_text(f"#!/bin/sh\ntouch {folder}/ran\nexit 1\n")
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "SOURCE_DATE_EPOCH": "0"}
    command = [sys.executable, "-c", DRAW]
    options = {"capture_output": True, "text": True, "timeout": 60}
    result = subprocess.run(command, cwd=folder, env=environment, **options)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert not (folder / "ran").exists()
    return (folder / "plot.png").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_settings_file_of_the_working_directory_changes_nothing(kind, plain, tmp_path):
    SETTINGS[kind](tmp_path / "matplotlibrc")
    assert drawn(tmp_path) == plain


def test_settings_of_the_process_are_left_alone(tmp_path):
    files = [tmp_path / "one.png", tmp_path / "other.png"]
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30.0}):
        for file in files:
            write_figure(file, lambda figure: figure.add_subplot().set_title("a_b"), dpi=50)
            assert matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["font.size"] == 30.0
            matplotlib.rcParams["font.size"] = 30.0
    with matplotlib.rc_context({"font.size": 5.0}):
        write_figure(files[1], lambda figure: figure.add_subplot().set_title("a_b"), dpi=50)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("ending", ["pgf", "txt", ""])
def test_a_format_that_a_program_writes_is_refused(ending):
    with pytest.raises(InputError, match="must be one of .*png"):
        require_drawable(f"plot.{ending}")
