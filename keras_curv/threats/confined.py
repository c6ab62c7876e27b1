"""The minorant of `dual.py` for inputs with limits, or with dead zones before they move.

Let `f(u0 + e) ≥ A + h·e − (κ/2)‖e‖²` for every e, as one evaluation gives it. Let a change δ of the
input move u0 by an e within limits that satisfies, with `b > 0` and `dead ≥ 0` by coordinate and
direction,

    −down_i ≤ e_i ≤ up_i,        ‖δ‖² ≥ C(e) = Σ over e_i ≠ 0 of (b_i |e_i| + dead_i)².

An attacker confined to a box [l, u] has b = 1, dead = 0 and the limits u − x0 and x0 − l; for an
input that the classifier itself clips see `clipped.py`. Then for every λ ≥ 0, by weak duality, as
the minimum separates into the coordinates,

    f ≥ S(λ) − (λ/2)‖δ‖²,    S(λ) = A + Σ φ_i(λ),
    φ_i(λ) = min(0, min over 0 < ε ≤ lim_i of −|h_i|ε − (κ/2)ε² + (λ/2)(b_i ε + dead_i)²),

where lim and dead are those of the direction of −h, in which f can fall. A move in the opposite
direction does not lower f where `λb² ≥ κ`; elsewhere it lowers f by at most as much as a move along
−h, and then the larger limit and the smaller dead zone of both directions are used. So each λ gives
a minorant without a slope: its root is a certificate, `r = √(2 S(λ)⁺/λ)`, and its value at ρ bounds
an attack.

**Rounding.** An error of h by a vector of norm E costs `E‖e‖ ≤ E‖δ‖/min b`, and becomes the slope.
φ_i is computed from below: with w ≥ |h| − λ b dead and q ≤ λb² − κ in floating point, the minimum
of `−wε + qε²/2` is at lim, or else at least `−w²/2q`.

**The best û.** The best bound over all û is a convex problem: with a dead zone, the least value of
`−|h|ε + …` is, by its convex envelope, that of a coordinate which moves by E with probability θ,
and else stays. E is at least the knee, `dead √(λ/(λb² − κ))` within lim.

Everything here works on rows: `(n,)` scalars and `(n, dim)` vectors, any float dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.numerics.rounding import unit_and_tiny


class Reach(NamedTuple):
    """Limits, dead zones and costs of the coordinates' moves; see above."""

    up: tf.Tensor  # up, down: limits ≥ 0 of either direction, `(n, dim)`; may be infinite
    down: tf.Tensor
    dead_up: tf.Tensor  # dead_up, dead_down: dead ≥ 0 of either direction, `(n, dim)`
    dead_down: tf.Tensor
    cost: tf.Tensor  # b > 0, `(dim,)`

    def along(self, direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns lim and dead of the sign of `direction`, `(n, dim)`."""
        upward = direction > 0.0
        limit = tf.where(upward, self.up, self.down)
        if self.dead_up.shape[0] == 1:  # for all rows, usually 0
            return limit, tf.minimum(self.dead_up, self.dead_down)
        return limit, tf.where(upward, self.dead_up, self.dead_down)

    def price(self, displacement: tf.Tensor) -> tf.Tensor:
        """Returns `C(e)`, the least `‖δ‖²` that makes these moves, `(n,)`."""
        _, dead = self.along(displacement)
        paid = tf.abs(displacement) * self.cost + dead
        return tf.reduce_sum(tf.where(displacement != 0.0, paid * paid, 0.0), axis=-1)

    def rows(self, index: tf.Tensor) -> Reach:
        """Returns the reach of these rows."""
        return self.each(lambda part: tf.gather(part, index))

    def each(self, change: Callable[[tf.Tensor], tf.Tensor]) -> Reach:
        """Returns the reach with `change` applied to every part except the cost."""
        return Reach._make([*map(change, self[:-1]), self.cost])

    @property
    def least_cost(self) -> tf.Tensor:
        """Returns the smallest b."""
        return tf.reduce_min(self.cost)


def confined_minorant(
    intercept: tf.Tensor,
    steepness: tf.Tensor,
    curvature: tf.Tensor,
    reach: Reach,
    multiplier: tf.Tensor,
    slope_error: tf.Tensor | float = 0.0,
) -> dual.Minorant:
    """Returns the minorant in ‖δ‖ for λ, rounding charged; it is valid for every λ ≥ 0.

    Args:
        intercept: A, or less, `(n,)`.
        steepness: h, `(n, dim)`.
        curvature: κ ≥ 0, `(n,)`.
        reach: the reach of u0; its limits, dead zones and costs are taken as exact.
        multiplier: λ, `(n,)`.
        slope_error: E ≥ the norm of the error of `steepness`, `(n,)`.
    """
    unit, tiny = unit_and_tiny(steepness.dtype)
    kappa, lam = tf.expand_dims(curvature, 1), tf.expand_dims(multiplier, 1)
    size, bent = tf.abs(steepness), lam * reach.cost * reach.cost
    # Where λb² overflows, a smaller value is a bound too; ∞ would lose the entry's gain.
    q = tf.minimum(bent * (1.0 - 16.0 * unit) - kappa * (1.0 + 4.0 * unit), steepness.dtype.max)
    limit, dead = reach.along(-steepness)
    either = q < 0.0  # then the worst point may be the limit in either direction
    limit = tf.where(either, tf.maximum(reach.up, reach.down), limit) * (1.0 + 8.0 * unit)
    dead = tf.where(either, tf.minimum(reach.dead_up, reach.dead_down), dead)
    barrier = lam * reach.cost * dead
    w = size - barrier + 16.0 * unit * (size + barrier)
    far = q * limit * (1.0 + 16.0 * unit)
    at_limit = (q <= 0.0) | (w > far)
    ends = limit * (w - 0.5 * q * limit) + 16.0 * unit * limit * (tf.abs(w) + tf.abs(q) * limit)
    ends = tf.where(limit > 0.0, ends, 0.0)
    inside = tf.maximum(w, 0.0)
    # Not w² times 1/q: where q is large, the quotient may be flushed to 0.
    inside = inside * inside / tf.where(q > 0.0, q, 1.0) * (0.5 + 16.0 * unit)
    entry = 0.5 * lam * dead * dead * (1.0 - 16.0 * unit)
    # A NaN, from ∞ · 0, makes the bound NaN, which proves nothing.
    gained = tf.where(at_limit, ends, inside) - entry
    total = tf.reduce_sum(tf.where(gained < 0.0, tf.zeros_like(gained), gained), axis=-1)
    terms = _entries(steepness) + 8.0
    total = total * (1.0 + 4.0 * terms * unit) + 16.0 * terms * tiny
    kept = intercept - total
    kept -= 4.0 * unit * (tf.abs(intercept) + total)
    return dual.Minorant(kept, _slope(slope_error, reach) + tf.zeros_like(kept), multiplier)


def plain_minorant(
    intercept: tf.Tensor,
    steepness: tf.Tensor,
    curvature: tf.Tensor,
    reach: Reach,
    slope_error: tf.Tensor | float = 0.0,
) -> dual.Minorant:
    """Returns the minorant of `dual.py` without the coordinates that cannot move along −h.

    The simple bound is `A − h⁺‖δ‖ − (κ/2)‖δ‖²/min b²`, h⁺ the norm of h/b without these
    coordinates. It is never above the best of `confined_minorant`. Arguments as there.
    """
    limit, _ = reach.along(-steepness)
    free = tf.where(limit > 0.0, steepness / reach.cost, 0.0)
    unit, tiny = unit_and_tiny(steepness.dtype)
    grown = 1.0 + (_entries(steepness) + 16.0) * 2.0 * unit
    slope = (dual.norm(free) + _slope(slope_error, reach)) * grown
    # Two successive divisions: b² may overflow where κ/b² does not underflow, and either quotient
    # may be flushed to 0.
    bent = curvature
    for _ in range(2):
        bent = (bent + tiny) / reach.least_cost * grown + tiny
    bent = tf.where(curvature > 0.0, bent, 0.0)
    return dual.Minorant(intercept, slope, bent)


def present_multiplier(
    gradient: tf.Tensor, displacement: tf.Tensor, reach: Reach
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the λ for which these moves are best, estimated from entries that move freely, and
    the cost of these entries' moves; both `(n,)`.

    An entry that moves, has no dead zone and is below its limit satisfies `|g| = λ b² |e|`.
    """
    limit, dead = reach.along(displacement)
    size = tf.abs(displacement)
    free = tf.where((size < 0.999 * limit) & (dead == 0.0), size, 0.0)
    pull = tf.reduce_sum(tf.abs(gradient) * free, axis=-1)
    cost = tf.reduce_sum(tf.square(reach.cost * free), axis=-1)
    return tf.math.divide_no_nan(pull, cost), cost


class Move(NamedTuple):
    """A random move, which crosses dead zones with some probability."""

    displacement: tf.Tensor  # e = ± θE, `(n, dim)`
    cost: tf.Tensor  # `Σ θ (bE + dead)²`, `(n,)`
    spread: tf.Tensor  # `Σ (θE² − e²)/2`, `(n,)`: the mixture's loss by curvature, divided by κ


def best_move(
    gradient: tf.Tensor, curvature: tf.Tensor, reach: Reach, multiplier: tf.Tensor
) -> Move:
    """Minimises `g·e + (κ/2)‖e‖²` plus the convex envelope of `(λ/2) C − (κ/2)‖e‖²`.

    The minimum is exact, by coordinate. A fixed point, with g = ∇f(u0 + e), is the û of the best
    bound for λ. The result only guides a search.

    Args:
        gradient: `(n, dim)`.
        curvature: κ ≥ 0, `(n,)`.
        reach: the reach of u0.
        multiplier: λ with `λb² ≥ κ`, `(n,)`.
    """
    kappa, lam = tf.expand_dims(curvature, 1), tf.expand_dims(multiplier, 1)
    limit, dead = reach.along(-gradient)
    size, bent = tf.abs(gradient), lam * reach.cost * reach.cost
    free, knee = _knee(kappa, lam, reach.cost, limit, dead)
    barrier = lam * reach.cost * dead
    # Up to the knee the envelope is a line, whose slope is the cost of that move over its length.
    price = barrier + 0.5 * free * knee + tf.math.divide_no_nan(0.5 * lam * dead * dead, knee)
    on_line = (size - price) * tf.math.reciprocal(tf.maximum(kappa, 1e-30))
    beyond = (size - barrier) * tf.math.reciprocal(bent)
    move = tf.clip_by_value(tf.minimum(on_line, beyond), 0.0, limit)
    return _mixed(-tf.sign(gradient) * move, move, knee, reach.cost, dead)


def mixture(
    displacement: tf.Tensor, curvature: tf.Tensor, reach: Reach, multiplier: tf.Tensor
) -> Move:
    """Returns the move whose mean is the given displacement, `(n, dim)`."""
    limit, dead = reach.along(displacement)
    _, knee = _knee(curvature[:, None], multiplier[:, None], reach.cost, limit, dead)
    return _mixed(displacement, tf.abs(displacement), knee, reach.cost, dead)


def _knee(
    kappa: tf.Tensor, lam: tf.Tensor, cost: tf.Tensor, limit: tf.Tensor, dead: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `λb² − κ` and the shortest move that pays for crossing its dead zone."""
    bent = lam * cost * cost
    free = tf.maximum(bent - kappa, 0.0)
    return free, tf.minimum(dead * tf.sqrt(lam / tf.maximum(free, 1e-30 * bent)), limit)


def _mixed(
    displacement: tf.Tensor, size: tf.Tensor, knee: tf.Tensor, cost: tf.Tensor, dead: tf.Tensor
) -> Move:
    whole = tf.maximum(size, knee)
    paid = cost * whole + dead
    return Move(
        displacement,
        tf.reduce_sum(tf.math.divide_no_nan(size, whole) * paid * paid, axis=-1),
        0.5 * tf.reduce_sum(size * (whole - size), axis=-1),
    )


def _slope(error: tf.Tensor | float, reach: Reach) -> tf.Tensor:
    """Returns an upper bound on the slope in ‖δ‖ that an error of h causes."""
    error = tf.convert_to_tensor(error, reach.cost.dtype)
    unit, tiny = unit_and_tiny(error.dtype)
    slope = error / reach.least_cost * (1.0 + 16.0 * unit) + tiny
    return tf.where(error == 0.0, tf.zeros_like(slope), slope)


def _entries(rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(rows)[-1], rows.dtype)
