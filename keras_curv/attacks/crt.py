"""The curvature-based attack in an l2 ball, in graph on whole batches, with static shapes.

It also returns what it proves: a lower bound of the margin in the whole ball.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.attacks.ball import examples_of, require_radius
from keras_curv.errors import require_at_least
from keras_curv.network.network import Evaluation, FeedForward

_WRITTEN = 4  # steps that are written out: a loop shares no subexpression with the rest


class Hidden(NamedTuple):
    """Hidden values of the network at the points of an attack, a row for each (example, rival)."""

    pre: list[tf.Tensor]  # `z_1, …, z_{L−1}`, each `(n · rivals, width)`
    post: list[tf.Tensor]  # `a_1, …, a_{L−1}`
    distance: tf.Tensor  # ‖x̂ − x‖, `(n · rivals,)`


class AttackResult(NamedTuple):
    """Result of an attack; arrays are of the shape of `rival`, `(n,)` or `(n, rivals)`.

    Attributes:
        point: that shape and then `(dim,)`; in the ball.
        margin: f at the point; never above f(x0).
        lower_bound: `≤ f` everywhere in the ball, by the curvature given (up to rounding).
        primal_equals_dual: the two agree: the point is the worst one in the ball.
        hidden: the network's hidden values at the points.
    """

    point: tf.Tensor
    margin: tf.Tensor
    lower_bound: tf.Tensor
    primal_equals_dual: tf.Tensor
    hidden: Hidden


def curvature_attack(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    *,
    radius: Any,
    curvature: tf.Tensor,
    steps: int = 10,
    tolerance: float = 1e-4,
) -> AttackResult:
    """Solves `min f(x̂)` over `‖x̂ − x‖ ≤ ρ` by its dual, `max_{η ≥ κ} min_x̂ f + (η/2)(‖·‖² − ρ²)`.

    Args:
        x: `(n, dim)`, float32 or float64.
        label: `(n,)`, integers.
        rival: `(n,)`, or `(n, rivals)` to attack toward several; f is the margin of label over
            rival.
        radius: ρ > 0, a number or `(n,)`.
        curvature: κ with `∇²f ≽ −κ`, of the shape of `rival`; an estimate gives an attack, a
            bound a proof too.
        steps: gradients for each example and rival.
        tolerance: gap, relative to 1 + |f(x)|, within which primal = dual.

    Returns:
        `AttackResult`.

    Raises:
        InputError: `steps` or the radius is not positive.

    Example:
        >>> from keras_curv import Network, curvature_bounds
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "sigmoid")
        >>> x, label, rival = tf.constant([[2.0, 0.0]]), tf.constant([0]), tf.constant([1])
        >>> kappa = tf.constant(-curvature_bounds(network).lower[0, 1:], tf.float32)
        >>> found = curvature_attack(network, x, label, rival, radius=0.5, curvature=kappa)
        >>> found.margin.numpy().round(3), bool(found.primal_equals_dual)
        (array([0.245], dtype=float32), True)

    Reference: Singla & Feizi (2020), theorem 2 and definition 2.
    """
    require_radius(radius)
    require_at_least(steps, 1, "steps")
    shape, several = tf.shape(rival), rival if rival.shape.rank == 2 else rival[:, None]
    # From here on a row is a pair (example, rival).
    of = examples_of(several)
    origin, rows = tf.gather(x, of), tf.gather(label, of)
    rival = tf.reshape(several, (-1,))
    curvature = tf.cast(tf.reshape(curvature, (-1,)), x.dtype)
    radius = tf.gather(tf.broadcast_to(dual.as_dtype(radius, x.dtype), tf.shape(x)[:1]), of)
    multiplier = dual.attack_multiplier(radius)

    # At x itself the rivals share one forward pass.
    evaluation = network.evaluate(x, label, several)
    at_start = tf.reshape(evaluation.margin, (-1,))
    gradient = tf.reshape(evaluation.gradient, tf.shape(origin))
    # The first step of `dual.advance`, from the origin: no other is so short to write.
    eta = multiplier(at_start, gradient, tf.zeros_like(origin), curvature)
    residual = tf.expand_dims(eta, 1) * gradient
    first = dual.Iterate(origin - residual, origin, residual, tf.ones_like(of, tf.int32))

    def body(index: tf.Tensor, margin: tf.Tensor, gradient: tf.Tensor, *state: tf.Tensor) -> tuple:
        iterate = dual.Iterate(*state)
        margin, gradient = network.margin_and_gradient(iterate.point, rows, rival)
        moved = dual.advance(multiplier, origin, curvature, iterate, margin, gradient)
        return index + 1, margin, gradient, *moved

    state = tf.constant(1), at_start, gradient, *first
    if steps <= _WRITTEN:
        for _ in range(steps - 1):
            state = body(*state)
    else:
        state = tf.while_loop(
            lambda index, *_: index < steps, body, state, maximum_iterations=steps - 1
        )
    _, margin, gradient, *last = state
    iterate = dual.Iterate(*last)
    # The last gradient was taken a step back.
    bound = dual.minorant(margin, gradient, iterate.previous_point - origin, curvature)
    lower = dual.lower_bound(bound, radius)
    lower = tf.where(tf.math.is_nan(lower), tf.constant(-np.inf, lower.dtype), lower)
    point, margin, hidden = _in_ball(
        network, evaluation, origin, iterate.point - origin, radius, rows, rival, of, at_start
    )
    exact = margin - lower <= tolerance * (1.0 + tf.abs(at_start))
    return AttackResult(
        tf.reshape(point, tf.concat([shape, tf.shape(x)[1:]], axis=0)),
        tf.reshape(margin, shape),
        tf.reshape(lower, shape),
        tf.reshape(exact, shape),
        hidden,
    )


def _in_ball(
    network: FeedForward,
    start: Evaluation,
    origin: tf.Tensor,
    offset: tf.Tensor,
    radius: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    of: tf.Tensor,
    at_start: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, Hidden]:
    """Returns the nearest points of the ball, their margins and hidden values.

    Where these are no lower than at the origin it is the origin, whose evaluation is `start`.
    """
    length = tf.norm(offset, axis=-1)
    outside = length > radius
    scale = tf.where(outside, radius / length, tf.ones_like(length))
    point = origin + offset * tf.expand_dims(scale, 1)
    there = network.evaluate(point, label, tf.expand_dims(rival, 1))  # in graph without gradients
    margin, post = there.margin[:, 0], there.activations[1:]
    # Of a negated comparison TensorFlow makes the opposite one, in which NaN would not count.
    worse = (margin >= at_start) | tf.math.is_nan(margin)

    def mended() -> list[tf.Tensor]:
        begun = [tf.gather(a, of) for a in (*start.pre, *start.activations[1:])]
        pairs = zip([origin, *begun], [point, *there.pre, *post], strict=True)
        return [tf.where(worse[:, None], before, after) for before, after in pairs]

    # Hardly ever: that is looked at before all is copied.
    point, *hidden = tf.cond(
        tf.reduce_any(worse), mended, lambda: [tf.identity(a) for a in (point, *there.pre, *post)]
    )
    distance = tf.where(worse, tf.zeros_like(length), tf.minimum(length, radius))
    known = Hidden(hidden[: len(post)], hidden[len(post) :], distance)
    return point, tf.where(worse, at_start, margin), known
