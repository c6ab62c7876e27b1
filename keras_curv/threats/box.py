"""Reach of an attacker confined to a box, and the least value of a linear function there.

Over `‖e‖ ≤ R` and `−down ≤ e ≤ up`, by weak duality, for every λ ≥ 0,

    Λ·e  ≥  −λR²/2 + Σ_i min over 0 ≤ ε ≤ lim_i of −|Λ_i|ε + λε²/2,

lim_i the limit in the direction of −Λ_i, and the minimum is at `ε = min(|Λ_i|/λ, lim_i)`. At the
best λ the bound is equal to the minimum (water-filling: coordinates grow until their limits).

It is computed in units of R, so that R is never squared: with `ε = R ε'` and `λR` for λ the bound
is R times that for R = 1 and the limits `lim_i / R`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_curv.network.network import FeedForward
from keras_curv.numerics.rounding import SLOPE_FLOOR, TINY, UNIT, gamma, up
from keras_curv.threats.confined import Reach

_FILLINGS = 6  # steps of λ, from above; each puts more coordinates at their limits


def box_reach(network: FeedForward, x: Any, library: Any = np) -> Reach:
    """Returns how far the entries of x can move under a network's limits; 0 if they are pinned.

    If rounding has put x outside, it can move back. Positive room below 2⁻¹⁰²² is raised to 2⁻¹⁰²²,
    because TensorFlow would flush it to 0.

    Args:
        network: a network with limits.
        x: `(n, dim)`: an array, float64, or in training a tensor.
        library: NumPy, or TensorFlow, which may flush numbers below 2⁻¹⁰²² before they get here.
    """
    assert network.limits is not None
    low, high = network.limits
    where, none = library.where, library.zeros_like(x)
    with np.errstate(over="ignore"):
        room = [library.maximum(part, 0.0) * (1.0 + 4.0 * UNIT) for part in (high - x, x - low)]
    room = [where(part > 0.0, library.maximum(part, TINY), none) for part in room]
    if network.pinned is not None:
        room = [where(network.pinned, none, part) for part in room]
    return Reach(room[0], room[1], none, none, library.ones(low.shape, x.dtype))


def least_linear(rows: np.ndarray, reach: Reach, radius: np.ndarray) -> np.ndarray:
    """Returns lower bounds on `Λ·e` over ball and box, `(n, m)`, rounding charged.

    Args:
        rows: Λ, `(n or 1, m, dim)`.
        reach: arrays `(n, dim)`; its costs and dead zones are ignored.
        radius: R, `(n,)`.
    """
    with np.errstate(all="ignore"):  # a NaN falls back to the bound of the ball
        size, rho = np.abs(rows), radius[:, None]
        upward, downward = (up(part / rho) + TINY for part in (reach.up, reach.down))
        limit = np.where(rows < 0.0, upward[:, None], downward[:, None])
        length = np.sqrt(np.sum(size * size, axis=-1))
        plain = -up(rho * (length + SLOPE_FLOOR), rows.shape[-1] + 8)
        lam = length
        for _ in range(_FILLINGS):
            full = size > lam[..., None] * limit
            left = 1.0 - np.sum(np.where(full, limit, 0.0) ** 2, axis=-1)
            open_ = np.sum(np.where(full, 0.0, size) ** 2, axis=-1)
            lam = np.where(left > 0.0, np.fmin(np.sqrt(open_ / left), lam), lam)
        move = np.where(size > 0.0, np.fmin(size / lam[..., None], limit), 0.0)
        linear = np.sum(size * move, axis=-1)
        bent = 0.5 * lam * np.sum(move * move, axis=-1)
        paid = 0.5 * lam
        # Underflow of the products is less than the floor.
        error = gamma(rows.shape[-1] + 32) * (linear + bent + paid) + SLOPE_FLOOR
        found = rho * (bent - linear - paid - up(error)) - TINY
        return np.fmax(plain, found)
