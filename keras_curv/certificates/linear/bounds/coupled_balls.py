"""Balls whose hidden layers are bounded with their units together; see `coupled.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_curv.certificates.interval_bounds import Box
from keras_curv.certificates.linear.bounds.coupling import (
    coupled_units,
    coupling_of,
    straight_units,
)
from keras_curv.certificates.linear.bounds.layer_balls import (
    Moves,
    UnitMoves,
    estimated_norms,
    first_ball,
    layer_ball,
    moves_of,
    proved_norms,
    unit_moves,
)
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.relaxation import Relaxation
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.numerics.intervals import outward
from keras_curv.numerics.rounding import up

_GROWTH = 1.25  # from layer to layer, of the power of the radius as which movements grow, about


class LayerBounds(NamedTuple):
    """The intervals of a hidden layer, `(n, N)` each, its coupled units' ball and that of all its
    units, `(n, 1)` each."""

    low: np.ndarray
    high: np.ndarray
    ball: np.ndarray
    whole: np.ndarray

    @classmethod
    def nothing(cls, count: int, size: int) -> LayerBounds:
        """Returns those of balls around so many examples of radius 0, without their centres."""
        return cls(*np.zeros((2, count, size)), *np.zeros((2, count, 1)))

    def take(self, rows: np.ndarray) -> LayerBounds:
        """Returns those of some of the balls."""
        return LayerBounds(*(part[rows] for part in self))

    def put(self, rows: np.ndarray, other: LayerBounds) -> None:
        """Replaces those of some of the balls."""
        for mine, theirs in zip(self, other, strict=True):
            mine[rows] = theirs

    def scaled(self, centre: np.ndarray, factor: np.ndarray, index: int) -> LayerBounds:
        """Returns about those of balls whose radii are this factor larger; the same if it is 1.

        Args:
            centre: ẑ of the layer, `(n, N)`.
            factor: `(n,)`.
            index: of the layer.

        Example:
            >>> bounds, factor = LayerBounds.nothing(1, 1), np.array([2.0])
            >>> bounds._replace(high=np.ones((1, 1))).scaled(np.zeros((1, 1)), factor, 0).high
            array([[2.]])
        """
        wider = factor[:, None] ** _GROWTH**index
        low, high = (
            np.where(wider == 1.0, end, centre + (end - centre) * wider) for end in self[:2]
        )
        return LayerBounds(low, high, self.ball * wider, self.whole * wider)


class CoupledBalls(Balls):
    """Balls around n examples, with the hidden layers that are bounded on them so far; see `Balls`.

    Spectral norms are proved if `centres.proved` says so, and otherwise estimated.

    Attributes:
        bounds: those of the hidden layers so far, for `set_layers`.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.moves: list[Moves] = []
        self.bounds: list[LayerBounds] = []
        self._moved: UnitMoves | None = None  # of the units of the next layer

    def forward(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Bounds each entry of the next z by the movement of the units before that can move."""
        if not self.layers:
            return super().forward(affine)
        index, moves = len(self.layers), self.moves[-1]
        norms = up(affine.norms_within(moves.steep > 0.0) + affine.kernel_error)
        reach = up(norms * moves.after) + self.centres.errors[index]
        return outward(self.centres.z[index], reach)

    def tighten(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Tightens bounds in place by how far single units move, then by passes back."""
        index = len(self.layers)
        self._moved = None
        if 0 < index < len(self.plan.fields):
            asked = ~straight_units(activation, low, high)[0]
            fields = self.plan.fields[index]
            self._moved = unit_moves(self.network, fields, self.moves, self.radius, asked)
            reach = self._moved.reach + self.centres.errors[index]
            ends = outward(self.centres.z[index], reach)
            np.fmax(low, ends[0], out=low)
            np.fmin(high, ends[1], out=high)
        super().tighten(affine, activation, low, high)

    def append(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Appends the layer, and bounds how far it moves."""
        super().append(affine, activation, low, high)
        moves = self._moves_of(affine, activation, low, high)
        self.moves.append(moves)
        # ‖√h ∘ Δz‖ is bounded: so is ‖Δz‖ of some units, by their least √h.
        root = np.where(coupled_units(activation, low, high), moves.root, np.inf)
        least = root.min(axis=1, initial=np.inf)[:, None]
        self.bounds.append(LayerBounds(low, high, up(moves.ball / least), moves.whole))
        self._couple(activation)

    def set_layers(self, layers: Sequence[LayerBounds]) -> None:
        """Takes the bounds of all hidden layers from elsewhere."""
        parts = zip(self.network.affines, self.network.activations, layers, strict=False)
        for affine, activation, bounds in parts:
            super().append(affine, activation, bounds.low, bounds.high)
            self.bounds.append(bounds)
            self._couple(activation)
        self.box = Box.of_values(activation, bounds.low, bounds.high)

    def _couple(self, activation: Activation) -> None:
        """Couples units of the last layer."""
        index = len(self.layers) - 1
        centre, off = self.centres.z[index], self.centres.errors[index]
        low, high, *balls = self.bounds[-1]
        coupling = coupling_of(activation, low, high, centre, off, *balls)
        layer, alone = self.layers[-1], ~coupling.units
        lines = Relaxation(*(np.where(alone, line, 0.0) for line in layer.lines))
        self.layers[-1] = layer._replace(lines=lines, coupling=coupling)

    def _moves_of(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> Moves:
        index = len(self.moves)
        centre, off = self.centres.z[index], self.centres.errors[index]
        affine = affine if index else self.network.differentials[0]
        reach = up(np.maximum(high - centre, centre - low) + off)
        before = self.moves[-1].after if index else self.radius[:, None]
        moves = moves_of(activation, low, high, reach, before, affine.norm)
        if not index:
            ball = first_ball(affine, moves.root, self.radius, self.centres.proved)
        elif self._moved is not None:
            norms = proved_norms if self.centres.proved else estimated_norms
            ball = layer_ball(moves.root, self._moved, self.moves, self.radius, norms, reach)
        else:
            return moves
        return moves._replace(ball=np.fmin(moves.ball, ball))
