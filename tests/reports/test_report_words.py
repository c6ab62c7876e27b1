"""The report shows inputs as they are, and says what is no certificate."""

import numpy as np
import pytest
from report_pages import dense, report_of, require_accessible, require_self_contained

from keras_curv import Smoothing

SHAPES = {
    (1,): (False, "Entries: ("),
    (8,): (False, "The entries that change most"),
    (64,): (False, "The entries that change most"),
    (1, 1): (True, "Black is"),
    (3, 5): (True, "white is no change"),
    (4, 3, 1): (True, "white is no change"),
    (4, 3, 3): (True, "mid-grey is no change"),
    (2, 2, 2): (False, "are no images"),
    (300, 2): (True, "only every so many pixels"),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inputs_that_are_images_are_drawn(shape, tmp_path, rng):
    drawn, words = SHAPES[shape]
    x = rng.normal(size=(2, *shape)).astype(np.float32)
    parsed = require_self_contained(report_of(tmp_path, dense(shape), x, method="lipschitz"))
    require_accessible(parsed)
    assert words in parsed.text
    found = parsed.text.count(" at distance ")
    assert found == 2 or np.prod(shape) == 1  # a line of inputs may lie in one class
    assert len(parsed.all("img")) == (2 + 2 * found if drawn else 0)
    assert "Radii by predicted class" in parsed.text and "clean" not in parsed.text


def test_scaled_whole_numbers(tmp_path, rng):
    x = rng.integers(0, 256, (5, 4, 4), np.uint8)
    text = report_of(tmp_path, dense((4, 4)), x, input_scale=0.25, method="crc")
    assert "Black is 0 and white 255" in text and "examples × 0.25" in text


def test_nothing_correct(tmp_path, rng):
    model, x = dense((2, 2)), rng.normal(size=(5, 2, 2)).astype(np.float32)
    wrong = (np.asarray(model(x)).argmax(axis=1) + 1) % 3
    parsed = require_self_contained(report_of(tmp_path, model, x, wrong, method="crc"))
    assert "No example has a correct prediction" in parsed.text
    assert "Example 4: predicted" in parsed.text and len(parsed.all("img")) == 5
    assert f", labelled {wrong[4]}" in parsed.text


def test_what_is_no_certificate_says_so(tmp_path, rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    single = report_of(tmp_path, dense((3,)), x, rivals="runner_up", method="crc")
    assert "This is not a certificate of the classifier" in single
    assert "so a point may be nearer than it" in single
    assert "above one class, the runner-up at the example" in single
    assert "keeps the largest logit" not in single and "cannot change" not in single
    smoothing = Smoothing(0.1, samples=100)
    voted = report_of(tmp_path, dense((3,)), x, smoothing=smoothing)
    assert "not the model itself" in voted and "at distance" not in voted
    assert "are not searched for" in voted
    assert "in the vote under noise, the predicted class keeps" in voted
    options = {"smoothing": smoothing, "rivals": "runner_up"}
    assert "in the vote under noise, the predicted class stays above one" in report_of(
        tmp_path, dense((3,)), x, **options
    )


def test_another_property_is_not_called_the_prediction(tmp_path, rng):
    model, x = dense((3,), classes=4), rng.normal(size=(6, 3)).astype(np.float32)
    y = np.asarray(model(x)).argsort(axis=1)[:, -2]  # among the two largest, and not predicted
    text = report_of(tmp_path, model, x, y, property="top_2", method="crc")
    assert "for changes with ‖δ‖₂ &lt; r: the label stays among the 2 largest" in text
    assert "the prediction cannot change" not in text and "predicted as labelled, and" not in text
    assert "smoothed by noise" not in text and "where the property or the threat" in text


def test_the_float32_guarantee_is_told(tmp_path, rng):
    x = rng.normal(size=(2, 3)).astype(np.float32)
    assert "no TF32, bfloat16" in report_of(
        tmp_path, dense((3,)), x, guarantee="float32", method="crc"
    )


@pytest.mark.parametrize(("outputs", "whose"), [(1, "the output"), (2, "output ")])
def test_what_leaves_its_interval_is_told_in_words(tmp_path, rng, outputs, whose):
    x = rng.normal(size=(3, 3)).astype(np.float32)
    text = report_of(tmp_path, dense((3,), classes=outputs), x, property="interval:0.1")
    assert f", {whose}" in text and " first." in text and "nearest rival" not in text
    assert "range of pixels" not in text
