"""Compares the certificate's solver with the paper's Algorithm 1: same weights and images.

    python benchmarks/solver.py --data_dir DIR

Prints gradient evaluations, seconds, mean and least ratio of radii, for one rival (the
runner-up) and for all nine.
"""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from algorithms_1_and_2 import algorithm1

from keras_curv import CurvatureCertificate, data, read
from keras_curv.certificates.certificate import choose_rivals
from keras_curv.certificates.question import Question

_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models/mnist_2x1024"), "To certify.")
_DATASET = flags.DEFINE_string("dataset", "mnist", "Its data.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds it.")
_LIMIT = flags.DEFINE_integer("limit", 256, "Examples; Algorithm 1 is slow.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "float64"], "Of Algorithm 1.")


def timed(function, *arguments):
    """Returns result and seconds of the second call, so that tracing is not counted."""
    function(*arguments)
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def reference(certificate, x, label, rivals):
    """Runs Algorithm 1 on every pair: `(radii, gradients)`, each `(n, rivals)`."""
    bounds, dtype = certificate.curvature, tf.as_dtype(_DTYPE.value)

    @tf.function
    def solve(rows, label, rival, lower, upper):
        return algorithm1(certificate.network, rows, label, rival, lower=lower, upper=upper)

    rows = tf.constant(np.repeat(x, rivals.shape[1], axis=0), dtype)
    y, t = np.repeat(label, rivals.shape[1]), rivals.ravel()
    lower, upper = tf.constant(bounds.lower[y, t], dtype), tf.constant(bounds.upper[y, t], dtype)
    solution, seconds = timed(solve, rows, tf.constant(y), tf.constant(t), lower, upper)
    return (
        solution.dual_value.numpy().reshape(rivals.shape),
        solution.gradient_evaluations.numpy().reshape(rivals.shape),
        seconds,
    )


def main(argv):
    del argv
    served = read(_MODEL.value)
    certificate = CurvatureCertificate(served.network)
    examples = data.load(_DATASET.value, "test", data_dir=_DATA_DIR.value).limited(_LIMIT.value)
    x, y = next(examples.batches(_LIMIT.value, 0))
    x = x.reshape(len(x), -1).astype(np.float64)
    logits = certificate.logits(x)
    right = logits.argmax(axis=1) == y
    x, y, logits = x[right], y[right], logits[right]

    title = f"{len(x)} correct examples, {served.source}, Algorithm 1 in {_DTYPE.value}"
    table = Table("rivals", "solver", title=title)
    for column in ("gradients", "most", "seconds", "mean radius", "least ratio"):
        table.add_column(column, justify="right")
    for protocol in ("runner_up", "all"):
        rivals = choose_rivals(logits, y, protocol, np.zeros(len(y), int))
        ours, seconds = timed(certificate.prove, Question.of(x, y, rivals))
        radius, count = ours.radius.min(axis=1), ours.gradients
        theirs, their_count, their_seconds = reference(certificate, x, y, rivals)
        their_radius, their_count = theirs.min(axis=1), their_count.sum(axis=1)
        ratio = radius / their_radius
        table.add_row(
            protocol,
            "keras_curv",
            f"{count.mean():.1f}",
            str(count.max()),
            f"{seconds:.2f}",
            f"{radius.mean():.5f}",
            f"{ratio.min():.5f}",
        )
        table.add_row(
            protocol,
            "Algorithm 1",
            f"{their_count.mean():.1f}",
            str(their_count.max()),
            f"{their_seconds:.2f}",
            f"{their_radius.mean():.5f}",
            "1",
        )
        table.add_row(
            "",
            "ratio",
            f"{their_count.mean() / count.mean():.0f} ×",
            "",
            f"{their_seconds / seconds:.0f} ×",
            f"{radius.mean() / their_radius.mean():.5f}",
            "",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
