"""Reads a network and proofs from files that nobody need trust.

Nothing is unpickled, and nothing is allocated before it is known to be in the file: arrays must be
stored without compression, so that they take as many bytes in the file as in memory.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_curv_check.blocks import Blocks

MOST_BYTES = 2**30
MOST_HEADER = 2**24
MOST_ARRAYS = 2**12
MOST_SIDE = 2**22  # rows or columns of a sparse map
_NPY_HEADER, _PIECE = 10_000, 2**22


class CheckError(Exception):
    """A file that cannot be used; the message says what is wrong with it."""


class Served(NamedTuple):
    """What a server in float32 has in the place of an affine map.

    Attributes:
        kernel: how far W is off, entry by entry, `(in, out)`, or as factors of |W|, `(out,)`.
        bias: how far b is off.
        gain: no number on the way is beyond gain (1 + max |a|), a what the map reads.
    """

    kernel: np.ndarray
    bias: np.ndarray
    gain: float


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """An affine map `z = a W + b`, W to within `kernel_error` and b to within `bias_error` (norms).

    Attributes:
        kernel: `(in, out)`, float64; an array, or `Blocks` of a sparse map.
        served: what a server has; None where the file does not say.
    """

    kernel: Any
    bias: np.ndarray
    kernel_error: float
    bias_error: float
    served: Served | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkFile:
    """A network as numbers.

    Attributes:
        maps: L affine maps.
        activations: for each of the L − 1 layers, names and numbers of units of its runs.
        dim: the number of inputs.
        fingerprint: of the numbers, computed here.
        head: what the served output makes of the logits; "" where the file does not say.
    """

    maps: list[Map]
    activations: list[list[tuple[str, int]]]
    dim: int
    fingerprint: str
    head: str = ""


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an uncompressed .npz file.

    Raises:
        CheckError: it is none, is too large, or has an array of objects.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise CheckError(f"{path} is not a file")
        if size > MOST_BYTES:
            raise CheckError(f"{path} has {size} bytes; {MOST_BYTES} are the most")
        with _Bounded(path) as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            if len(infos) > MOST_ARRAYS or sum(info.file_size for info in infos) > size:
                raise CheckError(f"{path} has more in it than fits its {size} bytes")
            names = [info.filename for info in infos]
            if len(set(names)) < len(names):
                raise CheckError(f"{path} has two arrays of the same name")
            return {
                info.filename.removesuffix(".npy"): _array(archive, info, path) for info in infos
            }
    except OSError as error:
        raise CheckError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise CheckError(f"{path} is not an .npz file of numbers: {str(error)[:200]}") from error


class _Bounded(io.FileIO):
    """A file that is read in pieces: no list of arrays is as long as a file may be."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads a piece."""
        if size is not None and size > MOST_HEADER:
            raise CheckError(f"{self.name!s} has too long a list of arrays")
        return super().read(MOST_HEADER if size is None or size < 0 else size) or b""


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: pathlib.Path) -> np.ndarray:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise CheckError(f"{path}: {info.filename} is compressed; np.savez does not compress")
    content = bytearray()
    with archive.open(info) as part:
        while piece := part.read(_PIECE):
            content += piece
    stream = io.BytesIO(content[:_NPY_HEADER])
    if np.lib.format.read_magic(stream) != (1, 0):
        raise CheckError(f"{path}: {info.filename} is not an array of version 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "fiuU" or dtype.hasobject or fortran:
        raise CheckError(f"{path}: {info.filename} holds {dtype}, not numbers in C order")
    if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise CheckError(f"{path}: {info.filename} is not as long as it says")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def read_header(path: pathlib.Path, content: bytes, kind: str, *versions: int) -> dict:
    """Returns a JSON object that says what it is."""
    try:
        header = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise CheckError(f"{path} is none of {kind!r}: it has no header in JSON") from error
    found = isinstance(header, dict) and (header.get("format"), header.get("version"))
    if found not in [(kind, version) for version in versions]:
        raise CheckError(f"{path} has no header of {kind!r} of format version {versions[-1]}")
    return header


def read_network(path: pathlib.Path) -> NetworkFile:
    """Reads a network of `keras_curv read --network`, format version 1 or 2.

    Raises:
        CheckError: it is none, or its fingerprint is not that of its numbers.
    """
    arrays = read_arrays(path)
    content = arrays.pop("header", np.zeros(0, np.uint8)).tobytes()[:MOST_HEADER]
    header = read_header(path, content, "keras_curv network", 1, 2)
    said = header.pop("fingerprint", None)
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    if digest.hexdigest() != said:
        raise CheckError(f"{path}: its fingerprint is not that of its numbers")
    try:
        maps = [_map(arrays, number, one) for number, one in enumerate(header["maps"], 1)]
        layers = [
            [(str(run["name"]), int(run["units"])) for run in layer]
            for layer in header["activations"]
        ]
        head = str(header["head"]) if header["version"] > 1 else ""
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckError(f"{path}: its header lacks or misuses {str(error)[:200]}") from error
    widths = [len(one.bias) for one in maps]
    inputs = [int(one["in"]) for one in header["maps"]]
    units = [sum(count for _, count in layer) for layer in layers]
    if not maps or inputs[1:] != widths[:-1] or units != widths[:-1] or widths[-1] < 2:
        raise CheckError(f"{path}: sizes of its maps and activations do not fit")
    if any(count < 1 for layer in layers for _, count in layer):
        raise CheckError(f"{path}: a run of units is empty")
    return NetworkFile(maps, layers, inputs[0], digest.hexdigest(), head)


def _map(arrays: dict[str, np.ndarray], number: int, described: dict) -> Map:
    errors = float(described["kernel_error"]), float(described["bias_error"])
    shape = int(described["in"]), int(described["out"])
    (bias,) = _numbers(arrays, number, bias=shape[1:])
    if described["sparse"] is False:
        kernel: Any = _numbers(arrays, number, kernel=shape)[0]
    else:
        kernel = _sparse(arrays, number, shape)
    if not all(math.isfinite(error) and error >= 0.0 for error in errors):
        raise ValueError(f"folding errors of map {number}")
    return Map(kernel, bias, *errors, _served(arrays, number, shape))


def _served(arrays: dict[str, np.ndarray], number: int, shape: tuple[int, int]) -> Served | None:
    if "served_gain" not in arrays:
        return None
    kernel, bias = (arrays[f"served_{part}_{number}"] for part in ("kernel", "bias"))
    gains = arrays["served_gain"]
    fits = kernel.shape in (shape, shape[1:]) and bias.shape == shape[1:] and gains.size >= number
    if not fits or {array.dtype for array in (kernel, bias, gains)} != {np.dtype(np.float64)}:
        raise ValueError(f"what is served of map {number}")
    found = Served(kernel, bias, float(gains.ravel()[number - 1]))
    if not all(np.all(part >= 0.0) for part in found):  # NaN is not
        raise ValueError(f"a number of what is served of map {number}")
    return found


def _numbers(
    arrays: dict[str, np.ndarray], number: int, **shapes: tuple[int, ...]
) -> list[np.ndarray]:
    found = [arrays[f"{name}_{number}"] for name in shapes]
    for array, shape in zip(found, shapes.values(), strict=True):
        if array.dtype != np.float64 or array.shape != shape:
            raise ValueError(f"array of map {number}")
        if not np.isfinite(array).all():
            raise ValueError(f"a number of map {number}, which is not finite")
    return found


def _sparse(arrays: dict[str, np.ndarray], number: int, shape: tuple[int, int]) -> Blocks:
    """Returns a matrix in CSR form, whose indices have to ascend within each row."""
    indptr, indices = (arrays[f"{name}_{number}"] for name in ("indptr", "indices"))
    if {indptr.dtype, indices.dtype} != {np.dtype(np.int64)} or indices.ndim != 1:
        raise ValueError(f"indices of map {number}")
    (data,) = _numbers(arrays, number, data=indices.shape)
    fits = indptr.shape == (shape[0] + 1,) and max(shape) <= MOST_SIDE
    if not fits or not np.all((indptr >= 0) & (indptr <= indices.size)):
        raise ValueError(f"indptr of map {number}")
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))  # which refuses negative counts
    inside = len(rows) == indices.size and np.all((indices >= 0) & (indices < shape[1]))
    if not inside or not np.all(np.diff(rows * shape[1] + indices) > 0):
        raise ValueError(f"indices of map {number}, which do not ascend within a row")
    return Blocks.of(shape, rows, indices, data)


class Witness(NamedTuple):
    """G, H, and λ with μ, of each hidden layer, of theorem 30.3."""

    slopes: Sequence[np.ndarray]
    turns: Sequence[np.ndarray]
    multipliers: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """One row's claim and its witness.

    Attributes:
        index: of the example.
        label: the class that cannot change.
        radius: within which it cannot.
        x: the example, float64, `(dim,)`.
        served: what the network receives for it, `(dim,)`.
        methods: that proved each class as a rival, `(classes,)`.
        points: rival → point at whose gradient the radius is proved, of `two_stage` among the
            features; x where there is none.
        witnesses: rival → slopes and multipliers with which linear bounds prove it.
    """

    index: int
    label: int
    radius: float
    x: np.ndarray
    served: np.ndarray
    methods: list[str]
    points: dict[int, np.ndarray]
    witnesses: dict[int, Witness]

    def point(self, rival: int, size: int) -> np.ndarray | None:
        """Returns the point of a rival, if there is one of this many entries."""
        found = self.points.get(rival)
        return found if found is not None and len(found) == size else None


@dataclasses.dataclass(frozen=True)
class ProofFolder:
    """The proofs of a run: a header and files of batches.

    Attributes:
        header: what all rows claim.
        batches: paths, in order.
    """

    header: dict
    batches: list[pathlib.Path]

    @classmethod
    def open(cls, path: pathlib.Path) -> ProofFolder:
        """Reads the header of the proofs in a folder.

        Raises:
            CheckError: it is no such folder.
        """
        place = path / "proofs.json"
        try:
            with open(place, "rb") as file:
                content = file.read(MOST_HEADER)
        except OSError as error:
            raise CheckError(f"{place} cannot be read: {error.strerror or error}") from error
        header = read_header(place, content, "keras_curv proofs", 3)
        batches = [file for file in path.glob("*.npz") if file.stem.isdecimal()]
        return cls(header, sorted(batches, key=lambda file: int(file.stem)))

    def claims(self, network: NetworkFile) -> Iterator[list[Claim]]:
        """Yields the claims of each batch.

        Raises:
            CheckError: a batch is broken or does not fit the network, or an index is there twice.
        """
        seen: set[int] = set()
        for path in self.batches:
            found = _claims(path, network)
            for claim in found:
                if claim.index in seen:
                    raise CheckError(f"{path}: example {claim.index} is there twice")
                seen.add(claim.index)
            yield found


def _claims(path: pathlib.Path, network: NetworkFile) -> list[Claim]:
    arrays = read_arrays(path)
    dim, (*widths, classes) = network.dim, [len(one.bias) for one in network.maps]
    sized = ("index", "point_row", "slope_row")
    count, many, lines = (arrays.get(name, np.zeros(0)).size for name in sized)
    # Points of `two_stage` are among the features.
    wide = next((n for n in widths if "point" in arrays and arrays["point"].shape[1:] == (n,)), dim)
    for names, kind, shape in (
        ("index label", "<i8", (count,)),
        ("radius", "<f8", (count,)),
        ("x served", "<f8", (count, dim)),
        ("method", "<U", (count, classes)),
        ("point_row point_rival", "<i8", (many,)),
        ("point", "<f8", (many, wide)),
        ("slope_row slope_rival", "<i8", (lines,)),
        ("slope turn", "<f8", (lines, sum(widths))),
        ("multiplier", "<f8", (lines, len(widths), 2)),
    ):
        for name in names.split():
            array = arrays.get(name)
            if array is None or array.shape != shape or not array.dtype.str.startswith(kind):
                raise CheckError(f"{path} has no array {name} that fits the others or the network")
    numbers = ("x", "served", "point", "slope", "turn", "multiplier")
    finite = all(np.isfinite(arrays[name]).all() for name in numbers)
    limits = {"label": classes} | dict.fromkeys(("point_row", "slope_row"), count)
    limits |= dict.fromkeys(("point_rival", "slope_rival"), classes)
    inside = all(np.all((arrays[n] >= 0) & (arrays[n] < most)) for n, most in limits.items())
    if not (finite and inside and np.all(arrays["radius"] > 0.0)):
        raise CheckError(f"{path}: a number is not finite or out of range")
    ends = np.cumsum(widths)[:-1]
    layers = (zip(*np.split(arrays[name], ends, axis=1), strict=True) for name in ("slope", "turn"))
    found = [Witness(*parts) for parts in zip(*layers, arrays["multiplier"], strict=True)]
    columns = [arrays[name].tolist() for name in ("index", "label", "radius")]
    columns += [arrays["x"], arrays["served"], arrays["method"].tolist()]
    for name, values in (("point", arrays["point"]), ("slope", found)):
        known: list[dict[int, Any]] = [{} for _ in range(count)]
        pairs = arrays[f"{name}_row"].tolist(), arrays[f"{name}_rival"].tolist()
        for row, rival, value in zip(*pairs, values, strict=True):
            known[row][rival] = value
        columns.append(known)
    return [Claim(*parts) for parts in zip(*columns, strict=True)]


def certified_rows(path: pathlib.Path) -> dict[int, tuple[int, float]]:
    """Returns index → prediction and radius of the certified rows of a run's CSV file.

    Raises:
        CheckError: it is no such file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CheckError(f"{path} has more than {MOST_BYTES} bytes")
        with open(path, newline="") as file:
            return {
                int(row["index"]): (int(row["prediction"]), float(row["radius"]))
                for row in csv.DictReader(file)
                if row["status"] == "CERTIFIED"
            }
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise CheckError(f"{path} is not a file of rows: {str(error)[:200]}") from error
