"""Networks with sparse maps, evaluated in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from keras_curv_check.activations import sigma_of
from keras_curv_check.balls import Vector
from keras_curv_check.balls import up as above
from keras_curv_check.blocks import lengths
from keras_curv_check.files import NetworkFile
from keras_curv_check.norms import Matrix
from keras_curv_check.rounded import Rounded
from keras_curv_check.rounding import norms


class Wide:
    """A network with sparse maps.

    Args:
        file: its numbers.
    """

    def __init__(self, file: NetworkFile):
        self._maps = file.maps
        self._layers = [
            [(sigma, count) for name, count in layer if (sigma := sigma_of(name))]
            for layer in file.activations
        ]

    @functools.cached_property
    def _lengths(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns, of each kernel, bounds of the norms of columns and of rows."""
        return [(lengths(one.kernel.T), lengths(one.kernel)) for one in self._maps]

    def _derivative(self, number: int, z: Rounded, order: int) -> Rounded:
        """Returns σ, or σ′, of a layer."""
        runs = self._layers[number]
        ends = np.cumsum([count for _, count in runs])[:-1]
        parts = zip(runs, np.split(z.middle, ends), np.split(z.off, ends), strict=True)
        some = [Rounded(m, off, z.far).derivative(order, sigma) for (sigma, _), m, off in parts]
        far = float(norms(np.array([n.far for n in some])))
        middle, off = (
            np.concatenate([n.middle for n in some]),
            np.concatenate([n.off for n in some]),
        )
        return Rounded(middle, off, far)

    def forward(self, points: Sequence[Vector], smooth: bool) -> tuple[list, list, list]:
        """Does what `Network.forward` does, with `Rounded` for rows of z and of σ′(z)."""
        rows = [self._row(Rounded.of(point), smooth) for point in points]
        pre, slopes, logits = zip(*rows, strict=True)
        return [*zip(*pre, strict=True)], [*zip(*slopes, strict=True)], [*logits]

    @np.errstate(all="ignore")  # what is not finite has no bound
    def _row(self, a: Rounded, smooth: bool) -> tuple[list[Rounded], list[Rounded], Vector]:
        pre: list[Rounded] = []
        slopes: list[Rounded] = []
        for number, one in enumerate(self._maps):
            errors = one.kernel_error, one.bias_error
            z = a.through(one.kernel, self._lengths[number][0], one.bias, errors)
            if number == len(self._layers):
                break
            pre.append(z)
            slopes += [self._derivative(number, z, 1)] if smooth else []
            a = self._derivative(number, z, 0)
        return pre, slopes, [*z]

    def gradients(
        self, slopes: Sequence[Sequence[Rounded]], at: Sequence[int], columns: Sequence[Matrix]
    ) -> list[Vector]:
        """Does what `Network.gradients` does, of the margins with these columns."""
        pairs = zip(at, columns, strict=True)
        return [self._gradient([layer[place] for layer in slopes], w) for place, w in pairs]

    @np.errstate(all="ignore")  # what is not finite has no bound
    def _gradient(self, slopes: Sequence[Rounded], column: Matrix) -> Vector:
        w, error = column.middle[:, 0], above(column.error)
        v = Rounded(w, np.full(len(w), error), error)
        for number in reversed(range(len(self._layers))):
            one, rows = self._maps[number], self._lengths[number][1]
            errors = one.kernel_error, 0.0
            v = slopes[number].times(v).through(one.kernel.T, rows, np.zeros(len(rows)), errors)
        return [*v]
