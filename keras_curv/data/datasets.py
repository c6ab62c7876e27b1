"""Examples by name: the embedded digits, and image sets through tensorflow-datasets.

Pixels come as float32 in [0, 1], labels as int64.
"""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np

from keras_curv.data.digits import load_digits
from keras_curv.data.examples import Examples
from keras_curv.data.tfds_images import load_tfds
from keras_curv.errors import InputError

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10")


def load(name: str, split: str = "test", *, data_dir: str | None = None) -> Examples:
    """Loads a data set by name.

    Args:
        name: one of `DATASETS`.
        split: "train" or "test"; for tfds sets any tfds split expression.
        data_dir: where tfds keeps its files; None: `TFDS_DATA_DIR`, or tfds' own default, to
            which it downloads what is missing.

    Raises:
        InputError: the data set or the split is unknown, or its files are not there and cannot be
            fetched.
    """
    if name == "digits":
        examples = Examples.from_arrays(f"digits {split}", *load_digits(split), reshapable=True)
    elif name in DATASETS:
        examples = load_tfds(name, split, data_dir)
    else:
        hint = "; a file of arrays is given by --inputs" if name.endswith(".npz") else ""
        raise InputError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}{hint}")
    place = data_dir and os.path.abspath(data_dir)
    origin = functools.partial(load, name, split, data_dir=place)
    return dataclasses.replace(examples, origin=origin)


def load_all(
    name: str, split: str = "test", *, data_dir: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Loads a whole data set into memory, `(x, y)`; see `load`."""
    return load(name, split, data_dir=data_dir).arrays()
