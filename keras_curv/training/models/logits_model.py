"""A base model of logits or numbers, wrapped for training: the parent of every training method.

A method says what one training step minimises. Data, targets, compiling, saving and the export of
the base are the same for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import ACTIVATIONS, Activation
from keras_curv.training.models.targets import Labels, Targets
from keras_curv.training.trainable.trainable_network import LiveNetwork


class LogitsModel(keras.Model):
    """A base model and the network read from it, to be trained as any Keras model is.

    Subclasses say in `step_loss` what a step minimises. Every one raises an InputError for an
    argument out of range, or a base that cannot be read.

    Attributes:
        base: the model that is trained, and exported afterwards.
        live: the base as affine maps and activations; `live.now()` is differentiable in the
            variables.
        targets: the targets that it learns.
        target_kind: their class.
        activations: those that the method has a theory for.
        clips: whether the method has a theory for a base that begins with `ClipInput`.
        trunks: whether it has one for layers with kinks in front of smooth ones.
        options: the constructor's other arguments, kept as attributes of these names.
    """

    activations: Mapping[str, Activation] = ACTIVATIONS
    target_kind: type[Targets] = Labels
    clips = False
    trunks = False
    options: tuple[str, ...] = ()

    def __init__(self, base: keras.Model, **kwargs: Any):
        super().__init__(**kwargs)
        self.live = LiveNetwork(
            base, self.activations, outputs=self.target_kind.fewest, trunks=self.trunks
        )
        self.targets = self.target_kind(self.live.sizes[-1])
        if self.live.clip is not None and not self.clips:
            raise InputError(
                f"{type(self).__name__} has no theory for {self.live.clip.name!r}, a clip of the "
                "input; use CRTModel, or clip nothing"
            )
        self.base = base
        self.built = True

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns what the base returns, `(n, outputs)`."""
        return self.base(x, training=training)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Exports the base alone, as that is served."""
        self.base.export(*args, **kwargs)

    def compile(self, optimizer: Any = "adam", loss: Any = None, **kwargs: Any) -> None:
        """Compiles as any Keras model does.

        Args:
            loss: of labels `(n,)` and logits, or of numbers; None: sparse categorical
                cross-entropy, or the mean squared error.

        Raises:
            InputError: the loss takes probabilities, or one-hot labels; or labels where the targets
                are numbers.
        """
        loss = loss or self.targets.loss
        self.targets.require_loss(loss)
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        self._has_state = False

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model; Keras leaves those with a `compile` of their own uncompiled."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as any Keras model does; labels out of range in an array are an InputError."""
        self.targets.require_known(y)
        return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as any Keras model does; see `fit`."""
        self.targets.require_known(y)
        return super().evaluate(x, y, *args, **kwargs)

    def make_train_function(self, force: bool = False) -> Any:
        """See Keras."""
        self._create_state()
        return super().make_train_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """See Keras."""
        self._create_state()
        return super().make_test_function(force)

    def _create_state(self) -> None:
        """Makes the variables of optimizer and metrics; a step that made them is traced twice."""
        distributed = self.distribute_strategy is not tf.distribute.get_strategy()
        if self._has_state or distributed or tf.distribute.has_strategy():
            return  # where training is distributed Keras does the same by itself
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)
        outputs = tf.zeros((2, self.live.sizes[-1]), self.compute_dtype)
        self.compute_metrics(None, self.targets.zeros(2), outputs)
        self.reset_metrics()
        self._has_state = True

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes one step: the gradient of `step_loss`, by Keras' optimizer."""
        x, y, weight = self.checked(data)
        with tf.GradientTape() as tape:
            loss, outputs = self.step_loss(x, y, weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        if variables := self.trainable_weights:
            self.optimizer.apply_gradients(
                zip(tape.gradient(scaled, variables), variables, strict=True)
            )
        else:
            warnings.warn("the base has no trainable weights", stacklevel=2)
        return self._logs(loss, x, y, outputs, weight)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Evaluates the same loss, without dropout and at the full radius; nothing moves."""
        x, y, weight = self.checked(data)
        loss, outputs = self.step_loss(x, y, weight, training=False)
        return self._logs(loss, x, y, outputs, weight)

    def _logs(
        self, loss: tf.Tensor, x: tf.Tensor, y: tf.Tensor, outputs: tf.Tensor, weight: Any
    ) -> dict[str, tf.Tensor]:
        """Returns all metrics, those of this step counted; Keras' mean loss is the first one."""
        whole = loss * tf.distribute.get_strategy().num_replicas_in_sync
        self.metrics[0].update_state(whole, sample_weight=tf.shape(x)[0])
        return self.compute_metrics(x, y, outputs, weight)

    def checked(self, data: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Returns a step's `(x, y, sample_weight)`; InputError for other examples or targets."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        shape, wanted = tf.TensorShape(x.shape), self.live.input_shape
        if shape.rank == len(wanted) + 1 and not shape[1:].is_compatible_with(wanted):
            raise InputError(
                f"examples of shape {tuple(shape[1:])} do not fit the model, which takes {wanted}"
            )
        return x, self.targets.checked(y), sample_weight

    def step_loss(
        self, x: tf.Tensor, y: tf.Tensor, weight: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what a step minimises, and the outputs at x that the compiled metrics are of.

        Here that is the compiled loss. Methods also count their own metrics, and move their state
        on in a step that trains.

        Args:
            x: `(n, …)`.
            y: targets, as `Targets.checked` returns them.
            weight: of the examples, `(n,)` or `(n, 1)`; None: all alike.
            training: whether the step is one of `fit`.
        """
        outputs = self(x, training=training)
        return self.compute_loss(x, y, outputs, weight), outputs

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        base = keras.saving.serialize_keras_object(self.base)
        own = {name: getattr(self, name) for name in self.options}
        return {**super().get_config(), "base": base, **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Returns the model, with fresh weights."""
        base = keras.saving.deserialize_keras_object(config["base"])
        return cls(**{**config, "base": base})
