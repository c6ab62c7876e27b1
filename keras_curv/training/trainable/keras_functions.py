"""The functions that Keras layers take as the activations of the table, and their names.

Most are Keras' own. Those that it has no name for are registered here: a layer with one of them
comes back from a `.keras` file, where a layer with an op of `keras.ops` or of TensorFlow does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_curv.network.activations import ACTIVATIONS


@keras.saving.register_keras_serializable(package="keras_curv")
def sin(x: Any) -> Any:
    """Returns sin x, entry by entry.

    Example:
        >>> keras.layers.Dense(2, activation=sin).activation(tf.constant([0.0, 0.5])).numpy()
        array([0.        , 0.47942555], dtype=float32)
    """
    return keras.ops.sin(x)


@keras.saving.register_keras_serializable(package="keras_curv")
def absolute(x: Any) -> Any:
    """Returns |x|, entry by entry; gradients keep their length.

    Example:
        >>> keras.layers.Dense(2, activation=absolute).activation(tf.constant([-1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    return keras.ops.abs(x)


@keras.saving.register_keras_serializable(package="keras_curv")
def gelu_tanh(x: Any) -> Any:
    """Returns the approximation of GELU by a tanh, entry by entry.

    Example:
        >>> gelu_tanh(tf.constant([-1.0, 2.0])).numpy().round(4)
        array([-0.1588,  1.9546], dtype=float32)

    Reference: Hendrycks & Gimpel, "Gaussian error linear units" (2016).
    """
    return keras.activations.gelu(x, approximate=True)


_OURS = {"sin": sin, "abs": absolute, "gelu_tanh": gelu_tanh}
_BY_NAME: dict[str, Callable] = {
    name: _OURS.get(name) or getattr(keras.activations, name) for name in ACTIVATIONS
}
_OPS = {"sin": (keras.ops.sin, tf.sin), "abs": (keras.ops.abs, keras.ops.absolute, tf.abs)}


def in_keras(name: str) -> Callable:
    """Returns the function that a Keras layer takes as this activation of the table."""
    return _BY_NAME[name]


def name_of(function: Any) -> str | None:
    """Returns the table's name of a function that a layer has; None if it is in no table.

    Example:
        >>> name_of(keras.activations.softplus), name_of(tf.sin), name_of(keras.activations.softmax)
        ('softplus', 'sin', None)
    """
    named = [(name, (in_keras(name), *_OPS.get(name, ()))) for name in ACTIVATIONS]
    # What a layer has may be equal to others, or have no hash.
    return next((name for name, known in named if any(function is one for one in known)), None)
