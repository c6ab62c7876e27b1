"""Intervals of the second layer's units on balls, by the first layer's curvature.

A unit is `v·σ(z_1(x)) + c` with the same v for every input: its κ holds on all of ℝᵈ, and so does
its minorant at any point x̂ whatever, in a ball or not (`first_layer.py`). So points need not be
those of one ball. Besides the centre they lie on the ray on which the unit falls there, at
distances on a grid of ratio 1.5, and are found when the first ball asks for them. A ball asks for
the last three within, of which the outermost is between 2/3 and all of its radius away: where a
larger ball has the next one in place of the innermost, little is lost, so that its bounds do not
jump down there.
"""

from __future__ import annotations

import numpy as np

from keras_curv.certificates.linear.first_layer import FirstLayer, Functions, Minorants
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.intervals import Interval

_RATIO, _POINTS = 1.5, 3
_LARGEST = 1e100  # of a distance in units of the grid, and one over the smallest


class SecondLayer:
    """Bounds of the second layer's units around n centres.

    Args:
        first: the layer before.
        z, error: z_1 at the centres, `(n, N_1)`, and a bound of how far it is off, in norm,
            `(n, 1)`.

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
        self._unit = 1.0 / first.norm  # in which the grid is the same at any scale of x
        units = Functions.of(first.second.kernel.T[None], first.second.bias[None])
        self._functions = units, units.negative()
        self._kappas = [kappa[None] for kappa in first.unit_curvatures]
        self._centre = first.tangents(z, error, units)
        minorants = self._centre.minorants
        self._at_centre = [minorants, self._centre.negative().minorants]
        # By point of the grid: around which centres they are known, and the minorants themselves,
        # of the units and of their negatives.
        self._away: dict[int, tuple[np.ndarray, list[Minorants]]] = {}

    def bounds(self, some: np.ndarray, radius: np.ndarray) -> Interval:
        """Bounds of `a_1 W_2 + b_2` on balls, in real arithmetic on these W_2 and b_2.

        Args:
            some: around which centres, `(m,)`.
            radius: `(m,)`.

        Returns:
            `(low, high)`, each `(m, N_2)`; infinite or NaN where anything overflows.
        """
        ends = self._least(self._at_centre, some, radius)
        within = np.clip(np.nan_to_num(radius / self._unit), 1.0 / _LARGEST, _LARGEST)
        last = np.floor(np.log(within) / np.log(_RATIO)).astype(np.int64)
        for back in range(_POINTS):
            for point in np.unique(last - back).tolist():
                rows = np.flatnonzero(last - back == point)
                away = self._at(point, some[rows])
                found = self._least(away, some[rows], radius[rows])
                ends[:, rows] = np.fmax(ends[:, rows], found)
        return ends[0], -ends[1]

    def _least(
        self, minorants: list[Minorants], some: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Lower bounds of the units and of their negatives, `(2, m, N_2)`."""
        parts = zip(minorants, self._kappas, strict=True)
        return np.stack([part.take(some).least(radius[:, None], kappa) for part, kappa in parts])

    def _at(self, point: int, some: np.ndarray) -> list[Minorants]:
        """Returns the minorants so far out, those around these centres among them."""
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
        """Writes the minorants so far out around these centres where they belong."""
        centre = self._centre.take(some)
        distance = np.full((len(some), 1), self._unit * _RATIO**point)
        ends = centre, centre.negative()
        parts = zip(away, ends, self._functions, self._kappas, strict=True)
        for whole, before, functions, kappa in parts:
            found = self._first.along(before, distance, functions, kappa).minorants
            for array, part in zip(whole, found, strict=True):
                array[some] = part
