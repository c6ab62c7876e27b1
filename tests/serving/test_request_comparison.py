"""Drift, and what was lost against a baseline."""

import numpy as np
import pytest
from certified_requests import RADII, X, read_rows, run
from logged import predict, write

import keras_curv
from keras_curv.reports.tables import baseline_table


def test_drift_over_time_and_over_order(base, batches, tmp_path):
    xs = batches(*[1] * 40)
    times = 1_700_000_000 + np.sort(np.random.default_rng(1).integers(0, 1000, 40))
    records = [predict(x, version=1, timestamp=int(t)) for x, t in zip(xs, times, strict=True)]
    radius = keras_curv.certify(str(base / "1"), np.concatenate(xs), method="crown").radius
    drift = run(base, [write(tmp_path / "log", records)])["drift"]
    assert drift["by"] == "time"
    assert_parts(drift, radius, (times - times[0]) * 10 // (times[-1] - times[0] + 1))
    assert drift["parts"][0]["from"].startswith("2023-11-14T")
    records[7] = predict(xs[7], version=1)
    drift = run(base, [write(tmp_path / "log", records)])["drift"]
    assert drift["by"] == "order"
    assert [part["from"] for part in drift["parts"]] == list(range(0, 40, 4))
    assert_parts(drift, radius, np.arange(40) // 4)


def assert_parts(drift, radius, place):
    parts = [radius[place == part] for part in np.unique(place)]
    assert [part["examples"] for part in drift["parts"]] == [len(part) for part in parts]
    for part, mine in zip(drift["parts"], parts, strict=True):
        for r in RADII:
            assert part["certified"][str(r)] == pytest.approx(np.mean(mine > r))


def test_what_was_lost_against_a_baseline(base, batches, tmp_path):
    (x,) = batches(60)
    records = [predict(x[:30], version=1), predict(x[30:], version=1), predict(X, "y")]
    lost = tmp_path / "lost.csv"
    found = run(
        base / "10",
        [write(tmp_path / "log", records)],
        baseline=str(base),
        lost=str(lost),
        max_lost=0.0,
    )
    now, before = (keras_curv.certify(str(base / v), x, method="crown") for v in ("10", "1"))
    entry = found["baseline"]
    assert (entry["compared"], entry["unanswered"]) == (60, {"WRONG_INPUTS": 1})
    same = now.prediction == before.prediction
    assert entry["prediction_changed"] == np.sum(now.prediction != before.prediction) > 0
    for r in RADII:
        was, is_now = before.radius > r, now.radius > r
        mine = entry["radii"][str(r)]
        gone = was & ~(is_now & same)
        assert mine["baseline"] == was.sum()
        assert mine["lost"] == gone.sum() > np.sum(was & ~is_now) > 0
        assert mine["gained"] == np.sum(is_now & ~was) > 0
        assert mine["lost_fraction"] == pytest.approx(gone.sum() / was.sum())
    rows = read_rows(lost)
    kept = np.where(same, now.radius, 0.0)  # a certificate for another class is none of this one
    at = [[r for r in RADII if before.radius[i] > r >= kept[i]] for i in range(60)]
    assert [(int(row["record"]), int(row["example"]), row["lost_at"]) for row in rows] == [
        (i // 30, i % 30, " ".join(map(str, radii))) for i, radii in enumerate(at) if radii
    ]
    assert {row["version"] for row in rows} == {"10"}
    assert {row["baseline_version"] for row in rows} == {"1"}
    assert found["verdict"]["passed"] is False
    (check,) = found["verdict"]["checks"]
    assert check["found"] == max(e["lost_fraction"] for e in entry["radii"].values())


def test_nothing_to_compare_does_not_pass(base, tmp_path):
    file = write(tmp_path / "log", [predict(X, "y"), predict(X)])
    for radii in ([1e6], [RADII[0], 1e6]):
        found = run(base / "10", [file], baseline=str(base), radii=radii, max_lost=0.5)
        assert found["verdict"]["passed"] is False


def test_what_the_baseline_cannot_answer_is_counted_apart(base, batches, tmp_path):
    """As where the version that served it was deleted since."""
    records = [predict(x, version=v) for x, v in zip(batches(6, 9), (1, 5), strict=True)]
    file = write(tmp_path / "log", records)
    found = run(base / "1", [file], baseline=str(base), radii=[RADII[0]], max_lost=0.0)
    entry = found["baseline"]
    assert (entry["compared"], entry["unanswered"]) == (6, {"NO_VERSION": 9})
    heading = baseline_table(found).caption
    assert "6 examples" in heading and "9 more that it refused as NO_VERSION" in heading
