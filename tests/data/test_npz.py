"""Examples from .npz files: a batch at a time, and no more of a hostile one than its headers."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_curv import data
from keras_curv.data import npz
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError

X = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
Y = np.arange(10, dtype=np.int32)


def archive(path, *, packed=zipfile.ZIP_DEFLATED, **contents):
    """A zip of `{name}.npy`, each of these bytes."""
    with zipfile.ZipFile(path, "w", packed) as file:
        for name, content in contents.items():
            file.writestr(f"{name}.npy", content)
    return str(path)


def header(shape, dtype="<f4", more=b""):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + more


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1", "<i8", "<f2"])
@pytest.mark.parametrize("how", ["C", "F", "a batch at a time"])
def test_what_is_read_is_what_was_saved(tmp_path, monkeypatch, save, dtype, how):
    if how not in "CF":
        monkeypatch.setattr(npz, "IN_MEMORY", 0)
    x = np.asarray(X.astype(dtype), order=how if how in "CF" else "C")
    save(tmp_path / "a.npz", x=x, y=Y)
    read, held = data.load_npz(str(tmp_path / "a.npz")), Examples.from_arrays("a", x, Y)
    assert read.fingerprint == held.fingerprint and read.shape == (3, 2)
    for one, two in zip(read.arrays(), held.arrays(), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    batches = list(read.batches(4, 3))
    assert [len(part) for part, _ in batches] == [4, 3]
    np.testing.assert_array_equal(batches[1][0], x[7:])
    np.testing.assert_array_equal(read.at([8, 2]), x[[8, 2]])
    np.testing.assert_array_equal(read.origin().arrays()[1], Y)


HEADERS = {
    "object": header((2, 2), "|O"),
    "timedelta64": header((2, 2), "<m8[s]"),
    "datetime64": header((2, 2), "<M8[s]"),
    "complex64": header((2, 2), "<c8"),
    "bool": header((2, 2), "|b1"),
    "<U3": header((2, 2), "<U3"),
    "do not fit its shape": header((2**40, 2**20)),
    "which do not fit": header((4, 4), more=b"\0" * 63),
    "has the shape": header((-1, 4), more=b"\0" * 16),
    "cannot be read": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 9000,
    "of version": b"\x93NUMPY\x03\x00" + b"\0" * 20,
    "magic": b"no array",
}


@pytest.mark.parametrize("why", HEADERS)
def test_headers_are_refused_by_what_is_wrong(tmp_path, why):
    path = archive(tmp_path / "a.npz", x=HEADERS[why])
    with pytest.raises(InputError, match=f"a.npz cannot be read as an .npz file: .*{why}|{why}"):
        data.load_npz(path)


def test_labels_may_be_a_column(tmp_path):
    path, y = str(tmp_path / "x.npz"), np.array([[2], [0], [1]], np.int8)
    np.savez(path, x=np.zeros((3, 2)), y=y)
    assert [labels.tolist() for _, labels in npz.load_npz(path).batches(2)] == [[2, 0], [1]]


def test_whole_numbers_of_time_are_no_numbers():
    for kind in ("m8[s]", "M8[s]"):
        with pytest.raises(InputError, match="must hold numbers"):
            Examples.from_arrays("mine", np.zeros((2, 2), kind))
        with pytest.raises(InputError, match="y must be integers"):
            Examples.from_arrays("mine", np.zeros((2, 2)), np.zeros(2, kind))


def zeros(path, count):
    """An array of so many zeros, packed as they come."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        info = zipfile.ZipInfo("x.npy")
        info.compress_type = zipfile.ZIP_DEFLATED
        with file.open(info, "w", force_zip64=True) as stream:
            stream.write(header((count // 64, 64), "|u1"))
            for _ in range(count // 2**22):
                stream.write(b"\0" * 2**22)
    return str(path)


def test_an_array_that_grows_a_thousandfold_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "WHOLE", 2**25)
    monkeypatch.setattr(npz, "IN_MEMORY", 2**25)
    path = zeros(tmp_path / "bomb.npz", 2**26)
    tracemalloc.start()
    with pytest.raises(InputError, match="would grow from .* bytes to 67108864"):
        data.load_npz(path)
    few = data.load_npz(path, 3)
    assert few.count == 3 and next(few.batches(2, 1))[0].shape == (2, 64)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_of_a_large_file_only_what_is_asked_for_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "WHOLE", 100)
    monkeypatch.setattr(npz, "IN_MEMORY", 100)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    path = str(tmp_path / "a.npz")
    few = data.load_npz(path, 2)
    assert few.count == 2 and few.fingerprint == Examples.from_arrays("a", X[:2], Y[:2]).fingerprint
    assert data.load_npz(path).fingerprint == Examples.from_arrays("a", X, Y).fingerprint
    with pytest.raises(InputError, match="at least 1"):
        data.load_npz(path, 0).limited(0)


def test_a_large_array_must_be_stored_by_examples(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "IN_MEMORY", 0)
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(X))
    with pytest.raises(InputError, match="x is stored by columns; write np.ascontiguousarray"):
        data.load_npz(str(tmp_path / "a.npz"))


def test_a_file_that_changes_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "IN_MEMORY", 0)
    path = tmp_path / "a.npz"
    np.savez(path, x=X)
    examples = data.load_npz(str(path))
    np.savez(path, x=X[:5] + 1)
    with pytest.raises(InputError, match="changed since"):
        next(examples.batches(2))


def test_a_long_list_of_arrays_is_not_read(tmp_path):
    path = tmp_path / "a.npz"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("x.npy", header((1, 1), more=b"\0" * 4))
    raw = content.getvalue()
    end = raw.rindex(b"PK\5\6")
    size = 2**25
    claimed = raw[: end + 12] + size.to_bytes(4, "little") + raw[end + 16 :]
    path.write_bytes(b"\0" * size + claimed)
    with pytest.raises(InputError, match="its list of arrays has 33554432 bytes"):
        data.load_npz(str(path))


@pytest.mark.parametrize("packed", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(tmp_path, packed):
    content = header((1, 1), more=b"\0" * 4)
    path = archive(tmp_path / "a.npz", packed=packed, x=content)
    with pytest.raises(InputError, match="not packed as"):
        data.load_npz(path)


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    """Readers differ in which of the two they take."""
    np.savez(tmp_path / "a.npz", x=X, z=Y)
    raw = (tmp_path / "a.npz").read_bytes().replace(b"z.npy", b"x.npy")
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(InputError, match="'x' is in it twice"):
        data.load_npz(str(tmp_path / "a.npz"))


def test_a_cut_array_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[raw.index(b"\x93NUMPY") + 140] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(InputError, match="cannot be read as an .npz file: .*CRC"):
        data.load_npz(str(tmp_path / "a.npz"))
