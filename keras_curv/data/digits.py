"""The embedded digits: 1,797 grey images of 8 × 8 pixels, whole numbers from 0 to 16.

`digits.npz` holds `images` and `target` of scikit-learn's `load_digits`, as uint8. They are the
test set of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/). Only the file format has been changed.

Every fifth of them is in our test set (360 images): their order follows the writers, so a cut in
two would hold out some writers.
"""

from __future__ import annotations

import pathlib

import numpy as np

from keras_curv.errors import InputError

_FILE = pathlib.Path(__file__).with_name("digits.npz")
_STRIDE = 5


def load_digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images, float32 in [0, 1], `(n, 8, 8, 1)`, and their labels, int64, `(n,)`.

    Args:
        split: "train" or "test".

    Raises:
        InputError: there is no such split.
    """
    if split not in ("train", "test"):
        raise InputError(f"the digits have the splits train and test. Received: {split!r}")
    with np.load(_FILE, allow_pickle=False) as archive:
        images, target = archive["images"], archive["target"]
    held_out = np.arange(len(target)) % _STRIDE == 0
    part = held_out if split == "test" else ~held_out
    x = (images / 16.0).astype(np.float32)[..., None]
    return x[part], target.astype(np.int64)[part]
