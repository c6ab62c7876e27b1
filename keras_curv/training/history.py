"""The history of a training: a CSV file with one line an epoch."""

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
        path: of the file, which is made if need be.

    Raises:
        InputError: when training begins, if the file cannot be written.
    """

    def __init__(self, path: pathlib.Path):
        super().__init__(str(path), append=True)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the file; a new one begins with a line of column names."""
        with writing(self.filename):
            file = open_regular(self.filename, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self.append_header = not file.readline()
        self.csv_file = io.TextIOWrapper(file, newline="", encoding="utf-8")
        self.writer = self.keys = None
