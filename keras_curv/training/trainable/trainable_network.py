"""A Keras model whose weights still move, read as a network: to train with, never to certify.

Certificates read the frozen graph, op by op (`reading/`). Training needs the same affine
maps and activations as functions of the variables, to differentiate through; so here the model
is read layer by layer, and what has no rule (see `affine_layers.py`) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, SMOOTH, Activation
from keras_curv.training.trainable.affine_layers import (
    AFFINE,
    CHANGES_IN_TRAINING,
    KEEPS_ENTRIES,
    AffineLayers,
    CarriedLayers,
)
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.clip_input import ClipInput
from keras_curv.training.trainable.counterparts import instead, smoother
from keras_curv.training.trainable.keras_functions import name_of
from keras_curv.training.trainable.snapshot import Snapshot
from keras_curv.training.trainable.trunk import Trunk

_layers = keras.layers
_HALF = ("float16", "bfloat16")
_ULPS = 2.0**-22  # a relative change of the size of rounding
_NOISE = 64.0  # times its effect on logits: the largest effect of sums in another order
# The only values of these settings that training reads. TensorFlow has no second gradient of other
# interpolations, and says so of some only.
_USUAL = {"groups": 1, "interpolation": "nearest", "data_format": "channels_last"}


class LiveNetwork:
    """Reads a Keras model as affine maps with activations between; see `now`.

    Args:
        model: built, with one input, one output of logits `(batch, classes)`, and layers in a
            plain chain.
        activations: those that it may have, by name; all smooth ones by default.
        outputs: how many it has at least.
        trunks: whether layers with kinks in front of smooth ones are a trunk.

    Attributes:
        clip: the `ClipInput` that the model begins with, None where it does not; the network is
            what comes after it.
        trunk: the layers up to the last kink, if smooth ones follow and `trunks` is set; the
            network is what comes after them.
        layers: those of the network, as Keras has them.
        as_in_training: whether a base in training computes the same as the network, in float32.
        is_dense: whether all maps are those of one dense layer each, and there is no trunk.

    Raises:
        InputError: the model is not built, or has a layer, an activation or an output for
            which there is no rule; the message names it.

    Example:
        >>> dense = keras.layers.Dense
        >>> model = keras.Sequential([keras.Input((4,)), dense(8, "softplus"), dense(3)])
        >>> LiveNetwork(model).now().sizes
        (4, 8, 3)
    """

    def __init__(
        self,
        model: keras.Model,
        activations: Mapping[str, Activation] = SMOOTH,
        outputs: int = 2,
        trunks: bool = False,
    ):
        inputs = getattr(model, "inputs", None)
        if not isinstance(model, keras.Model) or not inputs:
            raise InputError(
                f"base must be a built Keras model: give it an Input. Received: {model!r}"
            )
        if len(inputs) != 1 or len(model.outputs) != 1:
            raise InputError(
                "base must have one input and one output. Received: "
                f"{len(inputs)} inputs, {len(model.outputs)} outputs in {model.name!r}"
            )
        self.input_shape = tuple(inputs[0].shape[1:])
        if None in self.input_shape:
            raise InputError(
                "base must know its input shape, all but the batch. "
                f"Received: {inputs[0].shape} in {model.name!r}"
            )
        if not tf.as_dtype(inputs[0].dtype).is_floating:
            raise InputError(
                f"base must take floats. Received: {inputs[0].dtype} in {model.name!r}; "
                "convert the data before"
            )
        self.clip, layers = _split_clip(layers_in_order(model))
        self.trunk, self.layers = _split_trunk(layers, self.input_shape if trunks else None)
        shape = self.input_shape if self.trunk is None else self.trunk.output_shape
        parts, pending = _parts(self.layers, shape, activations)
        self.maps: list[AffineLayers | CarriedLayers] = [part for part, _ in parts]
        self._activations = [activation for _, activation in parts]
        shape = self.maps[-1].output_shape if self.maps else shape
        if not any(isinstance(layer, AFFINE) for layer in pending):
            raise InputError(
                f"base must return logits, but {model.name!r} ends with the activation "
                f"{self._activations[-1].name if self._activations else 'of its input'!r}; "
                "end it with Dense(classes) without an activation"
            )
        self.maps.append(AffineLayers(pending, shape))
        output_shape = self.maps[-1].output_shape
        if len(output_shape) != 1 or output_shape[0] < outputs:
            wanted = (
                "logits (batch, classes) of at least two classes; CRTRegressor takes one number"
            )
            raise InputError(
                f"base must return {wanted if outputs > 1 else 'numbers (batch, outputs)'}. "
                f"Received: {(None, *output_shape)} from {model.name!r}"
            )
        self.sizes = (*(part.fan_in for part in self.maps), output_shape[0])
        self.activations = tuple(self._activations)
        self.is_dense = self.trunk is None and all(part.dense for part in self.maps)
        self.as_in_training = all(map(_same_in_training, layers))
        self._check(model)

    def now(self) -> Snapshot:
        """Returns the network with the weights of this moment, differentiable in the variables."""
        return Snapshot(self.sizes, self.activations, self.maps)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Returns the network's logits at inputs behind the clip, `(n, *input_shape)`."""
        if self.trunk is not None:
            x = np.asarray(self.trunk.features(x), np.float32)

        def logits(flat: tf.Tensor) -> tf.Tensor:
            return self.now().logits(flat)

        if any(part.is_structured for part in self.maps):
            # In graph, where nothing makes a convolution's matrix that nothing asks for.
            logits = tf.function(logits, autograph=False)
        return logits(tf.constant(x.reshape(len(x), -1))).numpy()

    def _check(self, model: keras.Model) -> None:
        """Compares logits with the model's, whose layers may be wired otherwise than in a chain."""
        x = np.random.default_rng(0).standard_normal((3, *self.input_shape))
        # Of the size of normalised inputs, and of pixels: what comes after Rescaling(1 / 255).
        x = np.concatenate([scale * x for scale in (1, 16, 256)]).astype(np.float32)
        theirs = np.asarray(model(x, training=False), np.float32)
        ours = self.logits(x if self.clip is None else np.asarray(self.clip(x)))
        known = np.isfinite(theirs).all(axis=1)  # an exponential overflows at the larger ones
        half = any(layer.compute_dtype in _HALF for layer in layers_in_order(model))
        allowed = (5e-2 if half else 1e-3) * (1.0 + np.abs(theirs).max(axis=1))
        # Sines that are fast pass on what float32 rounds away.
        nearby = np.asarray(model(x * np.float32(1.0 + _ULPS), training=False), np.float32)
        allowed += _NOISE * np.abs(nearby - theirs).max(axis=1)
        if not known.any() or not np.all((np.abs(ours - theirs).max(axis=1) <= allowed)[known]):
            raise InputError(
                f"the layers of {model.name!r} are not a plain chain: read one after the other "
                "they give other logits than the model"
            )


def _same_in_training(layer: keras.layers.Layer) -> bool:
    """Returns whether the layer computes the same in training as in inference, in float32."""
    changes = (*CHANGES_IN_TRAINING, _layers.ActivityRegularization, _layers.BatchNormalization)
    inside = [layer.layer] if isinstance(layer, Carry) else []
    return (
        not isinstance(layer, changes)
        and layer.compute_dtype == "float32"
        and getattr(layer, "activity_regularizer", None) is None
        and all(map(_same_in_training, inside))
    )


def layers_in_order(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns layers and operations in order, those of nested models in their place."""
    if not type(model).call.__module__.startswith("keras."):
        raise InputError(
            f"base has a `call` of its own in {model.name!r} ({type(model).__name__}), which may "
            "do anything; use keras.Sequential or keras.Model(inputs, outputs)"
        )
    layers = []
    for layer in getattr(model, "operations", model.layers):
        layers += layers_in_order(layer) if isinstance(layer, keras.Model) else [layer]
    return layers


def _split_clip(
    layers: list[keras.layers.Layer],
) -> tuple[ClipInput | None, list[keras.layers.Layer]]:
    """Returns the clip that the layers begin with, None without, and the other layers."""
    first = next((layer for layer in layers if not isinstance(layer, KEEPS_ENTRIES)), None)
    if type(first) is not ClipInput:
        return None, layers
    return first, [layer for layer in layers if layer is not first]


def _split_trunk(
    layers: list[keras.layers.Layer], shape: tuple[int, ...] | None
) -> tuple[Trunk | None, list[keras.layers.Layer]]:
    """Returns the trunk, the layers up to the last kink if smooth ones follow, and the others.

    Args:
        layers: without a clip.
        shape: of what goes in; None: there is to be no trunk.
    """
    if shape is None or any(isinstance(layer, Carry) for layer in layers):
        return None, layers
    bends = [(i, _known(layer, ACTIVATIONS)) for i, layer in enumerate(layers)]
    kinks = [i for i, sigma in bends if sigma is not None and not sigma.smooth]
    smooth = [i for i, sigma in bends if sigma is not None and sigma.smooth]
    if not kinks or not smooth or max(smooth) < max(kinks):
        return None, layers
    first, others = layers[: max(kinks) + 1], layers[max(kinks) + 1 :]
    parts, _ = _parts(first, shape, ACTIVATIONS)
    return Trunk([(part, sigma.steepest) for part, sigma in parts], first), others


def _parts(
    layers: list[keras.layers.Layer], shape: tuple[int, ...], table: Mapping[str, Activation]
) -> tuple[list[tuple[AffineLayers | CarriedLayers, Activation]], list[keras.layers.Layer]]:
    """Returns the affine maps, each with the activation behind it, and the layers after the last.

    Raises:
        InputError: a layer has no rule; it is named.
    """
    parts: list[tuple[AffineLayers | CarriedLayers, Activation]] = []
    pending: list[keras.layers.Layer] = []
    for layer in layers:
        activation = _activation(layer, table)
        if not isinstance(layer, (_layers.Activation, Carry)):
            pending.append(layer)
        if activation is not None:
            part = (
                CarriedLayers(pending, layer, shape)
                if isinstance(layer, Carry)
                else AffineLayers(pending, shape)
            )
            parts.append((part, part.activation(activation)))
            shape, pending = part.output_shape, []
    return parts, pending


def _known(layer: keras.layers.Layer, table: Mapping[str, Activation]) -> Activation | None:
    """Returns the layer's activation, None without one and for one not in the table."""
    name = name_of(getattr(layer, "activation", None))
    return None if name is None else table.get(name)


def _activation(layer: keras.layers.Layer, table: Mapping[str, Activation]) -> Activation | None:
    """Returns the layer's activation, None where it is affine; refuses layers without a rule."""
    known = (*KEEPS_ENTRIES, *AFFINE, _layers.Activation, Carry)
    # A subclass may do anything in its call.
    settings = {name: getattr(layer, name, usual) for name, usual in _USUAL.items()}
    unusual = [f"{name}={value!r}" for name, value in settings.items() if value != _USUAL[name]]
    if type(layer) not in known or unusual:
        having = f" with {', '.join(unusual)}" if unusual else ""
        usual = ", ".join(f"{name}={_USUAL[name]!r}" for name in _USUAL if name in having)
        raise InputError(
            f"base has the layer {layer.name!r} ({type(layer).__name__}){having}, which training "
            f"cannot read; {f'it reads {usual}' if unusual else instead(layer)}"
        )
    if isinstance(layer, Carry):
        activation = _activation(layer.layer, table)
        if activation is None:
            raise InputError(
                f"{layer.layer.name!r} has no activation, and Carry needs a layer with one"
            )
        return activation
    function = getattr(layer, "activation", None)
    if function is None or function is keras.activations.linear:
        return None
    activation = _known(layer, table)
    if activation is not None:
        return activation
    name = getattr(function, "__name__", str(function))
    hint = f"supported: {', '.join(table)}"
    if name in ("softmax", "log_softmax"):
        hint = "base must return logits: leave the softmax out"
    elif smooth := smoother(name_of(function) or ""):
        hint = f"{name} → {smooth}, which keras_curv.smoothed(model) puts there"
    raise InputError(
        f"base has the activation {name!r} in layer {layer.name!r}, which this "
        f"training has no theory for; {hint}"
    )
