"""The steps of a pass back: through a hidden layer, and at the input.

The mathematics and the charge for the rounding of each step are in `crown.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from keras_curv.certificates.linear.bounds.coupling import Choice, Coupling
from keras_curv.certificates.linear.bounds.relaxation import Relaxation
from keras_curv.network.affine import Affine
from keras_curv.numerics.rounding import ROUNDING_SLACK, TINY, gamma, norm_bound, up
from keras_curv.numerics.rows import dot, row_norms
from keras_curv.threats.confined import Reach
from keras_curv.threats.norms import Norm

_FEW = 0.7  # largest part of a layer's units that are coupled for which the others are left out


class BoundedLayer(NamedTuple):
    """The bounds of one hidden layer on the balls around n examples."""

    low: np.ndarray  # low, high: the interval of z_k, `(n, N_k)`
    high: np.ndarray
    lines: Relaxation  # the relaxation of σ_k on it
    pre: np.ndarray  # ‖Q_k‖, `(n,)`
    folding: np.ndarray  # ‖ΔW_k‖ ‖A_{k−1}‖ + ‖Δb_k‖, `(n, 1)`
    underflow: np.ndarray  # the underflow of one step, `(n,)`
    # the units that are bounded together; their lines are 0. None: each by its lines
    coupling: Coupling | None = None

    @property
    def sloped(self) -> np.ndarray:
        """Returns the mask of units that a step goes through."""
        return (
            self.lines.sloped if self.coupling is None else self.lines.sloped | self.coupling.units
        )

    @property
    def used(self) -> np.ndarray:
        """Returns the mask of units whose value counts."""
        alone = self.lines.used
        return alone if self.coupling is None else alone | self.coupling.units

    def straight(self, rows: np.ndarray) -> np.ndarray:
        """Returns Λ times the slopes of the lines, `(n, m, N)`; 0 at coupled units."""
        lower, upper = self.lines.lower_slope[:, None], self.lines.upper_slope[:, None]
        return rows * np.where(rows > 0.0, lower, upper)

    def take(self, some: np.ndarray | slice) -> BoundedLayer:
        """Returns the bounds for some of the examples."""
        return self._part(some, some, None if self.coupling is None else self.coupling.take(some))

    def seen(self, of: np.ndarray, units: np.ndarray) -> BoundedLayer:
        """Returns the bounds of some units, `(k, s)`, of some examples, `(k,)`."""
        coupling = None if self.coupling is None else self.coupling.seen(of, units)
        return self._part((of[:, None], units), of, coupling)

    def _part(self, units: Any, of: Any, coupling: Coupling | None) -> BoundedLayer:
        return BoundedLayer(
            self.low[units],
            self.high[units],
            Relaxation(*(line[units] for line in self.lines)),
            self.pre[of],
            self.folding[of],
            self.underflow[of],
            coupling,
        )

    def step(
        self,
        rows: np.ndarray,
        constants: np.ndarray,
        error: np.ndarray,
        affine: Affine,
        chosen: Choice | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns Ω and c of z_k, a lower bound on Λ and c of a_k, and their error.

        Args:
            rows, constants, error: see `Inputs.minimum`.
            affine: the map from a_{k−1} to z_k; the error includes the step back through it.
            chosen: slopes and multipliers; None: those that lose least at the centre, about.
        """
        lines, positive, negative = self.lines, np.maximum(rows, 0.0), np.minimum(rows, 0.0)
        offset = constants + dot(negative, lines.upper_intercept)
        if np.any(lines.lower_intercept):  # those of relu are 0
            offset = offset + dot(positive, lines.lower_intercept)
        in_place = len(rows) == len(self.low)
        through = np.multiply(
            positive, lines.lower_slope[:, None], out=positive if in_place else None
        )
        through += np.multiply(
            negative, lines.upper_slope[:, None], out=negative if in_place else None
        )
        if self.coupling is not None and self.coupling.units.any():
            bent = self.coupling.bent(rows)
            if chosen is None:
                slopes, together, lost = _least_loss(self.coupling, bent)
            else:
                slopes, turns, multiplier, shared = chosen
                together, lost = self.coupling.offset(bent, slopes, multiplier, shared)
                turned, off = self.coupling.turned(turns, shared)
                through, offset, error = through + turns, offset + turned, error + off
            linear, rounded = self.coupling.linear(rows)
            through, offset = through + slopes + linear, offset + together
            error = error + lost + rounded
        return through, offset, error + self._step_error(rows, constants, through, affine)

    def _step_error(
        self, rows: np.ndarray, constants: np.ndarray, through: np.ndarray, affine: Affine
    ) -> np.ndarray:
        size, lines = row_norms(through), self.lines
        largest = np.maximum(np.abs(lines.lower_intercept), np.abs(lines.upper_intercept))
        return (
            gamma(affine.fan_out + 16)
            * (
                3.0 * size * self.pre[:, None]
                + row_norms(rows) * norm_bound(largest, axis=1)[:, None]
                + np.abs(constants)
            )
            + size * self.folding
            + self.underflow[:, None]
        )


def _least_loss(coupling: Coupling, bent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the slopes that lose least at the centre, about, and `Coupling.offset` of these.

    Where most units are not coupled, they are left out on the way.

    Args:
        coupling: the coupled units.
        bent: their coefficients, `(n or 1, m, N)`.
    """
    most = int(coupling.units.sum(axis=1).max())
    few = most <= _FEW * bent.shape[2] and len(bent) == len(coupling.units)
    at = np.argsort(~coupling.units, axis=1, kind="stable")[:, None, :most]
    part = coupling.seen(np.arange(len(at)), at[:, 0]) if few else coupling
    rows = np.take_along_axis(bent, at, axis=2) if few else bent
    multiplier = part.multipliers(rows)
    slopes = part.slopes(rows, multiplier)
    together, lost = part.offset(rows, slopes, multiplier)
    if few:
        found = np.zeros_like(bent)
        np.put_along_axis(found, at, slopes, axis=2)
        slopes = found
    return slopes, together, lost


class Inputs(NamedTuple):
    """The balls at the input, around n examples."""

    x: np.ndarray  # the centres, or some of their entries, `(n, d)`
    radius: np.ndarray  # `(n,)`
    norm: Norm  # the norm of the balls
    far: np.ndarray  # bounds on ‖x + δ‖₂ of whole examples, `(n, 1)`
    terms: int  # the number of entries of a whole example
    room: Reach | None  # the reach of the entries; None: no limits
    # the mask of entries that cannot move, `(dim,)` or `(k, 1, d)`; None: all can
    pinned: np.ndarray | None

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        radius: np.ndarray,
        norm: Norm,
        length: np.ndarray,
        room: Reach | None,
        pinned: np.ndarray | None,
    ) -> Inputs:
        """Returns the balls of whole examples; `length` bounds ‖δ‖₂, and `pinned` is `(dim,)`."""
        far = up(norm_bound(x, axis=1) + length)[:, None]
        return cls(x, radius, norm, far, x.shape[1], room, pinned)

    def against(self, direction: np.ndarray) -> np.ndarray:
        """Estimates where on the balls a function falls most, from its gradient, `(n, d)`."""
        at = self.x - self.radius[:, None] * self.norm.support_point(direction)
        if self.room is None:
            return at
        return np.clip(at, self.x - self.room.down, self.x + self.room.up)

    def seen(self, of: np.ndarray, entries: np.ndarray) -> Inputs:
        """Returns some entries, `(k, d)`, of some examples, `(k,)`."""
        room, at = self.room, (of[:, None], entries)
        pinned = None if self.pinned is None else self.pinned[entries][:, None]
        if room is not None:
            room = room._replace(up=room.up[at], down=room.down[at])
        parts = {"x": self.x[at], "radius": self.radius[of], "far": self.far[of]}
        return self._replace(**parts, room=room, pinned=pinned)

    def minimum(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns proved lower bounds on `Λ x + c` over the balls, `(n, m)`, and Λ.

        Args:
            rows, constants: Λ and c, `(n or 1, m, d)` and `(n or 1, m)`.
            error: bound on how far this is above the intended function, `(n, 1 or m)`.

        Returns:
            The bounds, −∞ where anything overflows, and Λ, 0 at pinned inputs.
        """
        size = row_norms(rows)
        level = dot(rows, self.x) + constants
        error = error + gamma(self.terms + 16) * (size * self.far + np.abs(constants))
        error = error + 16.0 * TINY * self.terms * (1.0 + self.far)
        if self.pinned is not None:
            rows = np.where(self.pinned, 0.0, rows)
        least = -self.radius[:, None] * self.norm.dual(rows)
        if self.room is not None:
            least = np.fmax(least, self.norm.least_linear(rows, self.room, self.radius))
        return level - error * ROUNDING_SLACK + least, rows
