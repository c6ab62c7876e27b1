"""Activations in balls: σ, σ′ and the ranges of σ′ and σ″ on the whole line.

Ranges: section 10 of the mathematics. Where σ′ jumps there is no range of σ″, which is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flint import arb, arb_series

from keras_curv_check.balls import ONE, ZERO

Function = Callable[[arb], arb]


class Sigma(NamedTuple):
    """One activation.

    Attributes:
        value, first: σ and σ′; at a jump of σ′, a ball with both sides.
        slopes: least and largest σ′.
        bends: least and largest σ″; None where σ′ jumps.
    """

    value: Function
    first: Function
    slopes: tuple[arb, arb]
    bends: tuple[arb, arb] | None


def _pieces(at: float, below: Function, above: Function) -> Function:
    """Returns the function that is one below a point and another one above."""

    def apply(z: arb) -> arb:
        if z >= at:
            return above(z)
        return below(z) if z < at else below(z).union(above(z))

    return apply


def _sigmoid(z: arb) -> arb:
    return ONE / (ONE + (-z).exp()) if z > 0 else ONE - ONE / (ONE + z.exp())


def _softplus(z: arb) -> arb:
    return z + (-z).exp().log1p() if z > 0 else z.exp().log1p()


def _sigmoid_first(z: arb) -> arb:
    return _sigmoid(z) * _sigmoid(-z)


def _tanh_first(z: arb) -> arb:
    return ONE / z.cosh() ** 2


def _softsign_first(z: arb) -> arb:
    return ONE / (ONE + abs(z)) ** 2


def _squareplus_first(z: arb) -> arb:
    return (ONE + z / (z * z + 4).sqrt()) / 2


def _sparse_plus_value(z: arb) -> arb:
    middle = _pieces(1.0, lambda t: (t + 1) ** 2 / 4, lambda t: t)
    return _pieces(-1.0, lambda t: ZERO, middle)(z)


def _sparse_plus_first(z: arb) -> arb:
    middle = _pieces(1.0, lambda t: (t + 1) / 2, lambda t: ONE)
    return _pieces(-1.0, lambda t: ZERO, middle)(z)


_C = arb(float(np.float32(np.sqrt(0.5))))
_TANH_C = arb(float(np.float32(np.sqrt(2.0 / np.pi))))
_TANH_D = arb(float(np.float32(0.044715)))
_SELU, _SELU_LEFT = arb(1.0507009873554804934193349852946), arb(1.7580993408473768599402175208123)


def _gelu(z: arb) -> arb:
    return z * (-_C * z).erfc() / 2


def _gelu_first(z: arb) -> arb:
    t = _C * z
    return (-t).erfc() / 2 + t * (-t * t).exp() / arb.pi().sqrt()


_GELU_ENDS = [(-t).erfc() / 2 + t * (-t * t).exp() / arb.pi().sqrt() for t in (-ONE, ONE)]
_GELU_TOP = 2 * _C / arb.pi().sqrt()


# Of these, σ is a power series, whose coefficients are its derivatives.
def _silu(z: arb_series) -> arb_series:
    return z / (1 + (-z).exp())


def _gelu_tanh(z: arb_series) -> arb_series:
    return z / (1 + (-2 * _TANH_C * (z + _TANH_D * z * z * z)).exp())


def _mish(z: arb_series) -> arb_series:
    square = (1 + z.exp()) * (1 + z.exp())
    return z * (square - 1) / (square + 1)


def _derivative(sigma: Callable[[arb_series], arb_series], order: int) -> Function:
    def apply(z: arb) -> arb:
        found = sigma(arb_series([z, 1], prec=order + 1))
        return found[order] * (2 if order == 2 else 1)

    return apply


def _gated(
    sigma: Callable[[arb_series], arb_series],
    slopes: tuple[float, float],
    bends: tuple[float, float],
) -> Sigma:
    """Returns σ whose σ′ and σ″ are extreme at these points, which are known to 1e-12."""
    first, second = _derivative(sigma, 1), _derivative(sigma, 2)
    least, most = (first(arb(at, 1e-12)) for at in slopes)
    low, high = (second(arb(at, 1e-12)) for at in bends)
    return Sigma(_derivative(sigma, 0), first, (least, most), (low, high))


def _leaky(slope: float) -> Sigma:
    ends = sorted([slope, 1.0])
    return Sigma(
        _pieces(0.0, lambda z: slope * z, lambda z: z),
        _pieces(0.0, lambda z: arb(slope), lambda z: ONE),
        (arb(ends[0]), arb(ends[1])),
        None,
    )


def _clip(low: float, high: float) -> Sigma:
    middle = _pieces(high, lambda z: z, lambda z: arb(high))
    slope = _pieces(high, lambda z: ONE, lambda z: ZERO)
    return Sigma(
        _pieces(low, lambda z: arb(low), middle),
        _pieces(low, lambda z: ZERO, slope),
        (ZERO, ONE),
        None,
    )


_Q, _H = arb(1) / 4, arb(1) / 2
_OF_SIGMOID, _OF_TANH = 1 / (6 * arb(3).sqrt()), 4 / (3 * arb(3).sqrt())
_ELU = Sigma(
    _pieces(0.0, lambda z: z.expm1(), lambda z: z),
    _pieces(0.0, lambda z: z.exp(), lambda z: ONE),
    (ZERO, ONE),
    (ZERO, ONE),
)
_TABLE = {
    "identity": Sigma(lambda z: z, lambda z: ONE, (ONE, ONE), (ZERO, ZERO)),
    "softplus": Sigma(_softplus, _sigmoid, (ZERO, ONE), (ZERO, _Q)),
    "log_sigmoid": Sigma(
        lambda z: -_softplus(-z), lambda z: _sigmoid(-z), (ZERO, ONE), (-_Q, ZERO)
    ),
    "sigmoid": Sigma(_sigmoid, _sigmoid_first, (ZERO, _Q), (-_OF_SIGMOID, _OF_SIGMOID)),
    "tanh": Sigma(lambda z: z.tanh(), _tanh_first, (ZERO, ONE), (-_OF_TANH, _OF_TANH)),
    "tanh_shrink": Sigma(
        lambda z: z - z.tanh(), lambda z: z.tanh() ** 2, (ZERO, ONE), (-_OF_TANH, _OF_TANH)
    ),
    "elu": _ELU,
    "celu": _ELU,
    "softsign": Sigma(lambda z: z / (1 + abs(z)), _softsign_first, (ZERO, ONE), (arb(-2), arb(2))),
    "squareplus": Sigma(
        lambda z: (z + (z * z + 4).sqrt()) / 2, _squareplus_first, (ZERO, ONE), (ZERO, _Q)
    ),
    "sparse_plus": Sigma(_sparse_plus_value, _sparse_plus_first, (ZERO, ONE), (ZERO, _H)),
    "sin": Sigma(lambda z: z.sin(), lambda z: z.cos(), (-ONE, ONE), (-ONE, ONE)),
    "gelu": Sigma(
        _gelu, _gelu_first, (_GELU_ENDS[0], _GELU_ENDS[1]), (-_GELU_TOP * arb(-2).exp(), _GELU_TOP)
    ),
    "silu": _gated(_silu, (-2.3993572805154675, 2.3993572805154675), (3.435840993535111, 0.0)),
    "gelu_tanh": _gated(
        _gelu_tanh, (-1.418503977128071, 1.418503977128071), (2.013480684776514, 0.0)
    ),
    "mish": _gated(
        _mish, (-2.256376396360793, 1.4905711794854284), (2.114842563020877, -0.08793443131491421)
    ),
    "relu": _leaky(0.0),
    "leaky_relu": _leaky(float(np.float32(0.2))),
    "abs": _leaky(-1.0),
    "relu6": _clip(0.0, 6.0),
    "selu": Sigma(
        _pieces(0.0, lambda z: _SELU_LEFT * z.expm1(), lambda z: _SELU * z),
        _pieces(0.0, lambda z: _SELU_LEFT * z.exp(), lambda z: _SELU),
        (ZERO, _SELU_LEFT),
        None,
    ),
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
