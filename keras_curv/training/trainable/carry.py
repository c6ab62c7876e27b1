"""A layer that passes its input on, so that a deeper network can be any shallower one."""

from __future__ import annotations

from typing import Any

import keras

from keras_curv.errors import InputError


@keras.saving.register_keras_serializable(package="keras_curv")
class Carry(keras.layers.Layer):
    """Passes its input on beside the output of a dense layer: `[x, σ(x W + b)]`.

    In a row of layers it is what Concatenate of x and Dense is in a graph, and is trained as that.

    Where the next layer gives the new units no weight, the network and every bound of its curvature
    are those without them, and both are continuous in that weight: depth is used where it pays.
    Several in a row each see the outputs of all before them.

    Args:
        layer: a `keras.layers.Dense`.

    Raises:
        InputError: another layer.

    Example:
        >>> dense = keras.layers.Dense
        >>> hidden = [Carry(dense(3, "softplus")), dense(8, "softplus")]
        >>> model = keras.Sequential([keras.Input((4,)), *hidden, dense(2)])
        >>> [tuple(layer.output.shape) for layer in model.layers]
        [(None, 7), (None, 8), (None, 2)]

    Reference: Huang, Liu, van der Maaten & Weinberger, "Densely connected convolutional networks"
    (2017), for the concatenation; docs/mathematics.md for the bounds.
    """

    def __init__(self, layer: keras.layers.Dense, **kwargs: Any):
        super().__init__(**kwargs)
        if type(layer) is not keras.layers.Dense:
            raise InputError(f"Carry takes a keras.layers.Dense. Received: {layer!r}")
        self.layer = layer

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Builds the layer inside."""
        if not self.layer.built:
            self.layer.build(input_shape)

    def call(self, x: Any) -> Any:
        """Returns both, `(…, n)` → `(…, n + units)`."""
        return keras.ops.concatenate([x, self.layer(x)], axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns the shape of what `call` returns."""
        return *input_shape[:-1], input_shape[-1] + self.layer.units

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return {
            **super().get_config(),
            "layer": keras.saving.serialize_keras_object(self.layer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Carry:
        """Returns the layer, with fresh weights."""
        layer = keras.saving.deserialize_keras_object(config["layer"])
        return cls(**{**config, "layer": layer})
