"""Ascent in the slopes and multipliers of coupled linear bounds, for margins.

With all slopes G, H and multipliers λ, μ fixed (`coupling.py`), a pass back gives a lower bound of
a margin on the ball, `Λ_0 x + c − R ‖Λ_0‖`, whatever they are. It is concave in those of one layer,
and its derivatives cost one pass forward from the bound's worst input, `x* = x − R Λ_0 / ‖Λ_0‖`:
with z* the pre-activations there, each layer's values being those at which its minima are attained,
at s, or a mean where there are two such places,

    ∂/∂G_i = ∂/∂H_i = z*_i − s_i,
    ∂/∂λ = ½ (Σ_C (s_i − ẑ_i)² − ρ²),     ∂/∂μ = ½ (Σ (s_i − ẑ_i)² − ρ_all²).

The curvature of a minimum in its slope is 1/(λ + μ), in H it is 1/μ, so that such a multiple of the
derivative is a step of the right size for one unit alone. As all move together, a small part of it
is taken, with momentum (Polyak's heavy ball); so are steps of log λ and log μ.

The closer ρ is to ρ_all, the more of the first λ goes to μ, which bounds all units at this price.
On trained nets with orthonormal kernels ρ is 0.99 ρ_all, on plainly trained ones 0.3 to 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.linear.bounds.coupling import SMALLEST, Choice
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.numerics.rows import row_norms, times

_PART, _RATE, _KEPT = 0.03, 0.08, 0.85  # of steps in slopes and in log λ, and of the last step
_STEPS, _LOOK = 40, 5  # at most; and after how many it is seen whether to go on
_FASTER = 1.5  # than so far: what the rest of an ascent is trusted to gain
_CLOSE = 0.02  # gain of a positive bound, by `_LOOK` steps, below which it is not worth more
_RANGE = 1e-6, 1e6  # of multipliers, in units of their scale
_ALIKE = 16  # power of ρ/ρ_all: the share of μ at first
_LEAST = 0.3  # of that scale: the multiplier by which a smaller one is taken to step


class Witness(NamedTuple):
    """What is chosen at each hidden layer, for the margins of n pairs.

    Attributes:
        layers: of one row each; multipliers are NaN where nothing is chosen yet.
    """

    layers: list[Choice]

    def take(self, some: np.ndarray | slice) -> Witness:
        """Returns those of some of the pairs."""
        return Witness([Choice(*(part[some] for part in choice)) for choice in self.layers])

    def put(self, some: np.ndarray | slice, other: Witness) -> None:
        """Replaces those of some of the pairs."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for array, part in zip(mine, theirs, strict=True):
                array[some] = part

    @property
    def chosen(self) -> np.ndarray:
        """Returns whether anything is chosen, `(n,)`."""
        return ~np.isnan(self.layers[0].multiplier[:, 0, 0])

    @property
    def numbers(self) -> np.ndarray:
        """Returns those of one pair as one vector: G of all layers, then H, then λ and μ."""
        slopes, turns = ([np.ravel(choice[part]) for choice in self.layers] for part in (0, 1))
        return np.concatenate(slopes + turns + [np.ravel(choice[2:]) for choice in self.layers])

    @classmethod
    def nothing(cls, count: int, sizes: Sequence[int]) -> Witness:
        """Returns that of pairs for which nothing is chosen."""
        return cls([Choice.nothing(count, size) for size in sizes])


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
        self._rows = [rows] * len(start.layers)
        self._scales = [np.zeros((len(rows), 1, 2)) for _ in start.layers]
        self._growth = [np.zeros_like(scale) for scale in self._scales]
        self._momentum = [np.zeros_like(choice.slopes) for choice in start.layers]
        self._direction = rows

    def take(self, some: np.ndarray) -> None:
        """Goes on with some of the pairs."""
        if some.all():
            return
        self._balls = self._balls.take(np.flatnonzero(some))
        rows, constants, error = self._margin
        self._margin = rows[some], constants[some], error[some]
        self.now, self._direction = self.now.take(some), self._direction[some]
        for parts in (self._rows, self._scales, self._momentum, self._growth):
            parts[:] = [part[some] for part in parts]

    def bound(self) -> np.ndarray:
        """Returns the bounds of a pass back, `(n,)`."""
        rows, constants, error = self._margin
        for index in reversed(range(len(self._balls.layers))):
            layer, affine = self._balls.layers[index], self._balls.network.affines[index]
            self._rows[index] = rows
            if not self._begun:
                self._begin(index, rows)
            rows, constants, error = layer.step(
                rows, constants, error, affine, self.now.layers[index]
            )
            constants = constants + rows @ affine.bias
            rows = times(rows, affine.thin_transpose)
        self._begun = True
        bounds, self._direction = self._balls.inputs.minimum(rows, constants, error)
        return np.where(np.isnan(bounds[:, 0]), -np.inf, bounds[:, 0])

    def _begin(self, index: int, rows: np.ndarray) -> None:
        """Makes the first choice at a layer, or keeps that of the start."""
        layer, known = self._balls.layers[index], self.now.layers[index]
        coupling = layer.coupling
        assert coupling is not None
        bent, alone = coupling.bent(rows), layer.straight(rows)
        whole = row_norms(np.where(coupling.units[:, None], bent, alone))[..., None]
        scale = coupling.scale(bent), whole / (2.0 * coupling.whole[:, None])
        share = np.clip((coupling.ball / coupling.whole) ** _ALIKE, _RANGE[0], 1.0)[:, None]
        share = np.nan_to_num(share, nan=_RANGE[0])
        anew = ~np.isfinite(known.multiplier)
        own = coupling.multipliers(bent) if anew.any() else known.multiplier
        first = (1.0 - share) * own, share * scale[1]
        both = (np.where(anew, *pair) for pair in zip(first, known[2:], strict=True))
        multiplier, shared = (np.maximum(each, SMALLEST) for each in both)
        usual = coupling.slopes(bent, multiplier + shared)
        # A unit that had no slope was not coupled on other balls.
        slopes = np.where(anew | (known.slopes == 0.0), usual, known.slopes)
        slopes = np.where(coupling.units[:, None], slopes, 0.0)
        turns = np.where(anew, -0.5 * share * alone, known.turns)
        turns = np.where(coupling.units[:, None], 0.0, turns)
        self.now.layers[index] = Choice(slopes, turns, multiplier, shared)
        self._scales[index] = np.concatenate(scale, axis=-1)

    def step(self) -> None:
        """Moves slopes and multipliers along the derivatives of the last bound."""
        balls, direction = self._balls, self._direction[:, 0]
        at = balls.inputs.against(direction)
        for index, layer in enumerate(balls.layers):
            affine, coupling, rows = balls.network.affines[index], layer.coupling, self._rows[index]
            assert coupling is not None
            scale, inside = self._scales[index], coupling.units[:, None]
            z = at @ affine.thin_kernel + affine.bias
            slopes, turns, multiplier, shared = self.now.layers[index]
            args = coupling.bent(rows), slopes, multiplier + shared, z[:, None]
            attained, hinge = coupling.attained(*args)
            attained += coupling.others[:, None] + turns / shared
            bend = np.maximum(multiplier + shared, _LEAST * scale[..., :1])
            stride = _PART * np.where(inside, bend, shared)
            move = np.nan_to_num(stride * (z[:, None] - attained)) + _KEPT * self._momentum[index]
            rate = _RATE * np.nan_to_num(np.clip(coupling.moved(attained) - 1.0, -1.0, 1.0))
            growth = np.clip(rate + _KEPT * self._growth[index], -1.0, 1.0)
            self._momentum[index], self._growth[index] = move, growth
            least, most = (scale * end for end in _RANGE)
            grown = np.concatenate([multiplier, shared], axis=-1) * np.exp(growth)
            self.now.layers[index] = Choice(
                slopes + np.where(inside, move, 0.0),
                turns + np.where(inside, 0.0, move),
                *np.split(np.clip(grown, least, most), 2, axis=-1),
            )
            lines, positive = layer.lines, rows[:, 0] > 0.0
            slope = np.where(positive, lines.lower_slope, lines.upper_slope)
            shift = np.where(positive, lines.lower_intercept, lines.upper_intercept)
            value = coupling.value(z, hinge[:, 0])
            at = np.where(coupling.units, value, slope * z + shift)
