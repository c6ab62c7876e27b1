"""Activations in balls: σ, σ′, σ″, the ranges of σ′ on the whole line and of σ″ on intervals.

Ranges: section 10 of the mathematics. Between the points where σ″ is extreme or jumps it is
monotone, and far out it goes to 0; sin has a period instead. If σ′ jumps, σ″ has no range on the
whole line, which is None, but one on each part between kinks.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from flint import arb, arb_series

from keras_curv_check.balls import ZERO  # which sets the precision
from keras_curv_check.rounding import NotProvedError

_FARTHEST, _WIDEST = 2.0**40, 300.0  # numbers and intervals whose sine is bounded
# σ is a function of numbers or of power series: the coefficients of σ(z + t) are its derivatives.
_Number = TypeVar("_Number", arb, arb_series)
Function = Callable[[_Number], _Number]


class Pieces(NamedTuple):
    """An activation that is `slopes[i] z + offsets[i]` between `kinks[i − 1]` and `kinks[i]`."""

    kinks: tuple[float, ...]
    slopes: tuple[float, ...]
    offsets: tuple[float, ...]


class Sigma(NamedTuple):
    """One activation.

    Attributes:
        parts: σ between the kinks, one function more than there are kinks.
        kinks: in order.
        slopes: least and largest σ′.
        turns: where σ″ is extreme, or jumps though σ′ does not; of a period, those in [−π, π].
        bends: least and largest σ″; None where σ′ jumps.
        pieces: of one that is linear between kinks; else None.
        cuts: kinks, and about where σ″ changes its sign.
        periodic: whether all comes again after 2π, and σ″ changes its sign at multiples of π.
        polynomials: coefficients of 1, z and z² between kinks; None where σ is no polynomial.
    """

    parts: tuple[Function, ...]
    kinks: tuple[float, ...]
    slopes: tuple[arb, arb]
    turns: tuple[arb, ...]
    bends: tuple[arb, arb] | None
    pieces: Pieces | None = None
    cuts: tuple[float, ...] = (0.0,)
    periodic: bool = False
    polynomials: tuple[tuple[float, float, float], ...] | None = None

    def value(self, z: arb) -> arb:
        """Returns σ(z)."""
        return functools.reduce(arb.union, [f(z) for f in self._near(z)])

    def first(self, z: arb) -> arb:
        """Returns σ′(z); at a jump a ball with both sides."""
        return self.value_and_first(z)[1]

    def value_and_first(self, z: arb) -> tuple[arb, arb]:
        """Returns σ(z) and σ′(z); at a jump a ball with both sides."""
        series = [f(arb_series([z, 1], prec=2)) for f in self._near(z)]
        if len(series) == 1:
            return series[0][0], series[0][1]
        values, slopes = zip(*((one[0], one[1]) for one in series), strict=True)
        return functools.reduce(arb.union, values), functools.reduce(arb.union, slopes)

    def _near(self, z: arb) -> Sequence[Function]:
        """Returns each part that z may be in; balls are compared for certain, or not at all."""
        first, last = bisect.bisect_left(self.kinks, z), bisect.bisect_right(self.kinks, z)
        return self.parts[first : last + 1]

    def seconds(self, z: arb) -> list[arb]:
        """Returns σ″(z) of each part that z may be in."""
        return [2 * f(arb_series([z, 1], prec=3))[2] for f in self._near(z)]

    def bends_on(self, low: arb, high: arb) -> tuple[arb, arb] | None:
        """Returns the least and the largest σ″ on an interval; None where σ′ jumps."""
        if self.bends is None:
            return None
        points = low, high, *self.turns_in(low, high)
        return range_of([value for at in points for value in self.seconds(at)])

    def turns_in(self, low: arb, high: arb) -> list[arb]:
        """Returns where σ″ turns in an interval; of a period, in the first one of it."""
        shifts = [ZERO]
        if self.periodic:
            if not abs(low) < _FARTHEST:
                raise NotProvedError("the sine of a number that is too large")
            first = math.floor(float(low) / math.tau)
            shifts = [2 * arb.pi() * (first + more) for more in range(3)]
        points = (at + shift for shift in shifts for at in self.turns)
        return [at for at in points if not (at < low or at > high)]

    def cuts_in(self, low: float, high: float) -> list[float]:
        """Returns the cuts inside an interval."""
        cuts: Sequence[float] = self.cuts
        if self.periodic:
            if not high - low < _WIDEST:
                raise NotProvedError("the sine of too wide an interval")
            ends = math.ceil(low / math.pi), math.floor(high / math.pi)
            cuts = [math.pi * number for number in range(ends[0], ends[1] + 1)]
        return [cut for cut in cuts if low < cut < high]

    def estimate(self, z: np.ndarray) -> np.ndarray:
        """Returns σ(z) in float64; no bound."""
        with np.errstate(all="ignore"):
            values = [np.asarray(f(z.view(_Floats))) for f in self.parts]
        return np.choose(sum((z > kink for kink in self.kinks), np.zeros(z.shape, int)), values)

    @property
    def limits(self) -> tuple[float, float] | None:
        """Returns, of a clip, between which ends σ(z) = z; else None."""
        if self.pieces is None or self.pieces.slopes[:2] != (0.0, 1.0):
            return None
        return self.pieces.kinks[0], (*self.pieces.kinks, float("inf"))[1]


class _Floats(np.ndarray):
    """Numbers with the functions of balls, without their errors."""

    def exp(self) -> np.ndarray:
        """Returns e^z, which does not overflow."""
        return np.exp(np.minimum(self, 300.0))

    def log(self) -> np.ndarray:
        """Returns the logarithm."""
        return np.log(self)

    def sqrt(self) -> np.ndarray:
        """Returns the root."""
        return np.sqrt(self)

    def sin(self) -> np.ndarray:
        """Returns the sine."""
        return np.sin(self)

    def erfc(self) -> np.ndarray:
        """Returns the complementary error function."""
        return np.vectorize(math.erfc)(self).view(_Floats)


def range_of(values: list[arb]) -> tuple[arb, arb]:
    """Bounds numbers from below and from above."""
    return functools.reduce(arb.min, values), functools.reduce(arb.max, values)


def _smooth(
    *parts: Function,
    turns: Sequence[arb | float],
    slopes: Sequence[arb | float] = (0.0, 1.0),
    slopes_at: Sequence[arb] = (),
    kinks: tuple[float, ...] = (),
) -> Sigma:
    """Returns σ whose σ″ is extreme, or jumps, at `turns`, and σ′ at `slopes_at`, if given."""
    points = tuple(map(arb, turns))
    bare = Sigma(parts, kinks, (ZERO, ZERO), points, None)
    least, most = map(bare.first, slopes_at) if slopes_at else map(arb, slopes)
    bends = range_of([ZERO, *(value for at in points for value in bare.seconds(at))])
    cuts = tuple(sorted({0.0, *kinks, *(float(at.mid()) for at in slopes_at)}))
    return bare._replace(slopes=(least, most), bends=bends, cuts=cuts)


def _linear(kinks: Sequence[float], slopes: Sequence[float], offsets: Sequence[float]) -> Sigma:
    """Returns σ that is linear between kinks."""
    lines = zip(slopes, offsets, strict=True)
    parts = tuple(functools.partial(lambda s, o, z: s * z + o, *line) for line in lines)
    pieces = Pieces(tuple(kinks), tuple(slopes), tuple(offsets))
    ends = arb(min(slopes)), arb(max(slopes))
    bends = None if kinks else (ZERO, ZERO)
    polynomials = tuple((o, s, 0.0) for s, o in zip(slopes, offsets, strict=True))
    return Sigma(parts, pieces.kinks, ends, (), bends, pieces, polynomials=polynomials)


def _bent(*parts: Function, kinks: tuple[float, ...], slopes: tuple[float, float]) -> Sigma:
    """Returns σ whose σ′ jumps at kinks, and whose σ″ is monotone between them."""
    return _smooth(*parts, turns=(), slopes=slopes, kinks=kinks)._replace(bends=None)


def _leaky(slope: float) -> Sigma:
    return _linear([0.0], [slope, 1.0], [0.0, 0.0])


def _clip(low: float, high: float) -> Sigma:
    if high == math.inf:
        return _linear([low], [0.0, 1.0], [low, 0.0])
    return _linear([low, high], [0.0, 1.0, 0.0], [low, 0.0, high])


def _same(z: _Number) -> _Number:
    return z


def _sigmoid(z: _Number) -> _Number:
    return 1 / (1 + (-z).exp())


def _softplus(z: _Number) -> _Number:
    return (1 + z.exp()).log()


def _tanh(z: _Number) -> _Number:
    return 1 - 2 / (1 + (2 * z).exp())


def _gelu_tanh(z: _Number) -> _Number:
    return z / (1 + (-2 * _TANH_C * (z + _TANH_D * z * z * z)).exp())


def _mish(z: _Number) -> _Number:
    square = (1 + z.exp()) * (1 + z.exp())
    return z * (square - 1) / (square + 1)


def _around(*points: float) -> list[arb]:
    """Returns points that are known to 1e-12."""
    return [arb(at, 1e-12) for at in points]


_C = float(np.float32(np.sqrt(0.5)))
_TANH_C = float(np.float32(np.sqrt(2.0 / np.pi)))
_TANH_D = float(np.float32(0.044715))
_AT, _TANH_AT = ([sign * (2 + arb(3).sqrt()).log() / n for sign in (-1, 1)] for n in (1, 2))
_ELU = _smooth(lambda z: z.exp() - 1, _same, kinks=(0.0,), turns=[0.0])
_TABLE = {
    "identity": _linear([], [1.0], [0.0]),
    "softplus": _smooth(_softplus, turns=[0.0]),
    "log_sigmoid": _smooth(lambda z: -_softplus(-z), turns=[0.0]),
    "sigmoid": _smooth(_sigmoid, turns=_AT, slopes=(0.0, 0.25)),
    "tanh": _smooth(_tanh, turns=_TANH_AT),
    "tanh_shrink": _smooth(lambda z: z - _tanh(z), turns=_TANH_AT),
    "elu": _ELU,
    "celu": _ELU,
    "softsign": _smooth(lambda z: z / (1 - z), lambda z: z / (1 + z), kinks=(0.0,), turns=[0.0]),
    "squareplus": _smooth(lambda z: (z + (z * z + 4).sqrt()) / 2, turns=[0.0]),
    "sparse_plus": _smooth(
        lambda z: 0 * z,
        lambda z: (z + 1) * (z + 1) / 4,
        _same,
        kinks=(-1.0, 1.0),
        turns=[-1.0, 1.0],
    )._replace(polynomials=((0.0, 0.0, 0.0), (0.25, 0.5, 0.25), (0.0, 1.0, 0.0))),
    "sin": _smooth(
        lambda z: z.sin(), turns=[-arb.pi() / 2, arb.pi() / 2], slopes=(-1.0, 1.0)
    )._replace(periodic=True),
    "selu": _bent(
        lambda z: 1.7580993408473768 * (z.exp() - 1),
        lambda z: 1.0507009873554805 * z,
        kinks=(0.0,),
        slopes=(0.0, 1.7580993408473768),
    ),
    "hard_silu": _bent(
        lambda z: 0 * z, lambda z: z * (z + 3) / 6, _same, kinks=(-3.0, 3.0), slopes=(-0.5, 1.5)
    ),
    "gelu": _smooth(
        lambda z: z * (-_C * z).erfc() / 2,
        turns=[sign * arb(2).sqrt() / _C for sign in (-1, 0, 1)],
        slopes_at=[sign / arb(_C) for sign in (-1, 1)],
    ),
    "silu": _smooth(
        lambda z: z / (1 + (-z).exp()),
        turns=_around(-3.435840993535111, 0.0, 3.435840993535111),
        slopes_at=_around(-2.3993572805154675, 2.3993572805154675),
    ),
    "gelu_tanh": _smooth(
        _gelu_tanh,
        turns=_around(-2.013480684776514, 0.0, 2.013480684776514),
        slopes_at=_around(-1.418503977128071, 1.418503977128071),
    ),
    "mish": _smooth(
        _mish,
        turns=_around(-3.2673378465204044, -0.08793443131491421, 2.114842563020877),
        slopes_at=_around(-2.256376396360793, 1.4905711794854284),
    ),
    "relu": _leaky(0.0),
    "leaky_relu": _leaky(float(np.float32(0.2))),
    "abs": _leaky(-1.0),
    "relu6": _clip(0.0, 6.0),
}


def sigma_of(name: str) -> Sigma | None:
    """Returns the activation of a name in a network's file; None for one that is not known here."""
    found = re.fullmatch(r"(leaky_relu|capped_relu|clip)\(([^,()]+)(?:,([^,()]+))?\)", name)
    if found is None:
        return _TABLE.get(name)
    try:
        numbers = [float(part) for part in found.groups()[1:] if part is not None]
    except ValueError:
        return None
    kind, finite = found[1], math.isfinite(numbers[0])
    if kind == "leaky_relu" and len(numbers) == 1 and finite:
        return _leaky(numbers[0])
    limits = [0.0, *numbers] if kind == "capped_relu" else numbers
    if kind != "leaky_relu" and len(limits) == 2 and finite and limits[0] < limits[1]:
        return _clip(*limits)
    return None
