"""Somebody else puts links where a run writes, just before it opens a file or just after."""

import os
import pathlib

import keras
import numpy as np
import pytest
from sample_rows import COUNT, SETTINGS, row

from keras_curv import files
from keras_curv.errors import InputError
from keras_curv.reproduce import reproduce
from keras_curv.rows.comparison import changed_file
from keras_curv.rows.row_file import RowFile
from keras_curv.rows.shards import Shards
from keras_curv.training.history import History
from keras_curv.training.run import trainer
from keras_curv.training.run.checkpoints import Checkpoints


def small_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def rows(folder):
    with RowFile(str(folder / "rows.csv"), SETTINGS, count=COUNT) as file:
        file.write([row(i) for i in range(COUNT)])


def shards(folder):
    kept = Shards(str(folder / "rows.csv"), SETTINGS, count=COUNT)
    kept.prepare()
    kept.write([row(i) for i in range(SETTINGS["batch_size"])])


def lost(folder):
    with changed_file(str(folder / "lost.csv"), ("index",), "lost", list) as sink:
        sink.add([])


def lock(folder):
    with reproduce.lock(folder / "table.lock"):
        pass


def history(folder):
    model = small_model()
    callbacks = [History(folder / "history.csv")]
    model.fit(np.ones((4, 3)), np.ones((4, 2)), callbacks=callbacks, verbose=0)


def checkpoint(folder):
    Checkpoints(small_model(), folder / "checkpoints").save(1)


def export(folder):
    (folder / "model").mkdir()
    trainer.export_base(small_model(), folder / "model")


WRITERS = {
    "a summary": lambda folder: files.write_json(folder / "summary.json", {}),
    **{f.__name__: f for f in (rows, shards, lost, lock, history, checkpoint, export)},
}


@pytest.fixture
def prepared(tmp_path):
    """A folder to write in, and a file beside it that nobody may write."""
    folder, target = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    target.write_text("kept")
    return folder, target


def ours(path, folder):
    return isinstance(path, (str, pathlib.Path)) and folder in pathlib.Path(path).parents


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_that_comes_before_a_file_is_opened_is_not_followed(name, prepared, monkeypatch):
    folder, target = prepared
    opened, real = [], os.open

    def slipped(path, flags, *args, **options):
        if ours(path, folder) and flags & (os.O_WRONLY | os.O_RDWR):
            opened.append(pathlib.Path(path))
            if not os.path.lexists(path):
                os.symlink(target, path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", slipped)
    with pytest.raises(InputError, match=r"cannot (write|use)"):
        WRITERS[name](folder)
    assert opened and target.read_text() == "kept"


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_that_comes_after_a_file_was_opened_is_not_written_through(
    name, prepared, monkeypatch
):
    folder, target = prepared
    opened, real = [], os.open

    def slipped(path, flags, *args, **options):
        number = real(path, flags, *args, **options)
        if ours(path, folder) and flags & os.O_CREAT:
            opened.append(path)
            os.unlink(path)
            os.symlink(target, path)
        return number

    monkeypatch.setattr(os, "open", slipped)
    WRITERS[name](folder)
    assert opened and target.read_text() == "kept"


def test_every_file_is_opened_by_these(prepared, monkeypatch):
    """What the tests above would miss if something else opened files in the folder."""
    folder, _ = prepared
    made, real = set(), os.open

    def seen(path, flags, *args, **options):
        if ours(path, folder) and flags & os.O_CREAT:
            made.add(os.fspath(path))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", seen)
    for name in WRITERS:
        WRITERS[name](folder)
    there = [path for path in folder.rglob("*") if path.is_file()]
    for path in there:
        names = {str(path), str(files.part_path(path))}
        random = {name for name in made if path.name == "0.csv" and name.endswith(".part")}
        assert made & (names | random), path
    assert len(there) > len(WRITERS)


def test_a_device_that_became_a_file_is_not_written(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.write_text("kept")
    monkeypatch.setattr(pathlib.Path, "is_char_device", lambda path: True)
    with pytest.raises(InputError, match="no device any more"):
        files.write_text(target, "text")
    assert target.read_text() == "kept"
