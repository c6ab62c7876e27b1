"""The fields of a recipe, the losses that it can have, and the options of some recipes alone.

Nothing here loads TensorFlow: the command line has its flags from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# What is trained, in words for the card; the options of some losses alone are below.
OBJECTIVES = {
    "certified": "certified loss at radius {radius:g}, γ = {gamma:g}",
    "crt": "curvature-based robust training at radius {radius:g}, γ = {gamma:g}",
    "penalty": "curvature penalty γ = {gamma:g}, no attack",
    "plain": "cross-entropy, no defence",
    "pgd": "adversarial training by projected gradient descent at radius {radius:g}",
    "trades": "TRADES at radius {radius:g}, 1/λ = {trade_off:g}",
    "crown_ibp": "CROWN-IBP at radius {radius:g}, final β = {final_beta:g} and κ = {final_kappa:g}",
    "coap": "COAP, the convex outer polytope, at radius {radius:g}",
    "noise": "noise of deviation {deviation:g}",
}
CLIPPING = ("certified", "crt")  # have a theory for an input that is clipped, and for threats
CURVATURE = ("certified", "crt", "penalty")
BALL = ("certified", "crt", "pgd", "trades", "crown_ibp", "coap")  # need a radius


@dataclasses.dataclass(frozen=True)
class RecipeFields:
    """The fields of a `Recipe`, which says what they are."""

    dataset: str = "digits"
    layers: int = 2
    width: int | None = None
    carry: int | None = None
    trunk: int | None = None
    filters: tuple[int, ...] | None = None
    kernel_size: int | None = None
    strides: int | None = None
    pool: int | None = None
    activation: str = "softplus"
    clip: bool = False
    dead_zone: float | None = None
    loss: str = "certified"
    radius: float | None = None
    gamma: float | None = None
    rivals: int | None = None
    attack_steps: int | None = None
    trade_off: float | None = None
    final_beta: float | None = None
    final_kappa: float | None = None
    projections: int | None = None
    deviation: float | None = None
    ramp: float | None = None
    threat: str | None = None
    scale: str | None = None
    box: str | None = None
    property: str | None = None
    epochs: int = 40
    batch_size: int = 256
    seed: int = 0
    optimizer: str = "muon"
    learning_rate: float = 3e-3
    muon_rate: float | None = None
    centre: bool = False
    flat: float = 0.5
    halvings: float = 5.0
    start_from: str | None = None
    initial_scale: float = 1.0
    mirror: float = 0.0
    shift: float = 0.0
    distortion: float = 0.0
    held_out: float = 0.0
    jit: bool = True


def maps_of(recipe: RecipeFields) -> int:
    """Returns how many convolutions and dense layers there are, the last one included."""
    return recipe.layers + len(recipe.filters or ())


class Option(NamedTuple):
    """An option that some recipes have.

    Attributes:
        default: where a recipe has it.
        of_loss: other defaults, of some losses.
        what_for: in words.
        has: whether a recipe has it.
        decided_by: the names of the fields that say so.
    """

    default: Any
    what_for: str
    has: Callable[[RecipeFields], bool]
    decided_by: tuple[str, ...]
    of_loss: Mapping[str, Any] = {}

    def default_of(self, recipe: RecipeFields) -> Any:
        """Returns what a recipe has where it does not say."""
        return self.of_loss.get(recipe.loss, self.default)


def _of_losses(*losses: str, default: Any = None, **of_loss: Any) -> Option:
    words = "the loss " + ", ".join(losses)
    return Option(default, words, lambda recipe: recipe.loss in losses, ("loss",), of_loss)


def _of_attacks(*losses: str, default: Any = None) -> Option:
    """Returns an option of as many losses, and of "noise" where it is adversarial."""

    def has(recipe: RecipeFields) -> bool:
        return recipe.loss in losses or (recipe.loss == "noise" and recipe.radius is not None)

    words = f"the loss {', '.join(losses)}, and noise with a radius"
    return Option(default, words, has, ("loss", "radius"))


def _of_convolutions(default: int | None) -> Option:
    return Option(default, "convolutions: give filters", lambda r: bool(r.filters), ("filters",))


# In the order in which they are settled.
OPTIONS = {
    "radius": _of_losses(*BALL, "noise", **dict.fromkeys(BALL, 0.5)),
    "gamma": _of_losses(*CURVATURE, default=0.0, penalty=0.01),
    "rivals": _of_attacks("certified"),
    "attack_steps": _of_attacks("certified", "crt", "pgd", "trades"),
    "ramp": _of_attacks(*BALL, default=0.3),
    "trade_off": _of_losses("trades", default=6.0),
    "final_beta": _of_losses("crown_ibp", default=1.0),
    "final_kappa": _of_losses("crown_ibp", default=0.5),
    "projections": Option(
        50,
        "the loss coap from two hidden layers",
        lambda recipe: recipe.loss == "coap" and maps_of(recipe) > 2,
        ("loss", "layers", "filters"),
    ),
    "deviation": _of_losses("noise", default=0.25),
    "width": Option(256, "hidden layers", lambda recipe: recipe.layers > 1, ("layers",)),
    "carry": Option(None, "three layers and more", lambda recipe: recipe.layers > 2, ("layers",)),
    "kernel_size": _of_convolutions(4),
    "strides": _of_convolutions(2),
    "pool": _of_convolutions(None),
    "trunk": _of_losses(*CLIPPING),
    "dead_zone": Option(
        0.0, "inputs that are clipped: give clip", lambda recipe: recipe.clip, ("clip",)
    ),
    "threat": _of_losses(*CLIPPING),
    "scale": _of_losses(*CLIPPING),
    "box": _of_losses(*CLIPPING),
    "property": _of_losses("certified"),
    "muon_rate": Option(
        0.05, "the optimizer muon", lambda recipe: recipe.optimizer == "muon", ("optimizer",)
    ),
}
