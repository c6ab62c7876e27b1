"""Training for randomized smoothing: on Gaussian noise, and on points attacked through it.

Smoothing certifies the class that wins most often at `x + s ξ`, ξ standard normal, so a base is
trained there: on m draws for each example, all with its label. Adversarial noise training moves x
first, to where the smoothed softmax of the label is smallest in a ball, by projected ascent of

    −log( (1/m) Σ_j softmax(z(x̂ + s ξ_j))_y )    over ‖x̂ − x‖ ≤ ρ,

with the very draws that the step then trains on.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_curv.errors import InputError, require_at_least, require_one_of, require_positive
from keras_curv.network.network import FeedForward, likeliest_rivals
from keras_curv.training.models.ball_model import NEVER, BallModel, flattened
from keras_curv.training.rivals.pgd import l2_ascent

_RIVALS = ("all", "runner_up")
_STEP_SIZE = 2.0  # times ρ / attack_steps: the ball can be crossed


@keras.saving.register_keras_serializable(package="keras_curv")
class NoiseModel(BallModel):
    """Trains a base model under Gaussian noise, to be smoothed with noise of the same size.

    The compiled loss is the mean over all draws. Each step's noise depends on `seed`, the
    optimiser's count of steps and the replica alone; evaluation draws the same noise for every
    batch.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `noisy_accuracy`, of the
    noisy points, attacked where there is a radius.

    Args:
        base, ramp_steps: see `BallModel`.
        deviation: s > 0, the standard deviation of the noise in each entry, in input units.
        radius: ρ > 0 of adversarial noise training; None: noise alone.
        attack_steps: gradients for each attack.
        rivals: "all": the attack is on the softmax of all classes; "runner_up": on that of the
            label and the likeliest other class under noise.
        samples: m, draws for each example.
        seed: of the noise.

    Reference: Cohen, Rosenfeld & Kolter, "Certified adversarial robustness via randomized
    smoothing" (2019), section 3.3; Salman et al., "Provably robust deep learning via
    adversarially trained smoothed classifiers" (2019), equations 5 and 6; Singla & Feizi (2020),
    appendix, for "runner_up".
    """

    options = (*BallModel.options, "deviation", "attack_steps", "rivals", "samples", "seed")
    needs_radius = False

    def __init__(
        self,
        base: keras.Model,
        deviation: float,
        *,
        radius: float | None = None,
        attack_steps: int = 4,
        rivals: str = "all",
        samples: int = 1,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(base, radius, **kwargs)
        self.deviation = require_positive(deviation, "deviation")
        self.attack_steps = require_at_least(attack_steps, 1, "attack_steps")
        self.rivals = require_one_of(rivals, _RIVALS, "rivals")
        self.samples = require_at_least(samples, 1, "samples")
        self.seed = require_at_least(seed, 0, "seed")
        if self.ramp_steps and self.radius is None:
            raise InputError(
                "ramp_steps raises the radius of the attack, but there is none; give radius=. "
                f"Received: ramp_steps={self.ramp_steps}"
            )
        self.noisy_metric = keras.metrics.SparseCategoricalAccuracy("noisy_accuracy")

    def noisy(self, x: tf.Tensor, label: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the noisy points of a step, `(n·m, …)`, and the logits at x, both constants."""
        network = self.live.now()
        flat = flattened(x, network.dim)
        shape = tf.shape(flat)[0], self.samples, network.dim
        noise = self.deviation * standard_normal(shape, self.seed_of_step(training))
        point = flat
        if self.radius is not None:
            rivals = self._taking_part(network, flat, noise, label)
            radius = self.current_radius(training)
            point = noise_attack(
                network, flat, noise, label, rivals, radius=radius, steps=self.attack_steps
            )
        points = tf.reshape(point[:, None] + noise, tf.concat([[-1], tf.shape(x)[1:]], axis=0))
        return tf.stop_gradient(points), tf.stop_gradient(network.logits(flat))

    def _taking_part(
        self, network: FeedForward, x: tf.Tensor, noise: tf.Tensor, label: tf.Tensor
    ) -> tf.Tensor | None:
        """Returns whether the attack sees a class, `(n, classes)`; None: all."""
        if self.rivals == "all":
            return None
        mean = tf.reduce_mean(tf.nn.softmax(_noisy_logits(network, x, noise)), axis=1)
        classes = [label, likeliest_rivals(mean, label, 1)[:, 0]]
        return sum(tf.one_hot(one, network.classes) for one in classes) > 0.0

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss, of all draws."""
        points, outputs = self.noisy(x, y, training)
        noisy = self(points, training=training)
        y, weight = self._repeated(y), self._repeated(weight)
        self.noisy_metric.update_state(y, noisy, weight)
        return self.compute_loss(x, y, noisy, weight), outputs

    def _repeated(self, values: Any) -> tf.Tensor | None:
        """Returns one entry for each draw."""
        return None if values is None else tf.repeat(values, self.samples, axis=0)


def noise_attack(
    network: FeedForward,
    x: tf.Tensor,
    noise: tf.Tensor,
    label: tf.Tensor,
    taking_part: tf.Tensor | None = None,
    *,
    radius: Any,
    steps: int,
) -> tf.Tensor:
    """Climbs, by projected steps, `−log mean_j softmax(z(x̂ + noise_j))_y` over `‖x̂ − x‖ ≤ ρ`.

    Args:
        x: `(n, dim)`, float32 or float64.
        noise: `(n, m, dim)`, added as it is.
        label: `(n,)`, integers.
        taking_part: `(n, classes)`, bool, the classes that the softmax is of; None for all.
        radius: ρ > 0.
        steps: each `2ρ / steps` long, along the normalised gradient.

    Returns:
        x̂, `(n, dim)`, in the ball.

    Reference: Salman et al. (2019), section 3.1, "SmoothAdv" with PGD.
    """
    own = tf.one_hot(label, network.classes, dtype=x.dtype)

    def loss(point: tf.Tensor) -> tf.Tensor:
        logits = _noisy_logits(network, point, noise)
        if taking_part is not None:
            logits = tf.where(taking_part[:, None], logits, tf.constant(NEVER, x.dtype))
        log_softmax = tf.reduce_sum(own[:, None] * tf.nn.log_softmax(logits), axis=-1)
        return -tf.reduce_logsumexp(log_softmax, axis=1)

    return l2_ascent(loss, x, x, radius=radius, steps=steps, step_size=_STEP_SIZE)


def standard_normal(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Draws normal numbers, float32, the same with and without XLA (TensorFlow's are not).

    Args:
        shape: any.
        seed: two integers.
    """
    bits = tf.random.stateless_uniform(shape, seed, None, None, tf.uint32, alg="philox")
    cell = tf.cast(tf.bitwise.right_shift(bits, 9), tf.float32)  # of 2²³
    return tf.math.ndtri((cell + 0.5) * 2.0**-23)


def _noisy_logits(network: FeedForward, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns the logits at all noisy points, `(n, m, classes)`."""
    points = tf.reshape(x[:, None] + noise, (-1, network.dim))
    return tf.reshape(network.logits(points), (-1, noise.shape[1], network.classes))
