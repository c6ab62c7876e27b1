"""The examples of the page on pipelines run as printed, where their library is installed."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run(block, tmp_path, monkeypatch):
    """The names that a block leaves; it runs beside the models, and writes elsewhere."""
    (tmp_path / "saved_models").symlink_to(ROOT / "saved_models")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block, "docs/pipelines.md", "exec"), names)
    return names


def test_there_is_a_block_for_each_library():
    assert ["mlflow" in BLOCKS[0], "art.attacks" in BLOCKS[1]] == [True, True] and len(BLOCKS) == 2


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    run_id = run(BLOCKS[0], tmp_path, monkeypatch)["run"].info.run_id
    assert mlflow.get_run(run_id).data.tags["certified"] == "passed"


def test_art(tmp_path, monkeypatch):
    pytest.importorskip("art")
    names = run(BLOCKS[1], tmp_path, monkeypatch)
    assert names["certified"].sum() > 16 and names["survived"].all()
