"""A run over logged requests writes all that a run over a data set does."""

import re

import logged
import numpy as np
import pytest
import tensorflow as tf
from logged import predict, write
from scripts import call

from keras_curv.errors import InputError
from keras_curv.serving.certify_requests import RequestJob, certify_requests, request_log
from keras_curv.serving.options import RequestOptions

RADII = (0.05, 0.2)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A model of two versions, and a log of requests to both, two of them wrong."""
    folder = tmp_path_factory.mktemp("requests")
    logged.save(folder / "model" / "1", 1)
    logged.save(folder / "model" / "10", 2)
    rng = np.random.default_rng(3)
    records = []
    for version in (1, 10, 10, 1):
        x = rng.standard_normal((3, 2, 3)).astype(np.float32)
        records.append(predict(x, version=version))
    records.insert(2, predict(x, version=5))
    records.append(logged.field(3, b""))  # a regress request
    write(folder / "log", records)
    return folder


def certify(log, **options):
    options = {"method": "crown", "radii": RADII, "batch_size": 4} | options
    return certify_requests(str(log / "model"), [str(log / "log")], **options)


def test_workers_leave_the_same_rows(log, tmp_path):
    pytest.importorskip("apache_beam")
    paths = [str(tmp_path / name) for name in ("here.csv", "workers.csv")]
    here = certify(log, output=paths[0])
    there = certify(log, output=paths[1], runner="DirectRunner")
    assert open(paths[0], "rb").read() == open(paths[1], "rb").read()
    assert here.pop("seconds") and there.pop("seconds")
    assert here == there


def test_a_log_that_is_cut_off_ends_the_run_with_workers_too(log, tmp_path):
    pytest.importorskip("apache_beam")
    (tmp_path / "model").symlink_to(log / "model")
    (tmp_path / "log").write_bytes((log / "log").read_bytes()[:-3])
    outputs = [tmp_path / "here.csv", tmp_path / "workers.csv"]
    for output, runner in zip(outputs, (None, "DirectRunner"), strict=True):
        with pytest.raises(InputError, match="log: record 5 is cut off"):
            certify(tmp_path, output=str(output), runner=runner)
    rows = outputs[0].read_bytes()
    assert rows == outputs[1].read_bytes() and rows.count(b"\n") > 12


def test_the_report_says_what_the_summary_says(log, tmp_path):
    reports = [tmp_path / name for name in ("a.html", "b.html")]
    summary = certify(log, report=str(reports[0]), baseline=str(log / "model" / "1"))
    text = reports[0].read_text(encoding="utf-8")
    for said in ("5 logged requests", "6 logged requests"):
        assert (said in text) == (said == summary["dataset"])
    plain = re.sub(r"<[^>]*>", " ", text)
    for version in summary["versions"]:
        assert f"version {version}" in plain.lower() or version in plain
    assert "NO_VERSION" in plain and "REGRESS" in plain and "by version" in plain.lower()
    assert text.count("<img") > 0 or "Entries" in text
    certify(log, report=str(reports[1]), baseline=str(log / "model" / "1"))
    assert reports[1].read_bytes() == reports[0].read_bytes()


def test_the_points_of_the_report_are_adversarial_for_their_version(log):
    """Each case has the example of its row, and a point that its version classifies otherwise."""
    options = RequestOptions(method="crown", batch_size=4)
    job = RequestJob(request_log(str(log / "model"), [str(log / "log")], options), options)
    rows = [row for rows in job.batches(0) for row in rows if row.radius > 0.0]
    cases = job.cases(rows)
    assert sorted(case.row.index for case in cases) == [row.index for row in rows]
    for case in cases:
        served = tf.saved_model.load(str(log / "model" / case.row.version)).signatures
        answer = served["serving_default"]
        (before,) = answer(tf.constant(case.x[None])).values()
        assert np.argmax(before) == case.row.prediction
        if case.point is not None:
            beyond = case.x + 1.001 * (case.point - case.x)  # float32 may tie on the boundary
            (after,) = answer(tf.constant(beyond[None].astype(np.float32))).values()
            assert np.argmax(after) == case.becomes != case.row.prediction
            assert case.distance >= case.row.radius


def test_the_command_line(script, capfd, log, tmp_path):
    report, plot = tmp_path / "r.html", tmp_path / "p.png"
    words = ("--saved_model", log / "model", "--requests", log / "log", "--method", "crown")
    code, out, err = call(script, capfd, *words, "--report", report, "--plot", plot)
    assert code == 0 and err == "" and "certified" in out
    assert report.stat().st_size > 1000 and plot.stat().st_size > 1000
