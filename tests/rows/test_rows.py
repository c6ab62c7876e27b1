import json

import pytest
from sample_rows import COUNT, SETTINGS, row

from keras_curv.errors import InputError
from keras_curv.rows.checks import require_row_of
from keras_curv.rows.row import EXAMPLE_COLUMNS, Row, round_down
from keras_curv.rows.row_file import RowFile


def write(path, rows, resume=False, settings=SETTINGS):
    with RowFile(str(path), settings, count=COUNT, resume=resume) as file:
        file.write(rows)
        return file.rows


@pytest.mark.parametrize(
    "radius, text",
    [
        (0.0, "0.0"),
        (1.9999999999, "1.99999999"),
        (0.1, "0.1"),
        (1.2345678912e-12, "1.23456789e-12"),
        (float("inf"), "inf"),
        (2.0, "2.0"),
        (100.0, "100.0"),
    ],
)
def test_radius_is_printed_rounded_down(radius, text):
    assert round_down(radius) == text
    assert float(round_down(radius)) <= radius


def test_row_survives_its_text():
    for original in (
        row(3),
        row(5, float(round_down(1 / 3e7))),
        row(4, float("inf")),
        row(0, 0.0)._replace(label=None, status="TIED"),
    ):
        assert Row.parse(original.cells()) == original


def test_existing_output_needs_resume(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(0)])
    with pytest.raises(InputError, match="exists.*--resume"):
        write(path, [row(0)])


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_resume_after_a_cut_gives_the_unbroken_file(tmp_path, cut):
    """Whatever the last bytes that reached the disk, the run goes on at a whole batch."""
    path = tmp_path / "rows.csv"
    everything = [row(i) for i in range(7)]
    write(path, everything)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    with RowFile(str(path), SETTINGS, count=COUNT, resume=True) as file:
        assert len(file.rows) % 2 == 0
        file.write(everything[len(file.rows) :])
    assert path.read_bytes() == whole


def test_resume_of_nothing_starts(tmp_path):
    assert write(tmp_path / "rows.csv", [row(0)], resume=True) == []


def test_resume_with_other_settings_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(0)])
    with pytest.raises(InputError, match="made with seed 0, not 1"):
        write(path, [], resume=True, settings=SETTINGS | {"seed": 1})
    for broken in ("[]", "3", "null", '"x"', "[" * 100_000, ""):
        (tmp_path / "rows.csv.settings.json").write_text(broken)
        with pytest.raises(InputError, match="missing or broken"):
            write(path, [], resume=True)
    (tmp_path / "rows.csv.settings.json").unlink()
    with pytest.raises(InputError, match="missing or broken"):
        write(path, [], resume=True)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a,b\n1,2\n", "header"),
        (",".join(EXAMPLE_COLUMNS) + "\n0,1,1\n", "line 2"),
        (",".join(EXAMPLE_COLUMNS) + "\n5,1,1,2,0.5,CERTIFIED,7,1,all,crc,inf\n", "index 5"),
        (",".join(EXAMPLE_COLUMNS) + "\n0,1,1,2,0.5,SURE,7,1,all,crc,inf\n", "SURE"),
    ],
)
def test_a_foreign_file_is_refused_and_kept(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    (tmp_path / "rows.csv.settings.json").write_text(json.dumps(SETTINGS))
    with pytest.raises(InputError, match=message):
        write(path, [], resume=True)
    assert path.read_text() == text


def test_a_line_without_an_end_is_not_read(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(0)])
    with path.open("ab") as file:
        file.write(b"1," + b"1" * 2**17)
    with pytest.raises(InputError, match="a line has 65536 bytes or more"):
        write(path, [], resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "its label is 1, not 2"),
        ({"rivals": "runner_up"}, "its rivals is 'all', not 'runner_up'"),
    ],
)
def test_a_row_of_another_run_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        require_row_of(row(0), {"label": 1, "rivals": "all"} | change, 3)


@pytest.mark.parametrize(
    "change",
    [{"prediction": 3}, {"prediction": -2}, {"nearest_rival": 3}, {"nearest_rival": 1},
     {"gradient_evaluations": -1}, {"prediction": 0}, {"status": "MISCLASSIFIED", "radius": 0.0}],
)  # fmt: skip
def test_a_row_out_of_range_is_refused(change):
    require_row_of(row(0), {}, 3)
    name = "prediction" if "status" in change else next(iter(change))
    with pytest.raises(InputError, match=f"its {name} is"):
        require_row_of(row(0)._replace(**change), {}, 3)


def test_unwritable_output_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "missing" / "rows.csv", [row(0)])


def test_a_resumed_run_that_writes_nothing_loses_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(i) for i in range(5)])
    whole = path.read_bytes()
    assert len(write(path, [], resume=True)) == 4  # two whole batches
    assert path.read_bytes() == whole


def test_a_finished_file_is_kept_whole(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(i) for i in range(COUNT)])
    whole = path.read_bytes()
    path.write_bytes(whole + b"7,1,1,2,0.5,CERT")  # of a run that had more examples, and was cut
    assert len(write(path, [], resume=True)) == COUNT
    assert path.read_bytes() == whole


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "rows.csv"
    with RowFile(str(path), SETTINGS, count=COUNT) as file:
        file.write([row(i) for i in range(4)])
        with pytest.raises(InputError, match="another run is writing .*rows.csv"):
            write(path, [row(0)], resume=True)
        file.write([row(i) for i in range(4, COUNT)])
    assert len(write(path, [], resume=True)) == COUNT  # nothing keeps it once it is closed


def test_settings_are_not_written_again(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, [row(0), row(1)])
    beside = tmp_path / "rows.csv.settings.json"
    beside.chmod(0o400)
    stamp = beside.stat().st_mtime_ns
    write(path, [row(2)], resume=True)
    assert beside.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    "change", [dict(radius=-1.0), dict(radius=float("nan")), dict(status="MISCLASSIFIED")]
)
def test_a_row_that_cannot_be_is_refused(change):
    with pytest.raises(ValueError, match="radius"):
        Row.parse(row(0)._replace(**change).cells())
