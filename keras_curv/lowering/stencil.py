"""The norm of a convolution, proved from its kernel alone, whatever the size of the image.

A zero-padded convolution with taps K and strides s is, up to a translation of the image,

    y[p] = Σ_k K[k]ᵀ x[s p + k],    x zero outside of the image, p within a window.

**From above by its symbol.** Without the two restrictions it is an operator T on ℓ²(ℤ²), and the
convolution is T between an embedding and a restriction, both of norm 1: `‖W‖ ≤ ‖T‖`. Write
`k = s q + r`, 0 ≤ r < s on each axis. Then `y[p] = Σ_r Σ_q K[s q + r]ᵀ x_r[p + q]` with
`x_r[n] = x[s n + r]`, a convolution without strides of s_1 s_2 times the channels, and x ↦ (x_r) is
unitary. The Fourier transform makes it a multiplication, at each frequency ω by the symbol
`G(ω) = Σ_q G_q e^{i q·ω}`, so `‖W‖ ≤ ‖T‖ = max_ω σ_max(G(ω))`.

**From finitely many frequencies.** The maximum M is attained, at some θ, and there with unit
vectors u and v: `M = |u* G(θ) v|`. Fix these. On each axis, `t(ω) = |u* G(ω) v|²` is a real
trigonometric polynomial of degree D, one less than the number of q, and 0 ≤ t ≤ M² everywhere.
The inequality of Bernstein and Szegő, `t̃′² + D² t̃² ≤ D² ‖t̃‖²_∞`, for `t̃ = t − M²/2` bounds the
derivative of `arccos(2 t̃ / M²)` by D, so at a distance δ ≤ π/D of θ, where it is 0,

    t ≥ M²/2 + M²/2 cos(D δ) = M² cos²(D δ / 2).

With N > D equidistant points one lies at a distance of at most π/N: there `|u* G v|` is at least
`M cos(π D / 2N)`. The largest value on the line through that point along the other axis is no
less; from where on that line it is attained, the same again. Hence

    M ≤ max over the grid of σ_max(G) / (cos(π D_1 / 2N_1) cos(π D_2 / 2N_2)).

N = 16 D makes that excess less than 1 %. G(−ω) is the conjugate of G(ω): half of the grid is
enough. At a point of it, G = A + iB has the norm of the real matrix `[[A, −B], [B, A]]`, which
`numerics/spectral.py` proves.

**Without signs.** If no tap is negative, `|G(ω)| ≤ G(0)` entry by entry and the maximum is at 0:
no excess. That is the norm of the matrix of absolute values, and a bound of any other.

**A channel alone.** Where each filter has a channel of its own, ‖W‖ is the largest of the norms of
these filters: G(ω) is a row for each of them.

**Rounding.** Tables of e^{i q ω} are off by less than 32 u each (cosine, sine and their argument, a
few u of at most 2π, are), and the sums by γ of their terms. So each entry of a computed symbol is
off by less than `(128 + 8 (n_1 + n_2)) u Σ_q |G_q|`, and its norm by that matrix's Frobenius norm.

Reference: Sedghi, Gupta & Long, "The singular values of convolutional layers" (2019), for circular
convolutions; Araujo, Negrevergne, Chevaleyre & Atif, "On Lipschitz regularization of convolutional
layers using Toeplitz matrix theory" (2021), for zero-padded ones; Szegő, "Über einen Satz des Herrn
Serge Bernstein" (1928).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from keras_curv.lowering.error_ball import Ball
from keras_curv.numerics.rounding import UNIT, norm_bound, scaled_back, up
from keras_curv.numerics.spectral import largest_norm_bound, spectral_norm_bound
from keras_curv.saved_model.limits import STORED_ENTRIES, affords

OVERSAMPLING = (16, 8, 4)  # N / D: the first that the operations below allow
_AT_ONCE = 16  # operations are counted as one multiplication, though they take longer: they pay


@dataclasses.dataclass(frozen=True, eq=False)
class Stencil:
    """A convolution of images of any size, with diagonal maps of norm at most 1 on either side.

    Every map that it stands for has a matrix that is, entry by entry and up to those diagonals,
    within `taps.error` of that of `taps.value`, placed alike; at each position in its own way.

    Attributes:
        taps: `(height, width, channels, filters)`, dilated if at all.
        strides: of the two axes.
        complete: whether all positions are there that see the image, and with no diagonal map
            behind: then what follows may take its output to be zero everywhere else.
        alone: whether each channel has one filter, which sees no other: taps have one channel.

    Example:
        >>> average = Stencil(Ball.exact(np.full((2, 2, 1, 1), 0.25)), (2, 2))
        >>> average.norm.__round__(9), average.magnitude.__round__(9)
        (0.5, 0.5)
    """

    taps: Ball
    strides: tuple[int, int] = (1, 1)
    complete: bool = False
    alone: bool = False

    @functools.cached_property
    def norm(self) -> float:
        """‖W‖, from above."""
        return up(self._bound(self.taps.value, _norm) + self._bound(self.taps.error, _sum_norm))

    @functools.cached_property
    def magnitude(self) -> float:
        """‖|W|‖, from above."""
        return self._bound(up(np.abs(self.taps.value) + self.taps.error), _sum_norm)

    def with_inputs_scaled(self, factor: Ball) -> Stencil:
        """Returns the map after `diag(factor)`, a factor for each entry of the image."""
        largest = Ball.exact(_largest(factor, self.taps.shape[3 if self.alone else 2]))
        factors = largest if self.alone else largest.reshape((-1, 1))
        return dataclasses.replace(self, taps=self.taps * factors)

    def with_outputs_scaled(self, factor: Ball) -> Stencil:
        """Returns the map before `diag(factor)`, a factor for each entry that it makes."""
        alike = factor.reshape((-1, self.taps.shape[3]))
        if np.all(alike.value == alike.value[0]) and np.all(alike.error == alike.error[0]):
            return dataclasses.replace(self, taps=self.taps * alike[0])
        largest = Ball.exact(_largest(factor, self.taps.shape[3]))
        return dataclasses.replace(self, taps=self.taps * largest, complete=False)

    def then(self, other: Stencil | Bounded) -> tuple[Stencil | Bounded, ...]:
        """Returns this and the other after it: as one where that is sure to be one, else as both.

        The other must be given the output of this one as the image that it is, unscaled but for
        factors of whole channels, and in its order.

        `K[s_1 k_2 + k_1] = Σ K_1[k_1] K_2[k_2]`, with the product of the strides.
        """
        if not self.complete or isinstance(other, Bounded):
            return self, other
        if self.taps.shape[3] != other.taps.shape[3 if other.alone else 2]:  # another image
            return self, other
        heights, widths = zip(self.taps.shape[:2], other.taps.shape[:2], strict=True)
        spans = [
            (second - 1) * stride + first
            for (first, second), stride in zip((heights, widths), self.strides, strict=True)
        ]
        alone = self.alone and other.alone
        channels = self.taps.shape[3 if self.alone and not alone else 2]
        shape = *spans, channels, other.taps.shape[3]
        if math.prod(shape) > STORED_ENTRIES:
            return self, other
        taps = Ball.exact(np.zeros(shape))
        for row, column in np.ndindex(*other.taps.shape[:2]):
            start = row * self.strides[0], column * self.strides[1]
            place = tuple(slice(a, a + n) for a, n in zip(start, self.taps.shape[:2], strict=True))
            total = taps[place] + self._taps_times(other.taps[row, column], other.alone)
            taps.value[place], taps.error[place] = total.value, total.error
        strides = self.strides[0] * other.strides[0], self.strides[1] * other.strides[1]
        return (Stencil(taps, strides, other.complete, alone),)

    def _taps_times(self, tap: Ball, alone: bool) -> Ball:
        """Multiplies all taps by one of another stencil, which may see each channel `alone`."""
        if alone:
            return self.taps * tap
        return self.taps.transpose((0, 1, 3, 2)) * tap if self.alone else self.taps @ tap

    def _bound(self, taps: np.ndarray, norm: Callable[[np.ndarray, bool], float]) -> float:
        """Bounds the norm of taps scaled to about 1, which rounds nothing, and scales it back."""
        largest = float(np.abs(taps).max(initial=0.0))
        if largest == 0.0 or not math.isfinite(largest):
            return 0.0 if largest == 0.0 else math.inf
        power = math.frexp(largest)[1]
        bound = norm(_phases(np.ldexp(taps, -power), self.strides), self.alone)
        return scaled_back(bound, power)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A map of which only a bound of ‖|W|‖, and so of ‖W‖, is known; it may move any entry."""

    magnitude: float  # the bound
    spectral: float | None = None  # a smaller bound of ‖W‖ alone, if there is one

    @property
    def norm(self) -> float:
        """‖W‖, from above."""
        return self.magnitude if self.spectral is None else self.spectral

    def with_inputs_scaled(self, factor: Ball) -> Bounded:
        """Returns the map after or before `diag(factor)`."""
        largest = float(_largest(factor, 1)[0])
        spectral = None if self.spectral is None else up(self.spectral * largest)
        return Bounded(up(self.magnitude * largest), spectral)

    with_outputs_scaled = with_inputs_scaled

    def then(self, other: Stencil | Bounded) -> tuple[Stencil | Bounded, ...]:
        """Returns both maps, as they do not become one."""
        return self, other


def norm_of_product(stencils: tuple[Stencil | Bounded, ...]) -> float:
    """Bounds the norm of one map after the other."""
    return up(math.prod(stencil.norm for stencil in stencils), len(stencils))


def magnitude_of_product(stencils: tuple[Stencil | Bounded, ...]) -> float:
    """Bounds the norm of the product's absolute values, at most the product of theirs."""
    return up(math.prod(stencil.magnitude for stencil in stencils), len(stencils))


def _largest(factor: Ball, channels: int) -> np.ndarray:
    """Returns the largest absolute value of each channel, over all positions."""
    return up(np.abs(factor.value) + factor.error).reshape(-1, channels).max(axis=0)


def _phases(taps: np.ndarray, strides: tuple[int, int]) -> np.ndarray:
    """Returns G_q, `(n_1, n_2, filters, s_1 s_2 channels)`."""
    height, width, channels, filters = taps.shape
    counts = [-(-size // stride) for size, stride in zip(taps.shape[:2], strides, strict=True)]
    whole = np.zeros((counts[0] * strides[0], counts[1] * strides[1], channels, filters))
    whole[:height, :width] = taps
    parts = whole.reshape(counts[0], strides[0], counts[1], strides[1], channels, filters)
    return parts.transpose(0, 2, 5, 1, 3, 4).reshape(*counts, filters, -1)


def _norm(phases: np.ndarray, alone: bool) -> float:
    if phases.shape[:2] == (1, 1):  # the symbol is the same everywhere
        return _norm_of(phases[0, 0], alone)
    without_signs = _sum_norm(np.abs(phases), alone)
    if np.all(phases >= 0.0):
        return without_signs
    return min(without_signs, _grid_norm(phases, alone))


def _sum_norm(phases: np.ndarray, alone: bool) -> float:
    """Bounds the symbol's norm at 0, where no tap is negative."""
    total = up(phases.sum(axis=(0, 1)), phases.shape[0] * phases.shape[1])
    return _norm_of(total, alone)


def _norm_of(matrix: np.ndarray, alone: bool) -> float:
    """Bounds the norm of a matrix, or the largest of those of its rows."""
    return float(norm_bound(matrix, axis=1).max()) if alone else spectral_norm_bound(matrix)


def _grid_norm(phases: np.ndarray, alone: bool) -> float:
    if phases.shape[2] > phases.shape[3] and not alone:
        phases = phases.swapaxes(2, 3)  # the same singular values, and the smaller Gram matrix
    counts, (rows, columns) = phases.shape[:2], phases.shape[2:]
    smaller = 1.0 if alone else 2.0 * rows
    for oversampling in OVERSAMPLING:
        points = [max(1, oversampling * (count - 1)) for count in counts]
        matrices = (points[0] // 2 + 1) * points[1] * (rows if alone else 1)
        operations = int(matrices * smaller**2 * (4.0 * columns + smaller))
        if affords(operations // _AT_ONCE):
            break
    else:
        return math.inf
    down, across = (_waves(n, count) for n, count in zip(points, counts, strict=True))
    estimate = largest = 0.0
    for row in down[: points[0] // 2 + 1]:
        symbols = np.tensordot(across, np.tensordot(row, phases, 1), 1)
        if alone:
            largest = max(largest, _norm_of(np.abs(symbols).reshape(-1, columns), alone))
            continue
        real = np.block([[symbols.real, -symbols.imag], [symbols.imag, symbols.real]])
        found = largest_norm_bound(real, estimate)  # most rows have no norm above those before
        estimate = found**2 if found**2 > (1.0 + 1e-9) * estimate else estimate
        largest = max(largest, found)
    charge = (128.0 + 8.0 * sum(counts)) * UNIT * norm_bound(np.abs(phases).sum(axis=(0, 1)))
    between = math.prod(
        math.cos(math.pi * (count - 1) / (2 * n)) for n, count in zip(points, counts, strict=True)
    )
    return up((largest + charge) / between, 32)


def _waves(points: int, count: int) -> np.ndarray:
    """Returns `e^{i q ω}` at ω = 0, 2π/N, …, `(points, count)`."""
    angle = 2.0 * math.pi * (np.outer(np.arange(points), np.arange(count)) % points) / points
    return np.cos(angle) + 1j * np.sin(angle)
