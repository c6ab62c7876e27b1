"""A training that fails says why, loses nothing, and goes on with what it was begun with alone."""

import csv
import json

import pytest

from keras_curv import InputError
from keras_curv.cli import train as command
from keras_curv.training.run import trainer
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.recipe_options import maps_of

# Any loss would do, and a plain one is traced the fastest.
TINY = Recipe(width=8, epochs=3, batch_size=512, held_out=0.2, loss="plain", jit=False)


class _KilledError(Exception):
    """Stands for the end of the process."""


def _begin(monkeypatch, recipe, output, **options):
    """Trains until everything but the model is there."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "export_base", lambda *_: (_ for _ in ()).throw(_KilledError))
        with pytest.raises(_KilledError):
            trainer.train(recipe, str(output), **options)


@pytest.mark.parametrize(
    ("loss", "certify_every", "batch_size"),
    [("certified", 0, 2048), ("plain", 1, 256)],
)
def test_a_training_that_diverges_writes_no_model(loss, certify_every, batch_size, tmp_path):
    """Also in the only step of an epoch, whose loss is the one before that step."""
    output, held = tmp_path / "net", 0.2 if certify_every else 0.0
    wild = {"optimizer": "adam", "learning_rate": 1e39, "batch_size": batch_size, "held_out": held}
    recipe = Recipe(width=8, epochs=1, loss=loss, jit=False, **wild)
    for resume in (False, True):
        with pytest.raises(InputError, match=r"diverged in epoch 1 .* begin anew"):
            trainer.train(recipe, str(output), resume=resume, certify_every=certify_every)
    assert not (output / "saved_model.pb").exists() and not (output / "CARD.md").exists()
    assert not [*output.glob("checkpoints/*")]


def test_bad_radii_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="a radius to report must be a positive number"):
        trainer.train(TINY, str(tmp_path / "net"), radii=[0.5, -1.0])
    assert not (tmp_path / "net").exists()


def test_a_threat_that_has_changed_is_another_run(tmp_path, monkeypatch):
    output, file = tmp_path / "net", tmp_path / "threat.json"
    file.write_text('{"scale": 1.5}')
    recipe = Recipe(width=8, epochs=1, batch_size=512, jit=False, threat=str(file))
    _begin(monkeypatch, recipe, output)
    assert json.loads((output / "threat.json").read_text())["scale"] == [1.5]
    file.write_text('{"scale": 7.0}')
    with pytest.raises(InputError, match="begun with another threat"):
        trainer.train(recipe, str(output), resume=True)
    (output / "threat.json").write_text("[")
    with pytest.raises(InputError, match="is no threat"):
        trainer.train(recipe, str(output), resume=True)


def test_a_threat_that_was_left_alone_is_of_no_run(tmp_path, monkeypatch):
    """The run was killed before its recipe was there; the next one has no threat."""
    output = tmp_path / "net"
    output.mkdir()
    (output / "threat.json").write_text('{"scale": [1.5]}')
    recipe = Recipe(width=8, epochs=1, batch_size=512, loss="plain", jit=False)
    _begin(monkeypatch, recipe, output)
    assert not (output / "threat.json").exists()
    trainer.train(recipe, str(output), resume=True, limit=2)


def test_a_history_keeps_its_columns(tmp_path, monkeypatch):
    output = tmp_path / "net"
    _begin(monkeypatch, TINY, output, certify_every=2, radii=[0.1])
    with pytest.raises(InputError, match=r"other radii to certify at \(val_.*_0.1\)"):
        trainer.train(TINY, str(output), resume=True, certify_every=2, radii=[0.1, 0.2])
    with pytest.raises(InputError, match=r"other radii to certify at \(val_.*_0.1\)"):
        trainer.train(TINY, str(output), resume=True)
    trainer.train(TINY, str(output), resume=True, certify_every=2, radii=[0.1], limit=2)
    with open(output / "history.csv", newline="") as file:
        rows = [*csv.reader(file)]
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("loss, activation", [("pgd", "relu"), ("certified", "softplus")])
def test_what_is_certified_in_training_is_by_the_method_of_the_card(loss, activation, tmp_path):
    """crc knows no kinks: of these linear bounds are the proof."""
    recipe = Recipe(
        width=6, epochs=1, batch_size=512, held_out=0.1, loss=loss, activation=activation, jit=False
    )
    summary = trainer.train(recipe, str(tmp_path / "net"), certify_every=1, radii=[0.1], limit=4)
    assert summary["method"] == ("crown" if activation == "relu" else "crc")
    assert "val_certified_accuracy_0.1" in (tmp_path / "net" / "history.csv").read_text()


def test_layers_that_leave_nothing_are_refused_in_one_line():
    recipe = Recipe(filters=(4,), pool=9, layers=1)
    with pytest.raises(InputError, match=r"pooled 9 × 9, logits.* does not fit inputs") as caught:
        recipe.build((8, 8, 1), 10)
    assert "\n" not in str(caught.value)


def test_a_penalty_is_one():
    assert Recipe(loss="penalty").gamma == 0.01 and Recipe(loss="crt").gamma == 0.0
    with pytest.raises(InputError, match="gamma must be positive: without it the loss is plain"):
        Recipe(loss="penalty", gamma=0.0)


def test_projections_are_for_convolutions_too():
    recipe = Recipe(loss="coap", activation="relu", filters=(4, 8), layers=1)
    assert maps_of(recipe) == 3 and recipe.projections == 50
    assert Recipe(loss="coap", activation="relu").projections is None


def test_the_command_of_a_card_trains_from_the_beginning():
    words = ["--output", "DIR", "--resume", "--seed=1", "-resume=true"]
    assert command.without_resume(words) == ["--output", "DIR", "--seed=1"]
