"""Properties of numeric outputs: a threshold, and an interval around a prediction.

A score f_j that must stay between `lo` and `hi` has two margins, `hi − f_j` and `f_j − lo`. They
are the margins of logit 0 against its rivals in

    (0,  f_1 − hi_1,  lo_1 − f_1,  f_2 − hi_2,  lo_2 − f_2, …),

a network with the same hidden layers and the last map `[0, W_1, −W_1, W_2, −W_2, …]`. Thresholds
are in its biases, and an example has one rival for each output: the one for the other side.
Intervals differ from example to example, and are pinned inputs, see `network/pinned.py`.

A threshold on the sigmoid of a logit is a threshold on the logit, as the sigmoid is increasing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError, require_at_least, require_finite, require_positive
from keras_curv.network.affine import Affine
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.numerics.rounding import (
    ROUNDING_SLACK,
    UNIT,
    gamma,
    norm_bound,
    pre_activation_errors,
    up,
)
from keras_curv.threats.arrays import LARGEST
from keras_curv.threats.properties.property import Property, Reading, Rivals

SIGMOIDS = ("sigmoid", "binary_sigmoid")
_RISES, _FALLS = 1, 0  # a row names the deciding margin by 2 · output + this
_MOST_OUTPUTS = 62  # so that the set of outputs above their thresholds fits an int64


class ScoreProperty(Property):
    """A property of numeric outputs, each with its own value.

    Args:
        values: the values of named outputs, or one number for all outputs.
        name: the name of the values, for messages.
    """

    def __init__(self, values: float | Mapping[int, float], name: str):
        given = values if isinstance(values, Mapping) else {None: values}
        if not given:
            raise InputError(f"{name} needs one output at least. Received: none")
        self._values: dict[int | None, float] = {}
        for output, value in given.items():
            output = output if output is None else require_at_least(output, 0, "an output")
            self._values[output] = require_finite(value, name)
            if abs(value) > LARGEST:
                raise InputError(f"{name} must be at most {LARGEST:g} in size. Received: {value:g}")
        if len(self._values) > _MOST_OUTPUTS:
            raise InputError(
                f"{name} names {len(self._values)} outputs; name {_MOST_OUTPUTS} at most"
            )
        parts = [f"{v!r}" if j is None else f"{j}={v!r}" for j, v in self._values.items()]
        self.spelling = f"{name}:{','.join(parts)}"
        self._listed = ", ".join(
            f"{v:g}" if j is None else f"{v:g} (output {j})" for j, v in self._values.items()
        )

    def outputs(self, network: FeedForward, head: str = "logits") -> dict[int, float]:
        """Returns columns of the last kernel with their values; InputError for a missing output."""
        count = 1 if head == "binary_sigmoid" else network.classes
        if None in self._values:
            chosen = dict.fromkeys(range(count), self._values[None])
        else:
            chosen = {j: value for j, value in self._values.items() if j is not None}
        missing = [j for j in chosen if j >= count]
        if missing:
            raise InputError(
                f"{self.spelling} names output {missing[0]}, but the model has {count} "
                f"(0 to {count - 1})"
            )
        if len(chosen) > _MOST_OUTPUTS:
            raise InputError(
                f"{self.spelling} is about {len(chosen)} outputs; name {_MOST_OUTPUTS} at most"
            )
        return {j + (head == "binary_sigmoid"): value for j, value in sorted(chosen.items())}

    def _last(self, network: Network, columns: Collection[int], shift: np.ndarray) -> Affine:
        """Returns the map `[0, W_1, −W_1, …]` with the shift, `(outputs,)`, subtracted."""
        last = network.affines[-1]

        def paired(array: np.ndarray) -> np.ndarray:
            """Doubles columns, `(…, classes)` → `(…, 1 + 2 outputs)`, without the signs."""
            chosen = np.repeat(array[..., list(columns)], 2, axis=-1)
            return np.concatenate([np.zeros_like(chosen[..., :1]), chosen], axis=-1)

        turn = np.concatenate([[1.0], np.tile([1.0, -1.0], len(columns))])
        bias = paired(last.bias)
        bias[1:] -= np.repeat(shift, 2)
        # Each column is there twice.
        return dataclasses.replace(
            last,
            kernel=paired(last.kernel) * turn,
            bias=bias * turn,
            kernel_error=up(math.sqrt(2.0) * last.kernel_error),
            bias_error=up(math.sqrt(2.0) * last.bias_error + UNIT * norm_bound(bias)),
            served_kernel_error=paired(last.served_kernel_error),
            served_bias_error=paired(last.served_bias_error) + 4.0 * UNIT * np.abs(bias),
        )

    def decider(self, rival: np.ndarray) -> np.ndarray:
        """Returns 2 · output, plus 1 if the output would rise; −1 is none."""
        return np.where(rival > 0, (rival - 1) ^ 1, -1)


class Threshold(ScoreProperty, kind="threshold"):
    """The property that each output stays on its side of a value.

    A label, or prediction, is the sum of 2ʲ over the outputs j above their values; with one
    output it is 1 or 0.

    Args:
        values: see `ScoreProperty`; probabilities if a sigmoid is served.

    Raises:
        InputError: a value is not a number.
    """

    def __init__(self, values: float | Mapping[int, float]):
        super().__init__(values, "threshold")
        self.text = f"the output stays on its side of {self._listed}"

    def value(self, given: float, head: str) -> tuple[float, float]:
        """Returns a value in units of the logit, and a bound on its rounding."""
        if head not in SIGMOIDS:
            return given, 0.0
        if not 0.0 < given < 1.0:
            raise InputError(
                "of a model that ends in a sigmoid a threshold must be between 0 and 1. "
                f"Received: {given}"
            )
        above, below = math.log(given), math.log1p(-given)
        return above - below, 8.0 * UNIT * (abs(above) + abs(below))

    def network(self, network: Network, head: str = "logits") -> Network:
        """Returns the network of the margins, as in `Property`."""
        outputs = self.outputs(network, head)
        _require_numbers(self, head, ("logits", *SIGMOIDS))
        values = [self.value(given, head) for given in outputs.values()]
        shift, errors = np.array(values).T
        last = self._last(network, outputs, shift)
        error = up(last.bias_error + math.sqrt(2.0) * norm_bound(errors))
        last = dataclasses.replace(last, bias_error=error)
        return Network([*network.affines[:-1], last], network.activations)

    def labels(self, network: Network) -> int:
        """Returns the number of labels, as in `Property`."""
        return 2 ** (network.classes // 2)

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property, as in `Property`."""
        over = logits[:, 1::2]
        weights = 2 ** np.arange(over.shape[1])
        prediction = (over > 0.0) @ weights
        wrong = np.zeros(len(logits), bool) if label is None else prediction != np.asarray(label)
        reference = np.zeros(len(logits), np.int64)
        return Reading(prediction, reference, wrong, (over == 0.0).any(axis=1))

    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields for each output the rival of its other side."""
        above = logits[:, 1::2] > 0.0
        first = 1 + 2 * np.arange(above.shape[1])
        yield np.arange(len(logits)), np.where(above, first + 1, first)


class Interval(ScoreProperty, kind="interval"):
    """The property that each output stays within τ of its value at the example.

    The value at the example is that of real arithmetic.

    Args:
        values: τ, positive; see `ScoreProperty`.

    Raises:
        InputError: τ is not positive.
    """

    def __init__(self, values: float | Mapping[int, float]):
        super().__init__(values, "interval")
        for tau in self._values.values():
            require_positive(tau, "the interval's τ")
        self.text = f"the output stays within {self._listed} of what it is at the example"

    def holds_in_float32(self, head: str) -> bool:
        """Returns False: the output at the example is taken in real arithmetic."""
        return False

    def network(self, network: Network, head: str = "logits") -> Network:
        """Returns a network with two pinned inputs for each output, its `hi` and its `lo`."""
        outputs = self.outputs(network, head)
        _require_numbers(self, head, ("logits",))
        steep = [each.name for each in network.activations if not math.isfinite(each.steepest)]
        if steep:  # the error of f(x) would have no bound
            raise InputError(f"{self.spelling} is not for {steep[0]}, whose slope has no bound")
        self.passed = 2 * len(outputs)
        last = self._last(network, outputs, np.zeros(len(outputs)))
        direct = np.zeros((self.passed, last.fan_out))
        places = np.arange(self.passed)
        direct[places, places + 1] = np.where(places % 2, 1.0, -1.0)  # lo − f, f − hi
        return with_numbers([*network.affines[:-1], last], network, direct)

    def labels(self, network: Network) -> int:
        """Returns 0: there are no labels."""
        return 0

    def numbers(self, network: Network, x: np.ndarray) -> np.ndarray:
        """Returns `f(x) + τ` rounded down and `f(x) − τ` rounded up, with room for rounding.

        The room is the error of f(x) itself, and γ₁₆ of all terms that are added in a margin.
        """
        outputs = self.outputs(network, "logits")
        given = tf.constant(x, tf.float64)
        hidden = network.hidden(given)
        f = network.logits(given).numpy()[:, list(outputs)]
        error = pre_activation_errors(network.layer_norms, hidden)[-1].numpy()[:, None]
        tau = np.array(list(outputs.values()))
        room = (error + gamma(16) * (np.abs(f) + tau)) * ROUNDING_SLACK
        pair = np.stack([f + tau - room, f - tau + room], axis=2)
        return pair.reshape(len(x), 2 * len(tau))

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state without a prediction, because there is no class."""
        none = np.zeros(len(logits), bool)
        reference = np.zeros(len(logits), np.int64)
        return Reading(reference - 1, reference, none, none)

    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields examples and their rivals, as in `Property`."""
        yield np.arange(len(logits)), np.tile(np.arange(1, logits.shape[1]), (len(logits), 1))


def with_numbers(affines: list[Affine], network: Network, direct: np.ndarray) -> PinnedNetwork:
    """Returns a network of these maps, with further pinned inputs that are added to its logits.

    Args:
        affines: its maps, without those inputs.
        network: a network with the same hidden layers.
        direct: `(numbers, classes)`; see `PinnedNetwork`.
    """
    first, more = affines[0], len(direct)
    if first.is_sparse:
        raise InputError("an interval needs a first map that is dense; pool before it")
    zeros = np.zeros((more, first.fan_out))
    kernel, served = (np.concatenate([a, zeros]) for a in (first.kernel, first.served_kernel_error))
    affines = [dataclasses.replace(first, kernel=kernel, served_kernel_error=served), *affines[1:]]
    pinned = np.arange(first.fan_in + more) >= first.fan_in
    direct = np.concatenate([np.zeros((first.fan_in, direct.shape[1])), direct])
    return PinnedNetwork(affines, network.activations, pinned, direct)


def _require_numbers(what: Property, head: str, heads: Collection[str]) -> None:
    if head not in heads:
        raise InputError(
            f"{what.spelling} needs a model that ends in {' or '.join(heads)}, as other outputs "
            f"depend on all logits. Received: {head}"
        )
