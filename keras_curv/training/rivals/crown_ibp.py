"""CROWN-IBP: training on linear bounds of the margins, over interval bounds of the layers.

**Bound.** Interval arithmetic bounds the pre-activations of the hidden layers; on these intervals
each activation lies between two lines; and one backward pass with the lines, as in
`certificates/linear/crown.py`, leaves a linear function of the input below each margin, whose
minimum over the ball is `Λ x + c − R ‖Λ‖₂`. All is differentiable, in float32; rounding is not
charged.

**Lines** on `[l, u]` with midpoint m.

- Convex σ: the chord above, the tangent at m below. (For ReLU this is CROWN's adaptive choice.)
  Concave: the other way round.
- σ convex up to 0 and concave from there on. Let d ≥ 0 be where the tangent passes through
  `(l, σ(l))`, by bisection, at 0 or l if all do better. Above: the chord from l to `min(d, u)`, or
  the tangent at m, where `m > d`; below: the same for `−σ(−z)` on `[−u, −l]`. The chord's slope
  is stationary in d, so d needs no gradient.

A chord is raised to the higher of its ends, so that its slope may be rounded.

**Loss.** With M the bounds of the margins, `M = (1 − β) M_interval + β M_linear`, the loss is
`κ loss(z(x), y) + (1 − κ) loss(−M, y)`. Along the ramp the radius rises and κ and β move, evenly.

Reference: Zhang, Chen, Xiao, Gowal, Stanforth, Li, Boning & Hsieh, "Towards stable and efficient
training of verifiably robust neural networks" (2020), section 3.2 and equations 10 to 12; Zhang,
Weng, Chen, Hsieh & Daniel (2018) for the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_curv.certificates.interval_bounds import require_value_range
from keras_curv.certificates.linear.bounds.relaxation import Relaxation
from keras_curv.errors import InputError, require_non_negative
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.network.network import FeedForward
from keras_curv.training.models.ball_model import BallModel, flattened
from keras_curv.training.rivals.interval import interval_bounds, l2_norm, row_products

_NARROW = 1e-3  # below, in float32, the tangent is closer to the chord than its own quotient
_BISECTIONS = 16
_Function = Callable[[tf.Tensor], tf.Tensor]
_Line = tuple[tf.Tensor, tf.Tensor]  # slope, intercept


def require_lines(activation: Activation) -> None:
    """Raises an InputError, naming the activation, if there is no rule for it."""
    if not (activation.convex or activation.concave or activation.s_shaped):
        others = (entry.name for entry in ACTIVATIONS.values() if entry.s_shaped)
        raise InputError(
            f"no lines for activation {activation.name!r} in training: they need a convex or "
            f"concave one, or one of {', '.join(others)}"
        )


def lines(activation: Activation, low: tf.Tensor, high: tf.Tensor) -> Relaxation:
    """Returns lines below and above σ on each `[low, high]`, differentiable, up to rounding.

    Example:
        >>> from keras_curv.network import activations
        >>> ends = tf.constant(-1.0), tf.constant(3.0)
        >>> [float(part) for part in lines(activations.get("relu"), *ends)]
        [1.0, 0.0, 0.75, 0.75]
    """
    middle = (low + high) / 2.0
    value, first = activation.value, activation.first
    if activation.convex:
        return Relaxation(*_tangent(value, first, middle), *_chord(value, first, low, high))
    if activation.concave:
        slope, top = _chord(lambda z: -value(z), lambda z: -first(z), low, high)
        return Relaxation(-slope, -top, *_tangent(value, first, middle))
    slope, top = _above(lambda z: -value(-z), lambda z: first(-z), -high, -low)
    return Relaxation(slope, -top, *_above(value, first, low, high))


def _tangent(value: _Function, first: _Function, at: tf.Tensor) -> _Line:
    slope = first(at)
    return slope, value(at) - slope * at


def _chord(value: _Function, first: _Function, low: tf.Tensor, high: tf.Tensor) -> _Line:
    """Returns the line through the values at both ends, not below either."""
    width = high - low
    narrow = width < _NARROW
    rise = (value(high) - value(low)) / tf.where(narrow, tf.ones_like(width), width)
    slope = tf.where(narrow, first((low + high) / 2.0), rise)
    return slope, tf.maximum(value(low) - slope * low, value(high) - slope * high)


def _above(value: _Function, first: _Function, low: tf.Tensor, high: tf.Tensor) -> _Line:
    """Returns a line above σ, which is convex up to 0 and concave from there on."""

    def halve(left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        at = (left + right) / 2.0
        slope, intercept = _tangent(value, first, at)
        passes = slope * low + intercept >= value(low)
        return tf.where(passes, left, at), tf.where(passes, at, right)

    ends = tf.maximum(low, 0.0), tf.maximum(high, 0.0)
    _, right = tf.while_loop(lambda *_: True, halve, ends, maximum_iterations=_BISECTIONS)
    touching, middle = tf.stop_gradient(right), (low + high) / 2.0
    chord = _chord(value, first, low, tf.minimum(high, touching))
    tangent = _tangent(value, first, middle)
    slope, intercept = (
        tf.where(middle > touching, a, b) for a, b in zip(tangent, chord, strict=True)
    )
    return slope, intercept


def linear_margins(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    rivals: tf.Tensor,
    radius: Any,
    hidden: list[tuple[tf.Tensor, tf.Tensor]],
) -> tf.Tensor:
    """Returns lower bounds of `z_label − z_rival` on the ball, `(n, k)`, up to rounding.

    Args:
        network: its activations must have passed `require_lines`.
        x, label, rivals, radius: see `interval_bounds`.
        hidden: intervals that hold the pre-activations there, as in `IntervalBounds`.

    Example:
        >>> from keras_curv import Network
        >>> eye, zero = tf.eye(2).numpy(), tf.zeros(2).numpy()
        >>> network = Network.from_weights([eye, eye], [zero, zero], "relu")
        >>> args = tf.constant([[3.0, 1.0]]), tf.constant([0]), tf.constant([[1]]), 0.5
        >>> hidden = interval_bounds(network, *args).hidden
        >>> linear_margins(network, *args, hidden).numpy().round(4)
        array([[1.2929]], dtype=float32)
    """
    rows, constants = network.margin_map(x, label, rivals)
    layers = zip(
        network.products(x.dtype),
        network.weights(x.dtype)[1],
        network.activations,
        hidden,
        strict=False,  # there is one bias more
    )
    for product, bias, activation, interval in reversed(list(layers)):
        line = lines(activation, *interval)
        positive, negative = tf.nn.relu(rows), -tf.nn.relu(-rows)
        constants += row_products(positive, line.lower_intercept)
        constants += row_products(negative, line.upper_intercept)
        through = positive * line.lower_slope[:, None] + negative * line.upper_slope[:, None]
        constants += tf.tensordot(through, bias, 1)
        rows = product.backward(through)
    return row_products(rows, x) + constants - radius * l2_norm(rows)


@keras.saving.register_keras_serializable(package="keras_curv")
class CROWNIBPModel(BallModel):
    """Trains a base model on lower bounds of its margins in an l2 ball; see the module's docstring.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `certified`, the fraction of
    examples with a positive bound for every rival, of intervals or of lines: what a certificate
    would prove at this radius, but for rounding.

    Args:
        base: see `BallModel`; with convex or concave activations, sigmoid, tanh or softsign.
        radius, ramp_steps: see `BallModel`.
        kappa: κ from 0 to 1, before and after the ramp: the share of the clean loss.
        beta: β ≥ 0, before and after the ramp: the share of the linear bounds. Above 1, which
            takes the intervals' share below 0, M is no bound any more; `certified` still is one.
    """

    options = (*BallModel.options, "kappa", "beta")

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        *,
        kappa: Sequence[float] = (1.0, 0.5),
        beta: Sequence[float] = (1.0, 1.0),
        **kwargs: Any,
    ):
        super().__init__(base, radius, **kwargs)
        for activation in self.live.activations:
            require_value_range(activation)
            require_lines(activation)
        self.kappa, self.beta = _ends(kappa, "kappa"), _ends(beta, "beta")
        if max(self.kappa) > 1.0:
            raise InputError(f"kappa must be from 0 to 1. Received: {self.kappa}")
        self.certified_metric = keras.metrics.Mean("certified")

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns κ times the compiled loss, and 1 − κ times that of the worst logits."""
        (clean, outputs), network = super().step_loss(x, y, weight, training), self.live.now()
        done = self.progress(training)
        kappa, beta = (a + (b - a) * done for a, b in (self.kappa, self.beta))
        rivals = tf.range(network.classes - 1)[None]
        rivals += tf.cast(rivals >= y[:, None], tf.int32)  # all but the label
        args = flattened(x, network.dim), y, rivals, self.current_radius(training)
        by_intervals = interval_bounds(network, *args)
        by_lines = linear_margins(network, *args, by_intervals.hidden)
        margins = (1.0 - beta) * by_intervals.margins + beta * by_lines
        # 0 for the label.
        worst = -tf.reduce_sum(tf.one_hot(rivals, network.classes) * margins[..., None], axis=1)
        proved = tf.reduce_all(tf.maximum(by_intervals.margins, by_lines) > 0.0, axis=1)
        self.certified_metric.update_state(proved, weight)
        return kappa * clean + (1.0 - kappa) * self.compute_loss(x, y, worst, weight), outputs


def _ends(pair: Sequence[float], name: str) -> tuple[float, float]:
    """Returns the values before and after the ramp."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InputError(f"{name} must be two numbers, before and after the ramp. Received: {pair}")
    before, after = pair
    return require_non_negative(before, name), require_non_negative(after, name)
