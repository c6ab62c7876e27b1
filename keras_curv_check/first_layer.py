"""Linear functions `F = v·σ_1(z_1) + c` of a smooth first layer, on a ball: theorem 15.2.

The minorant of theorem 2.1 holds at any point x̂. The first x̂ is the centre, the next ones lie in
the direction in which the last minorant falls.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from flint import arb

from keras_curv_check.balls import Vector, dot, norm, up, ups, vector
from keras_curv_check.confined import minorant_left
from keras_curv_check.curvature import LocalCurvature, products
from keras_curv_check.files import NetworkFile
from keras_curv_check.inputs import Inputs
from keras_curv_check.network import Network, through
from keras_curv_check.rounding import norms

_SHARES = 0.5, 1.0 - 1e-9  # of the radius, of the points behind the centre
_RATIO, _POINTS = 1.5, 3  # of a grid of distances, and how many within the ball are taken


class FirstLayer:
    """The first hidden layer of a network of three maps or more.

    Args:
        network: the network.
    """

    def __init__(self, network: Network):
        file = network.file
        self._network, self._bends = network, network.units[0].bends
        self._map = Network(NetworkFile(file.maps[:1], [], file.dim, ""))

    @classmethod
    def of(cls, network: Network) -> FirstLayer | None:
        """Returns the first layer; None if there is no theorem for it."""
        smooth = len(network.layers) > 1 and all(s.bends is not None for s in network.layers[0])
        return cls(network) if smooth else None

    @functools.cached_property
    def _units(self) -> list[arb]:
        """Returns κ everywhere of the second layer's units, then of their negatives."""
        kernel, own = self._network.file.maps[1].kernel.T, self._network.matrices[0]
        least = [products(self._bends, row, row)[0] for row in (*kernel, *-kernel)]
        return [arb(up(own.norm(np.maximum(-each, 0.0)) ** 2)) for each in least]

    def near(self, pre: Vector, radius: float) -> LocalCurvature:
        """Returns the curvature on a ball, z_1 at whose centre is given."""
        return LocalCurvature(self._network, pre, radius)

    def least(
        self,
        functions: np.ndarray,
        constants: np.ndarray,
        kappas: list[arb],
        ball: Inputs,
        distances: Sequence[float] | None = None,
    ) -> list[arb]:
        """Bounds `v·σ_1(z_1) + c` from below on the whole ball.

        Args:
            functions, constants: v and c, `(m, N)` and `(m,)`.
            kappas: their κ.
            ball: the inputs.
            distances: of points on the ray on which the first minorant falls; None: half the
                radius and all of it, each in the direction in which the last minorant falls.
        """
        best, points = [arb.neg_inf()] * len(functions), [ball.x] * len(functions)
        directions = np.zeros((len(functions), len(ball.x)))
        turning = [share * ball.radius for share in _SHARES]
        for number, distance in enumerate([*(distances or turning), 0.0]):
            parts = self._tangents(points, functions, constants)
            for j, (value, gradient, kappa) in enumerate(zip(*parts, kappas, strict=True)):
                moved = [a - b for a, b in zip(vector(points[j]), ball.centre, strict=True)]
                left = minorant_left(value, gradient, moved, kappa, ball.exactly, None)
                if distances is not None or norm(moved) <= ball.exactly:  # where κ may end
                    best[j] = best[j].max(left)
                if not number or distances is None:
                    falls = zip(gradient, moved, strict=True)
                    h = np.array([float(g + kappa * d) for g, d in falls])
                    directions[j] = h / norms(h)
                points[j] = ball.x - distance * directions[j]
        return best

    def least_units(self, ball: Inputs) -> np.ndarray:
        """Bounds the second layer's units, then their negatives, from below: `(2 N,)`."""
        second = self._network.file.maps[1]
        functions = np.concatenate([second.kernel.T, -second.kernel.T])
        constants = np.concatenate([second.bias, -second.bias])
        unit = float(self._network.norms[0])
        last = math.floor(math.log(ball.radius * unit, _RATIO))
        distances = [_RATIO ** (last - back) / unit for back in range(_POINTS)]
        found = self.least(functions, constants, self._units, ball, distances)
        return -ups([-bound for bound in found])

    def _tangents(
        self, points: list[np.ndarray], functions: np.ndarray, constants: np.ndarray
    ) -> tuple[list[arb], list[Vector]]:
        """Returns each function and its gradient at its point."""
        network, error = self._network, self._network.file.maps[0].kernel_error
        apart = [*{id(point): point for point in points}.values()]
        *_, pre = self._map.forward([vector(point) for point in apart])
        layer = network.layers[0]
        both = ([s.value_and_first(z) for s, z in zip(layer, each, strict=True)] for each in pre)
        a, slopes = zip(*(zip(*each, strict=True) for each in both), strict=True)
        at = [index if len(apart) > 1 else 0 for index in range(len(points))]
        vs = [vector(row) for row in functions]
        values = [dot(v, a[i]) + c for v, i, c in zip(vs, at, constants.tolist(), strict=True)]
        turned = [
            [e * s for e, s in zip(v, slopes[i], strict=True)] for v, i in zip(vs, at, strict=True)
        ]
        return values, through(turned, self._network.file.maps[0].kernel.T, error)
