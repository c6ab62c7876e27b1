"""Training by a recipe: what it writes, that it resumes, and what it refuses."""

import csv
import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf

from keras_curv import InputError, data
from keras_curv.reading import served_model
from keras_curv.saved_model import limits
from keras_curv.training.run import run_folder
from keras_curv.training.run import trainer as training_run
from keras_curv.training.run.checkpoints import Checkpoints
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.recipe_options import OBJECTIVES

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = Recipe(
    width=16,
    epochs=3,
    batch_size=128,
    radius=0.3,
    held_out=0.2,
    shift=0.5,
    distortion=0.5,
    jit=False,
)


class Killed(Exception):
    """Stands for the end of the process."""


def kill_after(monkeypatch, epochs):
    """Makes training die after so many checkpoints, as a kill between two epochs would."""
    saved = []
    save = Checkpoints.save

    def and_die(self, epoch):
        save(self, epoch)
        saved.append(1)
        if len(saved) == epochs:
            raise Killed

    monkeypatch.setattr(Checkpoints, "save", and_die)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "model"
    summary = training_run.train(
        SMALL, str(output), certify_every=2, command="keras_curv train --it"
    )
    return output, summary


def test_what_is_written(finished):
    output, summary = finished
    assert served_model.read(output).network.sizes == (64, 16, 10)
    assert summary["dataset"] == "digits train, held-out part"
    assert summary["examples"] == round(0.2 * 1437)
    assert json.loads((output / "certified.json").read_text()) == summary
    assert Recipe(**json.loads((output / "recipe.json").read_text())) == SMALL
    weights = tf.saved_model.load(str(output)).weights
    stored = (output / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert stored < 1.2 * sum(4 * np.prod(weight.shape) for weight in weights)  # each weight once
    card = (output / "CARD.md").read_text()
    assert "keras_curv train --it" in card and "held-out part" in card
    with open(output / "history.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["epoch"] for line in lines] == ["0", "1", "2"]
    assert float(lines[-1]["loss"]) < float(lines[0]["loss"])
    certified = [float(line["val_certified_accuracy_0.1"]) for line in lines]
    assert certified[0] < min(certified[1:])  # the first epoch, the second and the last
    assert not (output / "checkpoints").exists()
    assert list((output / "logs" / "certified").iterdir())


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(finished, tmp_path, monkeypatch):
    """The regularizer's state in checkpoints is in test_training_saving.py."""
    whole, parts = finished[0], tmp_path / "parts"
    options = {"certify_every": 2, "limit": 3}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 2)
        training_run.train(SMALL, str(parts), **options)
    assert not (parts / "saved_model.pb").exists()
    training_run.train(SMALL, str(parts), resume=True, **options)
    affines = (served_model.read(directory).network.affines for directory in (whole, parts))
    for one, other in zip(*affines, strict=True):
        np.testing.assert_array_equal(one.kernel, other.kernel)
        np.testing.assert_array_equal(one.bias, other.bias)
    lines = (parts / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]
    assert lines == (whole / "history.csv").read_text().splitlines()


def test_a_run_killed_while_certifying_need_not_train_again(finished, tmp_path, monkeypatch):
    output, summary = finished
    (output / "CARD.md").unlink()
    monkeypatch.setattr(keras.Model, "fit", None)
    again = training_run.train(SMALL, str(output), resume=True)
    assert again | {"seconds": 0} == summary | {"seconds": 0}
    assert (output / "CARD.md").is_file()


def test_a_run_begun_by_an_older_version_resumes(finished, tmp_path):
    """It knew nothing of an option that changes nothing by default."""
    output = tmp_path / "model"
    shutil.copytree(finished[0], output)
    plain = dataclasses.replace(SMALL, distortion=0.0)
    older = {key: value for key, value in vars(plain).items() if key != "distortion"}
    (output / "recipe.json").write_text(json.dumps(older))
    with pytest.raises(InputError, match="is finished"):
        training_run.train(plain, str(output), resume=True)
    with pytest.raises(InputError, match=r"differ in distortion \(0.0, now 0.5\)"):
        training_run.train(SMALL, str(output), resume=True)
    for spoiled in (b"[1]", b"{", b"\xff"):
        (output / "recipe.json").write_bytes(spoiled)
        with pytest.raises(InputError, match="model cannot be used for output: "):
            training_run.train(SMALL, str(output), resume=True)


def test_convolutions(tmp_path):
    options = {"width": 16, "epochs": 1, "loss": "plain", "jit": False}
    chosen = Recipe(filters=(3, 5), kernel_size=3, **options)
    assert (chosen.kernel_size, chosen.strides) == (3, 2)
    training_run.train(chosen, str(tmp_path / "model"), limit=20)
    assert served_model.read(tmp_path / "model").network.sizes == (64, 48, 20, 16, 10)
    assert "3 and 5 filters 3 × 3 / 2, 2 × 16, softplus" in (
        tmp_path / "model" / "CARD.md"
    ).read_text().replace("\n", " ")
    assert Recipe(**json.loads((tmp_path / "model" / "recipe.json").read_text())) == chosen


@pytest.mark.slow
def test_what_is_trained_behind_a_trunk_is_certified_in_two_stages(tmp_path):
    options = {"filters": (3,), "strides": 1, "kernel_size": 2, "epochs": 1, "jit": False}
    chosen = Recipe(trunk=1, layers=1, activation="sparse_plus", **options)
    summary = training_run.train(chosen, str(tmp_path / "model"), limit=20)
    assert summary["method"] == "two_stage" and summary["examples"] == 20
    assert "trunk" in (tmp_path / "model" / "CARD.md").read_text()


def test_a_convolution_and_the_logits_are_two_layers():
    base = Recipe(filters=(3,), layers=1, strides=1, initial_scale=1e-9).build((8, 8, 1), 10)
    assert [type(layer).__name__ for layer in base.layers] == ["Conv2D", "Flatten", "Dense"]
    assert base.layers[0].output.shape == (None, 8, 8, 3)
    largest = [np.abs(base.layers[i].kernel).max() for i in (0, -1)]
    assert 0.0 < largest[0] < 1e-8 < largest[1]


def test_lines_that_were_not_checkpointed_are_dropped(tmp_path):
    history = tmp_path / "history.csv"
    history.write_text("epoch,loss\n0,1.0\n1,0.5\n2,0.2\n")
    run_folder.forget_from(history, 2)
    assert history.read_text().split() == ["epoch,loss", "0,1.0", "1,0.5"]
    run_folder.forget_from(history, 0)
    assert history.read_text() == ""


def test_every_epoch_sees_every_example_once_in_an_order_of_its_own():
    x = np.arange(50, dtype=np.float32).reshape(50, 1, 1, 1)
    y = np.arange(50)
    small = dataclasses.replace(SMALL, batch_size=16, epochs=3, shift=0.0)
    batches = list(training_run.training_batches(x, y, small, 0).as_numpy_iterator())
    assert [len(label) for _, label in batches] == [16, 16, 16, 2] * 3
    orders = [np.concatenate([label for _, label in batches[i : i + 4]]) for i in (0, 4, 8)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    assert all(np.array_equal(image[:, 0, 0, 0], label) for image, label in batches)
    later = list(training_run.training_batches(x, y, small, 2).as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate([label for _, label in later]), orders[2])


def test_the_rate_is_flat_and_then_halved():
    chosen = Recipe(epochs=10, optimizer="adam", learning_rate=1.0, flat=0.5, halvings=5)
    assert [chosen.rate(epoch) for epoch in (0, 5, 6, 9)] == pytest.approx([1, 1, 0.5, 1 / 16])


BAD = {
    "data set": ({"dataset": "imagenet"}, "dataset must be one of digits"),
    "activation": ({"activation": "relu"}, "softplus, sigmoid, tanh, silu.*Received: 'relu'"),
    "loss": ({"loss": "mixup"}, "certified, crt, penalty, plain, .*noise. Received: 'mixup'"),
    "optimizer": ({"optimizer": "sgd"}, "muon, adam"),
    "layers": ({"layers": 1}, "layers must be an integer, at least 2. Received: 1"),
    "layers behind convolutions": (
        {"layers": 0, "filters": (3,)},
        "layers must be an integer, at least 1. Received: 0",
    ),
    "no filters": ({"filters": ()}, "filters must be positive integers, at least one"),
    "filters of nothing": ({"filters": (4, 0)}, r"filters must be positive .* Received: (4, 0\)"),
    "filters that are no numbers": ({"filters": ["4", "x"]}, "filters must be positive integers"),
    "kernel without filters": (
        {"kernel_size": 3},
        "kernel_size is for convolutions: give filters. Received: kernel_size 3",
    ),
    "strides without filters": ({"strides": 1}, "strides is for convolutions: give filters"),
    "kernel size": (
        {"filters": (4,), "kernel_size": 0},
        "kernel_size must be an integer, at least 1",
    ),
    "strides": ({"filters": (4,), "strides": -1}, "strides must be an integer, at least 1"),
    "width": ({"width": 0}, "width must be an integer, at least 1"),
    "width of no layer": (
        {"width": 9, "layers": 1, "filters": (3,)},
        "width is for hidden layers. Received: width 9 with layers 1",
    ),
    "epochs": ({"epochs": 0}, "epochs must be an integer, at least 1"),
    "seed": ({"seed": -1}, "seed must be an integer, at least 0"),
    "learning rate": ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
    "muon rate of Adam": (
        {"muon_rate": 0.1, "optimizer": "adam"},
        "muon_rate is for the optimizer muon. Received: muon_rate 0.1 with optimizer 'adam'",
    ),
    "no such activation": (
        {"activation": "cos"},
        "activation must be one of softplus, .*gelu_tanh, mish",
    ),
    "jit": ({"jit": "no"}, "jit must be True or False. Received: 'no'"),
    "muon rate": ({"muon_rate": float("nan")}, "muon_rate must be a positive number"),
    "shift": ({"shift": 1.5}, "shift must be from 0 to 1. Received: 1.5"),
    "distortion": ({"distortion": -1.0}, "distortion must be from 0 to 10. Received: -1.0"),
    "held out": ({"held_out": 0.95}, "held_out must be from 0 to 0.9"),
    "radius of nothing": (
        {"loss": "penalty", "radius": 1.0},
        "radius is for the loss certified, crt, .* Received: radius 1.0 with loss 'penalty'",
    ),
    "rivals of crt": (
        {"loss": "crt", "rivals": 3},
        "rivals is for the loss certified, and noise with a radius. ",
    ),
    "gamma of PGD": (
        {"loss": "pgd", "gamma": 0.1},
        "gamma is for the loss certified, crt, penalty. ",
    ),
    "trade-off of PGD": ({"loss": "pgd", "trade_off": 1.0}, "trade_off is for the loss trades. "),
    "deviation of nothing": ({"deviation": 1.0}, "deviation is for the loss noise. "),
    "projections of two layers": (
        {"loss": "coap", "activation": "relu", "projections": 7},
        "projections is for the loss coap from two hidden layers. .* with loss 'coap', layers 2, ",
    ),
    "ramp of nothing": ({"loss": "plain", "ramp": 0.9}, "ramp is for the loss certified, .*"),
    "attack of plain noise": (
        {"loss": "noise", "attack_steps": 5},
        "attack_steps is for .*, and noise with a radius. .* with loss 'noise', radius None",
    ),
    "projections": (
        {"projections": 1},
        "projections is for the loss coap from two hidden layers. ",
    ),
    "final kappa": ({"final_kappa": 0.5}, "final_kappa is for the loss crown_ibp. "),
    "final beta": ({"final_beta": 0.5}, "final_beta is for the loss crown_ibp. "),
}


@pytest.mark.parametrize("loss", ["pgd", "trades", "coap", "noise"])
def test_the_seed_is_the_models_too(loss):
    recipe = Recipe(loss=loss, activation="relu", width=4, seed=7)
    assert recipe.model(recipe.build((2, 2, 1), 3), 1).seed == 7


@pytest.mark.parametrize("name", BAD)
def test_bad_recipes_are_refused_by_name(name):
    changes, message = BAD[name]
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        Recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"radius": 0.0}, "radius must be a positive number"),
        ({"gamma": -1.0}, "gamma must be"),
        ({"rivals": 10}, "rivals must be from 1 to 9"),
    ],
)
def test_what_the_model_refuses_leaves_nothing_behind(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        training_run.train(dataclasses.replace(SMALL, **changes), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_what_could_not_be_certified_in_the_end_is_not_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "WORK", 0)
    with pytest.raises(InputError, match="multiplications"):
        training_run.train(SMALL, str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_output_that_cannot_be_used(finished, tmp_path):
    output, _ = finished
    with pytest.raises(InputError, match="not an empty directory; give a new one, or resume"):
        training_run.train(SMALL, str(output))
    with pytest.raises(InputError, match="no run to resume"):
        training_run.train(SMALL, str(tmp_path / "none"), resume=True)
    other = dataclasses.replace(SMALL, width=17, seed=1)
    with pytest.raises(InputError, match=r"differ in width \(16, now 17\), seed \(0, now 1\)"):
        training_run.train(other, str(output), resume=True)
    with pytest.raises(InputError, match="is finished"):
        training_run.train(SMALL, str(output), resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not an empty directory"):
        training_run.train(SMALL, str(tmp_path / "file"))


def test_certifying_while_training_needs_held_out_examples(tmp_path):
    with pytest.raises(InputError, match="needs held_out"):
        training_run.train(dataclasses.replace(SMALL, held_out=0.0), str(tmp_path), certify_every=1)


def test_held_out_examples_are_not_trained_on():
    x, y = data.load_all("digits", "train")
    kept_x, kept_y, held = training_run.split_examples(x, y, SMALL, "digits train")
    held_x, _ = held.arrays()
    together = np.concatenate([kept_x, held_x]).reshape(len(x), -1)
    assert len(kept_x) == len(kept_y) == len(x) - len(held_x)
    np.testing.assert_array_equal(
        np.sort(together @ np.arange(64.0)), np.sort(x.reshape(len(x), -1) @ np.arange(64.0))
    )


def test_the_command(tmp_path, capfd):
    output = tmp_path / "model"
    flags = "--filters 2 --layers 1 --nojit --epochs 1 --loss crt --gamma 0.01 --reported 0.3"
    arguments = *flags.split(), "--output", output
    status, stdout, stderr = scripts.call(scripts.load("train"), capfd, *arguments)
    assert (status, stderr) == (0, "")
    assert "certified accuracy" in stdout and "0.3" in stdout
    assert "digits test" in stdout
    assert f"keras_curv train {flags} --output {output}" in (output / "CARD.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output is required"),
        (["--loss", "crt", "--rivals", "3"], "rivals is for the loss certified"),
        (["--filters", "8,x"], "filters must be positive integers, at least one"),
        (["--kernel_size", "3"], "kernel_size is for convolutions"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, tmp_path, capfd):
    output = ["--output", str(tmp_path / "model")] if arguments else []
    status, _, stderr = scripts.call(scripts.load("train"), capfd, *arguments, *output)
    assert status == 2
    assert message in stderr
    assert stderr.count("\n") == 1 and stderr.startswith("train: ")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_every_objective_trains(loss, activation):
    """From the recipe to a step of `fit`; what has no theory for ReLU, or for others, says so."""
    try:
        jit = loss == "plain"  # the tests of the other models compile theirs
        options = {"width": 8, "epochs": 1, "batch_size": 16, "jit": jit}
        recipe = Recipe(loss=loss, activation=activation, **options)
        model = recipe.model(base := recipe.build((4, 4, 1), 3), 2)
        assert model.jit_compile == jit
        model.run_eagerly = not jit
    except InputError as error:
        assert activation in str(error)
        assert (activation == "relu") == (loss in ("certified", "crt", "penalty"))
        assert (activation == "softplus") == (loss == "coap")
        return
    before = [weight.numpy() for weight in base.trainable_weights]
    x, y = np.random.default_rng(0).random((32, 4, 4, 1)), np.arange(32) % 3
    history = model.fit(x, y, batch_size=16, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    for then, now in zip(before, base.trainable_weights, strict=True):
        assert np.any(then != now)
    assert recipe.training
