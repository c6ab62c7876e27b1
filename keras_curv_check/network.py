"""The network in balls: margins and gradients, and what bounds its movements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from flint import arb, arb_mat

from keras_curv_check.activations import Sigma, sigma_of
from keras_curv_check.balls import ZERO, matrix, norm, rows, up, vector, within
from keras_curv_check.files import NetworkFile
from keras_curv_check.lines import Units
from keras_curv_check.norms import Matrix
from keras_curv_check.rounding import gamma, norms


class OutOfScopeError(ValueError):
    """What this package does not prove; the message says what."""


class Network:
    """A network whose margins are evaluated, and whose Lipschitz constants are bounded, in balls.

    Args:
        file: its numbers.

    Attributes:
        file: as given.
        layers: for each hidden layer, the activation of each unit.

    Raises:
        OutOfScopeError: a map is sparse, or an activation is unknown.
    """

    def __init__(self, file: NetworkFile):
        self.file = file
        self.layers: list[list[Sigma]] = []
        self._columns: dict[tuple[int, int], arb] = {}
        for number, layer in enumerate(file.activations, 1):
            for name in (name for name, _ in layer if sigma_of(name) is None):
                raise OutOfScopeError(f"activation {name!r} of layer {number}")
            self.layers.append([s for name, count in layer for s in [sigma_of(name)] * count if s])
        for number, one in enumerate(file.maps, 1):
            if not one.kernel.size:
                raise OutOfScopeError(f"map {number} is sparse")

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
    def _kernels(self) -> list[arb_mat]:
        return [matrix(one.middle) for one in self.matrices]

    @functools.cached_property
    def transposed(self) -> list[arb_mat]:
        """Returns the kernels, turned round."""
        return [kernel.transpose() for kernel in self._kernels]

    @functools.cached_property
    def units(self) -> list[Units]:
        """Returns the activations of each hidden layer, as arrays."""
        return [Units(layer) for layer in self.layers]

    @property
    def smooth(self) -> bool:
        """Returns whether every σ″ is bounded."""
        return all(sigma.bends is not None for layer in self.layers for sigma in layer)

    def forward(self, points: Sequence[Sequence[arb]]) -> tuple[list, list]:
        """Returns pre-activations of each hidden layer, and logits, a row for each point."""
        pre: list[list[list[arb]]] = []
        now = [list(point) for point in points]
        for number, (one, kernel) in enumerate(zip(self.file.maps, self._kernels, strict=True)):
            bias = vector(one.bias)
            products = (rows(now) * kernel).table()
            for place, product in enumerate(products):
                off = within(one.kernel_error * norm(now[place]) + one.bias_error)
                products[place] = [p + b + off for p, b in zip(product, bias, strict=True)]
            if number == len(self.layers):
                return pre, products
            pre.append(products)
            layer = self.layers[number]
            now = [[s.value(z) for s, z in zip(layer, row, strict=True)] for row in products]
        raise AssertionError

    def gradients(self, pre: list, at: list[int], pairs: list[tuple[int, int]]) -> list[list[arb]]:
        """Returns gradients of margins `z_label − z_rival`.

        Args:
            pre: of `forward`.
            at: which point each is taken at.
            pairs: label and rival of each.
        """
        now: list[list[arb]] = []
        for column in (self.column(*pair) for pair in pairs):
            now.append([w + within(column.error) for w in vector(column.middle[:, 0])])
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            slopes = [[s.first(z) for s, z in zip(layer, row, strict=True)] for row in pre[number]]
            now = [
                [a * v for a, v in zip(slopes[place], row, strict=True)]
                for place, row in zip(at, now, strict=True)
            ]
            error = self.file.maps[number].kernel_error
            products = (rows(now) * self.transposed[number]).table()
            off = [within(error * norm(row)) for row in now]
            now = [[p + o for p in row] for row, o in zip(products, off, strict=True)]
        return now

    def column(self, label: int, rival: int) -> Matrix:
        """Returns `w = W_L[:, label] − W_L[:, rival]`, `(N, 1)`."""
        last = self.matrices[-1]
        w = last.middle[:, [label]] - last.middle[:, [rival]]
        return Matrix(w, arb(up(2 * last.error + gamma(2) * arb(float(norms(w[:, 0]))))))

    @functools.cached_property
    def steepest(self) -> list[arb]:
        """Bounds |σ′| of each layer from above."""
        return [arb(float(np.abs(layer.steepness).max())) for layer in self.units]

    @functools.cached_property
    def lipschitz(self) -> list[arb]:
        """Bounds the Lipschitz constants of x ↦ z_1, …, z_{L−1} from above; theorem 7.1."""
        found: list[arb] = []
        for number in range(len(self.layers)):
            bound = self.telescoped(self.matrices[number], number, found, lambda one: one.norm())
            if number:
                guard = self.norms[number] * self.steepest[number - 1] * found[-1]
                bound = arb(min(up(bound), up(guard)))
            found.append(bound)
        return found

    def telescoped(
        self, last: Matrix, number: int, before: list[arb], size: Callable[[Matrix], arb]
    ) -> arb:
        """Returns theorem 7.1's bound of `size` of x ↦ a_number times `last`.

        Args:
            last: the matrix behind activation `number`, counted from 1; behind the input for 0.
            number: of activations before it.
            before: Lipschitz constants of z_1, …, z_number.
            size: bounds a norm of a product from above.
        """
        total, product = ZERO, last
        for index in reversed(range(number)):
            units = self.units[index]
            total += size(product.scaled_rows(units.spread)) * before[index]
            product = self.matrices[index].times(product.scaled_rows(units.middle))
        return arb(up(total + size(product)))

    def margin_lipschitz(self, label: int, rival: int) -> arb:
        """Bounds the Lipschitz constant of a margin from above; theorem 7.1 with w for W_L."""
        pair = min(label, rival), max(label, rival)
        if pair not in self._columns:
            column = self.column(*pair)
            number = len(self.layers)
            bound = self.telescoped(column, number, self.lipschitz, _column_norm)
            if number:
                guard = _column_norm(column) * self.steepest[-1] * self.lipschitz[-1]
                bound = arb(min(up(bound), up(guard)))
            self._columns[pair] = bound
        return self._columns[pair]


def _column_norm(one: Matrix) -> arb:
    return norm(vector(one.middle[:, 0])) + one.error
