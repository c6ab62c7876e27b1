"""What the rivals share that train against an l2 ball whose radius rises."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_curv.errors import require_at_least, require_positive
from keras_curv.training.logits_model import LogitsModel, class_numbers


class BallModel(LogitsModel):
    """Trains a base model against the worst of an l2 ball; subclasses say in `compute_loss` how.

    Metrics: those compiled, on the clean examples, and `clean_accuracy`.

    Args:
        base: a built model with one input and one output of logits, a plain chain of layers
            that `LiveNetwork` reads.
        radius: ρ > 0 of the ball, in units of the model's input.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.

    Raises:
        InputError: an argument out of range, or the base has a part that cannot be read.
    """

    def __init__(self, base, radius, *, ramp_steps=0, **kwargs):
        super().__init__(base, **kwargs)
        self.radius = require_positive(radius, "radius")
        self.ramp_steps = require_at_least(ramp_steps, 0, "ramp_steps")
        self.clean_metric = keras.metrics.SparseCategoricalAccuracy("clean_accuracy")

    def train_step(self, data):
        """Keras' own step, on checked labels."""
        return super().train_step(self.checked(data))

    def test_step(self, data):
        """The same at the full radius; nothing moves."""
        return super().test_step(self.checked(data))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The compiled metrics, and the accuracy, on the clean examples."""
        self.clean_metric.update_state(class_numbers(y), y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self):
        """What `from_config` takes."""
        return {**super().get_config(), "radius": self.radius, "ramp_steps": self.ramp_steps}


def flattened(x, dim: int) -> tf.Tensor:
    """Inputs as a network takes them, `(n, dim)`, float32."""
    return tf.reshape(tf.cast(x, tf.float32), (-1, dim))
