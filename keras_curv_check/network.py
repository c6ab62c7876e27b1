"""The network in balls: margins and gradients, and what bounds its movements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from flint import arb

from keras_curv_check.activations import Sigma, sigma_of
from keras_curv_check.balls import Vector, dot, norm, up, vector, within
from keras_curv_check.blocks import Blocks
from keras_curv_check.files import NetworkFile
from keras_curv_check.lines import Units
from keras_curv_check.norms import Matrix
from keras_curv_check.rounding import gamma, norms
from keras_curv_check.rounding import up as raised
from keras_curv_check.wide import Wide

_FEW = 16  # columns that are put through a sparse map


class OutOfScopeError(ValueError):
    """What this package does not prove; the message says what."""


class Network:
    """A network whose margins are evaluated, and whose Lipschitz constants are bounded, in balls.

    Args:
        file: its numbers.

    Attributes:
        file: as given.
        layers: for each hidden layer, the activation of each unit.
        sparse: whether a map is sparse.

    Raises:
        OutOfScopeError: an activation is unknown.
    """

    def __init__(self, file: NetworkFile):
        self.file = file
        self.layers: list[list[Sigma]] = []
        self._columns: dict[tuple[int, int], arb] = {}
        for number, layer in enumerate(file.activations, 1):
            for name in (name for name, _ in layer if sigma_of(name) is None):
                raise OutOfScopeError(f"activation {name!r} of layer {number}")
            self.layers.append([s for name, count in layer for s in [sigma_of(name)] * count if s])
        self.sparse = any(isinstance(one.kernel, Blocks) for one in file.maps)

    @functools.cached_property
    def stored(self) -> Network:
        """Returns the network of the stored numbers, whatever folding has rounded."""
        maps = self.file.maps
        if not any(one.kernel_error or one.bias_error for one in maps):
            return self
        exact = [dataclasses.replace(one, kernel_error=0.0, bias_error=0.0) for one in maps]
        return Network(dataclasses.replace(self.file, maps=exact))

    @functools.cached_property
    def matrices(self) -> list[Matrix]:
        """Returns the kernels."""
        return [Matrix.of(one) for one in self.file.maps]

    @functools.cached_property
    def norms(self) -> list[arb]:
        """Bounds the spectral norms of the kernels from above."""
        return [one.norm() for one in self.matrices]

    @functools.cached_property
    def _wide(self) -> Wide:
        return Wide(self.file)

    @functools.cached_property
    def units(self) -> list[Units]:
        """Returns the activations of each hidden layer, as arrays."""
        return [Units(layer) for layer in self.layers]

    @property
    def smooth(self) -> bool:
        """Returns whether every σ″ is bounded."""
        return all(sigma.bends is not None for layer in self.layers for sigma in layer)

    def forward(self, points: Sequence[Vector]) -> tuple[list, list, list]:
        """Returns z and, of a smooth network, σ′(z) of each hidden layer, and logits, by point."""
        if self.sparse:
            return self._wide.forward(points, self.smooth)
        pre: list[list[Vector]] = []
        slopes: list[list[Vector]] = []
        now: list[Vector] = [*points]
        for number, one in enumerate(self.file.maps):
            off, products = within(arb(one.bias_error)), through(now, one.kernel, one.kernel_error)
            bias = [b + off for b in vector(one.bias)]
            z = [[p + b for p, b in zip(row, bias, strict=True)] for row in products]
            if number == len(self.layers):
                return pre, slopes, z
            pre.append(z)
            layer = self.layers[number]
            if self.smooth:
                both = [
                    [s.value_and_first(e) for s, e in zip(layer, row, strict=True)] for row in z
                ]
                slopes.append([[first for _, first in row] for row in both])
                now = [[value for value, _ in row] for row in both]
            else:
                now = [[s.value(e) for s, e in zip(layer, row, strict=True)] for row in z]
        raise AssertionError

    def gradients(self, slopes: list, at: list[int], pairs: list[tuple[int, int]]) -> list[Vector]:
        """Returns gradients of margins `z_label − z_rival`.

        Args:
            slopes: of `forward`.
            at: which point each is taken at.
            pairs: label and rival of each.
        """
        columns = [self.column(*pair) for pair in pairs]
        if self.sparse:
            return self._wide.gradients(slopes, at, columns)
        now: list[Vector] = []
        for column in columns:
            off = within(column.error)
            now.append([w + off for w in vector(column.middle[:, 0])])
        for one, layer in reversed([*zip(self.file.maps[:-1], slopes, strict=True)]):
            turned = [
                [a * v for a, v in zip(layer[place], row, strict=True)]
                for place, row in zip(at, now, strict=True)
            ]
            now = through(turned, one.kernel.T, one.kernel_error)
        return now

    def column(self, label: int, rival: int) -> Matrix:
        """Returns `w = W_L[:, label] − W_L[:, rival]`, `(N, 1)`."""
        last, pair = self.matrices[-1], np.zeros((len(self.file.maps[-1].bias), 1))
        pair[[label, rival], 0] = 1.0, -1.0
        w = last.middle @ pair
        return Matrix(w, arb(up(2 * last.error + gamma(2) * arb(float(norms(w[:, 0]))))))

    @functools.cached_property
    def steepest(self) -> list[arb]:
        """Bounds |σ′| of each layer from above."""
        return [arb(float(np.abs(layer.steepness).max())) for layer in self.units]

    @functools.cached_property
    def lipschitz(self) -> list[arb]:
        """Bounds the Lipschitz constants of x ↦ z_1, …, z_{L−1} from above; theorem 7.1."""
        found: list[arb] = []
        for number, parts in enumerate(self.parts):
            bound = telescoped(parts, found, lambda one: one.norm())
            if number:
                guard = self.norms[number] * self.steepest[number - 1] * found[-1]
                bound = arb(min(up(bound), up(guard)))
            found.append(bound)
        return found

    @functools.cached_property
    def parts(self) -> list[list[Matrix] | None]:
        """Returns the matrices of that sum for each hidden layer."""
        return [self.expanded(one, k) for k, one in enumerate(self.matrices[:-1])]

    def expanded(self, last: Matrix, number: int) -> list[Matrix] | None:
        """Returns the matrices of theorem 7.1's sum, that of the largest j first.

        None where that needs a product of a sparse map and more than a few columns.

        Args:
            last: the matrix behind activation `number`, counted from 1; behind the input for 0.
            number: of activations before it.
        """
        parts, product = [], last
        for index in reversed(range(number)):
            maps = product.middle, self.matrices[index].middle
            sparse = [isinstance(one, Blocks) for one in maps]
            if sparse[0] or (sparse[1] and last.middle.shape[1] > _FEW):
                return None
            units = self.units[index]
            parts.append(product.scaled_rows(units.spread))
            product = self.matrices[index].times(product.scaled_rows(units.middle))
        return [*parts, product]

    def margin_lipschitz(self, label: int, rival: int) -> arb:
        """Bounds the Lipschitz constant of a margin from above; theorem 7.1 with w for W_L."""
        pair = min(label, rival), max(label, rival)
        if pair not in self._columns:
            column = self.column(*pair)
            number = len(self.layers)
            bound = telescoped(self.expanded(column, number), self.lipschitz, _column_norm)
            if number:
                guard = _column_norm(column) * self.steepest[-1] * self.lipschitz[-1]
                bound = arb(min(up(bound), up(guard)))
            self._columns[pair] = bound
        return self._columns[pair]


def telescoped(
    parts: list[Matrix] | None, before: Sequence[arb], size: Callable[[Matrix], arb]
) -> arb:
    """Returns theorem 7.1's bound of `size` of x ↦ a_k times a matrix.

    Args:
        parts: as `Network.expanded` returns them; of None the bound is infinite.
        before: Lipschitz constants of z_1, …, z_k, or of more.
        size: bounds a norm of a product from above.
    """
    if parts is None:
        return arb.pos_inf()
    factors = [*reversed(before[: len(parts) - 1]), arb(1)]
    return arb(up(dot([size(part) for part in parts], factors)))


def through(table: Sequence[Vector], kernel: np.ndarray, error: float) -> list[Vector]:
    """Returns `a (W + ΔW)` for each row a of balls, `‖ΔW‖ ≤ error`: float64, rounding charged.

    Args:
        table: rows, `(m, in)`.
        kernel: W, `(in, out)`.
        error: the folding error.
    """
    middle = np.array([[float(entry) for entry in row] for row in table])
    radius = np.array([[float(entry.rad()) for entry in row] for row in table])
    sizes, terms = np.abs(kernel), len(kernel)
    with np.errstate(all="ignore"):
        hidden = radius + gamma(terms + 8) * np.abs(middle)  # a middle is rounded, too
        off = hidden @ sizes + error * norms(np.abs(middle) + radius)[:, None]
        off = raised(off, terms + 8)
        # Where this holds, no sum has overflowed.
        known = (off < 1e200) & bool(sizes.max() < 1e100)
        centre = np.where(known, middle @ kernel, 0.0)
    rows = zip(centre.tolist(), np.where(known, off, np.inf).tolist(), strict=True)
    return [[arb(c, o) for c, o in zip(*both, strict=True)] for both in rows]


def _column_norm(one: Matrix) -> arb:
    return norm(vector(one.middle[:, 0])) + one.error
