"""The minorant of `dual.py` where inputs cannot go everywhere, or must pay before they move.

Let `f(u0 + e) ≥ A + h·e − (κ/2)‖e‖²` for every e, as one evaluation gives it, and let a change δ of
the input move u0 by an e within limits that obeys, with `b, dead ≥ 0` by coordinate and direction,

    −down_i ≤ e_i ≤ up_i,        ‖δ‖² ≥ C(e) = Σ over e_i ≠ 0 of (b_i |e_i| + dead_i)².

An attacker confined to a box has b = 1 and dead = 0, and limits l − x0 and u − x0; an input that
the classifier itself clips: `clipped.py`. Then for every λ ≥ 0, by weak duality, the minimum being
one of each coordinate by itself,

    min of f over ‖δ‖ ≤ ρ  ≥  A − λρ²/2 + Σ φ_i(λ),
    φ_i(λ) = min(0, min over 0 < ε ≤ lim of −|h_i|ε − (κ/2)ε² + (λ/2)(b ε + dead)²),

where lim and dead are those of the direction in which h falls. Against the direction of −h a move
gains only `(κ − λb²)ε²/2`, so nothing where `λb² ≥ κ`: such λ are asked for. Hence

    f(x0 + δ) > 0  for all  ‖δ‖ < r = √(2 (A + Σφ_i(λ))⁺ / λ).

The best û. The best bound over all û is a convex problem: where a move has a price of entry, the
least of `−|h|ε + …` is, by its convex envelope, that of a coordinate which moves by E with
probability θ, and by nothing else. E is at least the knee, `dead √(λ/(λb² − κ))` within lim.

Everything here works on rows: `(n,)` scalars and `(n, dim)` vectors, any float dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Reach(NamedTuple):
    """How far coordinates can move, and what it costs; see above.

    Attributes:
        up, down: limits ≥ 0 of either direction, `(n, dim)`; may be infinite.
        dead_up, dead_down: cost ≥ 0 of any move in that direction, `(n, dim)`.
        cost: b > 0, of a move by 1, `(dim,)`.
    """

    up: tf.Tensor
    down: tf.Tensor
    dead_up: tf.Tensor
    dead_down: tf.Tensor
    cost: tf.Tensor

    def along(self, direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns lim and dead of the sign of `direction`, `(n, dim)`."""
        upward = direction > 0.0
        limit = tf.where(upward, self.up, self.down)
        return limit, tf.where(upward, self.dead_up, self.dead_down)


class Move(NamedTuple):
    """A move that pays the price of entry with a probability.

    Attributes:
        displacement: e = ± θE, `(n, dim)`.
        cost: `Σ θ (bE + dead)²`, `(n,)`.
        spread: `Σ (θE² − e²)/2`, `(n,)`: what the mixture loses by curvature.
    """

    displacement: tf.Tensor
    cost: tf.Tensor
    spread: tf.Tensor


def best_move(
    gradient: tf.Tensor, curvature: tf.Tensor, reach: Reach, multiplier: tf.Tensor
) -> Move:
    """Minimises `g·e + (κ/2)‖e‖²` plus the convex envelope of the cost, by coordinate.

    A fixed point, with g = ∇f(u0 + e), is the û of the best bound for λ.

    Args:
        gradient: `(n, dim)`.
        curvature: κ ≥ 0, `(n,)`.
        reach: of the coordinates.
        multiplier: λ with `λb² ≥ κ`, `(n,)`.
    """
    kappa, lam = curvature[:, None], multiplier[:, None]
    limit, dead = reach.along(-gradient)
    size, bent = tf.abs(gradient), lam * reach.cost * reach.cost
    free = tf.maximum(bent - kappa, 0.0)
    knee = tf.minimum(dead * tf.sqrt(lam / tf.maximum(free, 1e-30 * bent)), limit)
    # The envelope is a line as far as the knee: the price of a move that far, by its length.
    entry = 0.5 * lam * dead * dead
    price = 0.5 * free * knee + lam * reach.cost * dead
    price += tf.math.divide_no_nan(entry, knee)
    on_line = (size - price) / tf.maximum(kappa, 1e-30)
    beyond = (size - lam * reach.cost * dead) / bent
    move = tf.clip_by_value(tf.minimum(on_line, beyond), 0.0, limit)
    whole = tf.maximum(move, knee)
    part = tf.math.divide_no_nan(move, whole)
    paid = reach.cost * whole + dead
    return Move(
        -tf.sign(gradient) * move,
        tf.reduce_sum(part * paid * paid, axis=-1),
        0.5 * tf.reduce_sum(move * (whole - move), axis=-1),
    )
