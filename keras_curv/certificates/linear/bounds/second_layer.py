"""Intervals of the second layer's units on balls, by the first layer's curvature.

A unit is `v·σ(z_1(x)) + c` with the same v for every input: its κ holds on all of ℝᵈ, and so does
its minorant at any point x̂, inside a ball or not (`first_layer.py`). So all balls around a centre
can share points x̂. Besides the centre these lie on the ray on which the unit falls there, at
distances on a grid of ratio 1.5, and each is found when a ball first needs it. A ball uses the last
three points inside it, of which the outermost is between 2/3 and all of its radius away. When a
larger ball replaces the innermost point by the next one, it loses little, so its bounds do not jump
down there.
"""

from __future__ import annotations

import numpy as np

from keras_curv.certificates.linear.bounds.first_layer import FirstLayer, Functions, Minorants
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.intervals import Interval

_RATIO, POINTS = 1.5, 3
_LARGEST = 1e100  # largest distance in units of the grid, and the inverse of the smallest


class SecondLayer:
    """Bounds on the second layer's units around n centres.

    Args:
        first: the layer before.
        z, error: z_1 at the centres, `(n, N_1)`, and a bound on the norm of its error, `(n, 1)`.

    Example:
        >>> from keras_curv.network.network import Network
        >>> kernels = [np.eye(2), [[1.0, -1.0], [1.0, 1.0]], np.eye(2)]
        >>> network = Network.from_weights(kernels, [np.zeros(2)] * 3, "sigmoid")
        >>> units = SecondLayer(FirstLayer(network), np.zeros((1, 2)), np.zeros((1, 1)))
        >>> low, high = units.bounds(np.array([0]), np.array([0.1]))
        >>> low.round(3), high.round(3)  # 1 ± 0.1 / √8, and ± 0.1 / √8
        (array([[ 0.965, -0.035]]), array([[1.035, 0.035]]))
    """

    def __init__(self, first: FirstLayer, z: np.ndarray, error: np.ndarray):
        self._first = first
        self._unit = 1.0 / first.norm  # makes the grid independent of the scale of x
        units = Functions.of(first.second.kernel.T[None], first.second.bias[None])
        self._functions = units, units.negative()
        self._kappas = [kappa[None] for kappa in first.unit_curvatures]
        self._centre = first.tangents(z, error, units)
        minorants = self._centre.minorants
        self._at_centre = [minorants, self._centre.negative().minorants]
        # For each grid point: the mask of centres with known minorants, and these minorants of the
        # units and of their negatives.
        self._away: dict[int, tuple[np.ndarray, list[Minorants]]] = {}

    def bounds(self, some: np.ndarray, radius: np.ndarray) -> Interval:
        """Bounds `a_1 W_2 + b_2` on balls, in real arithmetic on the stored W_2 and b_2.

        Args:
            some: the indices of the centres, `(m,)`.
            radius: `(m,)`.

        Returns:
            `(low, high)`, each `(m, N_2)`; infinite or NaN where anything overflows.
        """
        ends = self._least(self._at_centre, some, radius)
        within = np.clip(np.nan_to_num(radius / self._unit), 1.0 / _LARGEST, _LARGEST)
        last = np.floor(np.log(within) / np.log(_RATIO)).astype(np.int64)
        for back in range(POINTS):
            for point in np.unique(last - back).tolist():
                rows = np.flatnonzero(last - back == point)
                away = self._at(point, some[rows])
                found = self._least(away, some[rows], radius[rows])
                ends[:, rows] = np.fmax(ends[:, rows], found)
        return ends[0], -ends[1]

    def _least(
        self, minorants: list[Minorants], some: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Returns lower bounds on the units and on their negatives, `(2, m, N_2)`."""
        parts = zip(minorants, self._kappas, strict=True)
        return np.stack([part.take(some).least(radius[:, None], kappa) for part, kappa in parts])

    def _at(self, point: int, some: np.ndarray) -> list[Minorants]:
        """Returns the minorants at a grid point, after finding those of these centres."""
        if point not in self._away:
            shape = self._at_centre[0].level.shape
            nothing = (np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape))
            self._away[point] = (
                np.zeros(len(nothing[0]), bool),
                [Minorants(*map(np.copy, nothing)) for _ in self._kappas],
            )
        known, away = self._away[point]
        new = some[~known[some]]
        if len(new):
            known[new] = True
            for rows in batches(len(new), self._functions[0].rows.size, NEAR):
                self._find(point, new[rows], away)
        return away

    def _find(self, point: int, some: np.ndarray, away: list[Minorants]) -> None:
        """Writes the minorants at a grid point around these centres into `away`."""
        centre = self._centre.take(some)
        distance = np.full((len(some), 1), self._unit * _RATIO**point)
        ends = centre, centre.negative()
        parts = zip(away, ends, self._functions, self._kappas, strict=True)
        for whole, before, functions, kappa in parts:
            found = self._first.along(before, distance, functions, kappa).minorants
            for array, part in zip(whole, found, strict=True):
                array[some] = part
