"""The folder of a training run: begun, gone on with by the same recipe alone, finished once."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from keras_curv.errors import InputError
from keras_curv.files import (
    parse_json,
    part_path,
    read_at_most,
    require_plain_folder,
    write_file,
    write_text,
)
from keras_curv.saved_model.files import ModelFiles
from keras_curv.threats.threat import Threat
from keras_curv.training.run.callbacks import CERTIFIED
from keras_curv.training.run.recipe import Recipe

_TEXT = 2**26  # bytes, at most, of a history or another text


def prepare(directory: pathlib.Path, recipe: Recipe, resume: bool) -> pathlib.Path:
    """Returns the output directory with the recipe in it."""
    file, text = directory / "recipe.json", json.dumps(dataclasses.asdict(recipe), indent=2)
    threat, begun = recipe.attacker(), directory / "threat.json"
    try:
        if resume and not file.is_file():
            raise InputError(f"{directory} has no recipe.json: there is no run to resume")
        if resume:
            require_plain_folder(directory)
            require_same_recipe(directory, recipe)
            _require_same_threat(begun, threat)
            _require_unfinished(directory)
            return directory
        if directory.exists() and (
            not directory.is_dir()
            or set(directory.iterdir()) - {part_path(file), part_path(begun), begun}
        ):
            raise InputError(f"{directory} is not an empty directory; give a new one, or resume")
        directory.mkdir(parents=True, exist_ok=True)
        begun.unlink(missing_ok=True)  # of a run that was killed before there was a recipe
        if not threat.plain:
            write_text(begun, json.dumps(threat.config()) + "\n")
        write_text(file, text + "\n")  # the last one: without it there is no run
    except OSError as error:
        raise InputError(f"{directory} cannot be used for output: {error}") from error
    return directory


def require_same_recipe(directory: pathlib.Path, recipe: Recipe) -> None:
    """Raises an InputError unless what is in the directory was begun by this recipe."""
    file = directory / "recipe.json"
    try:
        then = parse_json(read_at_most(file, _TEXT))
        if not isinstance(then, dict):
            raise TypeError(f"{file.name} holds no recipe")
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{directory} cannot be used for output: {error}") from error
    # What an older version did not ask for was as it is by default.
    then = {field.name: field.default for field in dataclasses.fields(Recipe)} | then
    now = json.loads(json.dumps(dataclasses.asdict(recipe)))
    other = [key for key in now if now[key] != then[key]]
    if other:
        raise InputError(
            f"{directory} was begun with another recipe; they differ in "
            + ", ".join(f"{key} ({then[key]}, now {now[key]})" for key in other)
        )


def _require_same_threat(file: pathlib.Path, threat: Threat) -> None:
    """Refuses a threat that is another one than when the run was begun, in a file that changed."""
    try:
        then = parse_json(read_at_most(file, _TEXT)) if file.exists() else threat.config()
    except ValueError as error:
        raise InputError(f"{file} is no threat: {error}") from error
    if then != threat.config():
        raise InputError(
            f"{file.parent} was begun with another threat, which {file} has: its file has changed"
        )


def _require_unfinished(directory: pathlib.Path) -> None:
    """Refuses a directory that has a card, and says whether that is of the model beside it."""
    card = directory / "CARD.md"
    if not card.exists():
        return
    try:
        certified = parse_json(read_at_most(directory / "certified.json", _TEXT))
        of_this = certified["fingerprint"] == ModelFiles.read(directory).fingerprint()
    except (OSError, ValueError, LookupError, TypeError):
        of_this = False
    if not of_this:
        raise InputError(
            f"{card} is of another model, or of none: certified.json beside it has not the "
            "fingerprint of the model that is there; remove the card to go on"
        )
    raise InputError(f"{directory} is finished; there is nothing to resume")


def require_columns(history: pathlib.Path, names: list[str]) -> None:
    """Refuses to go on with a history of other certified accuracies."""
    if not history.is_file():
        return
    columns = read_at_most(history, _TEXT).decode(errors="replace").partition("\n")[0].split(",")
    found = [name for name in columns if name.startswith(CERTIFIED)]
    if columns != [""] and sorted(found) != sorted(names):
        raise InputError(
            f"{history} was begun with other radii to certify at "
            f"({', '.join(found) or 'none'}): go on with the certify_every and the radii of before"
        )


def forget_from(history: pathlib.Path, epoch: int) -> None:
    """Drops lines of epochs that were written down but not checkpointed, and half ones."""
    if not history.is_file():
        return
    try:
        header, *lines = read_at_most(history, _TEXT).splitlines(keepends=True) or [b""]
        whole = [line for line in lines if line.endswith(b"\n")]
        kept = [line for line in whole if int(line.split(b",")[0]) < epoch]
    except (OSError, ValueError) as error:
        raise InputError(f"{history} is no history of epochs: {error}") from error
    text = b"".join([header, *kept]) if kept else b""
    write_file(history, lambda part: part.write(text))
