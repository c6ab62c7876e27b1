"""Measures throughput and memory of `bin/certify --runner` by the number of worker processes.

    python benchmarks/scale.py --data_dir DIR

Each line is one command, as a user would start it: without a runner, then with one and more
processes of Beam's DirectRunner. Reading the model and starting the workers take the same time for
few and for many examples, so the difference of the two counts gives examples a second, and the
processor time of an example, of all processes together, which a busy machine distorts less. Peak
memory is that of the largest worker (of the command itself without a runner), as Linux keeps it.
The rows of all runs must be the same bytes.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import psutil
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds MNIST.")
_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models" / "mnist_2x1024"), "")
_COUNTS = flags.DEFINE_multi_integer("count", [1000, 5000], "Examples, few and many.")
_PROCESSES = flags.DEFINE_multi_integer("processes", [0, 1, 2], "0: without a runner.")
_BATCH = flags.DEFINE_integer("batch_size", 250, "Examples in a batch, and in a shard.")


def peak_memory(process):
    """Returns the peak memory of a process so far in kilobytes; 0 if it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def processor_seconds():
    """Returns processor seconds of all commands that have ended, with their workers."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(processes, count, output):
    """Returns seconds and processor seconds of one command, and kilobytes of its largest worker."""
    words = [sys.executable, str(ROOT / "bin" / "certify"), "--saved_model", _MODEL.value]
    words += ["--dataset", "mnist", "--method", "crc", "--output", str(output)]
    words += ["--limit", str(count), "--batch_size", str(_BATCH.value)]
    words += ["--data_dir", _DATA_DIR.value] if _DATA_DIR.value else []
    if processes:
        words += ["--runner", "DirectRunner", "--beam_option", f"direct_num_workers={processes}"]
        words += ["--beam_option", "direct_running_mode=multi_processing"]
    started, before = time.monotonic(), processor_seconds()
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched, peak = psutil.Process(command.pid), 0
    while command.poll() is None:
        workers = watched.children(recursive=True) if processes else [watched]
        peak = max([peak, *map(peak_memory, workers)])
        time.sleep(0.2)
    if command.returncode:
        raise SystemExit(f"{' '.join(words)} ended with status {command.returncode}")
    return time.monotonic() - started, processor_seconds() - before, peak


def main(argv):
    del argv
    table = Table(title=f"{pathlib.Path(_MODEL.value).name}, {os.cpu_count()} cores")
    few, many = _COUNTS.value
    for column in ("worker processes", f"s, {few:,}", f"s, {many:,}", "examples/s", "CPU ms each"):
        table.add_column(column, justify="right")
    for count in (few, many):
        table.add_column(f"peak GiB a worker, {count:,}", justify="right")
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in _PROCESSES.value:
            figures = []
            for count in (few, many):
                output = pathlib.Path(folder) / f"{processes}-{count}.csv"
                figures.append(measure(processes, count, output))
                assert rows.setdefault(count, output.read_bytes()) == output.read_bytes()
                print(processes, count, *figures[-1], file=sys.stderr)
            seconds, cpu, peaks = zip(*figures, strict=True)
            table.add_row(
                str(processes) if processes else "none: no runner",
                *(f"{spent:.1f}" for spent in seconds),
                f"{(many - few) / (seconds[1] - seconds[0]):.0f}",
                f"{1e3 * (cpu[1] - cpu[0]) / (many - few):.2f}",
                *(f"{peak / 2**20:.2f}" for peak in peaks),
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
