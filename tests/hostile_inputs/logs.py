"""Logs of requests that nobody sent."""

from __future__ import annotations

import functools
import gzip
import os
import pathlib
import struct
import tempfile
import zlib

import logged
import numpy as np
from hostile_models import models

from keras_curv.saved_model.crc32c import masked_crc32c
from keras_curv.serving.certify_requests import certify_requests

CASES = {}
X = np.ones((2, 2, 3), np.float32)


@functools.cache
def model():
    """The files of a small model."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(logged.save(pathlib.Path(folder) / "1", 1))
        files = [file for file in path.rglob("*") if file.is_file()]
        return {f"1/{file.relative_to(path)}": file.read_bytes() for file in files}


def attempt(folder):
    """Certifies all of them."""
    models.write(folder / "model", model())
    certify_requests(
        str(folder / "model"),
        [str(folder / "log*")],
        method="lipschitz",
        output=str(folder / "rows.csv"),
    )


def framed(record, length=None, check=None):
    """A record, with another length or check than it has."""
    head = struct.pack("<Q", len(record) if length is None else length)
    crc = masked_crc32c(record) if check is None else check
    return head + struct.pack("<I", masked_crc32c(head)) + record + struct.pack("<I", crc)


def _case(name, content):
    """A log of these bytes, or of what makes them."""

    def build(folder):
        made = content() if callable(content) else content
        (folder / "log").write_bytes(made)

    CASES[f"log: {name}"] = build


GOOD = framed(logged.predict(X, served=1))
for name, content in {
    "empty": b"",
    "text": b"GET / HTTP/1.1\r\n",
    "a record of 2^62 bytes": framed(b"", 2**62),
    "a record of 2^31 bytes": framed(b"", 2**31),
    "a wrong check": framed(b"abc", check=1),
    "cut off": GOOD * 2 + GOOD[:-3],
    "garbage behind": GOOD + b"\xff" * 50,
    "a record of no message": GOOD + framed(b"\xff" * 50),
    "no records but empty ones": framed(b"") * 2000,
}.items():
    _case(name, content)
    _case(f"{name}, packed", gzip.compress(content))
    _case(f"{name}, packed and cut", gzip.compress(content)[:-6])


BODY = b'{"instances": [[[1, 0.5, -2e-1], [1, 1, 1]]], "signature_name": "serving_default"}\n'
for name, content in {
    "nothing but {": b"{",
    "an empty object": b"{}",
    "ten thousand empty lines": BODY + b"\n" * 10**4,
    "two bodies on one line": BODY[:-1] + BODY,
    "nested without end": BODY + b'{"inputs": ' + b"[" * 10**6,
    "objects without end": BODY + b'{"a":' * 10**5,
    "an integer of 10^6 digits": BODY + b'{"inputs": [' + b"1" * 10**6 + b"]}",
    "a fraction of 10^6 digits": BODY + b'{"inputs": [0.' + b"1" * 10**6 + b"]}",
    "100,000 names": BODY + b"{" + b",".join(b'"%d":0' % i for i in range(10**5)) + b"}",
    "no UTF-8": BODY + b'{"inputs": "\xff"}',
    "halves of letters": BODY + b'{"signature_name": "\\ud800", "inputs": [1]}',
    "NUL": BODY + b'{"inputs": "\0"}',
    "a formula": BODY + b'{"signature_name": "=1+1", "inputs": {"=1+1": 1}}',
    "escapes of a terminal": BODY + b'{"signature_name": "\\u001b[2J", "inputs": [1]}',
    "a mark of bytes": b"\xef\xbb\xbf" + BODY,
    "a record of a log": BODY + GOOD,
}.items():
    _case(f"JSON: {name}", content)
_case("JSON: a hundred MiB of one line", lambda: gzip.compress(BODY + b"[" * 10**8))
_case("JSON: 2^25 lists", lambda: BODY + b'{"inputs": [' + b"[]," * 2**25)
_case("JSON: a bomb of lines", lambda: gzip.compress(BODY + b"{}\n" * 2**26, 1))


def _zeros(begin, megabytes):
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(begin), *(packer.compress(bytes(2**20)) for _ in range(megabytes))]
    return b"".join([*parts, packer.flush()])


_case("a bomb of 2 GiB in one record", lambda: _zeros(GOOD + framed(b"", 2**31)[:12], 2048))
_case("a bomb of records", lambda: gzip.compress(GOOD + framed(bytes(2**24)) * 24, 1))
_case("a million packed parts", lambda: gzip.compress(GOOD) + gzip.compress(b"") * 10**6)
_case("a name without an end", b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"a" * 2**24)
_case("a comment without an end", b"\x1f\x8b\x08\x10" + b"\0" * 6 + b"a" * 2**24)


def shaped(sizes, dtype=1, content=b"", values=b""):
    """A tensor that says so of itself."""
    dims = b"".join(logged.field(2, logged.field(1, size)) for size in sizes)
    message = logged.field(1, dtype) + logged.field(2, dims)
    return message + (logged.field(4, content) if content else b"") + values


# A few bytes that stand for very many examples.
FEW = framed(logged.predict(shaped((2**18, 3)), served=1))
_case("a shape of 2^18 examples of another model's", FEW)
_case("the same, packed", gzip.compress(FEW))
_case("the same a hundred thousand times, packed", lambda: gzip.compress(FEW * 10**5))
_case("a shape of 40000 examples", framed(logged.predict(shaped((40_000, 2, 3)), served=1)))
_case("examples of no size", framed(logged.predict(shaped((2**18, 0)), served=1)))
_case("a million empty records, packed", lambda: gzip.compress(framed(b"") * 10**6))
_case("ten thousand good records, packed", lambda: gzip.compress(GOOD * 10**4))
_case(
    "2^24 inputs of nothing",
    lambda: framed(logged.field(6, logged.field(1, b"\x12\0" * (2**24 - 50)))),
)


def _request(title, /, **options):
    x = options.pop("x", X)
    _case(title, lambda: GOOD + framed(logged.predict(x, **options)))


_TEXTS = ("=1+1", "\x1b[2J", "[/red]", "$x$", "a" * 10**6, "-1", "@a", "\u202e")
for text in _TEXTS:
    _request(f"a signature named {text[:9]!r}", signature=text)
    _request(f"an input named {text[:9]!r}", key=text)
    _request(f"a model named {text[:9]!r}", name=text)
    _request(f"a label {text[:9]!r}", label=text)
for version in (0, -1, 2**63 - 1, 7):
    _request(f"version {version}", served=version)
for stamp in (-(2**62), 2**62, 10**15):
    _request(f"the time {stamp}", served=1, timestamp=stamp)


def _tensor(name, dtype, sizes, content=b"", values=b""):
    _request(name, x=shaped(sizes, dtype, content, values), served=1)


for sizes in ((2**40, 2, 3), (0, 2, 3), (-1, 2, 3), (2, 2, 2**60), (2,) * 300, (2**20, 2, 3)):
    _tensor(f"a tensor of {str(sizes)[:20]}", 1, sizes)
for dtype in (0, 2, 3, 7, 8, 10, 20, 21, 101, 2**31 - 1):
    _tensor(f"a tensor of type {dtype}", dtype, (2, 2, 3), bytes(48))
_tensor("a tensor of NaN", 1, (1, 2, 3), b"\xff" * 24)
_tensor("a tensor of infinity", 1, (1, 2, 3), b"\0\0\x80\x7f" * 6)
_tensor("a tensor of 3e38", 1, (1, 2, 3), b"\xff\xff\x7f\x7f" * 6)
_tensor("a tensor of too few bytes", 1, (2, 2, 3), bytes(47))
_case("ten thousand inputs", lambda: GOOD + framed(logged.predict(X, more=_many_inputs(10_000))))
_case("a message in a message, deep", lambda: GOOD + framed(_nested(10_000)))


def _many_inputs(count):
    return logged.field(2, logged.field(1, b"k%d")) * count


def _nested(depth):
    content = b""
    for _ in range(depth):
        content = logged.field(1, content)[:60_000]
    return logged.field(6, content)


def _made(name):
    def register(build):
        CASES[f"log: {name}"] = build
        return build

    return register


@_made("a pipe")
def _pipe(folder):
    os.mkfifo(folder / "log")


@_made("a link to /dev/zero")
def _device(folder):
    (folder / "log").symlink_to("/dev/zero")


@_made("a record of a TiB of holes")
def _skipped(folder):
    (folder / "log").write_bytes(GOOD + framed(b"", 2**40)[:12])
    os.truncate(folder / "log", 2**40 + 1000)


@_made("a TiB of holes")
def _holes(folder):
    (folder / "log").touch()
    os.truncate(folder / "log", 2**40)


@_made("a name that steers the terminal")
def _name(folder):
    (folder / "log\x1b[2J").write_bytes(GOOD)


@_made("a name that is a formula")
def _formula(folder):
    (folder / "log=1+1").write_bytes(GOOD)


@_made("a name that is no UTF-8")
def _bytes(folder):
    (folder / "log\udcff").write_bytes(GOOD)


@_made("rows lead elsewhere")
def _linked(folder):
    (folder / "log").write_bytes(GOOD)
    (folder / "rows.csv").symlink_to(folder / "outside")


@_made("what was lost leads elsewhere")
def _linked_lost(folder):
    (folder / "log").write_bytes(GOOD)
    (folder / "lost.csv").symlink_to(folder / "outside")
