"""A training goes on only from what is its own, and touches nothing beside its folder."""

from __future__ import annotations

import os
import shutil

import keras
import numpy as np
import pytest

from keras_curv.errors import InputError
from keras_curv.training.run import trainer
from keras_curv.training.run.checkpoints import Checkpoints
from keras_curv.training.run.recipe import Recipe

RECIPE = Recipe(width=4, epochs=3, batch_size=512, jit=False, loss="plain")


class Killed(Exception):
    """Stands for the end of the process."""


def compiled(width=3):
    keras.utils.set_random_seed(width)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def weights(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A training that was killed after two epochs, with what was beside it."""
    output, save = tmp_path_factory.mktemp("run") / "net", Checkpoints.save

    def and_die(self, epoch):
        save(self, epoch)
        if epoch == 2:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "save", and_die)
        trainer.train(RECIPE, str(output))
    return output


@pytest.fixture
def begun(half, tmp_path):
    return shutil.copytree(half, tmp_path / "net")


def resume(output):
    return trainer.train(RECIPE, str(output), resume=True, limit=3)


def test_a_checkpoint_gives_back_every_number(tmp_path):
    model, other = compiled(), compiled()
    model.fit(np.ones((8, 2)), np.ones((8, 3)), epochs=2, verbose=0)
    saving = Checkpoints(model, tmp_path / "checkpoints")
    for epoch in (1, 2, 3):
        saving.save(epoch)
    assert Checkpoints(other, tmp_path / "checkpoints").restore() == 3
    for one, two in zip(weights(model), weights(other), strict=True):
        np.testing.assert_array_equal(one, two)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"ckpt-{k}.{end}" for k in (2, 3) for end in ("data-00000-of-00001", "index")]


def test_paths_in_a_state_file_are_not_followed(begun, tmp_path):
    """TensorFlow would remove the checkpoint elsewhere as soon as there are newer ones."""
    there = [tmp_path / "ckpt-1.index", tmp_path / "ckpt-1.data-00000-of-00001"]
    for file in there:
        shutil.copy(begun / "checkpoints" / file.name, file)
    paths = [f'all_model_checkpoint_paths: "{tmp_path}/ckpt-1"\n'] * 4
    state = f'model_checkpoint_path: "{tmp_path}/ckpt-1"\n' + "".join(paths)
    (begun / "checkpoints" / "checkpoint").write_text(state)
    resume(begun)
    lines = (begun / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]
    assert all(file.is_file() for file in there)


@pytest.mark.parametrize(
    "name", ["history.csv", "checkpoints", "checkpoints/ckpt-2.index", "logs/more", "CARD.md"]
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_links_and_pipes_are_refused(begun, name, make):
    path = begun / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(InputError, match=f"{path} is a link, a pipe or a device"):
        resume(begun)


@pytest.mark.parametrize("file", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:40] + b"\xff" * 8 + b[48:]])
def test_a_damaged_checkpoint_is_refused(tmp_path, file, damage):
    saving = Checkpoints(compiled(), tmp_path)
    saving.save(1)
    path = tmp_path / f"ckpt-1.{file}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="ckpt-1 cannot be resumed from"):
        saving.restore()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    Checkpoints(compiled(3), tmp_path).save(1)
    with pytest.raises(InputError, match="ckpt-1 is of another model"):
        Checkpoints(compiled(4), tmp_path).restore()
    for file in tmp_path.glob("ckpt-1.*"):
        file.rename(tmp_path / file.name.replace("ckpt-1", "ckpt-2"))
    with pytest.raises(InputError, match="or of another epoch"):
        Checkpoints(compiled(3), tmp_path).restore()


def test_a_card_of_another_model_is_not_this_ones(begun, tmp_path):
    (begun / "CARD.md").write_text("a card of something else")
    with pytest.raises(InputError, match="CARD.md is of another model"):
        resume(begun)
    (begun / "CARD.md").unlink()
    resume(begun)
    with pytest.raises(InputError, match="is finished"):
        resume(begun)
    data = begun / "variables" / "variables.data-00000-of-00001"
    content = data.read_bytes()
    data.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(InputError, match="CARD.md is of another model"):
        resume(begun)


@pytest.mark.parametrize("text", [b"epoch\nx,1\n", b"epoch\n" + b"9" * 5000 + b",1\n"])
def test_a_history_that_is_none_is_refused(begun, text):
    (begun / "history.csv").write_bytes(text)
    with pytest.raises(InputError, match="is no history"):
        resume(begun)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{"])
def test_a_recipe_that_is_none_is_refused(begun, text):
    (begun / "recipe.json").write_text(text)
    with pytest.raises(InputError, match="cannot be used for output"):
        resume(begun)
