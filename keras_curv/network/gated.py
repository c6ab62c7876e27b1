"""Activations `z · gate(z)` and their derivatives in closed form: silu, gelu, gelu_tanh, mish."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

# Both forms of gelu use exactly the float32 constants that Keras stores, because a certificate is
# about the stored graph. They are √½, √(2/π) and 0.044715 to 1e-8.
GELU_SCALE = float(np.float32(math.sqrt(0.5)))
GELU_TANH_SCALE = float(np.float32(math.sqrt(2.0 / math.pi)))
GELU_TANH_CUBE = float(np.float32(0.044715))
_GELU_FAR = 30.0  # σ′ and σ″ are constant beyond to within rounding; avoids 0 · ∞
GELU_TOP = 2.0 * GELU_SCALE / math.sqrt(math.pi)  # σ″(0)


def silu(z: tf.Tensor) -> tf.Tensor:
    """Returns σ = z s, s = sigmoid(z)."""
    return z * tf.sigmoid(z)


def silu_first(z: tf.Tensor) -> tf.Tensor:
    """Returns σ′ of silu."""
    s = tf.sigmoid(z)
    return s + z * (s * tf.sigmoid(-z))


def silu_second(z: tf.Tensor) -> tf.Tensor:
    """Returns σ″ of silu."""
    s = tf.sigmoid(z)
    return s * tf.sigmoid(-z) * (2.0 + z * (1.0 - 2.0 * s))


def gelu(z: tf.Tensor) -> tf.Tensor:
    """Returns σ = ½z (1 + erf cz), without cancellation."""
    return 0.5 * z * tf.math.erfc(-GELU_SCALE * z)


def _gelu_argument(z: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(GELU_SCALE * z, -_GELU_FAR, _GELU_FAR)


def gelu_first(z: tf.Tensor) -> tf.Tensor:
    """Returns σ′ of gelu."""
    t = _gelu_argument(z)
    return 0.5 * tf.math.erfc(-t) + t * tf.exp(-t * t) / math.sqrt(math.pi)


def gelu_second(z: tf.Tensor) -> tf.Tensor:
    """Returns σ″ of gelu."""
    t = _gelu_argument(z)
    return GELU_TOP * (1.0 - t * t) * tf.exp(-t * t)


def gelu_tanh(z: tf.Tensor) -> tf.Tensor:
    """Returns σ = ½z (1 + tanh u), without cancellation."""
    return z * tf.sigmoid(_gelu_tanh_twice(z))


def _gelu_tanh_twice(z: tf.Tensor) -> tf.Tensor:
    return 2.0 * GELU_TANH_SCALE * (z + GELU_TANH_CUBE * z * z * z)


def _gelu_tanh_gate(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns S = sigmoid(2u) and its first two derivatives in z."""
    u = _gelu_tanh_twice(z)
    first = 2.0 * GELU_TANH_SCALE * (1.0 + 3.0 * GELU_TANH_CUBE * z * z)
    second = 12.0 * GELU_TANH_SCALE * GELU_TANH_CUBE * z
    s, product = tf.sigmoid(u), tf.sigmoid(u) * tf.sigmoid(-u)
    return s, product * first, product * ((1.0 - 2.0 * s) * first * first + second)


def gelu_tanh_first(z: tf.Tensor) -> tf.Tensor:
    """Returns σ′ of gelu_tanh."""
    z = tf.clip_by_value(z, -_GELU_FAR, _GELU_FAR)
    s, first, _ = _gelu_tanh_gate(z)
    return s + z * first


def gelu_tanh_second(z: tf.Tensor) -> tf.Tensor:
    """Returns σ″ of gelu_tanh."""
    z = tf.clip_by_value(z, -_GELU_FAR, _GELU_FAR)
    _, first, second = _gelu_tanh_gate(z)
    return 2.0 * first + z * second


def mish(z: tf.Tensor) -> tf.Tensor:
    """Returns σ = z T, T = tanh(softplus(z))."""
    return z * _mish_gate(z)[0]


def _mish_gate(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns T = tanh(softplus(z)), T′ and T″, from s = sigmoid(z) and r = 1 − s."""
    s, r = tf.sigmoid(z), tf.sigmoid(-z)
    below = 1.0 + r * r
    first = 4.0 * s * tf.square(r / below)
    return s * (1.0 + r) / below, first, first * (1.0 + s - 4.0 * s / below)


def mish_first(z: tf.Tensor) -> tf.Tensor:
    """Returns σ′ of mish."""
    gate, first, _ = _mish_gate(z)
    return gate + z * first


def mish_second(z: tf.Tensor) -> tf.Tensor:
    """Returns σ″ of mish."""
    _, first, second = _mish_gate(z)
    return 2.0 * first + z * second
