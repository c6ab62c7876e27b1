"""Trains a classifier whose l2 robustness can be proved, exports it and certifies it.

    bin/train --output DIR
    bin/train --dataset mnist --width 1024 --radius 1.58 --output DIR
    bin/train --dataset mnist --filters 16,32 --radius 1.58 --output DIR
    bin/train … --output DIR --resume

DIR becomes a SavedModel, with CARD.md, history.csv, certified.json and a TensorBoard log.
Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from keras_curv.cli.command import Command, at_terminal, quiet_stderr
from keras_curv.errors import InputError

COMMAND = Command("train", __doc__, "go on with --resume")
FLAGS = COMMAND.flags

DATA = COMMAND.section("Data and output")
DATA.define("string", "dataset", "digits", "digits (embedded), mnist, fashion_mnist or cifar10.")
DATA.define(
    "string",
    "data_dir",
    None,
    "Where tfds finds its data sets; default: TFDS_DATA_DIR, or tfds' own place.",
)
DATA.define("float", "held_out", 0.0, "Fraction of the training set to validate on, not to train.")
DATA.define("string", "output", None, "Directory of the SavedModel.")
DATA.define("bool", "resume", False, "Go on with the --output of an interrupted run.")

NETWORK = COMMAND.section("Network")
NETWORK.define("integer", "layers", 2, "Dense layers: hidden ones and the last one.")
NETWORK.define("integer", "width", None, "Units of each hidden dense layer; default: 256.")
NETWORK.define("list", "filters", None, "Of convolutions before the dense layers, as in 16,32.")
NETWORK.define("integer", "kernel_size", None, "Of the convolutions; default: 4.")
NETWORK.define("integer", "strides", None, "Of the convolutions; default: 2.")
NETWORK.define(
    "string",
    "activation",
    "softplus",
    "sparse_plus, softplus, sigmoid, tanh, …, by its Keras name; relu where no curvature is needed.",
)

LOSS = COMMAND.section("Loss")
LOSS.define(
    "string",
    "loss",
    "certified",
    "certified: dual values against the likeliest rivals; crt: the paper's, attack toward the runner-up; penalty: curvature penalty alone; plain: none of these; to compare with: pgd, trades, crown_ibp, coap, noise.",
)
LOSS.define(
    "float",
    "radius",
    None,
    "Of the attack, l2, on pixels in [0, 1]; default: 0.5, and none for --loss noise.",
)
LOSS.define(
    "float", "ramp", None, "Fraction of the training over which the radius rises; default: 0.3."
)
LOSS.define(
    "integer",
    "rivals",
    None,
    "Of the certified loss; default: 4. For --loss noise: 1, the runner-up; default: all.",
)
LOSS.define(
    "integer", "attack_steps", None, "Gradients for each attack; default: 2, or as published."
)
LOSS.define("float", "gamma", None, "Weight of the curvature penalty; default: 0.")
LOSS.define("float", "trade_off", None, "Of trades, 1/λ; default: 6.")
LOSS.define("float", "final_beta", None, "Of crown_ibp; default: 1.")
LOSS.define("float", "final_kappa", None, "Of crown_ibp; default: 0.5.")
LOSS.define("integer", "projections", None, "Of coap, from three layers; default: 50.")
LOSS.define("float", "deviation", None, "Of the noise; default: 0.25.")

OPTIMISATION = COMMAND.section("Optimisation")
OPTIMISATION.define("integer", "epochs", 40, "Passes over the training set.")
OPTIMISATION.define("integer", "batch_size", 256, "Examples in a step.")
OPTIMISATION.define(
    "string", "optimizer", "muon", "muon (hidden kernels; Adam for the rest) or adam."
)
OPTIMISATION.define("float", "learning_rate", 3e-3, "Adam's.")
OPTIMISATION.define(
    "float", "muon_rate", None, "Of muon: length of a step, in spectral norm; default: 0.05."
)
OPTIMISATION.define(
    "float", "flat", 0.5, "Fraction of the training before the learning rate falls."
)
OPTIMISATION.define("float", "halvings", 5.0, "How often the learning rate is halved in the rest.")
OPTIMISATION.define(
    "float", "initial_scale", 1.0, "Factor on the initial kernel of the first layer."
)
OPTIMISATION.define(
    "integer", "seed", 0, "Of weights, order, attacks, noise, shifts and distortions."
)
OPTIMISATION.define("bool", "jit", True, "Compile the training step with XLA.")

VARIATION = COMMAND.section("Variation of images")
VARIATION.define("float", "shift", 0.0, "Probability that an image is moved by up to one pixel.")
VARIATION.define(
    "float", "distortion", 0.0, "Of images: deviation of a smooth displacement, in pixels."
)

CERTIFICATION = COMMAND.section("Certification")
CERTIFICATION.define(
    "integer", "certify_every", 0, "Certify 500 held-out examples every so many epochs."
)
CERTIFICATION.define(
    "multi_float", "reported", None, "Report certified accuracy at this radius; repeatable."
)


@COMMAND.main
def main() -> int:
    """Trains, exports and certifies; returns the exit status."""
    if not FLAGS.output:
        raise InputError("--output is required: the directory of the SavedModel")
    with quiet_stderr():
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
        command=shlex.join(["bin/train", *COMMAND.arguments]),
        radii=FLAGS.reported or DEFAULT_RADII,
        certify_every=FLAGS.certify_every,
        progress=at_terminal(),
    )
    print_summary(summary)
    return 0
