"""Weights of Keras models that lie elsewhere, are not the layers', or more than a file has."""

from __future__ import annotations

import functools
import io

import h5py
import numpy as np

from hostile_inputs import keras_files
from hostile_inputs.keras_files import LEGACY, WEIGHTS, archive, saved

CASES = {}
attempt = keras_files.attempt


def weighed(folder, change, legacy=False):
    """Writes the file with `change(h5py.File)` made of its weights."""
    file = io.BytesIO(saved()[1] if legacy else saved()[0][WEIGHTS])
    with h5py.File(file, "a") as weights:
        change(weights)
    if legacy:
        (folder / LEGACY).write_bytes(file.getvalue())
    else:
        archive(folder, {WEIGHTS: file.getvalue()})


def _weights(name, change, legacy=False):
    CASES[f"keras weights: {name}"] = lambda folder: weighed(folder, change, legacy)


KERNEL = "layers/dense/vars/0"
ONE = np.ones(1, "f4")


def _replaced(name, **options):
    """A change of weights: a kernel made again, otherwise."""

    def change(weights):
        del weights[KERNEL]
        weights.create_dataset(KERNEL, **options)

    _weights(name, change)


def _set(path, value):
    def change(weights):
        weights[path][...] = value

    return change


def _external(weights):
    del weights[KERNEL]
    weights[KERNEL] = h5py.ExternalLink("/etc/passwd", "/x")


def _soft(weights):
    del weights[KERNEL]
    weights[KERNEL] = h5py.SoftLink("/layers/dense/vars/1")


def _circle(weights):
    weights["layers/again"] = weights["layers"]


def _hard(weights):
    del weights["layers/dense_1/vars/1"]
    weights["layers/dense_1/vars/1"] = weights["layers/sequential/layers/dense/vars/1"]


def _virtual(weights):
    del weights[KERNEL]
    layout = h5py.VirtualLayout((4, 5), "f4")
    layout[...] = h5py.VirtualSource("/etc/passwd", "x", (4, 5))
    weights.create_virtual_dataset(KERNEL, layout)


def _groups(weights, depth=200):
    weights["layers/" + "/".join("g" for _ in range(depth))] = np.zeros(1, "f4")


def _listed(weights):
    for number in range(20_000):
        weights.create_group(f"layers/more{number}")


_weights("a link to another file", _external)
_weights("a soft link", _soft)
_weights("a group in itself", _circle)
_weights("two weights that are one", _hard)
_weights("a virtual weight", _virtual)
_weights("weights at depth 200", _groups)
_weights("twenty thousand groups", _listed)
_weights("a weight missing", lambda weights: weights.pop("layers/dense/vars/1"))
_weights("a weight too many", lambda weights: weights.update({"layers/dense/vars/2": ONE}))
_weights("a layer too many", lambda weights: weights.update({"layers/dense_9/vars/0": ONE}))
_weights("a layer missing", lambda weights: weights.pop("layers/dense"))
_weights("NaN", _set(KERNEL, np.nan))
_weights("infinite weights", _set(KERNEL, np.inf))
_weights("weights as large as float32 holds", _set(KERNEL, 3.4e38))
_weights("a variance below 0", _set("layers/batch_normalization/vars/3", -1.0))
_replaced("weights in another file", shape=(4, 5), dtype="f4", external=[("/etc/passwd", 0, 80)])
_replaced("weights of another shape", data=np.zeros((5, 4), "f4"))
_replaced("weights of one axis more", data=np.zeros((4, 5, 1), "f4"))
_replaced("weights in chunks", data=np.zeros((4, 5), "f4"), chunks=(2, 5))
_replaced("weights packed", data=np.zeros((4, 5), "f4"), compression="gzip")
_replaced("2^40 weights that are zero", shape=(2**20, 2**20), dtype="f4")
_replaced("2^40 weights in chunks", shape=(2**20, 2**20), dtype="f4", chunks=(2**10, 2**10))
_replaced(
    "a GiB of zeros, packed", shape=(2**14, 2**14), dtype="f4", compression="gzip", fillvalue=1
)
for dtype in ("f2", "f8", "i4", "u1", "c8", "S4", "bool", ">f4"):
    _replaced(f"weights of type {dtype}", data=np.zeros((4, 5), dtype))
for dtype in (h5py.string_dtype(), h5py.ref_dtype):
    _replaced(f"weights of type {dtype.metadata}", shape=(4, 5), dtype=dtype)
_replaced("weights of float64 that float32 does not hold", data=np.full((4, 5), 1e300))
_replaced("no weights", data=h5py.Empty("f4"))


def _attribute(owner, name, value):
    def change(weights):
        weights[owner].attrs[name] = value

    return change


_weights("no config", lambda weights: weights.attrs.pop("model_config"), legacy=True)
_weights("a config of numbers", _attribute("/", "model_config", 3), legacy=True)
_weights("layers that are not listed", _attribute("model_weights", "layer_names", ["a"]), True)
_weights("layers listed as numbers", _attribute("model_weights", "layer_names", [1.0]), True)
_weights("a layer listed twice", _attribute("model_weights", "layer_names", list("xaacc")), True)
_weights(
    "weights in another order",
    _attribute("model_weights/a", "weight_names", ["a/bias", "a/kernel"]),
    True,
)
_weights("weights up the tree", _attribute("model_weights/a", "weight_names", ["../a", "/b"]), True)
_weights(
    "NaN in an h5 file", lambda weights: _set("model_weights/a/a/kernel", np.nan)(weights), True
)
_weights("an h5 file of weights alone", lambda weights: weights.attrs.clear(), True)


def _flipped(folder, place, legacy):
    """One byte changed."""
    raw = bytearray(saved()[1] if legacy else saved()[0][WEIGHTS])
    raw[place % len(raw)] ^= 0xFF
    if legacy:
        (folder / LEGACY).write_bytes(raw)
    else:
        archive(folder, {WEIGHTS: bytes(raw)})


for place in (*range(8, 96, 8), 100, 136, 200, 800, 1500, 2500):
    for legacy in (False, True):
        name = f"keras weights: byte {place} changed, {LEGACY if legacy else WEIGHTS}"
        CASES[name] = functools.partial(_flipped, place=place, legacy=legacy)
