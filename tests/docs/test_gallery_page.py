"""The five stories run as printed, and say what comes out."""

import pathlib
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
