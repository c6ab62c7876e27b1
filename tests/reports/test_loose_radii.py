"""A summary says how much radii are of the distances met, and what to do where that is little."""

import io
import math

import numpy as np
import pytest
from report_pages import dense, report_of
from rich.console import Console
from sample_rows import row

from keras_curv import certify
from keras_curv.data.examples import Examples
from keras_curv.reports import wording
from keras_curv.reports.console import print_summary
from keras_curv.rows.row import Row
from keras_curv.rows.tally import Tally
from keras_curv.runs.certify_examples import certify_examples


def _summed(distances, **changes):
    tally = Tally([0.5])
    rows = [row(i)._replace(adversarial_distance=d, **changes) for i, d in enumerate(distances)]
    tally.add(rows)
    return tally.summary()


def test_the_median_is_of_those_that_were_met():
    found = _summed([1.0, math.inf, 5.0, 0.5])
    assert (found["met"], found["proved_of_met"]) == (3, 0.5)  # of 0.5, 0.1 and 1
    none = _summed([math.inf])
    assert (none["met"], none["proved_of_met"]) == (0, None)


def test_an_example_without_a_radius_counts_as_none():
    found = _summed([2.0], radius=0.0, status="UNPROVED")
    assert (found["met"], found["proved_of_met"]) == (1, 0.0)
    assert _summed([2.0], radius=0.0, status="MISCLASSIFIED")["met"] == 0


@pytest.mark.parametrize(("share", "advised"), [(0.2499, True), (0.25, False), (1.0, False)])
def test_there_is_advice_where_radii_are_loose(share, advised):
    found = wording.looseness({"proved_of_met": share, "met": 1200})
    assert found["tightness"].startswith(f"{wording.percent(share, 1)} of the distance")
    assert "1,200 correct examples" in found["tightness"]
    assert ("keras_curv.smoothed" in found.get("advice", "")) == advised


@pytest.mark.parametrize(
    "summary", [{}, {"proved_of_met": None, "met": 0}, {"proved_of_met": 0.1, "decide": [0.1]}]
)
def test_nothing_is_said_where_nothing_is_known(summary):
    assert wording.looseness(summary) == {}


def test_a_net_with_kinks_is_told_of(tmp_path, rng):
    model, x = dense((4, 4), activation="relu"), rng.normal(size=(6, 4, 4)).astype(np.float32)
    rows = tmp_path / "rows.csv"
    examples = Examples.from_arrays("mine", x)
    summary = certify_examples(model, examples, output=str(rows), progress=False)
    result = certify(model, x)
    ratios = result.radius / result.adversarial_distance
    met = np.isfinite(result.adversarial_distance)
    assert met.any() and summary["met"] == met.sum()
    assert summary["proved_of_met"] == pytest.approx(np.median(ratios[met]), rel=1e-6)
    written = [Row.parse(line.split(",")) for line in rows.read_text().splitlines()[1:]]
    distances = np.array([one.adversarial_distance for one in written])
    assert (distances >= result.adversarial_distance).all()
    assert distances == pytest.approx(result.adversarial_distance, rel=1e-8)
    told = io.StringIO()
    print_summary(summary | {"proved_of_met": 0.1}, Console(file=told, width=400))
    assert "tightness" not in told.getvalue() and "guarantee" not in told.getvalue()
    assert "6 examples (6 certified at some radius), " in told.getvalue()
    assert "advice  for larger radii" in told.getvalue()
    loose = summary | {"proved_of_met": 0.1}
    print_summary(loose, Console(file=told, width=400), verbose=True)
    assert "guarantee  real: real arithmetic" in told.getvalue()
    assert "tightness  10.0 % of the distance" in told.getvalue()
    assert "advice  for larger radii make the model smooth" in told.getvalue()


def test_the_report_says_so_too(tmp_path, rng):
    x = rng.normal(size=(3, 4, 4)).astype(np.float32)
    assert "nearest adversarial point, the median of" in report_of(tmp_path, dense((4, 4)), x)
