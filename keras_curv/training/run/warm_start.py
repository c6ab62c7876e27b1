"""Training that starts from what a finished model has learned."""

from __future__ import annotations

import math

import keras
import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.activation import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.clip import split_clip
from keras_curv.network.sparse_affine import as_array
from keras_curv.network.unitwise import IDENTITY
from keras_curv.reading.served_model import read
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.trainable_network import LiveNetwork

_INPUTS = 16  # at which both models are asked
_NONE = -1  # the place of a unit that there is not


def start_from(base: keras.Model, directory: str) -> None:
    """Gives the layers of the base the weights of a SavedModel.

    Args:
        base: as `Recipe.build` makes it.
        directory: of a model with the same layers, or with fewer units in some, or with all but the
            first ones that carry. What the base has beside keeps the weights that it has, and has
            no effect at first. What the model does to the input before its first layer, other than
            to clip it, is part of that one's weights.

    Raises:
        InputError: the directory cannot be read, or its layers are others.
    """
    network = read(directory).network
    split = split_clip(network)
    network = network if split is None else split[1]
    live = LiveNetwork(base, trunks=True)
    layers = [layer for layer in base.layers if layer.weights]
    inserted, known = layers[: -network.depth], layers[-network.depth :]
    fits = len(known) == network.depth and all(isinstance(layer, Carry) for layer in inserted)
    shapes = [live.input_shape, *(layer.output.shape[1:] for layer in layers)]
    sizes = tuple(map(math.prod, shapes))
    if not fits or sizes[0] != network.dim or sizes[-1] != network.classes:
        raise InputError(
            f"{directory} cannot be started from: its maps are between {network.sizes} entries, "
            f"those of the model to train between {sizes}; the latter may have more units and "
            "first layers that carry, and nothing else"
        )
    # Of the units that come into a layer (channels, into a convolution): their number in the
    # network, and their places there.
    count = layers[0].weights[0].shape[-2]
    places = _followed(np.arange(count), sum(layer.layer.units for layer in inserted))
    for layer, affine, activation in zip(
        known, network.affines, (*network.activations, None), strict=True
    ):
        if isinstance(layer, Carry):
            kernel, bias, after = _carried(affine, activation, places)
        else:
            if isinstance(layer, keras.layers.Conv2D):
                kernel, bias = _convolution(layer, affine)
            else:
                kernel, bias = _dense(base, affine, count)
            after = np.arange(bias.size)
        kernel_variable, bias_variable = layer.weights
        if kernel.shape[-1] <= kernel_variable.shape[-1]:
            _assign(kernel_variable, _rows(kernel, places, kernel_variable.shape[-2], count))
            _assign(bias_variable, bias)
        count = affine.fan_out if isinstance(layer, Carry) else bias.size
        places = _followed(after, bias_variable.shape[0] - bias.size)
    # Whatever was taken for a weight and is none, or did not fit, shows here.
    x = np.random.default_rng(0).uniform(0.0, 1.0, (_INPUTS, network.dim)).astype(np.float32)
    ours, theirs = live.logits(x.reshape(-1, *live.input_shape)), network.logits(x).numpy()
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max()):
        raise InputError(
            f"{directory} cannot be started from: its layers are not those of the model to train, "
            "with as many units or fewer"
        )


def _followed(places: np.ndarray, new: int) -> np.ndarray:
    """Returns the places, and after them those of new units, which there are not."""
    return np.append(places, np.full(max(new, 0), _NONE))


def _assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Gives the first columns these weights; where they do not fit, the variable stays."""
    if value.shape[:-1] == variable.shape[:-1]:
        weights = variable.numpy()
        weights[..., : value.shape[-1]] = value
        variable.assign(weights)


def _rows(kernel: np.ndarray, places: np.ndarray, rows: int, count: int) -> np.ndarray:
    """Returns the rows of the kernel for these units, and 0 where there are none.

    Args:
        kernel: `(…, n · count, out)`, of n positions of an image, or of one.
        places: of the units that come in, among `count`, at any one position.
        rows: how many to return.
        count: see `kernel`.
    """
    positions = np.arange(rows // len(places))[:, None]
    there = (places + count * positions).reshape(-1)
    none = np.tile(places == _NONE, len(positions))
    if len(there) != rows or len(positions) * count != kernel.shape[-2]:
        return kernel  # of another layer
    return np.where(none[:, None], 0.0, kernel[..., np.where(none, 0, there), :])


def _carried(
    affine: Affine, activation: Activation | None, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kernel and bias of the units that bend, and the places of all units of the layer."""
    groups = [] if activation is None else activation.groups
    units = np.arange(affine.fan_out)
    carry = np.concatenate([units[part] for sigma, part in groups if sigma is IDENTITY] or [units])
    bend = np.setdiff1d(units, carry)
    kernel = as_array(affine.kernel)
    carried_by = np.full(affine.fan_in, _NONE)
    carried_by[kernel[:, carry].argmax(axis=0)] = carry
    after = np.where(places == _NONE, _NONE, carried_by[places])
    return kernel[:, bend], affine.bias[bend], np.append(after, bend)


def _convolution(layer: keras.layers.Conv2D, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias, each tap from a place where it is inside of the image; padded as "same"."""
    (height, width), (down, across) = layer.input.shape[1:3], layer.output.shape[1:3]
    channels, filters = affine.fan_in // (height * width), affine.fan_out // (down * across)
    kernel = np.empty((*layer.kernel_size, channels, filters))
    for row, column in np.ndindex(*layer.kernel_size):
        above, below = _inside(row, layer.kernel_size[0], layer.strides[0], height, down)
        left, right = _inside(column, layer.kernel_size[1], layer.strides[1], width, across)
        seen = (above * width + left) * channels + np.arange(channels)
        there = (below * across + right) * filters + np.arange(filters)
        kernel[row, column] = as_array(affine.kernel[seen][:, there])
    return kernel, affine.bias[:filters]


def _inside(tap: int, taps: int, stride: int, size: int, count: int) -> tuple[int, int]:
    """Returns a place of the image, along one axis, that the tap sees, and from where."""
    before = max((count - 1) * stride + taps - size, 0) // 2
    place = min(max(-(-(before - tap) // stride), 0), count - 1)
    return min(max(place * stride - before + tap, 0), size - 1), place


def _dense(base: keras.Model, affine: Affine, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias, without the pooling in front that was multiplied into the map."""
    kernel = as_array(affine.kernel)
    for pool in base.layers:
        if isinstance(pool, keras.layers.AveragePooling2D):
            height, width = pool.input.shape[1:3]
            if affine.fan_in == height * width * channels:
                (down, across), (rows, columns) = pool.output.shape[1:3], pool.pool_size
                kernel = kernel.reshape(height, width, channels, -1)
                parts = kernel[: down * rows, : across * columns]
                parts = parts.reshape(down, rows, across, columns, channels, -1)
                kernel = parts.sum(axis=(1, 3)).reshape(down * across * channels, -1)
    return kernel, affine.bias
