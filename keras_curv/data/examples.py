"""A data set as a stream of batches, made of arrays or of what reads them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from keras_curv.data.joined import Shaped, joined
from keras_curv.data.slices import Slice
from keras_curv.errors import InputError, wrong_labels

_READ_AT_ONCE = 256  # examples, to find a few again


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data set as a stream of batches, so that memory does not grow with it.

    Attributes:
        name: what reports call the set.
        count: number of examples.
        shape: shape of one input.
        batches: `batches(size, start)` yields `(x, y)` from example `start` on; `x` is
            `(n, *shape)` and `y` is `(n,)` int64, or None where there are no labels.
        reshapable: whether unit axes may be dropped or added, and images flattened, to fit a
            model. True for named data sets, where it is clear what an axis means.
        fingerprint: tells these examples from others of the same name, so that no run goes on
            with others than it began with.
        path: file that they come from; None where there is none.
        inputs: name → shape, where each example is joined of several arrays, in order of names;
            None where it is one array.
        origin: loads them again, in whatever process it is called; None where they are in memory
            only.
        slices: name → the parts that the examples may be counted by.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    batches: Callable[..., Iterator[tuple[np.ndarray, np.ndarray | None]]]
    fingerprint: str
    reshapable: bool = False
    path: str | None = None
    inputs: Mapping[str, tuple[int, ...]] | None = None
    origin: Callable[[], Examples] | None = None
    slices: Mapping[str, Slice] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        x: np.ndarray | Mapping[str, np.ndarray],
        y: np.ndarray | None = None,
        *,
        reshapable: bool = False,
        slices: Mapping[str, np.ndarray] | None = None,
    ) -> Examples:
        """Makes a stream of arrays that are in memory.

        Args:
            name: what reports and messages call them.
            x: numbers, `(n, …)`, n at least 1; or name → such an array, for each of several inputs.
            y: integers, `(n,)`; None: no labels.
            reshapable: see above.
            slices: name → `(n,)` numbers, truth values or text to count the examples by; see
                `ExampleOptions.slices`.

        Raises:
            InputError: an array has another shape or dtype.

        Example:
            >>> examples = Examples.from_arrays("mine", np.zeros((3, 2)), np.array([0, 1, 0]))
            >>> examples.count, examples.shape
            (3, (2,))
        """
        inputs = None
        if isinstance(x, Mapping):
            arrays = {key: np.asarray(array) for key, array in x.items()}
            inputs = {key: array.shape[1:] for key, array in arrays.items()}
            x = joined(arrays)
        x, y = np.asarray(x), None if y is None else np.asarray(y)
        require_fitting(name, x, y)
        y = None if y is None else as_labels(y)

        def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
            for begin in range(start, len(x), size):
                stop = begin + size
                yield x[begin:stop], None if y is None else y[begin:stop]

        known = name, len(x), x.shape[1:], batches, fingerprint_of(x, y), reshapable
        parts = {key: Slice.by(key, array, len(x)) for key, array in (slices or {}).items()}
        return cls(*known, inputs=inputs, slices=parts)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads all examples into memory, `(x, y)`; they must have labels."""
        xs, ys = zip(*self.batches(4096, 0), strict=True)
        return np.concatenate(xs), np.concatenate(ys)

    def at(self, indices: Sequence[int]) -> np.ndarray:
        """Reads a few examples, `(len(indices), *shape)`, in one pass.

        Raises:
            InputError: the stream has become shorter.
        """
        wanted = set(indices)
        found: dict[int, np.ndarray] = {}
        start = min(wanted)
        for x, _ in self.batches(_READ_AT_ONCE, start):
            inside = wanted.intersection(range(start, start + len(x)))
            found |= {index: np.array(x[index - start]) for index in inside}
            start += len(x)
            if len(found) == len(wanted):
                return np.stack([found[index] for index in indices])
        raise InputError(f"{self.name} has no example {min(wanted - found.keys())} any more")

    def unlabelled(self) -> Examples:
        """Returns the same examples without their labels."""

        def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, None]]:
            yield from ((x, None) for x, _ in self.batches(size, start))

        origin = self.origin and functools.partial(_unlabelled, self.origin)
        return dataclasses.replace(self, batches=batches, origin=origin)

    def limited(self, limit: int | None) -> Examples:
        """Returns the first `limit` examples; None keeps them all."""
        if limit is None or limit >= self.count:
            return self
        if limit < 1:
            raise InputError(f"the limit must be at least 1. Received: {limit}")

        def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
            left = limit - start
            for x, y in self.batches(size, start):
                if left <= 0:
                    return
                yield x[:left], None if y is None else y[:left]
                left -= len(x)

        origin = self.origin and functools.partial(_limited, self.origin, limit)
        return dataclasses.replace(self, count=limit, batches=batches, origin=origin)


def require_fitting(name: str, x: Shaped, y: Shaped | None) -> None:
    """Refuses arrays that are no examples, or labels of others.

    Args:
        name: for messages.
        x: inputs, `(n, …)`.
        y: labels, `(n,)` or `(n, 1)`; None: there are none.

    Raises:
        InputError: a shape or a dtype is another.
    """
    if len(x.shape) < 2 or 0 in x.shape:
        what = "not empty" if 0 in x.shape else "of which one is x[None]"
        raise InputError(f"{name}: x must be (examples, …), {what}. Received: {x.shape}")
    if x.dtype.kind not in "fiu":
        raise InputError(f"{name}: x must hold numbers. Received: {x.dtype}")
    known = x.shape[:1], (x.shape[0], 1)
    if y is not None and (y.shape not in known or y.dtype.kind not in "iu"):
        raise wrong_labels(y, x.shape[0], name)


def as_labels(y: np.ndarray) -> np.ndarray:
    """Returns labels, which may be a column, as int64, `(n,)`.

    Raises:
        InputError: they do not fit.
    """
    if y.max(initial=0) >= 2**63:
        raise InputError(f"labels must fit int64. Received: {y.max()}")
    return y.astype(np.int64).reshape(len(y))


def fingerprint_of(*arrays: np.ndarray | None) -> str:
    """Returns the SHA-256 of arrays, their dtypes and their shapes; None is passed over."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _unlabelled(origin: Callable[[], Examples]) -> Examples:
    return origin().unlabelled()


def _limited(origin: Callable[[], Examples], limit: int) -> Examples:
    return origin().limited(limit)
