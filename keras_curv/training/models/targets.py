"""The targets that a model learns: labels of classes, or numbers."""

from __future__ import annotations

import abc
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError

# Parts of names of losses for labels, or of losses that may fall with the distance from the target.
_OTHER_LOSSES = (
    *("crossentropy", "hinge", "cosine", "divergence", "poisson", "logarithmic"),
    *("dice", "tversky", "circle", "ctc"),
)


class Targets(abc.ABC):
    """The targets of a model with so many outputs.

    Attributes:
        fewest: outputs that a model with such targets has at least.
        loss: the default.
        metric: class of the metric of clean examples.
        metric_name: its name.
    """

    fewest: int
    metric: type[keras.metrics.Metric]
    metric_name: str

    def __init__(self, outputs: int):
        self.outputs = outputs

    @property
    @abc.abstractmethod
    def loss(self) -> Any:
        """See the class."""

    @abc.abstractmethod
    def require_loss(self, loss: Any) -> None:
        """Raises InputError for a loss that would misread targets or outputs."""

    @abc.abstractmethod
    def checked(self, y: Any) -> tf.Tensor:
        """Returns the targets of a step; InputError for another shape or type."""

    def require_known(self, y: Any) -> None:
        """Raises InputError for arrays of targets that no step could take."""
        del y

    @abc.abstractmethod
    def zeros(self, count: int) -> tf.Tensor:
        """Returns so many targets, as `checked` does, all zero."""


class Labels(Targets):
    """Integer labels `(n,)` of a model that returns logits."""

    fewest = 2
    metric = keras.metrics.SparseCategoricalAccuracy
    metric_name = "clean_accuracy"

    @property
    def loss(self) -> Any:
        """See `Targets`."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def require_loss(self, loss: Any) -> None:
        """See `Targets`."""
        theirs = vars(keras.losses).values()  # take one-hot labels, numbers or probabilities
        for part, name in _losses(loss):
            if isinstance(part, keras.losses.SparseCategoricalCrossentropy):
                wrong = part.get_config().get("from_logits") is False
            else:
                wrong = type(part) in theirs or part in theirs
            if wrong:
                raise InputError(
                    "labels are integers (n,) and the base returns logits: use "
                    f"SparseCategoricalCrossentropy(from_logits=True). Received: loss={name!r}"
                )

    def checked(self, y: Any) -> tf.Tensor:
        """Returns integer labels `(n,)`, int32; InputError for others, one-hot ones by name."""
        classes = self.outputs
        if y is None:
            raise InputError("training needs labels (n,). Received: none")
        y = tf.convert_to_tensor(y)
        if y.shape.rank == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.shape.rank == 2 and y.shape[1] == classes:
            raise InputError(
                f"labels of shape {tuple(y.shape)} look one-hot; pass integers (n,), as from "
                "numpy.argmax(y, axis=1)"
            )
        if y.shape.rank != 1 or not y.dtype.is_integer:
            raise InputError(
                f"labels must be integers (n,). Received: {y.dtype.name}, shape {y.shape}"
            )
        label = tf.cast(y, tf.int64)
        message = f"labels must be from 0 to {classes - 1}"
        with tf.control_dependencies(
            [
                tf.debugging.assert_non_negative(label, message),
                tf.debugging.assert_less(label, tf.constant(classes, tf.int64), message),
            ]
        ):
            # XLA drops the assertions; a label out of range then makes the loss NaN.
            return tf.cast(tf.clip_by_value(label, -1, classes), tf.int32)

    def require_known(self, y: Any) -> None:
        """See `Targets`."""
        if isinstance(y, np.ndarray) and y.dtype.kind in "iu" and y.size:
            low, high = int(y.min()), int(y.max())
            if y.shape in ((len(y),), (len(y), 1)) and not 0 <= low <= high < self.outputs:
                raise InputError(
                    f"labels must be from 0 to {self.outputs - 1}. Received: {low} to {high}"
                )

    def zeros(self, count: int) -> tf.Tensor:
        """See `Targets`."""
        return tf.zeros(count, tf.int32)


class Numbers(Targets):
    """Numbers `(n, outputs)`, or `(n,)` of one output."""

    fewest = 1
    metric = keras.metrics.MeanAbsoluteError
    metric_name = "clean_error"

    @property
    def loss(self) -> Any:
        """See `Targets`."""
        return keras.losses.MeanSquaredError()

    def require_loss(self, loss: Any) -> None:
        """See `Targets`."""
        for _, name in _losses(loss):
            plain = name.lower().replace("_", "")
            if any(word in plain for word in _OTHER_LOSSES):
                raise InputError(
                    "the targets are numbers: compile with a loss that grows with the distance "
                    f"from them, as mse, mae or huber. Received: loss={name!r}"
                )

    def checked(self, y: Any) -> tf.Tensor:
        """Returns numbers `(n, outputs)`, float32; InputError for another shape."""
        if y is None:
            raise InputError(f"training needs numbers (n, {self.outputs}). Received: none")
        y = tf.convert_to_tensor(y)
        column = self.outputs == 1 and y.shape.rank in (1, None)
        if not column and not y.shape.is_compatible_with((None, self.outputs)):
            raise InputError(
                f"targets must be numbers (n, {self.outputs}), as the base returns. "
                f"Received: shape {y.shape}"
            )
        y = y if column else tf.ensure_shape(y, (None, self.outputs))
        return tf.reshape(tf.cast(y, tf.float32), (-1, self.outputs))

    def zeros(self, count: int) -> tf.Tensor:
        """See `Targets`."""
        return tf.zeros((count, self.outputs))


def _losses(loss: Any) -> list[tuple[Any, str]]:
    """Returns the losses that Keras would use, with their names."""
    parts = map(keras.losses.get, keras.tree.flatten(loss))
    return [
        (part, str(getattr(part, "name", None) or getattr(part, "__name__", ""))) for part in parts
    ]
