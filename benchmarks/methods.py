"""Compares all methods of certification, and what each adds to the best of them.

    python benchmarks/methods.py --saved_model DIR --dataset mnist --limit 100
    python benchmarks/methods.py --plain relu --dataset mnist --limit 30 --rivals least

The same model and examples, one process. Prints for each method the mean radius of the correct
examples, certified accuracy at each `--radius`, seconds for each example, gradients, and the share
of "auto"'s radii that the method proved. `auto` runs last, so that it is not charged for tracing;
its time is also given over that of its parts.
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

import plain

from keras_curv import Certifier, InputError
from keras_curv.certificates.auto import METHODS
from keras_curv.certificates.certificate import GUARANTEES, RIVALS

_RIVALS = flags.DEFINE_enum("rivals", "all", RIVALS, "As for bin/certify.")
_GUARANTEE = flags.DEFINE_enum("guarantee", "real", GUARANTEES, "As for bin/certify.")
_RADII = flags.DEFINE_multi_float("radius", [0.1, 0.5, 1.58], "Repeatable.")


def certified(certifier, x, y):
    """Returns certificates and seconds; a first small batch is not counted."""
    certifier.certify(x[: min(2, len(x))], y[: min(2, len(x))], rivals=_RIVALS.value)
    started = time.perf_counter()
    certificates = certifier.certify_all(x, y, rivals=_RIVALS.value)
    return certificates, time.perf_counter() - started


def main(argv):
    del argv
    model, name, examples = plain.model_and_examples()
    x, y = examples.arrays()
    found, skipped = {}, []
    for method in (*METHODS[1:], METHODS[0]):
        try:
            certifier = Certifier(model, method=method, guarantee=_GUARANTEE.value)
        except InputError:
            skipped.append(method)
            continue
        found[method] = certified(certifier, x, y)
    winners = found["auto"][0].method
    title = f"{name}, {len(x)} examples of {examples.name}, rivals {_RIVALS.value}"
    table = Table(title=f"{title}, guarantee {_GUARANTEE.value}")
    radii = [f"at {radius:g}" for radius in _RADII.value]
    for column in ("method", "mean radius", *radii, "s / example", "gradients", "wins"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, (proved, seconds) in found.items():
        radius, correct = proved.radius, proved.prediction == y
        table.add_row(
            method,
            f"{radius[correct].mean():.4f}",
            *(f"{100 * np.mean(radius > r):.1f} %" for r in _RADII.value),
            f"{seconds / len(x):.4f}",
            f"{proved.gradient_evaluations[correct].mean():.0f}",
            "" if method == "auto" else f"{100 * np.mean(winners[correct] == method):.1f} %",
        )
    console = Console(width=120)
    console.print(table)
    met = found["auto"][0].adversarial_distance
    met = met[np.isfinite(met)]
    if len(met):
        console.print(
            f"auto met an adversarial point of {len(met)}, at {met.mean():.4f} in the mean"
        )
    best, seconds = found.pop("auto")
    parts = sum(other[-1] for other in found.values())
    console.print(f"auto: {seconds / parts:.2f} × the time of its parts, each on its own")
    for method, (proved, _) in found.items():
        radius, some = proved.radius, proved.radius > 0.0
        console.print(
            f"least auto / {method}: {np.min(best.radius[some] / radius[some], initial=9.0):.4f}"
        )
    if skipped:
        console.print(f"no theory: {', '.join(skipped)}")


if __name__ == "__main__":
    app.run(main)
