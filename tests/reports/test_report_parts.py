"""Charts, pictures and examples of a report are those of the rows."""

import base64
import re

import numpy as np
import pytest
import tensorflow as tf
from report_pages import Page, row

from keras_curv.certificates.certificate import last_radius
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.reports.html import charts, pictures
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.html.templates import ENVIRONMENT


def test_the_least_robust_do_not_depend_on_batches(rng):
    radii = rng.integers(0, 30, 500) / 10.0  # with ties
    status = np.where(radii > 0.0, "CERTIFIED", np.where(rng.random(500) < 0.5, "UNPROVED", "TIED"))
    rows = [row(i, r, str(s)) for i, (r, s) in enumerate(zip(radii, status, strict=True))]
    correct = [r for r in rows if r.status != "TIED"]
    expected = sorted(correct, key=lambda r: (r.radius, r.index))[:12]
    for size in (1, 7, 500):
        report_data = ReportData()
        for start in range(0, 500, size):
            report_data.add(rows[start : start + size])
        assert report_data.least_robust == expected
        np.testing.assert_array_equal(report_data.radii, radii)


def test_examples_are_read_again_by_index(rng):
    x = rng.normal(size=(1000, 2))
    examples = Examples.from_arrays("mine", x, None)
    indices = [999, 3, 256, 255, 511]
    np.testing.assert_array_equal(examples.at(indices), x[indices])
    with pytest.raises(InputError, match="no example 1000 any more"):
        examples.at([3, 1000])


def test_pictures_decode_to_what_was_drawn(rng):
    pixels = rng.integers(0, 256, (5, 7, 3), np.uint8)
    address = pictures.image(pixels, (0.0, 255.0))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    np.testing.assert_array_equal(decoded, pixels)
    x = np.array([[0.0, 1.0], [0.5, 2.0]])
    address = pictures.image(x, (0.0, 1.0))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    np.testing.assert_array_equal(decoded[..., 0], [[0, 255], [128, 255]])
    address = pictures.difference(np.array([[0.0, 0.1], [-0.1, 0.0]]))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    assert decoded.tolist() == [[[255] * 3, [213, 94, 0]], [[0, 114, 178], [255] * 3]]
    address = pictures.difference(np.array([[[0.2, -0.2, 0.0]]]))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    assert decoded.tolist() == [[[255, 0, 128]]]


@pytest.mark.parametrize("count", [1, 5, 2000])
def test_the_curve_is_never_above_what_is_certified(count, rng):
    radii = np.where(rng.random(count) < 0.9, rng.exponential(size=count), 0.0)
    end = last_radius(radii)
    macros = ENVIRONMENT.get_template("macros.html.j2").module
    drawing = macros.drawing(charts.curve(radii, {"0.5": 0.5}, 0.9, "units"))
    path = next(a for a in Page(drawing).all("path"))["d"]
    steps = [(kind, float(value)) for kind, value in re.findall(r"([MHV ])([\d.]+)", path)]
    left, right = steps[0][1], steps[-1][1]
    base = max(float(a["y1"]) for a in Page(drawing).all("line") if a["class"] == "grid")
    top = min(float(a["y1"]) for a in Page(drawing).all("line") if a["class"] == "grid")
    column, y = end / 540, steps[1][1]
    starts = [left]
    levels = []
    for kind, value in steps[2:]:
        if kind == "H":
            levels.append((base - y) / (base - top))
            starts.append(value)
        y = value if kind == "V" else y
    for radius in rng.random(200) * end:
        here = left + (right - left) * radius / end
        drawn = levels[min(np.searchsorted(starts, here, side="right"), len(levels)) - 1]
        # Coordinates have one decimal.
        assert drawn <= np.mean(radii > radius - 0.1 * column) + 1e-3
        assert drawn >= np.mean(radii > radius + 1.1 * column) - 1e-3
    assert levels[-1] < 1e-3  # nothing is certified at the end


def test_histograms_count_everything(rng):
    radii = np.concatenate([np.zeros(3), rng.random(50), [np.inf]])
    counts = charts.histogram_counts(radii, 0.7)
    finite = radii[np.isfinite(radii)]
    assert counts.sum() == 50 and counts[-1] >= np.sum(finite > 0.7)
    drawing = charts.histogram(radii, 0.7, "some")
    assert [kind for *_, kind in drawing.bars[-2:]] == ["uncertified", "infinite"]
    texts = [text for text, *_ in drawing.texts]
    assert str(max(*counts, 3)) in texts and "∞" in texts
    assert charts.histogram(radii[:40], 0.7, "some").bars[-1][4] == "uncertified"


def test_every_dot_has_a_label_and_the_axis_reaches_it(rng):
    """Also those close to one another, and one beyond all radii."""
    radii = rng.exponential(size=200)
    marked = {str(at): float(np.mean(radii > at)) for at in (0.01, 0.02, 0.05, 0.1, 1.0, 12.0)}
    drawing = charts.curve(radii, marked, 1.0, "units")
    labels = [(x, y) for text, x, y, _, kind in drawing.texts if kind == "halo"][1:]
    assert len(drawing.marks) == len(labels) == 6
    for i, (x, y) in enumerate(labels):
        assert all(abs(x - a) >= 76 or abs(y - b) >= 21 for a, b in labels[:i])
    assert charts.axis_end(radii, marked) == pytest.approx(12.6)


def test_ticks_are_few_and_inside():
    for end in (1e-7, 0.03, 1.0, 6.0, 7.1, 59.9, 1e5):
        values = [value for value, _ in charts.ticks(end)]
        assert 2 <= len(values) <= 7 and values[0] == 0.0 and values[-1] <= end * (1 + 1e-6)
