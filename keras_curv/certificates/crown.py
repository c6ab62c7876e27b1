"""CROWN: linear bounds of a network on an l2 ball, and the certificate that they give.

**Bounds.** On the ball `‖δ‖ ≤ R` around x, let every pre-activation z_k lie in a proved interval,
with lines below and above σ_k there (`relaxation.py`). A linear function of one layer is then
bounded below by one of the layer before: with s and t slope and intercept of the lower line where
Λ > 0 and of the upper line where Λ < 0, and `Ω = Λ ∘ s`,

    Λ a_k + c  ≥  Ω z_k + (Λ t + c)  =  (Ω W_kᵀ) a_{k−1} + (Λ t + Ω b_k + c),

and at the input the minimum over the ball is `Λ x + c − R ‖Λ‖₂`. The intervals are found the same
way, layer after layer, all the way back to the input; those of the first layer are exact. Later
layers' and the margins are also bounded by the box of the layer before (`box.py`), and the better
bound kept: lines let go of a bounded σ as the ball grows, and the box does not.

**Second pass.** With the intervals given, the best lines are not those close to σ at the midpoints
but those close to it where the bound takes its minimum: a saddle point. So a margin is bounded
twice, and the better bound kept: with lines close at the midpoints, then with lines close at the
pre-activations of `x − R Λ/‖Λ‖`, the worst point of the first pass. On random networks further
passes added less than a sixth of what the second one won.

**Rounding.** Computed Λ̃ and c̃ stand for themselves; what a step computes may differ from what it
should have, and that is charged. Let `A_k ≥ |a_k|` and `Q_k = |W_k|ᵀ A_{k−1} + |b_k| ≥ |z_k|`,
entrywise on the whole ball. `fl(Λ̃ ∘ s)` is off by u |Ω̃|, which meets z_k; `fl(Ω̃ W_kᵀ)` is off by
γ_N |Ω̃||W_k|ᵀ, which meets a_{k−1}; the sums in c̃ by γ_{N+8} of their magnitudes. With N entries in
z_k and by Cauchy–Schwarz, a step costs at most

    γ_{N+16} (3 ‖Ω̃‖ ‖Q_k‖ + ‖Λ̃‖ ‖t‖ + |c̃|) + ‖Ω̃‖ (‖ΔW_k‖ ‖A_{k−1}‖ + ‖Δb_k‖) + underflow,

ΔW and Δb what folding rounded away. At the input, with D entries, `γ_{D+16} (‖Λ̃‖ (‖x‖ + R) + |c̃|)`.

Reference: Zhang, Weng, Chen, Hsieh & Daniel, "Efficient neural network robustness certification
with general activation functions" (2018), theorem 3.2 and corollary 3.3 with p = 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.certificates.ball_bounds import BallBoundCertificate, batches
from keras_curv.certificates.box import Box, require_value_range
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.certificates.relaxation import POINTS, Relaxation, relaxation, require_relaxation
from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network, require_dense
from keras_curv.numerics.rounding import (
    ROUNDING_SLACK,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    up,
)
from keras_curv.threats.box import box_reach, least_linear
from keras_curv.threats.confined import Reach


def pre_activation_bounds(
    network: Network, x: np.ndarray, radius: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Intervals that hold `z_1, …, z_{L−1}` wherever `‖δ‖₂ ≤ radius`, in real arithmetic.

    Args:
        network: see `LinearBoundCertificate` for its activations.
        x: centres of the balls, `(n, dim)`.
        radius: `(n,)`, or one number; not negative.

    Returns:
        For each hidden layer `(low, high)`, each `(n, N_k)`; infinite where anything overflows.

    Raises:
        InputError: the network has an activation without a rule, a wrong shape, or a
            radius that is negative or not a number.

    Example:
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "softplus")
        >>> (low, high), = pre_activation_bounds(network, np.zeros((1, 2)), 0.5)
        >>> low.round(9), high.round(9)
        (array([[-0.5, -0.5]]), array([[0.5, 0.5]]))
    """
    _require_rules(network)
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or x.shape[1] != network.dim:
        raise InputError(f"x must be (n, {network.dim}). Received: {x.shape}")
    radius = np.broadcast_to(np.asarray(radius, np.float64), x.shape[:1])
    if not np.all(radius >= 0.0):
        raise InputError("a radius must not be negative, nor NaN")
    with np.errstate(over="ignore", invalid="ignore"):
        parts = batches(len(x), max(network.sizes) * _height(network))
        chunks = [_Balls(network, x[rows], radius[rows]) for rows in parts]
        for balls in chunks:
            balls.bound_layers()
    layers = zip(*(balls.layers for balls in chunks), strict=True)
    return [
        (
            np.concatenate([layer.low for layer in parts]),
            np.concatenate([layer.high for layer in parts]),
        )
        for parts in layers
    ]


class LinearBoundCertificate(BallBoundCertificate):
    """The largest ball on which CROWN's lower bounds of the margins are positive.

    Attributes:
        relaxation: the lines around an activation; a subclass may take others that are sound.
        refined: whether boxes and a second pass make the bounds tighter; not those of a
            published method, of which they are no part.

    Args:
        network: relu, or activations with a bounded second derivative but for known kinks.
        served_error: what serving may take off a margin.

    Raises:
        InputError: the network has an activation without a rule; it is named.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "softplus")
        >>> certificate = LinearBoundCertificate(network)
        >>> x, label, rivals = np.array([[3.0, 1.0]]), np.array([0]), np.array([[1]])
        >>> radius = certificate.radii(x, label, rivals, np.zeros((1, 1))).radius
        >>> float(radius[0, 0]) <= 2.0**0.5 <= 1.002 * float(radius[0, 0])
        True
    """

    name = "crown"
    relaxation = staticmethod(relaxation)
    refined = True

    def __init__(self, network: Network, served_error: ServedError = no_error):
        _require_rules(network)
        require_dense(network, self.name)
        products = np.cumsum(np.multiply(network.sizes[:-1], network.sizes[1:]), dtype=np.float64)
        hidden = zip(network.sizes[2:-1], products[:-1], strict=False)
        # Both ends of each unit of the second hidden layer and on, each a shorter backward pass.
        cost = sum(2.0 * width * cost / products[-1] for width, cost in hidden)
        slopes = [activation.steepest for activation in network.activations]
        with np.errstate(over="ignore"):
            steepest = np.prod([*(norm_bound(a.kernel) for a in network.affines), *slopes])
        super().__init__(
            network, served_error, steepest=steepest, cost=cost, height=_height(network)
        )

    def ceiling(self, x, label, rival, radius, sighting) -> np.ndarray:
        """See `Method`: for two layers, by the best lines that there can be, at one point.

        A line below σ on an interval lies below its chord too, one above σ above it. So on
        `B(x, R)` no bound exceeds `Σ_j w_j⁺ min(σ, chord)(z_j) + w_j⁻ max(σ, chord)(z_j) + c` at
        any point, such as that of the sphere toward the sighting, nor does a box.
        """
        if self.network.depth != 2 or self.network.limits is not None:
            return np.full(len(x), np.inf)
        first = self.network.affines[0]
        with np.errstate(all="ignore"):
            toward = sighting.point - x
            length = np.linalg.norm(toward, axis=1, keepdims=True)
            z = x @ first.kernel + first.bias
            moved = (toward / length * radius[:, None]) @ first.kernel
            movable = self.network.differentials[0].kernel
            reach = radius[:, None] * np.linalg.norm(movable, axis=0)
            value = self.network.activations[0].value
            low, high, there = (value(tf.constant(z + d)).numpy() for d in (-reach, reach, moved))
            share = np.clip((moved + reach) / np.maximum(2.0 * reach, TINY), 0.0, 1.0)
            chord = low + (high - low) * share
            margin_map = self.network.margin_map(tf.constant(x), label, rival[:, None])
            w, constant = (part.numpy()[:, 0] for part in margin_map)
            terms = w * np.where(w > 0.0, np.minimum(there, chord), np.maximum(there, chord))
            most = terms.sum(axis=1) + constant
            return np.where(most <= -1e-9 * np.abs(terms).sum(axis=1), radius, np.inf)

    def _margin_bounds(self, x, label, rivals, radius, asked) -> np.ndarray:
        balls = _Balls(self.network, x, radius, self.relaxation)
        balls.bound_layers(boxes=self.refined)
        last = self.network.affines[-1]
        margin_map = self.network.margin_map(tf.constant(x), label, rivals)
        rows, constants = (part.numpy() for part in margin_map)
        rounding = 2.0 * UNIT * (_row_norms(rows) * balls.size[:, None] + np.abs(constants))
        error = rounding + 2.0 * balls.folding(last)
        value, direction = balls.minimum(rows, constants, error)
        if balls.box is not None:
            value = np.maximum(value, balls.box.margins(last, rows, constants))
        value = np.where(asked, value, np.inf)
        # A rival's second pass can wait until it is the one that counts.
        waiting = np.full(value.shape, self.refined)
        while True:
            worst = value.argmin(axis=1)
            some = np.flatnonzero(np.take_along_axis(waiting, worst[:, None], axis=1)[:, 0])
            if not len(some):
                return value
            pair = some, worst[some]
            waiting[pair] = False
            again = balls.close_to(some, direction[pair])
            args = (array[pair][:, None] for array in (rows, constants, error))
            value[pair] = np.maximum(value[pair], again.minimum(*args)[0][:, 0])


class _Layer(NamedTuple):
    """What is known of one hidden layer on the balls around n examples.

    Attributes:
        low, high: the interval of z_k, `(n, N_k)`.
        lines: the relaxation of σ_k on it.
        pre: ‖Q_k‖, `(n,)`.
        folding: ‖ΔW_k‖ ‖A_{k−1}‖ + ‖Δb_k‖, `(n, 1)`.
        underflow: of one step, `(n,)`.
    """

    low: np.ndarray
    high: np.ndarray
    lines: Relaxation
    pre: np.ndarray
    folding: np.ndarray
    underflow: np.ndarray


class _Balls:
    """Balls around n examples, with the layers that have been bounded on them so far.

    Attributes:
        reach: A_k of the last of these layers (of the input at first), `(n, N_k)`.
        size: bound of ‖a_k‖, `(n,)`.
        box: of a_k; None if there is none, as for the input.
        room: how far entries of x can go; None: anywhere.
    """

    def __init__(self, network: Network, x: np.ndarray, radius: np.ndarray, relax=relaxation):
        self.network = network
        self.x = x
        self.radius = radius
        self.relax = relax
        self.layers: list[_Layer] = []
        self.reach = up(np.abs(x) + radius[:, None])
        self.size = up(norm_bound(x, axis=1) + radius)
        self.box: Box | None = None
        self.room: Reach | None = None
        if network.limits is not None:
            self.room = Reach(*(part.numpy() for part in box_reach(network, tf.constant(x))))

    def bound_layers(self, boxes: bool = True) -> None:
        """Bounds one hidden layer after the other, by lines and, if asked, by boxes."""
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            low, high = self._interval(affine)
            if self.box is not None:
                lowest, highest = self.box.image(affine)
                low, high = np.maximum(low, lowest), np.minimum(high, highest)
            if boxes:
                self.box = Box.of_values(activation, low, high)
            magnitudes = self.reach @ affine.magnitude + np.abs(affine.bias) + affine.bias_error
            pre = up(magnitudes, affine.fan_in + 8)
            total = 1.0 + pre.sum(axis=1) + self.reach.sum(axis=1)
            self.layers.append(
                _Layer(
                    low,
                    high,
                    self.relax(activation, low, high),
                    pre=norm_bound(pre, axis=1),
                    folding=self.folding(affine),
                    underflow=16.0 * TINY * affine.fan_out * total,
                )
            )
            self.reach = _magnitude(activation, self.layers[-1])
            self.size = norm_bound(self.reach, axis=1)

    def close_to(self, some: np.ndarray, direction: np.ndarray) -> _Balls:
        """These examples, with lines close to σ at the point of the ball against `direction`."""
        length = np.linalg.norm(direction, axis=1)
        balls = _Balls(self.network, self.x[some], self.radius[some], self.relax)
        a = balls.x - (balls.radius / np.maximum(length, TINY))[:, None] * direction
        a = a if self.network.limits is None else np.clip(a, *self.network.limits)
        parts = zip(self.network.affines, self.network.activations, self.layers, strict=False)
        for affine, activation, layer in parts:
            z = a @ affine.kernel + affine.bias
            low, high, pre, folding, underflow = (
                array[some]
                for array in (layer.low, layer.high, layer.pre, layer.folding, layer.underflow)
            )
            lines = self.relax(activation, low, high, np.clip(z, low, high))
            balls.layers.append(_Layer(low, high, lines, pre, folding, underflow))
            a = activation.value(tf.constant(z)).numpy()
        return balls

    def folding(self, affine: Affine) -> np.ndarray:
        """Bounds what folding has rounded away of `a W + b`, a the last layer that is known."""
        return up(affine.kernel_error * self.size + affine.bias_error)[:, None]

    def _interval(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Of every entry of `a W + b`, a the last layer that is known."""
        rows, constants = affine.kernel.T[None], affine.bias[None]
        widest = max(self.network.sizes[: len(self.layers) + 1])
        low, high = [], []
        for some in batches(affine.fan_out, max(1, len(self.x) * widest)):
            part, offset = rows[:, some], constants[:, some]
            low.append(self.minimum(part, offset, self.folding(affine))[0])
            high.append(-self.minimum(-part, -offset, self.folding(affine))[0])
        return np.concatenate(low, axis=1), np.concatenate(high, axis=1)

    def minimum(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Proved lower bounds over the balls, `(n, m)`, and the Λ they have at the input.

        Args:
            rows, constants: Λ and c, `(n or 1, m, N)` and `(n or 1, m)`: the function
                `Λ a + c` of the last layer that is known.
            error: what that may be above the function that is meant, `(n, 1 or m)`.

        Returns:
            The bounds, −∞ where anything overflows, and Λ, `(n or 1, m, dim)`, 0 at inputs that
            are pinned.
        """
        maps = self.network.affines[: len(self.layers)]
        for affine, layer in zip(reversed(maps), reversed(self.layers), strict=True):
            rows, constants, step_error = _step_back(rows, constants, affine, layer)
            error = error + step_error
        size, reach = _row_norms(rows), up(norm_bound(self.x, axis=1) + self.radius)[:, None]
        value = _dot(rows, self.x) + constants
        if self.network.pinned is not None:
            rows = np.where(self.network.pinned, 0.0, rows)
        if self.room is not None:
            value = value + least_linear(rows, self.room, self.radius)
        else:
            steepest = size if self.network.pinned is None else _row_norms(rows)
            value = value - self.radius[:, None] * steepest
        error = error + gamma(self.network.dim + 16) * (size * reach + np.abs(constants))
        error = error + 16.0 * TINY * self.network.dim * (1.0 + reach)
        value = value - error * ROUNDING_SLACK
        return np.where(np.isnan(value), -np.inf, value), rows


def _magnitude(activation: Activation, layer: _Layer) -> np.ndarray:
    """A bound of |σ(z)| on the intervals: from the slope and σ(0), and from the two lines."""
    at_zero = np.empty(layer.low.shape[1:])
    for each, units in activation.groups:
        at_zero[units] = abs(float(each.value(tf.constant(0.0, tf.float64))))
    farthest = np.maximum(np.abs(layer.low), np.abs(layer.high))
    lower_slope, lower_intercept, upper_slope, upper_intercept = map(np.abs, layer.lines)
    below = lower_slope * farthest + lower_intercept
    above = upper_slope * farthest + upper_intercept
    # fmin prefers the number where one overflows.
    return up(np.fmin(up(at_zero, 64) + activation.slope * farthest, np.maximum(below, above)))


def _step_back(
    rows: np.ndarray, constants: np.ndarray, affine: Affine, layer: _Layer
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From `Λ a_k + c` to a lower bound `Λ a_{k−1} + c`, and the charge for it."""
    positive, negative = np.maximum(rows, 0.0), np.minimum(rows, 0.0)
    lines = layer.lines
    through = positive * lines.lower_slope[:, None] + negative * lines.upper_slope[:, None]  # Ω
    intercept = _dot(positive, lines.lower_intercept) + _dot(negative, lines.upper_intercept)
    size = _row_norms(through)
    largest = np.maximum(np.abs(lines.lower_intercept), np.abs(lines.upper_intercept))
    error = (
        gamma(affine.fan_out + 16)
        * (
            3.0 * size * layer.pre[:, None]
            + _row_norms(rows) * norm_bound(largest, axis=1)[:, None]
            + np.abs(constants)
        )
        + size * layer.folding
        + layer.underflow[:, None]
    )
    count, height, width = through.shape
    before = through.reshape(count * height, width) @ affine.kernel.T
    before = before.reshape(count, height, affine.fan_in)
    return before, constants + intercept + through @ affine.bias, error


def _dot(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """`(n or 1, m, N)` with `(n, N)`, each row with its example's vector: `(n, m)`."""
    if len(rows) == 1:
        return vectors @ rows[0].T
    return np.matmul(rows, vectors[:, :, None])[:, :, 0]


def _row_norms(rows: np.ndarray) -> np.ndarray:
    """‖·‖₂ of each row, from above: `(n, m, N)` → `(n, m)`."""
    return up(np.sqrt(np.einsum("nmi,nmi->nm", rows, rows)) + SLOPE_FLOOR, rows.shape[-1] + 8)


def _height(network: Network) -> int:
    """Vectors that an example takes at a time: a row for each unit of a layer, or a grid."""
    return max([POINTS, *network.sizes[2:-1]])


def _require_rules(network: Network) -> None:
    for activation in network.activations:
        require_relaxation(activation)
        require_value_range(activation)
