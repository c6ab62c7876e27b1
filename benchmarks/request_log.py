"""Measures `bin/certify --requests`: the cost of reading a log beside that of certifying it.

    python benchmarks/request_log.py --data_dir DIR

Writes logs of the same examples in several encodings, and certifies each, and the examples
themselves as `--inputs`, one after the other in one process. Prints examples per CPU second (of all
threads: other work on the machine does not count; the model's own reading does), the ratio, and the
share of reading the log, which is twice through it, parsing included. Then, by real commands as
child processes: peak memory by length of the log, and requests a second by number of processes,
each with files of its own.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import logged

from keras_curv import certify_examples, data
from keras_curv.serving.certify_requests import BATCH_SIZE, certify_requests
from keras_curv.serving.requests import RequestLog
from keras_curv.serving.versions import Versions

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds MNIST.")
_MODELS = flags.DEFINE_multi_string("model", ["digits", "mnist_2x1024"], "In saved_models.")
_EXAMPLES = flags.DEFINE_integer("examples", 4096, "Of each log, of the test set, repeated.")
_METHOD = flags.DEFINE_string("method", "crc", "As for bin/certify.")
_LENGTHS = flags.DEFINE_multi_integer("length", [10_000, 40_000], "Requests, for memory.")
_PROCESSES = flags.DEFINE_multi_integer("processes", [1, 2], "At a time.")
_SHARED = flags.DEFINE_integer("shared", 8_000, "Requests that processes share.")
_INPUT = "keras_tensor"


def float_values(x):
    """Returns a TensorProto with its numbers in float_val."""
    sizes = b"".join(logged.field(2, logged.field(1, size)) for size in x.shape)
    numbers = np.ascontiguousarray(x, "<f4").tobytes()
    return logged.field(1, 1) + logged.field(2, sizes) + logged.field(5, numbers)


ENCODINGS = {"tensor_content": logged.content, "float_val": float_values}


def requests(x, size, encode=logged.content):
    for start in range(0, len(x), size):
        yield logged.predict(encode(x[start : start + size]), _INPUT)


def examples_of(name, count):
    x, _ = data.load(name.split("_")[0], "test", data_dir=_DATA_DIR.value).limited(count).arrays()
    return np.resize(x, (count, *x.shape[1:]))


def spent(function, *arguments, **options):
    """Returns CPU seconds of this process."""
    started = time.process_time()
    function(*arguments, **options)
    return time.process_time() - started


def read(log, versions):
    """Reads all records twice, as a run does."""
    survey = log.survey()
    for _ in log.blocks(BATCH_SIZE, 0, survey.count):
        pass


def throughput(name, folder, table):
    model = str(ROOT / "saved_models" / name)
    x = examples_of(name, _EXAMPLES.value)
    np.savez(folder / "x.npz", x=x)
    options = {"method": _METHOD.value, "batch_size": BATCH_SIZE}
    warm = data.load_npz(folder / "x.npz").limited(64)
    certify_examples(model, warm, **options)
    inputs = spent(certify_examples, model, data.load_npz(folder / "x.npz"), **options)
    for size in (1, 32):
        for encoding, encode in ENCODINGS.items():
            for compression in ("", "GZIP"):
                file = logged.write(folder / "log", requests(x, size, encode), compression)
                versions = Versions(model, method=_METHOD.value)
                log = RequestLog([file], [versions])
                log.survey(1)  # reads the model
                reading = spent(read, log, versions)
                whole = spent(certify_requests, model, [file], **options)
                kind = f"{size}, {encoding}{', gzip' if compression else ''}"
                rates = [f"{len(x) / seconds:,.0f}" for seconds in (reading, inputs, whole)]
                table.add_row(
                    name, kind, *rates, f"{inputs / whole:.2f}", f"{100 * reading / whole:.1f} %"
                )


def started(model, pattern, *arguments):
    command = [sys.executable, str(ROOT / "bin" / "certify"), f"--saved_model={model}"]
    words = [*command, f"--requests={pattern}", *arguments]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def memory(name, folder, table):
    """Measures peak memory by requests of one example, by Lipschitz constants, which are quick."""
    model, x = ROOT / "saved_models" / name, examples_of(name, max(_LENGTHS.value))
    for length in _LENGTHS.value:
        file = logged.write(folder / "log", requests(x[:length], 1))
        child = started(model, file, "--method=lipschitz", f"--output={folder / f'{length}.csv'}")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        rows = sum(1 for _ in open(folder / f"{length}.csv")) - 1
        assert child.returncode == 0 and rows == length
        table.add_row(name, f"{length:,}", f"{usage.ru_maxrss / 1024:,.0f} MiB")


def processes(name, folder, table):
    """Measures several processes that each certify a share of the log's files."""
    model, x = ROOT / "saved_models" / name, examples_of(name, _SHARED.value)
    for count in _PROCESSES.value:
        for k, part in enumerate(np.array_split(x, count)):
            logged.write(folder / f"share{count}-{k}", requests(part, 1))
        begun = time.monotonic()
        method = f"--method={_METHOD.value}"
        children = [started(model, folder / f"share{count}-{k}*", method) for k in range(count)]
        assert all(child.wait() == 0 for child in children)
        seconds = time.monotonic() - begun
        table.add_row(name, str(count), f"{seconds:.0f}", f"{len(x) / seconds:,.0f}")


PARTS = {
    throughput: ("model", "request", "read, /s", "inputs, /s", "requests, /s", "ratio", "reading"),
    memory: ("model", "requests", "peak memory"),
    processes: ("model", "processes", "seconds", "requests, /s"),
}


def main(argv):
    del argv
    for part, columns in PARTS.items():
        tf.get_logger().setLevel("ERROR")  # every run traces its own graph
        table = Table(title=f"{part.__name__}, {_METHOD.value}, {os.cpu_count()} CPUs")
        for column in columns:
            table.add_column(column, justify="left" if column in ("model", "request") else "right")
        for name in _MODELS.value if part is throughput else _MODELS.value[:1]:
            with tempfile.TemporaryDirectory() as folder:
                part(name, pathlib.Path(folder), table)
        Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
