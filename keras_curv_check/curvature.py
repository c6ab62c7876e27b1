"""Upper bounds κ with `∇²(z_y − z_t) ≽ −κ` everywhere: theorems 8.2 and 8.3."""

from __future__ import annotations

import numpy as np
from flint import arb, arb_mat

from keras_curv_check.balls import ZERO, matrix, norm, rows, up, ups, vector
from keras_curv_check.network import Network

Interval = tuple[list[arb], list[arb]]


class Curvature:
    """Bounds the curvature of the margins of one network, a pair of classes when it is asked for.

    Args:
        network: of smooth activations.
    """

    def __init__(self, network: Network):
        self._network = network
        self._known: dict[tuple[int, int], list[np.ndarray]] = {}
        self._tight: dict[tuple[int, int], arb] = {}
        self._absolute: dict[int, tuple[arb_mat, arb_mat, list[arb]]] = {}
        # Of each layer, Lipschitz constants of x ↦ a_{I−1}.
        self._before = [arb(1)]
        for slope, bound in zip(network.steepest, network.lipschitz, strict=True):
            self._before.append(arb(up(slope * bound)))

    def rough(self, label: int, rival: int) -> arb:
        """Returns κ with `λ_max(W D Wᵀ) ≤ max(d) ‖W‖²`, for which no matrix is factorised."""
        parts = zip(self._diagonals(label, rival), self._network.norms, self._before, strict=False)
        return _sum(arb(float(d.max())) * (size * before) ** 2 for d, size, before in parts)

    def tight(self, label: int, rival: int) -> arb:
        """Returns κ as theorems 8.2 and 8.3 have it, for each layer the smaller one."""
        if (label, rival) not in self._tight:
            layers = enumerate(self._diagonals(label, rival))
            self._tight[label, rival] = _sum(self._term(index, d) ** 2 for index, d in layers)
        return self._tight[label, rival]

    def _term(self, index: int, d: np.ndarray) -> arb:
        """Returns a bound of `‖Jᵀ W √D‖`, J the Jacobian of the activations before."""
        network = self._network
        own = network.matrices[index]
        bound = own.norm(d) * self._before[index]
        if not index:
            return bound
        args = own, index, network.lipschitz, lambda one: one.norm(d)
        return arb(min(up(bound), up(network.telescoped(*args))))

    def _diagonals(self, label: int, rival: int) -> list[np.ndarray]:
        """Returns (−e_I)⁺ of each hidden layer, from above."""
        if (label, rival) not in self._known:
            network = self._network
            w = network.last_column(label, rival)
            interval: Interval = ([arb(x.lower()) for x in w], [arb(x.upper()) for x in w])
            size = norm(w)
            found = []
            for index in reversed(range(len(network.layers))):
                bends = [sigma.bends for sigma in network.layers[index]]
                ends = zip(bends, zip(*interval, strict=True), strict=True)
                least = [_products(bend, end)[0] for bend, end in ends if bend is not None]
                found.append(np.maximum(ups([-low for low in least]), 0.0))
                if index:
                    interval, size = self._behind(index, interval, size)
            self._known[label, rival] = found[::-1]
        return self._known[label, rival]

    def _behind(self, index: int, interval: Interval, size: arb) -> tuple[Interval, arb]:
        """Returns the interval of F before a layer, and the bound of its norm."""
        network = self._network
        kernel, absolute, row_norms = self._of(index)
        slopes = [sigma.slopes for sigma in network.layers[index]]
        ends = [_products(s, f) for s, f in zip(slopes, zip(*interval, strict=True), strict=True)]
        middle = rows([[(p + q) / 2 for p, q in ends]])
        half = rows([[(q - p) / 2 for p, q in ends]])
        error, steepest = network.matrices[index].error, network.steepest[index]
        through = steepest * size  # ‖σ′ ∘ F‖
        centre = (middle * kernel).table()[0]
        spread = (half * absolute).table()[0]
        low, high = [], []
        for c, s, row in zip(centre, spread, row_norms, strict=True):
            off, most = s + error * through, (row + error) * through
            low.append((c - off).max(-most).lower())
            high.append((c + off).min(most).upper())
        return (low, high), arb(up(network.norms[index] * through))

    def _of(self, index: int) -> tuple[arb_mat, arb_mat, list[arb]]:
        """Returns Wᵀ, |W|ᵀ and the norms of W's rows."""
        if index not in self._absolute:
            kernel = self._network.matrices[index].middle
            transposed = np.ascontiguousarray(kernel.T)
            sizes = [norm(vector(row)) for row in kernel]
            self._absolute[index] = matrix(transposed), matrix(np.abs(transposed)), sizes
        return self._absolute[index]


def _products(one: tuple[arb, arb], other: tuple[arb, arb]) -> tuple[arb, arb]:
    """Returns the least and the largest product of numbers of two intervals."""
    products = [a * b for a in one for b in other]
    low, high = products[0], products[0]
    for product in products[1:]:
        low, high = low.min(product), high.max(product)
    return low.lower(), high.upper()


def _sum(terms) -> arb:  # type: ignore[no-untyped-def]
    return arb(up(sum(terms, ZERO)))
