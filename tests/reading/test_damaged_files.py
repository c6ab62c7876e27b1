"""Directories and files that are missing, cut off or damaged are refused in one line."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
from hostile_models.models import DATA, INDEX, Net, edited, export, write
from refused import assert_refused

from keras_curv.errors import InputError
from keras_curv.reading import served_model
from keras_curv.saved_model.files import resolve_directory

L = keras.layers


def test_a_missing_directory_is_named(tmp_path):
    assert_refused(tmp_path / "nowhere", "does not exist")


@pytest.mark.parametrize("name", ["٩", "99999999999999999999", "1.0", "v2"])
def test_what_a_server_takes_for_no_version_is_none(name, tmp_path):
    for version in ("007", name):
        export(tmp_path / version)
    assert resolve_directory(tmp_path).name == "007"


def test_a_newer_version_in_another_format_is_not_passed_over(tmp_path):
    export(tmp_path / "1")
    (tmp_path / "2").mkdir()
    assert resolve_directory(tmp_path).name == "1"  # nothing in it yet
    (tmp_path / "2" / "saved_model.pbtxt").write_text("")
    assert_refused(tmp_path, "newer than 1", "another format")


def test_an_empty_directory_is_named(tmp_path):
    assert_refused(tmp_path, "saved_model.pb")


def test_a_base_path_without_a_finished_version_is_refused(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "model").mkdir()
    export(tmp_path / "model" / "export")
    assert_refused(tmp_path, "numbered version")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_files_are_no_versions_of_a_server(tmp_path, suffix):
    file = tmp_path / f"digits{suffix}"
    file.write_bytes(b"PK")
    with pytest.raises(InputError, match=r"not a SavedModel directory.*model.export\('digits'\)"):
        resolve_directory(file)


def test_any_other_file_is_refused(tmp_path):
    file = tmp_path / "saved_model.pb"
    file.write_bytes(b"")
    assert "export" not in assert_refused(file, "is a file")


GARBAGE = {
    "empty": b"",
    "text": b"this is not a model\n" * 40,
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "html": b"<!DOCTYPE html>\n<html></html>\n",
    "noise": np.random.default_rng(0).bytes(5000),
    "two graphs": b"\x08\x01\x12\x00\x12\x00",
    "bare": b"\x08\x01\x12\x00",
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_refused(case, plain_files, tmp_path, nothing_is_loaded):
    path = write(tmp_path, {**plain_files, "saved_model.pb": GARBAGE[case]})
    assert_refused(path)


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.25, 0.5, 0.9, 0.999, -1])
def test_a_cut_off_graph_is_refused(part, plain_files, tmp_path, nothing_is_loaded):
    whole = plain_files["saved_model.pb"]
    cut = int(len(whole) * part) if part > 0 else len(whole) - 1
    assert_refused(write(tmp_path, {**plain_files, "saved_model.pb": whole[:cut]}))


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_graph_is_read_or_refused_but_never_crashes(seed, plain_files, tmp_path):
    rng = np.random.default_rng(seed)
    damaged = bytearray(plain_files["saved_model.pb"])
    for place in rng.integers(0, len(damaged), 1 + seed % 4):
        damaged[place] ^= 1 << rng.integers(8)
    path = write(tmp_path, {**plain_files, "saved_model.pb": bytes(damaged)})
    try:
        served = served_model.read(path)
        served.check(np.ones((2, 4), np.float32))
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", [DATA, INDEX])
@pytest.mark.parametrize("keep", [None, 0.0, 0.3, 0.9])
def test_missing_or_cut_off_variables_are_refused(name, keep, plain_files, tmp_path):
    files = dict(plain_files)
    if keep is None:
        del files[name]
    else:
        files[name] = files[name][: int(keep * len(files[name]))]
    assert_refused(write(tmp_path, files), "cannot load")


def test_a_changed_weight_is_refused_by_its_checksum(plain_files, tmp_path):
    data = bytearray(plain_files[DATA])
    kernel = np.float32(Net().w.numpy()).tobytes()
    place = bytes(data).index(kernel)
    data[place + 2] ^= 1
    assert_refused(write(tmp_path, {**plain_files, DATA: bytes(data)}), "cannot load")


def test_no_variables_folder_is_refused(plain_files, tmp_path):
    files = {"saved_model.pb": plain_files["saved_model.pb"]}
    assert_refused(write(tmp_path, files), "cannot load")


def test_a_root_that_is_no_module_is_refused(tmp_path):
    path = export(tmp_path / "model")
    with edited(path) as meta:
        root, variable = meta.object_graph_def.nodes[0], None
        for node in meta.object_graph_def.nodes:
            variable = node if node.WhichOneof("kind") == "variable" else variable
        root.variable.CopyFrom(variable.variable)
        del root.children[:]
    assert_refused(path, "tf.saved_model.load would find no signatures")


ODD = ["+3", " 3", "3 ", "\t+3", "-3"]


@pytest.mark.parametrize("name", ODD)
def test_a_version_that_only_a_server_takes_for_one_is_refused(name, tmp_path):
    export(tmp_path / "2")
    export(tmp_path / name)
    assert_refused(tmp_path, "a server may take", "rename")


def test_a_version_whose_graph_is_a_pipe_is_refused(tmp_path):
    export(tmp_path / "2")
    (tmp_path / "3").mkdir()
    os.mkfifo(tmp_path / "3" / "saved_model.pb")
    assert_refused(tmp_path, "3/saved_model.pb is not a file")


def test_a_model_beside_numbered_versions_is_refused(tmp_path):
    export(tmp_path)
    export(tmp_path / "2")
    assert_refused(tmp_path, "beside numbered versions")
    assert served_model.read(tmp_path / "2").network.classes == 3


def test_data_under_other_names_are_refused(plain_files, tmp_path):
    """A server looks for the first of one file, and finds none."""
    files = {name: content for name, content in plain_files.items() if name != DATA}
    files[DATA.replace("00000-of", "00001-of")] = plain_files[DATA]
    assert_refused(write(tmp_path, files), "cannot load", "missing")


def test_an_unreadable_name_is_an_input_error():
    with pytest.raises(InputError, match="cannot be read"):
        served_model.read("x" * 5000)
