"""Activations in balls: σ, σ′ and the ranges of σ′ and σ″ on the whole line.

Ranges: section 10 of the mathematics. Where σ′ jumps there is no range of σ″, which is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flint import arb, arb_series

from keras_curv_check.balls import ZERO  # which sets the precision

Function = Callable[[arb], arb]
Series = Callable[[arb_series], arb_series]


class Pieces(NamedTuple):
    """An activation that is `slopes[i] z + offsets[i]` between `kinks[i − 1]` and `kinks[i]`."""

    kinks: tuple[float, ...]
    slopes: tuple[float, ...]
    offsets: tuple[float, ...]


class Sigma(NamedTuple):
    """One activation.

    Attributes:
        value, first: σ and σ′; at a jump of σ′, a ball with both sides.
        slopes: least and largest σ′.
        bends: least and largest σ″; None where σ′ jumps.
        pieces: of one that is linear between kinks; else None.
    """

    value: Function
    first: Function
    slopes: tuple[arb, arb]
    bends: tuple[arb, arb] | None
    pieces: Pieces | None = None

    @property
    def limits(self) -> tuple[float, float] | None:
        """Returns, of a clip, between which ends σ(z) = z; else None."""
        if self.pieces is None or self.pieces.slopes[:2] != (0.0, 1.0):
            return None
        return self.pieces.kinks[0], (*self.pieces.kinks, float("inf"))[1]


def _pieces(below: Function, at: float, above: Function) -> Function:
    """Returns the function that is one below a point and another one above."""

    def apply(z: arb) -> arb:
        if z >= at:
            return above(z)
        return below(z) if z < at else below(z).union(above(z))

    return apply


def _sigmoid(z: arb) -> arb:
    return 1 / (1 + (-z).exp()) if z > 0 else 1 - 1 / (1 + z.exp())


def _softplus(z: arb) -> arb:
    return z + (-z).exp().log1p() if z > 0 else z.exp().log1p()


def _constant(number: float) -> Function:
    return lambda z: arb(number)


def _same(z: arb) -> arb:
    return z


_NONE, _UNIT = _constant(0.0), _constant(1.0)
_C = arb(float(np.float32(np.sqrt(0.5))))
_TANH_C = arb(float(np.float32(np.sqrt(2.0 / np.pi))))
_TANH_D = arb(float(np.float32(0.044715)))


def _gelu_first(z: arb) -> arb:
    t = _C * z
    return (-t).erfc() / 2 + t * (-t * t).exp() / arb.pi().sqrt()


# Of these, σ is a power series, whose coefficients are its derivatives.
def _gelu_tanh(z: arb_series) -> arb_series:
    return z / (1 + (-2 * _TANH_C * (z + _TANH_D * z * z * z)).exp())


def _mish(z: arb_series) -> arb_series:
    square = (1 + z.exp()) * (1 + z.exp())
    return z * (square - 1) / (square + 1)


def _derivative(sigma: Series, order: int) -> Function:
    return lambda z: sigma(arb_series([z, 1], prec=order + 1))[order] * (2 if order == 2 else 1)


def _extreme_at(sigma: Series, slopes: tuple[float, float], bends: tuple[float, float]) -> Sigma:
    """Returns σ whose σ′ and σ″ are extreme at these points, which are known to 1e-12."""
    value, first, second = (_derivative(sigma, order) for order in range(3))
    ranges = [[f(arb(at, 1e-12)) for at in ends] for f, ends in ((first, slopes), (second, bends))]
    return Sigma(value, first, (ranges[0][0], ranges[0][1]), (ranges[1][0], ranges[1][1]))


def _leaky(slope: float) -> Sigma:
    ends = arb(min(slope, 1.0)), arb(max(slope, 1.0))
    first = _pieces(_constant(slope), 0.0, _UNIT)
    pieces = Pieces((0.0,), (slope, 1.0), (0.0, 0.0))
    return Sigma(_pieces(lambda z: slope * z, 0.0, _same), first, ends, None, pieces)


def _clip(low: float, high: float) -> Sigma:
    value = _pieces(_constant(low), low, _pieces(_same, high, _constant(high)))
    first = _pieces(_NONE, low, _pieces(_UNIT, high, _NONE))
    pieces = Pieces((low, high), (0.0, 1.0, 0.0), (low, 0.0, high))
    return Sigma(value, first, _ONE, None, pieces)


_SPARSE_PLUS = (
    _pieces(_NONE, -1.0, _pieces(lambda z: (z + 1) ** 2 / 4, 1.0, _same)),
    _pieces(_NONE, -1.0, _pieces(lambda z: (z + 1) / 2, 1.0, _UNIT)),
)
_ONE = (ZERO, arb(1))
_QUARTER, _HALF = (ZERO, arb(1) / 4), (ZERO, arb(1) / 2)
_OF_SIGMOID, _OF_TANH = ((-top, top) for top in (1 / (6 * arb(3).sqrt()), 4 / (3 * arb(3).sqrt())))
_GELU_TOP = 2 * _C / arb.pi().sqrt()
_OF_GELU = _gelu_first(-1 / _C), _gelu_first(1 / _C)
_ELU = Sigma(
    _pieces(lambda z: z.expm1(), 0.0, _same), _pieces(lambda z: z.exp(), 0.0, _UNIT), _ONE, _ONE
)
_TABLE = {
    "identity": Sigma(_same, _UNIT, (arb(1), arb(1)), (ZERO, ZERO), Pieces((), (1.0,), (0.0,))),
    "softplus": Sigma(_softplus, _sigmoid, _ONE, _QUARTER),
    "log_sigmoid": Sigma(
        lambda z: -_softplus(-z), lambda z: _sigmoid(-z), _ONE, (-_QUARTER[1], ZERO)
    ),
    "sigmoid": Sigma(_sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z), _QUARTER, _OF_SIGMOID),
    "tanh": Sigma(lambda z: z.tanh(), lambda z: 1 / z.cosh() ** 2, _ONE, _OF_TANH),
    "tanh_shrink": Sigma(lambda z: z - z.tanh(), lambda z: z.tanh() ** 2, _ONE, _OF_TANH),
    "elu": _ELU,
    "celu": _ELU,
    "softsign": Sigma(
        lambda z: z / (1 + abs(z)), lambda z: 1 / (1 + abs(z)) ** 2, _ONE, (arb(-2), arb(2))
    ),
    "squareplus": Sigma(
        lambda z: (z + (z * z + 4).sqrt()) / 2,
        lambda z: (1 + z / (z * z + 4).sqrt()) / 2,
        *(_ONE, _QUARTER),
    ),
    "sparse_plus": Sigma(*_SPARSE_PLUS, _ONE, _HALF),
    "sin": Sigma(lambda z: z.sin(), lambda z: z.cos(), (arb(-1), arb(1)), (arb(-1), arb(1))),
    "gelu": Sigma(
        lambda z: z * (-_C * z).erfc() / 2,
        *(_gelu_first, _OF_GELU, (-_GELU_TOP * arb(-2).exp(), _GELU_TOP)),
    ),
    "silu": _extreme_at(
        lambda z: z / (1 + (-z).exp()),
        (-2.3993572805154675, 2.3993572805154675),
        (3.435840993535111, 0),
    ),
    "gelu_tanh": _extreme_at(
        _gelu_tanh, (-1.418503977128071, 1.418503977128071), (2.013480684776514, 0)
    ),
    "mish": _extreme_at(
        _mish, (-2.256376396360793, 1.4905711794854284), (2.114842563020877, -0.08793443131491421)
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
    kind, finite = found[1], all(np.isfinite(numbers))
    if kind == "leaky_relu" and len(numbers) == 1 and finite:
        return _leaky(numbers[0])
    limits = [0.0, *numbers] if kind == "capped_relu" else numbers
    if kind != "leaky_relu" and len(limits) == 2 and finite and limits[0] < limits[1]:
        return _clip(*limits)
    return None
