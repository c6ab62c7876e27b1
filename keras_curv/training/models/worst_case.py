"""Training at the worst points of a ball that curvature finds: what classes and numbers share.

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
from keras_curv.errors import InputError, require_at_least
from keras_curv.network.network import FeedForward
from keras_curv.threats.box import box_reach
from keras_curv.threats.clipped import clipped
from keras_curv.threats.confined import Reach
from keras_curv.threats.threat import Threat
from keras_curv.training.models.ball_model import BallModel, flattened
from keras_curv.training.models.regularizer import CurvatureModel
from keras_curv.training.models.threatened import Threatened
from keras_curv.training.trainable.centring import Centring
from keras_curv.training.trainable.curvature_estimate import Reached
from keras_curv.training.trainable.trunk import Behind, LipschitzEstimate, Moved, through


class Pairs(NamedTuple):
    """The attacked margins of a step: of a label over its rivals, logits of `network`.

    Attributes:
        label: `(n,)`.
        rival: `(n, k)`.
        shortfall: `min(‖x̂ − x‖² − ρ², 0)/2`, `(n, k)`, or `∂V_t/∂κ_t` of a confined attack.
        added: to the dual values, `(n, k)`; 0 but where the attack is confined.
        minus_m: κ, without a gradient, `(n, k)`.
        distance: ‖x̂ − x‖, `(n, k)`.
        solved: whether the attack met its dual bound, `(n, k)`.
        reached: for `CurvatureEstimate.estimate`.
    """

    label: tf.Tensor
    rival: tf.Tensor
    shortfall: tf.Tensor
    added: tf.Tensor
    minus_m: tf.Tensor
    distance: tf.Tensor
    solved: tf.Tensor
    reached: Reached | None

    def dual_values(self, logits: tf.Tensor, minus_m: tf.Tensor) -> tf.Tensor:
        """Returns V_t, `(n, k)`, from the logits at the attacked points, `(n·k, logits)`."""
        classes = logits.shape[-1]
        logits = tf.reshape(tf.cast(logits, tf.float32), (-1, self.rival.shape[1], classes))
        # Products with one-hot rows instead of gathers: their gradients are dense.
        sign = tf.one_hot(self.label, classes)[:, None] - tf.one_hot(self.rival, classes)
        return tf.reduce_sum(sign * logits, axis=-1) + self.added + minus_m * self.shortfall


class Attacked(NamedTuple):
    """What takes the place of the targets while a step works on attacked examples.

    Attributes:
        pairs: the rivals of each label; of numbers, two of each output, as rivals of logit 0.
        target: labels `(n,)`, or numbers `(n, outputs)`.
        output: of the clean examples, `(n, outputs)`.
        harms: whether a rival is attacked, `(n, k)`; None: all are.
    """

    pairs: Pairs
    target: tf.Tensor
    output: tf.Tensor
    harms: tf.Tensor | None = None


class Start(NamedTuple):
    """Where the attacks of a step begin.

    Attributes:
        network: that is attacked.
        point: in its coordinates, `(n, dim)`.
        reach: of these, where they are confined.
    """

    network: FeedForward
    point: tf.Tensor
    reach: Reach | None


class Evaluated(NamedTuple):
    """Points at which the network is asked, instead of the base: for the same logits.

    Attributes:
        points: as the network takes them, `(n, …)`.
        hidden: what it made of them, where that is known already; see `attacks/crt.py`.
    """

    points: tf.Tensor
    hidden: Hidden | None


class Attack(NamedTuple):
    """What the attack of a step found.

    Attributes:
        worst: the points.
        minus_m: κ of the pairs, `(n, k)`.
        hidden: of the points, where the attack evaluated them.
        reached: for `CurvatureEstimate.estimate`.
    """

    worst: ProximalAttack
    minus_m: tf.Tensor
    hidden: Hidden | None
    reached: Reached | None


class WorstCaseModel(CurvatureModel, BallModel):
    """Trains a base model on attacked points; subclasses say which margins, and what is lost.

    Metrics: those of `BallModel`; `curvature`, mean κ; `attack_distance`, mean ‖x̂ − x‖;
    `attack_success`, how often the attack met its bound; `certified` where a subclass has it.

    While a step trains, dropout and the batch's own statistics act on the attacked points, as they
    do in any training; attacks, κ and validation are without. Within a box, or behind a clip, an
    attack may end some per cent beyond ρ, for which V_t pays.

    Args:
        base: as for `CurvatureRegularizer`.
        radius: ρ > 0 of the ball, in units of the model's input.
        gamma: γ ≥ 0.
        attack_steps: gradients for each attack.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
        threat: what the attacker may do, a `Threat` in l2 without a basis; ρ is in its units.
        centre: whether steps are those of centred activations, see `centring.py`; of a base of
            dense layers behind the first activation.

    Raises:
        InputError: an argument out of range, or the base has a part that cannot be read.
    """

    clips = True
    trunks = True
    options = ("gamma", *BallModel.options, "attack_steps", "centre")
    certified_metric: keras.metrics.Mean | None = None

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
        super().__init__(base, gamma, radius=radius, ramp_steps=ramp_steps, **kwargs)
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

    def network(self) -> FeedForward:
        """Returns the network that is attacked: of u where there is a threat."""
        network = self.margin_network()
        if self.lipschitz is not None:
            return Behind(network, self.lipschitz.estimate())
        return network if self.threat.plain else Threatened(network, self.threat)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """See `CurvatureModel`."""
        if self.lipschitz is not None:
            self.lipschitz.advance()
        if self.centring is None:
            return super().train_step(data)
        before = self.centring.kernels()
        logs = super().train_step(data)
        self.centring.move_biases(before)
        return logs

    def call(self, x: Any, training: bool | None = None) -> tf.Tensor:
        """Returns what the base returns, `(n, classes)`; of `Moved` and `Evaluated` ones, too."""
        if isinstance(x, Evaluated):
            pre, post = (None, None) if x.hidden is None else x.hidden[:2]
            means = None if self.centring is None else self.centring.means
            return self.live.now().logits_given(x.points, pre, post, means)
        if not isinstance(x, Moved):
            return super().call(x, training)
        assert self.lipschitz is not None
        shape = self.lipschitz.trunk.output_shape
        features = tf.cast(self.lipschitz.trunk.features(x.x), tf.float32)
        offset = tf.reshape(x.offset, (-1, x.offset.shape[1], *shape))
        points = features[:, None] + self.lipschitz.estimate() * offset
        return through(self.live.layers, tf.reshape(points, (-1, *shape)))

    def margin_network(self) -> FeedForward:
        """Returns the network of x whose logits make the margins."""
        return self.live.now()

    def start(self, x: tf.Tensor) -> Start:
        """Returns where attacks on inputs begin, `(n, …)`."""
        network, layer = self.network(), self.live.clip
        if isinstance(network, Behind):
            assert self.lipschitz is not None
            features = flattened(self.lipschitz.trunk.features(x), network.dim)
            return Start(network, features / network.factor, None)
        point, reach = flattened(x, network.dim), None
        if isinstance(network, Threatened):
            point = _inside(network.coordinates(point), network)
            reach = None if network.limits is None else box_reach(network, point, tf)
        elif layer is not None:
            point, reach, _ = clipped(layer.clip(network.dim), point)
        return Start(network, point, reach)

    def attacked(self, start: Start, label: tf.Tensor, rival: tf.Tensor, training: bool) -> Attack:
        """Returns the worst points; a step that trains moves vectors and means on."""
        network, point, reach = start
        vectors = self.curvature.advance(network) if training else None
        if training and self.centring is not None:
            self.centring.advance(network.hidden(point)[1:])
        reached = self.curvature.reached(network, vectors) if self.live.is_dense else None
        minus_m = self.minus_m(network, label, rival, reached)
        radius, steps = self.current_radius(training), self.attack_steps
        if reach is None:
            worst, hidden = worst_in_ball(network, point, label, rival, radius, minus_m, steps)
        else:
            hidden = None
            worst = proximal_attack(
                network, point, reach, label, rival, radius=radius, curvature=minus_m, steps=steps
            )
        return Attack(worst, minus_m, hidden, reached)

    def inputs(self, start: Start, attack: Attack, like: tf.Tensor) -> Any:
        """Returns attacked points as `call` takes them: `(n·k, …)`, of the shape of others."""
        points = attack.worst.point
        if isinstance(start.network, Behind):
            return Moved(like, points - start.point[:, None])
        if isinstance(start.network, Threatened):
            points = start.network.inputs(points)
        points = tf.reshape(points, tf.concat([[-1], tf.shape(like)[1:]], axis=0))
        known = attack.hidden is not None and self.live.as_in_training and self.live.is_dense
        if self.centring is not None or (known and self.live.clip is None):
            return Evaluated(points, attack.hidden)
        return points if self.live.clip is None else self.live.clip.inverse(points)

    def step_loss(
        self, x: tf.Tensor, y: Any, y_pred: tf.Tensor, sample_weight: Any, training: bool
    ) -> tf.Tensor:
        """Returns the compiled loss at the worst outputs, plus the penalty."""
        if not isinstance(y, Attacked):  # Keras builds its losses on the data as they come
            return self.compiled_loss(y, y_pred, sample_weight)
        pairs = y.pairs
        minus_m = self.minus_m(self.network(), pairs.label, pairs.rival, pairs.reached)
        self.add_penalty(minus_m, sample_weight)
        worst = self.worst_outputs(y, y_pred, minus_m)
        return self.compiled_loss(y.target, worst, sample_weight)

    @abc.abstractmethod
    def worst_outputs(self, y: Attacked, y_pred: tf.Tensor, minus_m: tf.Tensor) -> tf.Tensor:
        """Returns the outputs that the compiled loss is of.

        Args:
            y: what was attacked.
            y_pred: the outputs there, `(n·k, outputs)`.
            minus_m: κ of the pairs, `(n, k)`, differentiable.
        """

    @abc.abstractmethod
    def proved(self, y: Attacked, y_pred: tf.Tensor, sample_weight: Any) -> tf.Tensor:
        """Returns which examples an estimated κ would certify, `(n,)`; counts what goes with it."""

    def compute_metrics(
        self, x: tf.Tensor, y: Any, y_pred: tf.Tensor, sample_weight: Any = None
    ) -> dict[str, tf.Tensor]:
        """Returns the compiled metrics on the clean examples, and what the attacks met."""
        if isinstance(y, Attacked):
            proved = self.proved(y, y_pred, sample_weight)
            if self.certified_metric is not None:
                self.certified_metric.update_state(proved, sample_weight)
            self.curvature_metric.update_state(y.pairs.minus_m)
            self.distance_metric.update_state(y.pairs.distance)
            self.success_metric.update_state(y.pairs.solved)
            y, y_pred = y.target, y.output
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return {**super().get_config(), "threat": self.threat.config()}


def _inside(u: tf.Tensor, network: Threatened) -> tf.Tensor:
    """Returns the points; InputError, or NaN where XLA drops it, of those outside of the threat."""
    outside = network.outside(u)
    message = "an example is outside of the threat's box, or not one-hot in one of its groups"
    with tf.control_dependencies([tf.debugging.assert_equal(outside, False, message)]):
        return tf.where(outside[:, None], tf.constant(float("nan"), u.dtype), u)


def pairs_of(attack: Attack, label: tf.Tensor, rival: tf.Tensor) -> Pairs:
    """Returns the attacked pairs, without their points."""
    worst = attack.worst
    return Pairs(
        label,
        rival,
        shortfall=worst.shortfall,
        added=worst.added,
        minus_m=attack.minus_m,
        distance=worst.distance,
        solved=worst.solved,
        reached=attack.reached,
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
    """Returns the curvature attack in the terms of the one that is confined."""
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
