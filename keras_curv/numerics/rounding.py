"""Rounding errors of float64 in a certificate: the charge of the guarantee level `real`.

A certificate is about real arithmetic on the stored weights, but is computed in float64. This
module bounds the difference a priori, and the bound is charged: it lowers the intercept and raises
the slope of the minorant (see `dual.py`), so that the radius can only shrink.

Model of arithmetic: IEEE double, round to nearest, `fl(a ∘ b) = (a ∘ b)(1 + δ) + η` with
`|δ| ≤ u = 2⁻⁵³`, `|η| ≤ τ = 2⁻¹⁰²²` (operands and results below τ may be flushed to zero); dot
products in any order, with or without fused multiply-add; activations within
`ACTIVATION_ULPS · u` of their value, relative to `|σ(z)| + φ` for σ and to sup|σ′| for σ′, and
`1024 τ` (the tests measure all three). φ, the activation's `value_floor`, is 0 except for
activations whose value cancels digits, or whose tails magnify the rounding of the argument.

Reference: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), lemma 3.1 and
section 3.1; the recursion is a running error analysis of the forward and the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import scipy.sparse
import tensorflow as tf

UNIT = 2.0**-53
TINY = 2.0**-1022
FLOAT32_UNIT = 2.0**-24
FLOAT32_TINY = 2.0**-126
# Added to computed slopes and norms, these cover any underflow in their squares.
SLOPE_FLOOR = 1e-150
CURVATURE_FLOOR = 1e-200
ACTIVATION_ULPS = 32.0
ACTIVATION_TINY = 1024.0 * TINY
# A charge is itself computed with some dozen roundings; this covers them many times over.
ROUNDING_SLACK = 1.0 + 1e-6


def gamma(operations: Any, unit: float = UNIT) -> Any:
    """Returns `γ_n = n u / (1 − n u)`, the relative error of n successive roundings.

    For a number with `n u ≥ 1` it is infinite; for a tensor `n u` must be less than 1.
    """
    error = operations * unit
    return math.inf if isinstance(error, float) and error >= 1.0 else error / (1.0 - error)


def up(value: Any, operations: float = 4.0) -> Any:
    """Returns an upper bound on a non-negative number computed with `operations` roundings."""
    return value * (1.0 + 2.0 * gamma(operations + 2.0))


# What rounding takes off a norm of float64, at most, however long: axes are counted in int32. One
# constant for all makes a graph of charges a twelfth smaller.
_LONGEST_NORM = 1.0 + gamma(2.0**31 + 4.0)


def scaled_back(bound: float, power: int) -> float:
    """Returns an upper bound on `bound · 2^power`; `inf` if it overflows."""
    try:
        return math.nextafter(math.ldexp(bound, power), math.inf)
    except OverflowError:
        return math.inf


@overload
def norm_bound(array: Any, axis: None = None) -> float: ...


@overload
def norm_bound(array: Any, axis: int) -> np.ndarray: ...


def norm_bound(array: Any, axis: int | None = None) -> float | np.ndarray:
    """Bounds the l2 (Frobenius) norm from above, over one axis or all; squares cannot underflow.

    Args:
        array: a dense array, or a sparse one with two axes.
        axis: the axis to take norms over; None: all.
    """
    if scipy.sparse.issparse(array):
        return norm_bound(array.data) if axis is None else _sparse_norms(array, axis)
    array = np.abs(np.asarray(array, np.float64))
    largest = array.max(axis=axis, keepdims=True, initial=0.0)
    scale = np.where((largest > 0.0) & np.isfinite(largest), largest, 1.0)
    terms = array.size if axis is None else array.shape[axis]
    result = _above(up(scale * np.linalg.norm(array / scale, axis=axis, keepdims=True), terms + 8))
    return float(result.item()) if axis is None else np.squeeze(result, axis)


def _sparse_norms(array: scipy.sparse.sparray, axis: int) -> np.ndarray:
    scale = max(float(np.abs(array.data).max(initial=0.0)), 1e-150)  # whose inverse is a number
    norms = np.sqrt((array / scale).power(2).sum(axis=axis))
    # What underflows in a square is less than 1e-150 of the largest entry.
    return up(scale * (norms + 1e-150 * array.shape[axis]), array.shape[axis] + 8)


def _above(bounds: np.ndarray) -> np.ndarray:
    """Returns the next larger numbers, because rounding of subnormal numbers is not relative."""
    return np.where(bounds > 0.0, np.nextafter(bounds, np.inf), bounds)


class LayerNorms(NamedTuple):
    """Upper bounds on norms of one affine map `z = a W + b`, as the charge needs them."""

    fan_in: int  # number of summed terms in `a W`
    fan_out: int  # number of summed terms in the backward product `t Wᵀ`
    norm: float  # bound on ‖W‖
    magnitude: float  # bound on ‖|W|‖, the norm of the entrywise absolute values
    bias: float  # bound on ‖b‖
    kernel_error: float  # bound on ‖W − stored W‖ (folding a BatchNormalization rounds)
    bias_error: float  # bound on ‖b − stored b‖
    slope: float  # sup |σ′| of the activation behind the map (1 for the last map)
    bend: float  # sup |σ″| of that activation (0 for the last map)
    floor: float = 0.0  # φ of that activation


class Charge(NamedTuple):
    """Bounds on |computed − real| for the margin, and on its norm for the gradient."""

    margin: tf.Tensor
    gradient: tf.Tensor


def unit_and_tiny(dtype: tf.DType) -> tuple[float, float]:
    """Returns u and τ of float64 or float32."""
    return (UNIT, TINY) if dtype == tf.float64 else (FLOAT32_UNIT, FLOAT32_TINY)


def _norm(vector: tf.Tensor) -> tf.Tensor:
    """Bounds the norm of float64 vectors from above."""
    return tf.sqrt(tf.reduce_sum(vector * vector, axis=-1)) * _LONGEST_NORM + SLOPE_FLOOR


def pre_activation_errors(
    layers: Sequence[LayerNorms], activations: Sequence[tf.Tensor], given: tf.Tensor | None = None
) -> list[tf.Tensor]:
    """Bounds ‖ẑ_I − z_I‖ by ζ_I of `margin_charge`, `(n,)` each.

    Args:
        layers: one `LayerNorms` for each affine map, in order.
        activations: `a_0 = x, a_1, …` as computed, one for each map, `(n, width)`, float64.
        given: bounds on ‖x̂ − x‖, `(n,)`; None: x is exact.
    """
    return [error * ROUNDING_SLACK for error in _errors(layers, activations, given)[0]]


def activation_errors(
    layers: Sequence[LayerNorms], activations: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Bounds ‖â_I − a_I‖ by ε_I of `margin_charge`, I = 0, 1, …; `(n,)` each.

    Args:
        layers: one `LayerNorms` for each affine map, in order.
        activations: `a_0 = x, a_1, …` as computed, including the one after the last map.
    """
    return [error * ROUNDING_SLACK for error in _errors(layers, activations)[1]]


def _errors(
    layers: Sequence[LayerNorms], activations: Sequence[tf.Tensor], given: tf.Tensor | None = None
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns ζ_1, ζ_2, … and ε_0, ε_1, … for the given activations.

    Where a factor `‖|W|‖` or an activation underflows, a norm's floor `SLOPE_FLOOR` in the other
    terms is more than that by far.
    """
    errors = [tf.zeros_like(activations[0][:, 0]) if given is None else given]
    pre_errors, sizes = [], [_norm(activation) for activation in activations]
    for index, layer in enumerate(layers):
        size = sizes[index]
        pre_errors.append(
            layer.norm * errors[index]
            + gamma(layer.fan_in + 4) * (layer.magnitude * size + layer.bias)
            + layer.kernel_error * size
            + layer.bias_error
            + 8.0 * TINY * layer.fan_in * layer.fan_out * (1.0 + size)
        )
        if index < len(activations) - 1:
            out = sizes[index + 1] + layer.fan_out**0.5 * layer.floor
            errors.append(layer.slope * pre_errors[index] + 2.0 * ACTIVATION_ULPS * UNIT * out)
    return pre_errors, errors


def margin_charge(
    layers: Sequence[LayerNorms], activations: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor]
) -> Charge:
    """Bounds the error of margins and gradients computed in float64.

    With `ε` the error of an activation and `ζ` that of a pre-activation (norms),

        ζ_I = ‖W_I‖ ε_{I−1} + γ_{n+1} (‖|W_I|‖ ‖â_{I−1}‖ + ‖b_I‖) + folding + underflow
        ε_I = g_I ζ_I + ω u (‖â_I‖ + √N_I φ_I)

    and backwards, `v_{L−1} = w`, `t_I = σ′(z_I) ∘ v_I`, `v_{I−1} = W_I t_I`,

        θ_I = g_I χ_I + (h_I ζ_I + (ω + 2) u g_I)(‖v̂_I‖ + χ_I)
        χ_{I−1} = ‖W_I‖ θ_I + γ_N ‖|W_I|‖ ‖t̂_I‖ + folding + underflow.

    A margin is the difference of two outputs of the last map, so the norms of that map count twice.

    Args:
        layers: one `LayerNorms` for each affine map, in order.
        activations: `a_0 = x, a_1, …, a_{L−1}` as computed, `(n, width)`, float64.
        cotangents: `v_{L−1}, …, v_0` as computed, `(n, rivals, width)`, float64; the last one is
            the gradient itself.

    Returns:
        `Charge(margin, gradient)`, each `(n, rivals)`, float64.
    """
    pre_errors = pre_activation_errors(layers, activations)
    sizes = [_norm(cotangent) for cotangent in cotangents]
    gradient = gradient_error(layers, pre_errors[:-1], sizes)
    margin = tf.broadcast_to(2.0 * tf.expand_dims(pre_errors[-1], 1), tf.shape(gradient))
    return Charge(margin, gradient)


def margin_error(layers: Sequence[LayerNorms], activations: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns only the margin of `margin_charge`, the same for all rivals, `(n,)`."""
    return 2.0 * pre_activation_errors(layers, activations)[-1]


def gradient_error(
    layers: Sequence[LayerNorms],
    pre_errors: Sequence[tf.Tensor],
    sizes: Sequence[tf.Tensor],
    *,
    unit: float = UNIT,
    tiny: float = TINY,
) -> tf.Tensor:
    """Bounds the norm of the gradient's error: the backward half of `margin_charge`.

    Args:
        layers: one `LayerNorms` for each affine map, in order.
        pre_errors: bounds on every entry of ẑ_I − z_I at which σ′ was taken, L − 1 of `(n,)`.
        sizes: bounds on ‖w‖ = ‖v̂_{L−1}‖, …, ‖v̂_1‖ and further, `(n, rivals)`, float64.
        unit, tiny: u and τ of the arithmetic in which the gradient was computed, to which w, each
            σ′ and each kernel may have been rounded; this bound itself is computed in float64.

    Returns:
        `(n, rivals)`, float64.
    """
    omega = ACTIVATION_ULPS
    # The error of w = W_y − W_t itself:
    last = layers[-1]
    error = 2.0 * last.kernel_error + 2.0 * unit * sizes[0] + 4.0 * last.fan_in * tiny
    for index in reversed(range(len(layers) - 1)):
        layer = layers[index]
        size = sizes[len(layers) - 2 - index]
        product_error = layer.slope * error + (
            layer.bend * tf.expand_dims(pre_errors[index], 1)
            + 2.0 * (omega + 2.0) * unit * layer.slope
            + tiny
        ) * (size + error)
        through = layer.slope * (1.0 + 4.0 * omega * unit) * size
        underflow = 8.0 * tiny * layer.fan_in * layer.fan_out * (1.0 + through + layer.magnitude)
        error = (
            layer.norm * product_error
            + (gamma(layer.fan_out + 3, unit) * layer.magnitude + layer.kernel_error) * through
            + underflow
        )
    return error * ROUNDING_SLACK
