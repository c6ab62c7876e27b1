"""Bounds of what float64 rounding may hide, and float64 bounds of norms.

A sum of n products, in any order, is off by at most γ_n = nu/(1 − nu) times the sum of their
absolute values (Higham 2002, section 3.1). Numbers beyond 1e±100 are refused where they are used
(`require_moderate`), so that nothing overflows, and what underflows is covered by `TINY`.
"""

from __future__ import annotations

import numpy as np

UNIT, TINY = 2.0**-53, 1e-200
_LARGEST = 1e100


class NotProvedError(ValueError):
    """A bound that could not be proved, though another one may be; says why."""


def gamma(terms: int) -> float:
    """Returns γ_n from above."""
    return terms * UNIT * (1.0 + 2.0**-20) if terms < 2**30 else np.inf


def up(numbers: np.ndarray | float, terms: int = 1) -> np.ndarray:
    """Returns numbers ≥ 0 raised by what so many roundings may have taken."""
    return np.asarray(numbers) * (1.0 + gamma(terms + 4)) + TINY


def norms(rows: np.ndarray) -> np.ndarray:
    """Bounds l2 norms along the last axis from above."""
    largest = np.abs(rows).max(axis=-1, initial=TINY, keepdims=True)
    roots = np.sqrt(np.square(rows / largest).sum(axis=-1))
    return up(roots * largest[..., 0], rows.shape[-1])


def outward(centre: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `centre ± reach`, rounded outward."""
    wide = up(reach) + 2.0 * UNIT * np.abs(centre)
    return centre - wide, centre + wide


def require_moderate(*arrays: np.ndarray | float) -> None:
    """Refuses, by a NotProvedError, numbers that are not finite or beyond 1e100."""
    if not all(np.all(np.abs(array) < _LARGEST) for array in arrays):
        raise NotProvedError("a number is beyond 1e100")
