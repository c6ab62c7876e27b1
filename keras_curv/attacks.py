"""Attacks in an l2 ball: the curvature-based one, and projected gradient descent.

Both run in graph on whole batches, with static shapes, and return points of the ball. The
first also returns what it proves: a lower bound of the margin in the whole ball.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.errors import require_at_least
from keras_curv.network import FeedForward, likeliest_rivals


def normalized(gradient: tf.Tensor) -> tf.Tensor:
    """`g / ‖g‖` of each row, 0 where g is; of a confident net g² underflows, and g does not."""
    largest = tf.reduce_max(tf.abs(gradient), axis=-1, keepdims=True)
    gradient = tf.math.divide_no_nan(gradient, largest)
    return tf.math.divide_no_nan(gradient, tf.norm(gradient, axis=-1, keepdims=True))


class AttackResult(NamedTuple):
    """All of the shape of `rival`, `(n,)` or `(n, rivals)`.

    Attributes:
        point: that shape and then `(dim,)`; in the ball.
        margin: f at the point; never above f(x0).
        lower_bound: `≤ f` everywhere in the ball, by the curvature given (up to rounding).
        primal_equals_dual: the two agree: the point is the worst one in the ball.
    """

    point: tf.Tensor
    margin: tf.Tensor
    lower_bound: tf.Tensor
    primal_equals_dual: tf.Tensor


def curvature_attack(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    *,
    radius,
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
        InputError: `steps` is not positive.

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
    require_at_least(steps, 1, "steps")
    shape, several = tf.shape(rival), rival if rival.shape.rank == 2 else rival[:, None]
    count = tf.shape(several)[1]
    # From here on a row is a pair (example, rival).
    origin, rows = tf.repeat(x, count, axis=0), tf.repeat(label, count)
    rival = tf.reshape(several, (-1,))
    curvature = tf.cast(tf.reshape(curvature, (-1,)), x.dtype)
    radius = tf.repeat(tf.broadcast_to(dual.as_dtype(radius, x.dtype), tf.shape(x)[:1]), count)
    multiplier = dual.attack_multiplier(radius)

    # At x itself the rivals share one forward pass.
    evaluation = network.evaluate(x, label, several)
    at_start = tf.reshape(evaluation.margin, (-1,))
    gradient = tf.reshape(evaluation.gradient, tf.shape(origin))
    first = dual.advance(multiplier, origin, curvature, dual.start(origin), at_start, gradient)

    def body(index, margin, gradient, *state):
        iterate = dual.Iterate(*state)
        margin, gradient = network.margin_and_gradient(iterate.point, rows, rival)
        moved = dual.advance(multiplier, origin, curvature, iterate, margin, gradient)
        return index + 1, margin, gradient, *moved

    _, margin, gradient, *state = tf.while_loop(
        lambda index, *_: index < steps,
        body,
        (tf.constant(1), at_start, gradient, *first),
        maximum_iterations=steps - 1,
    )
    iterate = dual.Iterate(*state)
    # The last gradient was taken a step back.
    bound = dual.minorant(margin, gradient, iterate.previous_point - origin, curvature)
    lower = dual.lower_bound(bound, radius)
    lower = tf.where(tf.math.is_nan(lower), tf.constant(-np.inf, lower.dtype), lower)
    point = project(iterate.point, origin, radius)
    margin = network.margin(point, rows, rival)
    worse = ~(margin < at_start)  # NaN counts as worse
    point = tf.where(worse[:, None], origin, point)
    margin = tf.where(worse, at_start, margin)
    exact = margin - lower <= tolerance * (1.0 + tf.abs(at_start))
    return AttackResult(
        tf.reshape(point, tf.concat([shape, tf.shape(x)[1:]], axis=0)),
        *(tf.reshape(value, shape) for value in (margin, lower, exact)),
    )


def project(point: tf.Tensor, x: tf.Tensor, radius) -> tf.Tensor:
    """The nearest point of the ball of that radius around `x`, `(n, dim)`."""
    offset = point - x
    distance = tf.norm(offset, axis=-1, keepdims=True)
    radius = tf.reshape(dual.as_dtype(radius, x.dtype), (-1, 1))
    return x + offset * tf.where(distance > radius, radius / distance, tf.ones_like(distance))


def uniform_in_ball(x: tf.Tensor, radius, seed) -> tf.Tensor:
    """A random point of each ball around `x`, `(n, dim)`; the same for the same seed `(2,)`."""
    one, other = tf.unstack(tf.random.split(seed))
    offset = tf.random.stateless_normal(tf.shape(x), one, dtype=x.dtype)
    part = tf.random.stateless_uniform(tf.shape(x[:, :1]), other, dtype=x.dtype)
    length = tf.reshape(dual.as_dtype(radius, x.dtype), (-1, 1)) * part ** (1.0 / x.shape[-1])
    return x + length * tf.math.divide_no_nan(offset, tf.norm(offset, axis=-1, keepdims=True))


def pgd_attack(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    *,
    radius,
    steps: int = 200,
    restarts: int = 5,
    step_size: float = 2.5,
    seed: int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Projected gradient descent, each restart against another rival, the likeliest first.

    A descent that follows whichever rival is strongest at the moment gets caught between two:
    on a robust MNIST net it missed one in ten of the adversarial points that are known to be
    there. What counts is the smallest margin over all rivals at any point met.

    Args:
        x: `(n, dim)`.
        label: `(n,)`, integers.
        radius: ρ > 0, a number or `(n,)`.
        steps: of each restart; a step is `step_size · ρ / steps` long, along −∇f/‖∇f‖.
        restarts: one for each rival begins at x; further ones at random points of the ball.
        seed: of these.

    Returns:
        The lowest margin met, `(n,)`, and where, `(n, dim)`; negative means misclassified.

    Example:
        >>> from keras_curv import Network
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], [])
        >>> x, label = tf.constant([[1.0, 0.0]]), tf.constant([0])  # √½ from the boundary
        >>> [bool(pgd_attack(network, x, label, radius=r)[0] < 0.0) for r in (0.7, 0.72)]
        [False, True]

    Reference: Madry et al., "Towards deep learning models resistant to adversarial attacks"
    (2018), with l2 steps; Gowal et al., "An alternative surrogate loss for PGD-based adversarial
    testing" (2019), for the targets.
    """
    radius = tf.broadcast_to(dual.as_dtype(radius, x.dtype), tf.shape(x)[:1])
    ranked = likeliest_rivals(network.logits(x), label, network.classes - 1)

    def descend(target, best_margin, best_point, point):
        logits = network.logits(point)
        at_label = tf.gather(logits, label, batch_dims=1)
        strongest = network.runner_up(logits, label)
        margin = at_label - tf.gather(logits, strongest, batch_dims=1)
        better = margin < best_margin
        best_point = tf.where(better[:, None], point, best_point)
        _, gradient = network.margin_and_gradient(point, label, target)
        moved = point - (step_size * radius / steps)[:, None] * normalized(gradient)
        return target, tf.minimum(margin, best_margin), best_point, project(moved, x, radius)

    best = tf.fill(tf.shape(radius), tf.constant(float("inf"), x.dtype)), x
    for restart in range(restarts):
        begin = x
        if restart >= network.classes - 1:
            begin = uniform_in_ball(x, radius, (seed, restart))
        target = ranked[:, restart % (network.classes - 1)]
        _, *best, _ = tf.while_loop(
            lambda *_: True, descend, (target, *best, begin), maximum_iterations=steps + 1
        )
    return tuple(best)
