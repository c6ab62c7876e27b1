"""Compares the time and radii of `auto` with `--method crc`, and with tolerance 0.

    python benchmarks/auto.py --saved_model DIR --dataset mnist --limit 200 --repeats 3

The same model and examples in one process: `auto` with the tolerance of `--tolerance`, `auto` with
tolerance 0, and crc with both; with `--decide R`, `auto` and crc that decide R too. Their batches
take turns, so that other load on the machine affects all alike. Prints processor seconds for
each example, all threads together, and as a ratio to crc; gradients; the mean radius, and the least
and the mean radius relative to tolerance 0. A first batch of two examples, which traces the graphs,
is not counted; the work done once for each pair of classes is.
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

from keras_curv import Certifier
from keras_curv.certificates.certificate import GUARANTEES

_GUARANTEE = flags.DEFINE_enum("guarantee", "real", GUARANTEES, "As for bin/certify.")
_TOLERANCE = flags.DEFINE_float("tolerance", 0.01, "Relative gain in radius not worth asking for.")
_REPEATS = flags.DEFINE_integer("repeats", 1, "Runs over the examples; the quickest counts.")
_DECIDE = flags.DEFINE_float("decide", None, "Radius to decide as well; default: none.")
_EXACT = flags.DEFINE_bool("exact", True, "Whether auto with tolerance 0 takes part.")


def seconds_and_certificates(certifiers, x, y):
    """Returns processor seconds and certificates of all examples for each certifier, in turns."""
    spent = {name: 0.0 for name in certifiers}
    found = {name: [] for name in certifiers}
    size = next(iter(certifiers.values())).batch_size()
    for start in range(0, len(x), size):
        batch = x[start : start + size], y[start : start + size]
        for name, certifier in certifiers.items():
            started = time.process_time()
            found[name].append(certifier.certify(*batch, first_index=start))
            spent[name] += time.process_time() - started
    joined = {
        name: {
            field: np.concatenate([getattr(part, field) for part in parts])
            for field in ("radius", "gradient_evaluations")
        }
        for name, parts in found.items()
    }
    return spent, joined


def main(argv):
    del argv
    model, title, examples = plain.model_and_examples()
    x, y = examples.arrays()
    settings = {
        "crc": {"method": "crc", "tolerance": _TOLERANCE.value},
        "crc, tolerance 0": {"method": "crc", "tolerance": 0.0},
        "auto": {"tolerance": _TOLERANCE.value},
        "auto, tolerance 0": {"tolerance": 0.0},
    }
    if not _EXACT.value:
        del settings["auto, tolerance 0"]
    best = list(settings)[-1]
    if _DECIDE.value is not None:
        for name in ("crc", "auto"):
            settings[f"{name}, decide"] = {**settings[name], "decide": [_DECIDE.value]}
    certifiers = {}
    for name, arguments in settings.items():
        certifiers[name] = Certifier(model, guarantee=_GUARANTEE.value, **arguments)
        certifiers[name].certify(x[:2], y[:2])
    runs = [seconds_and_certificates(certifiers, x, y) for _ in range(_REPEATS.value)]
    spent = {name: min(run[0][name] for run in runs) for name in settings}
    found = runs[0][1]
    table = Table(title=f"{title}, {len(x)} examples, guarantee {_GUARANTEE.value}")
    for column in ("", "CPU ms / example", "× crc", "gradients", "mean radius", "least", "mean"):
        table.add_column(column, justify="left" if not column else "right")
    best = found[best]["radius"]
    some = best > 0.0
    for name in settings:
        radius = found[name]["radius"]
        table.add_row(
            name,
            f"{1e3 * spent[name] / len(x):.2f}",
            f"{spent[name] / spent['crc']:.2f}",
            f"{found[name]['gradient_evaluations'].mean():.1f}",
            f"{radius.mean():.5f}",
            f"{np.min(radius[some] / best[some], initial=9.0):.4f}",
            f"{radius.sum() / best.sum():.5f}",
        )
    Console(width=120).print(table)
    for name in ("crc", "auto") if _DECIDE.value is not None else ():
        proved, decided = (found[k]["radius"] > _DECIDE.value for k in (name, f"{name}, decide"))
        print(
            f"{name}: {_DECIDE.value} proved for {proved.sum()} examples, by decisions for "
            f"{decided.sum()}, not the same for {(proved != decided).sum()}; "
            f"{spent[name] / spent[f'{name}, decide']:.1f} times as fast"
        )


if __name__ == "__main__":
    app.run(main)
