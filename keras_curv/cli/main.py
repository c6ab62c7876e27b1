"""Proves how robust classifiers are. keras_curv has five commands:

    keras_curv certify      prove radii for a SavedModel on a data set, or on logged requests
    keras_curv train        train a classifier whose robustness can be proved
    keras_curv read         show what is read of a model, and write it as numbers
    keras_curv check        prove radii again, from numbers, by other code
    keras_curv reproduce    make the tables of the paper again

`keras_curv certify --help` lists its flags. Without any, it certifies the model of digits that
comes with the package.
"""

from __future__ import annotations

import importlib
import os
import sys

from keras_curv.cli.command import HELP, fail, show
from keras_curv.numerics.batches import THREADS_OF_PRODUCTS
from keras_curv.version import __version__

COMMANDS = ("certify", "train", "read", "check", "reproduce")


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its status; 2 for bad input, with one line on stderr.

    Args:
        arguments: name of the command, then its flags; None: those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else "--help"
    if name in COMMANDS:
        if "numpy" not in sys.modules and "OMP_NUM_THREADS" not in os.environ:
            for variable in THREADS_OF_PRODUCTS:
                os.environ.setdefault(variable, "1")
        importlib.import_module(f"keras_curv.cli.{name}").COMMAND.run(arguments[1:])
    if name in HELP:
        show(__doc__ or "")
        sys.exit(0)
    if name == "--version":
        show(f"keras_curv {__version__}")
        sys.exit(0)
    sys.exit(fail("keras_curv", f"no command {name!r}; there are {', '.join(COMMANDS)}"))
