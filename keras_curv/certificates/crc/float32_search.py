"""The search for a rival's best point in float32: it proves nothing, and float64 goes on from it.

Half of what a certificate costs is the search for the point at which the nearest rival's gradient
proves the most, and only the last of these gradients has to prove anything. In float32 the others
cost a quarter. The search in float64 goes on from where this one ends, and needs one gradient more
as a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.crc.search_state import SearchStep, finite, indices

_FINEST = 3e-5  # relative: what float32 can tell of two radii
_SHARE = 0.8  # of the tolerance, so that float64 agrees
_OUTWARD = 1.0 + 1e-6  # what float32 may take off a bracket


class _Search(NamedTuple):
    """The state of m searches, m' of which go on."""

    rows: tf.Tensor  # which go on, (m',)
    iterate: dual.Iterate  # m' rows
    best: tf.Tensor  # the largest radius so far, (m,)
    point: tf.Tensor  # where that is, (m, dim)
    bracket: tf.Tensor  # the smallest so far, (m,)
    used: tf.Tensor  # gradients, (m,)


def approach(
    step: Callable[[dual.Iterate, tf.Tensor], SearchStep],
    advance: Callable[[dual.Iterate, tf.Tensor, SearchStep], dual.Iterate],
    begun: dual.Iterate,
    origin: tf.Tensor,
    cells: tf.Tensor,
    enough: tf.Tensor,
    tolerance: float,
    max_steps: int,
) -> tuple[dual.Iterate, tf.Tensor, tf.Tensor]:
    """Searches for one rival each, and stops where float64 is to go on.

    Args:
        step: one gradient each of iterates and cells; in float32, uncharged.
        advance: the iterates after.
        begun: where to start, m rows, float64.
        origin: x0 of each, `(m, dim)`, float64.
        cells: example and rival of each, `(m, 2)`.
        enough: radii that need not be exceeded, `(m,)`.
        tolerance: relative gap between the radius and its bracket at which a search ends.
        max_steps: gradients after which it ends in any case.

    Returns:
        Where to go on, m rows, float64: x0 and what was moved in float32, so that entries that are
        not moved, as those that are pinned, keep every digit; `begun` where float32 leaves the
        numbers. Brackets from above, which are a guess too. And how many gradients were used; both
        `(m,)`.
    """
    single, whole = tf.float32, cells.dtype
    gap = 1.0 - max(_SHARE * tolerance, _FINEST)
    count, ceiling = tf.shape(cells)[0], tf.cast(enough, single)
    start = begun._replace(
        point=tf.cast(begun.point, single),
        previous_point=tf.cast(begun.previous_point, single),
        previous_residual=tf.cast(begun.previous_residual, single),
    )

    def turn(search: _Search) -> tuple[_Search]:
        rows, iterate = search.rows, search.iterate
        now, index = tf.gather(cells, rows), tf.expand_dims(rows, 1)
        found = step(iterate, now)
        better = indices(found.radius > tf.gather(search.best, rows))
        best = tf.tensor_scatter_nd_max(search.best, index, found.radius)
        bracket = tf.tensor_scatter_nd_min(search.bracket, index, found.bracket)
        upper = tf.minimum(tf.gather(bracket, rows), tf.gather(ceiling, rows))
        going = (tf.gather(best, rows) < gap * upper) & (iterate.steps < max_steps)
        on = indices(going & finite(found.gradient))
        return (
            _Search(
                rows=tf.gather(rows, on),
                iterate=advance(iterate.rows(on), tf.gather(now, on), found.rows(on)),
                best=best,
                point=tf.tensor_scatter_nd_update(
                    search.point, tf.gather(index, better), tf.gather(iterate.point, better)
                ),
                bracket=bracket,
                used=tf.tensor_scatter_nd_add(search.used, index, tf.ones_like(rows)),
            ),
        )

    (last,) = tf.while_loop(
        lambda search: tf.size(search.rows) > 0,
        turn,
        (
            _Search(
                rows=tf.range(count, dtype=whole),
                iterate=start,
                best=tf.zeros([count], single),
                point=start.point,
                bracket=tf.fill([count], tf.constant(float("inf"), single)),
                used=tf.zeros([count], whole),
            ),
        ),
        parallel_iterations=1,
    )
    moved = tf.cast(last.point - tf.cast(origin, single), tf.float64)
    point = tf.where(tf.expand_dims(finite(moved), 1), origin + moved, begun.point)
    following = begun._replace(point=point, steps=tf.zeros_like(begun.steps))
    return following, tf.cast(last.bracket, tf.float64) * _OUTWARD, last.used
