"""COAP: training by the convex outer adversarial polytope; see `polytope.py`.

Reference: Wong & Kolter, "Provable defenses against adversarial examples via the convex outer
adversarial polytope" (2018); Wong, Schmidt, Metzen & Kolter, "Scaling provable adversarial
defenses" (2018).
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import InputError, optional_at_least, require_at_least
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.network.unitwise import UnitWise
from keras_curv.training.models.ball_model import BallModel, flattened
from keras_curv.training.rivals.polytope import margin_bounds


@keras.saving.register_keras_serializable(package="keras_curv")
class COAPModel(BallModel):
    """Trains a base model on the worst logits that its polytope allows in an l2 ball.

    With J_t the dual bound of the margin of the label over class t, the compiled loss is that of
    the logits −J_t, 0 for the label: an upper bound of the loss at any point of the ball, if the
    loss is the cross-entropy. With more than one hidden layer and projections, it is an estimate.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `certified`, the fraction
    whose J_t are all positive, in `fit` at the radius of the step.

    Args:
        base: see `BallModel`; with relu as its only activation.
        radius, ramp_steps: see `BallModel`.
        projections: random rows for each estimated term, drawn anew at every training step and
            the same in every evaluation; None: no estimates, at many times the cost.
        seed: of the projections.

    Reference: Wong & Kolter (2018), theorem 2 and equation 14; Wong et al. (2018), section 3.2,
    for the projections.
    """

    activations = {"relu": ACTIVATIONS["relu"]}

    options = (*BallModel.options, "projections", "seed")

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        *,
        projections: int | None = 50,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(base, radius, **kwargs)
        if any(isinstance(sigma, UnitWise) for sigma in self.live.activations):
            raise InputError(
                "COAP has no theory for units that carry; leave out Carry, and branches that meet"
            )
        self.projections = optional_at_least(projections, 1, "projections")
        self.seed = require_at_least(seed, 0, "seed")
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self.certified_metric = keras.metrics.Mean("certified")

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss at the worst logits."""
        outputs, network = self(x, training=training), self.live.now()
        bounds = margin_bounds(
            network,
            flattened(x, network.dim),
            y,
            self.current_radius(training),
            projections=self.projections,
            seed=self._seed_of(training),
        )
        own = tf.one_hot(y, network.classes, on_value=True, off_value=False)
        proved = tf.reduce_all(own | (bounds > 0.0), axis=1)
        self.certified_metric.update_state(proved, weight)
        return self.compute_loss(x, y, -bounds, weight), outputs

    def _seed_of(self, training: bool) -> tf.Tensor:
        drawn = self.seed_generator.next() if training and self.projections else (self.seed, 0)
        return tf.cast(drawn, tf.int32)
