"""The clip that a classifier begins with: a scaled and shifted input, held within limits.

It is read as any piecewise layer is, by graph rules, and certified as one by linear bounds. Here
it is told apart from the network behind it, of which nothing is left to do but smooth functions.
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

    Attributes:
        scale, offset: `(dim,)`, finite.
        low, high: `(dim,)`, `low ≤ high`; the latter may be infinite.
        scale_error, offset_error: bounds, in l2, of what folding has rounded away of either.

    Raises:
        InputError: not a number, or limits the wrong way round.

    Example:
        >>> clip = Clip(*np.array([[2.0], [-0.5], [0.0], [1.0]]))
        >>> clip.value(tf.constant([[0.1], [0.5], [0.9]], tf.float64)).numpy()[:, 0]
        array([0. , 0.5, 1. ])
    """

    scale: np.ndarray
    offset: np.ndarray
    low: np.ndarray
    high: np.ndarray
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
        """Entries of a flattened input."""
        return len(self.scale)

    @property
    def cost(self) -> np.ndarray:
        """The way that x_i goes for T(x)_i to move by 1: `1/|scale_i|`; 1 for a scale of 0."""
        return 1.0 / np.abs(np.where(self.scale == 0.0, 1.0, self.scale))

    def unclipped(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `scale x + offset`, in the dtype of `x`, `(…, dim)`."""
        return x * tf.constant(self.scale, x.dtype) + tf.constant(self.offset, x.dtype)

    def value(self, x: tf.Tensor) -> tf.Tensor:
        """Returns T(x), in the dtype of `x`, `(…, dim)`."""
        low, high = (tf.constant(limit, x.dtype) for limit in (self.low, self.high))
        return tf.minimum(tf.maximum(self.unclipped(x), low), high)

    def nearest(self, value: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Returns the point nearest to `x` that T maps to `value`, about; `(…, dim)` both."""
        moving = self.scale != 0.0
        scale = tf.constant(np.where(moving, self.scale, 1.0), x.dtype)
        there = (value - tf.constant(self.offset, x.dtype)) / scale
        return tf.where((value == self.value(x)) | ~tf.constant(moving), x, there)


def split_clip(network: Network) -> tuple[Clip, Network] | None:
    """Returns the clip that a network begins with and the network behind it; None: it has none.

    That is a first map which scales and shifts each entry by itself, and then `relu`, a capped one
    or another clip. The network behind takes what comes out, between its limits.
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
        return None  # no move of x makes good what an entry is off by that it does not move
    low, high = (np.full(len(scale), limit) for limit in limits)
    errors = first.kernel_error, first.bias_error
    behind = Network(network.affines[1:], network.activations[1:])
    return Clip(scale, first.bias, low, high, *errors), behind


def layers(network: Network) -> dict[str, int | bool]:
    """Returns what a summary says of a network's layers; a clip that it begins with is none."""
    if split_clip(network) is None:
        return {"depth": network.depth}
    return {"depth": network.depth - 1, "clips_input": True}


def _limits(activation: str) -> tuple[float, float] | None:
    """Returns between which limits an activation of this name is z, and constant beyond."""
    if activation in ("relu", "relu6"):
        return 0.0, {"relu": np.inf, "relu6": 6.0}[activation]
    found = re.fullmatch(r"(?:capped_relu\(|clip\((\S+),)(\S+)\)", activation)
    return (float(found[1] or 0.0), float(found[2])) if found else None
