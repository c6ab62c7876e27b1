"""The options of a recipe, the losses that it can have, and which options only some recipes have.

Flags are made of these options, so nothing here loads TensorFlow.
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
    """The options of a `Recipe`.

    Attributes:
        dataset: data set to train on: digits, which come with the package, or mnist, fashion_mnist
            or cifar10, through tfds; pixels are in [0, 1].
        layers: number of dense layers, the last one included: at least 2, or 1 behind convolutions.
        width: number of units of each hidden dense layer; default: 256.
        carry: number of units of the hidden dense layers before the last one, which then carry
            their input along; default: they have the width of the last one, and carry nothing.
        trunk: number of convolutions that keep lengths, in front of all other layers; 2 × 2 pixels
            become one place, and the sizes of later layers are in places. Default: none.
        filters: numbers of filters of convolutions before the dense layers, as in 16,32; default:
            no convolutions.
        kernel_size: side of the convolutions' kernels, in pixels; default: 4.
        strides: strides of the convolutions, in pixels; default: 2.
        pool: side of the average pooling behind the last convolution, in that convolution's output
            positions; default: no pooling.
        activation: activation by its Keras name: sparse_plus, softplus, sigmoid, tanh, sin, …; relu
            where the loss needs no curvature.
        clip: begins with a layer that clips the input to [0, 1]; for the losses certified and crt.
        dead_zone: distance to 0 or 1 within which the clip makes an input 0 or 1; default: 0.
        loss: loss to train by. certified: worst logits in the ball, against the likeliest rivals;
            crt: the paper's, at an attack toward the runner-up; penalty: a curvature penalty alone;
            plain: none of these; pgd, trades, crown_ibp, coap and noise are there to compare with.
        radius: radius of the ball, l2, for pixels in [0, 1]; default: 0.5, and none for the loss
            noise, whose noise is adversarial with a radius.
        gamma: weight γ of the curvature penalty; default: 0.01 for the loss penalty, else 0. The
            paper's CRT has 0.01 at least.
        rivals: number of rivals in the certified loss; default: 4. For the loss noise 1 is the
            runner-up; default: all.
        attack_steps: number of gradients for each attack; default: 2, or as published.
        trade_off: weight 1/λ of the second term of the loss trades; default: 6.
        final_beta: share β of the linear bounds at the end of the loss crown_ibp; default: 1.
        final_kappa: share κ of the clean loss at the end of the loss crown_ibp; default: 0.5.
        projections: number of random projections of the loss coap, from two hidden layers on;
            default: 50.
        deviation: standard deviation of the noise of the loss noise; default: 0.25.
        ramp: fraction of the training over which the radius rises; default: 0.3.
        threat: file of what the attacker may do, as for certify: scale, frozen, low and high,
            groups and changes. Default: any change.
        scale: weights by feature, between commas, or one; the radius is in these units. Short for a
            threat.
        box: LOW,HIGH, between which the attacker stays. Short for a threat.
        property: what must not change, as for certify: argmax, top_3, harmful:3,5,
            harmful:TABLE.json; default: argmax.
        epochs: number of passes over the training set.
        batch_size: number of examples in a step.
        seed: seed of weights, order, attacks, noise, shifts and distortions.
        optimizer: optimizer: muon, for hidden kernels, with Adam for the rest; or adam for all.
        learning_rate: learning rate of Adam.
        muon_rate: length of a step of Muon, in spectral norm; default: 0.05.
        centre: centres hidden activations while training: steps are those of activations without
            their running means; for the losses certified and crt, and dense layers alone. What is
            exported is an ordinary network.
        flat: fraction of the training after which the learning rates fall.
        halvings: number of times that the learning rates are halved in the rest.
        start_from: directory of a trained model to start from. Units that it lacks, and layers that
            carry in front of its own, are added without effect at first.
        initial_scale: factor on the first layer's initial kernel.
        mirror: probability that left and right of an image are exchanged.
        shift: probability that an image is moved by up to one pixel in each direction.
        distortion: standard deviation of a smooth displacement of images, in pixels.
        held_out: fraction of the training set that is kept out of it, to validate on; the final
            figures are then for it, not for the test set.
        jit: compiles the training step with XLA.
    """

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
