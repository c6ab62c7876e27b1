"""The page on threats and properties runs as printed, and says what comes out."""

import pathlib

import numpy as np
import pytest
import scripts
from test_tutorial import BLOCK, run_shell

import keras_curv

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threats.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def names():
    """What the blocks leave; they write no file."""
    left = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if language == "sh":
                run_shell(scripts.load("certify"), block)
            else:
                exec(compile(block, str(PAGE), "exec"), left)
    return left


def test_what_the_page_says_of_diabetes(names):
    assert len(names["x"]) == 89 and names["smallest"] > 1.0
    assert 0.0 < names["rises"] < 0.3
    history = names["fitted"].history
    assert history["certified_error"][-1] > history["clean_error"][-1]
    threat = (ROOT / "saved_models" / "diabetes_threat.json").read_text(encoding="utf-8")
    assert threat.strip() in PAGE.read_text(encoding="utf-8")


def test_the_instance_of_the_page_is_verified(names):
    assert names["answer"] == "verified"


def test_contrast_of_a_picture_keeps_its_class_up_to_the_factor(names):
    served = keras_curv.read(str(ROOT / names["model"]))
    shares = np.linspace(-1.0, 1.0, 101)[:, None, None, None] * names["factor"] * 0.9999
    picture = names["picture"]
    changed = (picture + shares * (picture - picture.mean())).astype(np.float32)
    assert len(set(np.argmax(served.call(changed), axis=1).tolist())) == 1
    assert abs(names["factor"] - 0.88) < 0.005


def test_threats_by_name_are_what_they_say(names):
    """At the radius, points of each kind keep the class; brighter pictures than pixels differ."""
    model, found = keras_curv.read("saved_models/digits"), names["found"]
    x, label = (part[:20] for part in keras_curv.data.load_all("digits"))
    radius = found["brightness"].radius
    for sign in (-1.0, 1.0):
        points = x.reshape(20, 64) + sign * (1.0 - 1e-6) * radius[:, None]
        logits = model.network.logits(points).numpy()
        assert np.all((logits.argmax(axis=1) == label)[radius > 0.0])
    assert found["brightness"].radius.mean() > names["confined"].radius.mean() / 8.0
    assert names["tolerant"] > 0.8 and names["universal"] > 0.0
    assert np.all(found["a part of the picture"].radius >= names["confined"].radius * 0.98)


def test_a_box_is_worth_something_for_pixels(names):
    assert names["gain"] > 1.005
    assert np.all(names["confined"].radius >= names["unrestricted"].radius)


def test_what_the_page_says_of_categories_and_budgets(names):
    every, one, budget = (names[k].radius for k in ("any_colour", "this_colour", "budget"))
    assert np.all(every <= one * (1 + 2e-3)) and (every < 0.9 * one).any() and (every > 0.0).any()
    assert np.any(names["any_colour"].adversarial_distance == 0.0)
    assert np.all(budget >= one * (1 - 2e-2)) and budget.mean() > 1.02 * one.mean()
