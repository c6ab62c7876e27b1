"""The property that linear conditions on outputs hold: `linear:y0 > y3 + 0.5; y1 + y2 < 4`.

A condition is `a·y > c` for the outputs y. All of them hold while logit 0 is above its rivals in

    (0,  c_1 − a_1·y,  c_2 − a_2·y, …),

a network with the same hidden layers and the last map `[0, −W a_1, −W a_2, …]`.

**Rounding.** A product W a of N terms is off by γ_N |W||a| in each entry, and what folding rounded
away in W by as much as `‖a‖` times that; so are the biases.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from keras_curv.errors import InputError, require_finite
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import TINY, gamma, norm_bound, up
from keras_curv.threats.arrays import LARGEST
from keras_curv.threats.properties.property import Property, Reading, Rivals

_LONGEST = 50_000  # characters
_MOST = 1000  # conditions
_TERM = re.compile(
    r"([+-])(?:([0-9][0-9.]*(?:e[+-]?[0-9]+)?)\*?)?(?:y_?([0-9]{1,6}))?", re.ASCII | re.IGNORECASE
)


class Linear(Property, kind="linear"):
    """The property that linear conditions on the outputs hold.

    The prediction of an example is 1 if all of them hold there, and 0 otherwise.

    Args:
        conditions: as text, between semicolons or in lines; each compares two sums of numbers and
            of outputs y0, y1, …, which may have factors, by < or >.

    Raises:
        InputError: a condition cannot be read, or names no output.

    Example:
        >>> held = Linear("y0 > y3 + 0.5; 2*y1 + y2 <= 4")
        >>> held.spelling
        'linear:y0-y3>0.5;-2.0*y1-y2>-4.0'
        >>> held.text
        'y0-y3>0.5 and -2.0*y1-y2>-4.0'
    """

    def __init__(self, conditions: str):
        lines = [line.split("#")[0] for line in conditions.splitlines()]
        parts = [part for line in lines for part in line.split(";") if part.strip()]
        if not 0 < len(parts) <= _MOST or len(conditions) > _LONGEST:
            raise InputError(
                f"linear takes from 1 to {_MOST} conditions of {_LONGEST} characters in all. "
                f"Received: {len(parts)} of {len(conditions)}"
            )
        self._conditions = [_condition(part) for part in parts]
        said = [_text(*condition) for condition in self._conditions]
        self.spelling, self.text = f"linear:{';'.join(said)}", " and ".join(said)

    def network(self, network: Network, head: str = "logits") -> Network:
        """Returns the network of the margins, as in `Property`."""
        if head != "logits":
            raise InputError(
                "linear conditions are on the logits that a model returns, and this one ends in "
                f"{head}; use argmax, top_K, harmful or threshold, or a model without it"
            )
        last, count = network.affines[-1], len(self._conditions)
        named = max(max(weights) for weights, _ in self._conditions)
        if named >= last.fan_out:
            raise InputError(
                f"linear names output {named}, but the model has {last.fan_out} "
                f"(0 to {last.fan_out - 1})"
            )
        matrix, shift = np.zeros((last.fan_out, 1 + count)), np.zeros(1 + count)
        for column, (weights, constant) in enumerate(self._conditions, 1):
            matrix[list(weights), column] = [-weight for weight in weights.values()]
            shift[column] = constant
        size = norm_bound(matrix)
        rounded = gamma(last.fan_out + 8) * norm_bound(abs(last.kernel) @ abs(matrix))
        constant = gamma(last.fan_out + 8) * norm_bound(
            np.abs(last.bias) @ abs(matrix) + abs(shift)
        )
        tiny = TINY * last.fan_in * last.fan_out * count
        joined = Affine(
            np.asarray(last.kernel @ matrix),
            last.bias @ matrix + shift,
            kernel_error=up(up(size * last.kernel_error) + rounded + tiny),
            bias_error=up(up(size * last.bias_error) + constant + tiny),
        )
        return Network([*network.affines[:-1], joined], network.activations)

    def labels(self, network: Network) -> int:
        """Returns 0: there are no labels."""
        return 0

    def holds_in_float32(self, head: str) -> bool:
        """Returns False: how a server would add outputs up is not known."""
        return False

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property, as in `Property`."""
        rivals, reference = logits[:, 1:], np.zeros(len(logits), np.int64)
        wrong = np.any(rivals > 0.0, axis=1)
        tied = np.any(rivals == 0.0, axis=1) & ~wrong
        return Reading(np.where(wrong, 0, 1), reference, wrong, tied)

    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields examples and their rivals, as in `Property`."""
        yield np.arange(len(logits)), np.tile(np.arange(1, logits.shape[1]), (len(logits), 1))

    def decider(self, rival: np.ndarray) -> np.ndarray:
        """Returns the number of the condition, from 0; −1 is none."""
        return np.where(rival > 0, rival - 1, -1)


def _condition(text: str) -> tuple[dict[int, float], float]:
    """Returns a and c of a condition `a·y > c`."""
    sides = re.split(r"<=|>=|<|>", text.replace("−", "-"))
    if len(sides) != 2:
        raise InputError(f"condition {text.strip()[:80]!r} must compare two sums by one < or >")
    (left, right), turn = map(_sum, sides), -1.0 if "<" in text else 1.0
    weights = {
        output: turn * (left[0].get(output, 0.0) - right[0].get(output, 0.0))
        for output in sorted({*left[0], *right[0]})
    }
    weights = {output: weight for output, weight in weights.items() if weight}
    if not weights:
        raise InputError(f"condition {text.strip()[:80]!r} is about no output; they are y0, y1, …")
    constant = turn * (right[1] - left[1])
    for number in (*weights.values(), constant):
        if abs(require_finite(number, "a number of a condition")) > LARGEST:
            raise InputError(f"numbers of conditions are at most {LARGEST:g}")
    return weights, constant


def _sum(text: str) -> tuple[dict[int, float], float]:
    """Returns the factors of outputs in a sum, and its constant."""
    packed, weights, constant = re.sub(r"\s+", "", text), dict[int, float](), 0.0
    packed, at = packed if packed[:1] in ("+", "-") else f"+{packed}", 0
    while at < len(packed):
        term = _TERM.match(packed, at)
        if term is None or term[2] is None is term[3] or packed[term.end() - 1] == "*":
            raise InputError(
                f"condition {text.strip()[:80]!r} is no sum of numbers and outputs as 2*y0 + 1"
            )
        number = float(f"{term[1]}{term[2] or 1}")
        if term[3] is None:
            constant += number
        else:
            weights[int(term[3])] = weights.get(int(term[3]), 0.0) + number
        at = term.end()
    return weights, constant


def _text(weights: dict[int, float], constant: float) -> str:
    """Returns a condition as text that can be read back."""
    factors: dict[float, Any] = {1.0: "+", -1.0: "-"}
    terms = [f"{factors.get(w, f'{w:+}*')}y{output}" for output, w in weights.items()]
    return f"{''.join(terms).removeprefix('+')}>{constant!r}"
