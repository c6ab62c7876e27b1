"""Training recipes of the tables' networks: the paper's protocol where it gives one, else ours.

The paper gives the loss, γ and ρ; steps, rates and epochs are ours, chosen for two cores. CRT and
the penalty train by Muon on MNIST, which needs a third of Adam's epochs. Where a table asks what
happens *without* control of the curvature (γ = 0), and for every rival's method, it is Adam as in
the paper: Muon bounds a step's spectral norm, and so keeps curvature down by itself. On CIFAR-10 it
is Adam too: in eight epochs Muon fits so much further that γ = 0.01 says little (57.52 % clean, and
15.08 % certified at 0.5).
"""

from __future__ import annotations

from typing import Any

from keras_curv.reproduce.tables import Row, Table
from keras_curv.training.run.recipe import Recipe

# A part of all file names: raise it when `keras_curv train` makes another network of a recipe, so
# that older networks and figures are not reused.
REVISION = 1

_MUON = {"batch_size": 512, "learning_rate": 4e-3}
_ADAM = {
    "optimizer": "adam",
    "batch_size": 256,
    "learning_rate": 1e-3,
    "halvings": 4.0,
    "epochs": 15,
}
_CRT_EPOCHS = {2: (10, 15), 3: (8, 10), 4: (7, 10)}  # by layers, at radius 0.5 and 1.58
_PENALTY_EPOCHS = {2: 8, 3: 6, 4: 6}
_OF_RIVALS: dict[str, dict[str, Any]] = {
    "plain": {"epochs": 8},
    "coap": {"epochs": 10, "ramp": 0.5, "halvings": 6.0},
    "noise": {"epochs": 10, "rivals": 1, "learning_rate": 2e-3, "ramp": 0.25},
}
_QUICK: dict[str, Any] = {"width": 32, "epochs": 1, "batch_size": 1024, "jit": False}


def recipe(table: Table, row: Row, *, seed: int = 0, quick: bool = False) -> Recipe:
    """Returns the recipe of a row's network.

    Args:
        quick: a net of 32 units trained for one epoch, to see that everything runs.
    """
    attacked = row.training not in ("plain", "penalty")
    chosen: dict[str, Any] = {
        "dataset": table.dataset,
        "layers": row.layers,
        "width": 1024,
        "activation": row.activation,
        "loss": row.training,
        "radius": table.radius if attacked else None,
        "seed": seed,
        **_settings(table, row),
    }
    if row.training in ("certified", "crt"):
        chosen["attack_steps"] = 3  # nearer to the paper's, which run until they converge
    if row.training in ("crt", "penalty"):
        chosen["gamma"] = row.weight
    if row.training == "noise":
        chosen["deviation"] = row.weight
    if quick:
        chosen |= _QUICK
    return Recipe(**chosen)


def _settings(table: Table, row: Row) -> dict[str, Any]:
    """Returns optimizer, rates and epochs."""
    if row.training == "certified":
        deep = {2: {}, 3: {"muon_rate": 0.03}, 4: {"muon_rate": 0.02, "rivals": 2}}[row.layers]
        return {**_MUON, "epochs": 15, **deep}
    if row.training in ("crt", "penalty") and row.weight and table.dataset != "cifar10":
        epochs = _PENALTY_EPOCHS[row.layers]
        if row.training == "crt":
            epochs = _CRT_EPOCHS[row.layers][table.radius > 1.0]
        # With more than two layers, sigmoids pass on too little without a larger first kernel.
        squashed = row.activation in ("sigmoid", "tanh") and row.training == "crt"
        return {
            **_MUON,
            "epochs": epochs,
            "muon_rate": 0.02 if row.layers > 3 else 0.05,
            "initial_scale": 4.0 if squashed and row.layers > 2 else 1.0,
        }
    chosen = {**_ADAM, **_OF_RIVALS.get(row.training, {})}
    if table.dataset == "cifar10":
        chosen["epochs"] = 8
    if row.training == "crown_ibp" and table.radius > 1.0:
        chosen["final_kappa"] = 0.0
    return chosen


def command(recipe: Recipe) -> str:
    """Returns the command line that trains by this recipe."""
    words = []
    for name, value in recipe.given().items():
        if name == "jit":
            words.append("--nojit")
        elif isinstance(value, tuple):
            words += [f"--{name}", ",".join(map(str, value))]
        else:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return " ".join(["keras_curv train", *words, "--output DIR"])
