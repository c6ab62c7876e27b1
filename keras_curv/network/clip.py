"""The clip that a classifier begins with: a scaled and shifted input, held within limits."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError


@dataclasses.dataclass(frozen=True)
class Clip:
    """`T(x)_i = min(max(scale_i x_i + offset_i, low_i), high_i)`, the classifier being f ∘ T.

    Attributes:
        scale, offset: `(dim,)`, finite.
        low, high: `(dim,)`, `low ≤ high`; either may be infinite.

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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = np.asarray(getattr(self, field.name), np.float64)
            object.__setattr__(self, field.name, value)
        if not (np.isfinite(self.scale).all() and np.isfinite(self.offset).all()):
            raise InputError("what is clipped must be the input times and plus finite numbers")
        if not np.all(self.low <= self.high) or np.any(np.isposinf(self.low)):
            raise InputError("the input is clipped to limits of which the lower is not the smaller")
        if np.any(np.isneginf(self.high)):
            raise InputError("the input is clipped to limits of which the upper is −∞")

    @property
    def dim(self) -> int:
        """Entries of a flattened input."""
        return len(self.scale)

    def unclipped(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `scale x + offset`, in the dtype of `x`, `(…, dim)`."""
        return x * tf.constant(self.scale, x.dtype) + tf.constant(self.offset, x.dtype)

    def value(self, x: tf.Tensor) -> tf.Tensor:
        """Returns T(x), in the dtype of `x`, `(…, dim)`."""
        low, high = (tf.constant(limit, x.dtype) for limit in (self.low, self.high))
        return tf.minimum(tf.maximum(self.unclipped(x), low), high)

    @property
    def cost(self) -> np.ndarray:
        """How far x_i must move for T(x)_i to move by 1: `1/|scale_i|`; 1 for a scale of 0."""
        moving = self.scale != 0.0
        return 1.0 / np.abs(np.where(moving, self.scale, 1.0))
