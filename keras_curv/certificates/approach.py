"""The way to a rival's best point in float32, which proves nothing: where to look in float64.

Half of what a certificate costs is the search for the point at which the nearest rival's gradient
proves the most, and only the last of these gradients has to prove anything. In float32 the others
cost a quarter. The search in float64 goes on from where this one ends, and needs one gradient more
as a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_curv import dual

_FINEST = 3e-5  # relative: what float32 can tell of two radii
_SHARE = 0.8  # of the tolerance, so that float64 agrees


class _Search(NamedTuple):
    """How far it has come: m' rows that go on, and m that are asked for."""

    rows: tf.Tensor  # which go on, (m',)
    iterate: dual.Iterate  # m' rows
    radius: tf.Tensor  # the largest so far, (m',)
    upper: tf.Tensor  # the smallest bracket so far, (m',)
    ended: tf.Tensor  # the last points, (m, dim)
    used: tf.Tensor  # gradients, (m,)


def approach(
    step: Callable[[dual.Iterate, tf.Tensor], Any],
    begun: dual.Iterate,
    origin: tf.Tensor,
    cells: tf.Tensor,
    enough: tf.Tensor,
    tolerance: float,
    max_steps: int,
) -> tuple[dual.Iterate, tf.Tensor]:
    """Searches for one rival each, and stops where float64 is to go on.

    Args:
        step: one gradient each of iterates and cells, a `SearchStep`; in float32, uncharged.
        begun: where to start, m rows, float64.
        origin: x0 of each, `(m, dim)`, float64.
        cells: example and rival of each, `(m, 2)`.
        enough: radii that need not be exceeded, `(m,)`.
        tolerance: relative gap between the radius and its bracket at which a search ends.
        max_steps: gradients after which it ends in any case.

    Returns:
        Where to go on, m rows, float64: x0 and what was moved in float32, so that entries that are
        not moved, as those that are pinned, keep every digit; `begun` where float32 leaves the
        numbers. And how many gradients were used, `(m,)`.
    """
    single, whole = tf.float32, cells.dtype
    gap = 1.0 - max(_SHARE * tolerance, _FINEST)
    count = tf.shape(cells)[0]
    start = begun._replace(
        point=tf.cast(begun.point, single),
        previous_point=tf.cast(begun.previous_point, single),
        previous_residual=tf.cast(begun.previous_residual, single),
    )

    def turn(search: _Search) -> tuple[_Search]:
        found = step(search.iterate, tf.gather(cells, search.rows))
        index = tf.expand_dims(search.rows, 1)
        ended = tf.tensor_scatter_nd_update(search.ended, index, search.iterate.point)
        used = tf.tensor_scatter_nd_add(search.used, index, tf.ones_like(search.rows))
        radius = tf.maximum(search.radius, found.radius)
        upper = tf.minimum(search.upper, found.bracket)
        going = (radius < gap * upper) & (found.following.steps <= max_steps)
        rows, radius, upper = (tf.boolean_mask(p, going) for p in (search.rows, radius, upper))
        rest = dual.Iterate(*(tf.boolean_mask(part, going) for part in found.following))
        return (_Search(rows, rest, radius, upper, ended, used),)

    (last,) = tf.while_loop(
        lambda search: tf.size(search.rows) > 0,
        turn,
        (
            _Search(
                rows=tf.range(count, dtype=whole),
                iterate=start,
                radius=tf.zeros([count], single),
                upper=tf.cast(enough, single),
                ended=start.point,
                used=tf.zeros([count], whole),
            ),
        ),
        parallel_iterations=1,
    )
    moved = tf.cast(last.ended - tf.cast(origin, single), tf.float64)
    arrived = tf.reduce_all(tf.math.is_finite(moved), axis=1, keepdims=True)
    point = tf.where(arrived, origin + moved, begun.point)
    return begun._replace(point=point, steps=tf.zeros_like(begun.steps)), last.used
