"""Runs over logs that are broken, cut off or changed lose nothing and go on alike."""

import json

import logged
import numpy as np
import pytest
from certified_requests import X, broken, read_rows, run
from logged import predict, write

from keras_curv.errors import InputError
from keras_curv.serving.certify_requests import certify_requests
from keras_curv.serving.requests import RequestLog


@pytest.mark.parametrize("damage", [lambda d: d.pop(), lambda d: d.__setitem__(-5, d[-5] ^ 1)])
def test_a_broken_record_ends_the_run_and_loses_nothing(base, batches, tmp_path, damage):
    records = [predict(x, version=1) for x in batches(2, 3, 2)]
    write(tmp_path / "0", records)
    broken(tmp_path / "1", records, damage)
    write(tmp_path / "2", records)
    files = [tmp_path / name for name in "012"]
    with pytest.raises(InputError, match=f"{tmp_path}/1: record 2 is c"):
        run(base, files, output=str(tmp_path / "rows.csv"), batch_size=5)
    rows = read_rows(tmp_path / "rows.csv")
    assert [(row["file"][-1], row["record"]) for row in rows[6:]] == [("0", "2")] + [
        ("1", r) for r in "00111"
    ]
    whole = run(base, files[:1], output=str(tmp_path / "whole.csv"))
    assert whole["examples"] == 7
    assert read_rows(tmp_path / "whole.csv") == rows[:7]


def test_a_run_that_was_cut_off_goes_on_to_the_same_bytes(base, batches, rng, tmp_path):
    records = [
        predict(x, version=v) for x, v in zip(batches(2, 3, 1, 4), (1, 10, 10, 1), strict=True)
    ]
    records.insert(2, predict(X, version=5))
    path = tmp_path / "log, of a server"
    write(path, records)
    options = dict(baseline=str(base / "1"), batch_size=3)
    names = "rows.csv", "summary.json", "lost.csv"
    output, summary, lost = (tmp_path / name for name in names)
    options |= dict(output=str(output), summary=str(summary), lost=str(lost))
    run(base, [path], **options)
    whole = [file.read_bytes() for file in (output, summary, lost)]
    assert len(whole[0].splitlines()) == 12
    for cut in rng.integers(1, len(whole[0]), 3):
        output.write_bytes(whole[0][:cut])
        lost.unlink()
        run(base, [path], resume=True, **options)
        assert [file.read_bytes() for file in (output, summary, lost)] == whole
    forged = whole[0].replace(b"NO_VERSION", b"CLASSIFY"), whole[0].replace(b",10,", b",11,")
    for rows in (*forged, whole[0].replace(b"CERTIFIED", b"TIED")):
        output.write_bytes(rows)
        with pytest.raises(InputError, match="cannot be of this run|is not a row"):
            run(base, [path], resume=True, **options)
    output.write_bytes(whole[0])
    write(path, records[:-1])
    with pytest.raises(InputError, match="was made with other examples"):
        run(base, [path], resume=True, **options)


def test_a_run_goes_on_with_the_same_files_in_the_same_order_only(rng, tmp_path):
    """Two warm-up files of the same records, which belong to different versions."""
    files, records = [], [predict(np.float32(rng.random((1, 2, 3)))) for _ in range(2)]
    for version in (1, 10):
        logged.save(tmp_path / "model" / str(version), version)
        extra = tmp_path / "model" / str(version) / "assets.extra"
        extra.mkdir()
        files.append(str(write(extra / "tf_serving_warmup_requests", records)))
    output = tmp_path / "rows.csv"
    options = {"batch_size": 2, "output": str(output), "method": "lipschitz"}
    certify_requests(str(tmp_path / "model"), files, **options)
    whole = output.read_bytes()
    output.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    with pytest.raises(InputError, match="resume with the same settings"):
        certify_requests(str(tmp_path / "model"), files[::-1], resume=True, **options)
    certify_requests(str(tmp_path / "model"), files, resume=True, **options)
    assert output.read_bytes() == whole


def test_a_run_may_write_beside_its_log(base, batches, tmp_path):
    """A pattern that stands for all files of the folder does not stand for what the run wrote."""
    write(tmp_path / "log", [predict(x, version=1) for x in batches(2, 3)])
    files = dict(output=str(tmp_path / "rows.csv"), summary=str(tmp_path / "summary.json"))
    summaries = [run(base, [tmp_path / "*"], resume=more, **files) for more in (False, True)]
    assert summaries[0]["examples"] == summaries[1]["examples"] == 5
    with pytest.raises(InputError, match="must all be different files"):
        run(base, [tmp_path / "rows.csv"], resume=True, **files)


def test_the_summary_is_the_same_bytes_again(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x) for x in batches(3, 2)])
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        run(base, [file], summary=str(path), required=0.1)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    written = json.loads(paths[0].read_text())
    assert written["verdict"]["checks"][0]["required"] == 0.1
    assert set(written["fingerprint"]) == {"10/serving_default"}


def test_files_that_change_between_the_readings_are_refused(tmp_path, rng, monkeypatch):
    """What is certified must be what the fingerprint says."""
    logged.save(tmp_path / "model" / "1", 0)
    first, second = (
        [logged.predict(np.float32(rng.random((2, 2, 3)) + far), timestamp=1) for _ in range(3)]
        for far in (0.0, 5.0)
    )
    path, survey = logged.write(tmp_path / "log", first), RequestLog.survey
    model, output = str(tmp_path / "model"), tmp_path / "rows.csv"
    certify_requests(model, [path], batch_size=2, output=str(tmp_path / "whole.csv"))
    for changed in (second, [*first[:2], second[2]], first[:2]):

        def swapped(self, limit=None, changed=changed):
            found = survey(self, limit)
            logged.write(tmp_path / "log", changed)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(RequestLog, "survey", swapped)
            with pytest.raises(InputError, match="changed while they were being read"):
                certify_requests(model, [path], batch_size=2, output=str(output))
        # There is no row of a record that changed: with the log as it was, the run goes on.
        assert output.read_bytes().count(b"\n") == (1 if changed is second else 5)
        logged.write(tmp_path / "log", first)
        certify_requests(model, [path], batch_size=2, output=str(output), resume=True)
        assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
        output.unlink()
