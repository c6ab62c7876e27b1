"""What serving in float32 may take off a margin: theorem 21.2, in float64.

Quantities are pairs of rows: what they are at x, and what going as far as the radius adds. All are
sums, products and minima of numbers that are not negative, so a result is off by no more than a
factor of γ_k, k the roundings on the longest way to it; this is charged at the end of each way.

What a file says of float32 is not believed if it is less than what one sum may lose. A column with
k weights that are not 0 is a sum of k products. In the worst order each passes through k roundings,
and a bias through as many, which is one more for each product. So is a map served that has no
folding errors, but for sums of sums, which are not believed either. Of one that was folded no more
is known here than that no weight is exact. Only a lone 1 or −1, by which a number is carried on,
rounds nothing.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from flint import arb

from keras_curv_check.balls import floats, ups
from keras_curv_check.balls import up as above
from keras_curv_check.files import Map
from keras_curv_check.network import Network, OutOfScopeError
from keras_curv_check.rounding import NotProvedError, norms, outward, up
from keras_curv_check.theorems import KEPT, Asked

SINGLE, SMALLEST = 2.0**-24, 2.0**-126  # u and τ of float32
_ULPS, _OWN = 16.0, 2.0**-100  # of an activation: 16u, and τ_σ
_ONE_OP = {"softplus", "sigmoid", "tanh", "softsign"}  # beside those that are linear between kinks
# No number on the way is beyond this, with activations of several ops, and without.
_LARGEST = {True: 2.0**40, False: 2.0**120}
_WAY = 64  # roundings in a layer, beside those of its sums


def heads(classes: int) -> dict[str, tuple[float, float]]:
    """Returns what heads may take off: a part of both logits, and an absolute part."""
    logarithm = math.log(classes)
    absolute = {
        "logits": 0.0,
        "softmax": 2.0 * _ULPS + 8.0 + 4.0 * logarithm,
        "log_softmax": 8.0 + 8.0 * logarithm,
        "binary_sigmoid": 4.0 * _ULPS,
    }
    relative = {"softmax": 2.0, "log_softmax": 4.0}
    return {
        name: (relative.get(name, 0.0) * SINGLE, part * SINGLE) for name, part in absolute.items()
    }


def least(one: Map) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least ΔW, in units of |W|, `(out,)`, and Δb that are believed of a map."""
    terms, shifted = np.count_nonzero(one.kernel, axis=0), one.bias != 0.0
    carried = (terms == 1) & (np.abs(one.kernel).sum(axis=0) == 1.0) & ~shifted
    if one.kernel_error > 0.0 or one.bias_error > 0.0:
        return np.where(carried, 0.0, SINGLE), SINGLE * np.abs(one.bias)
    kernel, bias = (n * SINGLE / (1.0 - n * SINGLE) for n in (terms + shifted, terms))
    return np.where(carried, 0.0, kernel), bias * np.abs(one.bias)


class _Layer:
    """A map in float32; rows of sizes are `(2, in)`, of results `(2, out)`.

    Args:
        one: the map.
        number: of the map, for messages.

    Raises:
        OutOfScopeError: the file has no bound of what float32 loses, or one that is not believed.
    """

    def __init__(self, one: Map, number: int):
        self.map, said = one, one.served
        dense = isinstance(one.kernel, np.ndarray)
        if said is None or not dense or not all(np.isfinite(part).all() for part in said):
            raise OutOfScopeError(f"map {number} is sparse, or float32 has no bound there")
        self.served = said
        self.kernel = np.abs(one.kernel)
        self.columns = norms(one.kernel.T) + one.kernel_error
        self.away = said.kernel if said.kernel.ndim == 2 else said.kernel * self.kernel
        self.steepest = norms(self.away.T)
        roundings, bias = least(one)
        few = up(self.away, 2) < roundings * self.kernel
        if few.any() or np.any(up(said.bias, 2) < bias):
            raise OutOfScopeError(f"map {number} is said to lose less in float32 than one sum may")
        self.weights = self.kernel.sum(axis=0) + one.kernel_error * len(self.kernel)
        self.gain = max(1.0, said.gain, self.weights.max(), np.abs(one.bias).max())

    def passed(self, error: np.ndarray) -> np.ndarray:
        """Bounds `|W|ᵀ ε`, by P_W."""
        size = norms(error)[:, None]
        return np.minimum(error @ self.kernel + self.map.kernel_error * size, self.columns * size)

    def sums(self, size: np.ndarray, far: float) -> np.ndarray:
        """Bounds `|W|ᵀ |a| + |b|`, of real numbers."""
        folding = self.map.kernel_error * norms(size) + self.map.bias_error
        return np.stack([size @ self.kernel + np.abs(self.map.bias) + folding, self.columns * far])

    def lost(self, size: np.ndarray, far: float, error: np.ndarray) -> np.ndarray:
        """Bounds what ζ has beside P_W(ε): the map's own errors."""
        one, terms, total = self.map, len(size), error.sum(axis=1)
        lost = np.minimum(error @ self.away, self.steepest * norms(error)[:, None])
        lost[0] += size @ self.away + self.served.bias
        lost[0] += one.kernel_error * norms(size) + one.bias_error
        lost[1] += (self.steepest + one.kernel_error) * far
        lost[0] += SMALLEST * (4.0 * terms + 4.0 + self.weights + size.sum() + total[0])
        lost[1] += SMALLEST * (terms * far + total[1])
        return lost


class Errors(NamedTuple):
    """What is known of the last map on a ball.

    Attributes:
        before: ε of what it reads.
        lost: ζ beside P_W(ε), of each logit.
        sizes: bounds the served |z| of each logit.
    """

    before: np.ndarray
    lost: np.ndarray
    sizes: np.ndarray


class ServedErrors:
    """Bounds E(r) of theorem 21.2 for one network.

    Args:
        network: the network.

    Raises:
        OutOfScopeError: the file does not say what is served, or says what is not believed; or a
            head keeps no order.
    """

    def __init__(self, network: Network):
        self._network, file = network, network.file
        known = heads(len(file.maps[-1].bias))
        if file.head not in known:
            said = f"a head {file.head!r}" if file.head else "a network's file of version 1"
            raise OutOfScopeError(f"guarantee 'float32' of {said}")
        self._head = known[file.head]
        self._layers = [_Layer(one, number) for number, one in enumerate(file.maps, 1)]
        self._way = sum(len(layer.kernel) + _WAY for layer in self._layers)
        self._ulps, self._floors = [], []
        for layer, sigmas in zip(file.activations, network.layers, strict=True):
            names = [name for name, count in layer for _ in range(count)]
            pairs = list(zip(names, sigmas, strict=True))
            self._ulps.append(_ULPS * np.array([name != "identity" for name in names]) * SINGLE)
            several = [not s.pieces and name not in _ONE_OP for name, s in pairs]
            self._floors.append(np.array(several, np.float64))
        self._largest = _LARGEST[any(floor.any() for floor in self._floors)]
        self._at = functools.lru_cache(KEPT)(self._errors)

    def most(self, asked: Asked, rival: int) -> arb:
        """Bounds from above by how much served and real margin differ on the ball of a claim.

        Raises:
            NotProvedError: there is no bound.
        """
        found, label = self._at(asked), asked.claim.label
        column = self._network.column(label, rival)
        w, error = np.abs(column.middle[:, 0]), above(column.error)
        size = norms(found.before)
        carried = np.minimum(found.before @ w + error * size, (norms(w) + error) * size).sum()
        relative, absolute = self._head
        both = found.lost[:, [label, rival]].sum() + absolute
        both += relative * found.sizes[:, [label, rival]].sum()
        total = float(up(carried + both, self._way))
        if not total < math.inf:
            raise NotProvedError("there is no bound of what float32 loses")
        return arb(total)

    def _errors(self, asked: Asked) -> Errors:
        served, network = asked.claim.served, self._network
        if not np.array_equal(served.astype(np.float32), served):
            raise NotProvedError("what the network receives is not of float32")
        far = radius = above(asked.radius)  # bounds how far a_I moves, in norm
        size, error = np.abs(served), np.zeros((2, len(served)))
        for number, layer in enumerate(self._layers):
            most = 1.0 + size.max() + far + error.sum(axis=0).max()
            if not up(2.0 * layer.gain * most, self._way) < self._largest:
                raise NotProvedError("a number may be beyond what float32 holds")
            passed, reach = layer.passed(error), layer.sums(size, far)
            lost = layer.lost(size, far, error)
            if number == len(network.layers):
                return Errors(error, lost, reach + passed + lost)
            own, floor, before = self._ulps[number], self._floors[number], passed + lost
            z, sigmas, units = asked.pre[number], network.layers[number], network.units[number]
            centre, off = floats(z)
            around = outward(centre, up(reach[1] + before.sum(axis=0) + off, self._way))
            slope = np.abs(units.slopes(*around)).max(axis=0)
            slope = np.minimum(slope, np.abs(units.steepness).max(axis=1))
            size = ups([abs(s.value(entry)) for s, entry in zip(sigmas, z, strict=True)])
            error = slope * before * (1.0 + own) + own * floor * (reach + before)
            error[0] += own * (size + floor) + _OWN
            error[1] += own * slope * reach[1]
            far = radius * above(network.steepest[number] * network.lipschitz[number])
        raise AssertionError
