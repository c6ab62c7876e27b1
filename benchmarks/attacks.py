"""Every method's certificates under attack: nothing may break inside a radius.

    pip install -e '.[attacks]'
    python benchmarks/attacks.py --saved_model DIR --dataset mnist --limit 1000
    python benchmarks/attacks.py --plain relu --width 256

Certifies the same examples by each method in turn, and attacks just inside each radius, at
`--inside` of it: by targeted projected gradient descent (ours), and by Foolbox' DDN (Rony et al.
2019; Rauber et al. 2020), which looks for the closest adversarial point without being told the
radius. Prints how many fell (none may), and how close the
attacks came: the distance of DDN's point over the radius, at least and in the median, and what PGD
breaks at 1.05 of the radius, which shows whether the attacks are strong. Exit status 3 if anything
fell.
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf
from absl import app, flags
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import plain

from keras_curv import Certifier, InputError, pgd_attack
from keras_curv.attacks.foolbox import ddn_distances
from keras_curv.certificates.auto import METHODS

_METHODS = flags.DEFINE_multi_enum("method", list(METHODS), METHODS, "Repeatable; default: all.")
_INSIDE = flags.DEFINE_float("inside", 0.9999, "Of the radius.")
_STEPS = flags.DEFINE_integer("steps", 200, "Of each attack.")
_BATCH = 250


def pgd_margins(network, x, label, radius):
    """Returns the lowest margin that PGD met in each ball."""

    @tf.function(reduce_retracing=True)
    def attack(x, label, radius):
        return pgd_attack(network, x, label, radius=radius, steps=_STEPS.value, restarts=4)

    lowest = []
    for start in range(0, len(x), _BATCH):
        part = slice(start, start + _BATCH)
        margin, point = attack(*map(tf.constant, (x[part], label[part], radius[part])))
        assert np.all(np.linalg.norm(point - x[part], axis=1) <= radius[part] * (1.0 + 1e-9))
        lowest.append(margin.numpy())
    return np.concatenate(lowest)


def main(argv):
    del argv
    model, name, examples = plain.model_and_examples()
    x, y = examples.arrays()
    table = Table(title=f"{name}, {len(x)} examples of {examples.name}")
    for column in (
        "method",
        "certified",
        "mean radius",
        "PGD inside",
        "DDN inside",
        "DDN / radius",
        "median",
        "PGD at 1.05",
    ):
        table.add_column(column, justify="left" if column == "method" else "right")
    broken, attacked = 0, None
    for method in _METHODS.value:
        try:
            certifier = Certifier(model, method=method)
        except InputError:
            table.add_row(method, "no theory")
            continue
        network, radius = certifier.served.network, certifier.certify_all(x, y).radius
        if attacked is None:  # DDN does not know the radius: once for all methods
            flat = x.reshape(len(x), -1).astype(np.float64)
            attacked = ddn_distances(network, flat, y, steps=_STEPS.value)
        rows = np.flatnonzero((radius > 0.0) & np.isfinite(radius))
        margin = pgd_margins(network, flat[rows], y[rows], _INSIDE.value * radius[rows])
        beyond = pgd_margins(network, flat[rows], y[rows], 1.05 * radius[rows])
        ratio = attacked[rows] / radius[rows]
        fallen = int(np.sum(margin <= 0.0)), int(np.sum(ratio <= _INSIDE.value))
        broken += sum(fallen)
        table.add_row(
            method,
            f"{len(rows):,}",
            f"{radius[rows].mean():.4f}",
            *map(str, fallen),
            f"{ratio.min():.4f}",
            f"{np.median(ratio):.3f}",
            f"{100 * np.mean(beyond <= 0.0):.1f} %",
        )
    Console(width=120).print(table)
    return 3 if broken else 0


if __name__ == "__main__":
    app.run(main)
