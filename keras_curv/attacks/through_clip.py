"""Projected gradient descent through the clip that a network begins with.

A gradient in x is 0 wherever the clip is flat, though a long enough step would leave the flat part.
So the descent works behind the clip: each step minimises a linear model of the margin, by the mean
gradient so far, over all T(x + δ) with ‖δ‖ ≤ ρ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_curv.network.clip import Clip
from keras_curv.network.network import FeedForward
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, traced
from keras_curv.threats.clipped import clipped
from keras_curv.threats.confined import Reach

_MEMORY = 0.75  # of the mean gradient
_HALVINGS = 30


def steepest_move(gradient: tf.Tensor, reach: Reach, radius: tf.Tensor) -> tf.Tensor:
    """Returns nearly the `argmin g·e` over the e with `C(e) ≤ ρ²`, `(n, dim)`; within that cost.

    The Lagrangian's minimiser, by coordinate, with λ halved until the budget is used up.

    Args:
        gradient: `(n, dim)`.
        reach: what moves cost, and how far they go.
        radius: ρ, `(n,)`.
    """
    limit, dead = reach.along(-gradient)
    size = tf.abs(gradient)

    def move(multiplier: tf.Tensor) -> tf.Tensor:
        lam = multiplier[:, None]
        far = (size - lam * reach.cost * dead) / (lam * reach.cost * reach.cost)
        far = tf.clip_by_value(far, 0.0, limit)
        paid = reach.cost * far + dead
        far = tf.where(0.5 * lam * paid * paid < size * far, far, 0.0)
        return -tf.sign(gradient) * far

    # At `high` nothing more than the budget is spent: b|e| + dead ≤ |g|/(λb) for each coordinate.
    high = tf.norm(size / reach.cost, axis=-1) / radius + 1e-30

    def halved(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        middle = tf.sqrt(low * high)
        fits = reach.price(move(middle)) <= radius * radius
        return tf.where(fits, low, middle), tf.where(fits, middle, high)

    _, high = tf.while_loop(
        lambda *_: True, halved, (1e-6 * high, high), maximum_iterations=_HALVINGS
    )
    return move(high)


def descend_through(
    behind: FeedForward,
    clip: Clip,
    x: tf.Tensor,
    label: tf.Tensor,
    target: tf.Tensor,
    radius: tf.Tensor,
    steps: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Descends the margin against one rival each; keeps the lowest margin over all rivals.

    Args:
        behind: the network behind the clip.
        clip: T.
        x: `(n, dim)`.
        label, target: `(n,)`.
        radius: ρ, `(n,)`.
        steps: gradients.

    Returns:
        The lowest margin met, `(n,)`, and where, `(n, dim)`: as near to `x` as T allows.
    """
    start, reach, _ = clipped(clip, x)
    descend = traced(_descent, behind, x.dtype, signature=_SIGNATURE)
    classes = tf.cast(label, tf.int32), tf.cast(target, tf.int32)
    best, found = descend(start, reach, *classes, radius, steps)
    return best, clip.nearest(found, x)


# u0 and reach; label and target; radius; steps.
_SIGNATURE = (
    ROWS,
    Reach(ROWS, ROWS, ROWS, ROWS, cost=EACH),
    CLASS,
    CLASS,
    EACH,
    tf.TensorSpec((), tf.int32),
)


def _descent(behind: FeedForward) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns a descent behind the clip: the lowest margin met, and where."""

    def descend(
        start: tf.Tensor,
        reach: Reach,
        label: tf.Tensor,
        target: tf.Tensor,
        radius: tf.Tensor,
        steps: Any,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def body(
            best: tf.Tensor, found: tf.Tensor, mean: tf.Tensor, move: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            point = start + move
            margin = behind.lowest_margin(point, label)
            found = tf.where((margin < best)[:, None], point, found)
            _, gradient = behind.margin_and_gradient(point, label, target)
            mean = _MEMORY * mean + (1.0 - _MEMORY) * gradient
            return tf.minimum(margin, best), found, mean, steepest_move(mean, reach, radius)

        _, gradient = behind.margin_and_gradient(start, label, target)
        nowhere = tf.fill(tf.shape(radius), tf.constant(float("inf"), start.dtype))
        begin = nowhere, start, gradient, steepest_move(gradient, reach, radius)
        last = tf.while_loop(lambda *_: True, body, begin, maximum_iterations=steps)
        return last[0], last[1]

    return descend
