"""One minorant answers two questions: how far is a prediction safe, how low is f in a ball?

Let `∇²f ≽ −κ` everywhere. At any point x̂, with `d = x̂ − x0` and `g = ∇f(x̂)`, Taylor's
theorem and Cauchy–Schwarz give for every δ

    f(x0 + δ) ≥ A − h ‖δ‖ − (κ/2) ‖δ‖²,    A = f(x̂) − g·d − (κ/2)‖d‖²,   h = ‖g + κ d‖.

Its root is a certificate, its value at ρ bounds an attack in the ball of radius ρ. Both hold
at any x̂: a solver that stops early, or diverges, makes them smaller, never wrong.

The best x̂ solves the paper's dual, `max_η min_x ½‖x − x0‖² + η f(x)` over 0 ≤ η ≤ 1/κ for
the certificate, and the same function at `η ≤ min(1/κ, ρ/‖g‖)` for the attack. Both have the
stationarity condition `x − x0 + η g(x) = 0`. So one iteration serves both: set η from the
current f and g, step along the residual with a Barzilai–Borwein length; each step takes one
gradient, for x and η together.

Everything here works on rows: `(n,)` scalars and `(n, dim)` vectors, any float dtype.

Numbers may be of any size that the dtype holds. Squares and products are taken in an order, or of
vectors scaled to about 1, so that none overflows or underflows where the result does not: κ‖d‖² may
be of the order of f while every d_i² is 0 in floating point. `proved_radius.py` charges underflow
with all other rounding.

Reference: Singla & Feizi (2020), theorems 1 and 2; Barzilai & Borwein, IMA J. Numer. Anal. 8
(1988).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

_STEP_RANGE = (0.05, 5.0)


class Minorant(NamedTuple):
    """A bound `f(x0 + δ) ≥ intercept − slope ‖δ‖ − (curvature/2) ‖δ‖²` for every δ; rows `(n,)`."""

    intercept: tf.Tensor
    slope: tf.Tensor
    curvature: tf.Tensor


def minorant(
    margin: tf.Tensor, gradient: tf.Tensor, displacement: tf.Tensor | None, curvature: tf.Tensor
) -> Minorant:
    """Returns the minorant of one evaluation at `x̂ = x0 + displacement`.

    Args:
        margin: f(x̂), `(n,)`.
        gradient: ∇f(x̂), `(n, dim)`.
        displacement: x̂ − x0, `(n, dim)`; None: 0.
        curvature: κ ≥ max(0, −m), `(n,)`.
    """
    if displacement is None:
        slope = norm(gradient)
        known = tf.where(tf.math.is_finite(slope), margin, np.nan)  # as g·0 would be
        return Minorant(known, slope, curvature)
    scale, scaled = _scaled(displacement)
    # One factor of the scale at a time: the square of a small one is 0.
    bent = 0.5 * curvature * scale * dot(scaled, scaled) * scale
    intercept = margin - dot(gradient, displacement) - bent
    return Minorant(
        intercept, norm(gradient + tf.expand_dims(curvature, 1) * displacement), curvature
    )


def certified_radius(bound: Minorant) -> tf.Tensor:
    """Returns the root r of the minorant, `(n,)`: `‖δ‖ < r ⇒ f(x0 + δ) > 0`.

    `r = 2A / (h + √(h² + 2κA))`; 0 where A ≤ 0 or anything is NaN; infinite only where
    κ = h = 0 < A, a margin that cannot change: other overflow is rounded down to the largest
    finite number.
    """
    a, h, kappa = bound
    proves = (a > 0.0) & tf.math.is_finite(a)
    safe = tf.where(proves, a, 0.0)
    bend = tf.sqrt(2.0 * kappa) * tf.sqrt(safe)
    larger = tf.maximum(h, bend)  # scaled: h² and κA may underflow where h and √(κA) do not
    ratio = tf.math.divide_no_nan(tf.minimum(h, bend), larger)
    root = safe / (h + larger * tf.sqrt(1.0 + ratio * ratio)) * 2.0  # 2A alone may overflow
    root = tf.where(larger > 0.0, tf.minimum(root, root.dtype.max), root)
    return tf.where(proves & ~tf.math.is_nan(root), root, 0.0)


def lower_bound(bound: Minorant, radius: tf.Tensor) -> tf.Tensor:
    """Returns `L(ρ) ≤ min f` over the ball of radius ρ around x0, `(n,)`."""
    a, h, kappa = bound
    return a - h * radius - 0.5 * kappa * radius * radius


class Iterate(NamedTuple):
    """A search in progress, a row for each (example, rival)."""

    point: tf.Tensor  # the point of the next gradient, `(n, dim)`
    # previous_point, previous_residual: those of the step before, `(n, dim)`
    previous_point: tf.Tensor
    previous_residual: tf.Tensor
    steps: tf.Tensor  # gradients used, `(n,)`, int32

    def rows(self, index: tf.Tensor) -> Iterate:
        """Returns the iterate of these rows."""
        return Iterate(*(tf.gather(part, index) for part in self))


# (margin, gradient, displacement, curvature) of the current evaluation → η, from 0 to 1/κ, `(n,)`
Multiplier = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def certificate_multiplier(
    margin: tf.Tensor, gradient: tf.Tensor, displacement: tf.Tensor, curvature: tf.Tensor
) -> tf.Tensor:
    """Returns η for the largest radius: `max_{0 ≤ η ≤ 1/κ} min_x ½‖x − x0‖² + η f(x)`."""
    # The root of the linearised f along −g; η beyond 1/κ would lose convexity.
    eta = (margin - dot(gradient, displacement)) * tf.math.reciprocal_no_nan(
        dot(gradient, gradient)
    )
    return _clip_to_convex(tf.maximum(eta, 0.0), curvature)


def attack_multiplier(radius: tf.Tensor | float) -> Multiplier:
    """Returns the rule of η for `min f(x)` over `‖x − x0‖ ≤ ρ`, ρ > 0 of shape `(n,)`."""

    def multiplier(
        margin: tf.Tensor, gradient: tf.Tensor, displacement: tf.Tensor, curvature: tf.Tensor
    ) -> tf.Tensor:
        # 1/η = max(κ, ‖g‖/ρ): stationary on the sphere, or where κ is the binding constraint.
        eta = as_dtype(radius, gradient.dtype) * tf.math.reciprocal_no_nan(_norm(gradient))
        return _clip_to_convex(eta, curvature)

    return multiplier


def radius_bracket(
    margin: tf.Tensor, gradient: tf.Tensor, displacement: tf.Tensor, curvature: tf.Tensor
) -> tf.Tensor:
    """Bounds the radius that any evaluation can certify from above, `(n,)`.

    `d(η) ≤ ½‖d‖² + η f(x̂) ≤ ½‖d‖² + max(f(x̂), 0)/κ` for every admissible η.
    """
    distance = _norm(displacement)
    remaining = tf.maximum(margin, 0.0)
    upper = tf.where(
        remaining > 0.0, tf.sqrt(distance * distance + 2.0 * remaining / curvature), distance
    )
    # Almost on the boundary, with κ too small for the bound above to show it: the boundary is
    # about f/‖g‖ further on. This affects only the stopping rule.
    slope = _norm(gradient)
    near = remaining <= 1e-3 * slope * distance
    upper = tf.where(near, tf.minimum(upper, distance + 2.0 * remaining / slope), upper)
    upper = tf.where(margin > 0.0, upper, distance)
    return tf.where(tf.math.is_nan(upper), tf.constant(float("inf"), upper.dtype), upper)


def start(origin: tf.Tensor) -> Iterate:
    """Returns the search before its first evaluation, which is at x0 = `origin`, `(n, dim)`."""
    return Iterate(
        point=origin,
        previous_point=origin,
        previous_residual=tf.zeros_like(origin),
        steps=tf.zeros_like(origin[:, 0], tf.int32),
    )


def advance(
    multiplier: Multiplier,
    origin: tf.Tensor,
    curvature: tf.Tensor,
    iterate: Iterate,
    margin: tf.Tensor,
    gradient: tf.Tensor,
) -> Iterate:
    """Makes one step, from the margin and gradient at `iterate.point`.

        x ← x − s (x − x0 + η g)

    with s = 1 at first and then Barzilai–Borwein's length from the last two residuals.
    """
    displacement = iterate.point - origin
    eta = multiplier(margin, gradient, displacement, curvature)
    return along(iterate, displacement + tf.expand_dims(eta, 1) * gradient)


def along(iterate: Iterate, residual: tf.Tensor) -> Iterate:
    """Makes one step of `advance` along a given residual, `(n, dim)`."""
    step = _barzilai_borwein(
        iterate.point - iterate.previous_point, residual - iterate.previous_residual
    )
    step = tf.where(iterate.steps == 0, tf.ones_like(step), step)
    return Iterate(
        point=iterate.point - tf.expand_dims(step, 1) * residual,
        previous_point=iterate.point,
        previous_residual=residual,
        steps=iterate.steps + 1,
    )


def _barzilai_borwein(moved: tf.Tensor, changed: tf.Tensor) -> tf.Tensor:
    quotient = tf.math.divide_no_nan(dot(moved, changed), dot(changed, changed))
    return tf.clip_by_value(tf.where(quotient > 0.0, quotient, 1.0), *_STEP_RANGE)


def _clip_to_convex(eta: tf.Tensor, curvature: tf.Tensor) -> tf.Tensor:
    return tf.where(curvature > 0.0, tf.minimum(eta, 1.0 / curvature), eta)


def as_dtype(value: tf.Tensor | float, dtype: tf.DType) -> tf.Tensor:
    """Returns a number or tensor in a dtype; a Python number does not pass through float32."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def norm(a: tf.Tensor) -> tf.Tensor:
    """Returns ‖a‖₂ over the last axis for entries of any size; NaN where one is not finite."""
    scale, scaled = _scaled(a)
    return scale * _norm(scaled)


def _scaled(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(scale, a / scale)`, where squares of the quotient's entries are in range or too
    small to matter beside the largest; the scale is 1 if possible, and constant for gradients.
    """
    limits = np.finfo(a.dtype.as_numpy_dtype)
    largest = tf.stop_gradient(tf.reduce_max(tf.abs(a), axis=-1, keepdims=True))
    usual = (largest > float(limits.tiny) ** 0.25) & (largest < float(limits.max) ** 0.25)
    scale = tf.where(usual | (largest == 0.0), tf.ones_like(largest), largest)
    return tf.squeeze(scale, -1), a / scale


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns a·b over the last axis."""
    return tf.reduce_sum(a * b, axis=-1)


def _norm(a: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(a * a, axis=-1))
