"""Projected gradient descent in an l2 or l∞ ball, in graph on whole batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.attacks.ball import normalized, project, require_attackable, room, uniform_in_ball
from keras_curv.attacks.through_clip import descend_through
from keras_curv.errors import InputError, require_at_least, require_one_of
from keras_curv.network.clip import split_clip
from keras_curv.network.network import FeedForward, Network, likeliest_rivals
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, traced
from keras_curv.threats.norms import L2, LINF


def pgd_attack(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    *,
    radius: Any,
    steps: int = 200,
    restarts: int = 5,
    step_size: float = 2.5,
    norm: str = "l2",
    seed: int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Descends by projected gradients; each restart is against another rival, the likeliest first.

    A descent that follows whichever rival is strongest at the moment gets caught between two:
    on a robust MNIST net it missed one in ten of the adversarial points that are known to be
    there. What counts is the smallest margin over all rivals at any point met.

    A network that clips its input hides gradients from x: there a descent through the clip
    (`through_clip.py`) comes first, as long, and this one goes on from where it ended.

    Args:
        x: `(n, dim)`.
        label: `(n,)`, integers.
        radius: ρ > 0, a number or `(n,)`.
        steps: of each restart; a step is `step_size · ρ / steps` long, along −∇f/‖∇f‖, and in l∞
            along the signs of −∇f.
        restarts: one for each rival begins at x; further ones at random points of the ball.
        norm: of the ball, "l2" or "linf".
        seed: of these.

    Returns:
        The lowest margin met, `(n,)`, and where, `(n, dim)`; negative means misclassified.

    Raises:
        InputError: an argument that does not fit the others or is not positive, or another norm.

    Example:
        >>> import numpy as np
        >>> from keras_curv import Network
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
        >>> x, label = tf.constant([[1.0, 0.0]]), tf.constant([0])  # √½ from the boundary
        >>> for radius in (0.7, 0.72):
        ...     margin, _ = pgd_attack(network, x, label, radius=radius, steps=20, restarts=1)
        ...     print(bool(margin[0] < 0.0))
        False
        True

    Reference: Madry et al., "Towards deep learning models resistant to adversarial attacks"
    (2018), also with l2 steps; Gowal et al., "An alternative surrogate loss for PGD-based
    adversarial testing" (2019), for the targets.
    """
    require_one_of(norm, (L2.name, LINF.name), "norm")
    require_attackable(network, x, label, radius)
    require_at_least(steps, 1, "steps")
    require_at_least(restarts, 1, "restarts")
    require_at_least(seed, 0, "seed")
    if not (isinstance(step_size, (int, float)) and 0.0 < step_size < math.inf):
        raise InputError(f"step_size must be a positive number. Received: {step_size!r}")
    x, label = tf.convert_to_tensor(x), tf.convert_to_tensor(label)
    radius = tf.broadcast_to(dual.as_dtype(radius, x.dtype), tf.shape(x)[:1])
    ranked = likeliest_rivals(network.logits(x), label, network.classes - 1)
    low, high = room(network, x)
    in_cube = norm == LINF.name
    if in_cube:  # the cube is made of limits, and the l2 ball around it confines nothing
        half, radius = radius[:, None], radius * np.sqrt(x.shape[-1])
        low, high = tf.maximum(low, x - half), tf.minimum(high, x + half)
    make = _signed_descent if in_cube else _descent
    descend = traced(make, network, x.dtype, signature=_SIGNATURE)
    split = split_clip(network) if isinstance(network, Network) else None
    margin, best = tf.fill(tf.shape(radius), tf.constant(float("inf"), x.dtype)), x
    for restart in range(restarts):
        begin = x
        target = ranked[:, restart % (network.classes - 1)]
        if restart >= network.classes - 1:
            begin = tf.clip_by_value(uniform_in_ball(x, radius, (seed, restart)), low, high)
        elif split is not None:
            clip, behind = split
            _, begin = descend_through(behind, clip, x, label, target, radius, steps)
            begin = project(begin, x, radius)
        ball = _Ball(x, radius, low, high)
        classes = tf.cast(label, tf.int32), tf.cast(target, tf.int32)
        margin, best = descend(ball, *classes, step_size / steps, steps + 1, margin, best, begin)
    return margin, best


class _Ball(NamedTuple):
    """The points that an attacker may choose."""

    x: tf.Tensor  # x, radius: `(n, dim)` and `(n,)`
    radius: tf.Tensor
    low: tf.Tensor  # low, high: as of `room`
    high: tf.Tensor


# The ball; label and target; a step's length in radii; how many; margin, best and begin.
_SIGNATURE = (
    _Ball(ROWS, EACH, ROWS, ROWS),
    CLASS,
    CLASS,
    tf.TensorSpec((), tf.float64),
    tf.TensorSpec((), tf.int32),
    EACH,
    ROWS,
    ROWS,
)


def _signed_descent(network: FeedForward) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns `_descent` along the signs of the gradient."""

    def direction(gradient: tf.Tensor) -> tf.Tensor:
        return tf.sign(gradient) / tf.sqrt(tf.cast(tf.shape(gradient)[-1], gradient.dtype))

    return _descent(network, direction)


def _descent(
    network: FeedForward, direction: Callable[[tf.Tensor], tf.Tensor] = normalized
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns a descent against one rival each, which keeps the lowest margin over all rivals."""

    def descend(
        ball: _Ball,
        label: tf.Tensor,
        target: tf.Tensor,
        length: Any,
        count: Any,
        margin: tf.Tensor,
        best: tf.Tensor,
        begin: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        step = (length * ball.radius)[:, None]

        def body(margin: tf.Tensor, best: tf.Tensor, point: tf.Tensor) -> tuple[tf.Tensor, ...]:
            found = network.lowest_margin(point, label)
            best = tf.where((found < margin)[:, None], point, best)
            _, gradient = network.margin_and_gradient(point, label, target)
            moved = project(point - step * direction(gradient), ball.x, ball.radius)
            return tf.minimum(found, margin), best, tf.clip_by_value(moved, ball.low, ball.high)

        start = margin, best, begin
        found = tf.while_loop(lambda *_: True, body, start, maximum_iterations=count)
        return found[0], found[1]

    return descend
