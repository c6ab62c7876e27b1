"""The paper's Algorithms 1 and 2 as they stand there: bisection around majorisation–minimisation.

Kept for tests and benchmarks, as what the solver of `dual.py` is held against: 30 × 20
gradients for each pair. They need curvature bounds on both sides, and what Algorithm 1 returns
is a certificate only once it has converged; `dual.minorant` needs neither.

Reference: Singla & Feizi (2020), appendices C.2 to C.5.
"""

from __future__ import annotations

from typing import NamedTuple

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
    outer_steps: int = 30,
    inner_steps: int = 20,
    residual: float = 1e-5,
) -> ReferenceSolution:
    """The certificate problem: `max_η min_x ½‖x − x0‖² + η f(x)` over −1/M ≤ η ≤ −1/m.

    Args:
        x: x0, `(n, dim)`, float32 or float64.
        label, rival: `(n,)`.
        lower, upper: m < 0 < M, `(n,)`; K = max(−m, M).
        outer_steps: halvings of the interval of η.
        inner_steps: gradients for each η, at most.
        residual: norm of `η g + x − x0` at which the inner loop stops.
    """
    curvature = tf.maximum(-lower, upper)

    inner = _majorise_minimise(
        network,
        (x, label, rival),
        stationarity=lambda eta, gradient, offset: eta * gradient + offset,
        steepness=lambda eta: 1.0 + tf.abs(eta * curvature),
        steps=inner_steps,
        residual=residual,
    )

    def decide(margin, point):
        return margin > 0.0  # the boundary is further on: raise η

    low, high = -1.0 / upper, -1.0 / lower
    eta, point, count = _bisect(network, x, label, rival, low, high, inner, decide, outer_steps)
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
    outer_steps: int = 30,
    inner_steps: int = 20,
    residual: float = 1e-5,
) -> ReferenceSolution:
    """The attack problem: `max_η min_x f(x) + (η/2)(‖x − x0‖² − ρ²)` over −m ≤ η ≤ 20 (1 − m).

    Args: as for `algorithm1`, and ρ.
    """
    curvature = tf.maximum(-lower, upper)

    inner = _majorise_minimise(
        network,
        (x, label, rival),
        stationarity=lambda eta, gradient, offset: gradient + eta * offset,
        steepness=lambda eta: curvature + eta,
        steps=inner_steps,
        residual=residual,
    )

    def decide(margin, point):
        return tf.norm(point - x, axis=1) >= radius  # outside of the ball: raise η

    low, high = -lower, 20.0 * (1.0 - lower)
    eta, point, count = _bisect(network, x, label, rival, low, high, inner, decide, outer_steps)
    outside = tf.reduce_sum(tf.square(point - x), axis=1) - radius**2
    value = network.margin(point, label, rival) + 0.5 * eta * outside
    return ReferenceSolution(point, value, count)


def _majorise_minimise(network, pair, *, stationarity, steepness, steps, residual):
    """The inner loop: at a fixed η, steps of `stationarity / steepness` until it is small."""
    x, label, rival = pair

    def inner(eta, point, count):
        def body(point, count, active):
            _, gradient = network.margin_and_gradient(point, label, rival)
            slope = stationarity(eta[:, None], gradient, point - x)
            moving = active & (tf.norm(slope, axis=1) >= residual)
            point = tf.where(moving[:, None], point - slope / steepness(eta)[:, None], point)
            return point, count + tf.cast(active, tf.int32), moving

        point, count, _ = tf.while_loop(
            lambda point, count, active: tf.reduce_any(active),
            body,
            (point, count, tf.ones_like(count, tf.bool)),
            maximum_iterations=steps,
        )
        return point, count

    return inner


def _bisect(network, x, label, rival, low, high, inner, decide, steps):
    def body(low, high, eta, point, count):
        point, count = inner(eta, point, count)
        raise_low = decide(network.margin(point, label, rival), point)
        low, high = tf.where(raise_low, eta, low), tf.where(raise_low, high, eta)
        return low, high, 0.5 * (low + high), point, count

    start = (low, high, 0.5 * (low + high), x, tf.zeros(tf.shape(x)[:1], tf.int32))
    _, _, eta, point, count = tf.while_loop(lambda *_: True, body, start, maximum_iterations=steps)
    return eta, point, count
