"""The tables of the paper: the networks and columns that they compare, and the printed figures.

The figures are in `paper/`, one file a table: a row for each network, with its number of layers
(each hidden one of 1,024 units), activation, training, the weight that goes with the training (γ of
the curvature, or the deviation of the noise), and the measured figures; percentages and l2 radii.

Reference: Singla & Feizi (2020); `source` says which table. Some of its rows contradict others. In
table 5, 3 × 1024 with CRT has the certificates of the row above it, and 97.23 for a standard
accuracy that tables 14 and 16 give as 98.23. In table 12 the standard accuracies of four sigmoid
layers are those that table 16 gives for tanh, where γ > 0. Table 11 has 95.61 for 2 × 1024 with γ =
0.01, which tables 5, 14 and 16 have as 95.59.
"""

from __future__ import annotations

import csv
import pathlib
from typing import NamedTuple

from keras_curv.errors import require_one_of

_FIGURES = pathlib.Path(__file__).parent / "paper"


class Row(NamedTuple):
    """One network of a table.

    Attributes:
        layers: affine ones.
        activation: its Keras name.
        training: a loss of `training.recipe.Recipe`.
        weight: γ for "crt" and "penalty", the deviation for "noise", None for others.
        figures: the paper's, column → figure; columns without a figure are left out.
    """

    layers: int
    activation: str
    training: str
    weight: float | None
    figures: dict[str, float]


class Table(NamedTuple):
    """A table of the paper."""

    title: str  # its heading
    source: str  # its place in the paper
    # names in `measurements.COLUMNS`, some of which the paper does not have
    columns: tuple[str, ...]
    dataset: str = "mnist"  # one of `data.DATASETS`
    radius: float = 0.5  # ρ of attack and certified accuracy, on pixels in [0, 1]
    ours: tuple[Row, ...] = ()  # networks that the paper does not have
    # the columns to draw, against the weight where it varies
    plot: tuple[str, ...] = ("certified", "certified_all")


_ACCURACIES = ("clean", "certified", "certified_all")
_EMPIRICAL = ("clean", "empirical", "empirical_ddn", "certified", "certified_all")
_RADII = ("crown", "crc")
_CURVATURES = ("curvature_below", "curvature_proved", "curvature_above")
_SUCCESSES = ("attack_success", "certificate_success")


def _defences(name: str, source: str, dataset: str, radius: float, *depths: int) -> Table:
    """Returns a table of provable defences, with our certified loss at these depths.

    They are softplus nets, as the paper's, and one two-layer net with the best activation.
    """
    nets = [*((layers, "softplus") for layers in depths), (2, "sparse_plus")]
    ours = tuple(Row(layers, activation, "certified", None, {}) for layers, activation in nets)
    title = f"Provable defences, {name}, radius {radius:g}"
    return Table(title, source, _ACCURACIES, dataset, radius, ours)


TABLES = {
    "success": Table(
        "How often primal = dual", "tables 2 and 12", ("clean", *_SUCCESSES), plot=_SUCCESSES
    ),
    "mnist_1.58": _defences("MNIST", "tables 3 and 10", "mnist", 1.58, 2, 3, 4),
    "mnist_0.5": _defences("MNIST", "table 8", "mnist", 0.5, 2, 3, 4),
    "fashion_mnist_1.58": _defences("Fashion-MNIST", "table 4", "fashion_mnist", 1.58, 2),
    "fashion_mnist_0.5": _defences("Fashion-MNIST", "table 9", "fashion_mnist", 0.5, 2),
    "curvature_effect": Table(
        "Curvature regularisation and CRT", "table 5", (*_ACCURACIES, *_RADII), plot=_RADII
    ),
    "local": Table(
        "Local curvature bounds", "table 6", ("crc", "crc_local"), plot=("crc", "crc_local")
    ),
    "smoothing": Table("Randomized smoothing and CRT", "table 11", ("certified", "certified_all")),
    "cifar10": Table(
        "CIFAR-10, curvature regularisation alone",
        "table 13",
        (*_EMPIRICAL, *_RADII),
        "cifar10",
        plot=_RADII,
    ),
    "adversarial": Table(
        "PGD, TRADES and CRT", "table 14", (*_EMPIRICAL, *_RADII), plot=("certified", "empirical")
    ),
    "targets": Table(
        "CRC and CROWN by target",
        "table 15",
        (
            *("crown", "crc", "crown_random", "crc_random", "crown_least", "crc_least"),
            *("crown_seconds", "crc_seconds"),
        ),
        plot=_RADII,
    ),
    "crt_gamma": Table(
        "CRT: what γ does to accuracy and curvature",
        "figures 1 and 2, table 16",
        (*_EMPIRICAL, *_CURVATURES),
        plot=_CURVATURES,
    ),
    "penalty_gamma": Table(
        "The curvature penalty alone: what γ does",
        "table 17",
        (*_EMPIRICAL, *_RADII),
        plot=("certified", "empirical"),
    ),
}


def get(name: str) -> Table:
    """Returns the table of that name.

    Raises:
        InputError: there is none.
    """
    return TABLES[require_one_of(name, TABLES, "table")]


def rows(name: str) -> list[Row]:
    """Returns the networks of a table: the paper's, and ours behind those that are like them."""
    table = get(name)
    with open(_FIGURES / f"{name}.csv", newline="") as file:
        found = [_row(line) for line in csv.DictReader(file)]
    for row in table.ours:
        deep = [i for i, one in enumerate(found) if one.layers == row.layers]
        alike = [i for i in deep if found[i].activation == row.activation]
        found.insert((alike or deep)[-1] + 1, row)
    return found


def _row(line: dict[str, str]) -> Row:
    layers, activation, training, weight = (
        line.pop(key) for key in ("layers", "activation", "training", "weight")
    )
    figures = {column: float(figure) for column, figure in line.items() if figure}
    return Row(int(layers), activation, training, float(weight) if weight else None, figures)
