"""Examples as pictures: PNG in a `data:` address, nothing to fetch."""

from __future__ import annotations

import base64

import numpy as np
import tensorflow as tf

LARGEST = 256  # pixels of a side; of larger images every second, third, … pixel is drawn
_MORE, _NONE, _LESS = np.array([[213, 94, 0], [255, 255, 255], [0, 114, 178]], np.float64)


def is_image(shape: tuple[int, ...]) -> bool:
    """Returns whether such an example is drawn: rows and columns, in grey or three colours."""
    return len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))


def value_range(x: np.ndarray) -> tuple[float, float]:
    """Returns the values that are drawn black and white.

    Args:
        x: all examples that are drawn, in the units of the data set.
    """
    if np.issubdtype(x.dtype, np.uint8):
        return 0.0, 255.0
    least, largest = float(x.min()), float(x.max())
    if least >= 0.0 and largest <= 1.0:
        return 0.0, 1.0
    return (least, largest) if largest > least else (least, least + 1.0)


def image(x: np.ndarray, limits: tuple[float, float]) -> str:
    """Draws an example and returns its address; what is out of range is clipped.

    Args:
        x: of a shape that `is_image`.
        limits: see `value_range`.
    """
    low, high = limits
    return _address(255.0 * (_three_colours(x) - low) / (high - low))


def is_coloured(shape: tuple[int, ...]) -> bool:
    """Returns whether an image of this shape has three channels."""
    return shape[2:] == (3,)


def difference(delta: np.ndarray) -> str:
    """Draws a difference, its largest entry in full colour, and returns its address.

    In grey images orange is more, blue is less, and white is no change; in coloured ones every
    channel is moved away from mid-grey.
    """
    largest = np.abs(delta).max()
    share = _three_colours(delta / largest if largest > 0.0 else delta)
    if is_coloured(delta.shape):
        return _address(127.5 * (1.0 + share))
    return _address(_NONE + np.abs(share) * (np.where(share > 0.0, _MORE, _LESS) - _NONE))


def _three_colours(x: np.ndarray) -> np.ndarray:
    """Returns an image as `(rows, columns, 3)`, at most `LARGEST` rows and columns."""
    step = -(-max(x.shape[:2]) // LARGEST)
    x = np.asarray(x, np.float64)[::step, ::step]
    x = x[..., None] if x.ndim == 2 else x
    return np.broadcast_to(x, (*x.shape[:2], 3))


def _address(pixels: np.ndarray) -> str:
    content = tf.io.encode_png(np.rint(np.clip(pixels, 0.0, 255.0)).astype(np.uint8)).numpy()
    return "data:image/png;base64," + base64.b64encode(content).decode()
