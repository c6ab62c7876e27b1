"""A quadratic minorant of networks with one hidden layer of ReLU, on a ball: section 17.

On the ball each ReLU that is not linear lies between two parabolas. With the lower one where its
weight in a margin is positive, and the upper one elsewhere, the margin is at least Q, a network of
parabolas. Theorem 2.1 holds for Q at any point, with `κ ≥ −λ_min(∇²Q)`. Q is one of the stored
weights: as |relu′| ≤ 1, what folding has rounded in z costs a margin at most ‖w‖ as much.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, norm, ups, vector
from keras_curv_check.curvature import on_ball
from keras_curv_check.network import Network, through
from keras_curv_check.rounding import norms

Parabola = tuple[arb, arb, arb]  # the factors of z², z and 1


class Quadratic:
    """Bounds margins from below by quadratics on one ball.

    Args:
        network: of one hidden layer of ReLU.
        x: the centre.
        radius: of the ball.
    """

    def __init__(self, network: Network, x: Vector, radius: float):
        self._network, first = network, network.file.maps[0]
        (((*pre,),),) = network.stored.forward([x])[0]
        ends = on_ball(network.stored, pre, radius)
        self._around = [_around_relu(*pair) for pair in ends.tolist()]
        # Bounds of what z is off by for folding, and of ‖a‖.
        self._off = first.kernel_error * (norm(x) + radius) + first.bias_error
        self._size = arb(float(norms(ends[:, 1].clip(0.0)))) + self._off

    @staticmethod
    def fits(network: Network) -> bool:
        """Returns whether the network has one hidden layer of ReLU."""
        names = {name for layer in network.file.activations for name, _ in layer}
        return len(network.layers) == 1 and names == {"relu"}

    def _chosen(self, label: int, rival: int) -> tuple[list[float], list[Parabola]]:
        """Returns the weight of each unit in a margin, and the parabola that bounds it."""
        w = self._network.column(label, rival).middle[:, 0].tolist()
        return w, [pair[a < 0.0] for a, pair in zip(w, self._around, strict=True)]

    def curvature(self, label: int, rivals: Iterable[int]) -> arb:
        """Returns one κ for the quadratics over all of these rivals."""
        bends = []
        for rival in rivals:
            parts = zip(*self._chosen(label, rival), strict=True)
            bends.append(ups([-2 * a * square for a, (square, _, _) in parts]))
        return self._network.stored.matrices[0].largest(np.max(bends, axis=0))

    def at(self, point: Vector, label: int, rival: int) -> tuple[arb, Vector]:
        """Returns Q of a margin at a point, and its gradient there."""
        column, last = self._network.column(label, rival), self._network.file.maps[1]
        (((*pre,),),) = self._network.stored.forward([point])[0]
        parts = [*zip(*self._chosen(label, rival), pre, strict=True)]
        values = [a * ((square * z + slope) * z + level) for a, (square, slope, level), z in parts]
        turned = [a * (2 * square * z + slope) for a, (square, slope, _), z in parts]
        (gradient,) = through([turned], self._network.file.maps[0].kernel.T, 0.0)
        lost = column.error * self._size + norm(vector(column.middle[:, 0])) * self._off
        lost += 2 * arb(last.bias_error)
        bias = arb(float(last.bias[label])) - float(last.bias[rival])
        return sum(values, bias) - lost, gradient


def _around_relu(low: float, high: float) -> tuple[Parabola, Parabola]:
    """Returns parabolas below and above ReLU on an interval: lemma 17.1."""
    nothing, itself = (ZERO, ZERO, ZERO), (ZERO, arb(1), ZERO)
    if low >= 0.0 or high <= 0.0:
        return (itself, itself) if low >= 0.0 else (nothing, nothing)
    d, u = arb(low), arb(high)
    wide, square = u - d, (u - d) * (u - d)
    below = 1 / wide, -d / wide, ZERO
    if high >= -2.0 * low or -low >= 2.0 * high:
        below = itself if high >= -low else nothing
    if high >= -low:
        return below, (-d / square, (u * u + d * d) / square, -u * u * d / square)
    return below, (u / square, -2 * u * d / square, u * d * d / square)
