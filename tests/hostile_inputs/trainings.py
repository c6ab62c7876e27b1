"""Folders of trainings that somebody else has begun."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import tempfile

import keras
from hostile_models import models
from hostile_models.index import block_of, table_of

from keras_curv.saved_model import checkpoint
from keras_curv.training.run import run_folder
from keras_curv.training.run.checkpoints import Checkpoints
from keras_curv.training.run.recipe import Recipe

CASES = {}
RECIPE = Recipe(width=4, epochs=3, batch_size=512, jit=False, loss="plain")
INDEX, DATA = "checkpoints/ckpt-2.index", "checkpoints/ckpt-2.data-00000-of-00001"


@functools.cache
def network():
    """The model that is trained."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile("adam", "mse")
    return model


def attempt(folder):
    """All that resuming does before it trains, and the next checkpoint."""
    directory = run_folder.prepare(folder / "net", RECIPE, resume=True)
    saving = Checkpoints(network(), directory / "checkpoints")
    run_folder.forget_from(directory / "history.csv", saving.restore())
    for epoch in (3, 4, 5):
        saving.save(epoch)


@functools.cache
def begun():
    """What two epochs leave."""
    with tempfile.TemporaryDirectory() as folder:
        directory = run_folder.prepare(pathlib.Path(folder, "net"), RECIPE, resume=False)
        saving = Checkpoints(network(), directory / "checkpoints")
        for epoch in (1, 2):
            saving.save(epoch)
        (directory / "history.csv").write_text("epoch,loss\n0,1.0\n1,0.5\n")
        files = [file for file in directory.rglob("*") if file.is_file()]
        return {f"net/{file.relative_to(directory)}": file.read_bytes() for file in files}


def _case(name):
    def register(change):
        def build(folder):
            change(models.write(folder, begun()) / "net")

        CASES[f"training: {name}"] = build
        return change

    return register


def _content(name, file, change):
    _case(name)(lambda net: (net / file).write_bytes(change((net / file).read_bytes())))


_content("an index that is cut", INDEX, lambda b: b[:-20])
_content("an index of zeros", INDEX, lambda b: bytes(len(b)))
_content("an index of 2^25 bytes", INDEX, lambda b: b + bytes(2**25))
_content("an index that is empty", INDEX, lambda b: b"")
_content("data that are cut", DATA, lambda b: b[:-4])
_content("data that are changed", DATA, lambda b: b"\xff" + b[1:])
_content("data that are longer", DATA, lambda b: b + b"\0")
_content("a recipe that nests", "recipe.json", lambda b: b"[" * 10**6)
_content("a recipe of 2^27 bytes", "recipe.json", lambda b: b + b" " * 2**27)
_content(
    "a recipe of another model", "recipe.json", lambda b: b.replace(b'"width": 4', b'"width": 5')
)
_content(
    "a recipe with text for a number", "recipe.json", lambda b: b.replace(b"512", b'"\\u001b[2J"')
)
_content("a history of text", "history.csv", lambda b: b"a\nb\n")
_content(
    "a history of a number with 10^6 digits",
    "history.csv",
    lambda b: b"a\n" + b"1" * 10**6 + b",\n",
)
_content("a history of 2^27 bytes", "history.csv", lambda b: b + b"9,9\n" * 2**25)
for number in range(0, 60, 6):
    _content(
        f"byte {number} of the index changed",
        INDEX,
        lambda b, n=number: b[:n] + bytes([b[n] ^ 255]) + b[n + 1 :],
    )


def _entry(name, change):
    """An index whose checks are right, and one of whose entries is changed."""

    @_case(name)
    def build(net):
        from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

        entries = []
        for key, value in checkpoint.index_entries((net / INDEX).read_bytes()):
            if key == b"1":
                entry = BundleEntryProto.FromString(value)
                change(entry)
                value = entry.SerializeToString()
            entries.append((key, value))
        (net / INDEX).write_bytes(table_of(block_of(entries)))


_entry("a tensor of another type", lambda entry: setattr(entry, "dtype", 3))
_entry("a tensor of strings", lambda entry: setattr(entry, "dtype", 7))
_entry("a tensor of 2^58 entries", lambda entry: setattr(entry.shape.dim[0], "size", 2**58))
_entry("a tensor at 2^60", lambda entry: setattr(entry, "offset", 2**60))
_entry("a tensor in another file", lambda entry: setattr(entry, "shard_id", 9))
_entry("a tensor of another shape", lambda entry: entry.shape.dim.add(size=1))
_entry("a tensor without a shape", lambda entry: entry.ClearField("shape"))
_entry("a tensor in pieces", lambda entry: entry.slices.add())


@_case("a state file that names what is elsewhere")
def _state(net):
    outside = net.parent / "outside"
    shutil.copy(outside, outside.with_name("outside.index"))
    lines = [f'{key}: "{outside}"' for key in ["all_model_checkpoint_paths"] * 5]
    text = "\n".join([f'model_checkpoint_path: "{outside}"', *lines])
    (net / "checkpoints" / "checkpoint").write_text(text)


@_case("a checkpoint under another name")
def _renamed(net):
    for file in (INDEX, DATA):
        (net / file).rename(net / file.replace("ckpt-2", "ckpt-9"))


@_case("a checkpoint without data")
def _no_data(net):
    (net / DATA).unlink()


@_case("ten thousand checkpoints")
def _many(net):
    for number in range(3, 10_003):
        (net / "checkpoints" / f"ckpt-{number}.index").touch()


@_case("a checkpoint of an odd name")
def _odd(net):
    (net / "checkpoints" / "ckpt-99999999999999999999.index").touch()
    (net / "checkpoints" / "ckpt-٣.index").touch()


@_case("a part that leads elsewhere")
def _part(net):
    (net / "checkpoints" / ".part-x").symlink_to("/")


@_case("a card of something else")
def _card(net):
    (net / "CARD.md").write_text("a card")


@_case("data of a TiB, all holes")
def _holes(net):
    os.truncate(net / DATA, 2**40)


for file in ("recipe.json", "history.csv", "CARD.md", "checkpoints", INDEX, DATA):

    def _replaced(net, make, file=file):
        path = net / file
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        make(path)

    _case(f"{file} leads elsewhere")(
        lambda net, replaced=_replaced: replaced(
            net, lambda path: path.symlink_to(net.parent / "outside")
        )
    )
    _case(f"{file} is a pipe")(lambda net, replaced=_replaced: replaced(net, os.mkfifo))
