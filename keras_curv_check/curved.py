"""Lines around smooth activations, and ranges of their slopes, on intervals: section 14.

An interval is cut where σ turns or has a kink. On a part [a, b] of width w let σ″ be at least −η
and at most μ, η and μ ≥ 0, and let φ(z) = ±(σ(z) − k z), here with +. For any t of the part

    φ ≥ min(φ(a), φ(b)) − μw²/8    and    φ ≥ φ(t) + φ′(t)(z − t) − ηw²/2,

the latter least at an end, and σ′ is within `min(η, μ) w` of the range of its values at both ends.
Where the cuts are the turning points, one of the numbers is about 0; elsewhere both are true, too.
So any slope k has its intercept; slopes and t are found by numbers that nobody need trust.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flint import arb, arb_series

from keras_curv_check.activations import Function, Sigma, range_of
from keras_curv_check.balls import up
from keras_curv_check.rounding import NotProvedError

_POINTS = 97  # of an interval, to find slopes
_THIRDS, _TRIES = 60, 40  # of an interval for a slope, and steps toward t


class Part(NamedTuple):
    """A part [a, b] of an interval, without a kink inside.

    Attributes:
        a, b: its ends.
        function: σ there.
        values, slopes: σ and σ′ at the ends.
        eta, mu: σ″ is at least −η and at most μ.
    """

    a: float
    b: float
    function: Function
    values: tuple[arb, arb]
    slopes: tuple[arb, arb]
    eta: float
    mu: float

    @classmethod
    def of(cls, sigma: Sigma, a: float, b: float) -> Part:
        """Returns what is known of σ between two points without a kink between them."""
        function = sigma.parts[sum(kink <= a for kink in sigma.kinks)]
        ends = [function(arb_series([arb(z), 1], prec=3)) for z in (a, b)]
        inner = sigma.turns_in(arb(a), arb(b))
        turns = [function(arb_series([at, 1], prec=3)) for at in inner]
        least, most = range_of([2 * series[2] for series in (*ends, *turns)])
        size = max(up(-least), 0.0), max(up(most), 0.0)
        values, slopes = ((one[i], other[i]) for i in (0, 1) for one, other in [ends])
        return cls(a, b, function, values, slopes, *size)

    def slope_range(self) -> tuple[arb, arb]:
        """Bounds σ′ on the part."""
        least, most = range_of([*self.slopes])
        slack = min(self.eta, self.mu) * (arb(self.b) - self.a)
        return least - slack, most + slack

    def least(self, slope: float, sign: int) -> arb:
        """Bounds `sign (σ(z) − slope z)` from below on the part."""
        width, (eta, mu) = arb(self.b) - self.a, (self.eta, self.mu)[::sign]
        first, last = (
            (v - arb(slope) * z) * sign for v, z in zip(self.values, self[:2], strict=True)
        )
        chord = first.min(last) - mu * width * width / 8
        if not eta < mu:
            return chord
        t = self._lowest(slope, sign)
        series = self.function(arb_series([arb(t), 1], prec=2))
        value, steep = (series[0] - arb(slope) * t) * sign, (series[1] - slope) * sign
        fall = (steep * (self.a - arb(t))).min(steep * (self.b - arb(t)))
        return chord.max(value + fall - eta * width * width / 2)

    def _lowest(self, slope: float, sign: int) -> float:
        """Returns about where `sign (σ(z) − slope z)` is least, if it is convex."""
        low, high = self.a, self.b
        steep = [sign * (float(s.mid()) - slope) for s in self.slopes]
        if steep[0] >= 0.0 or steep[1] <= 0.0:
            return low if steep[0] >= 0.0 else high
        t = low - steep[0] * (high - low) / (steep[1] - steep[0])
        for _ in range(_TRIES):
            t = t if low < t < high else (low + high) / 2.0
            series = self.function(arb_series([arb(t), 1], prec=3))
            off, bend = sign * (float(series[1].mid()) - slope), 2.0 * float(series[2].mid())
            low, high = (low, t) if off > 0.0 else (t, high)
            if abs(off) * (self.b - self.a) <= 1e-15 or not low < high:
                break
            t -= off / (sign * bend) if bend else math.inf
        return min(max(t, self.a), self.b)


class Curved:
    """Smooth activations, as arrays over N units.

    Args:
        layer: the activation of each unit.
    """

    def __init__(self, layer: Sequence[Sigma]):
        self._layer = layer
        self._groups: dict[int, list[int]] = {}
        for unit, sigma in enumerate(layer):
            self._groups.setdefault(id(sigma), []).append(unit)
        self._parts = functools.lru_cache(2 * len(layer))(self._parts_of)

    def _parts_of(self, unit: int, low: float, high: float) -> list[Part]:
        sigma = self._layer[unit]
        if not -1e100 < low <= high < 1e100:
            raise NotProvedError("an interval is beyond 1e100")
        ends = [low, *sigma.cuts_in(low, high), high]
        return [Part.of(sigma, *pair) for pair in itertools.pairwise(ends)]

    def _each(self, low: np.ndarray, high: np.ndarray) -> list[list[Part]]:
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        return [self._parts(unit, *ends) for unit, ends in enumerate(pairs)]

    def estimate(self, z: np.ndarray) -> np.ndarray:
        """Returns σ(z), `(N, …)`, up to rounding and overflow."""
        found = np.empty(z.shape)
        for units in self._groups.values():
            found[units] = self._layer[units[0]].estimate(z[units])
        return found

    def slopes(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Bounds σ′ on intervals, from below and from above, `(2, N)`."""
        ranges = [[part.slope_range() for part in parts] for parts in self._each(low, high)]
        ends = [(max(up(-a) for a, _ in some), max(up(b) for _, b in some)) for some in ranges]
        return np.array(ends).T * [[-1.0], [1.0]]

    def range(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Bounds σ on intervals, from below and from above, `(2, N)`."""
        flat = np.zeros(len(low))
        return np.stack([sign * self._least(low, high, flat, sign) for sign in (1, -1)])

    def lines(self, low: np.ndarray, high: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Returns lines on intervals that are close to σ at these points, `(4, N)`.

        These are slope and intercept of those below σ, then of those above.
        """
        points = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, _POINTS)
        points, values = np.clip(points, low[:, None], high[:, None]), self.estimate(points)
        ends, found = self.slopes(low, high), list[np.ndarray]()
        step = (high - low) / (2.0 * _POINTS)
        for sign in (1, -1):
            least, most = np.sort(sign * ends, axis=0)
            sides = (np.clip(at + s * step, low, high) for s in (1, -1))
            slopes = [_steepest(sign * values, points, side, least, most) for side in sides]
            slope = sign * (slopes[0] + slopes[1]) / 2.0
            found += [slope, sign * self._least(low, high, slope, sign)]
        return np.stack(found)

    def _least(self, low: np.ndarray, high: np.ndarray, slope: np.ndarray, sign: int) -> np.ndarray:
        """Bounds `sign (σ(z) − slope z)` from below on intervals, `(N,)`."""
        pairs = zip(self._each(low, high), slope.tolist(), strict=True)
        return -np.array([max(up(-part.least(k, sign)) for part in some) for some, k in pairs])


def _steepest(
    value: np.ndarray, points: np.ndarray, at: np.ndarray, least: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """Returns about the slopes of the highest lines at `at` below σ at points, `(N, K)`."""
    for _ in range(_THIRDS):
        one, other = least + (most - least) / 3.0, most - (most - least) / 3.0
        falls = [(value - k[:, None] * points).min(axis=1) + k * at for k in (one, other)]
        rises = falls[0] < falls[1]
        least, most = np.where(rises, one, least), np.where(rises, most, other)
    return (least + most) / 2.0
