"""A layer that clips the input of its classifier."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.clip import Clip


@keras.saving.register_keras_serializable(package="keras_curv")
class ClipInput(keras.layers.Layer):
    """Clips to `[low, high]`, and moves values near either limit to the limit itself.

        T(x) = clip((x − c)/(1 − 2a) + c, low, high),    c = (low + high)/2

    An input within `a · (high − low)` of a limit, or beyond it, becomes the limit: a dead zone,
    through which every attack must go before the classifier sees anything of it. With a = 0 it is
    `clip(x, low, high)`. To be the first layer of a model; certificates are for unrestricted δ.

    Args:
        low, high: limits, low < high.
        dead_zone: a, from 0 to below ½.

    Raises:
        InputError: an argument out of range.

    Example:
        >>> ClipInput(dead_zone=0.1)(np.array([[-1.0, 0.1, 0.3, 0.5, 2.0]])).numpy().round(4)
        array([[0.  , 0.  , 0.25, 0.5 , 1.  ]], dtype=float32)
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, dead_zone: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"low must be below high, both finite. Received: {low}, {high}")
        if not 0.0 <= dead_zone < 0.5:
            raise InputError(f"dead_zone must be from 0 to below 0.5. Received: {dead_zone}")
        self.low, self.high, self.dead_zone = float(low), float(high), float(dead_zone)
        self.scale = 1.0 / (1.0 - 2.0 * self.dead_zone)
        self.offset = (1.0 - self.scale) * (self.low + self.high) / 2.0

    def call(self, x: Any) -> Any:
        """Returns T(x), of the shape of x."""
        if self.dead_zone:
            x = x * self.scale + self.offset
        return keras.ops.clip(x, self.low, self.high)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns the shape of x."""
        return input_shape

    def inverse(self, value: Any) -> Any:
        """Returns an x that `call` maps to a value within the limits."""
        return (value - self.offset) / self.scale if self.dead_zone else value

    def clip(self, dim: int) -> Clip:
        """Returns the layer as mathematics, for flattened inputs of so many entries."""
        return Clip(
            *np.multiply.outer([self.scale, self.offset, self.low, self.high], np.ones(dim))
        )

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        own = {"low": self.low, "high": self.high, "dead_zone": self.dead_zone}
        return {**super().get_config(), **own}
