"""The table of activations: σ, σ′, σ″ in closed form, with exact ranges.

Everything else asks this table what an activation does; an activation that is not in it
cannot be certified. To add one, state its three functions, where σ′ and σ″ have their
interior extrema, and the ranges on the whole line. Curvature needs σ′ without jumps (σ″ may
jump); an activation that is only Lipschitz, as ReLU is, has an unbounded range of σ″.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError

# Closed forms are evaluated in float64; this many units in the last place, relative to the
# supremum, covers the rounding of evaluation and of the locations of the extrema.
_OUTWARD = 64 * 2.0**-53
_JUMP = 1e-300  # a point next to 0, for one-sided limits there
_FAR = 1e300  # as good as infinite


def _outward(low: float, high: float) -> tuple[float, float]:
    """The range with its ends moved outward by two units in the last place, exact ones kept."""
    exact = (0.0, 0.25, 1.0)
    return (
        low if abs(low) in exact else math.nextafter(math.nextafter(low, -math.inf), -math.inf),
        high if abs(high) in exact else math.nextafter(math.nextafter(high, math.inf), math.inf),
    )


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation, applied entrywise.

    Attributes:
        name: the Keras name.
        value: σ, on tensors of any shape, float32 or float64.
        first: σ′.
        second: σ″.
        first_range: `(min, max)` of σ′ on ℝ (infimum and supremum), rounded outward.
        second_range: the same for σ″; contains 0, as σ″ of a function with bounded slope must.
            An end is infinite where σ′ jumps.
        first_extrema: points at which σ′ has its interior extrema.
        second_extrema: points at which σ″ has its interior extrema.

    Example:
        >>> ACTIVATIONS["softplus"].second_range
        (0.0, 0.25)
    """

    name: str
    value: Callable[[tf.Tensor], tf.Tensor]
    first: Callable[[tf.Tensor], tf.Tensor]
    second: Callable[[tf.Tensor], tf.Tensor]
    first_range: tuple[float, float]
    second_range: tuple[float, float]
    first_extrema: tuple[float, ...]
    second_extrema: tuple[float, ...]

    @property
    def smooth(self) -> bool:
        """Whether σ′ is Lipschitz, so that there is curvature to speak of."""
        return math.isfinite(self.bend)

    @property
    def slope(self) -> float:
        """g = sup |σ′|."""
        return max(abs(end) for end in self.first_range)

    @property
    def bend(self) -> float:
        """h = sup |σ″|."""
        return max(abs(end) for end in self.second_range)

    def first_range_on(self, low, high) -> tuple[np.ndarray, np.ndarray]:
        """Exact range of σ′ on each interval `[low, high]`, rounded outward.

        Args:
            low, high: arrays of one shape, float64, `low ≤ high`; infinite ends are allowed.

        Returns:
            `(min, max)`, arrays of that shape.
        """
        return _range_on(self.first, self.first_extrema, self.first_range, low, high)

    def second_range_on(self, low, high) -> tuple[np.ndarray, np.ndarray]:
        """Exact range of σ″ on each interval `[low, high]`; see `first_range_on`.

        Raises:
            InputError: σ″ is unbounded.
        """
        require_smooth([self])
        return _range_on(self.second, self.second_extrema, self.second_range, low, high)


def _range_on(function, extrema, whole, low, high) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    if not np.all(low <= high):
        raise InputError("an interval needs low ≤ high and no NaN")
    # Between its interior extrema the function is monotone, so its extremes on an interval
    # are at the ends or at those extrema that the interval contains.
    # Ends just outside take both limits along, where there is a jump at an end.
    low, high = np.maximum(low - _JUMP, -_FAR), np.minimum(high + _JUMP, _FAR)
    points = np.stack([low, high, *(np.clip(point, low, high) for point in extrema)])
    values = function(tf.constant(points, tf.float64)).numpy()
    slack = _OUTWARD * max(abs(end) for end in whole)
    return (
        np.maximum(values.min(axis=0) - slack, whole[0]),
        np.minimum(values.max(axis=0) + slack, whole[1]),
    )


def _sigmoid_first(z: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(z)
    return s * (1.0 - s)


def _sigmoid_second(z: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(z)
    return s * (1.0 - s) * (1.0 - 2.0 * s)


def _tanh_first(z: tf.Tensor) -> tf.Tensor:
    return 1.0 - tf.square(tf.tanh(z))


def _tanh_second(z: tf.Tensor) -> tf.Tensor:
    t = tf.tanh(z)
    return -2.0 * t * (1.0 - tf.square(t))


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
)

# σ″ is 0 but for the jump of σ′ at 0, which is infinite curvature.
_RELU = Activation(
    name="relu",
    value=tf.nn.relu,
    first=lambda z: tf.cast(z > 0.0, z.dtype),
    second=tf.zeros_like,
    first_range=(0.0, 1.0),
    second_range=(0.0, math.inf),
    first_extrema=(),
    second_extrema=(),
)

ACTIVATIONS = {entry.name: entry for entry in (_SOFTPLUS, _SIGMOID, _TANH, _RELU)}
SMOOTH = {name: entry for name, entry in ACTIVATIONS.items() if entry.smooth}


def get(name: str) -> Activation:
    """The activation of that Keras name.

    Raises:
        InputError: the table has no such activation.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise InputError(
            f"no bounds for activation {name!r}; supported: {', '.join(ACTIVATIONS)}"
        ) from None


def require_smooth(activations: Iterable[Activation]) -> None:
    """Refuses what has no curvature bound.

    Raises:
        InputError: names the first activation whose σ″ is unbounded.
    """
    for activation in activations:
        if not activation.smooth:
            raise InputError(
                f"activation {activation.name!r} is not differentiable, so it has no curvature "
                f"bound; CROWN can certify it, and these have one: {', '.join(SMOOTH)}"
            )
