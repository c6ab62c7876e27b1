"""Smooth counterparts of layers and activations with kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_curv.errors import InputError
from keras_curv.network.activations import SMOOTH
from keras_curv.training.trainable.keras_functions import in_keras, name_of

_layers = keras.layers
RELU = "gelu"  # what takes the place of relu, unless told otherwise: it is the closest to it
AVERAGES = {
    _layers.MaxPooling1D: _layers.AveragePooling1D,
    _layers.MaxPooling2D: _layers.AveragePooling2D,
    _layers.MaxPooling3D: _layers.AveragePooling3D,
    _layers.GlobalMaxPooling1D: _layers.GlobalAveragePooling1D,
    _layers.GlobalMaxPooling2D: _layers.GlobalAveragePooling2D,
    _layers.GlobalMaxPooling3D: _layers.GlobalAveragePooling3D,
}
_INSTEAD = {  # of layers, and operations of a functional model, that have no counterpart
    "Maximum": "Average",
    "Minimum": "Average",
    "MaxPool": "the layer AveragePooling2D",
    "Absolute": "a smooth activation, as gelu,",
    "Abs": "a smooth activation, as gelu,",
}
_RELU_LIKE = ("ReLU", "LeakyReLU", "PReLU", "Relu", "Relu6", "LeakyRelu")  # and those that compute
_SMOOTHER = {  # None: what was chosen
    "relu": None,
    "relu6": None,
    "leaky_relu": None,
    "selu": "elu",
    "hard_sigmoid": "sigmoid",
    "sparse_sigmoid": "sigmoid",
    "hard_tanh": "tanh",
    "hard_silu": "silu",
}
_AUGMENTS = (  # which return images as they are at inference
    _layers.RandomBrightness,
    _layers.RandomContrast,
    _layers.RandomFlip,
    _layers.RandomRotation,
    _layers.RandomTranslation,
    _layers.RandomZoom,
)
_PUTS = ", which keras_curv.smoothed(model) puts there"
_PROBABILITIES = ("softmax", "log_softmax")


class Counterpart(NamedTuple):
    """A layer's clone, and what it was and is: the same where nothing has changed."""

    layer: Any
    before: str
    after: str


def counterpart(layer: Any, activation: str, ends: bool) -> Counterpart:
    """Returns a clone of a layer or an operation, with fresh weights, smooth if that was not.

    Args:
        layer: of a model, not a model itself.
        activation: what takes the place of all that resembles relu, a name of `SMOOTH`.
        ends: whether the model ends with it: then its softmax is left out.

    Raises:
        InputError: it has no smooth counterpart.
    """
    kind, name = type(layer), type(layer).__name__
    if kind in AVERAGES:
        average = AVERAGES[kind]
        return Counterpart(average.from_config(layer.get_config()), name, average.__name__)
    if name in _INSTEAD or getattr(layer, "threshold", None):
        works = _INSTEAD.get(name, "ReLU without a threshold")
        raise _without(f"the layer {layer.name!r} ({name})", works)
    if isinstance(getattr(layer, "layer", None), _layers.Layer):
        inside = counterpart(layer.layer, activation, ends=False)
        config = layer.get_config()
        config["layer"] = keras.saving.serialize_keras_object(inside.layer)
        return inside._replace(layer=kind.from_config(config))
    if name in _RELU_LIKE or (kind is _layers.ELU and layer.alpha != 1.0):
        return _function(layer, name, activation)
    if kind is _layers.ELU:
        return _function(layer, name, "elu")
    if kind in _AUGMENTS or (kind is _layers.Softmax and ends):
        return _function(layer, name, "linear")
    before, after = _names(layer, activation, ends)
    config = layer.get_config()
    if after != before:
        config["activation"] = keras.activations.serialize(_in_keras(after))
    return Counterpart(kind.from_config(config), before, after)


def instead(layer: Any) -> str:
    """Returns what training reads in the place of a layer, to end a sentence with.

    Example:
        >>> instead(keras.layers.MaxPooling2D())
        'MaxPooling2D → AveragePooling2D, which keras_curv.smoothed(model) puts there'
    """
    name = type(layer).__name__
    if average := AVERAGES.get(type(layer)):
        return f"{name} → {average.__name__}{_PUTS}"
    if name in (*_RELU_LIKE, "ELU"):
        return f"{name} → Activation({RELU!r}){_PUTS}"
    if isinstance(layer, _layers.Softmax):
        return "base must return logits: leave it out, as keras_curv.smoothed(model) does"
    if name in ("Maximum", "Minimum"):
        return f"{name} → {_INSTEAD[name]}"
    if name in ("Multiply", "Dot", "Attention", "MultiHeadAttention"):
        return "products can be certified, but not trained: Add, Subtract, Average or Concatenate"
    if name.startswith("Random"):
        advice = "augment the data before the model"
        left_out = f"{advice}; keras_curv.smoothed(model) leaves it out"
        return left_out if type(layer) in _AUGMENTS else advice
    return (
        "in its place Dense, Conv1D or Conv2D, AveragePooling, BatchNormalization or any other of "
        "docs/methods.md#training"
    )


def smoother(name: str) -> str | None:
    """Returns the smooth activation that `smoothed` puts in the place of one; None: there is none.

    Example:
        >>> smoother("relu"), smoother("hard_tanh"), smoother("abs")
        ('gelu', 'tanh', None)
    """
    return (_SMOOTHER[name] or RELU) if name in _SMOOTHER else None


def _names(layer: Any, activation: str, ends: bool) -> tuple[str, str]:
    """Returns the names of a layer's activation and of its smooth one."""
    function = getattr(layer, "activation", None)
    if not callable(function):
        return "", ""
    name = name_of(function) or getattr(function, "__name__", str(function))
    if name in _PROBABILITIES:
        return name, "linear" if ends else name
    if name == "linear" or name in SMOOTH:
        return name, name
    if name not in _SMOOTHER:
        what = f"the activation {name!r} in layer {layer.name!r}"
        raise _without(what, ", ".join(SMOOTH))
    return name, _SMOOTHER[name] or activation


def _function(layer: Any, before: str, after: str) -> Counterpart:
    """Returns a layer that computes the activation, in the place of another."""
    dtype = getattr(layer, "dtype_policy", None)
    return Counterpart(
        _layers.Activation(_in_keras(after), name=layer.name, dtype=dtype), before, after
    )


def _in_keras(name: str) -> Callable:
    return keras.activations.linear if name == "linear" else in_keras(name)


def _without(what: str, instead: str) -> InputError:
    return InputError(f"{what} has no smooth counterpart; what would work: {instead}")
