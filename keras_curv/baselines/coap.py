"""COAP: training and certificates by the convex outer adversarial polytope; see `polytope.py`.

Reference: Wong & Kolter, "Provable defenses against adversarial examples via the convex outer
adversarial polytope" (2018); Wong, Schmidt, Metzen & Kolter, "Scaling provable adversarial
defenses" (2018).
"""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_curv.activations import ACTIVATIONS, Activation
from keras_curv.baselines.ball_model import BallModel, flattened
from keras_curv.baselines.polytope import margin_bounds
from keras_curv.errors import InputError, require_at_least
from keras_curv.methods.linear_bounds import LinearBoundCertificate
from keras_curv.methods.method import ServedError, no_error
from keras_curv.methods.relaxation import Relaxation, relaxation
from keras_curv.network import Network
from keras_curv.training.logits_model import class_numbers


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


class PolytopeCertificate(LinearBoundCertificate):
    """The largest ball on which the polytope's lower bounds of the margins are positive.

    Exact bounds, in float64, with all rounding charged: those of `LinearBoundCertificate` with
    parallel lines around relu. For all δ with `‖δ‖₂ < radius` the prediction is the same. A radius
    counts if the bounds of that one ball prove it; the search may miss a larger one.

    Args:
        network: with relu alone.
        served_error: what serving may take off a margin.

    Raises:
        InputError: another activation; it is named.

    Example:
        >>> import numpy as np
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> radius = PolytopeCertificate(network).certify(np.array([[3.0, 1.0]])).radius[0]
        >>> bool(1.37 < radius < 2.0**0.5)  # √2 is the distance
        True

    Reference: Wong & Kolter (2018), theorem 1 and algorithm 1, with the l2 norm.
    """

    name = "coap"
    refined = False

    def __init__(self, network: Network, served_error: ServedError = no_error):
        for activation in network.activations:
            _require_relu(activation)
        super().__init__(network, served_error)

    @staticmethod
    def relaxation(activation: Activation, low, high, at=None) -> Relaxation:
        """The chord above relu and its parallel through 0, whatever `at`.

        `k z ≤ relu(z)` for every k from 0 to 1, so a rounded slope is as sound.
        """
        _require_relu(activation)
        lines = relaxation(activation, low, high)
        return lines._replace(lower_slope=lines.upper_slope)


def _require_relu(activation: Activation) -> None:
    if activation.name != "relu":
        raise InputError(
            "the convex outer adversarial polytope is that of relu networks. "
            f"Received: activation {activation.name!r}"
        )
