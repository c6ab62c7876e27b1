"""Pipes, devices and links in the place of a model's files."""

from __future__ import annotations

import os
import shutil

from hostile_models.models import DATA, GRAPH, INDEX, cases, export

CASES, case = cases()
HARMLESS, harmless_case = cases()  # nobody looks where these are hostile


def replaced(path, name, make):
    export(path)
    target = path / name
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    make(target)
    return path


def link_case(what, name, make, case=case):
    case(f"file: {what}")(lambda path, canary: replaced(path, name, make))


def _outside(target):
    """A good graph, but in another model."""
    target.symlink_to(export(target.parent.parent / "twin") / target.name)


link_case("graph is a pipe", GRAPH, os.mkfifo)
link_case("graph is /dev/zero", GRAPH, lambda t: t.symlink_to("/dev/zero"))
link_case("graph is elsewhere", GRAPH, _outside)
link_case("graph links to itself", GRAPH, lambda t: t.symlink_to(t))
link_case("index is a pipe", INDEX, os.mkfifo)
link_case("index is /dev/zero", INDEX, lambda t: t.symlink_to("/dev/zero"))
link_case("data are a pipe", DATA, os.mkfifo)
link_case("data are /dev/zero", DATA, lambda t: t.symlink_to("/dev/zero"))
link_case("data are elsewhere", DATA, lambda t: t.symlink_to("/etc/passwd"))
link_case("variables are elsewhere", "variables", lambda t: t.symlink_to("/etc"))
link_case("data of a TiB, all holes", DATA, lambda t: (t.touch(), os.truncate(t, 2**40)))
link_case("fingerprint is a pipe", "fingerprint.pb", os.mkfifo, harmless_case)
link_case(
    "fingerprint is noise", "fingerprint.pb", lambda t: t.write_bytes(b"\xff" * 99), harmless_case
)
link_case("debug info is /dev/zero", "debug/saved_model_debug_info.pb",
          lambda t: t.symlink_to("/dev/zero"), harmless_case)  # fmt: skip
link_case("another graph as text", "saved_model.pbtxt", lambda t: t.write_text("{"), harmless_case)
link_case("another graph in chunks", "saved_model.cpb", lambda t: t.write_text("{"), harmless_case)
link_case("assets are a pipe", "assets", os.mkfifo, harmless_case)
