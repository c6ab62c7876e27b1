"""The five stories run as printed, and say what comes out."""

import json
import pathlib
import re
import runpy
import xml.etree.ElementTree

import numpy as np
import pytest
import scripts
from test_tutorial import BLOCK, run_shell

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The names that the blocks left, and the folder in which they ran."""
    folder, names = tmp_path_factory.mktemp("gallery"), {}
    (folder / "saved_models").symlink_to(ROOT / "saved_models")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, block in BLOCK.findall(PAGE):
            if language == "sh":
                run_shell(scripts.load("certify"), block)
            else:
                exec(compile(block, "docs/gallery.md", "exec"), names)
    return names, folder


def test_the_notebook_tells_the_same():
    """So that whatever runs here of the page runs there; `python docs/notebook.py` writes it."""
    notebook = runpy.run_path(str(ROOT / "docs" / "notebook.py"))["notebook_of"](PAGE)
    assert json.loads((ROOT / "docs" / "gallery.ipynb").read_text(encoding="utf-8")) == notebook
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = [block for _, block in BLOCK.findall(PAGE)]
    assert [cell.lstrip("!") for cell in code[1:]] == [
        re.sub(r"# status.*", "", b).strip() for b in blocks
    ]


def test_there_are_five_stories():
    assert PAGE.count("\n## ") == 5 and len(BLOCK.findall(PAGE)) == PAGE.count("```") / 2


def test_files_are_written(told):
    _, folder = told
    assert (folder / "digits.csv").read_text().count("\n") == 61
    assert "<html" in (folder / "digits.html").read_text(encoding="utf-8")
    assert xml.etree.ElementTree.parse(folder / "gate.xml").getroot() is not None
    assert (folder / "answers.csv").read_text().count("CERTIFIED") == 3


def test_tuning_for_a_radius_helps(told):
    names, _ = told
    before, after = names["before"].radius, names["after"].radius
    assert np.mean(after > 0.5) > np.mean(before > 0.5) + 0.1
