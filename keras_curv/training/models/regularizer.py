"""Training with a penalty on the estimated curvature.

The network is read from the layers of a base model (`trainable_network.py`), its curvature is
estimated by power iteration that goes on from step to step (`curvature_estimate.py`). The state
moves in steps that train and nowhere else.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import require_non_negative
from keras_curv.network.activations import SMOOTH
from keras_curv.network.network import likeliest_rivals
from keras_curv.training.models.logits_model import LogitsModel
from keras_curv.training.trainable.curvature_estimate import CurvatureEstimate, of_pairs


def curvature_penalty(gamma: float, minus_m: tf.Tensor, weight: Any) -> tf.Tensor | float:
    """Returns `γ · mean κ`, each example's κ times its weight; a replica's share of it."""
    if gamma == 0.0:
        return 0.0
    if weight is not None:
        weight = tf.cast(weight, minus_m.dtype)
        minus_m *= tf.reshape(weight, (-1, *[1] * (minus_m.shape.rank - 1)))
    count = tf.cast(tf.size(minus_m), minus_m.dtype)  # zero for a replica without examples
    mean = gamma * tf.math.divide_no_nan(tf.reduce_sum(minus_m), count)
    return mean / tf.distribute.get_strategy().num_replicas_in_sync


@keras.saving.register_keras_serializable(package="keras_curv")
class CurvatureRegularizer(LogitsModel):
    """Trains a base model with the penalty `γ · mean κ(W, y, t)` on its curvature.

    `κ = −m ≥ 0` bounds how fast the margin of the label y over the runner-up t can bend down;
    the smaller, the larger a certificate. For two layers it is that of theorem 3, for deeper
    ones `signed_bound` of `curvature/signed.py`, both by power iteration, one step a batch. The
    penalty is added to the compiled loss; everything else is plain `compile` and `fit`. With γ = 0
    the base trains as it would alone, bit for bit.

    Args:
        base: a built model with one input and one output of logits, of layers that
            `LiveNetwork` reads.
        gamma: γ ≥ 0.

    Raises:
        InputError: γ is negative, or the base has a part that cannot be read.

    Example:
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((4,)), dense(8, "softplus"), dense(3)])
        >>> model = CurvatureRegularizer(base, gamma=0.01)
        >>> model.compile("adam", metrics=["accuracy"])
        >>> history = model.fit(tf.zeros((8, 4)), tf.range(8) % 3, verbose=0)
        >>> sorted(history.history)
        ['accuracy', 'curvature', 'loss']

    Reference: Singla & Feizi (2020), section 5, equation 10 without an attack.
    """

    activations = SMOOTH
    options = ("gamma",)

    def __init__(self, base: keras.Model, gamma: float = 0.01, **kwargs: Any):
        super().__init__(base, **kwargs)
        self.gamma = require_non_negative(gamma, "gamma")
        self.curvature = CurvatureEstimate(self.live.sizes, self.live.activations)
        self.curvature_metric = keras.metrics.Mean("curvature")

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss, plus the penalty."""
        network = self.live.now()
        kappa = (self.curvature.advance if training else self.curvature.estimate)(network)
        loss, outputs = super().step_loss(x, y, weight, training)
        rival = likeliest_rivals(tf.cast(outputs, tf.float32), y, 1)[:, 0]
        minus_m = of_pairs(kappa, y, rival)
        self.curvature_metric.update_state(minus_m)
        return loss + curvature_penalty(self.gamma, minus_m, weight), outputs
