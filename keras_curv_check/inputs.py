"""The inputs that a linear bound is about: a ball, or the part of it that is in a box."""

from __future__ import annotations

import dataclasses

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, dot, up, vector
from keras_curv_check.confined import Room, minorant_left
from keras_curv_check.rounding import TINY, gamma, norms
from keras_curv_check.rounding import up as raised

_HALVINGS = 60  # of an interval for a multiplier


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """A ball around an input.

    Attributes:
        x: its centre, `(dim,)`.
        exactly: its radius.
        room: how far each entry can go; None: anywhere.
    """

    x: np.ndarray
    exactly: arb
    room: Room | None = None

    @property
    def radius(self) -> float:
        """Bounds the radius from above."""
        return up(self.exactly)

    @property
    def centre(self) -> Vector:
        """Returns x as exact balls."""
        return vector(self.x)

    def least(self, constant: float, row: np.ndarray) -> arb:
        """Bounds `Λ x + c` from below, for a row Λ."""
        gradient, none = vector(row), [ZERO] * len(row)
        value = arb(constant) + dot(gradient, self.centre)
        return minorant_left(value, gradient, none, ZERO, self.exactly, self.room)

    def against(self, row: np.ndarray) -> np.ndarray:
        """Returns a point about where `Λ x` is least."""
        far = self.x - self.radius * row / norms(row)
        if self.room is None:
            return far
        most, least = self.room.limits
        return np.clip(far, self.x - least, self.x + most)

    def falls(self, rows: np.ndarray) -> np.ndarray:
        """Bounds from above how far `Λ x`, `(m, dim)`, falls from the centre, `(m,)`.

        In a box it is at most `max Σ (−Λ_i δ_i − (λ/2)δ_i²) + λr²/2` over the box alone, for any
        λ > 0; a computed δ_i is off by a rounding, which costs its square.
        """
        free = raised(self.radius * norms(rows), 4)
        if self.room is None:
            return free
        most, least = self.room.limits
        high = np.maximum(norms(rows) / self.radius, TINY)[:, None]
        low = 2.0**-100 * high
        for _ in range(_HALVINGS):
            multiplier = np.sqrt(low * high)
            wide = norms(np.clip(-rows / multiplier, -least, most))[:, None] > self.radius
            low, high = np.where(wide, multiplier, low), np.where(wide, high, multiplier)
        move = np.clip(-rows / high, -least, most)
        gain, bend = np.abs(rows * move), high / 2.0 * move**2
        found = (gain - bend).sum(axis=1) + high[:, 0] / 2.0 * self.radius**2
        lost = (gain + bend).sum(axis=1) + high[:, 0] * self.radius**2
        return np.minimum(free, found + raised(gamma(len(self.x) + 64) * lost))
