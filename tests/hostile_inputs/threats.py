"""Files of threats that say too much, or what no threat is."""

from __future__ import annotations

import functools
import json
import os
import zipfile

import numpy as np
from hostile_models import models

from hostile_inputs import archives
from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.threats.threat_file import load_threat

CASES = {}
FILES = ("threat.json", "threat.npz")
X = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)


def attempt(folder):
    """Certifies under each threat that is there; there must be one that is refused, or none."""
    models.export(folder / "model")
    there = [folder / name for name in FILES if os.path.lexists(folder / name)]
    refusals = []
    for path in there:
        try:
            threat = load_threat(str(path))
            certifier = Certifier(str(folder / "model"), method="lipschitz", threat=threat)
            certifier.certify(X)
        except InputError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _case(name, file=FILES[0]):
    def register(build):
        CASES[f"threat: {name}"] = lambda folder: build(folder / file)
        return build

    return register


def _text(name, content):
    made = content if callable(content) else lambda: content
    _case(name)(lambda path: path.write_bytes(made()))


def pairs(count):
    """Groups of two features each."""
    return [[2 * i, 2 * i + 1] for i in range(count)]


LONG = b"9" * 400
NUMBERS = (
    *(LONG, b"-" + LONG, LONG + b".5", b"1e999", b"-1e999", b"1e308", b"5e-324", b"1" * 5000),
    *(b"NaN", b"Infinity", b"true", b'"1"', b"null", b"[]", b"{}", b"[[1, 2], [3]]"),
)
for number in NUMBERS:
    for name in ("scale", "low", "high", "changes", "frozen", "basis"):
        shown = number[:9].decode()
        text = b'{"%s": %s}' % (name.encode(), number)
        _text(f"{name} of {shown} ({len(number)})", text)
        _text(f"{name} of {shown} ({len(number)}), listed", text.replace(number, b"[%s]" % number))
for pair in ((b"1e308", b"-1e308"), (b"-1e308", b"1e308"), (b"5e-324", b"1e-323")):
    _text(f"a box of {pair}", b'{"low": %s, "high": %s}' % pair)
_text("weights from one end to the other", b'{"scale": [1e308, 5e-324, 1e-308, 1]}')
_text("a basis of 1e308", b'{"basis": [[1e308], [1e308], [1e308], [1e308]]}')
_text("a basis of 5e-324", b'{"basis": [[5e-324], [0], [0], [0]]}')
_text("a name twice", b'{"scale": 1, "scale": 2}')
_text("a truth value among numbers", b'{"scale": [true, 2, 3, 4]}')
_text("a truth value among features", b'{"frozen": [true, 2]}')
_text("no UTF-8", b'{"norm": "\xff"}')
_text("UTF-16", '{"scale": 2}'.encode("utf-16"))
_text("half a letter", b'{"norm": "\\ud800"}')
_text("a norm that steers the terminal", b'{"norm": "\\u001b[2J"}')
_text("brackets of depth 2^20", b"[" * 2**20)
_text("objects of depth 10^5", b'{"a":' * 10**5)
_text("brackets of depth 500", b'{"scale": %s}' % (b"[" * 500 + b"]" * 500))
_text("7 MiB of empty lists", lambda: b'{"groups": [%s[]]}' % (b"[]," * (5 * 2**19)))
_text("7 MiB of numbers", lambda: b'{"scale": [%s1]}' % (b"1," * (7 * 2**19)))
_text("2^26 bytes", lambda: b'{"scale": 1' + b" " * 2**26)
_text("a hundred thousand names", lambda: json.dumps({str(i): 1 for i in range(100_000)}).encode())
_text("a name of 2^22 letters", lambda: b'{"%s": 1}' % (b"a" * 2**22))
_text("a million groups", lambda: json.dumps({"groups": pairs(10**6)}).encode())
_text("a million groups by number", lambda: json.dumps({"groups": [*range(10**6)]}).encode())
_text(
    "pairs that all change",
    lambda: json.dumps({"groups": pairs(60_000), "changes": 60_000}).encode(),
)
for group in ([0, 10**400], [0, 2**63], [0, 2**64], [-1, 2], [0, 0], [0.5, 1], [True, False]):
    _text(f"a group of {str(group)[:12]}", json.dumps({"groups": [group]}).encode())


def _array(title, *given, name="scale.npy", **options):
    def build(folder):
        archives.archive(folder, name, *given, **options)
        (folder / "x.npz").rename(folder / "threat.npz")

    CASES[f"threat: {title}"] = build


for dtype in ("|O", "<m8[s]", "<M8[D]", "<c16", "|b1", "<U9", "|S9", "|V8", "<f2", "<f16"):
    _array(f"weights of type {dtype}", archives.header((2, 2), dtype) + b"\x01" * 199)
for shape in ((2**60,), (2**60, 0), (-1, 4), (0,), (1,) * 99):
    _array(f"weights of shape {str(shape)[:20]}", archives.header(shape) + b"\0" * 16)
_array("one GiB of weights", archives.header((2**28,), "<f4"), zeros=2**30)
_array("four GiB of bytes", archives.header((2**32,), "|u1"), zeros=2**32)
_array("a norm of 1 GiB", archives.header((), "<U268435456"), name="norm.npy", zeros=2**30)
_array("a norm of 2^2 letters", archives.header((), "<U4") + b"\xff" * 16, name="norm.npy")
_array("a member that is no array", b"scale", name="scale")
_array("another array", archives.header((1,)) + b"\0" * 4, name="weights.npy")
_array("a name up the tree", archives.header((1,)) + b"\0" * 4, name="../scale.npy")


def _saved(title, **arrays):
    _case(title, FILES[1])(lambda path: np.savez(path, **arrays))


_saved("a scale of complex numbers", scale=np.array([1 + 2j] * 4))
_saved("a low of texts", low=np.array(["0", "0", "0", "0"]))
_saved("wide numbers that overflow", scale=np.array([np.longdouble("1e4000")] * 4))
_saved("a scale of NaN", scale=np.full(4, np.nan))
_saved("groups of numbers without a sign", groups=np.array([[0, 2**64 - 1]], np.uint64))
_saved("a norm of texts", norm=np.array(["l1", "l2"]))


@_case("an array twice", FILES[1])
def _twice(path):
    one = archives.header((1,)) + np.float32(1.0).tobytes()
    with zipfile.ZipFile(path, "w") as file:
        for name in ("scale.npy", "scal_.npy"):
            file.writestr(name, one)
    path.write_bytes(path.read_bytes().replace(b"scal_", b"scale"))


@_case("a hundred thousand arrays", FILES[1])
def _many(path):
    with zipfile.ZipFile(path, "w") as file:
        for i in range(100_000):
            file.writestr(f"{i}.npy", b"")


def _everywhere(name, make):
    for file in FILES:
        _case(f"{name}, as {file}", file)(make)


def special(everywhere):
    """Registers what is no regular file, or has holes, with a function of a name and a maker."""
    everywhere("a pipe", os.mkfifo)
    everywhere("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"))
    everywhere("a link to nothing", lambda path: path.symlink_to("nothing"))
    everywhere("a link to itself", lambda path: path.symlink_to(path.name))
    everywhere("a directory", lambda path: path.mkdir())
    everywhere("of a TiB, all holes", functools.partial(_holes, size=2**40))
    everywhere("empty", lambda path: path.touch())


def _holes(path, size):
    path.touch()
    os.truncate(path, size)


special(_everywhere)
