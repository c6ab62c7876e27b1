"""The best radius over λ of one minorant, by golden sections: what a search is held against."""

import tensorflow as tf

from keras_curv import dual
from keras_curv.threats.confined import Reach, confined_minorant, plain_minorant

_GOLDEN = 0.6180339887498949
_ORDERS = (-4.0, 0.75)  # of λ's distance from the least one, relative to that of a plain minorant
_EVALUATIONS = 12  # of S


def confined_radius(
    intercept: tf.Tensor,
    steepness: tf.Tensor,
    curvature: tf.Tensor,
    reach: Reach,
    slope_error: tf.Tensor | float = 0.0,
    evaluations: int = _EVALUATIONS,
) -> tf.Tensor:
    """Returns the largest radius found over λ, `(n,)`: `‖δ‖ < r ⇒ f > 0`, rounding charged.

    `r² = 2 S(λ)/λ`, S concave, has one peak. From the λ of the simple bound, golden sections of
    its distance from the least λ; any λ is sound. Arguments as in `confined_minorant`.

    Args:
        evaluations: of S, at least 2.
    """
    simple = plain_minorant(intercept, steepness, curvature, reach, slope_error)
    radius = dual.certified_radius(simple)
    scale = tf.math.divide_no_nan(simple.slope, tf.minimum(radius, radius.dtype.max))
    scale = tf.where(scale > 0.0, scale, 1.0)
    floor = simple.curvature

    def proved(order: tf.Tensor) -> tf.Tensor:
        bound = confined_minorant(
            intercept, steepness, curvature, reach, floor + scale * 10.0**order, slope_error
        )
        return dual.certified_radius(bound)

    left, right = (tf.zeros_like(radius) + end for end in _ORDERS)
    # As many points as there are evaluations, one new one after the first two.
    low, high = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
    at_low, at_high = proved(low), proved(high)
    best = tf.maximum(at_low, at_high)
    for _ in range(evaluations - 2):
        rising = at_high >= at_low  # where neither proves anything, a larger λ does
        left, right = tf.where(rising, low, left), tf.where(rising, right, high)
        new = tf.where(rising, left + _GOLDEN * (right - left), right - _GOLDEN * (right - left))
        found = proved(new)
        best = tf.maximum(best, found)
        low, high = tf.where(rising, high, new), tf.where(rising, new, low)
        at_low, at_high = tf.where(rising, at_high, found), tf.where(rising, found, at_low)
    return tf.maximum(best, radius) * (1.0 - 64.0 * 2.0**-52)  # that of the roots
