"""Ascent in the slopes and multipliers of coupled linear bounds, for margins.

With all slopes G and multipliers λ fixed, a pass back gives a lower bound of a margin on the ball,
`Λ_0 x + c − R ‖Λ_0‖`, whatever they are. It is concave in those of one layer, and its derivatives
cost one pass forward from the worst input `x* = x − R Λ_0 / ‖Λ_0‖` of the bound: with z* the
pre-activations there, each layer's values being those at which its p_i are attained, or a mean
where there are two such places,

    ∂/∂G_i = z*_i − s_i,     ∂/∂λ = ½ (Σ (s_i − ẑ_i)² − ρ²).

The curvature of p_i in G_i is 1/λ, so that λ times the derivative is a step of the right size for
one unit alone. As all move together, a small part of it is taken, with momentum (Polyak's heavy
ball); so are steps of log λ. On plainly trained nets plain steps gain half as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.linear.bounds.linear_bounds import Balls

_PART, _RATE, _KEPT = 0.03, 0.08, 0.7  # of steps in slopes and in log λ, and of the last step
_STEPS, _LOOK = 40, 5  # at most; and after how many it is seen whether to go on
_FASTER = 1.5  # than so far: what the rest of an ascent is trusted to gain
_CLOSE = 0.02  # gain of a positive bound, by `_LOOK` steps, below which it is not worth more
_RANGE = 1e-3, 1e6  # of multipliers, in units of their scale
_LEAST = 0.3  # of that scale: the multiplier by which a smaller one is taken to step


class Witness(NamedTuple):
    """Slopes and multipliers of each hidden layer, for the margins of n pairs.

    Attributes:
        slopes: `(n, 1, N)` each.
        multipliers: `(n, 1, 1)` each; NaN where nothing is chosen yet.
    """

    slopes: list[np.ndarray]
    multipliers: list[np.ndarray]

    def take(self, some: np.ndarray | slice) -> Witness:
        """Returns those of some of the pairs."""
        return Witness(*([part[some] for part in parts] for parts in self))

    def put(self, some: np.ndarray | slice, other: Witness) -> None:
        """Replaces those of some of the pairs."""
        for mine, theirs in zip(self, other, strict=True):
            for array, part in zip(mine, theirs, strict=True):
                array[some] = part

    @classmethod
    def nothing(cls, count: int, sizes: Sequence[int]) -> Witness:
        """Returns that of pairs for which nothing is chosen."""
        slopes = [np.zeros((count, 1, size)) for size in sizes]
        return cls(slopes, [np.full((count, 1, 1), np.nan) for _ in sizes])


def ascend(
    balls: Balls, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, start: Witness
) -> tuple[np.ndarray, Witness]:
    """Returns proved lower bounds of one margin on each ball, `(n,)`, and where they are attained.

    It ends early where no positive one is to be expected.

    Args:
        balls: with all hidden layers bounded and coupled, n of them.
        rows, constants, error: the margins as functions of the last hidden layer, `(n, 1, N)` and
            `(n, 1)`; see `Balls.minimum`.
        start: slopes and multipliers to start from, perhaps of other balls.
    """
    best, at = np.full(len(rows), -np.inf), start.take(np.arange(len(rows)))
    left, ascent = np.arange(len(rows)), Ascent(balls, rows, constants, error, start)
    before = np.full(len(rows), -1e300)
    for step in range(_STEPS + 1):
        value = ascent.bound()
        better = value > best[left]
        best[left[better]] = value[better]
        at.put(left[better], ascent.now.take(better))
        going = np.isfinite(best[left]) & (step < _STEPS)
        if step and step % _LOOK == 0:
            gained = (best - before)[left]
            hopeful = best[left] + gained * _FASTER * (_STEPS - step) / _LOOK > 0.0
            going &= np.where(best[left] > 0.0, gained > _CLOSE * best[left], hopeful)
            before = best.copy()
        left = left[going]
        if not len(left):
            return best, at
        ascent.take(going)
        ascent.step()
    return best, at


class Ascent:
    """Slopes and multipliers of each layer, and the last pass back with them."""

    def __init__(
        self,
        balls: Balls,
        rows: np.ndarray,
        constants: np.ndarray,
        error: np.ndarray,
        start: Witness,
    ):
        self.now, self._balls, self._margin = start, balls, (rows, constants, error)
        self._begun = False
        depth = len(balls.layers)
        self._rows = [rows] * depth
        self._scales = list(start.multipliers)
        self._turns = [np.zeros_like(slopes) for slopes in start.slopes]
        self._growth = [np.zeros_like(multiplier) for multiplier in start.multipliers]
        self._direction = rows

    def take(self, some: np.ndarray) -> None:
        """Goes on with some of the pairs."""
        if some.all():
            return
        self._balls = self._balls.take(np.flatnonzero(some))
        rows, constants, error = self._margin
        self._margin = rows[some], constants[some], error[some]
        self.now, self._direction = self.now.take(some), self._direction[some]
        for parts in (self._rows, self._scales, self._turns, self._growth):
            parts[:] = [part[some] for part in parts]

    def bound(self) -> np.ndarray:
        """Returns the bounds of a pass back, `(n,)`."""
        rows, constants, error = self._margin
        for index in reversed(range(len(self._balls.layers))):
            layer, affine = self._balls.layers[index], self._balls.network.affines[index]
            self._rows[index] = rows
            if not self._begun:
                self._begin(index, rows)
            chosen = self.now.slopes[index], self.now.multipliers[index]
            rows, constants, error = layer.step(rows, constants, error, affine, chosen)
            rows, constants = self._balls.before(rows, index), constants + rows @ affine.bias
        self._begun = True
        bounds, self._direction = self._balls.inputs.minimum(rows, constants, error)
        return np.where(np.isnan(bounds[:, 0]), -np.inf, bounds[:, 0])

    def _begin(self, index: int, rows: np.ndarray) -> None:
        """Chooses the first slopes and multipliers of a layer, or keeps those of the start."""
        coupling = self._balls.layers[index].coupling
        assert coupling is not None
        known, slopes = self.now.multipliers[index], self.now.slopes[index]
        bent = coupling.bent(rows)
        scale = coupling.scale(bent)
        multiplier = np.where(np.isfinite(known), known, coupling.multipliers(bent))
        usual = coupling.slopes(bent, multiplier)
        # A unit that had no slope was not coupled on other balls.
        slopes = np.where(np.isfinite(known) & (slopes != 0.0), slopes, usual)
        self.now.slopes[index] = np.where(coupling.units[:, None], slopes, 0.0)
        self.now.multipliers[index], self._scales[index] = multiplier, scale

    def step(self) -> None:
        """Moves slopes and multipliers along the derivatives of the last bound."""
        balls, direction = self._balls, self._direction[:, 0]
        at = balls.inputs.against(direction)
        for index, layer in enumerate(balls.layers):
            affine, coupling, rows = balls.network.affines[index], layer.coupling, self._rows[index]
            assert coupling is not None
            slopes, multiplier = self.now.slopes[index], self.now.multipliers[index]
            z = at @ affine.thin_kernel + affine.bias
            bent = coupling.bent(rows)
            attained, hinge = coupling.attained(bent, slopes, multiplier, z[:, None])
            moved = ((attained - coupling.centre[:, None]) ** 2).sum(axis=-1, keepdims=True)
            share = np.clip(moved / coupling.ball[:, :, None] ** 2 - 1.0, -1.0, 1.0)
            fall = np.where(coupling.units[:, None], z[:, None] - attained, 0.0)
            stride = _PART * np.maximum(multiplier, _LEAST * self._scales[index])
            turn = np.nan_to_num(stride * fall) + _KEPT * self._turns[index]
            rate = _RATE * np.nan_to_num(share)
            growth = np.clip(rate + _KEPT * self._growth[index], -1.0, 1.0)
            self._turns[index], self._growth[index] = turn, growth
            self.now.slopes[index] = slopes + turn
            least, most = (self._scales[index] * end for end in _RANGE)
            self.now.multipliers[index] = np.clip(multiplier * np.exp(growth), least, most)
            lines, positive = layer.lines, rows[:, 0] > 0.0
            slope = np.where(positive, lines.lower_slope, lines.upper_slope)
            shift = np.where(positive, lines.lower_intercept, lines.upper_intercept)
            value = coupling.value(z, hinge[:, 0])
            at = np.where(coupling.units, value, slope * z + shift)
