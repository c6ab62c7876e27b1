"""Rows that no run has written are refused in a line, and those of any size are summed up."""

import math
import os

import numpy as np
import pytest
from sample_rows import COUNT, SETTINGS, row

from keras_curv.certificates.certificate import last_radius
from keras_curv.errors import InputError
from keras_curv.reports.html import charts
from keras_curv.rows.checks import require_row_of
from keras_curv.rows.row import EXAMPLE_COLUMNS, REQUEST_COLUMNS, Row
from keras_curv.rows.row_file import RowFile, most_bytes
from keras_curv.rows.shards import Shards
from keras_curv.rows.tally import Tally

FORGED = {
    "index": ("+3", " 3", "3 ", "0_3", "03", "٣", "3.0", str(2**63), "9" * 400, "9" * 5000),
    "label": ("-0", "1_0", "9" * 400),
    "radius": ("0.50", "5e-1", ".5", "0,5", "infinity", "1e999", "nan", "-0.5", "0.5_0"),
    "status": ("", "certified", "CLASSIFY", "MISCLASSIFIED"),
    "gradient_evaluations": ("7.0", "9" * 20, "-9" + "9" * 19),
    "primal_equals_dual": ("2", "True", "-1", ""),
    "rivals": ("", "none", "ALL"),
    "method": ("mine", "crc ", "a" * 60_000, "\x1b[2J"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_cell_is_what_a_run_writes_to_the_letter(name):
    cells = row(3).cells()
    assert Row.parse(cells) == row(3)
    for cell in FORGED[name]:
        changed = list(cells)
        changed[EXAMPLE_COLUMNS.index(name)] = cell
        with pytest.raises((ValueError, KeyError)):
            Row.parse(changed)


def test_texts_come_back_whatever_they_begin_with():
    for text in ("=1+1", "'quoted", "@a", "-1", "a b", "-a", "\uff1d1"):
        given = row(0)._replace(label=None, file=text, detail=text, baseline_status="TIED")
        assert Row.parse(given.cells(REQUEST_COLUMNS), REQUEST_COLUMNS) == given


def test_a_prediction_of_no_class_is_no_certificate():
    none = row(0)._replace(label=None, prediction=-1)
    with pytest.raises(InputError, match="CERTIFIED of no class"):
        require_row_of(none, {}, 3)
    require_row_of(none._replace(status="NOT_FINITE", radius=0.0), {}, 3)


def test_a_file_far_larger_than_its_run_is_not_read(tmp_path):
    path = tmp_path / "rows.csv"
    with RowFile(str(path), SETTINGS, count=COUNT) as file:
        file.write([row(i) for i in range(4)])
    os.truncate(path, most_bytes(COUNT, SETTINGS) + 1)
    with pytest.raises(InputError, match="has 671.* bytes, and 7 rows of this run have 671.*"):
        RowFile(str(path), SETTINGS, count=COUNT, resume=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("radii", "mean", "median"),
    [
        ([1e308, 1.7e308], 1.35e308, 1.35e308),
        ([5e-324, 1e308], 5e307, 5e307),
        ([1.0, 2.0, 6.0], 3.0, 2.0),
        ([math.inf, 1.0], "inf", "inf"),
        ([5e-324], 5e-324, 5e-324),
    ],
)
def test_radii_of_any_size_are_summed_up_and_drawn(radii, mean, median):
    tally = Tally([0.5])
    tally.add(
        [row(i, radius)._replace(gradient_evaluations=2**63 - 1) for i, radius in enumerate(radii)]
    )
    summary = tally.summary()
    expected = [pytest.approx(value) if value != "inf" else value for value in (mean, median)]
    assert [summary["mean_radius"], summary["median_radius"]] == expected
    held = np.array(radii)
    end = last_radius(held)
    assert 0.0 < end < math.inf and charts.curve(held, {"0.5": 0.5}, 1.0, "radius").path
    assert charts.histogram_counts(held, end).sum() == np.isfinite(held).sum()


@pytest.mark.parametrize("content", [b"\xff", b"a" * 2**17])
def test_a_reason_that_is_no_text_is_refused_in_a_line(content, tmp_path):
    shards = Shards(str(tmp_path / "rows.csv"), SETTINGS, count=COUNT)
    shards.prepare()
    (shards.folder / "2.refused").write_bytes(content)
    with pytest.raises(InputError, match="no text|more than 65536 bytes"):
        shards.rows(2)
