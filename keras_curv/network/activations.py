"""The table of activations: σ, σ′, σ″ in closed form, with exact ranges.

All other code looks up activations in this table; an activation that is not in it cannot be
certified. To add one, state its three functions, the points at which σ, σ′ and σ″ have their
interior extrema, and the ranges on the whole line. Curvature needs σ′ without jumps (σ″ may
jump); an activation that is only Lipschitz, as ReLU is, has an unbounded range of σ″.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network import gated
from keras_curv.network.activation import JUMP, Activation
from keras_curv.network.algebraic import ALGEBRAIC
from keras_curv.network.piecewise import PIECEWISE, parametric


def _outward(low: float, high: float) -> tuple[float, float]:
    """Moves the ends of a range outward by a few roundings at 1, except ends that are exact."""
    exact, slack = (0.0, 0.25, 0.5, 1.0), 8.0 * 2.0**-53
    return (low if abs(low) in exact else low - slack, high if abs(high) in exact else high + slack)


def _slope_of_sigmoid(s: Any) -> Any:
    return s * (1.0 - s)


def _slope_of_tanh(t: Any) -> Any:
    return 1.0 - t * t


def _sigmoid_first(z: tf.Tensor) -> tf.Tensor:
    return _slope_of_sigmoid(tf.sigmoid(z))


def _sigmoid_second(z: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(z)
    return _slope_of_sigmoid(s) * (1.0 - 2.0 * s)


def _tanh_first(z: tf.Tensor) -> tf.Tensor:
    return _slope_of_tanh(tf.tanh(z))


def _tanh_second(z: tf.Tensor) -> tf.Tensor:
    t = tf.tanh(z)
    return -2.0 * t * _slope_of_tanh(t)


# σ″ of sigmoid is s(1−s)(1−2s), extreme where 6s² − 6s + 1 = 0, i.e. at ±ln(2+√3), with the
# value ±1/(6√3); tanh(z) = 2 sigmoid(2z) − 1 carries both over.
_SIGMOID_SECOND_AT = math.log(2.0 + math.sqrt(3.0))

_SOFTPLUS = Activation(
    name="softplus",
    value=tf.math.softplus,
    first=tf.sigmoid,
    second=_sigmoid_first,
    first_range=(0.0, 1.0),
    second_range=(0.0, 0.25),
    first_extrema=(),
    second_extrema=(0.0,),
    served_floor=0.0,
)
_SIGMOID = Activation(
    name="sigmoid",
    value=tf.sigmoid,
    first=_sigmoid_first,
    second=_sigmoid_second,
    first_range=(0.0, 0.25),
    second_range=_outward(-1.0 / (6.0 * math.sqrt(3.0)), 1.0 / (6.0 * math.sqrt(3.0))),
    first_extrema=(0.0,),
    second_extrema=(-_SIGMOID_SECOND_AT, _SIGMOID_SECOND_AT),
    served_floor=0.0,
    s_shaped=True,
    first_of_value=_slope_of_sigmoid,
)
_TANH = Activation(
    name="tanh",
    value=tf.tanh,
    first=_tanh_first,
    second=_tanh_second,
    first_range=(0.0, 1.0),
    second_range=_outward(-4.0 / (3.0 * math.sqrt(3.0)), 4.0 / (3.0 * math.sqrt(3.0))),
    first_extrema=(0.0,),
    second_extrema=(-_SIGMOID_SECOND_AT / 2.0, _SIGMOID_SECOND_AT / 2.0),
    served_floor=0.0,
    s_shaped=True,
    first_of_value=_slope_of_tanh,
)


# σ″ = s(1−s)(2 − z tanh(z/2)) is 0 at ±2u with u tanh u = 1, where σ′ = (1 ± u)/2. Extrema that
# have no closed form, here and below, were computed to 40 digits as roots of σ′, or to 60 as roots
# of σ″ or σ‴; the tests prove that there are no others.
_SILU_FIRST_AT = 2.3993572805154675
_SILU_SECOND_AT = 3.435840993535111

_SILU = Activation(
    name="silu",
    value=gated.silu,
    first=gated.silu_first,
    second=gated.silu_second,
    first_range=_outward(0.5 - _SILU_FIRST_AT / 4.0, 0.5 + _SILU_FIRST_AT / 4.0),
    second_range=_outward(-0.036914373199893186, 0.5),
    first_extrema=(-_SILU_FIRST_AT, _SILU_FIRST_AT),
    second_extrema=(-_SILU_SECOND_AT, 0.0, _SILU_SECOND_AT),
    minimum_at=-1.2784645427610738,
)

# With t = cz: σ′ = ½(1 + erf t) + t e^(−t²)/√π, extreme at t = ±1;
# σ″ = 2c/√π (1 − t²) e^(−t²), extreme at 0 and t = ±√2.
_GELU_REACH = math.exp(-1.0) / math.sqrt(math.pi)
_GELU = Activation(
    name="gelu",
    value=gated.gelu,
    first=gated.gelu_first,
    second=gated.gelu_second,
    first_range=_outward(0.5 * math.erfc(1.0) - _GELU_REACH, 0.5 * math.erfc(-1.0) + _GELU_REACH),
    second_range=_outward(-gated.GELU_TOP * math.exp(-2.0), gated.GELU_TOP),
    first_extrema=(-1.0 / gated.GELU_SCALE, 1.0 / gated.GELU_SCALE),
    second_extrema=(-math.sqrt(2.0) / gated.GELU_SCALE, 0.0, math.sqrt(2.0) / gated.GELU_SCALE),
    value_floor=1e-4,
    minimum_at=-0.7517915375599286,
)


_GELU_TANH = Activation(
    name="gelu_tanh",
    value=gated.gelu_tanh,
    first=gated.gelu_tanh_first,
    second=gated.gelu_tanh_second,
    first_range=_outward(-0.12899306654577225, 1.1289930665457721),
    second_range=_outward(-0.10791351449627895, gated.GELU_TANH_SCALE),
    first_extrema=(-1.418503977128071, 1.418503977128071),
    second_extrema=(-2.013480684776514, 0.0, 2.013480684776514),
    value_floor=1e-4,
    minimum_at=-0.7524614044087227,
)


_MISH = Activation(
    name="mish",
    value=gated.mish,
    first=gated.mish_first,
    second=gated.mish_second,
    first_range=_outward(-0.11252612238946255, 1.088498161251728),
    second_range=_outward(-0.05903335695393629, 0.6442046372369724),
    first_extrema=(-2.256376396360793, 1.4905711794854284),
    second_extrema=(-3.2673378465204044, -0.08793443131491421, 2.114842563020877),
    minimum_at=-1.1924312145154952,
)
_ELU = Activation(  # α = 1; σ″ jumps at 0, from 1 to 0
    name="elu",
    value=lambda z: tf.where(z < 0.0, tf.math.expm1(tf.minimum(z, 0.0)), z),
    first=lambda z: tf.exp(tf.minimum(z, 0.0)),
    second=lambda z: tf.where(z < 0.0, tf.exp(tf.minimum(z, 0.0)), tf.zeros_like(z)),
    first_range=(0.0, 1.0),
    second_range=(0.0, 1.0),
    first_extrema=(),
    second_extrema=(-JUMP, JUMP),
)
_CELU = dataclasses.replace(_ELU, name="celu")  # α = 1
_SOFTSIGN = Activation(  # σ″ jumps at 0, from 2 to −2
    name="softsign",
    value=lambda z: z / (1.0 + tf.abs(z)),
    first=lambda z: 1.0 / tf.square(1.0 + tf.abs(z)),
    second=lambda z: -2.0 * tf.sign(z) / tf.square(1.0 + tf.abs(z)) / (1.0 + tf.abs(z)),
    first_range=(0.0, 1.0),
    second_range=(-2.0, 2.0),
    first_extrema=(0.0,),
    second_extrema=(-JUMP, JUMP),
    served_floor=0.0,
    s_shaped=True,
)
_LOG_SIGMOID = Activation(
    name="log_sigmoid",
    value=lambda z: -tf.math.softplus(-z),
    first=lambda z: tf.sigmoid(-z),
    second=lambda z: -_sigmoid_first(z),
    first_range=(0.0, 1.0),
    second_range=(-0.25, 0.0),
    first_extrema=(),
    second_extrema=(0.0,),
)
_TANH_SHRINK = Activation(
    name="tanh_shrink",
    value=lambda z: z - tf.tanh(z),
    first=lambda z: tf.square(tf.tanh(z)),
    second=lambda z: -_tanh_second(z),
    first_range=(0.0, 1.0),
    second_range=_TANH.second_range,
    first_extrema=(0.0,),
    second_extrema=_TANH.second_extrema,
    value_floor=1.0,
)


def _squareplus_root(z: tf.Tensor) -> tf.Tensor:
    """Computes √(z² + 4) without overflow."""
    larger = tf.maximum(tf.abs(z), 2.0)
    return larger * tf.sqrt(1.0 + tf.square(tf.minimum(tf.abs(z), 2.0) / larger))


def _squareplus(z: tf.Tensor) -> tf.Tensor:
    root = _squareplus_root(z)
    return tf.where(z < 0.0, 2.0 / (root + tf.abs(z)), 0.5 * z + 0.5 * root)


_SQUAREPLUS = Activation(  # b = 4
    name="squareplus",
    value=_squareplus,
    first=lambda z: 0.5 + 0.5 * (z / _squareplus_root(z)),
    second=lambda z: 2.0 / _squareplus_root(z) / tf.square(_squareplus_root(z)),
    first_range=(0.0, 1.0),
    second_range=(0.0, 0.25),
    first_extrema=(),
    second_extrema=(0.0,),
)
_SPARSE_PLUS = Activation(  # σ″ is ½ between its jumps at ±1
    name="sparse_plus",
    value=lambda z: tf.where(z < 1.0, 0.25 * tf.square(tf.clip_by_value(z, -1.0, 1.0) + 1.0), z),
    first=lambda z: 0.5 * (tf.clip_by_value(z, -1.0, 1.0) + 1.0),
    second=lambda z: tf.where(tf.abs(z) < 1.0, 0.5 * tf.ones_like(z), tf.zeros_like(z)),
    first_range=(0.0, 1.0),
    second_range=(0.0, 0.5),
    first_extrema=(),
    second_extrema=(0.0,),
)

# σ″ is 0 except at 0, where σ′ jumps: infinite curvature.
_RELU = Activation(
    name="relu",
    value=lambda z: tf.nn.relu(z),  # looked up at the call, because `tf.nn` loads slowly
    first=lambda z: tf.cast(z > 0.0, z.dtype),
    second=tf.zeros_like,
    first_range=(0.0, 1.0),
    second_range=(0.0, math.inf),
    first_extrema=(),
    second_extrema=(),
    served_floor=0.0,
    hinge=True,
    left=0.0,
)

_EXPONENTIAL = Activation(  # neither Lipschitz nor of bounded curvature: for linear bounds
    name="exponential",
    value=tf.exp,
    first=tf.exp,
    second=tf.exp,
    first_range=(0.0, math.inf),
    second_range=(0.0, math.inf),
    piece_range=(0.0, math.inf),
    first_extrema=(),
    second_extrema=(),
    served_floor=0.0,
)

_SIN = Activation(
    name="sin",
    value=tf.sin,
    first=tf.cos,
    second=lambda z: -tf.sin(z),
    first_range=(-1.0, 1.0),
    second_range=(-1.0, 1.0),
    first_extrema=(0.0, math.pi),
    second_extrema=(-math.pi / 2.0, math.pi / 2.0),
    served_floor=1.0,
    minimum_at=-math.pi / 2.0,
    maximum_at=math.pi / 2.0,
    period=2.0 * math.pi,
)

_TABLE = (
    _SOFTPLUS,
    _SIGMOID,
    _TANH,
    _SILU,
    _GELU,
    _GELU_TANH,
    _MISH,
    _ELU,
    _CELU,
    _SOFTSIGN,
    _LOG_SIGMOID,
    _TANH_SHRINK,
    _SQUAREPLUS,
    _SPARSE_PLUS,
    _SIN,
    _RELU,
    _EXPONENTIAL,
    *PIECEWISE,
)
ACTIVATIONS = {entry.name: entry for entry in _TABLE}
SMOOTH = {name: entry for name, entry in ACTIVATIONS.items() if entry.smooth}


def get(name: str) -> Activation:
    """Returns the activation of a Keras name, or of a name with parameters (`piecewise.py`).

    Raises:
        InputError: the table has no such activation.

    Example:
        >>> get("leaky_relu(0.25)").first_range
        (0.25, 1.0)
    """
    found = ACTIVATIONS.get(name) or ALGEBRAIC.get(name) or parametric(name)
    if found is None:
        raise InputError(f"no bounds for activation {name!r}; supported: {', '.join(ACTIVATIONS)}")
    return found


def require_smooth(activations: Iterable[Activation], instead: str = "") -> None:
    """Refuses an activation that has no curvature bound.

    Args:
        activations: the activations of a network.
        instead: a clause of the message that names an alternative; "": the methods that need no
            curvature bound.

    Raises:
        InputError: names the first activation whose σ″ is unbounded.
    """
    for activation in (each for layer in activations for each, _ in layer.groups):
        if not activation.smooth:
            steep = not np.all(np.isfinite(activation.slope))
            why = "bends without bound" if steep else "is not differentiable"
            methods = "method crown needs" if steep else "methods crown and lipschitz need"
            raise InputError(
                f"activation {activation.name!r} {why}, so it has no curvature bound; "
                f"{instead or f'the {methods} none'}, and these activations have one: "
                f"{', '.join(SMOOTH)}"
            )


def require_lipschitz(activations: Iterable[Activation]) -> None:
    """Refuses an activation that has no Lipschitz bound.

    Raises:
        InputError: names the first activation whose σ′ is unbounded.
    """
    for activation in (each for layer in activations for each, _ in layer.groups):
        if not np.all(np.isfinite(activation.slope)):
            made = ", of a product, power or norm of tensors," * (activation.name in ALGEBRAIC)
            inside = "; softmax inside is made of it" * (activation.name == "exponential")
            raise InputError(
                f"activation {activation.name!r}{made} has an unbounded slope, so no Lipschitz "
                "bound, which the guarantee float32 and the method lipschitz need; use the "
                f"guarantee real and another method{inside}"
            )
