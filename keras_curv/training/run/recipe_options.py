"""The options of a recipe: help, default, range, and which recipes have them.

Flags are made of these options, so nothing here loads TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_curv.options import option

# What is trained, in words for the card.
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


class Condition(NamedTuple):
    """Says which recipes have an option.

    Attributes:
        what_for: the recipes that have it, in words.
        holds: whether a recipe has it.
        decided_by: the names of the fields that say so.
    """

    what_for: str
    holds: Callable[[RecipeFields], bool]
    decided_by: tuple[str, ...]


def _of_losses(*losses: str) -> Condition:
    words = "the loss " + ", ".join(losses)
    return Condition(words, lambda recipe: recipe.loss in losses, ("loss",))


def _of_attacks(*losses: str) -> Condition:
    """Returns the condition of these losses, and of "noise" where it is adversarial."""

    def holds(recipe: RecipeFields) -> bool:
        return recipe.loss in losses or (recipe.loss == "noise" and recipe.radius is not None)

    return Condition(
        f"the loss {', '.join(losses)}, and noise with a radius", holds, ("loss", "radius")
    )


def _some(
    text: str,
    has: Condition,
    usual: Any = None,
    of_loss: dict[str, Any] | None = None,
    **limits: float | bool,
) -> Any:
    """Returns an option that only some recipes have; None stands for its default.

    Args:
        text: its help.
        has: which recipes have it.
        usual: its default in these.
        of_loss: defaults of some losses instead.
        **limits: as of other options.
    """
    facts = {"has": has, "usual": usual, "of_loss": of_loss or {}}
    return option(text, None, **facts, **limits)


_CLIPPING = _of_losses(*CLIPPING)
_CONVOLUTIONS = Condition("convolutions: give filters", lambda r: bool(r.filters), ("filters",))


@dataclasses.dataclass(frozen=True)
class RecipeFields:
    """The options of a `Recipe`, in the order in which they are settled.

    An option is an integer of at least `least`, from 0 to `most`, or `positive`.
    """

    dataset: str = option(
        "Data set to train on: digits, which come with the package, or mnist, fashion_mnist or "
        "cifar10, through tfds; pixels are in [0, 1].",
        "digits",
    )
    layers: int = option(
        "Number of dense layers, the last one included: at least 2, or 1 behind convolutions.", 2
    )
    width: int | None = _some(
        "Number of units of each hidden dense layer; default: 256.",
        Condition("hidden layers", lambda recipe: recipe.layers > 1, ("layers",)),
        256,
        least=1,
    )
    carry: int | None = _some(
        "Number of units of the hidden dense layers before the last one, which then carry their "
        "input along; default: they have the width of the last one, and carry nothing.",
        Condition("three layers and more", lambda recipe: recipe.layers > 2, ("layers",)),
        least=1,
    )
    trunk: int | None = _some(
        "Number of convolutions in front of all these that keep lengths; 2 × 2 pixels become one "
        "place, and sizes of what follows are in places. Default: none.",
        _CLIPPING,
        least=1,
    )
    filters: tuple[int, ...] | None = option(
        "Numbers of filters of convolutions before the dense layers, as in 16,32; default: no "
        "convolutions.",
        None,
    )
    kernel_size: int | None = _some(
        "Side of the convolutions' kernels, in pixels; default: 4.", _CONVOLUTIONS, 4, least=1
    )
    strides: int | None = _some(
        "Strides of the convolutions, in pixels; default: 2.", _CONVOLUTIONS, 2, least=1
    )
    pool: int | None = _some(
        "Side of the average pooling behind the last convolution, in that convolution's output "
        "positions; default: no pooling.",
        _CONVOLUTIONS,
        least=1,
    )
    activation: str = option(
        "Activation by its Keras name: sparse_plus, softplus, sigmoid, tanh, sin, …; relu where "
        "the loss needs no curvature.",
        "softplus",
    )
    clip: bool = option("Begins with a layer that clips the input to [0, 1].", False)
    dead_zone: float | None = _some(
        "Distance to 0 or 1 within which the clip makes an input 0 or 1; default: 0.",
        Condition("inputs that are clipped: give clip", lambda recipe: recipe.clip, ("clip",)),
        0.0,
        most=0.49,
    )
    loss: str = option(
        "Loss to train by. certified: worst logits in the ball, against the likeliest rivals; crt: "
        "the paper's, at an attack toward the runner-up; penalty: a curvature penalty alone; "
        "plain: none of these; pgd, trades, crown_ibp, coap and noise are there to compare with.",
        "certified",
    )
    radius: float | None = _some(
        "Radius of the ball, l2, for pixels in [0, 1]; default: 0.5, and none for the loss noise, "
        "whose noise is adversarial with a radius.",
        _of_losses(*BALL, "noise"),
        of_loss=dict.fromkeys(BALL, 0.5),
    )
    gamma: float | None = _some(
        "Weight γ of the curvature penalty; default: 0.01 for the loss penalty, else 0. The "
        "paper's CRT has 0.01 at least.",
        _of_losses(*CURVATURE),
        0.0,
        {"penalty": 0.01},
    )
    rivals: int | None = _some(
        "Number of rivals in the certified loss; default: 4. For the loss noise 1 is the "
        "runner-up; default: all.",
        _of_attacks("certified"),
    )
    attack_steps: int | None = _some(
        "Number of gradients for each attack; default: 2, or as published.",
        _of_attacks("certified", "crt", "pgd", "trades"),
    )
    trade_off: float | None = _some(
        "Weight 1/λ of the second term of the loss trades; default: 6.", _of_losses("trades"), 6.0
    )
    final_beta: float | None = _some(
        "Share β of the linear bounds at the end of the loss crown_ibp; default: 1.",
        _of_losses("crown_ibp"),
        1.0,
    )
    final_kappa: float | None = _some(
        "Share κ of the clean loss at the end of the loss crown_ibp; default: 0.5.",
        _of_losses("crown_ibp"),
        0.5,
    )
    projections: int | None = _some(
        "Number of random projections of the loss coap, from two hidden layers on; default: 50.",
        Condition(
            "the loss coap from two hidden layers",
            lambda recipe: recipe.loss == "coap" and maps_of(recipe) > 2,
            ("loss", "layers", "filters"),
        ),
        50,
    )
    deviation: float | None = _some(
        "Standard deviation of the noise of the loss noise; default: 0.25.",
        _of_losses("noise"),
        0.25,
    )
    ramp: float | None = _some(
        "Fraction of the training over which the radius rises; default: 0.3.",
        _of_attacks(*BALL),
        0.3,
        most=1.0,
    )
    threat: str | None = _some(
        "File of what the attacker may do, as for certify: scale, frozen, low and high, groups and "
        "changes. Default: any change.",
        _CLIPPING,
    )
    scale: str | None = _some(
        "Weights by feature, between commas, or one; the radius is in these units. Short for a "
        "threat.",
        _CLIPPING,
    )
    box: str | None = _some(
        "LOW,HIGH, between which the attacker stays. Short for a threat.", _CLIPPING
    )
    property: str | None = _some(
        "What must not change, as for certify: argmax, top_3, harmful:3,5, harmful:TABLE.json; "
        "default: argmax.",
        _of_losses("certified"),
    )
    epochs: int = option("Number of passes over the training set.", 40, least=1)
    batch_size: int = option("Number of examples in a step.", 256, least=1)
    seed: int = option(
        "Seed of weights, order, attacks, noise, shifts and distortions.", 0, least=0
    )
    optimizer: str = option(
        "Optimizer: muon, for hidden kernels, with Adam for the rest; or adam for all.", "muon"
    )
    learning_rate: float = option("Learning rate of Adam.", 3e-3, positive=True)
    muon_rate: float | None = _some(
        "Length of a step of Muon, in spectral norm; default: 0.05.",
        Condition("the optimizer muon", lambda r: r.optimizer == "muon", ("optimizer",)),
        0.05,
        positive=True,
    )
    centre: bool = option(
        "Centres hidden activations while training: steps are those of activations without their "
        "running means. What is exported is an ordinary network.",
        False,
    )
    flat: float = option(
        "Fraction of the training after which the learning rates fall.", 0.5, most=1.0
    )
    halvings: float = option(
        "Number of times that the learning rates are halved in the rest.", 5.0, most=100.0
    )
    start_from: str | None = option(
        "Directory of a trained model to start from. Units that it lacks, and layers that carry in "
        "front of its own, are added without effect at first.",
        None,
    )
    initial_scale: float = option("Factor on the first layer's initial kernel.", 1.0, positive=True)
    mirror: float = option(
        "Probability that left and right of an image are exchanged.", 0.0, most=1.0
    )
    shift: float = option("Probability that an image is moved by up to one pixel.", 0.0, most=1.0)
    distortion: float = option(
        "Standard deviation of a smooth displacement of images, in pixels.", 0.0, most=10.0
    )
    held_out: float = option(
        "Fraction of the training set that is kept out of it, to validate on; the final figures "
        "are then for it, not for the test set.",
        0.0,
        most=0.9,
    )
    jit: bool = option("Compiles the training step with XLA.", True)


def maps_of(recipe: RecipeFields) -> int:
    """Returns how many convolutions and dense layers there are, the last one included."""
    return recipe.layers + len(recipe.filters or ())
