"""Training that starts from what a finished model has learned."""

from __future__ import annotations

import keras
import numpy as np

from keras_curv.errors import InputError
from keras_curv.network.clip import split_clip
from keras_curv.reading.saved_model import read


def start_from(base: keras.Model, directory: str) -> None:
    """Gives the dense layers of the base the weights of a SavedModel.

    Args:
        base: whose layers with weights are all dense.
        directory: of a model with dense layers of the same sizes; what it does to the input
            before the first one, other than to clip it, is part of that one's weights.

    Raises:
        InputError: the directory cannot be read, or its layers are others.
    """
    network = read(directory).network
    split = split_clip(network)
    affines = (network if split is None else split[1]).affines
    layers = [layer for layer in base.layers if layer.weights]
    wanted = [tuple(layer.weights[0].shape) for layer in layers]
    found = [(affine.fan_in, affine.fan_out) for affine in affines]
    dense = all(isinstance(layer, keras.layers.Dense) and layer.use_bias for layer in layers)
    if not dense or wanted != found or any(affine.is_sparse for affine in affines):
        raise InputError(
            f"{directory} cannot be started from: it has maps {found}, the model to train has "
            f"{wanted}, which must be the same, and all dense"
        )
    for layer, affine in zip(layers, affines, strict=True):
        layer.kernel.assign(np.asarray(affine.kernel, np.float32))
        layer.bias.assign(np.asarray(affine.bias, np.float32))
