"""Trains and measures what a table of the paper compares, and writes ours beside the paper's.

    keras_curv reproduce --list
    keras_curv reproduce --table mnist_1.58 --output results
    keras_curv reproduce --table all --quick --output /tmp/look

Networks and figures are kept in the output folder: a run that was killed goes on when started again,
and several started with the same folder share the work. With `--output benchmarks/tables` it goes on
from the published figures. Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

from keras_curv.cli.command import DATA_DIR, Command, at_terminal, loading
from keras_curv.errors import InputError

COMMAND = Command("reproduce", __doc__, "started again, it goes on")
FLAGS = COMMAND.flags

TABLES = COMMAND.section("Tables")
TABLES.define("list", "table", None, "Names of the tables to make, as in mnist_1.58,local; or all.")
TABLES.define("bool", "list", False, "Says which tables there are, and stops.")
TABLES.define("string", "output", "results", "Folder for networks, figures and tables.")
TABLES.define("string", "data_dir", None, DATA_DIR)

NETWORKS = COMMAND.section("Networks")
NETWORKS.define(
    "list", "layers", None, "Numbers of layers, as in 2,3, to which networks are limited."
)
NETWORKS.define(
    "bool",
    "train",
    True,
    "Trains networks that are missing; if not, measures those that are there.",
)
NETWORKS.define("integer", "seed", 0, "Seed of every training.", lower_bound=0)
NETWORKS.define(
    "bool", "quick", False, "Takes tiny networks and 40 examples, to see that everything runs."
)
NETWORKS.define(
    "integer",
    "limit",
    None,
    "Number of test examples, the first ones; default: all.",
    lower_bound=1,
)


@COMMAND.main
def main() -> int:
    """Makes tables; returns the exit status."""
    with loading():
        from keras_curv.reports.console import print_names
        from keras_curv.reproduce import tables

    if FLAGS.list:
        print_names((name, table.title, table.source) for name, table in tables.TABLES.items())
        return 0
    if not FLAGS.table:
        raise InputError("--table is required: the name of a table, or all; see --list")
    if not FLAGS.output:
        raise InputError("--output must name a folder. Received: ''")
    if FLAGS.layers and not all(count.isdecimal() for count in FLAGS.layers):
        raise InputError(f"--layers must be numbers. Received: {','.join(FLAGS.layers)}")
    layers = None if FLAGS.layers is None else [int(count) for count in FLAGS.layers]
    names = list(tables.TABLES) if FLAGS.table == ["all"] else FLAGS.table
    depths = {row.layers for name in names for row in tables.rows(name)}
    if layers is not None and not (layers and set(layers) <= depths):
        known = ",".join(map(str, sorted(depths)))
        raise InputError(f"--layers must be of {known}. Received: {','.join(FLAGS.layers)!r}")
    with loading():  # TensorFlow, for which a list need not wait
        from keras_curv import data
        from keras_curv.reproduce import reproduce as run
    for dataset in sorted({tables.get(name).dataset for name in names}):
        data.load(dataset, "test", data_dir=FLAGS.data_dir)  # before hours of work on another
    for name in names:
        files = run.reproduce(
            name,
            FLAGS.output,
            **COMMAND.values("data_dir", "seed", "quick", "limit", "train"),
            layers=layers,
            progress=at_terminal(),
            say=lambda text: print(text, flush=True),
        )
        print(f"{name}: {', '.join(map(str, files.values()))}", flush=True)
    return 0
