"""Kills and full disks, at every byte: what is written is kept, and the run goes on from there."""

import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest
from sample_rows import COUNT, SETTINGS, row

from keras_curv import data, files
from keras_curv.errors import InputError
from keras_curv.reading import served_model
from keras_curv.reproduce import reproduce as reproduce_run
from keras_curv.reproduce import tables
from keras_curv.rows.comparison import changed_file
from keras_curv.rows.row_file import RowFile
from keras_curv.training.run import run_folder
from keras_curv.training.run import trainer as training_run
from keras_curv.training.run.recipe import Recipe

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = [row(i) for i in range(COUNT)]


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(*arguments, **options):
    raise Killed


@contextlib.contextmanager
def disk_full_at(size):
    """No file can grow beyond so many bytes: the system itself cuts the writes short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def write_all(path, rows=ROWS):
    """A run, or what is left of it, batch by batch."""
    with RowFile(str(path), SETTINGS, count=COUNT, resume=True) as file:
        for start in range(len(file.rows), COUNT, SETTINGS["batch_size"]):
            file.write(rows[start : start + SETTINGS["batch_size"]])


@pytest.fixture
def whole(tmp_path):
    write_all(tmp_path / "whole.csv")
    return (tmp_path / "whole.csv").read_bytes()


def test_rows_fill_the_disk_at_any_byte(whole, tmp_path):
    path, longest = tmp_path / "rows.csv", 0
    for size in range(len(whole)):
        with disk_full_at(size), pytest.raises(InputError, match="cannot write .*too large"):
            write_all(path)
        text = path.read_bytes() if path.exists() else b""
        assert whole.startswith(text) and longest <= len(text) <= size
        longest = len(text)
    assert longest == len(whole) - 1
    write_all(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("full", [False, True])
def test_complete_rows_stay_when_a_run_goes_on(whole, tmp_path, full):
    """Also those of a batch that was not finished, at any moment."""
    path = tmp_path / "rows.csv"
    (tmp_path / "rows.csv.settings.json").write_bytes(
        (tmp_path / "whole.csv.settings.json").read_bytes()
    )
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with contextlib.suppress(InputError), disk_full_at(0 if full else 2**20):
            write_all(path)
        assert path.read_bytes() == (whole[:cut] if full else whole)


def test_rows_that_come_out_otherwise_take_the_place_of_the_old(whole, tmp_path):
    path, others = tmp_path / "whole.csv", [row(i, 0.25) for i in range(COUNT)]
    complete = whole.split(b"\n")
    path.write_bytes(b"\n".join(complete[:4]) + b"\n3,1")
    write_all(path, others)
    write_all(tmp_path / "others.csv", others)
    new = (tmp_path / "others.csv").read_bytes().split(b"\n")
    assert path.read_bytes().split(b"\n") == complete[:3] + new[3:]


@pytest.mark.parametrize("size", range(0, 20, 3))
def test_a_good_file_is_never_replaced_by_half_a_one(tmp_path, size):
    path = tmp_path / "summary.json"
    files.write_text(path, "good")
    with disk_full_at(size), pytest.raises(InputError, match="cannot write .*summary.json"):
        files.write_json(path, {"text": 20 * "x"})
    assert path.read_text() == "good" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(Killed):
        files.write_file(path, killed)
    assert path.read_text() == "good"


def test_links_and_devices_are_not_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to("target")
    with pytest.raises(InputError, match="link: it is a link"):
        files.write_text(link, "text")
    assert link.is_symlink() and target.read_text() == ""
    files.write_text("/dev/null", "text")
    assert not pathlib.Path("/dev/null").is_file()
    with pytest.raises(InputError, match="cannot write /dev/full: No space"):
        files.write_text("/dev/full", "text")


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path):
    """As a folder may have them that somebody else has prepared."""
    target, name = tmp_path / "target", tmp_path / "summary.json"
    target.write_text("kept")
    files.part_path(name).symlink_to(target)
    files.write_json(name, {})
    assert name.read_text() == "{}\n" and not name.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        files.write_text(tmp_path / "pipe", "text")
    for kind in ("rows.csv", "rows.csv.settings.json"):
        (tmp_path / kind).symlink_to(target)
        with pytest.raises(InputError, match="link|missing or broken"):
            write_all(tmp_path / "rows.csv")
        (tmp_path / kind).unlink()
        os.mkfifo(tmp_path / kind)
        with pytest.raises(InputError, match="regular file|missing or broken"):
            write_all(tmp_path / "rows.csv")
        (tmp_path / kind).unlink()
    assert target.read_text() == "kept"


def test_what_was_lost_is_whole_or_as_before(tmp_path):
    path = tmp_path / "lost.csv"
    path.write_text("before")
    with pytest.raises(InputError, match="cannot write .*lost.csv"), disk_full_at(10):
        with changed_file(str(path), ("index",), "lost", list) as sink:
            sink.add([])
    with pytest.raises(Killed), changed_file(str(path), ("index",), "lost", list) as sink:
        sink.add([])
        raise Killed
    assert path.read_text() == "before"


def test_half_a_line_of_history_is_no_epoch(tmp_path):
    """ "12" cut to "1" would be."""
    lines = [b"epoch,loss\r\n", *(b"%d,0.5\r\n" % i for i in range(13))]
    text, path = b"".join(lines), tmp_path / "history.csv"
    for cut in range(sum(map(len, lines[:12])), len(text) + 1):
        path.write_bytes(text[:cut])
        run_folder.forget_from(path, 11)
        assert path.read_bytes() == b"".join(lines[:12])


def test_checkpoints_go_all_at_once(tmp_path, monkeypatch):
    """A kill while they are removed leaves none that a run would go on with."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "checkpoint").touch()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training_run.shutil, "rmtree", lambda path, **_: path.exists() and killed())
        training_run.remove_checkpoints(folder)
    assert not folder.exists()
    training_run.remove_checkpoints(folder)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_training_that_is_stopped_everywhere(tmp_path, monkeypatch):
    recipe = Recipe(width=4, epochs=1, batch_size=512, jit=False, loss="plain")
    options = {"limit": 5, "command": "it"}
    whole, parts = tmp_path / "a" / "net", tmp_path / "b" / "net"
    training_run.train(recipe, str(whole), **options)
    for function in ("remove_checkpoints", "card_text"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(training_run, function, killed)
            training_run.train(recipe, str(parts), resume=parts.exists(), **options)
    training_run.train(recipe, str(parts), resume=True, **options)
    for name in ("CARD.md", "history.csv", "recipe.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    networks = [served_model.read(folder).network for folder in (whole, parts)]
    for one, other in zip(*(network.affines for network in networks), strict=True):
        assert (one.kernel == other.kernel).all() and (one.bias == other.bias).all()
    assert {file.name for file in parts.iterdir()} == {file.name for file in whole.iterdir()}


@pytest.mark.parametrize("size", [0, 1000])
def test_a_training_on_a_full_disk_says_so(tmp_path, size):
    recipe = Recipe(width=4, epochs=1, batch_size=512, jit=False, loss="plain")
    folder = tmp_path / "net"
    with disk_full_at(size), pytest.raises(InputError, match="cannot write"):
        training_run.train(recipe, str(folder), limit=5)
    if size:
        training_run.train(recipe, str(folder), limit=5, resume=(folder / "recipe.json").exists())


def test_a_table_on_a_full_disk_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_run.training, "train", lambda *unused, **options: None)
    (tmp_path / "trainings").mkdir()
    table, row = tables.get("local"), tables.rows("local")[0]
    net = reproduce_run.Net(tmp_path, table, row, Recipe(), data.load("digits"))
    with disk_full_at(10), pytest.raises(InputError, match=f"cannot write .*{net.training.name}"):
        net.train(None, False)
    assert not any((tmp_path / "trainings").iterdir())
    net.train(None, False)
    assert net.training.is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_one_line(number):
    """Even while stderr is kept quiet, and whatever is being imported."""
    code = (
        "import os, sys; sys.argv = ['certify']\n"
        "from keras_curv.cli import command\n"
        "command.stop_in_one_line('certify', 'go on with --resume')\n"
        f"with command.loading(): os.kill(os.getpid(), {number:d})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 128 + number
    assert result.stderr.startswith("certify: ") and result.stderr.count("\n") == 1
    assert "--resume" in result.stderr
