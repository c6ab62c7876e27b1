"""What the page on gates shows works: each command is run, and its status is looked at."""

import json
import pathlib
import re
import shlex
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import scripts

import keras_curv
from keras_curv import data

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
TYPED = re.findall(r"^    (keras_curv certify .*)$", PAGE, re.MULTILINE)
FAILING = "--require 0.25=0.98", "--require 0.1=lower:0.85", "site:0.1=lower:0.8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gates")
    (folder / "model").symlink_to(ROOT / "saved_models" / "digits")
    (folder / "old").symlink_to(ROOT / "saved_models" / "digits")
    x, y = data.load_all("digits")
    site = np.where(np.arange(40) % 2, "north", "south")
    np.savez(folder / "test.npz", x=x[:40], y=y[:40], site=site)
    return folder


def test_the_page_has_its_commands():
    assert len(TYPED) == 7 and "keras_curv certify" in PAGE.partition("```yaml")[2]


@pytest.mark.parametrize("typed", TYPED)
def test_what_is_typed_gives_a_verdict(typed, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    code, out, err = scripts.call(scripts.load(), capfd, *shlex.split(typed)[2:])
    assert err == ""
    assert code == (3 if any(words in typed for words in FAILING) else 0)
    assert out.startswith(("PASSED", "FAILED")) == (" --require" in typed or "--max_lost" in typed)
    assert "::error" not in out
    if "--slice" in typed:
        assert "Certified, by site" in out and "north" in out
    if "--baseline" in typed:
        assert "passed: lost 0.00 %" in out and "paired p" in out
        assert pathlib.Path("lost.csv").read_text().count("\n") == 1
    if "--junit" in typed:
        root = ElementTree.parse("junit.xml").getroot()
        (case,) = root.iter("testcase")
        assert case.get("name") == "0.1=0.9" and root.get("failures") == "0" and not len(case)
        assert next(iter(json.loads(pathlib.Path("summary.json").read_text()))) == "verdict"
        assert "PASSED: 1 requirement met" in pathlib.Path("report.html").read_text()


def test_training_stops_as_the_page_says():
    """The training itself is short; the block is run as it is printed."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    x, y = data.load_all("digits")
    dense = keras.layers.Dense
    base = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), dense(6, "softplus"), dense(10)]
    )
    model = keras_curv.CRTModel(base, 0.1, ramp_steps=2)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    names = dict(keras_curv=keras_curv, model=model, x=x[:32], y=y[:32])
    names |= dict(x_held_out=x[32:48], y_held_out=y[32:48])
    exec(block, names)
    assert names["stop"].best is not None
