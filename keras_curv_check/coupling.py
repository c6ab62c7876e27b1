"""Units of a layer that are bounded together: theorem 30.1.

For units C with `l ≤ z ≤ u`, `‖z_C − ẑ_C‖ ≤ ρ`, and any Λ, G and λ ≥ 0,

    Σ_C Λ_i relu(z_i)  ≥  Σ_C (G_i z_i + p_i) − λρ²/2,
    p_i = min over l_i ≤ s ≤ u_i of  Λ_i relu(s) − G_i s + (λ/2)(s − ẑ_i)².

If `‖z − ẑ‖ ≤ ρ_all` for all units, too, any H at the others and μ > 0 may join, theorem 30.3: p is
that of λ + μ, and `Σ (H_i (z_i − ẑ_i) − H_i²/2μ) − μρ_all²/2` is added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_curv_check.rounding import gamma

_HALVINGS, _RANGE = 5, 2.0**-6  # of an interval for λ in the logarithm, and its lower end
_SMALLEST = 1e-90  # λ


class Coupled(NamedTuple):
    """The units of a layer that are bounded together.

    Attributes:
        units: their indices, `(C,)`.
        low, high, centre: l, u and ẑ, `(C,)`, l ≤ ẑ ≤ u.
        ball, whole: ρ and ρ_all.
        others: ẑ of all other units, `(N,)`; 0 at `units`.
    """

    units: np.ndarray
    low: np.ndarray
    high: np.ndarray
    centre: np.ndarray
    ball: float
    whole: float
    others: np.ndarray

    def chosen(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns about the best G, `(m, C)`, and λ, `(m, 1)`, for Λ, `(m, C)`; any are sound."""
        low, high, centre = self.low, self.high, self.centre
        size = np.maximum(-rows, 0.0)
        most = np.maximum(np.sqrt((size**2).sum(axis=1)) / (2.0 * self.ball), _SMALLEST)
        least = _RANGE * most
        for _ in range(_HALVINGS):
            middle = np.sqrt(least * most)
            touch = size / (2.0 * middle[:, None])
            before = np.maximum(centre - np.maximum(low, -touch), 0.0)
            after = np.maximum(np.minimum(high, touch) - centre, 0.0)
            wide = (before * after).sum(axis=1) > self.ball**2
            least, most = np.where(wide, middle, least), np.where(wide, most, middle)
        room = ((size > 0.0) * (centre - low) * (high - centre)).sum(axis=1)
        multiplier = np.where(room > self.ball**2, np.sqrt(least * most), _SMALLEST)[:, None]
        touch = size / (2.0 * multiplier)
        from_low = np.minimum(high, low + 2.0 * np.sqrt(-touch * low))
        from_high = np.maximum(low, high - 2.0 * np.sqrt(touch * high))
        left = np.where(touch > high, from_high, np.maximum(low, -touch))
        right = np.where(touch > -low, from_low, np.minimum(high, touch))
        between = (left < centre) & (centre < right)
        bend = 0.5 * multiplier * (right - left) * (left + right - 2.0 * centre)
        tangent = rows * np.heaviside(centre, 0.5)
        return np.divide(rows * right + bend, right - left, out=tangent, where=between), multiplier

    def least(
        self,
        rows: np.ndarray,
        slopes: np.ndarray,
        multiplier: np.ndarray,
        shared: np.ndarray | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `Σ p − λρ²/2`, `(m,)`, for Λ, G `(m, C)`, λ, μ `(m, 1)`, and what it is off by.

        A computed minimiser lies in the interval; where it is off by e, p is (λ + μ)e²/2 too large.
        """
        half, centre = 0.5 * (multiplier + shared), self.centre
        left = np.clip(centre + slopes / (2.0 * half), self.low, 0.0)
        right = np.clip(centre + (slopes - rows) / (2.0 * half), 0.0, self.high)
        on_left = half * (left - centre) ** 2 - slopes * left
        on_right = half * (right - centre) ** 2 + (rows - slopes) * right
        far, ball = np.maximum(-self.low, self.high), 0.5 * multiplier[:, 0] * self.ball**2
        size = ((np.abs(rows) + 2.0 * np.abs(slopes)) * far + 8.0 * half * far**2).sum(axis=1)
        off = gamma(len(self.units) + 64) * (size + 2.0 * ball)
        return np.minimum(on_left, on_right).sum(axis=1) - ball, off

    def turned(self, turns: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns what H, `(m, N)`, and μ, `(m, 1)`, add beside `Σ H z`, and what it is off by."""
        half = 0.5 * shared[:, 0]
        lost = (turns**2).sum(axis=1) / (4.0 * half) + half * self.whole**2
        size = np.abs(turns) @ np.abs(self.others) + 2.0 * lost
        return -(turns @ self.others + lost), gamma(turns.shape[1] + 64) * size
