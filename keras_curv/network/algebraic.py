"""Activations of which products and quotients are made: square, reciprocal, rsqrt, sqrt.

Two tensors that both depend on the input are multiplied by squares, `xy = (x + y)²/4 − (x − y)²/4`,
and divided by a reciprocal. None of these has a bounded slope on the whole line, so they have lines
on intervals, but no curvature and no Lipschitz bound. Of what is not positive the last three are
undefined: their values are NaN there, and nothing is proved of an interval that ends there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from keras_curv.network.activation import Activation

_Function = Callable[[tf.Tensor], tf.Tensor]


def _where_positive(function: _Function) -> _Function:
    def value(z: tf.Tensor) -> tf.Tensor:
        nothing = tf.constant(math.nan, z.dtype)
        return tf.where(z > 0.0, function(z), nothing)

    return value


def _convex_decreasing(
    name: str, value: _Function, first: _Function, second: _Function
) -> Activation:
    return Activation(
        name=name,
        value=_where_positive(value),
        first=_where_positive(first),
        second=_where_positive(second),
        first_range=(-math.inf, 0.0),
        second_range=(0.0, math.inf),
        piece_range=(0.0, math.inf),
        first_extrema=(),
        second_extrema=(),
        positive=True,
    )


SQUARE = Activation(
    name="square",
    value=tf.square,
    first=lambda z: 2.0 * z,
    second=lambda z: 2.0 * tf.ones_like(z),
    first_range=(-math.inf, math.inf),
    second_range=(0.0, math.inf),  # as no bound of curvature follows without one of the slope
    piece_range=(0.0, 2.0),
    first_extrema=(),
    second_extrema=(),
    served_floor=0.0,
    minimum_at=0.0,
)
RECIPROCAL = _convex_decreasing(
    "reciprocal", lambda z: 1.0 / z, lambda z: -1.0 / (z * z), lambda z: 2.0 / (z * z * z)
)
RSQRT = _convex_decreasing(
    "rsqrt",
    lambda z: 1.0 / tf.sqrt(z),
    lambda z: -0.5 / (z * tf.sqrt(z)),
    lambda z: 0.75 / (z * z * tf.sqrt(z)),
)
SQRT = Activation(
    name="sqrt",
    value=_where_positive(tf.sqrt),
    first=_where_positive(lambda z: 0.5 / tf.sqrt(z)),
    second=_where_positive(lambda z: -0.25 / (z * tf.sqrt(z))),
    first_range=(0.0, math.inf),
    second_range=(-math.inf, 0.0),
    piece_range=(-math.inf, 0.0),
    first_extrema=(),
    second_extrema=(),
    positive=True,
)
ALGEBRAIC = {entry.name: entry for entry in (SQUARE, RECIPROCAL, RSQRT, SQRT)}
