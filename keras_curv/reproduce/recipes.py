"""How each network of the tables is trained: the paper's protocol where it says, ours where not.

The paper gives the loss, γ and ρ; steps, rates and epochs are ours, chosen for two cores. CRT and
the penalty train by Muon, which needs a third of Adam's epochs. Where a table asks what happens
*without* control of the curvature (γ = 0), and for every rival's method, it is Adam as in the
paper: Muon bounds a step's spectral norm, and so keeps curvature down by itself.
"""

from __future__ import annotations

import dataclasses

from keras_curv.reproduce.tables import Row, Table
from keras_curv.training.recipe import Recipe

_MUON = {"batch_size": 512, "learning_rate": 4e-3}
_ADAM = {"optimizer": "adam", "batch_size": 256, "learning_rate": 1e-3, "halvings": 4.0}
_QUICK = {"width": 32, "epochs": 1, "batch_size": 1024, "jit": False}


def recipe(table: Table, row: Row, *, seed: int = 0, quick: bool = False) -> Recipe:
    """What `bin/train` is told to make a row's network.

    Args:
        quick: a net of 32 units trained for one epoch, to see that everything runs.
    """
    attack = row.training not in ("plain", "penalty")
    chosen = {
        "dataset": table.dataset,
        "layers": row.layers,
        "width": 1024,
        "activation": row.activation,
        "loss": row.training,
        "radius": table.radius if attack else None,
        "seed": seed,
        **_settings(table, row),
    }
    if row.training in ("crt", "penalty"):
        chosen["gamma"] = row.weight
    if row.training == "noise":
        chosen["deviation"] = row.weight
    if quick:
        chosen |= _QUICK
    return Recipe(**chosen)


def _settings(table: Table, row: Row) -> dict:
    """Optimizer, rates, epochs."""
    if row.training == "certified":
        deep = {2: {}, 3: {"muon_rate": 0.03}, 4: {"muon_rate": 0.02, "rivals": 2}}[row.layers]
        return {**_MUON, "epochs": 15, **deep}
    if row.training in ("crt", "penalty") and row.weight:
        # Above two layers, sigmoids pass too little on without a larger first kernel.
        squashed = row.activation in ("sigmoid", "tanh") and row.training == "crt"
        return {
            **_MUON,
            "epochs": {2: 15 if table.radius > 1.0 else 10, 3: 10, 4: 8}[row.layers],
            "muon_rate": 0.02 if row.layers > 3 else 0.05,
            "initial_scale": 4.0 if squashed and row.layers > 2 else 1.0,
        }
    epochs = {"plain": 8, "crown_ibp": 30, "coap": 15}.get(row.training, 15)
    return {**_ADAM, "epochs": epochs}


def command(recipe: Recipe, output: str = "DIR") -> str:
    """The command line that trains by this recipe."""
    words = []
    for field in dataclasses.fields(Recipe):
        value = getattr(recipe, field.name)
        if value == field.default or value is None:
            continue
        if field.name == "jit":
            words.append("--nojit")
        elif isinstance(value, tuple):
            words += [f"--{field.name}", ",".join(map(str, value))]
        else:
            words += [f"--{field.name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return " ".join(["bin/train", *words, "--output", output])
