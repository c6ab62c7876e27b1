"""The paper's Algorithms 1 and 2 as they stand there: bisection around majorisation–minimisation.

Tests and benchmarks compare the solver of `dual.py` with them. They take 30 × 20 gradients for each
pair, need curvature bounds on both sides, and Algorithm 1 returns a certificate only once it has
converged; `dual.minorant` needs neither.

Reference: Singla & Feizi (2020), appendices C.2 to C.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_curv.network.network import Network


class ReferenceSolution(NamedTuple):
    """Rows `(n,)`.

    Attributes:
        point: the x that the algorithm returns, `(n, dim)`.
        dual_value: at the last η; valid if x minimises there. For Algorithm 1 as the radius
            `√(2 d_cert)`, for Algorithm 2 `d_attack`, a lower bound of the margin.
        gradient_evaluations: int32; a row stops an inner loop at its own residual.
    """

    point: tf.Tensor
    dual_value: tf.Tensor
    gradient_evaluations: tf.Tensor


def algorithm1(
    network: Network,
    x: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    *,
    lower: tf.Tensor,
    upper: tf.Tensor,
    **steps: Any,
) -> ReferenceSolution:
    """Solves the certificate problem: `max_η min_x ½‖x − x0‖² + η f(x)` over −1/M ≤ η ≤ −1/m.

    Args:
        x: x0, `(n, dim)`, float32 or float64.
        label, rival: `(n,)`.
        lower, upper: m < 0 < M, `(n,)`; K = max(−m, M).
        steps: `outer_steps`, `inner_steps` and `residual` of `_solve`.
    """
    curvature = tf.maximum(-lower, upper)
    point, eta, count = _solve(
        network,
        (x, label, rival),
        (-1.0 / upper, -1.0 / lower),
        stationarity=lambda eta, gradient, offset: eta * gradient + offset,
        steepness=lambda eta: 1.0 + tf.abs(eta * curvature),
        # The boundary is further on: raise η.
        raise_eta=lambda point: network.margin(point, label, rival) > 0.0,
        **steps,
    )
    margin = network.margin(point, label, rival)
    value = 0.5 * tf.reduce_sum(tf.square(point - x), axis=1) + eta * margin
    return ReferenceSolution(point, tf.sqrt(2.0 * tf.maximum(value, 0.0)), count)


def algorithm2(
    network: Network,
    x: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    *,
    radius: float,
    lower: tf.Tensor,
    upper: tf.Tensor,
    **steps: Any,
) -> ReferenceSolution:
    """Solves the attack problem: `max_η min_x f(x) + (η/2)(‖x − x0‖² − ρ²)`, −m ≤ η ≤ 20 (1 − m).

    Args: as for `algorithm1`, and ρ.
    """
    curvature = tf.maximum(-lower, upper)
    point, eta, count = _solve(
        network,
        (x, label, rival),
        (-lower, 20.0 * (1.0 - lower)),
        stationarity=lambda eta, gradient, offset: gradient + eta * offset,
        steepness=lambda eta: curvature + eta,
        # Outside of the ball: raise η.
        raise_eta=lambda point: tf.norm(point - x, axis=1) >= radius,
        **steps,
    )
    outside = tf.reduce_sum(tf.square(point - x), axis=1) - radius**2
    value = network.margin(point, label, rival) + 0.5 * eta * outside
    return ReferenceSolution(point, value, count)


def _solve(
    network: Network,
    example: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    interval: tuple[tf.Tensor, tf.Tensor],
    *,
    stationarity: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    steepness: Callable[[tf.Tensor], tf.Tensor],
    raise_eta: Callable[[tf.Tensor], tf.Tensor],
    outer_steps: int = 30,
    inner_steps: int = 20,
    residual: float = 1e-5,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Bisects η; at each, takes steps of `stationarity / steepness` until it is small.

    Args:
        example: x0, label and rival.
        interval: of η.
        stationarity: η, ∇f and x − x0 → gradient of what is minimised at η.
        steepness: η → bound on its curvature.
        raise_eta: x → whether a larger η is needed.
        outer_steps: halvings of the interval of η.
        inner_steps: gradients for each η, at most.
        residual: norm of the gradient at which the inner loop stops.

    Returns:
        x, the next η, and the number of gradients, each `(n, …)`.
    """
    x, label, rival = example

    def descend(eta: tf.Tensor, point: tf.Tensor, count: tf.Tensor, active: tf.Tensor) -> tuple:
        _, gradient = network.margin_and_gradient(point, label, rival)
        slope = stationarity(eta[:, None], gradient, point - x)
        moving = active & (tf.norm(slope, axis=1) >= residual)
        point = tf.where(moving[:, None], point - slope / steepness(eta)[:, None], point)
        return eta, point, count + tf.cast(active, tf.int32), moving

    def halve(low: tf.Tensor, high: tf.Tensor, point: tf.Tensor, count: tf.Tensor) -> tuple:
        eta = 0.5 * (low + high)
        _, point, count, _ = tf.while_loop(
            lambda eta, point, count, active: tf.reduce_any(active),
            descend,
            (eta, point, count, tf.ones_like(count, tf.bool)),
            maximum_iterations=inner_steps,
        )
        larger = raise_eta(point)
        return tf.where(larger, eta, low), tf.where(larger, high, eta), point, count

    low, high, point, count = tf.while_loop(
        lambda *_: True,
        halve,
        (*interval, x, tf.zeros(tf.shape(x)[:1], tf.int32)),
        maximum_iterations=outer_steps,
    )
    return point, 0.5 * (low + high), count
