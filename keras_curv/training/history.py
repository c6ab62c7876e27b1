"""The history of a training: one line an epoch, in a file that is opened once."""

from __future__ import annotations

import io
import os
import pathlib
from typing import Any

import keras

from keras_curv.files import open_regular, writing


class History(keras.callbacks.CSVLogger):
    """Appends each epoch's logs to a CSV file, and follows no link to another one.

    Args:
        path: of the file; made where there is none.

    Raises:
        InputError: as the training begins, if that is no file that can be written.
    """

    def __init__(self, path: pathlib.Path):
        super().__init__(str(path), append=True)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the file; the first line of one that has none says what the columns are."""
        with writing(self.filename):
            file = open_regular(self.filename, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self.append_header = not file.readline()
        self.csv_file = io.TextIOWrapper(file, newline="", encoding="utf-8")
        self.writer = self.keys = None
