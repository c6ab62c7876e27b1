"""Training at the worst points of a ball that curvature finds, for classes and for numbers.

Let `∇²f_t ≽ −κ_t` for a margin f_t. For any x̂_t in the ball of radius ρ around x, the dual optimum
of the attack is at most

    V_t = f_t(x̂_t) + (κ_t/2) (‖x̂_t − x‖² − ρ²),

and equal to it where x̂_t is the minimiser, which is where the attack ends up. There, by the
envelope theorem, the gradient of V_t in the weights, through κ_t too, is that of the optimum,
with x̂_t held fixed.

Under a `Threat` the ball is one of ξ, and the network that of `threatened.py`; within a box, or
behind a clip of the input, V_t is that of `threats/confined.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_curv.attacks.crt import Hidden, curvature_attack
from keras_curv.attacks.proximal import ProximalAttack, proximal_attack
from keras_curv.errors import InputError, require_at_least, require_non_negative
from keras_curv.network.activations import SMOOTH
from keras_curv.network.network import FeedForward
from keras_curv.threats.box import box_reach
from keras_curv.threats.clipped import clipped
from keras_curv.threats.confined import Reach
from keras_curv.threats.threat import Threat
from keras_curv.training.models.ball_model import BallModel, constants, flattened
from keras_curv.training.models.regularizer import curvature_penalty
from keras_curv.training.models.threatened import Threatened
from keras_curv.training.trainable.centring import Centring
from keras_curv.training.trainable.curvature_estimate import CurvatureEstimate, of_pairs
from keras_curv.training.trainable.trunk import Behind, LipschitzEstimate, through


class Attacked(NamedTuple):
    """The attacked margins of a step, of a label over its rivals, and the points found.

    Attributes:
        label: `(n,)`, a logit of `network`.
        rival: `(n, k)`, logits; of numbers, two of each output, as rivals of logit 0.
        harms: whether a rival is attacked, `(n, k)`; None: all are.
        output: of the base at the examples, `(n, outputs)`.
        worst: the attack; its points are `(n·k, …)`, of the shape of examples as the network is
            given them, or offsets of the features behind a trunk, `(n, k, features)`.
        minus_m: κ, `(n, k)`.
        hidden: what the network made of the points, where that need not be worked out again.
        kappa: of all pairs, `(logits, logits)`; differentiable, all else is constant.
    """

    label: tf.Tensor
    rival: tf.Tensor
    harms: tf.Tensor | None
    output: tf.Tensor
    worst: ProximalAttack
    minus_m: tf.Tensor
    hidden: Hidden | None
    kappa: tf.Tensor

    def dual_values(self, logits: tf.Tensor, minus_m: tf.Tensor) -> tf.Tensor:
        """Returns V_t, `(n, k)`, from the logits at the attacked points, `(n·k, logits)`."""
        classes = logits.shape[-1]
        logits = tf.reshape(tf.cast(logits, tf.float32), (-1, self.rival.shape[1], classes))
        # Products with one-hot rows instead of gathers: their gradients are dense.
        sign = tf.one_hot(self.label, classes)[:, None] - tf.one_hot(self.rival, classes)
        margin = tf.reduce_sum(sign * logits, axis=-1)
        return margin + self.worst.added + minus_m * self.worst.shortfall


class WorstCaseModel(BallModel):
    """Trains a base model on attacked points; subclasses choose the margins and their loss.

    While a step trains, dropout and the batch's own statistics act on the attacked points, as they
    do in any training; attacks, κ and validation are without. Within a box, or behind a clip, an
    attack may end some per cent beyond ρ, for which V_t pays.

    Args: see `CRTModel`.
    """

    activations = SMOOTH
    clips = True
    trunks = True
    options = ("gamma", *BallModel.options, "attack_steps", "centre")

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        gamma: float,
        *,
        attack_steps: int,
        ramp_steps: int,
        threat: Threat | Mapping[str, Any],
        centre: bool = False,
        **kwargs: Any,
    ):
        super().__init__(base, radius, ramp_steps=ramp_steps, **kwargs)
        self.gamma = require_non_negative(gamma, "gamma")
        sizes = *self.live.sizes[:-1], self.logit_count
        self.curvature = CurvatureEstimate(sizes, self.live.activations)
        self.curvature_metric = keras.metrics.Mean("curvature")
        self.centre = bool(centre)
        self.centring = Centring(self.live) if self.centre else None
        self.threat = Threat.of(threat)
        self.lipschitz = None if self.live.trunk is None else LipschitzEstimate(self.live.trunk)
        if self.lipschitz is not None and not (self.threat.plain and self.live.clip is None):
            clip = "" if self.live.clip is None else f" and {self.live.clip.name!r}"
            raise InputError(
                "training behind layers with kinks knows no threat and no clip of the input. "
                f"Received: {self.threat}{clip}"
            )
        if not self.threat.plain:
            if self.live.clip is not None:
                raise InputError(
                    "a threat is for a base without ClipInput, which confines no attacker. "
                    f"Received: {self.threat.text}, and {self.live.clip.name!r}"
                )
            self.network()  # refuses a threat that is not of this base
        self.attack_steps = require_at_least(attack_steps, 1, "attack_steps")
        self.distance_metric = keras.metrics.Mean("attack_distance")
        self.success_metric = keras.metrics.Mean("attack_success")

    @property
    def logit_count(self) -> int:
        """Number of logits of `network`."""
        return self.live.sizes[-1]

    def margin_network(self) -> FeedForward:
        """Returns the network of x whose logits make the margins."""
        return self.live.now()

    def network(self) -> FeedForward:
        """Returns the network that is attacked: of u where there is a threat."""
        network = self.margin_network()
        if self.lipschitz is not None:
            return Behind(network, self.lipschitz.estimate())
        return network if self.threat.plain else Threatened(network, self.threat)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes one step; where activations are centred, biases follow their kernels."""
        if self.centring is None:
            return super().train_step(data)
        before = self.centring.kernels()
        logs = super().train_step(data)
        self.centring.move_biases(before)
        return logs

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the compiled loss at the worst outputs, plus the penalty."""
        attacked = self.attack(x, y, training)
        outputs = self(x, attacked=attacked, training=training)
        minus_m = self.minus_m(attacked)
        loss = self.compute_loss(x, y, self.worst_outputs(attacked, y, outputs, minus_m), weight)
        self.count(attacked, y, outputs, weight)
        return loss + curvature_penalty(self.gamma, minus_m, weight), attacked.output

    def attack(self, x: tf.Tensor, y: tf.Tensor, training: bool) -> Attacked:
        """Finds the worst points; a step that trains moves the state."""
        if training and self.lipschitz is not None:
            self.lipschitz.advance()
        network, start, reach = self.start(x)
        logits = network.logits(start)
        output = self.base_outputs(logits)
        start, label, rival, harms = self.margins(network, start, logits, y)
        if training and self.centring is not None:
            self.centring.advance(network.hidden(start)[1:])
        kappa = (self.curvature.advance if training else self.curvature.estimate)(network)
        minus_m = of_pairs(kappa, label, rival)
        radius, steps = self.current_radius(training), self.attack_steps
        if reach is None:
            worst, hidden = worst_in_ball(network, start, label, rival, radius, minus_m, steps)
        else:
            hidden = None
            worst = proximal_attack(
                network, start, reach, label, rival, radius=radius, curvature=minus_m, steps=steps
            )
        if harms is not None:
            worst, hidden = _spared(worst, start, harms), None
        if not (self.live.as_in_training and self.live.is_dense):
            hidden = None
        if isinstance(network, Behind):
            points = worst.point - start[:, None]
        else:
            points = worst.point
            points = network.inputs(points) if isinstance(network, Threatened) else points
            points = tf.reshape(points, tf.concat([[-1], tf.shape(x)[1:]], axis=0))
        worst = worst._replace(point=points)
        found = Attacked(label, rival, harms, output, worst, minus_m, hidden, kappa)
        return constants(found)._replace(kappa=kappa)

    def start(self, x: tf.Tensor) -> tuple[FeedForward, tf.Tensor, Reach | None]:
        """Returns the network that is attacked, where attacks begin, and what confines them."""
        network, layer = self.network(), self.live.clip
        if isinstance(network, Behind):
            assert self.lipschitz is not None
            features = flattened(self.lipschitz.trunk.features(x), network.dim)
            return network, features / network.factor, None
        point, reach = flattened(x, network.dim), None
        if isinstance(network, Threatened):
            point = _inside(network.coordinates(point), network)
            reach = None if network.limits is None else box_reach(network, point, tf)
        elif layer is not None:
            point, reach, _ = clipped(layer.clip(network.dim), point)
        return network, point, reach

    def call(
        self, x: tf.Tensor, training: bool | None = None, attacked: Attacked | None = None
    ) -> tf.Tensor:
        """Returns the base's outputs at x, `(n, outputs)`, or at attacked points, `(n·k, outputs)`.

        Where the network computes what the base does, it is evaluated in its place, so that what an
        attack has computed already is not computed again.
        """
        if attacked is None:
            return super().call(x, training)
        points, hidden, clip = attacked.worst.point, attacked.hidden, self.live.clip
        if self.lipschitz is not None:
            return through(self.live.layers, self.lipschitz.moved_features(x, points))
        if self.centring is not None or hidden is not None:
            pre, post = (None, None) if hidden is None else hidden[:2]
            means = None if self.centring is None else self.centring.means
            return self.live.now().logits_given(points, pre, post, means)
        return super().call(points if clip is None else clip.inverse(points), training)

    def minus_m(self, attacked: Attacked) -> tf.Tensor:
        """Returns κ of the attacked pairs, `(n, k)`; differentiable."""
        return of_pairs(attacked.kappa, attacked.label, attacked.rival)

    @abc.abstractmethod
    def base_outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the outputs of the base, of the logits of `network`."""

    @abc.abstractmethod
    def margins(
        self, network: FeedForward, start: tf.Tensor, logits: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns where attacks begin, and of `Attacked` label, rival and harms.

        Args:
            network: that is attacked.
            start: the examples in its coordinates, `(n, dim)`.
            logits: there.
            y: the targets.
        """

    @abc.abstractmethod
    def worst_outputs(
        self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, minus_m: tf.Tensor
    ) -> tf.Tensor:
        """Returns the outputs that the compiled loss is of.

        Args:
            attacked: what was attacked.
            y: the targets.
            outputs: at the attacked points, `(n·k, outputs)`.
            minus_m: κ of the pairs, `(n, k)`, differentiable.
        """

    def count(self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, weight: Any) -> None:
        """Counts the metrics of a step; subclasses add what an estimated κ certifies."""
        self.curvature_metric.update_state(attacked.minus_m)
        self.distance_metric.update_state(attacked.worst.distance)
        self.success_metric.update_state(attacked.worst.solved)

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return {**super().get_config(), "threat": self.threat.config()}


def _inside(u: tf.Tensor, network: Threatened) -> tf.Tensor:
    """Returns the points; one outside of the threat is an error, or NaN where XLA drops that."""
    outside = network.outside(u)
    message = "an example is outside of the threat's box, or not one-hot in one of its groups"
    with tf.control_dependencies([tf.debugging.assert_equal(outside, False, message)]):
        return tf.where(outside[:, None], tf.constant(float("nan"), u.dtype), u)


def _spared(worst: ProximalAttack, start: tf.Tensor, harms: tf.Tensor) -> ProximalAttack:
    """Returns the attack where rivals do harm, and no move where they do not."""
    return ProximalAttack(
        tf.where(harms[..., None], worst.point, start[:, None]),
        added=tf.where(harms, worst.added, 0.0),
        shortfall=tf.where(harms, worst.shortfall, 0.0),
        distance=tf.where(harms, worst.distance, 0.0),
        solved=worst.solved | ~harms,
    )


def worst_in_ball(
    network: FeedForward,
    x: tf.Tensor,
    label: tf.Tensor,
    rival: tf.Tensor,
    radius: tf.Tensor,
    curvature: tf.Tensor,
    steps: int,
) -> tuple[ProximalAttack, Hidden]:
    """Returns the result of the curvature attack as a `ProximalAttack`, and hidden values."""
    attack = curvature_attack(
        network, x, label, rival, radius=radius, curvature=curvature, steps=steps, tolerance=1e-3
    )
    distance = tf.reshape(attack.hidden.distance, tf.shape(rival))
    worst = ProximalAttack(
        attack.point,
        added=tf.zeros_like(distance),
        shortfall=tf.minimum(distance * distance - radius * radius, 0.0) / 2.0,
        distance=distance,
        solved=attack.primal_equals_dual,
    )
    return worst, attack.hidden
