"""Ascent in the slopes and multipliers of coupled linear bounds, for margins.

With all slopes G and multipliers λ fixed, a pass back gives a lower bound of a margin on the ball,
`Λ_0 x + c − R ‖Λ_0‖`, whatever they are. It is concave in those of one layer, and its derivatives
cost one pass forward from the worst input `x* = x − R Λ_0 / ‖Λ_0‖` of the bound: with z* the
pre-activations there, each layer's values being those at which its p_i are attained,

    ∂/∂G_i = z*_i − s_i,     ∂/∂λ = ½ (Σ (s_i − ẑ_i)² − ρ²).

The curvature of p_i in G_i is 1/λ, so that λ times the derivative is a step of the right size for
one unit alone; as all move together, a tenth of it is taken.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.certificates.linear.linear_bounds import Balls
from keras_curv.numerics.rounding import TINY

_PART, _RATE = 0.1, 0.3  # of a step in slopes, and the exponent's step of multipliers
_STEPS, _LOOK = 20, 4  # at most; and after how many a hopeless ascent ends
_FASTER = 2.0  # than so far: what the rest of an ascent is trusted to gain
_RANGE = 1e-9, 1e9  # of multipliers, in units of their starts


def ascend(
    balls: Balls, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
) -> np.ndarray:
    """Returns proved lower bounds of one margin on each ball, `(n,)`; it ends where one is positive.

    Args:
        balls: with all hidden layers bounded and coupled, n of them.
        rows, constants, error: the margins as functions of the last hidden layer, `(n, 1, N)` and
            `(n, 1)`; see `Balls.minimum`.
    """
    best = np.full(len(rows), -np.inf)
    left, ascent = np.arange(len(rows)), _Ascent(balls, rows, constants, error)
    before = best
    for step in range(_STEPS + 1):
        best[left] = np.fmax(best[left], ascent.bound())
        if step == _STEPS:
            break
        going = ~(best[left] > 0.0)
        if step % _LOOK == 0:
            gained = (best - before)[left] * _FASTER * (_STEPS - step) / _LOOK
            going &= (step == 0) | (best[left] + gained > 0.0)
            before = best.copy()
        left = left[going]
        if not len(left):
            break
        ascent.take(going)
        ascent.step()
    return best


class _Ascent:
    """Slopes and multipliers of each layer, and the last pass back with them."""

    def __init__(
        self, balls: Balls, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ):
        self._balls, self._margin = balls, (rows, constants, error)
        depth = len(balls.layers)
        self._rows: list[np.ndarray] = [rows] * depth
        self._slopes: list[np.ndarray | None] = [None] * depth
        self._multipliers: list[np.ndarray] = [rows] * depth
        self._starts: list[np.ndarray] = [rows] * depth
        self._direction = rows

    def take(self, some: np.ndarray) -> None:
        """Goes on with some of the examples."""
        if some.all():
            return
        self._balls = self._balls.take(np.flatnonzero(some))
        self._margin = tuple(part[some] for part in self._margin)
        self._direction = self._direction[some]
        for parts in (self._rows, self._slopes, self._multipliers, self._starts):
            parts[:] = [part[some] for part in parts]

    def bound(self) -> np.ndarray:
        """Returns the bounds of a pass back, `(n,)`."""
        rows, constants, error = self._margin
        for index in reversed(range(len(self._balls.layers))):
            layer, affine = self._balls.layers[index], self._balls.network.affines[index]
            coupling = layer.coupling
            self._rows[index] = rows
            if self._slopes[index] is None:
                self._multipliers[index] = coupling.multipliers(rows)
                self._starts[index] = self._multipliers[index]
                self._slopes[index] = coupling.slopes(rows, self._multipliers[index])
            chosen = self._slopes[index], self._multipliers[index]
            rows, constants, error = layer.step(rows, constants, error, affine, chosen)
            rows, constants = self._balls.before(rows, index), constants + rows @ affine.bias
        value, self._direction = self._balls.inputs.minimum(rows, constants, error)
        return value[:, 0]

    def step(self) -> None:
        """Moves slopes and multipliers along the derivatives of the last bound."""
        balls = self._balls
        rows = self._direction[:, 0]
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        at = balls.x - balls.radius[:, None] * rows / np.maximum(length, TINY)
        limits = balls.network.limits
        at = at if limits is None else np.clip(at, *limits)
        for index, (layer, affine) in enumerate(
            zip(balls.layers, balls.network.affines, strict=False)
        ):
            coupling, rows, slopes = layer.coupling, self._rows[index], self._slopes[index]
            multiplier, start = self._multipliers[index], self._starts[index]
            z = at @ affine.kernel + affine.bias
            _, attained = coupling.minimisers(rows, slopes, multiplier)
            moved = ((attained - coupling.centre[:, None]) ** 2).sum(axis=-1, keepdims=True)
            share = np.clip(moved / coupling.ball[:, :, None] ** 2 - 1.0, -1.0, 1.0)
            fall = np.where(coupling.units[:, None], z[:, None] - attained, 0.0)
            moved_slopes = slopes + _PART * multiplier * fall
            self._slopes[index] = np.where(np.isfinite(moved_slopes), moved_slopes, slopes)
            larger = multiplier * np.exp(_RATE * np.nan_to_num(share))
            self._multipliers[index] = np.clip(larger, *(start * end for end in _RANGE))
            lines, positive = layer.lines, rows[:, 0] > 0.0
            slope = np.where(positive, lines.lower_slope, lines.upper_slope)
            shift = np.where(positive, lines.lower_intercept, lines.upper_intercept)
            at = np.where(coupling.units, np.maximum(attained[:, 0], 0.0), slope * z + shift)
