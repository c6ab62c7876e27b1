"""Variables of a training that no optimizer moves."""

from __future__ import annotations

from typing import Any

import keras


class TrainingState(keras.layers.Layer):
    """Variables that only `advance` of a subclass moves, and the number of steps so far."""

    steps: keras.Variable
    start_iterations = 25  # of power iteration at the first step; then one a step

    def __init__(self, name: str):
        super().__init__(name=name, dtype="float32", trainable=False)

    def state(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        initializer: Any = "zeros",
        dtype: Any = "float32",
    ) -> keras.Variable:
        """Adds a variable as an attribute; of several replicas the first one's value counts."""
        variable = self.add_weight(
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            name=name,
        )
        setattr(self, name, variable)  # tf.train.Checkpoint follows attributes, not Keras' lists
        return variable

    def normal(self, name: str, shape: tuple[int, ...], seed: int) -> keras.Variable:
        """Adds a variable of normal numbers; see `state`."""
        return self.state(name, shape, initializer=keras.initializers.RandomNormal(seed=seed))
