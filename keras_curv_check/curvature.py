"""Upper bounds κ with `∇²(z_y − z_t) ≽ −κ`, everywhere and on a ball: sections 8 and 9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from flint import arb

from keras_curv_check.activations import Sigma
from keras_curv_check.balls import ZERO, Vector, ends_of, up, vector
from keras_curv_check.blocks import lengths
from keras_curv_check.files import Map
from keras_curv_check.network import Network, telescoped
from keras_curv_check.rounding import gamma, norms, outward
from keras_curv_check.rounding import up as raised


class Curvature:
    """Bounds the curvature of the margins of one network, a pair of classes when it is asked for.

    Args:
        network: of smooth activations.
    """

    def __init__(self, network: Network):
        self._network = network
        self._known: dict[tuple[int, int], arb] = {}
        # Of each layer, Lipschitz constants of x ↦ a_{I−1}.
        self._before = [arb(1)]
        for slope, bound in zip(network.steepest, network.lipschitz, strict=True):
            self._before.append(arb(up(slope * bound)))

    def __call__(self, label: int, rival: int) -> arb:
        """Returns κ as theorems 8.2 and 8.3 have it, for each layer the smaller one."""
        if (label, rival) not in self._known:
            layers = enumerate(self._diagonals(label, rival))
            terms = (self._term(index, d) ** 2 for index, d in layers)
            self._known[label, rival] = arb(up(sum(terms, ZERO)))
        return self._known[label, rival]

    def _term(self, index: int, d: np.ndarray) -> arb:
        """Returns a bound of `‖Jᵀ W √D‖`, J the Jacobian of the activations before."""
        network = self._network
        bound = network.matrices[index].norm(d) * self._before[index]
        if not index:
            return bound
        inside = telescoped(network.parts[index], network.lipschitz, lambda one: one.norm(d))
        return arb(min(up(bound), up(inside)))

    def _diagonals(self, label: int, rival: int) -> list[np.ndarray]:
        """Returns (−e_I)⁺ of each hidden layer, from above."""
        column = self._network.column(label, rival)
        w, error = column.middle[:, 0], up(column.error)
        (low, high), size = outward(w, np.full(len(w), error)), float(raised(norms(w) + error))
        found = []
        for index in reversed(range(len(self._network.layers))):
            units = self._network.units[index]
            found.append(np.maximum(-products(units.bends, low, high)[0], 0.0))
            if index:
                low, high = products(units.steepness, low, high)
                through = float(raised(up(self._network.steepest[index]) * size))
                low, high = before(self._network.file.maps[index], low, high, through)
                size = float(raised(up(self._network.norms[index]) * through))
        return found[::-1]


class LocalCurvature:
    """Bounds the curvature of functions of the first hidden layer on one ball: section 9.

    Args:
        network: whose first layer it is; of two layers, for margins.
        pre: z of the first hidden layer at the centre.
        radius: of the ball.
    """

    def __init__(self, network: Network, pre: Vector, radius: float):
        self._network = network
        self._bends = bends_on(network.layers[0], *on_ball(network, pre, radius).T)

    def bounds(self, label: int, rivals: Iterable[int]) -> Iterator[arb]:
        """Yields one κ for the margins over all of these rivals."""
        least = np.full(len(self._bends), np.inf)
        for column in (self._network.column(label, rival) for rival in rivals):
            w = outward(column.middle[:, 0], np.full(len(column.middle), up(column.error)))
            least = np.minimum(least, products(self._bends, *w)[0])
        yield self._network.matrices[0].largest(-least)

    def of(self, v: np.ndarray) -> arb:
        """Returns κ of `v·σ_1(z_1)`."""
        return self._network.matrices[0].largest(-products(self._bends, v, v)[0])

    def roughly(self, functions: np.ndarray) -> list[arb]:
        """Returns κ of many such functions, from the norm of the kernel."""
        size = self._network.norms[0] ** 2
        least = (float(products(self._bends, v, v)[0].min()) for v in functions)
        return [arb(up(size * max(-each, 0.0))) for each in least]


def before(
    one: Map, low: np.ndarray, high: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the interval of F before a map, from that of σ′ ∘ F behind it.

    Args:
        one: the map.
        low, high: of σ′ ∘ F.
        size: bounds its norm.
    """
    middle, kernel = low / 2.0 + high / 2.0, abs(one.kernel).T
    half = raised(np.maximum(high - middle, middle - low))
    rounded = gamma(len(middle) + 8) * (np.abs(middle) @ kernel)
    off = raised(half @ kernel + rounded + one.kernel_error * size, len(middle))
    most = raised((lengths(one.kernel) + one.kernel_error) * size)
    low, high = outward(middle @ one.kernel.T, off)
    return np.maximum(low, -most), np.minimum(high, most)


def on_ball(network: Network, pre: Vector, radius: float) -> np.ndarray:
    """Bounds z of the first hidden layer from below and from above, `(N, 2)`.

    Args:
        network: whose first hidden layer it is.
        pre: z at the centre of a ball of inputs.
        radius: of the ball.
    """
    one = network.file.maps[0]
    reach = raised(radius * raised(norms(one.kernel.T) + one.kernel_error))
    pairs = zip(pre, vector(reach), strict=True)
    return np.array([ends_of((z - r, z + r)) for z, r in pairs])


def bends_on(layer: Sequence[Sigma], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the least and the largest σ″ of each unit on intervals, `(N, 2)`."""
    parts = zip(layer, low.tolist(), high.tolist(), strict=True)
    return np.array([ends_of(sigma.bends_on(arb(a), arb(b))) for sigma, a, b in parts])


def products(ends: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds the least and the largest products of numbers of intervals, `(N, 2)` and `(N,)`."""
    products = np.stack([ends.T * low, ends.T * high]).reshape(4, -1)
    least, most = products.min(axis=0), products.max(axis=0)
    return np.nextafter(least, -np.inf), np.nextafter(most, np.inf)
