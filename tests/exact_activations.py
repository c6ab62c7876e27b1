"""Activations in exact arithmetic, by their names: with mpmath, of as many digits as are set."""

import mpmath
import numpy as np

_SCALE = mpmath.mpf("1.0507009873554804934193349852946")
_LEFT = mpmath.mpf("1.7580993408473768599402175208123")


def _leaky(slope):
    return lambda z: z if z > 0 else mpmath.mpf(slope) * z


def _clipped(low, high):
    return lambda z: min(max(z, mpmath.mpf(low)), mpmath.mpf(high))


KINKED = {
    "leaky_relu": _leaky(float(np.float32(0.2))),
    "leaky_relu(0.0)": _leaky(0.0),
    "leaky_relu(0.75)": _leaky(0.75),
    "leaky_relu(3.0)": _leaky(3.0),
    "leaky_relu(-0.5)": _leaky(-0.5),
    "leaky_relu(-2.0)": _leaky(-2.0),
    "relu6": _clipped(0.0, 6.0),
    "capped_relu(0.5)": _clipped(0.0, 0.5),
    "clip(-1.5,2.0)": _clipped(-1.5, 2.0),
    "clip(1.0,inf)": _clipped(1.0, mpmath.inf),
    "clip(-2.5,inf)": _clipped(-2.5, mpmath.inf),
    "selu": lambda z: _SCALE * z if z > 0 else _LEFT * mpmath.expm1(z),
    "hard_silu": lambda z: z * _clipped(0.0, 6.0)(z + 3) / 6,
}

USUAL = {
    "softplus": lambda z: mpmath.log1p(mpmath.exp(z)),
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "tanh": mpmath.tanh,
    "relu": lambda z: max(z, mpmath.mpf(0)),
    "exponential": mpmath.exp,
    "elu": lambda z: z if z > 0 else mpmath.expm1(z),
    "softsign": lambda z: z / (1 + abs(z)),
    "silu": lambda z: z / (1 + mpmath.exp(-z)),
    "tanh_shrink": lambda z: z - mpmath.tanh(z),  # it cancels near 0
    "sin": mpmath.sin,
}
