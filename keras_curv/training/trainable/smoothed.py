"""A Keras model made smooth, to be trained until its radii can be proved.

Not to be confused with randomized smoothing (`certificates/smoothing/`).
"""

from __future__ import annotations

from typing import NamedTuple

import keras

from keras_curv.errors import InputError, require_one_of
from keras_curv.network.activations import SMOOTH
from keras_curv.training.trainable.counterparts import RELU, Counterpart, counterpart
from keras_curv.training.trainable.graph.calls import layers_in_order


class Change(NamedTuple):
    """What a layer was and what takes its place; both are names."""

    layer: str
    before: str
    after: str


class Changes(tuple[Change, ...]):
    """The changes of `smoothed`, in the order of the layers; printed as a table."""

    def __str__(self) -> str:
        """Returns the table, a line for each layer."""
        lines = [Change("layer", "before", "after"), *self]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def smoothed(model: keras.Model, activation: str = RELU) -> keras.Model:
    """Returns a clone of a model with its weights, without kinks, that `CRTModel` can train.

    ReLU and all that resembles it become `activation`, max pooling becomes average pooling, and
    saturating activations with kinks become those without, as hard_sigmoid sigmoid. Left out are a
    softmax at the end, as training takes logits, and layers that augment images, which do nothing
    at inference: augment the data before the model. `smoothed_changes` lists what changes. Until it
    is trained the clone answers otherwise than the model: little with "gelu", much with "softplus".

    Args:
        model: built, a `keras.Sequential` or `keras.Model(inputs, outputs)`, or such models in
            one another. It stays as it is.
        activation: a smooth one by its name, "gelu", "softplus", "silu" or any other in
            docs/methods.md.

    Returns:
        The clone; its layers have the names of the model's.

    Raises:
        InputError: a layer or an activation has a kink and no smooth counterpart, or the model
            has a `call` of its own.

    Example:
        >>> relu = keras.layers.Dense(8, "relu", name="hidden")
        >>> model = keras.Sequential([keras.Input((4,)), relu, keras.layers.Dense(3)])
        >>> smoothed(model).get_layer("hidden").activation.__name__
        'gelu'
    """
    clones = []

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        clones.append((layer, _counterpart(layer, model, activation).layer))
        return clones[-1][1]

    _require(model, activation)
    smooth = keras.models.clone_model(model, clone_function=clone, recursive=True)
    for layer, its_clone in clones:
        if getattr(its_clone, "weights", None):
            its_clone.set_weights(layer.get_weights())
        if isinstance(its_clone, keras.layers.Normalization):
            its_clone.finalize_state()
    return smooth


def smoothed_changes(model: keras.Model, activation: str = RELU) -> Changes:
    """Returns what `smoothed` changes, as a table to print.

    Args:
        model: as for `smoothed`.
        activation: as for `smoothed`.

    Returns:
        A tuple of `(layer, before, after)`, all of them names.

    Raises:
        InputError: see `smoothed`.

    Example:
        >>> relu = keras.layers.Dense(8, "relu", name="hidden")
        >>> model = keras.Sequential([keras.Input((4,)), relu, keras.layers.Dense(3)])
        >>> print(smoothed_changes(model))
        layer   before  after
        hidden  relu    gelu
    """
    _require(model, activation)
    found = [
        (layer.name, _counterpart(layer, model, activation)) for layer in layers_in_order(model)
    ]
    return Changes(Change(name, *one[1:]) for name, one in found if one.before != one.after)


def _require(model: keras.Model, activation: str) -> None:
    """InputError unless the model can be cloned layer by layer, and the activation is smooth."""
    require_one_of(activation, tuple(SMOOTH), "activation")
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise InputError(
            f"smoothed takes a built Keras model: give it an Input. Received: {model!r}"
        )
    layers_in_order(model)


def _counterpart(layer: keras.layers.Layer, model: keras.Model, activation: str) -> Counterpart:
    ends = len(model.outputs) == 1 and layer is layers_in_order(model)[-1]
    return counterpart(layer, activation, ends)
