"""What every method of certification takes and returns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# (x (n, dim), label (n,), rivals (n, k), radius (n, k)) -> what serving may take off the margin, (n, k)
ServedError = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def no_error(x, label, rivals, radius) -> np.ndarray:
    """Of real arithmetic: none."""
    return np.zeros(np.shape(rivals))
