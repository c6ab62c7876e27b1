"""A network as numbers in a file that anybody can read; the format is in `docs/network_file.md`."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import BinaryIO

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.files import write_file
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.numerics.rounding import up

FORMAT, VERSION = "keras_curv network", 2
_SAME = 1.0 - 1e-9  # of a largest factor: an error that is smaller is not given by it


def network_arrays(network: Network, head: str = "logits") -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the header of a network's file, without fingerprint, and its arrays by name.

    Args:
        network: without pinned inputs or limits.
        head: the function that the served output applies to the logits.

    Raises:
        InputError: inputs are pinned or limited, which the format does not hold.
    """
    if network.restricted or network.direct is not None:
        raise InputError("a network with pinned inputs or limits has no file of numbers")
    maps: list[dict] = []
    arrays: dict[str, np.ndarray] = {}
    for number, affine in enumerate(network.affines, 1):
        maps.append(
            {
                "in": affine.fan_in,
                "out": affine.fan_out,
                "sparse": affine.is_sparse,
                "kernel_error": float(affine.kernel_error),
                "bias_error": float(affine.bias_error),
            }
        )
        arrays[f"bias_{number}"] = affine.bias
        arrays[f"served_kernel_{number}"] = _served_kernel(affine)
        arrays[f"served_bias_{number}"] = np.asarray(affine.served_bias_error, np.float64)
        if isinstance(affine, SparseAffine):
            arrays[f"indptr_{number}"] = affine.kernel.indptr.astype(np.int64)
            arrays[f"indices_{number}"] = affine.kernel.indices.astype(np.int64)
            arrays[f"data_{number}"] = affine.kernel.data
        else:
            arrays[f"kernel_{number}"] = np.ascontiguousarray(affine.kernel)
    activations = [
        [{"name": sigma.name, "units": _count(units, width)} for sigma, units in layer.groups]
        for layer, width in zip(network.activations, network.sizes[1:-1], strict=True)
    ]
    arrays["served_gain"] = np.array([each.served_gain for each in network.affines], np.float64)
    header = {"format": FORMAT, "version": VERSION, "head": head, "maps": maps}
    return header | {"activations": activations}, arrays


def _served_kernel(affine: Affine) -> np.ndarray:
    """Returns ΔW of what is served, by columns `ΔW/|W|`, `(out,)`, or entry by entry, `(in, out)`.

    Columns say as much where this is about the same for all entries of each, as in a map that is
    served as it is stored. Of a sparse map they are the largest.
    """
    sizes, away = affine.absolute, affine.served_kernel_error
    with np.errstate(divide="ignore", invalid="ignore"):
        if affine.is_sparse:
            return _largest_of_columns(sizes, scipy.sparse.csr_array(away))
        factors = up(np.where(away > 0.0, away / sizes, 0.0))
    columns = factors.max(axis=0)
    same = (factors >= _SAME * columns) | (sizes == 0.0)
    return columns if np.isfinite(columns).all() and same.all() else away


def _largest_of_columns(sizes: scipy.sparse.csr_array, away: scipy.sparse.csr_array) -> np.ndarray:
    """Returns the largest `ΔW/|W|` of each column of sparse matrices; it may be infinite."""
    inverse = scipy.sparse.csr_array(
        (1.0 / sizes.data, sizes.indices, sizes.indptr), shape=sizes.shape
    )
    factors = away.multiply(inverse).tocsr()
    if np.count_nonzero(factors.data) < np.count_nonzero(away.data):  # an error where W is 0
        return np.full(sizes.shape[1], np.inf)
    return up(np.ravel(factors.max(axis=0).toarray()))


def fingerprint(network: Network, head: str = "logits") -> str:
    """Returns the SHA-256 of a network's numbers, in hexadecimal, as its file has it.

    Args:
        network, head: see `network_arrays`.

    Raises:
        InputError: see `network_arrays`.

    Example:
        >>> one, other = (Network.from_weights([k * np.eye(2)], [[0, 0]], []) for k in (1.0, 2.0))
        >>> len(fingerprint(one)), fingerprint(one) == fingerprint(other)
        (64, False)
    """
    return _digest(*network_arrays(network, head))


def save_network(network: Network, path: str | pathlib.Path, head: str = "logits") -> str:
    """Writes a network as numbers to an .npz file, and returns its fingerprint.

    Args:
        network: without pinned inputs or limits.
        path: of the file, which is replaced.
        head: the function that the served output applies to the logits, as `read` finds it.

    Raises:
        InputError: see `network_arrays`; or the file cannot be written.

    Example:
        >>> import tempfile
        >>> network = Network.from_weights([np.eye(2)], [[0, 0]], [])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_network(network, f"{folder}/net.npz") == fingerprint(network)
        True
    """
    header, arrays = network_arrays(network, head)
    digest = _digest(header, arrays)
    arrays["header"] = as_bytes(header | {"fingerprint": digest})

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # of arrays alone

    write_file(path, write)
    return digest


def as_bytes(header: dict) -> np.ndarray:
    """Returns a header as JSON in an array of bytes, its keys in order."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)


def _digest(header: dict, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(as_bytes(header).tobytes())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _count(units: slice, width: int) -> int:
    start, stop, _ = units.indices(width)
    return stop - start
