"""Files that a stranger made: refused in one line, before anything is allocated for them."""

import io
import json
import os
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_curv_check.files import (
    CheckError,
    ProofFolder,
    certified_rows,
    read_arrays,
    read_network,
)


class Runs:
    """An object whose unpickling would leave a trace."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def npy(array, claimed=None):
    """An .npy file whose header may claim another shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {"descr": array.dtype.str, "fortran_order": False, "shape": claimed or array.shape},
    )
    return stream.getvalue() + array.tobytes()


def objects():
    stream = io.BytesIO()
    np.save(stream, np.array([Runs()], object), allow_pickle=True)
    return stream.getvalue()


ZEROS = np.zeros(2**20)


@pytest.mark.parametrize(
    "content, compression, reason",
    [
        ({"x.npy": objects()}, zipfile.ZIP_STORED, "holds object"),
        ({"x.npy": npy(ZEROS)}, zipfile.ZIP_DEFLATED, "more in it than fits"),
        ({"x.npy": npy(np.zeros(2), (2**40,))}, zipfile.ZIP_STORED, "not as long as it says"),
        ({"x.npy": npy(np.zeros(2), (-2,))}, zipfile.ZIP_STORED, "not as long as it says"),
        ({"x.npy": b"PK"}, zipfile.ZIP_STORED, "not an .npz file of numbers"),
    ],
)
def test_arrays(content, compression, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("hostile.npz", "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(CheckError, match=reason):
        read_arrays(tmp_path / "hostile.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25 and time.monotonic() - started < 5.0
    assert not (tmp_path / "unpickled").exists()


def test_a_sparse_file_of_a_tebibyte(tmp_path):
    with open(tmp_path / "large.npz", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(CheckError, match="are the most"):
        read_arrays(tmp_path / "large.npz")


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_file_cut_off(size, run_of_digits, tmp_path):
    content = (run_of_digits / "network.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[:size])
    with pytest.raises(CheckError):
        read_network(tmp_path / "cut.npz")


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("pipe.npz", ".", "none.npz"):
        with pytest.raises(CheckError):
            read_arrays(tmp_path / name)


@pytest.mark.parametrize(
    "text", ["[" * 10**6, '{"format": Infinity}', "[]", "{", '{"format": "keras_curv proofs"}']
)
def test_headers_of_proofs(text, tmp_path):
    (tmp_path / "proofs.json").write_text(text)
    with pytest.raises(CheckError):
        ProofFolder.open(tmp_path)


def changed(run_of_digits, tmp_path, name, change):
    """The proofs with one array changed in its first batch."""
    for path in (run_of_digits / "proofs").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with np.load(tmp_path / "0.npz") as file:
        arrays = dict(file)
    arrays[name] = change(arrays[name])
    np.savez(
        tmp_path / "0.npz", **{key: array for key, array in arrays.items() if array is not None}
    )
    return ProofFolder.open(tmp_path)


@pytest.mark.parametrize(
    "name, change",
    [
        ("label", lambda a: a + 10),
        ("label", lambda a: a[:-1]),
        ("label", lambda a: a.astype(float)),
        ("index", lambda a: a * 0),
        ("radius", lambda a: a * np.nan),
        ("radius", lambda a: -a),
        ("x", lambda a: a[:, :-1]),
        ("served", lambda a: a * np.inf),
        ("point", lambda a: a.astype(np.longdouble)),
        ("point", lambda a: a[:, :5]),
        ("point", lambda a: a[:, 0]),
        ("point_row", lambda a: a - 100),
        ("point_rival", lambda a: a + 100),
        ("method", lambda a: np.arange(a.size).reshape(a.shape)),
        ("method", lambda a: None),
    ],
)
def test_claims_that_do_not_fit(name, change, run_of_digits, checked_network, tmp_path):
    with np.errstate(invalid="ignore"):
        folder = changed(run_of_digits, tmp_path, name, change)
    with pytest.raises(CheckError):
        [*folder.claims(checked_network)]


def test_rows_that_are_none(tmp_path):
    for text in ("", "a,b\n1,2\n", "index,status,prediction,radius\nx,CERTIFIED,1,1\n"):
        (tmp_path / "rows.csv").write_text(text)
        try:
            assert certified_rows(tmp_path / "rows.csv") == {}
        except CheckError as error:
            assert "is not a file of rows" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["maps"][0].update(kernel_error=-1.0),
        lambda header: header["maps"][0].update({"in": 65}),
        lambda header: header["activations"][0][0].update(units=0),
        lambda header: header["activations"][0][0].update(units=10**12),
        lambda header: header["activations"].clear(),
        lambda header: header.pop("maps"),
        lambda header: header.pop("head"),
        lambda header: header.update(version=3),
    ],
)
def test_a_network_that_does_not_fit_itself(change, run_of_digits, tmp_path):
    """Its fingerprint is right: what it says is wrong all the same."""
    import hashlib

    with np.load(run_of_digits / "network.npz") as file:
        arrays = dict(file)
    header = json.loads(arrays.pop("header").tobytes())
    header.pop("fingerprint")
    change(header)

    def text(header):
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()

    digest = hashlib.sha256(text(header))
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    header["fingerprint"] = digest.hexdigest()
    np.savez(tmp_path / "net.npz", header=np.frombuffer(text(header), np.uint8), **arrays)
    with pytest.raises(CheckError, match="header|sizes|empty|version"):
        read_network(tmp_path / "net.npz")
