"""The curvature-based attack by proximal steps, where coordinates have limits and prices.

Plain gradients say nothing where a clip is flat; here the clip is part of the step, and gradients
are those of the network behind it. `V` below is the dual function of `threats/confined.py`, at a λ
and the move that minimises it: its maximum over λ is the best certificate of a radius.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.attacks.ball import examples_of, require_radius
from keras_curv.errors import require_at_least
from keras_curv.network.network import FeedForward
from keras_curv.threats.confined import Reach, best_move

_NEAREST = -3.0  # of λ to the least possible, relative: its order
_HALVINGS = 5  # of that order, for each gradient
_CLOSE = 0.1  # relative: of the cost to ρ², where a search counts as ended
_LEAST = 1e-6  # of λ, where κ is 0


class ProximalAttack(NamedTuple):
    """Result of an attack; all but `point` are of the shape of `rival`, `(n, rivals)`.

    `V = f(point) + added + κ · shortfall` is the dual value; with `point` held fixed its gradient
    in κ is `shortfall`.
    """

    point: tf.Tensor  # û, `(n, rivals, dim)`; within the limits
    added: tf.Tensor  # see above
    shortfall: tf.Tensor  # see above; never positive
    distance: tf.Tensor  # square root of the cost of the move
    solved: tf.Tensor  # whether the distance is ρ, or λ the least possible


def proximal_attack(
    network: FeedForward,
    start: tf.Tensor,
    reach: Reach,
    label: tf.Tensor,
    rival: tf.Tensor,
    *,
    radius: Any,
    curvature: tf.Tensor,
    steps: int = 2,
) -> ProximalAttack:
    """Solves `max_λ min_e f(u0 + e) + (λ/2)(C(e) − ρ²)`, C by its convex envelope.

    Args:
        network: f.
        start: u0, `(n, dim)`.
        reach: of the coordinates of u0, rows as of `start`.
        label: `(n,)`.
        rival: `(n, rivals)`.
        radius: ρ > 0, a number or `(n,)`.
        curvature: κ with `∇²f ≽ −κ`, of the shape of `rival`.
        steps: gradients for each example and rival.
    """
    require_radius(radius)
    require_at_least(steps, 1, "steps")
    shape, of = tf.shape(rival), examples_of(rival)
    origin, rows, spread = tf.gather(start, of), tf.gather(label, of), reach.rows(of)
    kappa = tf.reshape(tf.cast(curvature, start.dtype), (-1,))
    rho = tf.gather(tf.broadcast_to(dual.as_dtype(radius, start.dtype), shape[:1]), of)
    least_cost = tf.reduce_min(reach.cost)
    floor = tf.maximum(kappa / least_cost**2, _LEAST)
    gradient = tf.reshape(network.evaluate(start, label, rival).gradient, tf.shape(origin))
    multiplier, bound = _multiplier(gradient, kappa, spread, rho, floor)
    move = best_move(gradient, kappa, spread, multiplier)
    for _ in range(steps - 1):
        point = origin + move.displacement
        _, gradient = network.margin_and_gradient(point, rows, tf.reshape(rival, (-1,)))
        multiplier, bound = _multiplier(gradient, kappa, spread, rho, floor)
        move = best_move(gradient, kappa, spread, multiplier)
    excess = 0.5 * (move.cost - rho * rho)
    bound &= excess < 0.0  # there λ moves with κ
    solved = bound | (tf.abs(excess) <= _CLOSE * rho * rho)
    shortfall = tf.where(bound, excess / least_cost**2, 0.0) - move.spread
    added = multiplier * excess - kappa * move.spread - kappa * shortfall
    return ProximalAttack(
        tf.reshape(origin + move.displacement, tf.concat([shape, tf.shape(start)[1:]], axis=0)),
        *(tf.reshape(a, shape) for a in (added, shortfall, tf.sqrt(move.cost), solved)),
    )


def _multiplier(
    gradient: tf.Tensor, curvature: tf.Tensor, reach: Reach, radius: tf.Tensor, floor: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns λ, at which the move costs ρ² or which is near the least, and whether it is that.

    The cost falls as λ rises, all at once near the least λ where a move has a price of entry: so
    halvings, of the order of λ's distance from there.
    """
    slope = tf.norm(_pushed(gradient / reach.cost, reach), axis=-1)
    above = 2.0 * tf.maximum(floor, slope / radius) - floor
    order, step = tf.zeros_like(radius) + _NEAREST / 2.0, -_NEAREST / 4.0
    least = tf.ones_like(radius, tf.bool)
    for _ in range(_HALVINGS):
        cost = best_move(gradient, curvature, reach, floor + above * 10.0**order).cost
        dear = cost > radius * radius
        least &= ~dear
        order, step = tf.where(dear, order + step, order - step), step / 2.0
    return floor + above * 10.0**order, least


def _pushed(gradient: tf.Tensor, reach: Reach) -> tf.Tensor:
    """Returns the part of the gradient along which coordinates can move at all."""
    limit, _ = reach.along(-gradient)
    return tf.where(limit > 0.0, gradient, 0.0)
