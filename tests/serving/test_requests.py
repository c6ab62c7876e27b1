"""Logged requests are certified for the versions that served them."""

import numpy as np
import pytest
from certified_requests import assert_rows_are, rows_of
from logged import predict, write

from keras_curv.errors import InputError
from keras_curv.rows.row import REQUEST_COLUMNS
from keras_curv.serving.requests import RequestLog
from keras_curv.serving.versions import Versions


def test_each_request_is_certified_for_its_version(base, versions, batches, tmp_path):
    xs = batches(1, 3, 2, 4, 1, 2)
    asked = [1, 10, 1, None, 10, 1]
    records = [predict(x, version=v) for x, v in zip(xs, asked, strict=True)]
    files = [write(tmp_path / "a", records[:3]), write(tmp_path / "b", records[3:], "GZIP")]
    rows = rows_of(files, versions)
    places = [(files[k // 3], k % 3, i) for k, x in enumerate(xs) for i in range(len(x))]
    assert [(row.file, row.record, row.example) for row in rows] == places
    for version in (1, 10):
        mine = [x for x, v in zip(xs, asked, strict=True) if (v or 10) == version]
        assert_rows_are(
            [row for row in rows if row.version == str(version)],
            base / str(version),
            np.concatenate(mine),
        )
    small = rows_of(files, versions, size=2)  # requests are cut, radii but rounded otherwise
    for row, other in zip(rows, small, strict=True):
        assert row.cells(REQUEST_COLUMNS[:6]) == other.cells(REQUEST_COLUMNS[:6])
        assert row.status == other.status
        assert row.radius == pytest.approx(other.radius, rel=1e-6)


def test_patterns_match_files_once(versions, batches, tmp_path):
    for name in ("b", "a", "deep/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, [predict(batches(1)[0])])
    (tmp_path / "empty").touch()
    log = RequestLog([str(tmp_path / "[ab]"), str(tmp_path / "**" / "[a-c]")], [versions])
    assert [file[len(str(tmp_path)) + 1 :] for file in log.files] == ["a", "b", "deep/c"]
    spellings = [str(tmp_path / "a"), str(tmp_path / "deep" / ".." / "a")]
    assert RequestLog(spellings, [versions]).files == spellings[:1]
    with pytest.raises(InputError, match="no file matches"):
        RequestLog([str(tmp_path / "x*")], [versions])
    with pytest.raises(InputError, match="there are no requests"):
        RequestLog([str(tmp_path / "empty")], [versions]).survey()


def test_a_warm_up_file_belongs_to_its_version(base, versions, batches, tmp_path):
    (x,) = batches(2)
    copy = tmp_path / "small"
    for version in ("1", "10"):
        folder = copy / version / "assets.extra"
        folder.mkdir(parents=True)
        write(folder / "tf_serving_warmup_requests", [predict(x), predict(x, version=10)])
    rows = rows_of([copy / "*" / "assets.extra" / "*"], versions)
    assert [row.version for row in rows] == ["1", "1"] + 6 * ["10"]


def test_versions_of_one_number_are_refused_by_name(base, tmp_path):
    for name in ("1", "01"):
        (tmp_path / name).symlink_to(base / "1")
    with pytest.raises(InputError, match="01 and 1 are the same version"):
        Versions(str(tmp_path))


def test_a_version_that_is_a_link_has_the_number_of_the_link(base, batches, tmp_path):
    for name, target in {"3": "10", "4": "1"}.items():
        (tmp_path / name).symlink_to(base / target)
    (x,) = batches(2)
    file = write(tmp_path / "log", [predict(x, version=3), predict(x)])
    rows = rows_of([file], Versions(str(tmp_path), method="crown"))
    assert [row.version for row in rows] == ["3", "3", "4", "4"]
    assert_rows_are(rows[:2], base / "10", x)
    assert_rows_are(rows[2:], base / "1", x)


def test_one_directory_certifies_all_versions(base, batches, tmp_path):
    xs = batches(2, 2)
    file = write(tmp_path / "log", [predict(xs[0], version=10), predict(xs[1], version=77)])
    rows = rows_of([file], Versions(str(base / "1"), method="crown"))
    assert {row.version for row in rows} == {"1"}
    assert_rows_are(rows, base / "1", np.concatenate(xs))


def test_signatures_and_dtypes_as_served(base, rng, tmp_path):
    pixels = rng.integers(0, 256, (5, 2, 3)).astype(np.uint8)
    double = rng.standard_normal((4, 2, 3))
    file = write(
        tmp_path / "log",
        [
            predict(pixels, "pixels", signature="raw", version=1),
            predict(double, signature="double", version=1),
            predict(pixels, "pixels", version=1),
        ],
    )
    rows = rows_of([file], Versions(str(base), method="crown", signature="raw"))
    assert_rows_are(rows[:5], base / "1", pixels, signature="raw")
    assert_rows_are(rows[5:9], base / "1", double, signature="double")
    assert [row.signature for row in rows] == 5 * ["raw"] + 4 * ["double"] + 5 * ["raw"]
    assert [row.radius for row in rows[9:]] == [row.radius for row in rows[:5]]


def test_requests_to_several_models(base, versions, batches, tmp_path):
    xs = batches(1, 2, 1)
    records = [predict(x, name=n) for x, n in zip(xs, ("a", "b", ""), strict=True)]
    file = write(tmp_path / "log", records)
    with pytest.raises(InputError, match="several models, 'a' and 'b'"):
        rows_of([file], versions)
    rows = rows_of([file], versions, model_name="b")
    # What has no name may be of this model: left out it would not count against a gate.
    assert [row.status == "OTHER_MODEL" for row in rows] == [True, False, False, False]
    assert len(rows_of([write(tmp_path / "one", records[:1] + records[2:])], versions)) == 2
