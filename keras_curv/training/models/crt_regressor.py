"""Training of models that return numbers: on the intervals that curvature proves for them.

The margins of an output f_j are f_j itself and −f_j (`output_margins.py`). Their dual values (see
`worst_case.py`) L_j = V(f_j) and U_j = −V(−f_j) enclose the output on the whole ball, if κ is a
bound. The compiled loss is taken at the end of the interval that is farther from the target, where
a loss that grows with the distance from the target is largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.network import FeedForward
from keras_curv.threats.properties.property import Property
from keras_curv.threats.properties.scores import Interval
from keras_curv.threats.threat import UNRESTRICTED, Threat
from keras_curv.training.models.output_margins import OutputMargins, signed
from keras_curv.training.models.targets import Numbers
from keras_curv.training.models.worst_case import Attacked, WorstCaseModel


@keras.saving.register_keras_serializable(package="keras_curv")
class CRTRegressor(WorstCaseModel):
    """Trains a model of numbers on the ends of the intervals that curvature proves for them.

    The compiled loss, which must grow with the distance from the target, is taken at the end of the
    interval that is farther from it; by default it is the mean squared error. It pushes curvature
    down by itself, so γ may be 0. Certify with `Property.interval` afterwards.

    Metrics: the compiled ones, on clean examples; `clean_error`, their mean absolute error;
    `certified_error`, that of the farther ends; `interval`, the mean distance of the farthest end
    from the clean output; `curvature`, `attack_distance` and `attack_success`, see `CRTModel`; with
    an interval as the property, `certified`: the fraction of examples that stay within it. They
    rest on an estimated κ: only a certificate is a bound.

    Args:
        base: a built model with one input and one output of numbers, `(n, outputs)`, of layers
            that `LiveNetwork` reads.
        radius: ρ > 0 of the ball, in units of the model's input, or of the threat.
        gamma: γ ≥ 0, weight of the mean curvature of the outputs.
        attack_steps: gradients for each end.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
        threat: what the attacker may do, a `Threat` in l2 without a basis or groups.
        property: `Property.interval(τ)` or its spelling, for the metric `certified` alone; None: no
            such metric.

    Raises:
        InputError: an argument out of range, or the base has a part that cannot be read.

    Example:
        >>> dense = keras.layers.Dense
        >>> base = keras.Sequential([keras.Input((4,)), dense(8, "softplus"), dense(1)])
        >>> model = CRTRegressor(base, radius=0.5, property="interval:0.2")
        >>> model.compile("adam", loss="mse")
        >>> history = model.fit(tf.zeros((8, 4)), tf.zeros(8), verbose=0)
        >>> base.export("robust")  # doctest: +SKIP

    Reference: Singla & Feizi (2020), theorem 2, for the dual; docs/threats.md.
    """

    target_kind = Numbers

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        gamma: float = 0.0,
        *,
        attack_steps: int = 2,
        ramp_steps: int = 0,
        threat: Threat | Mapping[str, Any] = UNRESTRICTED,
        property: Property | str | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            base,
            radius,
            gamma,
            attack_steps=attack_steps,
            ramp_steps=ramp_steps,
            threat=threat,
            **kwargs,
        )
        if self.threat.categories is not None:
            raise InputError(
                "training of numbers knows no categories, whose worst change differs by end: "
                f"freeze them, and certify with groups. Received: {self.threat}"
            )
        self.property = None if property is None else Property.of(property)
        self._room = _room(self.property, self.live.now())
        if self.property is not None:
            self.certified_metric = keras.metrics.Mean("certified")
        self.error_metric = keras.metrics.MeanAbsoluteError("certified_error")
        self.interval_metric = keras.metrics.Mean("interval")

    @property
    def logit_count(self) -> int:
        """See `WorstCaseModel`."""
        return 1 + 2 * self.live.sizes[-1]

    def margin_network(self) -> FeedForward:
        """See `WorstCaseModel`."""
        return OutputMargins(self.live.now())

    def base_outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `WorstCaseModel`."""
        return logits[:, 1::2]

    def margins(
        self, network: FeedForward, start: tf.Tensor, logits: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """See `WorstCaseModel`."""
        label = tf.zeros(tf.shape(start)[:1], tf.int32)
        return start, label, label[:, None] + tf.range(1, self.logit_count), None

    def worst_outputs(
        self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, minus_m: tf.Tensor
    ) -> tf.Tensor:
        """Returns the ends that are farther from the targets."""
        return _farther(*ends(attacked, outputs, minus_m), y)

    def count(self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, weight: Any) -> None:
        """See `WorstCaseModel`; also counts the errors of the ends, and their distances."""
        super().count(attacked, y, outputs, weight)
        low, high = ends(attacked, outputs, attacked.minus_m)
        away = tf.maximum(high - attacked.output, attacked.output - low)
        self.interval_metric.update_state(tf.reduce_mean(away, axis=1), weight)
        self.error_metric.update_state(y, _farther(low, high, y), weight)
        if self.property is not None:
            self.certified_metric.update_state(tf.reduce_all(away < self._room, axis=1), weight)

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        spelling = None if self.property is None else self.property.spelling
        return {**super().get_config(), "property": spelling}


def _room(property: Property | None, network: FeedForward) -> np.ndarray:
    """Returns how far each output may move, `(outputs,)`; InputError for another property."""
    room = np.full(network.classes, np.inf, np.float32)
    if property is not None:
        if not isinstance(property, Interval):
            raise InputError(f"numbers are trained for an interval. Received: property={property}")
        for output, tau in property.outputs(network).items():
            room[output] = tau
    return room


def ends(attacked: Attacked, outputs: tf.Tensor, minus_m: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns L and U, `(n, outputs)`, from the outputs at the attacked points."""
    values = attacked.dual_values(signed(outputs), minus_m)
    return values[:, 1::2], -values[:, ::2]


def _farther(low: tf.Tensor, high: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the end that is farther from the target."""
    return tf.where(high - target >= target - low, high, low)
