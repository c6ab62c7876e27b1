"""A box of inputs as balls of l∞ around points, and conditions on outputs as margins.

Unsafe where all of `a·y ≤ c` hold: no point of a box is, if for one of them `a·y > c` is proved on
all of it. These are the margins of the property `linear` (`threats/properties/conditions.py`).

**The box.** With s the half-widths of the box and c its centre, `(x − c)/s` is at most 1 in size.
In floating point, for x between `low` and `high`, u = x/s and u0 the computed c/s,

    |u − u0|  ≤  max(high − c, c − low)/s + u |c/s|,

u the unit of rounding; the greatest of these is the radius to prove. Half-widths that are tiny
beside c are enlarged, so that c/s stays moderate: more is proved then than was asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import TINY, UNIT, up
from keras_curv.specifications.vnnlib import Condition
from keras_curv.threats.properties.property import Property
from keras_curv.threats.threat import Threat

_NARROWEST = 2.0**-30  # half-width beside the centre


def rounded_down(number: Fraction) -> float:
    """Returns the largest float64 that is not above a fraction."""
    near = float(number)
    return near if Fraction(near) <= number else math.nextafter(near, -math.inf)


def rounded_up(number: Fraction) -> float:
    """Returns the smallest float64 that is not below a fraction."""
    return -rounded_down(-number)


def refuted_by(conditions: Sequence[Condition]) -> Property:
    """Returns the property that every one of the conditions is false, `a·y > c` for each.

    Its rival k + 1 belongs to condition k. Weights that float64 cannot hold are multiplied up.

    Raises:
        InputError: the weights of a condition differ in size by more than float64 can hold.

    Example:
        >>> condition = Condition(((0, Fraction(1)), (1, Fraction(-1, 3))), Fraction(1, 10), False)
        >>> refuted_by([condition]).text
        '3.0*y0-y1>0.30000000000000004'
    """
    texts = []
    for weights, most, _ in conditions:
        factor = math.lcm(*(w.denominator for _, w in weights))
        exact = all(Fraction(float(w)) == w for _, w in weights)
        factor = 1 if exact else factor
        scaled = [(j, w * factor) for j, w in weights]
        if any(Fraction(float(w)) != w for _, w in scaled):
            raise InputError("the factors of a condition on outputs need more than 53 bits")
        terms = "".join(f"{float(w):+}*y{j}" for j, w in scaled)
        texts.append(f"{terms}>{rounded_up(most * factor)!r}")
    return Property.linear(";".join(texts))


class Boxes:
    """Boxes of equal widths, as balls of l∞ in weighted inputs.

    Args:
        low, high: `(n, dim)`; widths are equal up to rounding.

    Attributes:
        threat: the weights s; inputs of no width are frozen.
        centre: c, `(n, dim)`.
        radius: a closed ball of this radius around `threat.coordinates(centre)` covers each box,
            `(n,)`.

    Example:
        >>> boxes = Boxes(np.array([[0.0, -1.0]]), np.array([[1.0, 1.0]]))
        >>> boxes.centre, boxes.radius.round(12)
        (array([[0.5, 0. ]]), array([1.]))
    """

    def __init__(self, low: np.ndarray, high: np.ndarray):
        self.low, self.high = low, high
        self.centre = np.clip(low / 2.0 + high / 2.0, low, high)
        half = np.maximum(high - self.centre, self.centre - low)
        size = np.abs(self.centre).max(axis=0)
        moving = (half > 0.0).any(axis=0)
        moving |= not moving.any()  # something has to, at least in name
        scale = np.maximum(half.max(axis=0), np.maximum(_NARROWEST * size, _NARROWEST**2))
        frozen = None if moving.all() else ~moving
        self.threat = Threat(norm="linf", scale=scale, frozen=frozen)
        factor = self.threat.factors(low.shape[1])[0]
        off = 2.0 * UNIT * np.abs(self.centre / factor)
        away = up(up(half) / factor + off + 2.0 * TINY, 8)
        self.radius = np.where(moving, away, 0.0).max(axis=1)

    def network(self, network: Network) -> Network:
        """Returns the network of the weighted inputs."""
        return self.threat.network(network, self.low.shape[1])

    @property
    def points(self) -> np.ndarray:
        """Returns the centres as that network takes them, `(n, dim)`."""
        return self.threat.coordinates(self.centre)

    def halves(self, entry: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns limits of the halves along an entry, `(2 n, dim)`: the lower ones first."""
        low, high = np.tile(self.low, (2, 1)), np.tile(self.high, (2, 1))
        count = len(self.low)
        high[:count, entry] = self.centre[:, entry]
        low[count:, entry] = self.centre[:, entry]
        return low, high
