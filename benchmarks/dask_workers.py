"""Measures `bin/certify --runner DaskRunner` by the number of worker processes, one of them killed.

    python benchmarks/dask_workers.py --data_dir DIR

Dask's scheduler and workers are there before each command. Each worker has one core, so that more
of them can show what they gain, up to the number of cores. The command has any core: it reads model
and examples, then waits. Without a runner it runs twice, on one core and on all. A killed worker
dies as soon as there are rows of ten batches. The rows of all runs must be the same bytes.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import distributed
import psutil
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds MNIST.")
_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models" / "mnist_2x1024"), "")
_COUNT = flags.DEFINE_integer("count", 5000, "Examples.")
_PROCESSES = flags.DEFINE_multi_integer("processes", [1, 2, 3], "Workers.")
# Run in each worker process, also in one that takes the place of a killed one.
ONE_CORE = """
import os

def dask_setup(worker):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[worker.name % len(cores)]})
"""

_BATCH = flags.DEFINE_integer("batch_size", 100, "Examples in a batch.")


def command(output, *more):
    """Returns a command that is started."""
    words = [sys.executable, str(ROOT / "bin" / "certify"), "--saved_model", _MODEL.value]
    words += ["--dataset", "mnist", "--method", "crc", "--output", str(output)]
    words += ["--limit", str(_COUNT.value), "--batch_size", str(_BATCH.value), *more]
    words += ["--data_dir", _DATA_DIR.value] if _DATA_DIR.value else []
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def batches(output):
    """Returns how many batches workers have left beside `output`."""
    return len(list(output.parent.glob(f"{output.name}.shards-*/*.csv")))


def measure(processes, output, kill):
    """Returns the seconds of one command, those of them after its first batch, and the processor
    seconds of all workers in it."""
    known = dict(threads_per_worker=1, processes=True, dashboard_address=":0", preload=[ONE_CORE])
    with distributed.LocalCluster(n_workers=processes, **known) as cluster:
        workers = [psutil.Process(one.process.pid) for one in cluster.workers.values()]
        started, first, spent = time.monotonic(), None, {}
        job = command(
            output,
            *("--runner", "DaskRunner", "--beam_option"),
            f"dask_client_address={cluster.scheduler_address}",
        )
        while job.poll() is None:
            for worker in workers:
                if worker.is_running():
                    spent[worker.pid] = sum(worker.cpu_times()[:2])
            done = batches(output)
            if done and first is None:
                first = time.monotonic()
            if kill and done >= 10:
                os.kill(workers[-1].pid, signal.SIGKILL)
                kill = False
            time.sleep(0.1)
        assert job.returncode == 0 and not kill
        ended = time.monotonic()
        return ended - started, ended - (first or ended), sum(spent.values())


def main(argv):
    del argv
    table = Table(title=f"{pathlib.Path(_MODEL.value).name}, {os.cpu_count()} cores")
    names = "s", "s after the first batch", "CPU s of the workers", "load before"
    for column in ("workers", "killed", *names):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder) / "alone.csv"
        cores = sorted(os.sched_getaffinity(0))
        for some in (cores, cores[:1]):
            load, started = os.getloadavg()[0], time.monotonic()
            alone.unlink(missing_ok=True)
            job = command(alone)
            psutil.Process(job.pid).cpu_affinity(some)
            assert job.wait() == 0
            what = "no runner, one core" if some != cores else f"no runner, {len(cores)} cores"
            table.add_row(what, "", f"{time.monotonic() - started:.1f}", "", "", f"{load:.1f}")
        runs = [(n, False) for n in _PROCESSES.value] + [(max(_PROCESSES.value), True)]
        for processes, kill in runs:
            output, load = alone.with_name(f"{processes}-{kill}.csv"), os.getloadavg()[0]
            measured = measure(processes, output, kill)
            assert output.read_bytes() == alone.read_bytes()
            figures = [f"{value:.1f}" for value in (*measured, load)]
            table.add_row(str(processes), "1" if kill else "", *figures)
            print(processes, kill, *figures, file=sys.stderr, flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
