"""Receptive fields: passes back through the part of a network that a unit sees.

A unit of a convolution depends on a few units of the layer before, these on a few more, and so on
to a field of the input. This part is a small dense network, whose passes back (`crown.py`) are
cheap where those of the whole network would take too long. Units that see the same inputs share a
field, and fields that differ by a translation have the same matrices: they are passed back
together, each as its own example.

The charge does not change. An omitted entry of a matrix is 0, and adds no rounding; the charge of
each step uses norms of whole layers, which bound those of their parts.

Two kinds of units are left to the box: units with a single weight behind a hidden layer, for which
the box is exact, and units that see no input, as in a border of zeros, which cannot move.

Where σ is linear on a unit's interval, its lines are σ itself, and a closer interval improves only
the boxes of later layers. So such units are not bounded again. But where later layers are bounded
forward, only those are left out on which σ is constant, as relu often is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from keras_curv.certificates.linear.bounds.passes import BoundedLayer, Inputs
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import as_array
from keras_curv.numerics.rows import dot, times

_FEW = 4  # a matrix stays sparse if at most one of this many entries is stored
# Numbers in one array, of which several fit into the cache of a core; four times as many where
# fewer units would share the reading of a matrix.
AT_ONCE, _UNITS = 2**16, 32


class Field(NamedTuple):
    """Places that see the network through the same matrices."""

    units: np.ndarray  # units of the bounded layer, `(places, m)`
    # the entries that they see of the input and of each layer before, `(places, s)` each
    seen: list[np.ndarray]
    kernels: list[Any]  # the matrices from each of these to the next, the last one to the units

    @property
    def work(self) -> float:
        """Returns the multiplications of the passes back for both ends of all units."""
        entries = sum(_entries(kernel) for kernel in self.kernels[:-1])
        return 2.0 * self.units.size * entries

    @property
    def numbers(self) -> int:
        """Returns how many numbers the passes back for both ends of all units go through."""
        return 2 * self.units.size * sum(part.shape[1] for part in self.seen[1:])

    def bounds(
        self,
        network: Network,
        layers: list[BoundedLayer],
        inputs: Inputs,
        error: np.ndarray,
        wanted: np.ndarray,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields examples, `(k, 1)`, units of the layer and their ends, `(k, some)` each.

        Args:
            network: the network of the layers.
            layers: all layers before.
            inputs: the balls, n of them.
            error: bound on the folding error of each unit, `(n, 1)`.
            wanted: the mask of units to bound, `(n, N)`; some others are bounded, too.
        """
        for of, at, units, rows in self.shares(wanted):
            both = np.concatenate([rows, -rows], axis=1)
            known = network, layers, inputs, error[of]
            yield of[:, None], units, *self._ends(*known, of, at, both, units)

    def shares(
        self, wanted: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields examples and places, `(k,)`, units, `(k, m)`, and their columns, `(k, m, s)`.

        Args:
            wanted: the mask of units to bound, `(n, N)`; some others come, too.
        """
        matrix, widest = as_array(self.kernels[-1]).T, max(part.shape[1] for part in self.seen)
        most = max(AT_ONCE // (2 * widest), min(_UNITS, 4 * AT_ONCE // (2 * widest)))
        of, at, columns, count = _shares(wanted[:, self.units], most)
        while len(of):
            # All get as many units as the first one, which has most; the next have hardly fewer.
            some = slice(max(1, AT_ONCE // (2 * int(count[0]) * widest)))
            units = columns[some, : count[0]]
            yield of[some], at[some], self.units[at[some, None], units], matrix[units]
            of, at, columns, count = (part[some.stop :] for part in (of, at, columns, count))

    def _ends(
        self,
        network: Network,
        layers: list[BoundedLayer],
        inputs: Inputs,
        error: np.ndarray,
        of: np.ndarray,
        at: np.ndarray,
        rows: np.ndarray,
        units: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns both ends of these units of examples at places, from Λ of both,
        `(k, 2 some, s)`."""
        shift = network.affines[len(layers)].bias[units]
        constants = np.concatenate([shift, -shift], axis=1)
        parts = list(zip(layers, self.seen[1:], self.kernels, network.affines, strict=False))
        for layer, places, kernel, affine in reversed(parts):
            seen = places[at]
            rows, constants, error = layer.seen(of, seen).step(rows, constants, error, affine)
            rows, constants = times(rows, kernel.T), constants + dot(rows, affine.bias[seen])
        least, _ = inputs.seen(of, self.seen[0][at]).minimum(rows, constants, error)
        low, high = np.split(least, 2, axis=1)
        return low, -high


def _shares(wanted: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
    """Returns examples, places, columns of wanted units and their number, most first.

    Args:
        wanted: `(n, places, m)`.
        most: the most columns of a share; more columns become several shares.
    """
    most = max(1, min(most, wanted.shape[2]))
    first = np.argsort(~wanted, axis=2, kind="stable")
    columns = np.pad(first, ((0, 0), (0, 0), (0, -first.shape[2] % most)), mode="edge")
    columns = columns.reshape(*first.shape[:2], -1, most)
    counts = wanted.sum(axis=2)[..., None] - most * np.arange(columns.shape[2])
    of, at, part = np.nonzero(counts > 0)
    count = np.minimum(counts[of, at, part], most)
    order = np.argsort(-count, kind="stable")
    return tuple(share[order] for share in (of, at, columns[of, at, part], count))


def fields_of(network: Network, work: float) -> list[list[Field]]:
    """Returns the fields of each hidden layer from the first, up to a total of `work`."""
    found: list[list[Field]] = []
    columns: list[scipy.sparse.csc_array] = []
    reads = None
    for affine in network.affines[:-1]:
        columns.append(scipy.sparse.csc_array(affine.kernel))
        columns[-1].sum_duplicates()
        through = _places(columns[-1])
        reads = through if reads is None else _places(reads @ through)
        found.append(_fields(columns, reads))
        work -= sum(field.work for field in found[-1])
        if work < 0.0:
            return found[:-1]
    return found


def _fields(columns: list[scipy.sparse.csc_array], reads: scipy.sparse.csc_array) -> list[Field]:
    """Returns the fields of the units of the last map, except units that are left to a box.

    Args:
        columns: the maps from the input on.
        reads: the inputs that each of these units sees, `(dim, units)`.
    """
    together: dict[bytes, list[int]] = {}
    least = 1 if len(columns) == 1 else 2
    weights, sees = np.diff(columns[-1].indptr), np.diff(reads.indptr) > 0
    for unit in np.flatnonzero((weights >= least) & sees).tolist():
        inputs = reads.indices[reads.indptr[unit] : reads.indptr[unit + 1]]
        together.setdefault(inputs.tobytes(), []).append(unit)
    alike: dict[bytes, tuple[list[Any], list[list[np.ndarray]]]] = {}
    for units in together.values():
        places: list[np.ndarray] = [np.array(units)]
        kernels: list[Any] = []
        for matrix in reversed(columns):
            before, kernel = _part(matrix, places[0])
            places.insert(0, before)
            kernels.insert(0, kernel)
        content = b"".join(_bytes(kernel) for kernel in kernels)
        alike.setdefault(content, (kernels, []))[1].append(places)
    found = []
    for kernels, of_each in alike.values():
        *seen, last = (np.stack(part) for part in zip(*of_each, strict=True))
        found.append(Field(last, seen, kernels))
    return found


def _part(matrix: scipy.sparse.csc_array, units: np.ndarray) -> tuple[np.ndarray, Any]:
    """Returns the rows that these columns see, and that part of the matrix.

    Units may be hundreds of thousands, most with a part of their own: no step here takes longer
    for a larger matrix.
    """
    starts = matrix.indptr[units]
    counts = matrix.indptr[units + 1] - starts
    ends = np.cumsum(counts)
    entries = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
    before, rows = np.unique(matrix.indices[entries].astype(np.int64), return_inverse=True)
    data, shape = matrix.data[entries], (len(before), len(units))
    if len(data) * _FEW > shape[0] * shape[1]:
        kernel = np.zeros(shape)
        kernel[rows, np.repeat(np.arange(len(units)), counts)] = data
        return before, kernel
    indptr = np.concatenate([[0], ends])
    return before, scipy.sparse.csc_array((data, rows, indptr), shape=shape).tocsr()


def _places(matrix: scipy.sparse.csc_array) -> scipy.sparse.csc_array:
    """Returns a matrix with ones at the stored entries, in order."""
    ones = np.ones(matrix.nnz, np.float32)
    found = scipy.sparse.csc_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
    found.sort_indices()
    return found


def _entries(kernel: Any) -> int:
    return kernel.nnz if scipy.sparse.issparse(kernel) else kernel.size


def _bytes(kernel: Any) -> bytes:
    """Returns a key that identifies a matrix."""
    parts = [np.array(kernel.shape)]
    if scipy.sparse.issparse(kernel):
        parts += [kernel.indptr, kernel.indices, kernel.data]
    else:
        parts.append(kernel)
    return b"".join(b"%d " % part.nbytes + part.tobytes() for part in parts)
