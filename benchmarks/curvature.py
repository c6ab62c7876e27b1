"""Measures how tight the curvature bounds are, and how often primal = dual, on one model.

    python benchmarks/curvature.py --saved_model DIR --dataset mnist --data_dir DIR

Prints the largest curvature met at examples (K_lb), theorem 4's bound (K_ub) on the same pairs,
the bound that the certificate uses, the seconds for all class pairs, success rates, and certified
accuracy by theorem 4 alone and by the bound that is used.
"""

import pathlib
import sys
import time

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keras_curv import (
    CurvatureCertificate,
    curvature_bounds,
    curvature_gap,
    data,
    read,
    success_rates,
)
from keras_curv.curvature.bounds import CurvatureBounds
from keras_curv.curvature.theorem_4 import theorem4

_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models/mnist_2x1024"), "To measure.")
_DATASET = flags.DEFINE_string("dataset", "mnist", "Its data.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds it.")
_LIMIT = flags.DEFINE_integer("limit", 2000, "Examples.")
_MINIMUM = flags.DEFINE_integer("minimum_examples", 20, "For a pair to count in K_lb and K_ub.")
_RADIUS = flags.DEFINE_float("radius", 0.5, "Of the attack.")
_CERTIFIED = flags.DEFINE_float("certified_at", 1.58, "Radius of certified accuracy, all rivals.")


def main(argv):
    del argv
    network = read(_MODEL.value).network
    examples = data.load(_DATASET.value, "test", data_dir=_DATA_DIR.value).limited(_LIMIT.value)
    x, y = next(examples.batches(_LIMIT.value, 0))
    x = x.reshape(len(x), -1).astype(np.float64)

    started = time.perf_counter()
    bounds = curvature_bounds(network)
    seconds = time.perf_counter() - started
    certificate = CurvatureCertificate(network, curvature=bounds)
    gap = curvature_gap(network, x, y, minimum_examples=_MINIMUM.value)
    found, worst = success_rates(certificate, x, y, radius=_RADIUS.value)

    off_diagonal = ~np.eye(network.classes, dtype=bool)
    table = Table("figure", title=f"{_MODEL.value}, {len(x)} examples of {_DATASET.value}")
    table.add_column("value", justify="right")
    table.add_row(f"K_lb, largest curvature met ({gap.pairs} pairs)", f"{gap.lower:.4f}")
    table.add_row("K proved, that of the certificate (same pairs)", f"{gap.proved:.4f}")
    table.add_row("K_ub, theorem 4 (same pairs)", f"{gap.upper:.4f}")
    table.add_row(
        "-m of the certificate (all pairs, mean)", f"{-bounds.lower[off_diagonal].mean():.4f}"
    )
    table.add_row("seconds for the bounds of all pairs", f"{seconds:.1f}")
    table.add_row("certificate: primal = dual", f"{100 * found:.2f} %")
    table.add_row(f"attack at {_RADIUS.value:g}: primal = dual", f"{100 * worst:.2f} %")
    theorem = theorem4(network)
    for words, known in (
        ("theorem 4 alone", CurvatureBounds(-theorem, theorem)),
        ("the certificate's bound", bounds),
    ):
        radius = CurvatureCertificate(network, curvature=known).certify(x, y).radius
        table.add_row(
            f"certified at {_CERTIFIED.value:g}, {words}",
            f"{100 * np.mean(radius > _CERTIFIED.value):.2f} %",
        )
        table.add_row(f"mean radius, {words}", f"{radius[radius > 0.0].mean():.4f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    app.run(main)
