"""Reproduces one table: trains and measures its networks, and reuses what earlier runs left.

Results are stored in the output folder under a hash of the settings that decide them. So a killed
run goes on, tables share networks, and several processes with the same folder share the work: each
takes a network whose lock no other holds. The large folder `models` is needed only for figures that
are still missing: nothing is trained where all are known.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_curv import data
from keras_curv.attacks import foolbox as foolbox_attacks
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError, about
from keras_curv.files import open_regular, read_at_most, write_json, write_text, writing
from keras_curv.reproduce import recipes, tables, write
from keras_curv.reproduce.measurements import COLUMNS, Subject
from keras_curv.reproduce.tables import Row, Table
from keras_curv.reproduce.write import Result
from keras_curv.training.run import run_folder
from keras_curv.training.run import trainer as training
from keras_curv.training.run.recipe import Recipe

_QUICK_EXAMPLES = 40
_FIGURES = 2**26  # bytes of all that was measured, at most
_ON_CARD = 100  # examples: the table has its own figures


def reproduce(
    name: str,
    output: str,
    *,
    data_dir: str | None = None,
    seed: int = 0,
    quick: bool = False,
    limit: int | None = None,
    layers: Sequence[int] | None = None,
    train: bool = True,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, pathlib.Path]:
    """Trains and measures the networks of a table, and writes the table.

    Args:
        name: of the table, one of `tables.TABLES`.
        output: folder; made if need be, and shared by all tables.
        data_dir: of tfds.
        seed: of every training.
        quick: tiny networks and 40 examples, to see that everything runs; marked so.
        limit: measure the first so many test examples only; marked so, and so is the files' name,
            as it is for `quick` and another seed.
        layers: train and measure only networks of so many layers; others stay as they are.
        train: if not, only networks that are in the folder are measured.
        progress: show bars.
        say: called with a line of text as each network is begun, and where others are at work.

    Returns:
        "md", "csv" and "png" (where matplotlib is installed) → the files.

    Raises:
        InputError: the table is unknown, its data are not there, the folder cannot be used, or a
            file in it is broken or of another recipe. An error of one network, as of one that
            diverged, is raised after all others are done and written.
    """
    table, folder = tables.get(name), pathlib.Path(output)
    whole = data.load(table.dataset, "test", data_dir=data_dir)
    examples = whole.limited(min(limit or _QUICK_EXAMPLES, _QUICK_EXAMPLES) if quick else limit)
    for part in ("models", "trainings", "measurements"):
        with about(f"{folder} cannot be used for output", (OSError,)):
            (folder / part).mkdir(parents=True, exist_ok=True)
    nets = [
        Net(folder, table, row, recipes.recipe(table, row, seed=seed, quick=quick), examples)
        for row in tables.rows(name)
    ]
    busy, failed = 0, None
    for net in nets:
        excluded = layers is not None and net.row.layers not in layers
        if excluded or not net.missing(net.known()) or not (train or net.trained):
            continue
        with lock(net.model.with_suffix(".lock")) as ours:
            if not ours:
                busy += 1
                continue
            say(f"{name}: {net}")
            try:
                net.train(data_dir, progress)
                net.measure()
            except InputError as error:
                failed = error
    if busy:
        say(f"{name}: {busy} of {len(nets)} are in work elsewhere; start again to take them in")
    limited = examples.count < whole.count
    marks = write.Marks(name, examples, quick=quick, limited=limited, seed=seed)
    with lock(folder / "measurements" / f"{marks.stem}.lock", wait=True):
        files = write.table(table, [net.result() for net in nets], folder, marks)
    if failed is not None:
        raise failed
    return files


def key(*settings: Any) -> str:
    """Returns a short name of the results that these settings decide."""
    parts = [one.given() if isinstance(one, Recipe) else one for one in settings]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def lock(path: pathlib.Path, *, wait: bool = False) -> Iterator[bool]:
    """Yields whether this process holds the lock; its end, of any kind, releases it."""
    with writing(path):
        file = open_regular(path, os.O_RDWR | os.O_CREAT)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


class Net:
    """One network of a table, and the files of its results.

    Attributes:
        row, recipe: of the network.
        model: its SavedModel.
        training: JSON file with the seconds of the training.
        measured: JSON file of figures by their exact meaning; null where none exists.
    """

    def __init__(
        self, folder: pathlib.Path, table: Table, row: Row, recipe: Recipe, examples: Examples
    ):
        self.row, self.recipe = row, recipe
        self._table, self._examples = table, examples
        words = (recipe.dataset, recipe.layers, recipe.activation, recipe.loss)
        name = "_".join([*map(str, words), key(recipe, recipes.REVISION, examples.fingerprint)])
        self.model = folder / "models" / name
        self.training = folder / "trainings" / f"{name}.json"
        known_by = [examples.name, examples.fingerprint, examples.count, table.radius]
        self.measured = folder / "measurements" / f"{name}_{key(known_by)}.json"

    def __str__(self) -> str:
        return f"{self.recipe.architecture}, {self.row.training} {self.row.weight or ''}".strip()

    @property
    def trained(self) -> bool:
        """Whether it can be measured: the card is the last file that a training writes."""
        return (self.model / "CARD.md").is_file()

    def known(self) -> dict:
        """Returns the figures that were measured, by their exact meaning."""
        return _read(self.measured)

    def missing(self, known: dict) -> list[str]:
        """Returns the columns that can be measured of this network here, and were not yet."""
        return [
            column
            for column in self._table.columns
            if self._applies(column) and _meaning(column) not in known
        ]

    def train(self, data_dir: str | None, progress: bool) -> None:
        """Trains it unless that is done; goes on with a training that was interrupted."""
        if self.trained:
            run_folder.require_same_recipe(self.model, self.recipe)
            return
        begun, earlier = (self.model / "recipe.json").is_file(), time.time()
        training.train(
            self.recipe,
            str(self.model),
            resume=begun,
            data_dir=data_dir,
            command=recipes.command(self.recipe),
            limit=_ON_CARD,
            progress=progress,
        )
        keras.backend.clear_session()
        write_json(self.training, {"seconds": time.time() - earlier, "resumed": begun})

    def measure(self) -> None:
        """Measures the missing columns, and writes each as soon as it is known."""
        known = self.known()
        missing = self.missing(known)
        if not missing:  # another process was here before
            return
        subject = Subject(str(self.model), self.row, self._examples, self._table.radius)
        for column in missing:
            figure = float(COLUMNS[column].measure(subject))
            known[_meaning(column)] = None if math.isnan(figure) else figure
            write_text(self.measured, json.dumps(known, indent=1))

    def result(self) -> Result:
        """Returns the row of the table, as far as it is known."""
        known, took = self.known(), _read(self.training) or {"resumed": True}
        figures = {column: known.get(_meaning(column)) for column in self._table.columns}
        return Result(
            self.row,
            self.recipe,
            {column: figure for column, figure in figures.items() if figure is not None},
            None if took["resumed"] else took["seconds"],
            not self.missing(known),
        )

    def _applies(self, column: str) -> bool:
        if column == "empirical_ddn":
            return foolbox_attacks.available()
        if self.row.activation == "relu" and column.startswith("crc"):
            return self.row.layers == 2
        return True


def _meaning(column: str) -> str:
    """Returns the key of a figure: a column that comes to mean something else is measured anew."""
    return f"{COLUMNS[column].heading}: {COLUMNS[column].meaning}"


def _read(file: pathlib.Path) -> dict:
    """Returns the object in a JSON file; an empty one where there is no file."""
    if not file.is_file():
        return {}
    try:
        known = json.loads(read_at_most(file, _FIGURES))
        if not isinstance(known, dict):
            raise ValueError("no JSON object")
        return known
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} is broken: {error}; remove it") from error
