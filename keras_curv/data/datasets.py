"""Examples by name: scikit-learn's embedded digits, and image sets through tensorflow-datasets.

Pixels come as float32 in [0, 1], labels as int64. Every fifth of scikit-learn's digits is in
their test set (360 of 1,797); its order follows the writers, so a cut in two would hold out some.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Iterator

import numpy as np

from keras_curv.data.examples import Examples, _fingerprint
from keras_curv.errors import InputError

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10")


_DIGITS_STRIDE = 5


_KNOWN_BY = 32  # images that tell a copy of a tfds set from another of the same version


def load(name: str, split: str = "test", *, data_dir: str | None = None) -> Examples:
    """A data set by name.

    Args:
        name: one of `DATASETS`.
        split: "train" or "test"; for tfds sets any tfds split expression.
        data_dir: where tfds keeps its files; None: `TFDS_DATA_DIR`, or tfds' own default, to
            which it downloads what is missing.

    Raises:
        InputError: unknown data set or split, a package that is missing, or files that are
            not there and cannot be fetched.
    """
    if name == "digits":
        examples = Examples.from_arrays(f"digits {split}", *_digits(split), reshapable=True)
    elif name in DATASETS:
        examples = _from_tfds(name, split, data_dir)
    else:
        raise InputError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    place = data_dir and os.path.abspath(data_dir)
    origin = functools.partial(load, name, split, data_dir=place)
    return dataclasses.replace(examples, origin=origin)


def load_all(
    name: str, split: str = "test", *, data_dir: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A whole data set in memory, `(x, y)`; see `load`."""
    return load(name, split, data_dir=data_dir).arrays()


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install 'keras_curv[digits]'"
        ) from error
    if split not in ("train", "test"):
        raise InputError(f"the digits have the splits train and test. Received: {split!r}")
    digits = load_digits()
    held_out = np.arange(len(digits.target)) % _DIGITS_STRIDE == 0
    part = held_out if split == "test" else ~held_out
    x = (digits.images / 16.0).astype(np.float32)[..., None]
    return x[part], digits.target.astype(np.int64)[part]


def _from_tfds(name: str, split: str, data_dir: str | None) -> Examples:
    import tensorflow_datasets as tfds

    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise InputError(f"the data directory {data_dir} does not exist")
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare()
        count = builder.info.splits[split].num_examples
        read = functools.partial(builder.as_dataset, as_supervised=True, shuffle_files=False)
        dataset = read(split=split)
        stored = read(split=split, decoders={"image": tfds.decode.SkipDecoding()}).take(_KNOWN_BY)
        files, labels = zip(*stored.as_numpy_iterator(), strict=True)
    except Exception as error:  # network, disk and tfds errors have no common class
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(
            f"tfds cannot provide {name}, split {split!r}, from {data_dir or 'its default place'}: "
            f"{reason} … Point --data_dir or TFDS_DATA_DIR to a prepared copy"
        ) from error

    def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        # A slice is much quicker than skipping what was parsed; of one file both have one order.
        plain = start and split in ("train", "test") and builder.info.splits[split].num_shards == 1
        rest = read(split=f"{split}[{start}:]") if plain else dataset.skip(start)
        for x, y in rest.batch(size).prefetch(2).as_numpy_iterator():
            yield (x / np.float32(255)).astype(np.float32), y.astype(np.int64)

    known_by = _fingerprint(np.frombuffer(b"".join(files), np.uint8), np.array(labels))[:16]
    jpeg = " (JPEG)" if files[0].startswith(b"\xff\xd8") else ""  # which loses some
    return Examples(
        f"{name}{jpeg} {split}",
        count,
        builder.info.features["image"].shape,
        batches,
        f"tfds {name} {builder.version} {known_by}",
        reshapable=True,
    )
