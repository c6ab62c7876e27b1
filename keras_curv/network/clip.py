"""The clip that a classifier begins with: a scaled and shifted input, held within limits.

Graph rules read it like any piecewise layer, and linear bounds certify it as one. This module
separates it from the network behind it, which may then be smooth.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.network import Network


@dataclasses.dataclass(frozen=True)
class Clip:
    """`T(x)_i = min(max(scale_i x_i + offset_i, low_i), high_i)`, the classifier being f ∘ T.

    Raises:
        InputError: not a number, or limits the wrong way round.

    Example:
        >>> clip = Clip(*np.array([[2.0], [-0.5], [0.0], [1.0]]))
        >>> clip.value(tf.constant([[0.1], [0.5], [0.9]], tf.float64)).numpy()[:, 0]
        array([0. , 0.5, 1. ])
    """

    scale: np.ndarray  # scale, offset: `(dim,)`, finite
    offset: np.ndarray
    low: np.ndarray  # low, high: `(dim,)`, `low ≤ high`; the latter may be infinite
    high: np.ndarray
    # scale_error, offset_error: l2 bounds on the rounding errors of folding
    scale_error: float = 0.0
    offset_error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset", "low", "high"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        if not all(np.isfinite(part).all() for part in (self.scale, self.offset, self.low)):
            raise InputError(
                "a clip needs a scale, an offset and a lower limit that are finite. Received: "
                f"{self.scale}, {self.offset}, {self.low}"
            )
        if not np.all(self.low <= self.high):
            raise InputError(
                "a clip needs a lower limit that is not above the upper one. Received: "
                f"{self.low}, {self.high}"
            )

    @property
    def dim(self) -> int:
        """Returns the number of entries of a flattened input."""
        return len(self.scale)

    @property
    def cost(self) -> np.ndarray:
        """Returns how far x_i moves for T(x)_i to move by 1: `1/|scale_i|`; 1 for a scale of 0."""
        return 1.0 / np.abs(np.where(self.scale == 0.0, 1.0, self.scale))

    def unclipped(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `scale x + offset`, in the dtype of `x`, `(…, dim)`."""
        return x * tf.constant(self.scale, x.dtype) + tf.constant(self.offset, x.dtype)

    def value(self, x: tf.Tensor) -> tf.Tensor:
        """Returns T(x), in the dtype of `x`, `(…, dim)`."""
        low, high = (tf.constant(limit, x.dtype) for limit in (self.low, self.high))
        return tf.minimum(tf.maximum(self.unclipped(x), low), high)

    def nearest(self, value: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Returns, up to rounding, the point nearest to `x` that T maps to `value`, `(…, dim)`."""
        moving = self.scale != 0.0
        scale = tf.constant(np.where(moving, self.scale, 1.0), x.dtype)
        there = (value - tf.constant(self.offset, x.dtype)) / scale
        return tf.where((value == self.value(x)) | ~tf.constant(moving), x, there)


def split_clip(network: Network) -> tuple[Clip, Network] | None:
    """Returns the clip that a network begins with and the network behind it; None without one.

    A clip is a first map that scales and shifts each entry by itself, followed by `relu`, a capped
    relu or a clip activation. The input of the network behind is T(x), within its limits.
    """
    if len(network.affines) < 2 or network.affines[0].is_sparse or network.restricted:
        return None
    first, limits = network.affines[0], _limits(network.activations[0].name)
    scale = np.diagonal(first.kernel) if first.fan_in == first.fan_out else np.zeros(0)
    if (
        limits is None
        or not len(scale)
        or np.count_nonzero(first.kernel) != np.count_nonzero(scale)
    ):
        return None
    if first.kernel_error > 1e-3 * np.abs(scale).min():
        return None
    if first.bias_error and not scale.all():
        return None  # no move of x can compensate the offset error of an entry with scale 0
    low, high = (np.full(len(scale), limit) for limit in limits)
    errors = first.kernel_error, first.bias_error
    behind = Network(network.affines[1:], network.activations[1:])
    return Clip(scale, first.bias, low, high, *errors), behind


def layers(network: Network) -> dict[str, int | bool]:
    """Returns the layer count for a summary; a clip at the beginning is not counted."""
    if split_clip(network) is None:
        return {"depth": network.depth}
    return {"depth": network.depth - 1, "clips_input": True}


def _limits(activation: str) -> tuple[float, float] | None:
    """Returns the limits between which the activation is z, and beyond which it is constant."""
    if activation in ("relu", "relu6"):
        return 0.0, {"relu": np.inf, "relu6": 6.0}[activation]
    found = re.fullmatch(r"(?:capped_relu\(|clip\((\S+),)(\S+)\)", activation)
    return (float(found[1] or 0.0), float(found[2])) if found else None
