"""Files of examples that claim what is not so, or unpack to far more than they are."""

from __future__ import annotations

import os
import zipfile

from keras_curv import data

CASES = {}


def attempt(folder):
    """Reads the first example."""
    examples = data.load_npz(str(folder / "x.npz"), 1).limited(1)
    next(examples.batches(1))


def header(shape, dtype="<f4", fortran=False, version=1):
    """The beginning of an .npy file."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text


def archive(folder, name="x.npy", content=b"", packed=zipfile.ZIP_DEFLATED, zeros=0):
    """An archive of one array, with so many zeros behind its content."""
    with zipfile.ZipFile(folder / "x.npz", "w", packed, compresslevel=1) as file:
        info = zipfile.ZipInfo(name)
        info.compress_type = packed
        with file.open(info, "w", force_zip64=True) as stream:
            stream.write(content)
            for _ in range(zeros // 2**20):
                stream.write(b"\0" * 2**20)


def _array(name, *given, **options):
    CASES[f"npz: {name}"] = lambda folder: archive(folder, "x.npy", *given, **options)


for dtype in (
    "|O",
    "<m8[s]",
    "<M8[D]",
    "<c8",
    "<c16",
    "|b1",
    "<U9",
    "|S9",
    "|V8",
    "<f3",
    "x" * 9000,
):
    _array(f"numbers of type {dtype[:9]}", header((2, 2), dtype) + b"\0" * 99)
_array("numbers of many fields", header((1, 1), [(f"f{i}", "<f4") for i in range(500)]))
for shape in ("(2**60,)", (2**60, 2**60), (-1, 4), (0, 4), (), (3,), (1,) * 99, "(1e9, 2)", "'ab'"):
    _array(f"a shape {str(shape)[:20]}", header(shape) + b"\0" * 16)
_array("an array that is stored by columns", header((2**15, 2**15), "|u1", True), zeros=2**30)
_array("two GiB of zeros", header((2**21, 2**10), "|u1"), zeros=2**31)
_array("one example of two GiB", header((1, 2**31), "|u1"), zeros=2**31)
_array("a header of 4 GiB", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 99, zeros=2**30)
_array("a header of brackets", b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 65_535)
_array("a header that calls", header("__import__('os').abort()"))
_array("a header of version 3", header((1, 1), version=3)[:20])
_array("no header", b"PK" * 40)
_array("nothing")
_array("packed by bzip2", header((1, 1)) + b"\0" * 4, packed=zipfile.ZIP_BZIP2)
_array("packed by LZMA", header((1, 1)) + b"\0" * 4, packed=zipfile.ZIP_LZMA)
for name in ("../x.npy", "/x.npy", "x.npy\0.txt", "\x1b[2J.npy", "y.npy"):
    CASES[f"npz: an array named {name!r}"] = lambda folder, name=name: archive(
        folder, name, header((1, 1)) + b"\0" * 4
    )


def _case(name):
    def register(build):
        CASES[f"npz: {name}"] = build
        return build

    return register


@_case("a hundred thousand arrays")
def _many(folder):
    with zipfile.ZipFile(folder / "x.npz", "w") as file:
        for i in range(100_000):
            file.writestr(f"{i}.npy", b"")


def _overlapping(folder, count, size):
    """An archive whose list names the same bytes again and again."""
    names = [f"{i:04d}.npy" for i in range(count)]
    archive(folder, names[0], header((1, size), "|u1"), zeros=size)
    raw = (folder / "x.npz").read_bytes()
    entry = raw.index(b"PK\1\2")
    end = raw.index(b"PK\5\6")
    entries = b"".join(raw[entry:end].replace(names[0].encode(), n.encode()) for n in names)
    whole = count.to_bytes(2, "little") * 2 + len(entries).to_bytes(4, "little")
    (folder / "x.npz").write_bytes(
        raw[:entry] + entries + raw[end : end + 8] + whole + raw[end + 16 :]
    )


@_case("the same bytes as 200 arrays")
def _shared(folder):
    _overlapping(folder, 200, 2**20)


@_case("the same GiB as 200 arrays")
def _shared_gib(folder):
    _overlapping(folder, 200, 2**30)


@_case("an array twice")
def _twice(folder):
    content = header((1, 1)) + b"\0" * 4
    with zipfile.ZipFile(folder / "x.npz", "w") as file:
        for name in ("x.npy", "y_npy"):
            file.writestr(name, content)
    path = folder / "x.npz"
    path.write_bytes(path.read_bytes().replace(b"y_npy", b"x.npy"))


@_case("a pipe")
def _pipe(folder):
    os.mkfifo(folder / "x.npz")


@_case("a link to /dev/zero")
def _device(folder):
    (folder / "x.npz").symlink_to("/dev/zero")


@_case("a TiB of holes")
def _holes(folder):
    (folder / "x.npz").touch()
    os.truncate(folder / "x.npz", 2**40)


@_case("a pickle")
def _pickle(folder):
    (folder / "x.npz").write_bytes(b"cposix\nsystem\n(S'touch canary'\ntR.")


@_case("an .npy file")
def _bare(folder):
    (folder / "x.npz").write_bytes(header((1, 1)) + b"\0" * 4)


def _flipped(folder, place):
    archive(folder, "x.npy", header((4, 4)) + bytes(range(64)))
    raw = bytearray((folder / "x.npz").read_bytes())
    raw[place % len(raw)] ^= 0xFF
    (folder / "x.npz").write_bytes(raw)


for place in (0, 8, 14, 18, 26, 40, 90, -4, -10, -14, -20, -60):
    CASES[f"npz: byte {place} changed"] = lambda folder, place=place: _flipped(folder, place)
