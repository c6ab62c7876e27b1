"""Training that starts from what a finished model has learned."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.clip import split_clip
from keras_curv.reading.saved_model import read
from keras_curv.training.live import LiveNetwork

_INPUTS = 16  # at which both models are asked


def start_from(base: keras.Model, directory: str) -> None:
    """Gives the layers of the base the weights of a SavedModel.

    Args:
        base: as `Recipe.build` makes it.
        directory: of a model with the same layers; what it does to the input before the first
            one, other than to clip it, is part of that one's weights.

    Raises:
        InputError: the directory cannot be read, or its layers are others.
    """
    network = read(directory).network
    split = split_clip(network)
    network = network if split is None else split[1]
    layers = [layer for layer in base.layers if layer.weights]
    live = LiveNetwork(base)
    if live.sizes != network.sizes or len(layers) != len(network.affines):
        raise InputError(
            f"{directory} cannot be started from: its maps are between {network.sizes} entries, "
            f"those of the model to train between {live.sizes}, which must be the same"
        )
    for layer, affine in zip(layers, network.affines, strict=True):
        weights = _convolution if isinstance(layer, keras.layers.Conv2D) else _dense
        for variable, value in zip(layer.weights, weights(base, layer, affine), strict=True):
            if value.shape == variable.shape:
                variable.assign(np.asarray(value, np.float32))
    # Whatever was taken for a weight and is none, or did not fit, shows here.
    x = np.random.default_rng(0).uniform(0.0, 1.0, (_INPUTS, network.dim)).astype(np.float32)
    ours, theirs = live.now().logits(x).numpy(), network.logits(x).numpy()
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max()):
        raise InputError(
            f"{directory} cannot be started from: its layers are not those of the model to train"
        )


def _convolution(
    base: keras.Model, layer: keras.layers.Conv2D, affine: Affine
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias, each tap from a place where it is inside of the image; padded as "same"."""
    (height, width), channels = layer.input.shape[1:3], layer.input.shape[3]
    (down, across), filters = layer.output.shape[1:3], layer.output.shape[3]
    kernel = np.empty(layer.kernel.shape)
    for row, column in np.ndindex(*layer.kernel_size):
        above, below = _inside(row, layer.kernel_size[0], layer.strides[0], height, down)
        left, right = _inside(column, layer.kernel_size[1], layer.strides[1], width, across)
        seen = (above * width + left) * channels + np.arange(channels)
        there = (below * across + right) * filters + np.arange(filters)
        kernel[row, column] = _array(affine.kernel[seen][:, there])
    return kernel, affine.bias[:filters]


def _inside(tap: int, taps: int, stride: int, size: int, count: int) -> tuple[int, int]:
    """Returns a place of the image, along one axis, that the tap sees, and from where."""
    before = max((count - 1) * stride + taps - size, 0) // 2
    place = min(max(-(-(before - tap) // stride), 0), count - 1)
    return min(max(place * stride - before + tap, 0), size - 1), place


def _dense(
    base: keras.Model, layer: keras.layers.Dense, affine: Affine
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias, without the pooling in front that was multiplied into the map."""
    kernel = _array(affine.kernel)
    for pool in base.layers:
        if isinstance(pool, keras.layers.AveragePooling2D):
            height, width, channels = pool.input.shape[1:]
            if affine.fan_in == height * width * channels:
                (down, across), (rows, columns) = pool.output.shape[1:3], pool.pool_size
                kernel = kernel.reshape(height, width, channels, -1)
                parts = kernel[: down * rows, : across * columns]
                parts = parts.reshape(down, rows, across, columns, channels, -1)
                kernel = parts.sum(axis=(1, 3)).reshape(down * across * channels, -1)
    return kernel, affine.bias


def _array(kernel: Any) -> np.ndarray:
    return kernel.toarray() if scipy.sparse.issparse(kernel) else kernel
