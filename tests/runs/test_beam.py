"""Runs on the workers of Apache Beam: the rows of the local run, whatever happens on the way."""

import functools
import json
import os
import re
import sys

import keras
import numpy as np
import pytest
from scripts import call

from keras_curv import certify_examples, data
from keras_curv.errors import InputError
from keras_curv.rows.row import Row
from keras_curv.rows.shards import Shards
from keras_curv.runs.certify_examples import ExampleJob
from keras_curv.runs.options import ExampleOptions

pytest.importorskip("apache_beam")

BATCH, COUNT = 8, 60
OPTIONS = dict(method="lipschitz", batch_size=BATCH)
PROCESSES = ("direct_num_workers=1", "direct_running_mode=multi_processing")
RETRYING = "BundleBasedDirectRunner"  # of Beam's local runners the one that tries a bundle again


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A small model and examples as files, and the run without a runner."""
    folder = tmp_path_factory.mktemp("local")
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((5,)), dense(9, "softplus"), dense(4)])
    model.export(folder / "model", verbose=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 5)).astype(np.float32)
    site = np.arange(COUNT) % 3
    np.savez(folder / "x.npz", x=x, y=rng.integers(0, 4, COUNT), site=site)
    certify(folder, folder / "rows.csv", rivals="random", seed=3)
    return folder


def certify(local, output, path="x.npz", **options):
    examples = data.load_npz(str(local / path))
    return certify_examples(str(local / "model"), examples, output=str(output), **OPTIONS | options)


def random(local, output, **options):
    """With random rivals, which depend on the seed and on the index of each example."""
    return certify(local, output, rivals="random", seed=3, **options)


def shards_of(output):
    return next(output.parent.glob(f"{output.name}.shards-*"))


def assert_same(local, output):
    for name in ("", ".settings.json"):
        wanted = (local / f"rows.csv{name}").read_bytes()
        assert output.with_name(output.name + name).read_bytes() == wanted
    assert not list(output.parent.glob("*.shards-*"))


def breaking(monkeypatch, first, times):
    """Batches from `first` on raise that often, as if their worker died after its work."""
    batches, deaths = ExampleJob.batches, []

    def dying(self, start):
        for rows in batches(self, start):
            if rows[0].index >= first and len(deaths) < times:
                deaths.append(rows)
                raise RuntimeError("the worker died")
            yield rows

    monkeypatch.setattr(ExampleJob, "batches", dying)
    return deaths


@pytest.mark.parametrize(
    "options",
    [(), PROCESSES],
    ids=["in-process", "processes"],
)
@pytest.mark.slow
def test_the_rows_are_those_of_the_local_run(local, tmp_path, options):
    output = tmp_path / "rows.csv"
    summary = random(local, output, runner="DirectRunner", beam_options=options)
    assert_same(local, output)
    plain = random(local, local / "rows.csv", resume=True)
    assert summary.pop("seconds") and plain.pop("seconds")
    assert summary == plain


def test_a_retried_batch_is_there_once(local, tmp_path, monkeypatch):
    deaths = breaking(monkeypatch, 16, times=3)
    random(local, tmp_path / "rows.csv", runner=RETRYING)
    assert len(deaths) == 3
    assert_same(local, tmp_path / "rows.csv")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.slow
def test_the_death_of_a_worker_process_ends_the_run(local, tmp_path, monkeypatch):
    """Beam itself would wait for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(ExampleJob, "remote_factory", lambda self: functools.partial(os._exit, 9))
        with pytest.raises(InputError, match="worker process died, .* go on with --resume") as end:
            random(local, tmp_path / "rows.csv", runner="DirectRunner", beam_options=PROCESSES)
    assert "\n" not in str(end.value)
    random(local, tmp_path / "rows.csv", resume=True)
    assert_same(local, tmp_path / "rows.csv")


@pytest.mark.parametrize("with_runner", [True, False])
def test_after_a_failure_the_run_goes_on(local, tmp_path, monkeypatch, with_runner):
    output = tmp_path / "rows.csv"
    with monkeypatch.context() as patch:
        breaking(patch, 32, times=10**6)
        with pytest.raises(InputError, match="the worker died") as caught:
            random(local, output, runner="DirectRunner")
    assert "\n" not in str(caught.value)
    left = sorted(int(path.stem) for path in shards_of(output).glob("*.csv"))
    assert left and max(left) < 32
    computed = []
    batches = ExampleJob.batches
    with monkeypatch.context() as patch:
        patch.setattr(
            ExampleJob,
            "batches",
            lambda self, start: computed.append(start) or batches(self, start),
        )
        runner = "DirectRunner" if with_runner else None
        random(local, output, runner=runner, resume=True)
    assert_same(local, output)
    assert computed.pop() == COUNT  # of which nothing is left
    if with_runner:
        assert sorted([*computed, *left]) == list(range(0, COUNT, BATCH))
    else:
        assert computed == [32]


def test_shards_that_are_lost_or_broken_are_made_again(local, tmp_path):
    output = tmp_path / "rows.csv"
    random(local, output)
    lines = output.read_bytes().splitlines(keepends=True)
    settings = json.loads((tmp_path / "rows.csv.settings.json").read_text())
    shards = Shards(str(output), settings, count=COUNT)
    shards.prepare()
    rows = [Row.parse(line.decode().strip().split(",")) for line in lines[1:]]
    for first in range(0, COUNT, BATCH):
        shards.write(rows[first : first + BATCH])
    assert shards.missing(0) == []
    parts = {first: (shards.folder / f"{first}.csv").read_bytes() for first in (0, 16)}
    shards.write(rows[8:11])  # rows are missing
    (shards.folder / "0.csv").write_bytes(parts[0][:-1])  # cut in the last line
    (shards.folder / "16.csv").write_bytes(parts[16][:-130])  # cut in a row
    (shards.folder / "24.csv").write_bytes(parts[0])  # of another batch
    (shards.folder / "32.csv").write_bytes(b"\x00" * 300)  # a disk without power
    (shards.folder / "40.csv").unlink()
    (shards.folder / "48.csv").rename(shards.folder / "0f.part")
    assert shards.missing(0) == [0, 8, 16, 24, 32, 40, 48]
    output.write_bytes(b"".join(lines[:9]))  # the rows of one batch had been taken
    random(local, output, runner="DirectRunner", resume=True)
    assert_same(local, output)


def test_rows_that_somebody_else_prepared_are_not_taken(local, tmp_path):
    """The folder's name is no secret; the key of a run is made when it starts."""
    output = tmp_path / "rows.csv"
    settings = json.loads((local / "rows.csv.settings.json").read_text())
    theirs = Shards(str(output), settings, count=COUNT)
    theirs.prepare()
    rows = [
        Row(i, 0, 0, 1, 99.0, "CERTIFIED", 1, True, "random", "lipschitz") for i in range(COUNT)
    ]
    for first in range(0, COUNT, BATCH):
        theirs.write(rows[first : first + BATCH])
    assert theirs.missing(0) == []
    random(local, output, runner="DirectRunner")
    assert_same(local, output)


def test_a_link_to_a_folder_of_shards_is_refused(tmp_path):
    shards = Shards(str(tmp_path / "rows.csv"), {"batch_size": 2}, count=4)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0.refused").touch()
    shards.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        shards.prepare()
    assert (tmp_path / "elsewhere" / "0.refused").exists()


def test_other_settings_do_not_take_the_shards(local, tmp_path, monkeypatch):
    output = tmp_path / "rows.csv"
    with monkeypatch.context() as patch:
        breaking(patch, 32, times=10**6)
        with pytest.raises(InputError):
            certify(local, output, runner="DirectRunner", rivals="least")
    for path in (output, tmp_path / "rows.csv.settings.json"):
        path.unlink()
    random(local, output, runner="DirectRunner")
    assert output.read_bytes() == (local / "rows.csv").read_bytes()


def test_a_broken_example_ends_the_run_after_the_rows_before_it(local, tmp_path):
    with np.load(local / "x.npz") as archive:
        x = archive["x"].copy()
    x[[21, 50]] = np.nan
    np.savez(local / "nan.npz", x=x)
    written = []
    for name, runner in (("a", None), ("b", "DirectRunner")):
        with pytest.raises(InputError, match="^example 21 has NaN or infinite entries$"):
            certify(local, tmp_path / name, path="nan.npz", runner=runner)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] and written[0].count(b"\n") == 1 + 16


def test_workers_that_read_something_else_are_refused(local, tmp_path, monkeypatch):
    examples = data.load_npz(str(local / "x.npz"))
    job = ExampleJob(str(local / "model"), examples, ExampleOptions(**OPTIONS))
    with np.load(local / "x.npz") as archive:
        np.savez(tmp_path / "x.npz", x=archive["x"] + 1, y=archive["y"])
    again = job.remote_factory()
    assert [row.cells() for row in next(again().batches(8))] == [
        row.cells() for row in next(job.batches(8))
    ]
    other = data.load_npz(str(tmp_path / "x.npz"))
    job.examples = other
    with pytest.raises(InputError, match="dataset_fingerprint .* same package, model and data"):
        job.remote_factory()()


def test_what_is_in_memory_only_cannot_be_sent(local, tmp_path):
    output = tmp_path / "rows.csv"
    options = dict(output=str(output), runner="DirectRunner", **OPTIONS)
    x = np.zeros((3, 5), np.float32)
    in_memory = data.Examples.from_arrays("mine", x, None)
    with pytest.raises(InputError, match="examples in memory"):
        certify_examples(str(local / "model"), in_memory, **options)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(InputError, match="model in memory"):
        certify_examples(model, data.load_npz(str(local / "x.npz")), **options)
    assert not output.exists()


def test_the_command_line_and_its_verdict(script, capfd, local, tmp_path):
    words = ("--saved_model", local / "model", "--inputs", local / "x.npz", "--method", "lipschitz")
    outputs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    words += ("--slice", "site", "--require", "0.01=lower:0.02", "--require", "site:0.01=0.99")
    runner = ("--runner", "DirectRunner", "--beam_option", "direct_num_workers=1")
    shown = []
    for output, more in zip(outputs, ((), runner), strict=True):
        code, out, err = call(script, capfd, *words, *more, "--output", output)
        assert code == 3 and err == "" and out.startswith("FAILED: 1 of 2 ") and "by site" in out
        shown.append(re.sub(r"[\d.]+ s,", "", out))
    assert outputs[0].read_bytes() == outputs[1].read_bytes() and shown[0] == shown[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runner", "FooRunner"), "Unexpected pipeline runner: FooRunner"),
        (("--runner", "no.such.Runner"), "No module named 'no'"),
        (("--runner", "DirectRunner", "--beam_option", "direct_num_worker=2"), "has no option"),
        (("--runner", "DirectRunner", "--beam_option", "direct_num_workers=x"), "invalid int"),
        (("--beam_option", "direct_num_workers=2"), "name a runner too"),
    ],
)
def test_what_cannot_be_run_is_one_line(script, capfd, tmp_path, arguments, message):
    output = tmp_path / "rows.csv"
    code, out, err = call(script, capfd, *arguments, "--output", output)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not output.exists()


def test_a_runner_needs_an_output(script, capfd):
    code, _, err = call(script, capfd, "--runner", "DirectRunner")
    assert code == 2 and "needs an output" in err and err.count("\n") == 1


def test_without_the_extra(script, capfd, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_curv.runs.beam", None)
    output = tmp_path / "rows.csv"
    code, _, err = call(script, capfd, "--runner", "DirectRunner", "--output", output)
    assert code == 2 and "pip install 'keras_curv[beam]'" in err and err.count("\n") == 1
    assert not output.exists()
