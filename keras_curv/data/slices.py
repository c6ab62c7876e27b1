"""Slices: examples by the values of an array that the model need not take."""

from __future__ import annotations

import dataclasses

import numpy as np

from keras_curv.errors import InputError, visible

KINDS = "fiubUS"  # of dtypes of an array to slice by, as NumPy abbreviates them
LARGEST = 2**27  # bytes of such an array
_MOST = 1000  # parts
LONGEST = 100  # characters of the name of a part


@dataclasses.dataclass(frozen=True)
class Slice:
    """A partition of examples into parts."""

    parts: tuple[str, ...]  # names of the parts: the values of the array, in order
    places: np.ndarray  # of each example's part among them, `(n,)`

    @classmethod
    def by(cls, name: str, values: np.ndarray, count: int) -> Slice:
        """Makes the partition by the values of an array.

        Args:
            name: of the array, for messages.
            values: numbers, truth values or text, `(n,)` or `(n, 1)`, n at least `count`.
            count: of the examples.

        Raises:
            InputError: the array has another shape or dtype, more than 1000 values, or one whose
                text is longer than 100 characters.

        Example:
            >>> site = Slice.by("site", np.array(["north", "south", "north"]), 3)
            >>> site.parts, site.places.tolist()
            (('north', 'south'), [0, 1, 0])
        """
        values = np.asarray(values)
        fits = values.ndim >= 1 and len(values) >= count and values.size == len(values)
        if not fits or values.dtype.kind not in KINDS:
            raise InputError(
                f"the slice {name!r} must be numbers, truth values or text, one for each of "
                f"{count} examples. Received: {values.dtype} {values.shape}"
            )
        known, places = np.unique(values.reshape(-1)[:count], return_inverse=True)
        if len(known) > _MOST:
            raise InputError(
                f"the slice {name!r} has {len(known)} different values, and {_MOST} are the most; "
                "put them into groups, as numpy.digitize does"
            )
        parts = tuple(_text(value) for value in known)
        if any(len(part) > LONGEST for part in parts):
            raise InputError(f"the slice {name!r} has a value of more than {LONGEST} characters")
        return cls(parts, places.reshape(-1))


def _text(value: np.generic) -> str:
    text = value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)
    return visible(text) or "(empty)"
