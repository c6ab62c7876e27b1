"""A Keras model whose weights still move, read as a network: to train with, never to certify.

Certificates read the frozen graph, op by op (`reading/`). Training needs the same affine
maps and activations as functions of the variables, to differentiate through; so here the model
is read layer by layer, and what has no rule (see `layer_rules.py`) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, SMOOTH, Activation
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.clip_input import ClipInput
from keras_curv.training.trainable.graph.calls import Call, calls_of, in_a_row
from keras_curv.training.trainable.graph.flows import Flow, Source
from keras_curv.training.trainable.graph.layer_rules import CHANGES_IN_TRAINING, KEEPS_ENTRIES
from keras_curv.training.trainable.graph.live_map import live_maps
from keras_curv.training.trainable.graph.reading import known_activation, output_of
from keras_curv.training.trainable.snapshot import Snapshot
from keras_curv.training.trainable.trunk import Trunk

_layers = keras.layers
_HALF = ("float16", "bfloat16")
_ULPS = 2.0**-22  # a relative change of the size of rounding
_NOISE = 64.0  # times its effect on logits: the largest effect of sums in another order


class LiveNetwork:
    """Reads a Keras model as affine maps with activations between; see `now`.

    Args:
        model: built, with one input and one output of logits `(batch, classes)`. Where branches
            meet in Add, Subtract, Average or Concatenate, what is read further on is carried along.
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
        self.clip, calls = _split_clip(calls_of(model))
        self.trunk, calls = _split_trunk(calls, self.input_shape if trunks else None)
        shape = self.input_shape if self.trunk is None else self.trunk.output_shape
        output = output_of(calls, shape, activations)
        if not _is_affine(output):
            raise InputError(
                f"base must return logits, but {model.name!r} ends with the activation "
                f"{_last_activation(output)!r}; end it with Dense(classes) without an activation"
            )
        self.layers = [call.layer for call in calls]
        self.maps, activations_between = live_maps(output)
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
        self.activations = tuple(activations_between)
        self.is_dense = self.trunk is None and all(part.dense for part in self.maps)
        before = [] if self.trunk is None else self.trunk.layers
        self.as_in_training = all(map(_same_in_training, [*before, *self.layers]))
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
        """Compares logits with the model's, whose calls may have arguments that are not read."""
        x = np.random.default_rng(0).standard_normal((3, *self.input_shape))
        # Of the size of normalised inputs, and of pixels: what comes after Rescaling(1 / 255).
        x = np.concatenate([scale * x for scale in (1, 16, 256)]).astype(np.float32)
        theirs = np.asarray(model(x, training=False), np.float32)
        ours = self.logits(x if self.clip is None else np.asarray(self.clip(x)))
        known = np.isfinite(theirs).all(axis=1)  # an exponential overflows at the larger ones
        half = any(_dtype(call.layer) in _HALF for call in calls_of(model))
        allowed = (5e-2 if half else 1e-3) * (1.0 + np.abs(theirs).max(axis=1))
        # Sines that are fast pass on what float32 rounds away.
        nearby = np.asarray(model(x * np.float32(1.0 + _ULPS), training=False), np.float32)
        allowed += _NOISE * np.abs(nearby - theirs).max(axis=1)
        if not known.any() or not np.all((np.abs(ours - theirs).max(axis=1) <= allowed)[known]):
            raise InputError(
                f"the layers of {model.name!r} are called otherwise than training reads them: "
                "read so they give other logits than the model"
            )


def _same_in_training(layer: keras.layers.Layer) -> bool:
    """Returns whether the layer computes the same in training as in inference, in float32."""
    changes = (*CHANGES_IN_TRAINING, _layers.ActivityRegularization, _layers.BatchNormalization)
    inside = [layer.layer] if isinstance(layer, Carry) else []
    return (
        not isinstance(layer, changes)
        and _dtype(layer) == "float32"
        and getattr(layer, "activity_regularizer", None) is None
        and all(map(_same_in_training, inside))
    )


def _dtype(layer: keras.layers.Layer) -> str:
    """Returns what the layer computes in; an operation, in what it is given."""
    return getattr(layer, "compute_dtype", "float32")


def _is_affine(output: Flow) -> bool:
    """Returns whether anything but a change of shape is behind the last activation."""
    return any(not isinstance(flow.layer, KEEPS_ENTRIES) for flow in output.calls)


def _last_activation(output: Flow) -> str:
    sigma = output.sources[0].sigma
    return "of its input" if sigma is None else sigma.name


def _split_clip(calls: list[Call]) -> tuple[ClipInput | None, list[Call]]:
    """Returns the clip that the calls begin with, None without, and the other calls."""
    first = next((i for i, c in enumerate(calls) if not isinstance(c.layer, KEEPS_ENTRIES)), None)
    if first is None or type(calls[first].layer) is not ClipInput:
        return None, calls
    if any(min(call.inputs, default=0) <= first for call in calls[first + 1 :]):
        return None, calls
    clip, inputs, _ = calls[first]
    return clip, [*calls[:first], Call(_layers.Identity(), inputs), *calls[first + 1 :]]


def _split_trunk(
    calls: list[Call], shape: tuple[int, ...] | None
) -> tuple[Trunk | None, list[Call]]:
    """Returns the trunk, the layers up to the last kink if smooth ones follow, and other calls.

    Args:
        calls: without a clip.
        shape: of what goes in; None: there is to be no trunk.
    """
    carries = any(isinstance(call.layer, Carry) for call in calls)
    if shape is None or carries or not in_a_row(calls):
        return None, calls
    layers = [call.layer for call in calls]
    bends = [(i, known_activation(layer, ACTIVATIONS)) for i, layer in enumerate(layers)]
    kinks = [i for i, sigma in bends if sigma is not None and not sigma.smooth]
    smooth = [i for i, sigma in bends if sigma is not None and sigma.smooth]
    if not kinks or not smooth or max(smooth) < max(kinks):
        return None, calls
    first, others = layers[: max(kinks) + 1], layers[max(kinks) + 1 :]
    features = output_of(_chain(first), shape, ACTIVATIONS)
    assert isinstance(features, Source) and features.before and features.sigma  # it ends with one
    maps, sigmas = live_maps(features.before)
    slopes = [sigma.steepest for sigma in (*sigmas, features.sigma)]
    return Trunk(list(zip(maps, slopes, strict=True)), first), _chain(others)


def _chain(layers: list[keras.layers.Layer]) -> list[Call]:
    return [Call(layer, (i,)) for i, layer in enumerate(layers)]
