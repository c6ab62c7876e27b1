"""Curvature-based robust training (CRT), and the certified loss in its place.

The model wraps a base that returns logits; after training, export the base. Its curvature is
estimated by `curvature_estimate.py`.

The certified loss. With V_t the dual value of the margin of the label over rival t, see
`worst_case.py`, `log(1 + Σ_t exp(−V_t))` is the cross-entropy of the logits
`(0, −V_1, …, −V_k)` with the first as label, so the loss that the model was compiled with is
evaluated at these. It is a surrogate: k rivals, and an estimated κ. Only a certificate is a bound.

A `Property` says which rivals are attacked, and how many may pass: one that does no harm counts
with its margin at the example itself.

Reference: Singla & Feizi (2020), section 5, for curvature-based robust training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError, require_one_of
from keras_curv.network.network import FeedForward, likeliest_rivals
from keras_curv.threats.properties.property import ARGMAX, Argmax, Harmful, Property, TopK
from keras_curv.threats.threat import UNRESTRICTED, Threat
from keras_curv.training.models.ball_model import NEVER
from keras_curv.training.models.threatened import Threatened
from keras_curv.training.models.worst_case import Attacked, WorstCaseModel

LOSSES = ("certified", "crt")
_RIVALS = 4  # default of the certified loss


@keras.saving.register_keras_serializable(package="keras_curv")
class CRTModel(WorstCaseModel):
    """Trains a base model on the worst points that curvature finds in an l2 ball.

    `loss="crt"` is the paper's objective: the compiled loss at the attack toward the
    runner-up, plus `γ · mean κ`. `loss="certified"` (see the module's docstring) attacks
    toward the k likeliest rivals and gives the compiled loss the dual values; it pushes
    curvature down by itself, so γ may be 0.

    Metrics: the compiled ones, on clean examples; `clean_accuracy`; `certified`, the fraction of
    examples with positive dual values only (an estimate, for these rivals alone); `curvature`, mean
    κ; `attack_distance`, mean ‖x̂ − x‖; `attack_success`, how often the attack met its bound. While
    the radius rises, loss and metrics of training are at the radius of the step.

    Args:
        base: as for `CurvatureRegularizer`.
        radius: ρ > 0 of the ball, in units of the model's input.
        gamma: γ ≥ 0. The paper's CRT has 0.01 at least.
        loss: "certified" or "crt".
        rivals: k, of the certified loss; None: 4, or all if there are fewer.
        attack_steps: gradients for each attack.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
        threat: what the attacker may do, a `Threat` in l2 without a basis; ρ is in its units. The
            worst categories are found greedily, and attacks begin there.
        property: what must not change, a `Property` or its spelling: argmax, top_k or harmful, the
            latter two with the certified loss. Rivals that do harm come first; others, the
            likeliest, are not attacked.
        centre: whether steps centre activations, see `centring.py`; for dense layers behind the
            first activation. It does not change the kind of network that is exported.

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

    options = (*WorstCaseModel.options, "rivals")

    def __init__(
        self,
        base: keras.Model,
        radius: float,
        gamma: float = 0.0,
        *,
        loss: str = "certified",
        rivals: int | None = None,
        attack_steps: int = 2,
        ramp_steps: int = 0,
        threat: Threat | Mapping[str, Any] = UNRESTRICTED,
        property: Property | str = ARGMAX,
        centre: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            base,
            radius,
            gamma,
            attack_steps=attack_steps,
            ramp_steps=ramp_steps,
            threat=threat,
            centre=centre,
            **kwargs,
        )
        self.objective = require_one_of(loss, LOSSES, "loss")
        self.property = Property.of(property)
        classes = self.live.sizes[-1]
        self._harms = _harms(self.property, classes)
        if loss == "crt" and self.property != ARGMAX:
            raise InputError(f"loss='crt' is for argmax. Received: property={self.property}")
        others = classes - 1
        if loss == "crt" and rivals not in (None, 1):
            raise InputError(f"loss='crt' attacks the runner-up alone. Received: rivals={rivals}")
        if rivals is not None and rivals not in range(1, others + 1):
            raise InputError(
                f"rivals must be from 1 to {others}, the other classes. Received: {rivals}"
            )
        spared = self.property.spared
        if rivals is not None and rivals <= spared:
            raise InputError(
                f"{self.property} lets {spared} rivals pass: more must be attacked. "
                f"Received: rivals={rivals}"
            )
        self.rivals = 1 if loss == "crt" else int(rivals or min(_RIVALS + spared, others))
        self.certified_metric = keras.metrics.Mean("certified")

    def base_outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `WorstCaseModel`; they are the logits."""
        return logits

    def margins(
        self, network: FeedForward, start: tf.Tensor, logits: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """See `WorstCaseModel`; where categories may change, attacks begin at the worst ones."""
        if isinstance(network, Threatened) and self.threat.categories is not None:
            start = self._worst_categories(network, start, y)
            logits = network.logits(start)
        return start, y, *self._rivals(logits, y)

    def _worst_categories(self, network: Threatened, u: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Returns the points with the categories that make the smallest margin least."""
        own = tf.one_hot(label, self.live.sizes[-1], dtype=tf.bool, on_value=True, off_value=False)
        held = own if self._harms is None else ~tf.gather(tf.constant(self._harms), label)

        def margins(logits: tf.Tensor) -> tf.Tensor:
            mine = tf.reduce_sum(tf.where(own[:, None], logits, 0.0), axis=-1)
            return mine - tf.reduce_max(tf.where(held[:, None], NEVER, logits), axis=-1)

        return network.with_worst_categories(u, margins)

    def _rivals(self, logits: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns rivals, `(n, k)`, harmful ones first, and whether each does harm; None: all."""
        if self._harms is None:
            rival = likeliest_rivals(logits, label, self.rivals)
            return rival, None
        harms = tf.gather(tf.constant(self._harms), label)  # (n, classes)
        above = 1.0 + tf.reduce_max(logits) - tf.reduce_min(logits)  # no more: digits would be lost
        rival = likeliest_rivals(tf.where(harms, logits + above, logits), label, self.rivals)
        return rival, tf.gather(harms, rival, batch_dims=1)

    def worst_outputs(
        self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, minus_m: tf.Tensor
    ) -> tf.Tensor:
        """Returns logits of the certified loss, `(n, classes)`; of "crt" the outputs themselves.

        They are 0 for the label and −V_t for its rivals; other classes, and the rivals with the
        smallest V_t, as many as may pass, are left out.
        """
        if self.objective == "crt":
            return outputs
        classes, dual_values = self.live.sizes[-1], attacked.dual_values(outputs, minus_m)
        rivals = tf.one_hot(attacked.rival, classes)
        if self.property.spared:
            counts = tf.logical_not(_lowest(dual_values, self.property.spared))
            rivals *= tf.cast(counts, rivals.dtype)[..., None]
        taking_part = tf.one_hot(y, classes) + tf.reduce_sum(rivals, axis=1)
        worst = -tf.reduce_sum(rivals * dual_values[..., None], axis=1)
        return worst + NEVER * (1.0 - taking_part)

    def count(self, attacked: Attacked, y: tf.Tensor, outputs: tf.Tensor, weight: Any) -> None:
        """See `WorstCaseModel`; an example is certified if few enough dual values fail."""
        super().count(attacked, y, outputs, weight)
        # Count what is proved, not what is not: TensorFlow turns a negated comparison into the
        # opposite one, in which NaN would count as proved.
        held = attacked.dual_values(outputs, attacked.minus_m) > 0.0
        if attacked.harms is not None:
            held |= tf.logical_not(attacked.harms)
        count = tf.reduce_sum(tf.cast(held, tf.int32), axis=1)
        certified = count >= held.shape[1] - self.property.spared
        self.certified_metric.update_state(certified, weight)

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        own = {"loss": self.objective, "property": self.property.spelling}
        return {**super().get_config(), **own}


def _harms(property: Property, classes: int) -> np.ndarray | None:
    """Returns whether a rival does harm, `(label, rival)`; None: all do.

    Raises:
        InputError: the property is not one of classes, or of another number of classes.
    """
    if not isinstance(property, (Argmax, TopK, Harmful)):
        raise InputError(f"training knows argmax, top_k and harmful. Received: property={property}")
    property.require_classes(classes)
    if not isinstance(property, Harmful):
        return None
    labels, harms = np.arange(classes), np.zeros((classes, classes), bool)
    for rows, rivals in property.rivals(np.zeros((classes, classes)), labels):
        harms[rows[:, None], rivals] = True
    return harms


def _lowest(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns whether an entry is among the `count` smallest of its row, `(n, k)`."""
    chosen = tf.math.top_k(-values, count).indices
    return tf.reduce_any(tf.one_hot(chosen, values.shape[1], True, False), axis=1)
