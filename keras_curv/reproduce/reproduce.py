"""One table, run: networks trained and measured, or taken from where an earlier run left them.

Everything is kept under the output folder by what decides it, so that a run that was killed goes
on, tables share networks, and several processes started with the same folder share the work: each
takes a network that no other holds the lock of. The folder `models`, which is large, is needed for
figures that are still missing only: where all are known nothing is trained.
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
    """Trains and measures what a table asks for, and writes it down.

    Args:
        name: of the table, one of `tables.TABLES`.
        output: folder; made if need be, and shared by all tables.
        data_dir: of tfds.
        seed: of every training.
        quick: tiny networks and 40 examples, to see that everything runs; marked so.
        limit: measure the first so many test examples only; marked so, and so is the files' name,
            as it is for `quick` and another seed.
        layers: train and measure only networks of so many; others stay as they are.
        train: if not, only networks that are in the folder are measured.
        progress: show bars.
        say: called with a line of text as each network is begun, and where others are at work.

    Returns:
        "md", "csv" and "png" (where matplotlib is installed) → the files.

    Raises:
        InputError: the table is unknown, its data are not there, the folder cannot be used, or a
            file in it is broken or of another recipe; what one network comes to (a diverged one is
            refused) is raised when all others are done and written down.
    """
    table, folder = tables.get(name), pathlib.Path(output)
    whole = data.load(table.dataset, "test", data_dir=data_dir)
    examples = whole.limited(min(limit or _QUICK_EXAMPLES, _QUICK_EXAMPLES) if quick else limit)
    for part in ("models", "trainings", "measurements"):
        with about(f"{folder} cannot be used for output", (OSError,)):
            (folder / part).mkdir(parents=True, exist_ok=True)
    nets = [
        _Net(folder, table, row, recipes.recipe(table, row, seed=seed, quick=quick), examples)
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
    """Returns a short name for what these settings decide."""
    parts = [one.given() if isinstance(one, Recipe) else one for one in settings]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def lock(path: pathlib.Path, *, wait: bool = False) -> Iterator[bool]:
    """Yields whether the lock is ours; it goes with the process, however that ends."""
    with writing(path):
        file = open_regular(path, os.O_RDWR | os.O_CREAT)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


class _Net:
    """One network of a table, and where what is known of it is kept.

    Attributes:
        row, recipe: what it is.
        model: its SavedModel.
        training: JSON file of what the training took.
        measured: JSON file of figures, by what exactly they mean; null where there is none.
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
        """Whether it can be measured: the card is what a training writes last."""
        return (self.model / "CARD.md").is_file()

    def known(self) -> dict:
        """Returns the figures by what exactly they mean."""
        return _read(self.measured)

    def missing(self, known: dict) -> list[str]:
        """Returns the columns that can be measured here of such a network, and were not yet."""
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
        """Measures what is not there yet; what is, is written down column by column."""
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
        """Returns what is known of it now."""
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
