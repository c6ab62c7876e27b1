"""A file that Keras saved a model to → a live model that computes the same, without trusting it.

1. The file is read as data: its config by `files.parse_json`, its weights by `hdf5.py`.
2. The config is looked at layer by layer, and the model made anew of Keras' own layers
   (`rebuild.py`). No class, function or code that the file names is looked up or run.
3. The weights are given to it one by one (`weights.py`).

From then on it is a live model like any other: only `lowering` says what a layer is.
"""

from __future__ import annotations

import math
import pathlib

import keras

from keras_curv.errors import InputError, about
from keras_curv.keras_file import archive
from keras_curv.keras_file.hdf5 import Group
from keras_curv.keras_file.rebuild import Builder, base_of
from keras_curv.keras_file.weights import give, held


def load(path: pathlib.Path) -> tuple[keras.Model, str]:
    """Returns the model of a file, and the file's fingerprint.

    A model that `keras_curv` trains, as `CRTModel`, is read as the base that it trains.

    Raises:
        InputError: it is none, is damaged, or has what is not read; the message says which layer.
        OSError: it cannot be read.
    """
    if keras.backend.backend() != "tensorflow":
        raise InputError(f"{path}: files of Keras are read where its backend is tensorflow")
    stored = archive.read(path)
    try:
        return _model(stored, str(path)), stored.fingerprint
    except RecursionError as error:
        raise InputError(f"{path}: its config nests too deeply") from error


def _model(stored: archive.Stored, source: str) -> keras.Model:
    config, weights = stored.config, stored.weights
    base = None if stored.legacy else base_of(config)
    with about(source, (ValueError,)):
        if base is not None:
            config, inside = base, weights.members.get("base")
            if not isinstance(inside, Group):
                raise InputError("its base has no weights")
            weights = inside
        arrays = held(weights, stored.legacy)
    entries = sum(math.prod(array.shape) for array in arrays.values())
    model = Builder(source, stored.keras_2, entries).model(config)
    with about(source, (ValueError,)):
        give(model, weights, arrays, stored.legacy)
    return model
