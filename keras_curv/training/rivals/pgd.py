"""Adversarial training on the points that projected gradient ascent finds in an l2 ball.

Reference: Madry, Makelov, Schmidt, Tsipras & Vladu, "Towards deep learning models resistant to
adversarial attacks" (2018), equation 2.1 with l2 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_curv.attacks.ball import normalized, project, uniform_in_ball
from keras_curv.errors import require_at_least, require_positive
from keras_curv.training.models.ball_model import BallModel, flattened

Objective = Callable[[tf.Tensor], tf.Tensor]
Start = Callable[[tf.Tensor, Any, tf.Tensor], tf.Tensor]


def l2_ascent(
    objective: Objective,
    x: tf.Tensor,
    start: tf.Tensor,
    *,
    radius: Any,
    steps: int,
    step_size: float,
) -> tf.Tensor:
    """Climbs `max f(x̂)` over `‖x̂ − x‖ ≤ ρ` by projected steps along ∇f/‖∇f‖.

    Args:
        objective: `(n, dim)` → any shape; its sum is climbed, so that each row should have terms
            of its own.
        x: centres, `(n, dim)`.
        start: where to begin, `(n, dim)`; projected first.
        radius: ρ > 0, a number or `(n,)`.
        steps: how many.
        step_size: a step is `step_size · ρ / steps` long; rows without a gradient stay.

    Returns:
        The last points, `(n, dim)`, in the ball, without a gradient.

    Example:
        >>> x = tf.zeros((1, 2))
        >>> up = lambda point: point[:, 0]
        >>> l2_ascent(up, x, x, radius=0.5, steps=4, step_size=2.5).numpy()
        array([[0.5, 0. ]], dtype=float32)
    """

    def climb(index: tf.Tensor, point: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(point)
            value = objective(point)
        gradient = tape.gradient(value, point)
        return index + 1, project(point + step * normalized(gradient), x, radius)

    step = tf.reshape(step_size * tf.cast(radius, x.dtype) / steps, (-1, 1))
    begin = tf.constant(0), project(start, x, radius)
    _, point = tf.while_loop(lambda index, _: index < steps, climb, begin, maximum_iterations=steps)
    return tf.stop_gradient(point)


class AttackedModel(BallModel):
    """Trains at the points where an l2 ascent from a random start ends.

    Both the clean examples and the attacked ones pass the base in training, so that running
    statistics of batch normalization are moved by both.

    Args:
        base, radius, ramp_steps: see `BallModel`.
        attack_steps, step_size: see `l2_ascent`.
        seed: of the random starts, which differ from step to step, and are the same at every
            evaluation. XLA draws other ones.
    """

    options: tuple[str, ...] = (*BallModel.options, "attack_steps", "step_size", "seed")

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        *,
        attack_steps: int = 10,
        step_size: float = 2.5,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(base, radius, **kwargs)
        self.attack_steps = require_at_least(attack_steps, 1, "attack_steps")
        self.step_size = require_positive(step_size, "step_size")
        self.seed = require_at_least(seed, 0, "seed")
        self.attack_metric = keras.metrics.SparseCategoricalAccuracy("attack_accuracy")

    def attacked(
        self, objective: Objective, x: tf.Tensor, training: bool, start: Start
    ) -> tf.Tensor:
        """Returns points of the shape of `x` where the ascent of `objective` ends.

        Args:
            objective: see `l2_ascent`.
            start: centres, radius and seed `(2,)` → where to begin.
        """
        flat = flattened(x, self.live.sizes[0])
        radius = self.current_radius(training)
        begin = start(flat, radius, self.seed_of_step(training))
        point = l2_ascent(
            objective,
            flat,
            begin,
            radius=radius,
            steps=self.attack_steps,
            step_size=self.step_size,
        )
        return tf.reshape(point, (-1, *x.shape[1:]))


@keras.saving.register_keras_serializable(package="keras_curv")
class PGDModel(AttackedModel):
    """Minimises the compiled loss at points x̂ that PGD finds: `min E max_{‖x̂−x‖≤ρ} loss(x̂, y)`.

    The attack is untargeted: it climbs the compiled loss from a random point of the ball, and its
    last point counts. It finds what it finds: nothing is proved.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `attack_accuracy`.

    Args: see `AttackedModel`.
    """

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss at the attacked points."""
        outputs, network = self(x, training=training), self.live.now()
        point = self.attacked(
            lambda point: self.compute_loss(x, y, network.logits(point)),
            x,
            training,
            uniform_in_ball,
        )
        worst = self.base(point, training=training)
        self.attack_metric.update_state(y, worst, weight)
        return self.compute_loss(x, y, worst, weight), outputs
