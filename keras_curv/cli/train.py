"""Trains a classifier whose l2 robustness can be proved, exports it and certifies it.

    keras_curv train --output DIR
    keras_curv train --dataset mnist --width 1024 --radius 1.58 --output DIR
    keras_curv train --dataset mnist --filters 16,32 --radius 1.58 --output DIR
    keras_curv train … --output DIR --resume

DIR becomes a SavedModel, with CARD.md, history.csv, certified.json and a TensorBoard log.
Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from keras_curv.cli.command import DATA_DIR, Command, at_terminal, loading
from keras_curv.errors import InputError

COMMAND = Command("train", __doc__, "go on with --resume")
FLAGS = COMMAND.flags

DATA = COMMAND.section("Data and output")
DATA.define(
    "string",
    "dataset",
    "digits",
    "Data set to train on: digits, which come with the package, or mnist, fashion_mnist or cifar10, through tfds.",
)
DATA.define("string", "data_dir", None, DATA_DIR)
DATA.define(
    "float", "held_out", 0.0, "Fraction of the training set that is kept out of it, to validate on."
)
DATA.define("string", "output", None, "Directory to write the SavedModel to.")
DATA.define("bool", "resume", False, "Goes on with the --output of an interrupted run.")

NETWORK = COMMAND.section("Network")
NETWORK.define("integer", "layers", 2, "Number of dense layers, the last one included.")
NETWORK.define(
    "integer", "width", None, "Number of units of each hidden dense layer; default: 256."
)
NETWORK.define(
    "integer",
    "carry",
    None,
    "Number of units of each hidden dense layer before the last one, which then carries its input along; default: none does.",
)
NETWORK.define(
    "integer",
    "trunk",
    None,
    "Number of convolutions in front of all these that keep lengths, 2 × 2 pixels a place; default: none.",
)
NETWORK.define(
    "list",
    "filters",
    None,
    "Numbers of filters of convolutions before the dense layers, as in 16,32; default: no convolutions.",
)
NETWORK.define(
    "integer", "kernel_size", None, "Side of the convolutions' kernels, in pixels; default: 4."
)
NETWORK.define("integer", "strides", None, "Strides of the convolutions, in pixels; default: 2.")
NETWORK.define(
    "integer",
    "pool",
    None,
    "Side of the average pooling behind the last convolution, in that convolution's output positions; default: no pooling.",
)
NETWORK.define(
    "string",
    "activation",
    "softplus",
    "Activation by its Keras name: sparse_plus, softplus, sigmoid, tanh, sin, …; relu where the loss needs no curvature.",
)

NETWORK.define("bool", "clip", False, "Begins with a layer that clips the input to [0, 1].")
NETWORK.define(
    "float",
    "dead_zone",
    None,
    "Distance to 0 or 1 within which --clip makes an input 0 or 1; default: 0.",
)

LOSS = COMMAND.section("Loss")
LOSS.define(
    "string",
    "loss",
    "certified",
    "Loss to train by. certified: worst logits in the ball, against the likeliest rivals; crt: the paper's, at an attack toward the runner-up; penalty: a curvature penalty alone; plain: none of these; pgd, trades, crown_ibp, coap and noise are there to compare with.",
)
LOSS.define(
    "float",
    "radius",
    None,
    "Radius of the ball, l2, for pixels in [0, 1]; default: 0.5, and none for --loss noise.",
)
LOSS.define(
    "float", "ramp", None, "Fraction of the training over which the radius rises; default: 0.3."
)
LOSS.define(
    "integer",
    "rivals",
    None,
    "Number of rivals in the certified loss; default: 4. For --loss noise 1 is the runner-up; default: all.",
)
LOSS.define(
    "integer",
    "attack_steps",
    None,
    "Number of gradients for each attack; default: 2, or as published.",
)
LOSS.define(
    "float",
    "gamma",
    None,
    "Weight of the curvature penalty; default: 0.01 for --loss penalty, else 0. The paper's CRT has 0.01 at least.",
)
LOSS.define(
    "float", "trade_off", None, "Weight 1/λ of the second term of --loss trades; default: 6."
)
LOSS.define(
    "float",
    "final_beta",
    None,
    "Share β of the linear bounds at the end of --loss crown_ibp; default: 1.",
)
LOSS.define(
    "float",
    "final_kappa",
    None,
    "Share κ of the clean loss at the end of --loss crown_ibp; default: 0.5.",
)
LOSS.define(
    "integer",
    "projections",
    None,
    "Number of random projections of --loss coap, from two hidden layers on; default: 50.",
)
LOSS.define(
    "float", "deviation", None, "Standard deviation of the noise of --loss noise; default: 0.25."
)

CLAIM = COMMAND.section("Attacker and property")
CLAIM.define(
    "string",
    "threat",
    None,
    "File of what the attacker may do, as for certify: scale, frozen, low and high, groups and changes. Default: any change.",
)
CLAIM.define(
    "string",
    "scale",
    None,
    "Weights by feature, between commas, or one; --radius is in these units. Short for a --threat.",
)
CLAIM.define(
    "string", "box", None, "LOW,HIGH, between which the attacker stays. Short for a --threat."
)
CLAIM.define(
    "string",
    "property",
    None,
    "What must not change, as for certify: argmax, top_3, harmful:3,5, harmful:TABLE.json; default: argmax.",
)

OPTIMISATION = COMMAND.section("Optimisation")
OPTIMISATION.define("integer", "epochs", 40, "Number of passes over the training set.")
OPTIMISATION.define("integer", "batch_size", 256, "Number of examples in a step.")
OPTIMISATION.define(
    "string",
    "optimizer",
    "muon",
    "Optimizer: muon, for hidden kernels, with Adam for the rest; or adam for all.",
)
OPTIMISATION.define("float", "learning_rate", 3e-3, "Learning rate of Adam.")
OPTIMISATION.define(
    "float", "muon_rate", None, "Length of a step of Muon, in spectral norm; default: 0.05."
)
OPTIMISATION.define(
    "bool",
    "centre",
    False,
    "Centres hidden activations while training: steps are those of activations without their "
    "running means. What is exported is an ordinary network.",
)
OPTIMISATION.define(
    "float", "flat", 0.5, "Fraction of the training after which the learning rate falls."
)
OPTIMISATION.define(
    "float", "halvings", 5.0, "Number of times that the learning rate is halved in the rest."
)
OPTIMISATION.define(
    "string",
    "start_from",
    None,
    "Directory of a trained model to start from. Units that it lacks, and layers of --carry in front of its own, are added without effect at first.",
)
OPTIMISATION.define("float", "initial_scale", 1.0, "Factor on the first layer's initial kernel.")
OPTIMISATION.define(
    "integer", "seed", 0, "Seed of weights, order, attacks, noise, shifts and distortions."
)
OPTIMISATION.define("bool", "jit", True, "Compiles the training step with XLA.")

VARIATION = COMMAND.section("Variation of images")
VARIATION.define(
    "float", "mirror", 0.0, "Probability that left and right of an image are exchanged."
)
VARIATION.define("float", "shift", 0.0, "Probability that an image is moved by up to one pixel.")
VARIATION.define(
    "float", "distortion", 0.0, "Standard deviation of a smooth displacement of images, in pixels."
)

CERTIFICATION = COMMAND.section("Certification")
CERTIFICATION.define(
    "integer",
    "certify_every",
    0,
    "Number of epochs after which 500 examples are certified (100 by linear bounds of deep nets), each time, of those that --held_out keeps apart; after the first and the last epoch too. 0: never.",
)
CERTIFICATION.define(
    "multi_float",
    "reported",
    None,
    "Radius at which to report certified accuracy; default: 0.1, 0.25, 0.5, 1.0 and 1.58.",
)


@COMMAND.main
def main() -> int:
    """Trains, exports and certifies; returns the exit status."""
    if not FLAGS.output:
        raise InputError("--output is required: the directory of the SavedModel")
    with loading():
        from keras_curv.reports.console import print_summary
        from keras_curv.runs.options import DEFAULT_RADII
        from keras_curv.training import recipe, trainer

    names = [field.name for field in dataclasses.fields(recipe.Recipe)]
    chosen: dict[str, Any] = {name: FLAGS[name].value for name in names}
    if chosen["filters"] and all(count.isdecimal() for count in chosen["filters"]):
        chosen["filters"] = [int(count) for count in chosen["filters"]]
    summary = trainer.train(
        recipe.Recipe(**chosen),
        FLAGS.output,
        resume=FLAGS.resume,
        data_dir=FLAGS.data_dir,
        command=shlex.join(["keras_curv", "train", *without_resume(COMMAND.arguments)]),
        radii=FLAGS.reported or DEFAULT_RADII,
        certify_every=FLAGS.certify_every,
        progress=at_terminal(),
    )
    print_summary(summary)
    return 0


def without_resume(arguments: list[str]) -> list[str]:
    """Returns the arguments that train from the beginning."""
    return [word for word in arguments if word.partition("=")[0] not in ("--resume", "-resume")]
