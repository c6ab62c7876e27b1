"""Sums, concatenations and the larger of two flows, where branches of a graph meet.

Both are first brought to a common base, the sources of both.

**Rounding.** A server adds two served tensors, or does so in another order: a runtime may begin one
sum of products with the other tensor, and put together additions that follow one another. Whatever
the order, no product and no offset passes through more roundings than there are terms in both, and
each of so many partial sums may be flushed to zero. That is charged to all of them. Products with
constants may come after the sum instead of before; then numbers on the way are at most the sum of
what they were.

**Larger of two.** `max(a, b) = (a + b)/2 + |b − a|/2`, in exact arithmetic, of the served a and b
too: the server rounds nothing. `(a, b) ↦ (a + b, b − a)/2` is a rotation divided by √2, and the
final sum has norm √2: so products of norms know that a maximum moves no farther than a and b do.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.sparse_error_ball import SparseBall
from keras_curv.lowering.stencil import Bounded, Stencil, magnitude_of_product, norm_of_product
from keras_curv.network import activations
from keras_curv.network.sparse_affine import schur_bound
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.numerics.rounding import FLOAT32_TINY, FLOAT32_UNIT, gamma, up
from keras_curv.saved_model.limits import EXAMPLE_ENTRIES, TENSOR_ENTRIES, require_shape


def plus(one: Flow, other: Flow) -> Flow:
    """Returns the sum of two flows of one shape."""
    one, other = (flow.multiplied() for flow in _over_both([one, other]))
    terms, shifts = one.terms + other.terms, one.shifts + other.shifts + 1
    roundings = gamma(terms + shifts + 2, FLOAT32_UNIT)
    kernel = _sum(one.product, other.product, roundings)
    gross, flushed = one.gross + other.gross, 8.0 * (terms + shifts + 2) * FLOAT32_TINY
    known = None
    if one.stencils is not None and other.stencils is not None:
        norms = _norms([one.stencils, other.stencils])
        known = (Bounded(*(sum(pair) * (1.0 + 1e-12) for pair in norms)),)
    return one._become(
        kernel=kernel,
        stencils=known,
        shift=(one.shift + other.shift).away(roundings * gross + flushed),
        mass=one.mass + other.mass,
        runs=np.stack(
            [np.minimum(one.runs[0], other.runs[0]), np.maximum(one.runs[1], other.runs[1])]
        ),
        largest=one.served_gain + other.served_gain,
        terms=terms,
        shifts=shifts,
        gross=gross,
    )


def picked(flow: Flow, positions: np.ndarray) -> Flow:
    """Moves the former entry `positions[j]` to entry j, or puts 0 there where that is −1.

    Args:
        flow: what depends on the input.
        positions: integers, in the new shape of an example.
    """
    if positions.size == 0:
        raise InputError("nothing is left of an example")
    size, flat = flow.shift.shape[0], positions.reshape(-1)
    inside = np.flatnonzero(flat >= 0)
    often = np.bincount(flat[inside], minlength=size)
    once = len(inside) == len(flat) and np.all(often <= 1)
    if once and (len(flat) == size or flow.kernel is None):
        return flow.rearranged(positions)
    entries = np.ones(len(inside)), (flat[inside], inside)
    selection = scipy.sparse.csr_array(entries, shape=(size, len(flat)))
    # S Sᵀ is diagonal, and says how often each entry is there.
    norm = up(math.sqrt(float(often.max())))
    product = flow.times(SparseBall.exact(selection), Bounded(norm))
    return dataclasses.replace(product, shape=positions.shape)


def joined(flows: list[Flow], axis: int = 0) -> Flow:
    """Puts flows one after the other along an axis of each example; nothing rounds."""
    shapes = {flow.shape[:axis] + flow.shape[axis + 1 :] for flow in flows}
    if len(shapes) != 1 or not all(axis < len(flow.shape) for flow in flows):
        raise InputError(
            f"examples {', '.join(str(flow.shape) for flow in flows)} cannot be put one after the "
            f"other along axis {axis + 1}"
        )
    require_shape([sum(flow.shift.shape[0] for flow in flows)], EXAMPLE_ENTRIES)
    flows = _over_both(flows)
    order = np.concatenate([flow.order for flow in flows])
    kernel: Ball | SparseBall | None = None
    known: tuple | None = ()
    if any(flow.kernel is not None for flow in flows) or len(np.unique(order)) < len(order):
        flows = [flow.multiplied() for flow in flows]
        kernel, known = _side_by_side(flows), None
        stencils = [flow.stencils for flow in flows if flow.stencils is not None]
        if len(stencils) == len(flows):
            known = (Bounded(*(up(math.hypot(*norms)) for norms in _norms(stencils))),)
    ends = np.cumsum([0, *(flow.shift.shape[0] for flow in flows)])
    places = [
        np.arange(start, start + math.prod(flow.shape)).reshape(flow.shape)
        for start, flow in zip(ends[:-1], flows, strict=True)
    ]
    together = dataclasses.replace(
        flows[0],
        shape=(int(ends[-1]),),
        kernel=kernel,
        order=order,
        stencils=known,
        scale=Ball.concatenated([flow.scale for flow in flows]),
        shift=Ball.concatenated([flow.shift for flow in flows]),
        mass=np.concatenate([flow.mass for flow in flows]),
        runs=np.concatenate([flow.runs for flow in flows], axis=1),
        served_gain=max(flow.served_gain for flow in flows),
        terms=max(flow.terms for flow in flows),
        shifts=max(flow.shifts for flow in flows),
        gross=np.concatenate([np.broadcast_to(f.gross, f.shift.shape) for f in flows]),
    )
    return together.rearranged(np.concatenate(places, axis=axis))


def summed(flow: Flow, target: np.ndarray, shape: tuple[int, ...]) -> Flow:
    """Returns sums of entries, `y[t] = Σ flow[i]` over all i with target t.

    Args:
        flow: what depends on the input.
        target: of each entry, flattened.
        shape: of the result.
    """
    size, kept = flow.shift.shape[0], math.prod(shape)
    entries = np.ones(size), (np.arange(size), target.reshape(-1))
    sums = SparseBall.exact(scipy.sparse.csr_array(entries, shape=(size, kept)))
    most = np.bincount(target.reshape(-1), minlength=1).max()
    return dataclasses.replace(flow.times(sums, Bounded(up(math.sqrt(most)))), shape=shape)


def larger(one: Flow, other: Flow) -> Flow:
    """Returns the larger of two flows of one shape, entry by entry."""
    size = one.shift.shape[0]
    both = joined([flow.rearranged(np.arange(size)) for flow in (one, other)])
    found = larger_of_pairs(both, np.arange(size), np.arange(size, 2 * size))
    return dataclasses.replace(found, shape=one.shape)


def larger_of_pairs(flow: Flow, first: np.ndarray, second: np.ndarray) -> Flow:
    """Returns the larger entry of each pair, by one layer of |·| beside units that carry.

    Args:
        flow: what depends on the input.
        first, second: places of the pairs, `(pairs,)`; the same place: that entry.
    """
    size, pairs, played = (
        flow.shift.shape[0],
        np.arange(len(first)),
        np.flatnonzero(first != second),
    )
    count, half = len(played), np.where(first != second, 0.5, 1.0)
    bent, carried = np.arange(count), count + pairs  # units, with |(b − a)/2| and with (a + b)/2
    rows = np.concatenate([first[played], second[played], first, second[played]])
    columns = np.concatenate([bent, bent, carried, carried[played]])
    values = np.concatenate([-half[played], half[played], half, half[played]])
    units = count + len(pairs)
    turned = scipy.sparse.csr_array((values, (rows, columns)), shape=(size, units))
    ends = np.concatenate([bent, carried]), np.concatenate([played, pairs])
    sums = scipy.sparse.csr_array((np.ones(units), ends), shape=(units, len(pairs)))
    # Squares of a pair's two units add up to (a² + b²)/2, and that of a single one to a².
    share = np.zeros(size)
    np.add.at(share, first, half)
    np.add.at(share, second[played], 0.5)
    kinds = unit_wise([(activations.get("abs"), count), (IDENTITY, len(pairs))])
    norms = Bounded(schur_bound(turned), up(math.sqrt(share.max())))
    hidden = flow.times(SparseBall.exact(turned), norms).activated(kinds)
    return hidden.times(SparseBall.exact(sums), Bounded(up(math.sqrt(2.0))))


def _over_both(flows: list[Flow]) -> list[Flow]:
    sources = tuple(dict.fromkeys(source for flow in flows for source in flow.sources))
    return [flow.over(sources) for flow in flows]


def _norms(known: list[tuple[Stencil | Bounded, ...]]) -> list[list[float]]:
    """Returns bounds of ‖|W|‖ and ‖W‖ of each."""
    return [[bound(each) for each in known] for bound in (magnitude_of_product, norm_of_product)]


def _sum(one: Ball | SparseBall, other: Ball | SparseBall, roundings: float) -> Ball | SparseBall:
    if one.is_sparse or other.is_sparse:
        one, other = SparseBall.of(one).aligned(SparseBall.of(other))
    ours, theirs = one.entries, other.entries
    return one.with_entries(
        (ours + theirs).away(roundings * (ours.served_size() + theirs.served_size()))
    )


def _side_by_side(flows: list[Flow]) -> Ball | SparseBall:
    kernels = [flow.product for flow in flows]
    size = sum(kernel.shape[1] for kernel in kernels)
    if any(kernel.is_sparse for kernel in kernels) or flows[0].base * size > TENSOR_ENTRIES:
        return SparseBall.side_by_side([SparseBall.of(kernel) for kernel in kernels])
    return Ball.concatenated([kernel.dense() for kernel in kernels])
