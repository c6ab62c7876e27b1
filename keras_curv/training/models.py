"""Training for certified robustness: a curvature penalty, and curvature-based robust training.

Both wrap a base model that returns logits; after training, export the base. The network is
read from its layers (`live.py`), its curvature is estimated by power iteration that goes on
from step to step (`curvature/estimate.py`). The state moves in `train_step` and nowhere else.

The certified loss. Let `∇²f_t ≽ −κ_t` for the margin f_t of the label over rival t. For any
x̂_t in the ball of radius ρ around x, the dual optimum of the attack is at most

    V_t = f_t(x̂_t) + (κ_t/2) (‖x̂_t − x‖² − ρ²),

and equal to it where x̂_t is the minimiser, which is where the attack ends up. There, by the
envelope theorem, the gradient of V_t in the weights, through κ_t too, is that of the optimum,
with x̂_t held fixed. `log(1 + Σ_t exp(−V_t))` is the cross-entropy of the logits
`(0, −V_1, …, −V_k)` with the first as label, so whichever loss the model was compiled with is
given these. It is a surrogate: k rivals, and an estimated κ. Only a certificate is a bound.

Reference: Singla & Feizi (2020), section 5, for curvature-based robust training.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_curv.attacks.crt import curvature_attack
from keras_curv.curvature.estimate import CurvatureEstimate
from keras_curv.errors import (
    InputError,
    require_at_least,
    require_non_negative,
    require_one_of,
    require_positive,
)
from keras_curv.network.activations import SMOOTH
from keras_curv.network.network import likeliest_rivals
from keras_curv.training.logits_model import LogitsModel, class_numbers

LOSSES = ("certified", "crt")
_RIVALS = 4  # of the certified loss, by default
_NEVER = -1e9  # the logit of a class that takes no part


class _CurvatureModel(LogitsModel):
    """A base model, and the estimated curvature of the network read from it."""

    activations = SMOOTH

    def __init__(self, base, gamma, **kwargs):
        super().__init__(base, **kwargs)
        self.gamma = require_non_negative(gamma, "gamma")
        self.curvature = CurvatureEstimate(self.live.sizes, self.live.activations)
        self.curvature_metric = keras.metrics.Mean("curvature")

    def _minus_m(self, label, rival) -> tf.Tensor:
        """κ of each pair, of the shape of `rival`; differentiable, moves nothing."""
        return _of_pairs(self.curvature.estimate(self.live.now()), label, rival)

    def _add_penalty(self, minus_m, sample_weight) -> None:
        if self.gamma == 0.0:
            return
        if sample_weight is not None:
            weight = tf.cast(sample_weight, minus_m.dtype)
            minus_m *= tf.reshape(weight, (-1, *[1] * (minus_m.shape.rank - 1)))
        count = tf.cast(tf.size(minus_m), minus_m.dtype)  # zero for a replica without examples
        self.add_loss(self.gamma * tf.math.divide_no_nan(tf.reduce_sum(minus_m), count))

    def get_config(self):
        """What `from_config` takes."""
        return {**super().get_config(), "gamma": self.gamma}


@keras.saving.register_keras_serializable(package="keras_curv")
class CurvatureRegularizer(_CurvatureModel):
    """Trains a base model with the penalty `γ · mean κ(W, y, t)` on its curvature.

    `κ = −m ≥ 0` bounds how fast the margin of the label y over the runner-up t can bend down;
    the smaller, the larger a certificate. For two layers it is that of theorem 3, for deeper
    ones that of `curvature.signed_bound`, both by power iteration, one step a batch. The penalty
    arrives through `add_loss`; everything else is plain `compile` and `fit`. With γ = 0 the
    base trains as it would alone, bit for bit.

    Args:
        base: a built model with one input and one output of logits, a plain chain of layers
            that `LiveNetwork` reads.
        gamma: γ ≥ 0.

    Raises:
        InputError: γ is negative, or the base has a part that cannot be read.

    Example:
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((4,)), dense(8, "softplus"), dense(3)])
        >>> model = CurvatureRegularizer(base, gamma=0.01)
        >>> model.compile("adam", metrics=["accuracy"])
        >>> history = model.fit(tf.zeros((8, 4)), tf.range(8) % 3, verbose=0)
        >>> sorted(history.history)
        ['accuracy', 'curvature', 'loss']

    Reference: Singla & Feizi (2020), section 5, equation 10 without an attack.
    """

    def __init__(self, base, gamma=0.01, **kwargs):
        super().__init__(base, gamma, **kwargs)

    def train_step(self, data):
        """One step; moves the vectors of the curvature estimate on first."""
        self.curvature.advance(self.live.now())
        return super().train_step(self.checked(data))

    def test_step(self, data):
        """The same; nothing moves."""
        return super().test_step(self.checked(data))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The compiled loss, plus the penalty."""
        label = class_numbers(y)
        rival = likeliest_rivals(tf.cast(y_pred, tf.float32), label, 1)[:, 0]
        minus_m = self._minus_m(label, rival)
        self.curvature_metric.update_state(minus_m)
        self._add_penalty(minus_m, sample_weight)
        return super().compute_loss(x, label, y_pred, sample_weight, training)


class _Attacked(NamedTuple):
    """What takes the place of the labels while a step works on attacked examples.

    Attributes:
        label: `(n,)`.
        rival: `(n, k)`.
        shortfall: `min(‖x̂ − x‖² − ρ², 0)/2`, `(n, k)`.
        minus_m: κ, without a gradient, `(n, k)`.
        distance: ‖x̂ − x‖, `(n, k)`.
        solved: whether the attack met its dual bound, `(n, k)`.
        logits: of the clean examples, `(n, classes)`.
    """

    label: tf.Tensor
    rival: tf.Tensor
    shortfall: tf.Tensor
    minus_m: tf.Tensor
    distance: tf.Tensor
    solved: tf.Tensor
    logits: tf.Tensor


@keras.saving.register_keras_serializable(package="keras_curv")
class CRTModel(_CurvatureModel):
    """Trains a base model on the worst points that curvature finds in an l2 ball.

    `loss="crt"` is the paper's objective: the compiled loss at the attack toward the
    runner-up, plus `γ · mean κ`. `loss="certified"` (see the module's docstring) attacks
    toward the k likeliest rivals and gives the compiled loss the dual values; it pushes
    curvature down by itself, so γ may be 0.

    Metrics: those compiled, on the clean examples; `clean_accuracy`; `certified`, the fraction
    whose dual values are all positive (an estimate, of these rivals alone); `curvature`, mean
    κ; `attack_distance`, mean ‖x̂ − x‖; `attack_success`, how often the attack met its bound.

    Args:
        base: as for `CurvatureRegularizer`.
        radius: ρ > 0 of the ball, in units of the model's input.
        gamma: γ ≥ 0.
        loss: "certified" or "crt".
        rivals: k, of the certified loss; None: 4, or all where there are fewer.
        attack_steps: gradients for each attack.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.

    Raises:
        InputError: an argument out of range, or the base has a part that cannot be read.

    Example:
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((4,)), dense(8, "softplus"), dense(3)])
        >>> model = CRTModel(base, radius=0.5)
        >>> model.compile("adam")
        >>> history = model.fit(tf.zeros((8, 4)), tf.range(8) % 3, verbose=0)
        >>> base.export("robust")  # doctest: +SKIP

    Reference: Singla & Feizi (2020), section 5, equation 10, for "crt".
    """

    def __init__(
        self,
        base,
        radius,
        gamma=0.0,
        *,
        loss="certified",
        rivals=None,
        attack_steps=2,
        ramp_steps=0,
        **kwargs,
    ):
        super().__init__(base, gamma, **kwargs)
        self.radius = require_positive(radius, "radius")
        self.objective = require_one_of(loss, LOSSES, "loss")
        others = self.live.sizes[-1] - 1
        if loss == "crt" and rivals not in (None, 1):
            raise InputError(f"loss='crt' attacks the runner-up alone. Received: rivals={rivals}")
        if rivals is not None and rivals not in range(1, others + 1):
            raise InputError(
                f"rivals must be from 1 to {others}, the other classes. Received: {rivals}"
            )
        self.rivals = 1 if loss == "crt" else int(rivals or min(_RIVALS, others))
        self.attack_steps = require_at_least(attack_steps, 1, "attack_steps")
        self.ramp_steps = require_at_least(ramp_steps, 0, "ramp_steps")
        self.clean_metric = keras.metrics.SparseCategoricalAccuracy("clean_accuracy")
        self.certified_metric = keras.metrics.Mean("certified")
        self.distance_metric = keras.metrics.Mean("attack_distance")
        self.success_metric = keras.metrics.Mean("attack_success")

    def train_step(self, data):
        """One step: the vectors move on, the attack, then Keras' own step at its points."""
        self.curvature.advance(self.live.now())
        return super().train_step(self._attacked(data, self.current_radius(True)))

    def test_step(self, data):
        """The same at the full radius; nothing moves."""
        return super().test_step(self._attacked(data, self.current_radius(False)))

    def _attacked(self, data, radius):
        """The step's data, with attacked points `(n·k, …)` for x and `_Attacked` for y."""
        x, label, sample_weight = self.checked(data)
        network = self.live.now()
        x = tf.cast(x, tf.float32)
        flat = tf.reshape(x, (-1, network.dim))
        logits = network.logits(flat)
        rival = likeliest_rivals(logits, label, self.rivals)
        minus_m = _of_pairs(self.curvature.estimate(network), label, rival)
        attack = curvature_attack(
            network,
            flat,
            label,
            rival,
            radius=radius,
            curvature=minus_m,
            steps=self.attack_steps,
            tolerance=1e-3,
        )
        offset = attack.point - flat[:, None]
        square = tf.reduce_sum(offset * offset, axis=-1)
        points = tf.reshape(attack.point, tf.concat([[-1], tf.shape(x)[1:]], axis=0))
        y = _Attacked(
            label,
            rival,
            tf.minimum(square - radius * radius, 0.0) / 2.0,
            minus_m,
            tf.sqrt(square),
            attack.primal_equals_dual,
            logits,
        )
        return tf.nest.map_structure(tf.stop_gradient, (points, y)) + (sample_weight,)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The compiled loss at the worst logits, plus the penalty."""
        if not isinstance(y, _Attacked):  # Keras builds its losses on the data as they come
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        minus_m = self._minus_m(y.label, y.rival)
        self._add_penalty(minus_m, sample_weight)
        if self.objective == "certified":
            y_pred = self._worst_logits(y, _dual_values(y, y_pred, minus_m))
        return super().compute_loss(x, y.label, y_pred, sample_weight, training)

    def _worst_logits(self, y: _Attacked, dual_values: tf.Tensor) -> tf.Tensor:
        """0 for the label, −V_t for its rivals, and never the other classes, `(n, classes)`."""
        classes = self.live.sizes[-1]
        rivals = tf.one_hot(y.rival, classes)
        taking_part = tf.one_hot(y.label, classes) + tf.reduce_sum(rivals, axis=1)
        worst = -tf.reduce_sum(rivals * dual_values[..., None], axis=1)
        return worst + _NEVER * (1.0 - taking_part)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The compiled metrics on the clean examples, and what the attack met."""
        if not isinstance(y, _Attacked):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        proved = tf.reduce_all(_dual_values(y, y_pred, y.minus_m) > 0.0, axis=1)
        self.clean_metric.update_state(y.label, y.logits, sample_weight)
        self.certified_metric.update_state(proved, sample_weight)
        self.curvature_metric.update_state(y.minus_m)
        self.distance_metric.update_state(y.distance)
        self.success_metric.update_state(y.solved)
        return super().compute_metrics(x, y.label, y.logits, sample_weight)

    def get_config(self):
        """What `from_config` takes."""
        return {
            **super().get_config(),
            "radius": self.radius,
            "loss": self.objective,
            "rivals": self.rivals,
            "attack_steps": self.attack_steps,
            "ramp_steps": self.ramp_steps,
        }


def _dual_values(y: _Attacked, logits: tf.Tensor, minus_m: tf.Tensor) -> tf.Tensor:
    """V_t, `(n, k)`, from the logits at the attacked points, `(n·k, classes)`."""
    classes = logits.shape[-1]
    logits = tf.reshape(tf.cast(logits, tf.float32), (-1, y.rival.shape[1], classes))
    # Products with one-hot rows instead of gathers: their gradients are dense.
    sign = tf.one_hot(y.label, classes)[:, None] - tf.one_hot(y.rival, classes)
    return tf.reduce_sum(sign * logits, axis=-1) + minus_m * y.shortfall


def _of_pairs(matrix: tf.Tensor, label: tf.Tensor, rival: tf.Tensor) -> tf.Tensor:
    """`matrix[label, rival]`, of the shape of `rival`, `(n,)` or `(n, k)`."""
    rows = tf.matmul(tf.one_hot(label, matrix.shape[0]), matrix)
    return tf.gather(rows, rival, batch_dims=1)
