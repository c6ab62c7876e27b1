"""One table, run: networks trained and measured, or taken from where an earlier run left them.

Everything is kept under the output folder by what decides it, so that a run that was killed goes
on, tables share networks, and several processes started with the same folder share the work: each
takes a network that no other holds the lock of.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import pathlib
import time
from collections.abc import Iterator, Sequence

import keras

from keras_curv import data, foolbox_attacks
from keras_curv.data import Examples
from keras_curv.errors import InputError
from keras_curv.files import write_json, write_text, writing
from keras_curv.reproduce import recipes, tables, write
from keras_curv.reproduce.measurements import COLUMNS, Subject
from keras_curv.reproduce.results import Result
from keras_curv.reproduce.tables import Row, Table
from keras_curv.training import run as training
from keras_curv.training.recipe import Recipe

_QUICK_EXAMPLES = 40
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
    say=lambda text: None,
) -> dict[str, pathlib.Path]:
    """Trains and measures what a table asks for, and writes it down.

    Args:
        name: of the table, one of `tables.TABLES`.
        output: folder; made if need be, and shared by all tables.
        data_dir: of tfds.
        seed: of every training.
        quick: tiny networks and 40 examples, to see that everything runs; marked so.
        limit: measure the first so many test examples only; marked so.
        layers: train and measure only networks of so many; others stay as they are.
        train: if not, only networks that an earlier run trained are measured.
        progress: show bars.
        say: called with a line of text as each network is begun.

    Returns:
        "md", "csv" and "png" (where matplotlib is installed) → the files.

    Raises:
        InputError: the table is unknown, its data are not there, or the folder cannot be used.
    """
    table, folder = tables.get(name), pathlib.Path(output)
    limit = min(limit or _QUICK_EXAMPLES, _QUICK_EXAMPLES) if quick else limit
    examples = data.load(table.dataset, "test", data_dir=data_dir).limited(limit)
    for part in ("models", "measurements"):
        try:
            (folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be used for output: {error}") from error
    for row in tables.rows(name):
        if layers is not None and row.layers not in layers:
            continue
        recipe = recipes.recipe(table, row, seed=seed, quick=quick)
        model = folder / "models" / key(recipe)
        if not (train or model.with_suffix(".json").is_file()):
            continue
        with lock(model.with_suffix(".lock")) as ours:
            if ours:
                say(f"{name}: {recipe.architecture}, {row.training} {row.weight or ''}".strip())
                _train(recipe, model, data_dir, progress)
                _measure(folder, model, table, row, recipe, examples)
    results = [
        _result(folder, table, row, recipes.recipe(table, row, seed=seed, quick=quick), examples)
        for row in tables.rows(name)
    ]
    return write.table(name, table, results, folder, quick=quick, limit=limit)


def key(*settings) -> str:
    """A short name for what these settings decide."""
    parts = [one.given() if isinstance(one, Recipe) else one for one in settings]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def lock(path: pathlib.Path) -> Iterator[bool]:
    """Whether the lock is ours; it goes with the process, however that ends."""
    with writing(path):
        file = open(path, "w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _train(recipe: Recipe, model: pathlib.Path, data_dir, progress: bool) -> None:
    """Trains the network unless it is there; goes on with one that was interrupted."""
    took = model.with_suffix(".json")
    if took.is_file():
        return
    begun, earlier = (model / "recipe.json").is_file(), time.time()
    if not (model / "CARD.md").is_file():
        training.train(
            recipe,
            str(model),
            resume=begun,
            data_dir=data_dir,
            command=recipes.command(recipe),
            limit=_ON_CARD,
            progress=progress,
        )
        keras.backend.clear_session()
    write_json(took, {"seconds": time.time() - earlier, "resumed": begun})


def _measurements(folder, table: Table, recipe: Recipe, examples: Examples) -> pathlib.Path:
    known_by = [examples.name, examples.fingerprint, examples.count, table.radius]
    return folder / "measurements" / f"{key(recipe, known_by)}.json"


def _measure(folder, model, table: Table, row: Row, recipe: Recipe, examples: Examples) -> None:
    """Measures what is not there yet; what is, is written down column by column."""
    file = _measurements(folder, table, recipe, examples)
    figures = json.loads(file.read_text()) if file.is_file() else {}
    subject = Subject(str(model), row, examples, table.radius)
    for column in table.columns:
        if column in figures or not _applies(column, row):
            continue
        figures[column] = float(COLUMNS[column].measure(subject))
        write_text(file, json.dumps(figures, indent=1))


def _applies(column: str, row: Row) -> bool:
    """Whether there is such a figure of such a network, on this machine."""
    if column == "empirical_ddn":
        return foolbox_attacks.available()
    if row.activation == "relu" and column.startswith("crc"):
        return row.layers == 2
    return True


def _result(folder, table: Table, row: Row, recipe: Recipe, examples: Examples) -> Result:
    file = _measurements(folder, table, recipe, examples)
    known = json.loads(file.read_text()) if file.is_file() else {}
    took = folder / "models" / f"{key(recipe)}.json"
    history = json.loads(took.read_text()) if took.is_file() else {"resumed": True}
    seconds = None if history["resumed"] else history["seconds"]
    figures = {column: known[column] for column in table.columns if column in known}
    done = all(column in figures or not _applies(column, row) for column in table.columns)
    return Result(row, recipe, figures, seconds, done)
