"""What the baselines share that train against an l2 ball whose radius rises."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_curv.errors import require_at_least, require_positive
from keras_curv.training.logits_model import LogitsModel, risen


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

    def progress(self, training: bool):
        """How much of the ramp is done, from 0 to 1; 1 outside of training."""
        if not training or not self.ramp_steps:
            return 1.0
        return tf.minimum(tf.cast(self.optimizer.iterations, tf.float32) / self.ramp_steps, 1.0)

    def current_radius(self, training: bool):
        """ρ times what the ramp leaves of it now."""
        return self.radius * risen(self.progress(training))

    def get_config(self):
        """What `from_config` takes."""
        return {**super().get_config(), "radius": self.radius, "ramp_steps": self.ramp_steps}


def flattened(x, dim: int) -> tf.Tensor:
    """Inputs as a network takes them, `(n, dim)`, float32."""
    return tf.reshape(tf.cast(x, tf.float32), (-1, dim))
