"""COAP: training and certificates by the convex outer adversarial polytope; see `polytope.py`.

Reference: Wong & Kolter, "Provable defenses against adversarial examples via the convex outer
adversarial polytope" (2018); Wong, Schmidt, Metzen & Kolter, "Scaling provable adversarial
defenses" (2018).
"""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_curv.errors import require_at_least
from keras_curv.network.activations import ACTIVATIONS
from keras_curv.training.logits_model import class_numbers
from keras_curv.training.rivals.ball_model import BallModel, flattened
from keras_curv.training.rivals.polytope import margin_bounds


@keras.saving.register_keras_serializable(package="keras_curv")
class COAPModel(BallModel):
    """Trains a base model on the worst logits that its polytope allows in an l2 ball.

    With J_t the dual bound of the margin of the label over class t, the compiled loss is that of
    the logits −J_t, 0 for the label: an upper bound of the loss at any point of the ball, if the
    loss is the cross-entropy. With more than one hidden layer and projections, it is an estimate.

    Metrics: those compiled, on the clean examples; `clean_accuracy`; `certified`, the fraction
    whose J_t are all positive, in `fit` at the radius of the step.

    Args:
        base: as for `CurvatureRegularizer`, with relu as its only activation.
        radius: ρ > 0 of the ball, in units of the model's input.
        projections: random rows for each estimated term, drawn anew at every training step and
            the same in every evaluation; None: no estimates, at many times the cost.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
        seed: of the projections.

    Raises:
        InputError: an argument out of range, or the base has a part that cannot be read.

    Example:
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((4,)), dense(8, "relu"), dense(3)])
        >>> model = COAPModel(base, radius=0.5)
        >>> model.compile("adam")
        >>> history = model.fit(tf.zeros((8, 4)), tf.range(8) % 3, verbose=0)
        >>> sorted(history.history)
        ['certified', 'clean_accuracy', 'loss']

    Reference: Wong & Kolter (2018), theorem 2 and equation 14; Wong et al. (2018), section 3.2,
    for the projections.
    """

    activations = {"relu": ACTIVATIONS["relu"]}

    def __init__(self, base, radius, *, projections=50, ramp_steps=0, seed=0, **kwargs):
        super().__init__(base, radius, ramp_steps=ramp_steps, **kwargs)
        if projections is not None:
            projections = require_at_least(projections, 1, "projections")
        self.projections = projections
        self.seed = require_at_least(seed, 0, "seed")
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self.certified_metric = keras.metrics.Mean("certified")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The compiled loss at the worst logits."""
        network = self.live.now()
        label = class_numbers(y)
        bounds = margin_bounds(
            network,
            flattened(x, network.dim),
            label,
            self.current_radius(training),
            projections=self.projections,
            seed=self._seed_of(training),
        )
        own = tf.one_hot(label, network.classes, on_value=True, off_value=False)
        proved = tf.reduce_all(own | (bounds > 0.0), axis=1)
        self.certified_metric.update_state(proved, sample_weight)
        return super().compute_loss(x, label, -bounds, sample_weight, training)

    def _seed_of(self, training):
        drawn = self.seed_generator.next() if training and self.projections else (self.seed, 0)
        return tf.cast(drawn, tf.int32)

    def get_config(self):
        """What `from_config` takes."""
        return {
            **super().get_config(),
            "projections": self.projections,
            "seed": self.seed,
        }
