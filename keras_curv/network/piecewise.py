"""Activations with kinks: linear or smooth pieces whose slopes differ where they meet."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activation import JUMP, Activation
from keras_curv.numerics.rounding import TINY

# As in Keras; the op rounds them to float32, which the charge of `float32` covers.
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_LEFT = 1.7580993408473768599402175208123  # its slope at 0, from the left
_ULPS = 1.0 + 8.0 * 2.0**-53
# One object for each activation: networks of equal activations share graphs (`shared_graph.py`).
_once = functools.lru_cache(maxsize=256)


@_once
def leaky_relu(slope: float) -> Activation:
    """Returns the activation that is z for z > 0, else `slope · z`; any finite slope.

    Example:
        >>> leaky_relu(0.5).name, leaky_relu(0.5).first_range
        ('leaky_relu(0.5)', (0.5, 1.0))
    """
    slope = float(slope)
    if not math.isfinite(slope):
        raise InputError(f"the slope of leaky_relu must be finite. Received: {slope}")
    if 0.0 < abs(slope) < TINY:  # TensorFlow takes it for 0, however large z is
        raise InputError(
            f"the slope of leaky_relu must be 0, or at least 2⁻¹⁰²². Received: {slope}"
        )
    return Activation(
        name=f"leaky_relu({slope!r})",
        # Not slope · z alone: that is NaN at −∞ where the slope is 0.
        value=lambda z: tf.where(z > 0.0, z, slope * z if slope else tf.zeros_like(z)),
        first=lambda z: tf.where(z > 0.0, tf.ones_like(z), slope * tf.ones_like(z)),
        second=tf.zeros_like,
        first_range=(min(slope, 1.0), max(slope, 1.0)),
        second_range=(-math.inf if slope > 1.0 else 0.0, math.inf if slope < 1.0 else 0.0),
        first_extrema=(),
        second_extrema=(),
        served_floor=0.0,
        minimum_at=0.0 if slope < 0.0 else None,
        left=slope,
        kinks=(0.0,),
        piece_range=(0.0, 0.0),
    )


@_once
def clip(low: float, high: float) -> Activation:
    """Returns the activation `min(max(z, low), high)`, free of rounding; `high` may be infinite.

    Example:
        >>> clip(-1.0, 2.0).name, clip(-1.0, 2.0).kinks
        ('clip(-1.0,2.0)', (-1.0, 2.0))
    """
    low, high = float(low), float(high)
    if not (math.isfinite(low) and low < high):
        raise InputError(
            "the limits of a clip must be numbers, the first one finite and below the second. "
            f"Received: {low} and {high}"
        )
    kinks = tuple(limit for limit in (low, high) if math.isfinite(limit))
    return Activation(
        name=f"clip({low!r},{high!r})",
        value=lambda z: tf.minimum(tf.maximum(z, low), high),
        first=lambda z: tf.cast((z > low) & (z < high), z.dtype),
        second=tf.zeros_like,
        first_range=(0.0, 1.0),
        second_range=(-math.inf if len(kinks) > 1 else 0.0, math.inf),
        first_extrema=(_between(low, high),),
        second_extrema=(),
        served_floor=0.0,
        left=0.0 if low == 0.0 else None,
        kinks=kinks,
        piece_range=(0.0, 0.0),
    )


def _between(low: float, high: float) -> float:
    """Returns a number between two limits, at which the slope of a clip is 1."""
    if math.isinf(high):
        return 2.0 * low if low > 1.0 else low / 2.0 if low < -1.0 else low + 1.0
    return low / 2.0 + high / 2.0


@_once
def capped_relu(cap: float) -> Activation:
    """Returns the activation `min(max(z, 0), cap)`; any positive cap.

    Example:
        >>> capped_relu(1.0).name, capped_relu(1.0).kinks
        ('capped_relu(1.0)', (0.0, 1.0))
    """
    cap = float(cap)
    if not (0.0 < cap < math.inf):
        raise InputError(f"the cap of capped_relu must be positive and finite. Received: {cap}")
    return dataclasses.replace(clip(0.0, cap), name=f"capped_relu({cap!r})")


_PARAMETRIC: dict[tuple[str, int], Callable[..., Activation]] = {
    ("leaky_relu", 1): leaky_relu,
    ("capped_relu", 1): capped_relu,
    ("clip", 2): clip,
}


def parametric(name: str) -> Activation | None:
    """Returns the activation of a name with parameters, as above; None for an unknown name."""
    found = re.fullmatch(r"(\w+)\((\S+)\)", name)
    if found is None:
        return None
    try:
        parameters = [float(parameter) for parameter in found[2].split(",")]
    except ValueError:
        return None
    make = _PARAMETRIC.get((found[1], len(parameters)))
    return make(*parameters) if make else None


LEAKY_RELU = dataclasses.replace(leaky_relu(float(np.float32(0.2))), name="leaky_relu")
ABS = dataclasses.replace(leaky_relu(-1.0), name="abs")
RELU6 = dataclasses.replace(capped_relu(6.0), name="relu6")
SELU = Activation(
    name="selu",
    value=lambda z: tf.where(
        z < 0.0, _SELU_LEFT * tf.math.expm1(tf.minimum(z, 0.0)), _SELU_SCALE * z
    ),
    first=lambda z: tf.where(
        z < 0.0, _SELU_LEFT * tf.exp(tf.minimum(z, 0.0)), _SELU_SCALE * tf.ones_like(z)
    ),
    second=lambda z: tf.where(z < 0.0, _SELU_LEFT * tf.exp(tf.minimum(z, 0.0)), tf.zeros_like(z)),
    first_range=(0.0, _SELU_LEFT * _ULPS),
    second_range=(-math.inf, _SELU_LEFT * _ULPS),
    first_extrema=(-JUMP,),
    second_extrema=(-JUMP, JUMP),
    kinks=(0.0,),
    piece_range=(0.0, _SELU_LEFT * _ULPS),
)
# z times a hard sigmoid; its slope jumps from 0 to −½ at −3, and from 3/2 to 1 at 3.
_INSIDE = math.nextafter(3.0, 0.0)
HARD_SILU = Activation(
    name="hard_silu",
    value=lambda z: z * (tf.clip_by_value(z + 3.0, 0.0, 6.0) / 6.0),
    first=lambda z: tf.where(tf.abs(z) < 3.0, (2.0 * z + 3.0) / 6.0, tf.cast(z > 0.0, z.dtype)),
    second=lambda z: tf.where(tf.abs(z) < 3.0, tf.ones_like(z) / 3.0, tf.zeros_like(z)),
    first_range=(-0.5, 1.5),
    second_range=(-math.inf, math.inf),
    first_extrema=(-_INSIDE, _INSIDE),
    second_extrema=(0.0,),
    minimum_at=-1.5,
    kinks=(-3.0, 3.0),
    piece_range=(0.0, _ULPS / 3.0),
)
PIECEWISE = (LEAKY_RELU, ABS, RELU6, SELU, HARD_SILU)
