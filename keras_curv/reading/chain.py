"""The sources of a graph that was read, brought into layers one after the other.

A source stands in the layer of its depth, beside the others of that depth. What a later layer
reads of it is carried there through units with the identity: only those entries, and only so far.
A served number is the same wherever it is read, so carrying rounds nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse

from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.sparse_affine import DENSE_UP_TO, SparseAffine
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.numerics.rounding import norm_bound, up
from keras_curv.reading.flow import Source, ancestors
from keras_curv.reading.limits import STORED_ENTRIES, TOTAL_ENTRIES, require_at_most


@dataclasses.dataclass
class _Layer:
    """What the entries of one layer are.

    Attributes:
        own: the sources of this depth.
        carried: sources of lesser depth, and which of their entries are here.
    """

    own: list[Source]
    carried: dict[Source, np.ndarray]

    @property
    def size(self) -> int:
        """How many units there are."""
        return sum(source.size for source in self.own) + sum(map(len, self.carried.values()))

    def places(self) -> dict[Source, np.ndarray]:
        """Where each entry of a source is among the units; −1: not here."""
        found, start = {}, 0
        for source in self.own:
            found[source] = start + np.arange(source.size)
            start += source.size
        for source, entries in self.carried.items():
            found[source] = np.full(source.size, -1)
            found[source][entries] = start + np.arange(len(entries))
            start += len(entries)
        return found

    def activation(self) -> Activation:
        """That of its units."""
        parts = [(source.sigma, source.size) for source in self.own]
        count = self.size - sum(size for _, size in parts)
        return unit_wise([*parts, (IDENTITY, count)])


def chain(last: Source) -> tuple[list[Affine], list[Activation]]:
    """The affine maps up to that of the last source, and the activations between them.

    Raises:
        InputError: too much would have to be carried.
    """
    sources = ancestors([last])
    layers = [_Layer([], {}) for _ in range(last.depth + 1)]
    for source in sources:
        layers[source.depth].own.append(source)
    last_read = _last_read(sources)
    passed = sum(
        int(np.maximum(depths - source.depth - 1, 0).sum()) for source, depths in last_read.items()
    )
    require_at_most(passed, STORED_ENTRIES, "what is carried past layers, in units of all layers,")
    for source, depths in last_read.items():
        for depth in range(source.depth + 1, int(depths.max())):
            layers[depth].carried[source] = np.flatnonzero(depths > depth)
    affines, entries = [], 0
    for before, layer in zip(layers[:-1], layers[1:], strict=True):
        affines.append(_map(before, layer))
        entries += affines[-1].kernel.size
        require_at_most(entries, TOTAL_ENTRIES, "the network, in entries of all layers,")
    return affines, [layer.activation() for layer in layers[1:-1]]


def _last_read(sources: list[Source]) -> dict[Source, np.ndarray]:
    """The depth of the last source that reads each entry of a source; 0: none does."""
    found = {source: np.zeros(source.size, np.int64) for source in sources}
    for reader in sources:
        start = 0
        for source in () if reader.flow is None else reader.flow.sources:
            reads = reader.reads[start : start + source.size]
            start += source.size
            depths = np.where(reads, reader.depth, 0)
            found[source] = np.maximum(found[source], depths)
    return found


def _map(before: _Layer, layer: _Layer) -> Affine:
    """The affine map from one layer to the next."""
    if len(layer.own) == 1 and not layer.carried and not before.carried:
        if list(layer.own[0].flow.sources) == before.own:
            return layer.own[0].affine
    places = before.places()
    blocks = [_block(source, places, before.size) for source in layer.own]
    carried = [places[source][entries] for source, entries in layer.carried.items()]
    units = np.concatenate([np.zeros(0, int), *carried])
    ones = np.ones(len(units)), (units, np.arange(len(units)))
    identity = scipy.sparse.csr_array(ones, shape=(before.size, len(units)))
    nothing = scipy.sparse.csr_array(identity.shape)
    maps = [source.affine for source in layer.own]
    none = np.zeros(len(units))
    kernel = scipy.sparse.hstack([*(pair[0] for pair in blocks), identity], format="csr")
    served = scipy.sparse.hstack([*(pair[1] for pair in blocks), nothing], format="csr")
    known = (
        kernel,
        np.concatenate([*(each.bias for each in maps), none]),
        norm_bound(np.array([each.kernel_error for each in maps])),
        norm_bound(np.array([each.bias_error for each in maps])),
        served,
        np.concatenate([*(each.served_bias_error for each in maps), none]),
        max([1.0, *(each.served_gain for each in maps)]),
    )
    if before.size * layer.size <= DENSE_UP_TO:
        dense = (part.toarray() if scipy.sparse.issparse(part) else part for part in known)
        return Affine(*dense)
    one = [1.0] if len(units) else []
    norms = ([each.norm for each in maps] + one, [each.magnitude_norm for each in maps] + one)
    return SparseAffine(*known, *(up(norm_bound(np.array(part))) for part in norms))


def _block(
    source: Source, places: dict[Source, np.ndarray], size: int
) -> list[scipy.sparse.csr_array]:
    """The kernel of a source's map, and how far it is off as served, in the rows of a layer."""
    at = np.concatenate([places[each] for each in source.flow.sources])
    found = []
    for matrix in (source.affine.kernel, source.affine.served_kernel_error):
        entries = scipy.sparse.coo_array(matrix)
        inside = at[entries.row] >= 0
        here = at[entries.row[inside]], entries.col[inside]
        shape = size, matrix.shape[1]
        found.append(scipy.sparse.csr_array((entries.data[inside], here), shape=shape))
    return found
