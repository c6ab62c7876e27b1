"""What every training method of this library wraps: a base model that returns logits.

A method changes what one training step minimises; data, labels, compiling, saving and the export of
the base are the same for all, and are here.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.training.live import LiveNetwork

_RAMP_START = 0.05
_ONE_HOT_LOSSES = (keras.losses.CategoricalCrossentropy, keras.losses.CategoricalFocalCrossentropy)


class LogitsModel(keras.Model):
    """A base model and the network read from it, to be trained as any Keras model is.

    Subclasses override `train_step`, `test_step` or `compute_loss`, and extend `get_config`.

    Attributes:
        base: what is trained, and exported afterwards.
        live: the base as affine maps and activations; `live.now()` is differentiable in the
            variables.
        activations: which ones the method has a theory for.
        radius: ρ of the ball that the method trains against, if it does.
        ramp_steps: training steps over which the radius rises, evenly, from ρ/20 to ρ.
        seed: of random numbers, if the method draws any.
    """

    activations: Mapping[str, Activation] = ACTIVATIONS
    radius: float | None = None
    ramp_steps = 0
    seed = 0

    def __init__(self, base, **kwargs):
        super().__init__(**kwargs)
        self.live = LiveNetwork(base, self.activations)
        self.base = base
        self.built = True

    def call(self, x, training=None):
        """The logits of the base, `(n, classes)`."""
        return self.base(x, training=training)

    def compile(self, optimizer="adam", loss=None, **kwargs):
        """As for any Keras model.

        Args:
            loss: of labels `(n,)` and logits; None: sparse categorical cross-entropy.

        Raises:
            InputError: the loss takes probabilities, or one-hot labels.
        """
        loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        _require_logits_loss(loss)
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def compile_from_config(self, config):
        """Compiles a loaded model; Keras leaves those with a `compile` of their own uncompiled."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def checked(self, data):
        """A step's data, `(x, y, sample_weight)`; InputError unless y are labels."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return x, require_labels(y, self.live.sizes[-1]), sample_weight

    def progress(self, training: bool):
        """How much of the ramp is done, from 0 to 1; 1 outside of training."""
        if not training or not self.ramp_steps:
            return 1.0
        return tf.minimum(tf.cast(self.optimizer.iterations, tf.float32) / self.ramp_steps, 1.0)

    def current_radius(self, training: bool):
        """ρ times what the ramp leaves of it now."""
        part = _RAMP_START + (1.0 - _RAMP_START) * self.progress(training)
        return self.radius * tf.minimum(part, 1.0)

    def seed_of_step(self, training: bool) -> tf.Tensor:
        """What random numbers of a step are drawn from, `(2,)`: a replica's own in every step.

        No state of its own: a loaded model goes on with the draws that it would have had. Outside
        of training it is always the same.
        """
        if not training:
            return tf.constant([self.seed, -1])
        replica = tf.distribute.get_replica_context()
        step = tf.cast(self.optimizer.iterations, tf.int32) * replica.num_replicas_in_sync
        return tf.stack([self.seed, step + replica.replica_id_in_sync_group])

    def get_config(self):
        """What `from_config` takes."""
        return {**super().get_config(), "base": keras.saving.serialize_keras_object(self.base)}

    @classmethod
    def from_config(cls, config):
        """The model, with fresh weights."""
        base = keras.saving.deserialize_keras_object(config["base"])
        return cls(**{**config, "base": base})


def class_numbers(y) -> tf.Tensor:
    """Labels `(n,)`, int32.

    Keras builds its losses on labels as they come: in a column, with tf.distribute as floats.
    """
    return tf.reshape(tf.cast(y, tf.int32), (-1,))


def require_labels(y, classes: int) -> tf.Tensor:
    """Integer labels `(n,)`, int32.

    Raises:
        InputError: another shape or type; one-hot labels by name.
    """
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
        raise InputError(f"labels must be integers (n,). Received: {y.dtype.name}, shape {y.shape}")
    label = tf.cast(y, tf.int64)
    message = f"labels must be from 0 to {classes - 1}"
    with tf.control_dependencies(
        [
            tf.debugging.assert_non_negative(label, message),
            tf.debugging.assert_less(label, tf.constant(classes, tf.int64), message),
        ]
    ):
        # XLA drops the assertions; what stays out of range makes the loss NaN.
        return tf.cast(tf.clip_by_value(label, -1, classes), tf.int32)


def _require_logits_loss(loss) -> None:
    """Raises InputError for a loss that would misread integer labels or logits."""
    for part in map(keras.losses.get, keras.tree.flatten(loss)):
        config = part.get_config() if isinstance(part, keras.losses.Loss) else {}
        name = getattr(part, "name", None) or getattr(part, "__name__", "")
        # Keras' own functions take probabilities.
        if config.get("from_logits") is False or part is getattr(keras.losses, name, None):
            raise InputError(
                f"the base returns logits: compile with from_logits=True. Received: loss={name!r}"
            )
        if isinstance(part, _ONE_HOT_LOSSES):
            raise InputError(
                "labels are integers (n,): use SparseCategoricalCrossentropy(from_logits=True). "
                f"Received: {type(part).__name__}"
            )
