"""Sources, which flows are affine in, and their layers, one after the other.

A source stands in the layer of its depth, beside the others of that depth. What a later layer
reads of it is carried there through units with the identity: only those entries, and only so far.
A served number is the same wherever it is read, so carrying rounds nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf

from keras_curv.lowering.stencil import Bounded, Stencil, magnitude_of_product, norm_of_product
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.sparse_affine import DENSE_UP_TO, SparseAffine, schur_bound
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.numerics.rounding import norm_bound, up
from keras_curv.saved_model.limits import STORED_ENTRIES, TOTAL_ENTRIES, affords, require_at_most

_SAMPLES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The input, or the output of an activation: flows are affine in sources."""

    size: int  # entries of an example
    depth: int = 0  # activations on the longest way from the input to it, its own included
    sources: tuple[Source, ...] = ()  # that it is made of; none for the input
    # the map of their outputs, one after the other; None for the input
    affine: Affine | None = None
    # the convolutions that a sparse map is made of, one after the other; see `proved`
    stencils: tuple[Stencil | Bounded, ...] = ()
    reads: np.ndarray | None = None  # which entries of these the map may read
    sigma: Activation | None = None  # the activation; None for the logits, which have none

    @functools.cached_property
    def proved(self) -> Affine:
        """The map with the norms that its convolutions prove, which take longer than to read it.

        So they are asked for once all of a graph is read, and no refusal waits for them.
        """
        assert self.affine is not None  # as only the input has none
        if not isinstance(self.affine, SparseAffine) or not self.stencils:
            return self.affine
        norm, magnitude = self._by_convolutions
        return dataclasses.replace(self.affine, proved_norm=norm, proved_magnitude=magnitude)

    @property
    def _by_convolutions(self) -> tuple[float, float]:
        """Bounds ‖W‖ and ‖|W|‖ by the norms of its convolutions, infinite without these."""
        if not self.stencils:
            return math.inf, math.inf
        return norm_of_product(self.stencils), magnitude_of_product(self.stencils)

    @functools.cached_property
    def norms(self) -> tuple[float, float]:
        """Bounds ‖W‖ and ‖|W|‖.

        A dense matrix has eigenvalues if reading can still afford them. Otherwise its convolutions
        and the sums of its rows and columns give larger bounds at once.
        """
        affine = self.proved
        if affine.is_sparse or affords(affine.kernel.size * min(affine.kernel.shape) // 2):
            return affine.norm, affine.magnitude_norm
        most = schur_bound(affine.kernel)
        norm, magnitude = (
            up(min(bound, most) + affine.kernel_error) for bound in self._by_convolutions
        )
        return norm, magnitude

    @functools.cached_property
    def samples(self) -> np.ndarray:
        """Its values at a few inputs of all sizes, `(samples, size)`; NaN where they overflow."""
        if self.affine is None:
            sizes = np.logspace(-1.0, 4.0, _SAMPLES)[:, None]
            return sizes * np.random.default_rng(0).normal(size=(_SAMPLES, self.size))
        base = np.concatenate([source.samples for source in self.sources], axis=1)
        return self.activated(base @ self.affine.kernel + self.affine.bias)

    def activated(self, z: np.ndarray) -> np.ndarray:
        """Returns its values where its affine map has these."""
        return z if self.sigma is None else self.sigma.value(tf.constant(z)).numpy()


def ancestors(sources: Iterable[Source]) -> list[Source]:
    """Returns these sources and all that they are made of, each once, after its own."""
    found: dict[Source, None] = {}
    stack = [(source, False) for source in sources]
    while stack:
        source, ready = stack.pop()
        if ready:
            found[source] = None
        elif source not in found:
            stack.append((source, True))
            stack += [(each, False) for each in source.sources if each not in found]
    return list(found)


@dataclasses.dataclass
class _Layer:
    """The entries of one layer."""

    own: list[Source]  # the sources of this depth
    # sources of lesser depth, and which of their entries are here
    carried: dict[Source, np.ndarray]

    @property
    def size(self) -> int:
        """The number of units."""
        return sum(source.size for source in self.own) + sum(map(len, self.carried.values()))

    def places(self) -> dict[Source, np.ndarray]:
        """Returns the place of each entry of a source among the units; −1: not here."""
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
        """Returns the activation of its units."""
        parts = []
        for source in self.own:
            assert source.sigma is not None  # as only the last one has none
            parts.append((source.sigma, source.size))
        count = self.size - sum(size for _, size in parts)
        return unit_wise([*parts, (IDENTITY, count)])


def chain(last: Source) -> tuple[list[Affine], list[Activation]]:
    """Returns the affine maps up to that of the last source, and the activations between them.

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
    pairs, dense_up_to = list(itertools.pairwise(layers)), DENSE_UP_TO
    sizes = [before.size * layer.size for before, layer in pairs]
    while sum(size for size in sizes if size <= dense_up_to) > TOTAL_ENTRIES:
        dense_up_to //= 2  # what is carried makes matrices large, and has one entry for each unit
    affines, entries = [], 0
    for before, layer in pairs:
        affines.append(_map(before, layer, dense_up_to))
        entries += affines[-1].kernel.size
        require_at_most(entries, TOTAL_ENTRIES, "the network, in entries of all layers,")
    return affines, [layer.activation() for layer in layers[1:-1]]


def _last_read(sources: list[Source]) -> dict[Source, np.ndarray]:
    """Returns the depth of the last source that reads each entry of a source; 0: none does."""
    found = {source: np.zeros(source.size, np.int64) for source in sources}
    for reader in sources:
        if reader.reads is None:
            continue
        start = 0
        for source in reader.sources:
            reads = reader.reads[start : start + source.size]
            start += source.size
            depths = np.where(reads, reader.depth, 0)
            found[source] = np.maximum(found[source], depths)
    return found


def _map(before: _Layer, layer: _Layer, dense_up_to: int) -> Affine:
    """Returns the affine map from one layer to the next, dense up to so many entries."""
    if len(layer.own) == 1 and not layer.carried and not before.carried:
        (source,) = layer.own
        if source.affine is not None and list(source.sources) == before.own:
            return source.proved
    places = before.places()
    units = [places[source][entries] for source, entries in layer.carried.items()]
    blocks = []
    for source in layer.own:
        # A source of which nothing is read need not be here.
        at = [places.get(each, np.full(each.size, -1)) for each in source.sources]
        blocks.append((np.concatenate(at), source.proved))
    maps = [affine for _, affine in blocks]
    carried = np.concatenate([np.zeros(0, int), *units])
    one, none = np.ones(len(carried)), np.zeros(len(carried))
    shape = before.size, layer.size
    dense = before.size * layer.size <= dense_up_to
    kernel = _placed([(at, each.kernel) for at, each in blocks], carried, one, shape, dense)
    served = [(at, each.served_kernel_error) for at, each in blocks]
    known = (
        kernel,
        np.concatenate([*(each.bias for each in maps), none]),
        norm_bound(np.array([each.kernel_error for each in maps])),
        norm_bound(np.array([each.bias_error for each in maps])),
        _placed(served, carried, none, shape, dense),
        np.concatenate([*(each.served_bias_error for each in maps), none]),
        max([1.0, *(each.served_gain for each in maps)]),
    )
    if dense:
        return Affine(*known)
    norms = [source.norms for source in layer.own]
    if len(carried):
        norms.append((1.0, 1.0))
    together = (up(norm_bound(np.array(part))) for part in zip(*norms, strict=True))
    return SparseAffine(*known, *together)


def _placed(
    blocks: list[tuple[np.ndarray, Any]],
    carried: np.ndarray,
    entries: np.ndarray,
    shape: tuple[int, int],
    dense: bool,
) -> Any:
    """Puts blocks side by side, each row in its place, then an entry for each carried unit.

    Args:
        blocks: where each row goes, −1: nowhere; and the matrix.
        carried: rows of the entries.
        entries: one in each of the last columns.
        shape: of the whole.
        dense: whether it is to be dense.
    """
    start = 0
    if dense:
        whole = np.zeros(shape)
        for at, matrix in blocks:
            here = at >= 0
            rows = matrix[here] if isinstance(matrix, np.ndarray) else matrix.toarray()[here]
            whole[at[here], start : start + matrix.shape[1]] = rows
            start += matrix.shape[1]
        whole[carried, start + np.arange(len(carried))] = entries
        return whole
    parts = []
    for at, matrix in blocks:
        stored = scipy.sparse.coo_array(matrix)
        here = at[stored.row] >= 0
        parts.append((stored.data[here], at[stored.row[here]], start + stored.col[here]))
        start += matrix.shape[1]
    parts.append((entries, carried, start + np.arange(len(carried))))
    data, rows, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
    array = scipy.sparse.csr_array((data, (rows, columns)), shape=shape)
    array.eliminate_zeros()
    return array
