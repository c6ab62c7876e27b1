"""Trains a classifier whose l2 robustness can be proved, exports it and certifies it.

    keras_curv train --output DIR
    keras_curv train --dataset mnist --width 1024 --radius 1.58 --output DIR
    keras_curv train --dataset mnist --filters 16,32 --radius 1.58 --output DIR
    keras_curv train … --output DIR --resume

DIR becomes a SavedModel, with CARD.md, history.csv, certified.json and a TensorBoard log.
Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import shlex

from keras_curv.cli.command import DATA_DIR, Command, at_terminal, loading
from keras_curv.errors import InputError
from keras_curv.training.run.recipe_options import RecipeFields

COMMAND = Command("train", __doc__, "go on with --resume")
FLAGS = COMMAND.flags

DATA = COMMAND.section("Data and output").options(RecipeFields, "dataset held_out")
DATA.strings({"data_dir": DATA_DIR, "output": "Directory to write the SavedModel to."})
DATA.define("bool", "resume", False, "Goes on with the --output of an interrupted run.")

for title, names in {
    "Network": "layers width carry trunk filters kernel_size strides pool activation clip dead_zone",
    "Loss": "loss radius ramp rivals attack_steps gamma trade_off final_beta final_kappa projections deviation",
    "Attacker and property": "threat scale box property",
    "Optimisation": "epochs batch_size optimizer learning_rate muon_rate centre flat halvings start_from initial_scale seed jit",
    "Variation of images": "mirror shift distortion",
}.items():
    COMMAND.section(title).options(RecipeFields, names)

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

    chosen = COMMAND.chosen(RecipeFields)
    if "filters" in chosen and all(count.isdecimal() for count in chosen["filters"]):
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
