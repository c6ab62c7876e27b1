"""Curvature of networks of any depth on a ball: lemmas 9.1 and 9.2, theorem 9.3.

Jacobians are anchored at the centre x0: σ′ there as it comes out in float64 is taken for exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, floats, up
from keras_curv_check.curvature import before, bends_on, products
from keras_curv_check.network import Network
from keras_curv_check.norms import Matrix
from keras_curv_check.rounding import TINY, gamma, norms, outward, require_moderate
from keras_curv_check.rounding import up as raised

_STEPS = 30  # of a power iteration
_ROUNDS = 2  # of a choice of t


class Layer(NamedTuple):
    """What is known of a hidden layer I on the ball.

    Attributes:
        jacobian: B_I⁰, transposed, `(dim, N)`.
        kernel: W_I, whose rows have lengths below `rows`.
        norm: bounds ‖W_I‖.
        slope: σ′ at the centre; it is off by at most `off`.
        slopes, bends: least and largest σ′ and σ″ on the ball, `(2, N)`.
        change: bounds |σ′ − slope|, `(N,)`.
        move: bounds how far z_I goes from the centre.
        drift: δ_{I−1}.
        lipschitz: bounds ‖J_{I−1}‖.
        quartic: q_I.
        carry: bounds ‖W_I diag(slope)‖.
    """

    jacobian: Matrix
    kernel: Matrix
    rows: np.ndarray
    norm: float
    slope: np.ndarray
    off: float
    slopes: np.ndarray
    bends: np.ndarray
    change: np.ndarray
    move: float
    drift: float
    lipschitz: float
    quartic: float
    carry: float


class Term(NamedTuple):
    """What theorem 9.3 sums of a layer: e_I, what is added for it, and ε_I."""

    e: np.ndarray
    cost: float
    loss: float

    def at(self, square: np.ndarray) -> tuple[np.ndarray, arb]:
        """Returns `t|e| − e` and the rest, for about the best t where (B_I⁰v)² is `square`."""
        size, t, rest = np.abs(self.e), 0.0, arb(self.cost)
        if self.loss:
            t = float(np.clip(self.loss / np.sqrt(size @ square + TINY), 2.0**-50, 4.0))
            rest += (1 + 1 / arb(t)) * arb(self.loss) ** 2
        return np.nextafter(raised(t * size) - self.e, np.inf), rest

    def level(self, square: np.ndarray) -> float:
        """Returns about what it adds at v."""
        weights, rest = self.at(square)
        return float(weights @ square) + float(rest)


class Choice(NamedTuple):
    """One term of each layer, so that κ is `λ_max(Σ B_I⁰ᵀ diag(weights_I) B_I⁰)⁺` and the rest.

    `value` is about that κ, and `squares` are (B_I⁰v)² at the v of the largest eigenvalue.
    """

    value: float
    weights: list[np.ndarray]
    rest: arb
    squares: list[np.ndarray]


class Anchored:
    """Bounds the curvature of a network's margins on one ball.

    Args:
        network: of smooth activations.
        pre: z of each hidden layer at the centre.
        radius: of the ball.
    """

    def __init__(self, network: Network, pre: Sequence[Vector], radius: float):
        self._network, self._layers = network, list[Layer]()
        jacobian, lipschitz, drift, spread = network.matrices[0], 1.0, 0.0, None
        for index, (kernel, z) in enumerate(zip(network.matrices, pre, strict=False)):
            units, norm = network.units[index], up(network.norms[index])
            error, own = up(kernel.error), up(jacobian.error)
            columns = raised(norms(kernel.middle.T) + error)
            anchored = raised(norms(jacobian.middle.T) + own)  # rows of B_I⁰
            rows = np.minimum(lipschitz * columns, anchored + drift * columns)
            steep = min(up(jacobian.norm()) + norm * drift, norm * lipschitz)
            steep = float(raised(min(steep, up(network.lipschitz[index])), 4))  # ‖B_I‖
            reach = raised(radius * rows, 8)
            if spread is not None:
                through = spread @ np.abs(kernel.middle) + error * norms(spread)
                reach = np.minimum(reach, raised(through, len(spread) + 4))
            centre, off = floats(z)
            require_moderate(centre, off, reach, steep)
            low, high = outward(centre, reach + off)
            slopes, bends = units.slopes(low, high), bends_on(network.layers[index], low, high).T
            exact = [s.first(entry) for s, entry in zip(network.layers[index], z, strict=True)]
            slope, away = floats(exact)
            change = raised(np.maximum(np.maximum(slopes[1] - slope, slope - slopes[0]), 0.0))
            bend, moved = np.abs(bends).max(axis=0), float(raised(norm * drift))
            crossing = 2.0 * (bend * anchored).max() + (bend * columns).max() * drift
            quartic = _at_anchor(jacobian, anchored, bend) + raised(crossing * moved, 8)
            quartic = min(raised(quartic), raised((bend * rows).max() * steep, 8))
            carry = up(kernel.norm(slope**2)) if drift else norm * float(np.abs(slope).max())
            layer = Layer(
                jacobian=jacobian,
                kernel=kernel,
                rows=raised(norms(kernel.middle) + error),
                norm=norm,
                slope=slope,
                off=float(away.max()),
                slopes=slopes,
                bends=bends,
                change=change,
                move=float(raised(radius * steep)),
                drift=drift,
                lipschitz=lipschitz,
                quartic=float(quartic),
                carry=carry,
            )
            self._layers.append(layer)
            if index == len(network.layers) - 1:
                break
            steepest = np.abs(slopes).max(axis=0)
            spread = raised(steepest * reach)
            turn = min(change.max() * steep, radius * quartic + away.max() * steep)
            drift = float(raised(turn + carry * drift, 8))
            here = up(jacobian.norm(slope**2))
            known = network.steepest[index] * network.lipschitz[index]
            lipschitz = float(raised(min(steepest.max() * steep, here + drift, up(known)), 4))
            drift = float(raised(min(drift, lipschitz + here)))
            jacobian = jacobian.times(network.matrices[index + 1].scaled_rows(slope))

    def bounds(self, label: int, rivals: Iterable[int]) -> Iterator[arb]:
        """Yields values of κ for the margins over all of these rivals, the better one last."""
        parts = zip(*(self._least(label, rival) for rival in rivals), strict=True)
        terms = [_terms(*both) for both in zip(self._layers, parts, strict=True)]
        _, squares = self._worst([-layer[0].e for layer in terms])
        pairs = zip(terms, squares, strict=True)
        first = [min(layer[:2], key=lambda term: term.level(square)) for layer, square in pairs]
        best = self._refined(first, squares)
        yield self._proved(best)
        chosen, start = [*first], best
        for index, layer in enumerate(terms):
            for term in (each for each in layer if each is not chosen[index]):
                found = self._refined([*chosen[:index], term, *chosen[index + 1 :]], best.squares)
                if found.value < best.value:
                    best, chosen[index] = found, term
        if best is not start:
            yield self._proved(best)

    def _refined(self, terms: Sequence[Term], squares: Sequence[np.ndarray]) -> Choice:
        """Returns about the best t of these terms, the first for (B_I⁰v)² that are `squares`."""
        best = None
        for _ in range(_ROUNDS):
            parts = [term.at(square) for term, square in zip(terms, squares, strict=True)]
            weights, rest = [part[0] for part in parts], sum((part[1] for part in parts), ZERO)
            value, squares = self._worst(weights)
            found = Choice(value + float(rest), weights, rest, squares)
            best = found if best is None or found.value < best.value else best
        assert best is not None
        return best

    def _proved(self, choice: Choice) -> arb:
        whole = np.concatenate([layer.jacobian.middle for layer in self._layers], axis=1)
        return Matrix(whole, ZERO).largest(np.concatenate(choice.weights)) + arb(up(choice.rest))

    def _worst(self, weights: Sequence[np.ndarray]) -> tuple[float, list[np.ndarray]]:
        """Returns about the largest of `vᵀ (Σ B_I⁰ᵀ diag(weights_I) B_I⁰) v`, and (B_I⁰v)²."""
        parts = [layer.jacobian.middle for layer in self._layers]
        whole = sum((part * w) @ part.T for part, w in zip(parts, weights, strict=True))
        values, vectors = np.linalg.eigh(whole)
        return max(values[-1], 0.0), [(vectors[:, -1] @ part) ** 2 for part in parts]

    def _least(self, label: int, rival: int) -> list[tuple]:
        """Returns of each layer e_I by the interval of F_I, e_I by one point, and what that costs.

        F_I is in [low, high], has a norm of `size` at most, and is within `away` of `point`.
        """
        column = self._network.column(label, rival)
        point, away = column.middle[:, 0], up(column.error)
        low, high = outward(point, np.full(len(point), away))
        size, found = float(raised(norms(point) + away)), []
        for index in reversed(range(len(self._layers))):
            layer = self._layers[index]
            least = [products(layer.bends.T, *pair)[0] for pair in ((low, high), (point, point))]
            found.append((*least, float(raised(away * layer.quartic))))
            if not index:
                break
            # (σ′ − slope) ∘ F, by how far σ′ or z moves, in norm and behind W_I …
            most, steepest = np.maximum(np.abs(low), np.abs(high)), np.abs(layer.slope).max()
            bend, off = np.abs(layer.bends).max(axis=0) * most, layer.off * size
            turn = min(float(norms(layer.change * most)), bend.max() * layer.move + off)
            kernel, error = layer.kernel.middle, up(layer.kernel.error)
            across = norms(kernel * bend) + bend.max() * error
            across = np.minimum(across * layer.move + off * layer.rows, turn * layer.rows)
            # … and slope ∘ (F − point)
            through = layer.slope * point
            lost = error + gamma(len(through) + 8) * up(layer.kernel.frobenius)
            lost = float(lost * norms(through)) + TINY
            reach = raised(across + steepest * away * layer.rows + lost, 16)
            point = kernel @ through
            carried = min(layer.norm * steepest, layer.carry) * away
            whole = float(layer.norm * turn + carried + lost)
            away = float(raised(min(whole, float(norms(reach))), 16))
            general = float(raised(np.abs(layer.slopes).max() * size))  # bounds ‖σ′ ∘ F‖
            inside = products(layer.slopes.T, low, high)
            ends = before(self._network.file.maps[index], *inside, general), outward(point, reach)
            low, high = np.maximum(ends[0][0], ends[1][0]), np.minimum(ends[0][1], ends[1][1])
            size = float(raised(min(layer.norm * general, float(norms(point)) + away), 4))
        return found[::-1]


def _terms(layer: Layer, parts: Sequence[tuple]) -> list[Term]:
    """Returns what theorem 9.3 may sum of one layer, for several rivals together.

    That is by the interval of F_I, or by a point; and in the sum, or beside it. The first two are
    in the sum, unless the Jacobian moves by more than its norm.

    Args:
        layer: the layer.
        parts: of each rival, e_I by the interval of F_I, e_I by a point, and what that costs.
    """
    least, others, costs = zip(*parts, strict=True)
    inside, beside = list[Term](), list[Term]()
    for e, cost in ((np.min(least, axis=0), 0.0), (np.min(others, axis=0), max(costs))):
        size, loss = np.abs(e), ZERO
        if layer.drift:
            loss = layer.kernel.norm(size) * layer.drift
            outside = layer.kernel.norm(np.maximum(-e, 0.0)) * layer.lipschitz
            beside.append(Term(np.zeros(len(e)), up(outside**2 + cost), 0.0))
        loss += arb(float(size.max())).sqrt() * layer.jacobian.error
        inside.append(Term(e, cost, up(loss)))
    return inside + beside if layer.drift < layer.lipschitz else beside + inside


def _at_anchor(jacobian: Matrix, rows: np.ndarray, bend: np.ndarray) -> float:
    """Bounds `‖b ∘ (B⁰u) ∘ (B⁰v)‖` for unit u and v (Collatz–Wielandt)."""
    middle, error = jacobian.middle, up(jacobian.error)
    rounded = gamma(len(middle) + 4) * np.outer(rows, rows)
    gram = np.abs(middle.T @ middle) + rounded + error * np.add.outer(rows, rows)
    square = bend[:, None] * raised(gram, 4) ** 2 * bend
    u = np.ones(len(square))
    for _ in range(_STEPS):
        u = square @ u
        u = u / u.max(initial=TINY) + 1e-9
    return float(raised(np.sqrt(raised((square @ u / u).max(), len(u) + 16))))
