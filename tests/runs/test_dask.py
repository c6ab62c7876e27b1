"""Runs on Dask's distributed scheduler, with worker processes that may be killed."""

import os
import signal
import sys

import keras
import numpy as np
import pytest
from scripts import call

from keras_curv import certify_examples, data
from keras_curv.errors import InputError
from keras_curv.rows.shards import Shards
from keras_curv.runs.certify_examples import ExampleJob

pytestmark = pytest.mark.slow
distributed = pytest.importorskip("distributed")
pytest.importorskip("dask.bag")
pytest.importorskip("apache_beam")

BATCH, COUNT = 4, 60
OPTIONS = dict(method="lipschitz", batch_size=BATCH)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A small model and examples as files, and the run without a runner."""
    folder = tmp_path_factory.mktemp("local")
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    keras.Sequential([keras.Input((5,)), dense(9, "softplus"), dense(4)]).export(
        folder / "model", verbose=False
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 5)).astype(np.float32)
    np.savez(folder / "x.npz", x=x, y=rng.integers(0, 4, COUNT))
    certify(folder, folder / "rows.csv")
    return folder


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(counting)
        yield client


def certify(local, output, **options):
    examples = data.load_npz(str(local / "x.npz"))
    return certify_examples(str(local / "model"), examples, output=str(output), **OPTIONS | options)


def address(client):
    return f"dask_client_address={client.scheduler_info()['address']}"


def counting():
    """On a worker: keeps the first examples of the batches that it certifies."""
    batches, sys.counted = ExampleJob.batches, []

    def counted(self, start):
        sys.counted.append(start)
        return batches(self, start)

    ExampleJob.batches = counted


def dying_after_two():
    """On a worker: its process is killed when it has left two batches."""
    write, written = Shards.write, []

    def last(self, rows):
        write(self, rows)
        written.append(rows)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Shards.write = last


def test_the_command_line_spreads_the_work(script, capfd, local, tmp_path, client):
    client.run(lambda: sys.counted.clear())
    output = tmp_path / "rows.csv"
    words = ("--saved_model", local / "model", "--inputs", local / "x.npz", "--method", "lipschitz")
    words += ("--batch_size", BATCH, "--runner", "DaskRunner", "--beam_option", address(client))
    code, _, err = call(script, capfd, *words, "--output", output)
    assert (code, err) == (0, "")
    assert output.read_bytes() == (local / "rows.csv").read_bytes()
    counts = [len(counted) for counted in client.run(lambda: sys.counted).values()]
    assert len(counts) == 2 and min(counts) > 0 and sum(counts) == COUNT // BATCH


def test_a_killed_worker_loses_nothing(local, tmp_path, client):
    """Dask forgets what the worker had returned, but its batches are not certified again."""
    workers = [*client.scheduler_info()["workers"]]
    assert len(workers) == 2
    client.run(lambda: sys.counted.clear())
    client.run(dying_after_two, workers=workers[1:])
    output = tmp_path / "rows.csv"
    certify(local, output, runner="DaskRunner", beam_options=[address(client)])
    assert output.read_bytes() == (local / "rows.csv").read_bytes()
    assert not list(tmp_path.glob("*.shards-*"))
    (counted,) = client.run(lambda: sys.counted, workers=workers[:1]).values()
    assert 2 < len(counted) == len({*counted}) <= COUNT // BATCH - 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("dask_client_adress=tcp://here:1", "has no option 'dask_client_adress'"),
        ("dask_npartitions=x", "invalid int"),
        ("dask_client_address=tcp://127.0.0.1:9", "connect to tcp://127.0.0.1:9"),
    ],
)
def test_what_dask_cannot_use_is_one_line(local, tmp_path, option, message):
    options = dict(runner="DaskRunner", beam_options=[option, "dask_connection_timeout=1"])
    with pytest.raises(InputError, match=message) as caught:
        certify(local, tmp_path / "rows.csv", **options)
    assert "\n" not in str(caught.value)
