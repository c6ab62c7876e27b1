"""Folders of batches that no worker of the run has left."""

from __future__ import annotations

import os

from sample_rows import SETTINGS, row

from keras_curv.rows.shards import Shards

CASES = {}


def of(folder):
    """Those of a run over six examples."""
    return Shards(str(folder / "rows.csv"), SETTINGS, count=6)


def attempt(folder):
    """Takes what there is, and asks for what nobody has left."""
    shards = of(folder)
    shards.prepare(resumed=True)
    assert 0 in shards.missing(0), "rows of somebody else were taken"
    shards.write([row(0), row(1)])
    assert 0 not in shards.missing(0)
    shards.rows(2)


def _case(name):
    def register(change):
        def build(folder):
            shards = of(folder)
            shards.prepare()
            shards.write([row(2), row(3)])
            change(shards.folder)

        CASES[f"shards: {name}"] = build
        return change

    return register


def _file(name, file, content):
    _case(name)(lambda folder: (folder / file).write_bytes(content))


_TEXT = b"".join(b"%d,1,1,2,0.5,CERTIFIED,7,1,all,crc,inf\n" % i for i in range(2))
_file("rows without a code", "0.csv", _TEXT)
_file("rows with a wrong code", "0.csv", _TEXT + b"0" * 64 + b"\n")
_file("a code alone", "0.csv", b"0" * 64 + b"\n")
_file("bytes that are no text", "0.csv", b"\xff" * 200)
_file("2^26 bytes", "0.csv", b"0," * 2**25)
_file("a reason that steers the terminal", "2.refused", b"\x1b[2J\n")
_file("a reason of 2^26 bytes", "2.refused", b"a" * 2**26)
for file in ("0.csv", "2.refused", "4.csv"):
    _case(f"{file} leads elsewhere")(
        lambda folder, file=file: (folder / file).symlink_to(folder.parent / "outside")
    )
    _case(f"{file} is a pipe")(lambda folder, file=file: os.mkfifo(folder / file))


def _key(folder):
    return folder.with_name(f".{folder.name}.key")


@_case("the key leads elsewhere")
def _linked_key(folder):
    _key(folder).unlink()
    _key(folder).symlink_to(folder.parent / "outside")


@_case("the key is a pipe")
def _pipe_key(folder):
    _key(folder).unlink()
    os.mkfifo(_key(folder))


@_case("the key is another one")
def _other_key(folder):
    _key(folder).write_bytes(b"x" * 32)


@_case("the folder leads elsewhere")
def _linked(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@_case("the folder is a file")
def _plain(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.write_bytes(b"")
