"""Steps of training that centre hidden activations on their running means.

The gradient of a kernel W is `Σ aᵀ δ`, and activations such as softplus have a large mean: all
steps of W share that direction. With μ the mean of a, the same map is

    z = (a − μ) W + β,    β = b + μ W,

in which the gradient of W is `Σ (a − μ)ᵀ δ`, and that of β is the one of b. A step is taken in W
and β; the variables stay W and b, so b moves by `Δβ − μ ΔW`. A change of μ changes no function. So
only the steps of training differ: networks, certificates and exports do not know of it.

Reference: Schraudolph, "Centering neural network gradient factors" (1998), of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.training.models.state import TrainingState
from keras_curv.training.trainable.trainable_network import LiveNetwork

_SLOWEST = 0.01  # part of a step's mean that enters the running one


class Centring(TrainingState):
    """The running means of a network's hidden activations; they move in `advance` alone.

    Args:
        live: the network, whose maps are dense layers, with a hidden one.

    Raises:
        InputError: a map is another one, or a layer does otherwise in training than at inference.
    """

    def __init__(self, live: LiveNetwork):
        super().__init__("centring")
        self.dense: list[Any] = [part.dense for part in live.maps[1:]]
        if not self.dense or not live.is_dense or not live.as_in_training:
            raise InputError(
                "centre is for dense layers alone, with nothing between "
                "that training changes, in float32 and without a trunk. Received: "
                + ", ".join(type(layer).__name__ for layer in live.layers)
            )
        if any(dense.bias is None for dense in self.dense):
            raise InputError("centre moves biases, and a dense layer has none: give use_bias=True")
        self.means = [
            self.state(f"mean_{index}", (dense.kernel.shape[0],))
            for index, dense in enumerate(self.dense, start=1)
        ]
        self.state("steps", (), dtype="int32")
        self.built = True

    def advance(self, activations: Sequence[tf.Tensor]) -> None:
        """Moves the means on by a batch of activations, `a_1, …, a_{L−1}`, each `(n, width)`."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise InputError("centre trains on one device: each would have its own means")
        self.steps.assign_add(1)
        part = tf.maximum(1.0 / tf.cast(self.steps, tf.float32), _SLOWEST)
        for mean, a in zip(self.means, activations, strict=True):
            mean.assign_add(part * (tf.reduce_mean(a, axis=0) - mean))

    def kernels(self) -> list[tf.Tensor]:
        """Returns the kernels of the dense layers."""
        return [tf.convert_to_tensor(dense.kernel) for dense in self.dense]

    def move_biases(self, before: Sequence[tf.Tensor]) -> None:
        """Subtracts `μ ΔW` from each bias after a step, given the kernels before it."""
        for dense, mean, old in zip(self.dense, self.means, before, strict=True):
            moved = tf.convert_to_tensor(dense.kernel) - old
            dense.bias.assign_sub(tf.linalg.matvec(moved, mean, transpose_a=True))
