"""TRADES: accuracy on clean examples, traded for predictions that hardly change in an l2 ball.

Reference: Zhang, Yu, Jiao, Xing, El Ghaoui & Jordan, "Theoretically principled trade-off between
robustness and accuracy" (2019), equation 5 and algorithm 1, with l2 steps.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import require_non_negative
from keras_curv.training.models.ball_model import flattened
from keras_curv.training.rivals.pgd import AttackedModel

_START = 1e-3  # spread of the first points; at x itself the divergence has no gradient


@keras.saving.register_keras_serializable(package="keras_curv")
class TRADESModel(AttackedModel):
    """Minimises `E[ loss(x, y) + (1/λ) max_{‖x̂−x‖≤ρ} KL(p(x) ‖ p(x̂)) ]`, p the softmax.

    x̂ is where a projected ascent of the divergence ends, from a small Gaussian step off x; the
    loss is the compiled one. With `trade_off=0` the base trains as it would alone, bit for bit.
    Nothing is proved.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `attack_accuracy` at x̂
    and `divergence`, which stay 0 with `trade_off=0`, for nothing is attacked then.

    Args:
        trade_off: 1/λ ≥ 0; for the other arguments see `AttackedModel`.
    """

    options = (*AttackedModel.options, "trade_off")

    def __init__(self, base: keras.Model, radius: float, *, trade_off: float = 6.0, **kwargs: Any):
        super().__init__(base, radius, **kwargs)
        self.trade_off = require_non_negative(trade_off, "trade_off")
        self.divergence_metric = keras.metrics.Mean("divergence")

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss, plus the divergence."""
        clean_loss, outputs = super().step_loss(x, y, weight, training)
        if self.trade_off == 0.0:
            return clean_loss, outputs
        network = self.live.now()
        clean = network.logits(flattened(x, network.dim))
        point = self.attacked(
            lambda point: _divergences(clean, network.logits(point)), x, training, start_beside
        )
        worst = self.base(point, training=training)
        divergence = _Divergence(name="divergence")(outputs, worst, weight)
        self.attack_metric.update_state(y, worst, weight)
        self.divergence_metric.update_state(_divergences(outputs, worst), weight)
        return clean_loss + self.trade_off * divergence, outputs


class _Divergence(keras.losses.Loss):
    """The mean divergence, weighted and shared between replicas as Keras does it for any loss."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return _divergences(y_true, y_pred)


def _divergences(clean: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `KL(softmax(clean) ‖ softmax(other))` of each row, float32."""
    log_p = tf.nn.log_softmax(tf.cast(clean, tf.float32))
    log_q = tf.nn.log_softmax(tf.cast(other, tf.float32))
    return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)


def start_beside(x: tf.Tensor, radius: Any, seed: tf.Tensor) -> tf.Tensor:
    """Returns points a small Gaussian step off x."""
    return x + _START * tf.random.stateless_normal(tf.shape(x), seed)
