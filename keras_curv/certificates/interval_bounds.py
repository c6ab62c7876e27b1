"""Entrywise intervals through affine maps and activations, rounding charged.

An activation maps an interval to the range of its values; an affine map sends the box with centre c
and half-widths r to `c W + b ± r |W|`. Both are exact for one box, but ignore dependences between
its entries. Where σ is bounded, the box of its values is bounded for every ball, so these bounds
stop falling as the ball grows.

**Rounding.** In float64, with N terms in a sum, the error of `c W + b` is at most
`γ_{N+8} ((|c| + r) |W| + |b|)`, which also covers the rounding of c, r and `r |W|`; folding adds up
to `‖ΔW‖ ‖a‖ + ‖Δb‖`; the errors of activations are those in `numerics/rounding.py`.

Reference: Gowal et al., "On the effectiveness of interval bound propagation for training verifiably
robust models" (2018), equations 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activation import first_from, placeable
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.network.affine import Affine
from keras_curv.numerics import intervals
from keras_curv.numerics.rounding import (
    ACTIVATION_TINY,
    ACTIVATION_ULPS,
    ROUNDING_SLACK,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    up,
)


def has_value_range(activation: Activation) -> bool:
    """Returns whether `value_range` has a rule for an activation of one kind."""
    return activation.monotone or activation.falls or activation.minimum_at is not None


def require_value_range(activation: Activation) -> None:
    """Refuses an activation whose value range has no rule, by an InputError that names it."""
    for each, _ in activation.groups:
        if not has_value_range(each):
            others = (entry.name for entry in ACTIVATIONS.values() if entry.minimum_at is not None)
            raise InputError(
                f"no interval bounds for activation {each.name!r}: they need one that does "
                f"not fall, or one of {', '.join(others)}"
            )


def value_range(
    activation: Activation, low: tf.Tensor, high: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the least and largest `σ(z)` on `[low, high]`, up to rounding; differentiable.

    Example:
        >>> from keras_curv.network import activations
        >>> low, high = value_range(activations.get("relu"), tf.constant(-1.0), tf.constant(2.0))
        >>> float(low), float(high)
        (0.0, 2.0)
    """
    if len(activation.groups) > 1:
        pairs = [
            value_range(g, low[..., units], high[..., units]) for g, units in activation.groups
        ]
        least, most = (tf.concat(ends, axis=-1) for ends in zip(*pairs, strict=True))
        return least, most
    low, high = placeable(low, high, activation.period, tf)
    ends = activation.value(low), activation.value(high)
    if activation.minimum_at is None:
        return ends[::-1] if activation.falls else ends
    least, most = tf.minimum(*ends), tf.maximum(*ends)
    least = tf.minimum(least, _next_to(activation, activation.minimum_at, low, high))
    if activation.maximum_at is not None:
        most = tf.maximum(most, _next_to(activation, activation.maximum_at, low, high))
    return least, most


def _next_to(activation: Activation, at: float, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Returns σ at the point of each interval that is nearest to an extremum of σ."""
    place = first_from(low, tf.constant(at, low.dtype), activation.period)
    return activation.value(tf.minimum(tf.maximum(place, low), high))


class Box(NamedTuple):
    """A set that contains a layer's values for n examples: `centre ± half`, or the input ball.

    Its parts are arrays in a certificate, and in training tensors, without a charge for rounding.

    Example:
        >>> box = Box(np.array([[1.0, 1.0]]), np.array([[0.5, 0.25]]))
        >>> low, high = box.image(Affine(np.array([[1.0], [-1.0]]), np.zeros(1)))
        >>> low.round(9), high.round(9)
        (array([[-0.75]]), array([[0.75]]))
    """

    centre: Any  # `(n, N)`
    half: Any  # `(n, N)`; None: the set is the ball
    radius: Any = None  # the radius of the ball, `(n, 1)`
    pinned: Any = None  # entries that stay at the ball's centre, `(N,)`; None: none

    @classmethod
    def of_values(cls, activation: Activation, low: np.ndarray, high: np.ndarray) -> Box:
        """Returns the box of `σ(z)` for z in `[low, high]`, rounded outward."""
        ends = value_range(activation, tf.constant(low), tf.constant(high))
        low, high = (end.numpy() for end in ends)
        relative, floor = 2.0 * ACTIVATION_ULPS * UNIT, activation.value_floor
        low = low - relative * (np.abs(low) + floor) - 2.0 * ACTIVATION_TINY
        high = high + relative * (np.abs(high) + floor) + 2.0 * ACTIVATION_TINY
        centre = low / 2.0 + high / 2.0
        return cls(centre, up(np.maximum(high - centre, centre - low)) + 4.0 * TINY)

    def image(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Returns least and largest `a W + b`, `(n, fan_out)`, rounded outward; ±∞ on overflow."""
        thin = affine.is_thin_for(len(self.centre))
        kernel = affine.thin_kernel if thin else affine.kernel
        return self._image(kernel, affine.bias, affine.kernel_error, affine.bias_error)

    def margins(self, last: Affine, rows: np.ndarray, constants: np.ndarray) -> np.ndarray:
        """Returns lower bounds on `z_label − z_rival`, `(n, k)`, for the network's `margin_map`."""
        # TensorFlow, which did the subtraction, flushes entries below TINY to 0.
        flushed = 4.0 * TINY * last.fan_in
        folding = 2.0 * last.kernel_error + flushed, 2.0 * last.bias_error
        return self._image(np.swapaxes(rows, 1, 2), constants, *folding)[0]

    def linear_image(self, matrix: Any, norms: Callable[[Any, int], Any]) -> tuple[Any, Any]:
        """Returns centre `c W` and half-widths `r |W|` of `a W`, for a ball `R ‖w_j‖`.

        They are exact up to rounding.

        Args:
            matrix: W, `(N, m)` or `(n, N, m)`: an array, or a tensor if centre and half are.
            norms: the function of an array and an axis that returns l2 norms.
        """
        if self.half is None:
            moved = matrix if self.pinned is None else matrix * ~self.pinned[:, None]
            return intervals.batched_product(self.centre, matrix), self.radius * norms(moved, -2)
        return intervals.image(self.centre, self.half, matrix)

    def _image(
        self, matrix: np.ndarray, constants: np.ndarray, kernel_error: float, bias_error: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `image` for a matrix and constants that may have an axis of examples first."""
        middle, spread = self.linear_image(matrix, norm_bound)
        middle = middle + constants
        if self.half is None:
            norm = norm_bound(self.centre, axis=1) + self.radius[:, 0]
        else:
            norm = norm_bound(np.abs(self.centre) + self.half, axis=1)
        size = intervals.batched_product(np.abs(self.centre), abs(matrix)) + spread
        terms = matrix.shape[-2]
        error = gamma(terms + 16) * (size + np.abs(constants))
        error += (kernel_error * norm + bias_error)[:, None]
        spread = spread + (error + 8.0 * TINY * terms) * ROUNDING_SLACK
        low, high = middle - spread, middle + spread
        return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
