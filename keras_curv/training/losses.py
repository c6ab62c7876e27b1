"""Losses to train with that are not Keras' own."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.training.logits_model import class_numbers

_LEAST = 1e-6  # as good as 0


@keras.saving.register_keras_serializable(package="keras_curv")
class GeneralizedCrossEntropy(keras.losses.Loss):
    """`(1 − p^q) / q` of the label's probability p: between cross-entropy and the error rate.

    Where a network is too small to hold every example in its ball, cross-entropy spends it on
    those that are lost anyway, as `−log p` has no upper end. This loss has one, 1/q: its gradient
    is that of cross-entropy, times p^q. Compiled into `CRTModel`, where p comes from worst-case
    logits, it certifies more examples and costs some clean accuracy. From a fresh start it may give
    up whole classes: let q rise from 0.

    Attributes:
        q: a variable, which may be assigned between steps.

    Args:
        q: 0 ≤ q ≤ 1; 0 is cross-entropy, and 1 is 1 − p.
        **kwargs: of `keras.losses.Loss`.

    Raises:
        InputError: q out of range.

    Example:
        >>> loss = GeneralizedCrossEntropy(1.0)
        >>> float(loss(tf.constant([0]), tf.constant([[0.0, 0.0]])))
        0.5

    Reference: Zhang & Sabuncu, "Generalized cross entropy loss for training deep neural networks
    with noisy labels" (2018), equation 6.
    """

    def __init__(self, q: float, name="generalized_cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0.0 <= q <= 1.0:
            raise InputError(f"q must be from 0 to 1. Received: {q}")
        self.q = keras.Variable(q, trainable=False, dtype="float32", name="q")

    def call(self, y_true, y_pred):
        """Labels `(n,)` and logits `(n, classes)` → `(n,)`."""
        label, logits = class_numbers(y_true), tf.cast(y_pred, tf.float32)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        q = tf.maximum(tf.convert_to_tensor(self.q), _LEAST)
        return -tf.math.expm1(-q * entropy) / q

    def get_config(self):
        """What `from_config` takes."""
        return {**super().get_config(), "q": float(self.q)}
