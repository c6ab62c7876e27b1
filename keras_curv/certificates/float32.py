"""Errors of a network's margins when it runs in float32: the guarantee level `float32`.

A server computes in float32, so a prediction may flip close to its certified radius in real
arithmetic. This module bounds the error of the served margin for all inputs of a ball at once, so
that a method can require this much of the margin to remain.

Model of arithmetic: IEEE single, round to nearest, `fl(a ∘ b) = (a ∘ b)(1 + δ) + η` with
`|δ| ≤ u = 2⁻²⁴` and `|η| ≤ τ = 2⁻¹²⁶`, subnormals kept or flushed to zero; dot products of float32
numbers in any order, with or without fused multiply-add, the bias being any of the terms (XLA
begins with it); additions of constants in any order, as TensorFlow folds them; no faster algorithm
(no Winograd, no FFT, no TF32, no bfloat16); activations within `ω u (|σ| + φ)` and an absolute
`τ_σ`, where φ is 0 for those that are one op and 1 + |z| for others (ω = 16; measured on
TensorFlow's CPU kernels, `tests/certificates/test_float32.py`: 8.2 at most for softplus, sigmoid
and tanh). The input is taken as the float32 vector that the server receives.

An affine map is served as it is stored, or with scalings, shifts and products that reading the
model folds into it; in both cases the served map is affine, and the errors ΔW and Δb of its weights
are bounded entrywise (`error_ball.py`). A flush to zero between two folded maps is an absolute
error, which the second map multiplies: it is part of Δb (`flow.py`). The last product of a map,
with its bias, loses at most `τ (4n + 4 + Σ|w| + Σ|a|)`: τ for each of n terms and n partial sums,
and the flushes of factors as they are read. Intermediate numbers are bounded by products of
absolute values, because cancellation in the folded map may hide large ones.

With `‖δ‖ ≤ R` the distance from x0, `a_I` the activations in real arithmetic, ℓ_I a Lipschitz
constant of x ↦ a_I, c(·) norms of columns and `P_W(ε) = min(|W|ᵀε, c(W) ‖ε‖)`,

    |W|ᵀ|a_I| ≤ |W|ᵀ|a_I(x0)| + R c(W) ℓ_I
    ζ_I = P_W(ε_{I−1}) + ΔWᵀ|a_{I−1}| + P_ΔW(ε_{I−1}) + Δb + underflow
    ε_I = g_I ζ_I + ω u (|a_I| + φ + g_I ζ_I) + τ_σ

Let g_I be the largest |σ′| of each unit on `z_I(x0) ± (R c(W_I) ℓ_{I−1} + ζ_I)`, which contains the
real and the served pre-activation for all distances up to R. Then all bounds are linear in the
distance: the error at the logits is `fixed + rate · R`. A margin has the errors of two columns of
the last map.

Reference: Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 3.1; Jia &
Rinard, "Exploiting verified neural networks via floating point numerical error" (2021), for the
motivation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import tensorflow as tf

from keras_curv.certificates.method import ServedError
from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.errors import InputError
from keras_curv.network.activations import Activation, require_lipschitz
from keras_curv.network.network import Network
from keras_curv.network.shared_graph import as_graph
from keras_curv.network.unitwise import IDENTITY, UnitWise
from keras_curv.numerics.intervals import outward
from keras_curv.numerics.rounding import (
    FLOAT32_TINY,
    FLOAT32_UNIT,
    ROUNDING_SLACK,
    norm_bound,
    pre_activation_errors,
)

FLOAT32_ULPS = 16.0
ACTIVATION_TINY = 2.0**-100
_LARGEST = 2.0**120  # of any intermediate number; float32 ends at 2¹²⁸
_LARGEST_CUBED = 2.0**40  # for activations of several ops, with squares, and a cube in gelu


class LinearError(NamedTuple):
    """Error bounds of float32 serving in a ball of radius R around x0, linear in R."""

    # fixed, rate: the error of a margin is at most `fixed + rate · R`, `(n, k)` each
    fixed: np.ndarray
    rate: np.ndarray
    reach: np.ndarray  # the bounds hold for R below it, `(n,)`; beyond, a number may overflow
    # the error of every entry of z_I is at most `fixed + rate · R`, a pair for each of the L − 1
    # hidden maps, `(n,)` both
    pre_activations: list[tuple[np.ndarray, np.ndarray]]


class Float32Error(ServedError):
    """Bounds on |served margin − real margin| of one network.

    Args:
        network: the network as it was read.
        head: the function that the served output applies to the logits; see `graph.HEADS`.

    Raises:
        InputError: the head has no float32 guarantee, a constant may overflow, or an activation has
            an unbounded slope.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> error = Float32Error(network)
        >>> rivals, radius = np.array([[1]]), np.array([[0.5]])
        >>> bool(0.0 < error(np.ones((1, 2)), np.array([0]), rivals, radius)[0, 0] < 1e-5)
        True
    """

    def __init__(self, network: Network, head: str = "logits"):
        lost = _head_error(head, network.classes)
        if lost is None:
            raise InputError(
                f"in float32 a served {head} may tie where the logits do not, so it cannot be "
                "guaranteed; serve logits or softmax, or ask for the guarantee 'real'"
            )
        if not all(
            np.isfinite(_entries(error)).all()
            for affine in network.affines
            for error in (affine.served_kernel_error, affine.served_bias_error)
        ):
            raise InputError(
                "a constant of the model may overflow in float32, and then the guarantee float32 "
                "does not hold; use the guarantee real"
            )
        require_lipschitz(network.activations)  # or errors would grow without bound
        self.network, self._head = network, lost
        plain = not any(np.any(sigma.served_floor) for sigma in network.activations)
        self._limit = _LARGEST if plain else _LARGEST_CUBED
        self._kernels = [affine.absolute for affine in network.affines]
        self._columns = [affine.column_bounds for affine in network.differentials]
        self._away = [
            norm_bound(affine.served_kernel_error, axis=0) for affine in network.differentials
        ]
        self._lipschitz = [1.0, *lipschitz_bounds(network)]
        signature = [tf.TensorSpec((None, network.dim), tf.float64)]
        self._forward = as_graph(network.forward, signature)

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns bounds on the served error of each margin, as in `ServedError`."""
        label, rivals = np.asarray(label), np.asarray(rivals)
        with np.errstate(over="ignore", invalid="ignore"):
            linear = self.linear(x, label, rivals, np.max(radius, axis=1, initial=0.0))
            error = (linear.fixed + linear.rate * radius) * ROUNDING_SLACK
            fits = radius < linear.reach[:, None]
        return np.where(fits & np.isfinite(error), error, np.inf)

    def linear(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, within: np.ndarray
    ) -> LinearError:
        """Returns the bounds as functions of R, for callers that do not know the radius yet.

        Args:
            x, label, rivals: see `__call__`.
            within: the largest R for which they are used, `(n,)`; it may be infinite.
        """
        x, within = np.asarray(x, np.float64), np.asarray(within)[:, None]
        # Every quantity is a pair: its part at x0, (n, width), and its part per unit of R.
        before_bends, sizes = self._evaluated(x)
        error, error_rate = np.zeros_like(sizes[0]), np.zeros_like(sizes[0])
        largest, largest_rate = sizes[0].max(axis=1, initial=0.0), np.ones(len(x))
        pre_activations = []
        for index, affine in enumerate(self.network.affines):
            kernel, columns = self._kernels[index], self._columns[index]
            steepest, lipschitz = self._away[index], self._lipschitz[index]
            size, last = sizes[index], index == len(self.network.affines) - 1
            folded = affine.kernel_error
            passed = _through(kernel, columns, error, folded)
            passed_rate = _through(kernel, columns, error_rate, folded)
            missing = folded * norm_bound(size, axis=1)[:, None]  # error of Wᵀa by folding
            reach = size @ kernel + missing + np.abs(affine.bias)
            reach_rate = columns * lipschitz
            away = affine.served_kernel_error
            rounded = size @ away + affine.served_bias_error + _through(away, steepest, error)
            rounded += missing + affine.bias_error
            rounded_rate = (steepest + folded) * lipschitz + _through(away, steepest, error_rate)
            terms = (size + error).sum(axis=1, keepdims=True)
            weights = kernel.sum(axis=0) + folded * affine.fan_in
            underflow = FLOAT32_TINY * (4.0 * affine.fan_in + 4.0 + weights + terms)
            rounded += underflow
            rate_of_terms = affine.fan_in * lipschitz + error_rate.sum(axis=1, keepdims=True)
            rounded_rate += FLOAT32_TINY * rate_of_terms
            peak = 2.0 * affine.served_gain
            largest = np.maximum(largest, peak * (1.0 + (size + error).max(axis=1)))
            rate_of_largest = peak * (lipschitz + error_rate.max(axis=1))
            largest_rate = np.maximum(largest_rate, rate_of_largest)
            if last:
                break
            activation = self.network.activations[index]
            omega = _ulps(activation) * FLOAT32_UNIT
            before, before_rate = passed + rounded, passed_rate + rounded_rate
            worst = before.max(axis=1), before_rate.max(axis=1)
            pre_activations.append((worst[0] * ROUNDING_SLACK, worst[1] * ROUNDING_SLACK))
            moved = before + (reach_rate + before_rate) * within
            slope = _largest_slope(activation, *before_bends[index], moved)
            own = omega * sizes[index + 1] + ACTIVATION_TINY
            own_rate = omega * slope * reach_rate
            floor = activation.served_floor
            if np.any(floor):
                own = own + floor * omega * (1.0 + reach + before)
                own_rate = own_rate + floor * omega * (reach_rate + before_rate)
            error = slope * before * (1.0 + omega) + own
            error_rate = slope * before_rate * (1.0 + omega) + own_rate
        # The margin is the real difference of two served logits: w = W_y − W_t multiplies the
        # errors of a, and both logits round.
        columns = self.network.affines[-1].kernel.T
        w = np.abs(columns[label][:, None] - columns[rivals]) * ROUNDING_SLACK  # (n, k, width)
        w += 2.0 * self.network.affines[-1].kernel_error
        norms = norm_bound(w, axis=2)
        carried = np.minimum(
            np.einsum("nkj,nj->nk", w, error), norms * norm_bound(error, axis=1)[:, None]
        )
        carried_rate = np.minimum(
            np.einsum("nkj,nj->nk", w, error_rate), norms * norm_bound(error_rate, axis=1)[:, None]
        )
        fixed = carried + _both(rounded, label, rivals)
        rate = carried_rate + _both(rounded_rate, label, rivals)
        relative, absolute = self._head
        fixed += relative * _both(reach + passed, label, rivals) + absolute
        rate += relative * _both(reach_rate + passed_rate, label, rivals)
        reach = (self._limit - largest) / largest_rate / ROUNDING_SLACK
        return LinearError(fixed * ROUNDING_SLACK, rate * ROUNDING_SLACK, reach, pre_activations)

    def _evaluated(
        self, x: np.ndarray
    ) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
        """Evaluates the network at x0: returns z_1, …, z_{L−1} as computed, each with a bound on
        its error, `(n,)`; and bounds on the real |a_0|, …, |a_{L−1}|, each `(n, width)`."""
        pre, post = self._forward(tf.constant(x))
        errors = pre_activation_errors(self.network.layer_norms[:-1], post)
        sizes, computed = [np.abs(post[0].numpy())], []
        for activation, z, a, error in zip(
            self.network.activations, pre, post[1:], errors, strict=True
        ):
            computed.append((z.numpy(), error.numpy()))
            off = activation.slope * error.numpy()[:, None] + 1e-12 * activation.value_floor
            sizes.append((np.abs(a.numpy()) + off) * ROUNDING_SLACK + FLOAT32_TINY)
        return computed, sizes


def _largest_slope(
    activation: Activation, z: np.ndarray, error: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    """Returns the largest |σ′| of each unit within `moved` of its z at x0, `(n, width)`.

    Args:
        z: pre-activations at x0, as computed, `(n, width)`.
        error: bound on the error of each, `(n,)`.
        moved: `(n, width)`; NaN counts as infinite.
    """
    low, high = outward(z, moved * ROUNDING_SLACK + error[:, None])
    return np.maximum(*np.abs(activation.first_range_on(low, high)))


def _ulps(activation: Activation) -> Any:
    """Returns ω; 0 for identity units."""
    ulps = [0.0 if sigma is IDENTITY else FLOAT32_ULPS for sigma, _ in activation.groups]
    if not isinstance(activation, UnitWise):
        return ulps[0]
    return np.repeat(ulps, [count for _, count in activation.parts])


def _head_error(head: str, classes: int) -> tuple[float, float] | None:
    """Returns the error of logit differences by a monotone head: a part relative to the two
    logits, and an absolute part; None for a head without a bound.

    softmax and log_softmax subtract the largest logit, and perhaps the logarithm of the sum;
    exp, quotient and sigmoid round their results.
    """
    spread = np.log(classes)
    return {
        "logits": (0.0, 0.0),
        "softmax": (2.0 * FLOAT32_UNIT, (2.0 * FLOAT32_ULPS + 8.0 + 4.0 * spread) * FLOAT32_UNIT),
        "log_softmax": (4.0 * FLOAT32_UNIT, (8.0 + 8.0 * spread) * FLOAT32_UNIT),
        "binary_sigmoid": (0.0, 4.0 * FLOAT32_ULPS * FLOAT32_UNIT),  # its slope at 0 is 1/4
    }.get(head)


def _through(
    kernel: Any, columns: np.ndarray, error: np.ndarray, folded: float = 0.0
) -> np.ndarray:
    """Bounds `|Wᵀe|` from above for all |e| ≤ error, `(…, in)` → `(…, out)`.

    Args:
        kernel: the absolute values of the stored W, dense or sparse.
        columns: bounds on the norms of the columns of W.
        error: not negative.
        folded: bound on ‖W − stored W‖.
    """
    norm = norm_bound(error, axis=-1)[..., None]
    return np.minimum(error @ kernel + folded * norm, columns * norm)


def _entries(array: Any) -> np.ndarray:
    """Returns the stored entries."""
    return array.data if scipy.sparse.issparse(array) else array


def _both(values: np.ndarray, label: np.ndarray, rivals: np.ndarray) -> np.ndarray:
    """Returns the value at the label plus that at each rival, `(n, k)`, from `(n, classes)`."""
    own = np.take_along_axis(values, label[:, None], axis=1)
    return own + np.take_along_axis(values, rivals, axis=1)
