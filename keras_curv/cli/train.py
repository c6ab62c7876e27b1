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

from keras_curv.cli.command import DATA_DIR, Command, at_terminal, loading
from keras_curv.errors import InputError
from keras_curv.training.run.recipe_options import RecipeFields

COMMAND = Command("train", __doc__, "go on with --resume")
FLAGS = COMMAND.flags

DATA = COMMAND.section("Data and output").fields(
    RecipeFields,
    {
        "dataset": "Data set to train on: digits, which come with the package, or mnist, fashion_mnist or cifar10, through tfds.",
        "held_out": "Fraction of the training set that is kept out of it, to validate on.",
    },
)
DATA.define("string", "data_dir", None, DATA_DIR)
DATA.define("string", "output", None, "Directory to write the SavedModel to.")
DATA.define("bool", "resume", False, "Goes on with the --output of an interrupted run.")

COMMAND.section("Network").fields(
    RecipeFields,
    {
        "layers": "Number of dense layers, the last one included.",
        "width": "Number of units of each hidden dense layer; default: 256.",
        "carry": "Number of units of each hidden dense layer before the last one, which then carries its input along; default: none does.",
        "trunk": "Number of convolutions in front of all these that keep lengths, 2 × 2 pixels a place; default: none.",
        "filters": "Numbers of filters of convolutions before the dense layers, as in 16,32; default: no convolutions.",
        "kernel_size": "Side of the convolutions' kernels, in pixels; default: 4.",
        "strides": "Strides of the convolutions, in pixels; default: 2.",
        "pool": "Side of the average pooling behind the last convolution, in that convolution's output positions; default: no pooling.",
        "activation": "Activation by its Keras name: sparse_plus, softplus, sigmoid, tanh, sin, …; relu where the loss needs no curvature.",
        "clip": "Begins with a layer that clips the input to [0, 1].",
        "dead_zone": "Distance to 0 or 1 within which --clip makes an input 0 or 1; default: 0.",
    },
)

COMMAND.section("Loss").fields(
    RecipeFields,
    {
        "loss": "Loss to train by. certified: worst logits in the ball, against the likeliest rivals; crt: the paper's, at an attack toward the runner-up; penalty: a curvature penalty alone; plain: none of these; pgd, trades, crown_ibp, coap and noise are there to compare with.",
        "radius": "Radius of the ball, l2, for pixels in [0, 1]; default: 0.5, and none for --loss noise.",
        "ramp": "Fraction of the training over which the radius rises; default: 0.3.",
        "rivals": "Number of rivals in the certified loss; default: 4. For --loss noise 1 is the runner-up; default: all.",
        "attack_steps": "Number of gradients for each attack; default: 2, or as published.",
        "gamma": "Weight of the curvature penalty; default: 0.01 for --loss penalty, else 0. The paper's CRT has 0.01 at least.",
        "trade_off": "Weight 1/λ of the second term of --loss trades; default: 6.",
        "final_beta": "Share β of the linear bounds at the end of --loss crown_ibp; default: 1.",
        "final_kappa": "Share κ of the clean loss at the end of --loss crown_ibp; default: 0.5.",
        "projections": "Number of random projections of --loss coap, from two hidden layers on; default: 50.",
        "deviation": "Standard deviation of the noise of --loss noise; default: 0.25.",
    },
)

COMMAND.section("Attacker and property").fields(
    RecipeFields,
    {
        "threat": "File of what the attacker may do, as for certify: scale, frozen, low and high, groups and changes. Default: any change.",
        "scale": "Weights by feature, between commas, or one; --radius is in these units. Short for a --threat.",
        "box": "LOW,HIGH, between which the attacker stays. Short for a --threat.",
        "property": "What must not change, as for certify: argmax, top_3, harmful:3,5, harmful:TABLE.json; default: argmax.",
    },
)

COMMAND.section("Optimisation").fields(
    RecipeFields,
    {
        "epochs": "Number of passes over the training set.",
        "batch_size": "Number of examples in a step.",
        "optimizer": "Optimizer: muon, for hidden kernels, with Adam for the rest; or adam for all.",
        "learning_rate": "Learning rate of Adam.",
        "muon_rate": "Length of a step of Muon, in spectral norm; default: 0.05.",
        "centre": "Centres hidden activations while training: steps are those of activations without their running means. What is exported is an ordinary network.",
        "flat": "Fraction of the training after which the learning rate falls.",
        "halvings": "Number of times that the learning rate is halved in the rest.",
        "start_from": "Directory of a trained model to start from. Units that it lacks, and layers of --carry in front of its own, are added without effect at first.",
        "initial_scale": "Factor on the first layer's initial kernel.",
        "seed": "Seed of weights, order, attacks, noise, shifts and distortions.",
        "jit": "Compiles the training step with XLA.",
    },
)

COMMAND.section("Variation of images").fields(
    RecipeFields,
    {
        "mirror": "Probability that left and right of an image are exchanged.",
        "shift": "Probability that an image is moved by up to one pixel.",
        "distortion": "Standard deviation of a smooth displacement of images, in pixels.",
    },
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
        from keras_curv.training.run import recipe, trainer

    names = [field.name for field in dataclasses.fields(recipe.Recipe)]
    chosen = COMMAND.values(*names)
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
