"""The radius that one gradient proves, wherever it was taken: the certificate itself.

Reference: Singla & Feizi (2020), theorem 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_curv import dual
from keras_curv.network.network import Evaluation
from keras_curv.numerics import rounding


class Charged(NamedTuple):
    """Margins of n points against as many rivals each, gradients, and bounds of the errors."""

    margin: tf.Tensor  # `(n, rivals)`
    gradient: tf.Tensor  # `(n, rivals, dim)`
    error: rounding.Charge  # bounds for these; of float32, 0, as it proves nothing


def charged(layers: Sequence[rounding.LayerNorms], evaluation: Evaluation) -> Charged:
    """Returns an evaluation with the charge for its rounding.

    Args:
        layers: `network.layer_norms`.
        evaluation: in float64; or in float32, to look where to go.
    """
    margin, gradient = evaluation.margin, evaluation.gradient
    if margin.dtype != tf.float64:
        none = tf.zeros_like(margin)
        return Charged(margin, gradient, rounding.Charge(none, none))
    error = rounding.margin_charge(layers, evaluation.activations, evaluation.cotangents)
    return Charged(margin, gradient, error)


def proved_radius(
    found: Charged, displacement: tf.Tensor | None, curvature: tf.Tensor, taken_off: tf.Tensor
) -> tf.Tensor:
    """Radii `(n, rivals)` from gradients at `x0 + displacement`, rounding charged.

    A⁻ = A − e_f − e_g ‖d‖ − γ (|f| + E + ‖g‖‖d‖ + κ‖d‖²) − 8Dτ (1 + ‖g‖ + ‖d‖),
    h⁺ = h + e_g + γ (‖g‖ + κ‖d‖) + 8Dτκ + the floor of a slope

    where A is that of f − E, and τ what an entry of d, a product or a sum may lose to underflow:
    each of D products g_i d_i at most τ (1 + |g_i| + |d_i|), as operands may be flushed too, κ d_i
    at most 3τ (1 + κ), and κ‖d‖² no more than γ of itself or τ. A curvature that holds in
    `B(x0, R)` only needs `‖displacement‖ ≤ R`, and proves min(r, R).

    Args:
        found: at `x0 + displacement`.
        displacement: `(n, dim)`; None: 0, for which nothing is computed.
        curvature: κ, `(n, rivals)`.
        taken_off: E, bounds on the served error of each margin, `(n, rivals)`.
    """
    bound, slope_error = charged_minorant(found, displacement, curvature, taken_off)
    bound = bound._replace(slope=bound.slope + slope_error)
    radius = dual.certified_radius(bound) * (1.0 - rounding.gamma(32))
    return tf.reshape(radius, tf.shape(curvature))


def charged_minorant(
    found: Charged, displacement: tf.Tensor | None, curvature: tf.Tensor, taken_off: tf.Tensor
) -> tuple[dual.Minorant, tf.Tensor]:
    """Returns the minorant with A⁻ and h of `proved_radius`, and `h⁺ − h`, rows `n · rivals`.

    In any other dtype than float64 nothing is charged, and the result is an estimate.
    """
    taken_off = tf.reshape(taken_off, [-1])
    margin = tf.reshape(found.margin, [-1])
    size, margin = tf.abs(margin) + taken_off, margin - taken_off
    shape = tf.shape(found.gradient)
    gradient = tf.reshape(found.gradient, (-1, shape[2]))
    kappa = tf.reshape(curvature, [-1])
    if displacement is not None:
        each = tf.broadcast_to(tf.expand_dims(displacement, 1), shape)
        displacement = tf.reshape(each, tf.shape(gradient))
    bound = dual.minorant(margin, gradient, displacement, kappa)
    if gradient.dtype != tf.float64:
        return bound, tf.zeros_like(kappa)
    if displacement is None:
        distance, steepness = tf.zeros_like(kappa), bound.slope
    else:
        distance, steepness = dual.norm(displacement), dual.norm(gradient)
    margin_error, gradient_error = (tf.reshape(error, [-1]) for error in found.error)
    entries = tf.cast(shape[2], tf.float64)
    tiny, unit = 8.0 * rounding.TINY * entries, rounding.gamma(entries + 10.0)
    intercept_error = (
        margin_error
        + gradient_error * distance
        + unit * (size + steepness * distance + kappa * distance * distance)
        + tiny * (1.0 + steepness + distance)
    ) * rounding.ROUNDING_SLACK
    slope_error = gradient_error + unit * (steepness + kappa * distance) + tiny * kappa
    slope_error = tf.where(kappa > 0.0, rounding.up(slope_error) + rounding.SLOPE_FLOOR, 0.0)
    return bound._replace(intercept=bound.intercept - intercept_error), slope_error
