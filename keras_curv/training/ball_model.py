"""What the trainings against an l2 ball share whose radius rises."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import require_at_least, require_positive
from keras_curv.training.logits_model import LogitsModel, class_numbers


class BallModel(LogitsModel):
    """Trains a base model against the worst of an l2 ball; subclasses say in `step_loss` how.

    Metrics: those compiled, on the clean examples, and `clean_accuracy`.

    Args:
        base: a built model with one input and one output of logits, a plain chain of layers
            that `LiveNetwork` reads, with any activation of `activations`.
        radius: ρ > 0 of the ball, in units of the model's input.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
    """

    options: tuple[str, ...] = ("radius", "ramp_steps")
    needs_radius = True

    def __init__(
        self, base: keras.Model, radius: float | None, *, ramp_steps: int = 0, **kwargs: Any
    ):
        super().__init__(base, **kwargs)
        if radius is not None or self.needs_radius:
            self.radius = require_positive(radius, "radius")
        self.ramp_steps = require_at_least(ramp_steps, 0, "ramp_steps")
        self.clean_metric = keras.metrics.SparseCategoricalAccuracy("clean_accuracy")

    def compute_metrics(
        self, x: tf.Tensor, y: Any, y_pred: tf.Tensor, sample_weight: Any = None
    ) -> dict[str, tf.Tensor]:
        """Returns the compiled metrics and the accuracy, on the clean examples."""
        self.clean_metric.update_state(class_numbers(y), y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def flattened(x: tf.Tensor, dim: int) -> tf.Tensor:
    """Returns inputs as a network takes them, `(n, dim)`, float32."""
    return tf.reshape(tf.cast(x, tf.float32), (-1, dim))
