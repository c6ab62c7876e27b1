"""Checkpoints of a training: written whole or not at all, and read without trusting them.

TensorFlow's own manager of checkpoints takes paths from a file `checkpoint`, reads what is there
and deletes it in time, wherever it lies. Here a checkpoint is what its name says. TensorFlow, which
follows links, writes it where nobody else can, and from there it is copied.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
import tempfile
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.files import copy_file, part_path, writing
from keras_curv.saved_model.checkpoint import tensors_of

_NAME = re.compile(r"ckpt-([1-9][0-9]{0,8})\.index")
_FILES = (".data-00000-of-00001", ".index")  # the last one makes it a checkpoint
_KEPT = 2


class Checkpoints(keras.callbacks.Callback):
    """Model, optimizer and the number of epochs done, saved after each.

    Args:
        model: compiled.
        folder: of the checkpoints; made where there is none.

    Attributes:
        folder: as given.
    """

    def __init__(self, model: keras.Model, folder: pathlib.Path):
        super().__init__()
        model.optimizer.build(model.trainable_variables)
        held = [variable.value for variable in [*model.variables, *model.optimizer.variables]]
        self._done = tf.Variable(0, dtype=tf.int64)
        self._state = {str(place): variable for place, variable in enumerate([self._done, *held])}
        self.folder = folder

    def restore(self) -> int:
        """Goes back to the newest checkpoint, if there is one; returns the epochs it has done.

        Raises:
            InputError: it is damaged, or of another model.
        """
        for file in _FILES:  # of a run that was killed as it copied one
            for part in self.folder.glob(part_path(f"ckpt-*{file}").name):
                part.unlink(missing_ok=True)
        newest = max(self._epochs(), default=0)
        if newest:
            self._restore(newest)
        return newest

    def _restore(self, epoch: int) -> None:
        path = self.folder / f"ckpt-{epoch}"
        try:
            stored = tensors_of(path)
        except (InputError, OSError) as error:
            raise InputError(f"{path} cannot be resumed from: {error}") from error
        shapes = {name: (array.dtype, array.shape) for name, array in stored.items()}
        wanted = {
            name: (np.dtype(variable.dtype.as_numpy_dtype), tuple(variable.shape))
            for name, variable in self._state.items()
        }
        if shapes != wanted or stored["0"] != epoch:
            raise InputError(
                f"{path} is of another model, or of another epoch; remove it to go on without"
            )
        for name, variable in self._state.items():
            variable.assign(stored[name])

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Saves, but for an epoch after which the loss or a weight is NaN or infinite."""
        if math.isfinite((logs or {}).get("loss", 0.0)) and self.finite():
            self.save(epoch + 1)

    def finite(self) -> bool:
        """Returns whether all that would be saved is a number."""
        floats = [value for value in self._state.values() if value.dtype.is_floating]
        return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in floats)

    def save(self, epoch: int) -> None:
        """Writes the checkpoint of so many epochs, and removes old ones.

        Raises:
            InputError: it cannot be written; the ones before are kept.
        """
        with writing_by_tensorflow(self.folder.parent):
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        self._done.assign(epoch)
        self.folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as ours:
            tf.raw_ops.SaveV2(
                prefix=f"{ours}/ckpt",
                tensor_names=list(self._state),
                shape_and_slices=[""] * len(self._state),
                tensors=[tf.convert_to_tensor(variable) for variable in self._state.values()],
            )
            for file in _FILES:
                copy_file(f"{ours}/ckpt{file}", self.folder / f"ckpt-{epoch}{file}")
        for old in sorted(self._epochs())[:-_KEPT]:
            for file in reversed(_FILES):
                (self.folder / f"ckpt-{old}{file}").unlink(missing_ok=True)

    def _epochs(self) -> list[int]:
        """Lists the epochs that have a checkpoint."""
        found = [_NAME.fullmatch(file.name) for file in self.folder.glob("ckpt-*.index")]
        return [int(match[1]) for match in found if match]


@contextlib.contextmanager
def writing_by_tensorflow(
    directory: pathlib.Path, theirs: type[tf.errors.OpError] = tf.errors.OpError
) -> Iterator[None]:
    """Makes what Python and TensorFlow raise on a full disk an InputError."""
    try:
        with writing(directory):
            yield
    except theirs as error:
        raise InputError(f"cannot write {directory}: {error.message}") from error
