"""Examples by name: scikit-learn's embedded digits, and image sets through tensorflow-datasets.

Pixels come as float32 in [0, 1], labels as int64. Every fifth of scikit-learn's digits is in
their test set (360 of 1,797); its order follows the writers, so a cut in two would hold out some.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator

import numpy as np

from keras_curv.errors import InputError

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10")
_DIGITS_STRIDE = 5
_KNOWN_BY = 32  # images that tell a copy of a tfds set from another of the same version


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data set as a stream of batches, so that memory does not grow with it.

    Attributes:
        name: for reports.
        count: how many examples there are.
        shape: of one input.
        batches: `batches(size, start)` yields `(x, y)` from example `start` on; `x` is
            `(n, *shape)` and `y` is `(n,)` int64, or None where there are no labels.
        reshapable: whether unit axes may be dropped or added, and images flattened, to fit a
            model: so for named data sets, where it is clear what an axis means.
        fingerprint: tells these examples from others of the same name, so that no run goes on
            with others than it began with.
        path: of the file they come from, if it is one.
        origin: loads them again, in whatever process it is called; None where they are in memory
            only.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    batches: Callable[..., Iterator[tuple[np.ndarray, np.ndarray | None]]]
    fingerprint: str
    reshapable: bool = False
    path: str | None = None
    origin: Callable[[], Examples] | None = None

    @classmethod
    def from_arrays(
        cls, name: str, x: np.ndarray, y: np.ndarray | None = None, *, reshapable: bool = False
    ) -> Examples:
        """Examples that are in memory already.

        Args:
            name: for reports and messages.
            x: numbers, `(n, …)`, n at least 1.
            y: integers, `(n,)`; None: no labels.
            reshapable: see above.

        Raises:
            InputError: they are something else.

        Example:
            >>> examples = Examples.from_arrays("mine", np.zeros((3, 2)), np.array([0, 1, 0]))
            >>> examples.count, examples.shape
            (3, (2,))
        """
        x = np.asarray(x)
        if x.ndim < 2 or len(x) == 0:
            raise InputError(f"{name}: x must be (examples, …), not empty. Received: {x.shape}")
        if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
            raise InputError(f"{name}: x must hold numbers. Received: {x.dtype}")
        if y is not None:
            y = np.asarray(y)
            if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
                raise InputError(
                    f"{name}: y must be integers of shape ({len(x)},). "
                    f"Received: {y.dtype} {y.shape}"
                )
            if y.max(initial=0) >= 2**63:
                raise InputError(f"labels must fit int64. Received: {y.max()}")
            y = y.astype(np.int64)

        def batches(size: int, start: int = 0):
            for begin in range(start, len(x), size):
                stop = begin + size
                yield x[begin:stop], None if y is None else y[begin:stop]

        return cls(name, len(x), x.shape[1:], batches, _fingerprint(x, y), reshapable)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All of them in memory, `(x, y)`; they must have labels."""
        xs, ys = zip(*self.batches(4096, 0), strict=True)
        return np.concatenate(xs), np.concatenate(ys)

    def limited(self, limit: int | None) -> Examples:
        """The first `limit` examples."""
        if limit is None or limit >= self.count:
            return self
        if limit < 1:
            raise InputError(f"the limit must be at least 1. Received: {limit}")

        def batches(size: int, start: int = 0):
            left = limit - start
            for x, y in self.batches(size, start):
                if left <= 0:
                    return
                yield x[:left], None if y is None else y[:left]
                left -= len(x)

        origin = self.origin and functools.partial(_limited, self.origin, limit)
        return dataclasses.replace(self, count=limit, batches=batches, origin=origin)


def _fingerprint(*arrays: np.ndarray | None) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _limited(origin: Callable[[], Examples], limit: int) -> Examples:
    return origin().limited(limit)


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


def load_npz(path: str) -> Examples:
    """Arrays `x`, and `y` if there are labels, from an `.npz` file.

    Raises:
        InputError: no such file, not an npz file, no array `x`, or `y` of another length.
    """
    try:
        if not pathlib.Path(path).is_file():
            what = "is no file" if pathlib.Path(path).exists() else "does not exist"
            raise InputError(f"{path} {what}; give an .npz file with an array x")
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is not an .npz file; write one with np.savez(path, x=x, y=y)")
        with archive:
            arrays = {key: archive[key] for key in archive.files if key in ("x", "y")}
            names = archive.files
    except InputError:
        raise
    except Exception as error:  # zipfile, OSError, ValueError: whatever a broken file raises
        raise InputError(f"{path} cannot be read as an .npz file: {error}") from error
    if "x" not in arrays:
        raise InputError(f"{path} has no array 'x'; it has: {', '.join(names) or 'none'}")
    examples = Examples.from_arrays(path, arrays["x"], arrays.get("y"))
    name, origin = pathlib.Path(path).name, functools.partial(load_npz, os.path.abspath(path))
    return dataclasses.replace(examples, name=name, path=path, origin=origin)


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
