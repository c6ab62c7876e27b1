"""Logged requests certified for the versions that served them, and compared with a baseline."""

import csv
import json

import logged
import numpy as np
import pytest
import tensorflow as tf
from logged import predict, write
from scripts import call

import keras_curv
from keras_curv.certificates.certificate import Status
from keras_curv.errors import InputError
from keras_curv.rows.row import REQUEST_COLUMNS, Row, round_down
from keras_curv.serving.certify_requests import certify_requests
from keras_curv.serving.outcomes import certify_block
from keras_curv.serving.requests import RequestLog
from keras_curv.serving.versions import Versions

RADII = (0.05, 0.2)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Versions 1 and 10 of a model, and 9, which cannot be certified."""
    folder = tmp_path_factory.mktemp("models") / "small"
    logged.save(folder / "1", 1)
    logged.save(folder / "10", 2)
    logged.save(folder / "9", 3, activation=tf.cos)
    (folder / "11").mkdir()  # being copied
    return folder


@pytest.fixture(scope="module")
def versions(base):
    return Versions(str(base), method="crown")


@pytest.fixture
def batches(rng):
    """A factory of batches of inputs."""
    return lambda *sizes: [rng.standard_normal((n, 2, 3)).astype(np.float32) for n in sizes]


def rows_of(files, *sides, size=512, **options):
    log = RequestLog([str(file) for file in files], sides, **options)
    rows = []
    for block in log.blocks(size, 0, log.survey().count):
        rows += certify_block(block, len(rows))
    assert [row.index for row in rows] == list(range(len(rows)))
    assert all(Row.parse(row.cells(REQUEST_COLUMNS), REQUEST_COLUMNS) == row for row in rows)
    return rows


def run(model, files, **options):
    return certify_requests(
        str(model), [str(file) for file in files], **{"method": "crown", "radii": RADII} | options
    )


def assert_rows_are(rows, model, x, **options):
    """Exactly what `keras_curv.certify` says of these inputs."""
    expected = keras_curv.certify(str(model), x, method="crown", **options)
    assert len(rows) == len(x)
    assert any(expected.radius > 0.0)
    for i, row in enumerate(rows):
        assert row.prediction == expected.prediction[i]
        assert row.nearest_rival == expected.nearest_rival[i]
        assert repr(row.radius) == round_down(expected.radius[i])
        assert row.status == Status(expected.status[i]).name
        assert row.method == expected.method[i]
        assert row.rivals == "all" and row.detail == ""


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


X = np.full((1, 2, 3), 0.25, np.float32)
BAD = {
    "not a log": (b"\x0a\x05nonsense", "NOT_A_LOG"),
    "classify": (logged.field(2, logged.field(1, logged.field(1, logged.spec()))), "CLASSIFY"),
    "regress": (logged.field(3, b""), "REGRESS"),
    "session run": (logged.field(5, b""), "SESSION_RUN"),
    "version": (predict(X, version=4), "NO_VERSION"),
    "unfinished version": (predict(X, version=11), "NO_VERSION"),
    "negative version": (predict(X, version=-10), "NO_VERSION"),
    "label": (predict(X, label="stable"), "VERSION_LABEL"),
    "signature": (predict(X, signature="predict"), "NO_SIGNATURE"),
    "model": (predict(X, version=9), "MODEL_REFUSED"),
    "name": (predict(X, "y"), "WRONG_INPUTS"),
    "second input": (
        predict(X, more=logged.field(2, logged.field(1, b"z") + logged.field(2, b""))),
        "WRONG_INPUTS",
    ),
    "init": (predict(X, signature="__saved_model_init_op"), "WRONG_INPUTS"),
    "dtype": (predict(X.astype(np.float64)), "WRONG_DTYPE"),
    "shape": (predict(X[0]), "WRONG_SHAPE"),
    "no examples": (predict(X[:0]), "EMPTY_BATCH"),
    "content": (predict(logged.content(X)[:-4] + b"\x00" * 3), "NOT_A_LOG"),
    "NaN": (predict(np.where(np.arange(3) == 1, np.nan, X).astype(np.float32)), "NOT_FINITE_INPUT"),
    "infinite": (predict(X * np.float32(np.inf)), "NOT_FINITE_INPUT"),
}


def test_what_does_not_fit_is_a_row_and_no_certificate(base, versions, batches, tmp_path):
    (x,) = batches(1)
    records = [predict(x)]
    for record, _ in BAD.values():
        records += [record, predict(x)]
    rows = rows_of([write(tmp_path / "log", records)], versions)
    assert [row.record for row in rows] == list(range(len(records)))
    assert_rows_are(rows[0::2], base / "10", np.concatenate([x] * (len(BAD) + 1)))
    for row, (_, reason) in zip(rows[1::2], BAD.values(), strict=True):
        assert row.status == reason
        assert row.radius == 0.0 and row.prediction == -1 and row.method == ""


def test_one_bad_example_of_a_batch(base, versions, batches, tmp_path):
    (x,) = batches(4)
    x[2, 1, 0] = np.nan
    rows = rows_of([write(tmp_path / "log", [predict(x)])], versions)
    assert rows[2].status == "NOT_FINITE_INPUT" and rows[2].radius == 0.0
    assert_rows_are(rows[:2] + rows[3:], base / "10", x[[0, 1, 3]])


def test_reasons_and_fractions(base, batches, tmp_path):
    """Refused requests count as not certified, skipped ones do not count."""
    (x,) = batches(3)
    records = [predict(x, version=1), *(record for record, _ in BAD.values())]
    found = run(base, [write(tmp_path / "log", records)])
    skipped = {"CLASSIFY", "REGRESS", "SESSION_RUN"}
    assert found["skipped"] == len(skipped)
    assert found["refused"] == len(BAD) - len(skipped)
    assert found["examples"] == 3 + found["refused"]
    certified = keras_curv.certify(str(base / "1"), x, method="crown").radius
    for radius in RADII:
        expected = np.sum(certified > radius) / found["examples"]
        assert found["certified_accuracy"][str(radius)] == pytest.approx(expected)
    assert {name for name, r in found["reasons"].items() if r["skipped"]} == skipped
    assert found["reasons"]["WRONG_SHAPE"]["detail"] == "(2, 3), not (n, 2, 3)"
    assert "Cos" in found["reasons"]["MODEL_REFUSED"]["detail"]
    assert set(found["versions"]) == {"", "1", "9", "10"}
    assert found["versions"]["1"]["examples"] == 3
    assert sum(entry["examples"] for entry in found["versions"].values()) == found["examples"]


def test_a_model_that_cannot_be_certified_at_all(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x, version=9) for x in batches(1, 2)])
    for path in (base, base / "9"):
        with pytest.raises(InputError, match="Cos"):
            run(path, [file])
    with pytest.raises(InputError, match="does not exist"):
        run(base / "12", [file])


def test_requests_to_several_models(base, versions, batches, tmp_path):
    xs = batches(1, 2, 1)
    records = [predict(x, name=n) for x, n in zip(xs, ("a", "b", ""), strict=True)]
    file = write(tmp_path / "log", records)
    with pytest.raises(InputError, match="several models, 'a' and 'b'"):
        rows_of([file], versions)
    rows = rows_of([file], versions, model_name="b")
    assert [row.status == "OTHER_MODEL" for row in rows] == [True, False, False, True]
    assert len(rows_of([write(tmp_path / "one", records[:1] + records[2:])], versions)) == 2


def broken(path, records, damage):
    write(path, records)
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)


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


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


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
    write(path, records[:-1])
    with pytest.raises(InputError, match="was made with dataset_fingerprint"):
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
    assert entry["compared"] == 61
    assert entry["prediction_changed"] == np.sum(now.prediction != before.prediction) > 0
    for r in RADII:
        was, is_now = before.radius > r, now.radius > r
        mine = entry["radii"][str(r)]
        assert mine["baseline"] == was.sum()
        assert mine["lost"] == np.sum(was & ~is_now) > 0
        assert mine["gained"] == np.sum(is_now & ~was) > 0
        assert mine["lost_fraction"] == pytest.approx(np.sum(was & ~is_now) / was.sum())
    rows = read_rows(lost)
    at = [[r for r in RADII if before.radius[i] > r >= now.radius[i]] for i in range(60)]
    assert [(int(row["record"]), int(row["example"]), row["lost_at"]) for row in rows] == [
        (i // 30, i % 30, " ".join(map(str, radii))) for i, radii in enumerate(at) if radii
    ]
    assert {row["version"] for row in rows} == {"10"}
    assert {row["baseline_version"] for row in rows} == {"1"}
    assert found["verdict"]["passed"] is False
    (check,) = found["verdict"]["checks"]
    assert check["found"] == max(e["lost_fraction"] for e in entry["radii"].values())


def test_a_model_of_another_input_loses_everything(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x) for x in batches(3, 2)])
    logged.save(tmp_path / "other", 2, key="inputs")
    found = run(tmp_path / "other", [file], baseline=str(base), max_lost=0.99)
    assert found["examples"] == found["refused"] == 5
    assert (
        found["baseline"]["radii"]["0.05"]["lost"] == found["baseline"]["radii"]["0.05"]["baseline"]
    )
    assert found["verdict"]["passed"] is False
    same = run(base, [file], baseline=str(base), max_lost=0.0)
    assert same["verdict"]["passed"] and same["baseline"]["prediction_changed"] == 0


def test_nothing_to_compare_does_not_pass(base, tmp_path):
    file = write(tmp_path / "log", [predict(X, "y"), predict(X)])
    found = run(base / "10", [file], baseline=str(base), radii=[1e6], max_lost=0.5)
    assert found["verdict"]["passed"] is False


def test_the_summary_is_the_same_bytes_again(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x) for x in batches(3, 2)])
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        run(base, [file], summary=str(path), required=0.1)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    written = json.loads(paths[0].read_text())
    assert written["verdict"]["checks"][0]["required"] == 0.1
    assert set(written["fingerprint"]) == {"10/serving_default"}


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        ((), 0, "1 examples predicted differently"),
        (("--require_certified_accuracy", 0.1), 0, "passed: certified"),
        (("--require_certified_accuracy", 1), 3, "FAILED: certified"),
        (("--max_lost", 0), 3, "FAILED: lost"),
        (("--max_lost", 1), 0, "passed: lost"),
        (("--max_lost", 1, "--require_certified_accuracy", 1), 3, "FAILED: certified"),
    ],
)
def test_exit_codes(script, capfd, base, batches, tmp_path, arguments, code, text):
    records = [predict(x, version=1) for x in batches(30, 10)] + [
        predict(X, "y"),
        BAD["classify"][0],
    ]
    file = write(tmp_path / "log", records)
    summary = tmp_path / "summary.json"
    options = ("--requests", file, "--radius", RADII[0], "--method", "crown", "--summary", summary)
    sides = ("--saved_model", base / "10", "--baseline", base)
    found, out, err = call(script, capfd, *options, *sides, *arguments)
    assert found == code and err == ""
    verdict = json.loads(summary.read_text())["verdict"]
    assert (verdict is None) if not arguments else verdict["passed"] == (code == 0)
    if arguments:
        assert text in out
    assert "refused 1 WRONG_INPUTS" in out and "(y), not (x)" in out
    assert "skipped 1 CLASSIFY" in out


REFUSED = {
    "no file": (("--requests", "none*"), "no file matches"),
    "a directory": (("--requests", "/tmp"), "/tmp is not a file"),
    "inputs too": (("--inputs", "x.npz"), "--inputs is not for --requests"),
    "scale": (("--input_scale", 255), "--input_scale is not for --requests"),
    "rivals": (("--rivals", "random"), "--rivals is not for --requests"),
    "smoothing": (("--method", "smoothing"), "method must be one of"),
    "gate alone": (("--max_lost", 0), "--max_lost needs a --radius"),
    "no baseline": (("--max_lost", 0, "--radius", 1), "name one"),
    "fraction": (("--max_lost", 2, "--radius", 1), "from 0 to 1"),
    "lost alone": (("--lost", "lost.csv"), "name one"),
    "baseline": (("--baseline", "/nowhere"), "/nowhere does not exist"),
    "limit": (("--limit", 0), "at least 1"),
    "resume": (("--resume",), "needs the output"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_options(script, capfd, base, tmp_path, name):
    arguments, message = REFUSED[name]
    file = write(tmp_path / "log", [predict(X)])
    options = ("--saved_model", base, "--requests", file, "--method", "crown")
    code, out, err = call(script, capfd, *options, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_log_is_never_overwritten(script, capfd, base, tmp_path):
    file = write(tmp_path / "log", [predict(X)])
    before = open(file, "rb").read()
    for option in ("--output", "--summary", "--plot"):
        name = file if option != "--plot" else write(tmp_path / "log.png", [predict(X)])
        arguments = ("--saved_model", base, "--requests", name, option, name)
        code, _, err = call(script, capfd, *arguments)
        assert code == 2 and "must all be different" in err
    assert open(file, "rb").read() == before


def test_requests_options_without_requests(script, capfd):
    for option in ("baseline", "lost", "model_name", "max_lost"):
        code, _, err = call(script, capfd, f"--{option}", 1, "--radius", 1)
        assert code == 2 and f"--{option} is for --requests" in err


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
