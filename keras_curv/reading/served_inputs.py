"""Examples as a served model takes them: checked, in its dtype, and how far that moved them."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np

from keras_curv.errors import InputError, wrong_labels
from keras_curv.numerics.rounding import norm_bound
from keras_curv.reading.served_model import ServedModel

_CHECKED = 32  # examples on which the read network is held against the signature
_USUAL = 2.0**40


class CheckedInputs(NamedTuple):
    """Examples that a model can be certified at."""

    flat: np.ndarray  # as served, `(n, dim)`, in the dtype of the model
    label: np.ndarray | None  # `(n,)`, int64; None where there are none
    moved: np.ndarray  # bounds of how far that dtype moved each example, `(n,)`


class ServedInputs:
    """The inputs of one model.

    Args:
        served: the model.
        labels: how many there are, from 0 on; None: as many as classes.

    Example:
        >>> from keras_curv import data, read
        >>> x, y = data.load_all("digits")
        >>> inputs = ServedInputs(read("saved_models/digits"))
        >>> flat, label, moved = inputs.checked(x[:2] + np.float64(1e-9), y[:2])
        >>> flat.shape, flat.dtype.name, label.tolist(), moved.round(10)
        ((2, 64), 'float32', [0, 5], array([5.9e-09, 5.6e-09]))
    """

    def __init__(self, served: ServedModel, labels: int | None = None):
        self._served = served
        self._label_count = served.network.classes if labels is None else labels
        self._checked = False

    def checked(
        self, x: np.ndarray, y: np.ndarray | None = None, first_index: int = 0
    ) -> CheckedInputs:
        """Checks and converts one batch; the first is also run through the model's own signature.

        Args:
            x: `(n, *input shape)`, in the model's own units; of several inputs `(n, total)`, joined
                in the order of `ServedModel.inputs`, or name → array.
            y: `(n,)` integers, or None.
            first_index: of the first example, for messages.

        Raises:
            InputError: wrong shape, NaN or infinite entries, what the model's dtype cannot hold,
                labels out of range, or a model whose signature disagrees with what was read.
        """
        converted, moved = self._as_served(self._served.inputs.joined(x), first_index)
        label = None if y is None else self._labels(np.asarray(y), len(converted), first_index)
        self._check_signature(converted)
        return CheckedInputs(self._flat(converted), label, moved)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), self._served.network.dim)

    def _check_signature(self, converted: np.ndarray) -> None:
        """Checks the signature once, on the first examples at which no model overflows."""
        if self._checked:
            return
        size = np.abs(self._flat(converted).astype(np.float64))
        usual = converted[size.max(axis=1, initial=0.0) < _USUAL]
        if len(converted):
            self._served.check(usual[:_CHECKED])
            self._checked = len(usual) > 0

    def _as_served(self, x: np.ndarray, first_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns x in the dtype of the model, and bounds of how far that moved each example."""
        served = self._served
        if x.dtype.kind not in "fiu":
            raise InputError(f"x must hold numbers. Received: {x.dtype}")
        self._refuse_where(~np.isfinite(x), first_index, "has NaN or infinite entries")
        exact, lost = in_float64(x)
        self._refuse_where(lost, first_index, f"has {x.dtype} entries that float64 cannot hold")
        target = exact
        dtype = served.input_dtype.as_numpy_dtype
        name = served.input_dtype.name
        if np.issubdtype(dtype, np.integer):
            limits, target = np.iinfo(dtype), np.rint(exact)
            fits = (target >= limits.min) & (target <= limits.max)
            near = np.abs(target - exact) <= 1e-5 * np.maximum(1.0, np.abs(exact))
            self._refuse_where(
                ~(fits & near),
                first_index,
                f"is not of whole numbers in the range of {name}, which {served.source} takes "
                "(pixels in [0, 1] need an input scale of 255)",
            )
        converted = served.inputs.rounded(target)
        back = converted.astype(np.float64)
        self._refuse_where(~np.isfinite(back), first_index, f"overflows {name}")
        return converted, norm_bound(self._flat(exact - back), axis=1)

    def _refuse_where(self, bad: np.ndarray, first_index: int, what: str) -> None:
        rows = self._flat(bad).any(axis=1)
        if rows.any():
            raise InputError(f"example {first_index + rows.argmax()} {what}")

    def _labels(self, y: np.ndarray, count: int, first_index: int) -> np.ndarray:
        classes = self._label_count
        if not classes:
            raise InputError("y means nothing here: there are no labels; leave it out")
        if y.shape == (count, 1):
            y = y[:, 0]
        if y.dtype == object and all(isinstance(label, (int, np.integer)) for label in y.flat):
            with contextlib.suppress(OverflowError):  # then it stays what is refused
                y = y.astype(np.int64)
        if y.shape != (count,) or y.dtype.kind not in "iu":
            raise wrong_labels(y, count)
        bad = (y < 0) | (y >= classes)
        if bad.any():
            where = int(bad.argmax())
            raise InputError(
                f"example {first_index + where} has label {y[where]}, but {self._served.source} "
                f"has {classes} classes (0 to {classes - 1})"
            )
        return y.astype(np.int64)


def in_float64(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns examples as float64, and which entries it cannot hold.

    Example:
        >>> in_float64(np.array([2**53, 2**53 + 1]))[1]
        array([False,  True])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exact = x.astype(np.float64)
        return exact, exact.astype(x.dtype) != x
