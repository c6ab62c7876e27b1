"""Base paths that a server and this package might take for different versions."""

from __future__ import annotations

import os

from hostile_models import models

from keras_curv.reading import served_model

CASES = {}


def attempt(folder):
    """Reads what a server would serve."""
    served_model.read(folder / "base")


def _case(name):
    def register(build):
        CASES[f"folder: {name}"] = build
        return build

    return register


_NAMES = (
    *("+2", " 2", "2 ", "-2", "02", "2\n", "２", "2.0", "1e3", "0x2", "", "\x1b[2J", "\udcff"),
    *(str(2**63), str(2**63 - 1), "9" * 200, "²"),
)
for name in filter(None, _NAMES):

    def _named(folder, name=name):
        models.write(folder / "base" / "1", models.plain_files())
        models.write(folder / "base" / name, models.plain_files())

    _case(f"a version named {name[:12]!r}")(_named)


@_case("a graph beside versions")
def _beside(folder):
    models.write(folder / "base", models.plain_files())
    models.write(folder / "base" / "1", models.plain_files())


@_case("a version twice")
def _twice(folder):
    models.write(folder / "base" / "1", models.plain_files())
    models.write(folder / "base" / "01", models.plain_files())


@_case("a version that leads to itself")
def _loop(folder):
    (folder / "base").mkdir()
    (folder / "base" / "1").symlink_to("1")


@_case("a base that leads to itself")
def _base_loop(folder):
    (folder / "base").symlink_to("base")


@_case("a base that is a pipe")
def _pipe(folder):
    os.mkfifo(folder / "base")


@_case("a base that is a device")
def _device(folder):
    (folder / "base").symlink_to("/dev/zero")


@_case("fifty thousand versions without a model")
def _many(folder):
    (folder / "base").mkdir()
    for number in range(50_000):
        (folder / "base" / str(number)).touch()


@_case("a newer version as text")
def _text(folder):
    models.write(folder / "base" / "1", models.plain_files())
    models.write(folder / "base" / "2", {"saved_model.pbtxt": b""})


@_case("a version that is a file")
def _file(folder):
    models.write(folder / "base", {"1": b""})


@_case("nothing")
def _nothing(folder):
    (folder / "base").mkdir()
