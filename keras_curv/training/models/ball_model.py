"""A base model that is trained against an l2 ball, whose radius rises."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import require_at_least, require_positive
from keras_curv.training.models.logits_model import LogitsModel

NEVER = -1e9  # logit of a class that is left out
_RAMP_START = 0.05


class BallModel(LogitsModel):
    """Trains a base model against the worst of an l2 ball, by the `step_loss` of a subclass.

    Metrics: those compiled, on the clean examples, and `clean_accuracy` (of numbers,
    `clean_error`). While the radius rises, loss and metrics of a training step are at the radius
    of the step; those of `evaluate` and validation are at ρ.

    Args:
        base: a built model with one input and one output of logits, of layers that
            `LiveNetwork` reads, with any activation of `activations`.
        radius: ρ > 0 of the ball, in units of the model's input.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ; updates of
            the weights where gradients are accumulated.
    """

    options: tuple[str, ...] = ("radius", "ramp_steps")
    radius: float | None = None
    needs_radius = True
    seed = 0  # of the method's random numbers

    def __init__(
        self, base: keras.Model, radius: float | None, *, ramp_steps: int = 0, **kwargs: Any
    ):
        super().__init__(base, **kwargs)
        if radius is not None or self.needs_radius:
            self.radius = require_positive(math.nan if radius is None else radius, "radius")
        self.ramp_steps = require_at_least(ramp_steps, 0, "ramp_steps")
        self.clean_metric = self.targets.metric(self.targets.metric_name)

    def progress(self, training: bool) -> tf.Tensor | float:
        """Returns how much of the ramp is done, from 0 to 1; 1 outside of training."""
        if not training or not self.ramp_steps:
            return 1.0
        return tf.minimum(tf.cast(self.optimizer.iterations, tf.float32) / self.ramp_steps, 1.0)

    def current_radius(self, training: bool) -> tf.Tensor:
        """Returns the radius of this step: ρ, or the part of it that the ramp has reached."""
        part = _RAMP_START + (1.0 - _RAMP_START) * self.progress(training)
        return self.radius * tf.minimum(part, 1.0)

    def seed_of_step(self, training: bool) -> tf.Tensor:
        """Returns the seed of a step's random numbers, `(2,)`: a replica's own in every step.

        It follows from the optimizer's count of steps, so that a loaded model goes on with the
        draws that it would have had. Outside of training it is always the same.
        """
        if not training:
            return tf.constant([self.seed, -1])
        replica = tf.distribute.get_replica_context()
        step = tf.cast(self.optimizer.iterations, tf.int32) * replica.num_replicas_in_sync
        return tf.stack([self.seed, step + replica.replica_id_in_sync_group])

    def compute_metrics(
        self, x: tf.Tensor, y: Any, y_pred: tf.Tensor, sample_weight: Any = None
    ) -> dict[str, tf.Tensor]:
        """Returns the compiled metrics and the clean one, on the clean examples."""
        self.clean_metric.update_state(y, y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def flattened(x: tf.Tensor, dim: int) -> tf.Tensor:
    """Returns inputs as a network takes them, `(n, dim)`, float32."""
    return tf.reshape(tf.cast(x, tf.float32), (-1, dim))


def constants(structure: Any) -> Any:
    """Returns nested tensors, without gradients; None where there is None."""
    return tf.nest.map_structure(lambda a: None if a is None else tf.stop_gradient(a), structure)
