"""Training with a curvature penalty, and what it shares with curvature-based robust training.

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
from keras_curv.network.network import FeedForward, likeliest_rivals
from keras_curv.training.models.logits_model import LogitsModel
from keras_curv.training.models.targets import class_numbers
from keras_curv.training.trainable.curvature_estimate import CurvatureEstimate, Reached


class CurvatureModel(LogitsModel):
    """A base model, and the estimated curvature of the network read from it.

    Subclasses move the vectors of the estimate on, once in a step that trains.
    """

    activations = SMOOTH
    options: tuple[str, ...] = ("gamma",)

    def __init__(self, base: keras.Model, gamma: float, **kwargs: Any):
        super().__init__(base, **kwargs)
        self.gamma = require_non_negative(gamma, "gamma")
        sizes = *self.live.sizes[:-1], self.logit_count
        self.curvature = CurvatureEstimate(sizes, self.live.activations)
        self.curvature_metric = keras.metrics.Mean("curvature")

    @property
    def logit_count(self) -> int:
        """How many logits `network` has."""
        return self.live.sizes[-1]

    def network(self) -> FeedForward:
        """Returns the network whose curvature counts, with the weights of this moment."""
        return self.live.now()

    def minus_m(
        self,
        network: FeedForward,
        label: tf.Tensor,
        rival: tf.Tensor,
        reached: Reached | None = None,
    ) -> tf.Tensor:
        """Returns κ of each pair, of the shape of `rival`; differentiable, moves nothing."""
        matrix = self.curvature.estimate(network, reached)
        rows = tf.matmul(tf.one_hot(label, matrix.shape[0]), matrix)
        return tf.gather(rows, rival, batch_dims=1)

    def add_penalty(self, minus_m: tf.Tensor, sample_weight: Any) -> None:
        """Adds `γ · mean κ` to the loss of the step."""
        if self.gamma == 0.0:
            return
        if sample_weight is not None:
            weight = tf.cast(sample_weight, minus_m.dtype)
            minus_m *= tf.reshape(weight, (-1, *[1] * (minus_m.shape.rank - 1)))
        count = tf.cast(tf.size(minus_m), minus_m.dtype)  # zero for a replica without examples
        self.add_loss(self.gamma * tf.math.divide_no_nan(tf.reduce_sum(minus_m), count))


@keras.saving.register_keras_serializable(package="keras_curv")
class CurvatureRegularizer(CurvatureModel):
    """Trains a base model with the penalty `γ · mean κ(W, y, t)` on its curvature.

    `κ = −m ≥ 0` bounds how fast the margin of the label y over the runner-up t can bend down;
    the smaller, the larger a certificate. For two layers it is that of theorem 3, for deeper
    ones `signed_bound` of `curvature/signed.py`, both by power iteration, one step a batch. The
    penalty arrives through `add_loss`; everything else is plain `compile` and `fit`. With γ = 0
    the base trains as it would alone, bit for bit.

    Args:
        base: a built model with one input and one output of logits, a plain chain of layers
            that `LiveNetwork` reads.
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

    def __init__(self, base: keras.Model, gamma: float = 0.01, **kwargs: Any):
        super().__init__(base, gamma, **kwargs)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes a step; moves the vectors of the curvature estimate on first."""
        self.curvature.advance(self.network())
        return super().train_step(data)

    def step_loss(
        self, x: tf.Tensor, y: Any, y_pred: tf.Tensor, sample_weight: Any, training: bool
    ) -> tf.Tensor:
        """Returns the compiled loss, plus the penalty."""
        label = class_numbers(y)
        rival = likeliest_rivals(tf.cast(y_pred, tf.float32), label, 1)[:, 0]
        minus_m = self.minus_m(self.live.now(), label, rival)
        self.curvature_metric.update_state(minus_m)
        self.add_penalty(minus_m, sample_weight)
        return self.compiled_loss(label, y_pred, sample_weight)
