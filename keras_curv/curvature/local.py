"""Curvature on a ball: `∇²f(x) ≽ −κ` for every x in `B(x0, R)`, tighter than on all of ℝᵈ.

Lemma 1: `∇²f(x) = Σ_I B_I(x)ᵀ diag(d_I(x)) B_I(x)`, `d_I = F_I ∘ σ″(z_I)`, B_I the Jacobian of
z_I. On the ball every entry of z_I, hence of σ′, σ″, F_I and d_I, stays in an interval. B_1 = W_1
is constant: for two layers, with `d_lo ≤ d_1(x)`,

    κ = λ_max(−W_1 diag(d_lo) W_1ᵀ),

the local form of theorem 3. In deeper networks the Jacobian `J_I = diag(σ′) B_I` is *anchored* at
x0 (`anchor.py`), from where it moves by at most δ_I (`region.py`). With `E = B_I(x) − B_I(x0)`,
`‖√|d_lo| E‖ ≤ e_I = ‖√|d_lo| W_I‖ δ_{I−1}` and `2|aᵀDb| ≤ t aᵀ|D|a + bᵀ|D|b / t`,

    κ = λ_max(−Σ_I B_I(x0)ᵀ diag(d_lo,I − t_I |d_lo,I|) B_I(x0)) + Σ_{I≥2} (1 + 1/t_I) e_I²

for any t_I > 0: layers cancel as they do in the Hessian, and κ → −λ_min(∇²f(x0)) as R → 0.
A layer whose Jacobian moves too much leaves the sum and adds `‖√(−d_lo)⁺ W_I‖² Lip(a_{I−1})²`.

The rounding of matrix products is charged to e_I.

Reference: Singla & Feizi (2020), lemma 1, theorem 3 and the section on local curvature bounds; the
anchored bound for deeper networks is ours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_curv.curvature.anchor import Anchor, HiddenMaps, anchor_at, weighted_norms
from keras_curv.curvature.region import Region, region_around
from keras_curv.curvature.signed import Sensitivity, output_sensitivity, sensitivity_before
from keras_curv.network.network import Network
from keras_curv.numerics import intervals, lanczos
from keras_curv.numerics.intervals import outward
from keras_curv.numerics.rounding import (
    ACTIVATION_ULPS,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    up,
)
from keras_curv.numerics.spectral import largest_eigenvalue_bound

_LARGE = 2**14  # entries of kernels from which float32 products pay for their conversions


class LocalCurvature:
    """Bounds on one network's curvature on balls.

    Args:
        network: a network with at least one hidden layer.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "sigmoid")
        >>> local = LocalCurvature(network)
        >>> anchor = local.anchor(np.array([[2.0, 0.0]]))
        >>> narrow, wide = (local.bound(anchor, np.array([r]), [0], [0], [1]) for r in (0.1, 9.0))
        >>> narrow.round(3), wide.round(3)  # of all ℝ²: 1/(6√3) = 0.096
        (array([0.084]), array([0.096]))
    """

    def __init__(self, network: Network):
        self.network = network
        self.maps = HiddenMaps(network)
        self._hidden, self._first = self.maps.affines, self.maps.first

    @property
    def in_range(self) -> bool:
        """Returns whether all norms are within 1e±30, and products of some within 1e±120.

        Beyond, squares may over- or underflow.
        """
        norms = [affine.norm for affine in self.network.differentials]
        if not all(1e-30 <= size <= 1e30 for size in norms):
            return False
        return sum(abs(math.log10(size)) for size in norms) <= 120.0

    @functools.cached_property
    def _kernels(self) -> list[np.ndarray]:
        """Returns the kernels for estimates, in float32 if it can hold them and is faster."""
        norms = [affine.norm for affine in self.network.differentials]
        kernels = [self._first, *(affine.kernel for affine in self._hidden[1:])]
        fits = all(1e-12 <= size <= 1e12 for size in (*norms, math.prod(norms)))
        fits &= sum(kernel.size for kernel in kernels) >= _LARGE
        return [kernel.astype(np.float32 if fits else np.float64) for kernel in kernels]

    def anchor_size(self) -> int:
        """Returns an upper bound on the count of numbers in the anchor of one input."""
        widths = [affine.fan_out for affine in self._hidden]
        inner = sum(width**2 for width in widths[1:-1])
        return (2 + len(self._first)) * sum(widths[1:]) + 4 * sum(widths) + inner

    def anchor(self, x: np.ndarray) -> Anchor:
        """Returns the anchor at x, see `anchor_at`."""
        return anchor_at(self.maps, x)

    def region(self, anchor: Anchor, radius: np.ndarray) -> Region:
        """Returns the region around the anchor's inputs, see `region_around`."""
        return region_around(self.maps, anchor, radius)

    def bound(
        self, anchor: Anchor, radius: np.ndarray, of: ArrayLike, label: ArrayLike, rival: ArrayLike
    ) -> np.ndarray:
        """Returns proved κ ≥ max(0, −λ(∇²f_yt(x))) for every x in the ball, `(P,)`.

        Args:
            anchor: the anchor of n inputs.
            radius: `(n,)`.
            of: the input, 0 … n − 1, of each of P pairs.
            label, rival: the classes of each pair, `(P,)`.
        """
        return self._kappa(anchor, radius, of, label, rival, prove=True)

    def shared_bound(
        self, anchor: Anchor, radius: np.ndarray, of: ArrayLike, label: ArrayLike, rival: ArrayLike
    ) -> np.ndarray:
        """Returns a larger, cheaper κ than `bound`, by one proof for all pairs of an input.

        The minimum of d_I over the pairs is a lower bound for each pair, and every lower bound of
        d_I gives a κ.

        Args:
            of: ascending; the other arguments are those of `bound`.
        """
        return self._kappa(anchor, radius, of, label, rival, prove=True, shared=True)

    def estimate(
        self, anchor: Anchor, radius: np.ndarray, of: ArrayLike, label: ArrayLike, rival: ArrayLike
    ) -> np.ndarray:
        """Estimates the κ of `bound`, without a proof and much faster."""
        return self._kappa(anchor, radius, of, label, rival, prove=False)

    def _kappa(
        self,
        anchor: Anchor,
        radius: np.ndarray,
        of: ArrayLike,
        label: ArrayLike,
        rival: ArrayLike,
        prove: bool,
        shared: bool = False,
    ) -> np.ndarray:
        of, label, rival = np.asarray(of), np.asarray(label), np.asarray(rival)
        region = self.region(anchor, np.asarray(radius, np.float64))
        found = self.sensitivities(anchor, region, of, label, rival)
        bends = [tuple(end[of] for end in ends) for ends in region.bends]
        entrywise = [
            _below(intervals.product((f.low, f.high), ends)[0])
            for (f, _, _), ends in zip(found, bends, strict=True)
        ]
        together = [
            _below(intervals.least_multiple(centre, ends))
            for (_, centre, _), ends in zip(found[:-1], bends, strict=False)
        ]
        costs = [away * size[of] for (_, _, away), size in zip(found, region.quartic, strict=False)]
        each = np.arange(len(of))
        if shared and len(of):
            of, first, each = np.unique(of, return_index=True, return_inverse=True)
            entrywise = [np.minimum.reduceat(lowest, first) for lowest in entrywise]
            together = [np.minimum.reduceat(lowest, first) for lowest in together]
            costs = [np.maximum.reduceat(cost, first) for cost in costs]
        shape = len(of), len(self._first)
        _, worst = lanczos.largest_eigenpairs(self._product(anchor, of, entrywise), shape)
        squares = [np.float64(part) ** 2 for part in self._parts(anchor, of, worst)]
        constant, diagonals = np.zeros(len(of)), []
        for index, lowest in enumerate(entrywise):
            if index < len(self._hidden) - 1:
                gained = (together[index] - lowest) * squares[index]
                better = np.sum(gained, axis=1) > costs[index]
                lowest = np.where(better[:, None], together[index], lowest)
                constant += np.where(better, costs[index], 0.0)
            # The loss by underflow in d is at most this.
            steepness = self._hidden[index].norm * region.lipschitz[index][of]
            constant += 8.0 * TINY * up(steepness**2)
            size = np.abs(lowest)
            loss = np.sqrt(size.max(axis=1)) * anchor.jacobian_error[index][of]
            stays = np.ones(len(of), bool)
            if index:
                drift, lipschitz = region.drift[index][of], region.lipschitz[index][of]
                stays = drift < lipschitz
                weight = np.where(stays[:, None], size, np.maximum(-lowest, 0.0))
                omega = weighted_norms(self._hidden[index], weight, prove)
                loss = loss + omega * drift
                constant += np.where(stays, 0.0, (omega * lipschitz) ** 2)
            loss = up(loss, 8)
            length = np.sqrt(np.sum(size * squares[index], axis=1))
            t = np.divide(loss, length, out=np.ones_like(loss), where=length > 0.0)
            t = np.clip(t, 2.0**-50, 4.0)
            constant += np.where(stays, (1.0 + 1.0 / t) * loss**2, 0.0)
            tilted = lowest - up((t[:, None] + 4.0 * UNIT) * size)
            diagonals.append(np.where(stays[:, None], tilted, 0.0))
        value, _ = lanczos.largest_eigenpairs(
            self._product(anchor, of, diagonals), shape, start=worst
        )
        guess = np.maximum(value, 0.0) * lanczos.ESTIMATE_MARGIN
        if prove:
            rows = zip(of, guess, *diagonals, strict=True)
            guess = np.array([self._proved(anchor, *row) for row in rows])
        return np.nan_to_num(up(guess + constant, 32), nan=np.inf, posinf=np.inf)[each]

    def _proved(self, anchor: Anchor, example: int, guess: float, *diagonals: np.ndarray) -> float:
        """Bounds `λ_max(−Σ_I B_Iᵀ diag(d_I) B_I)` from above at one input."""
        parts = [anchor.jacobian[0], *(jacobian[example] for jacobian in anchor.jacobian[1:])]
        diagonal = np.concatenate(diagonals)
        if not np.isfinite(diagonal).all():
            return np.inf
        if len(parts) == 1:
            return largest_eigenvalue_bound(parts[0], -diagonal, guess=guess)
        return largest_eigenvalue_bound(np.concatenate(parts, axis=1), -diagonal, guess=guess)

    def _parts(self, anchor: Anchor, of: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        """Returns B_I(x0) v of each layer, up to rounding."""
        first, *rest = self._kernels
        found = [v.astype(first.dtype) @ first]
        for slope, kernel in zip(anchor.slope, rest, strict=False):
            found.append((found[-1] * slope[of].astype(first.dtype)) @ kernel)
        return found

    def _product(
        self, anchor: Anchor, of: np.ndarray, diagonals: Sequence[np.ndarray]
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Returns v ↦ −Σ_I B_Iᵀ diag(d_I) B_I v, up to rounding."""
        first, *rest = self._kernels
        slopes = [slope[of].astype(first.dtype) for slope in anchor.slope]
        diagonals = [diagonal.astype(first.dtype) for diagonal in diagonals]

        def product(v: np.ndarray) -> np.ndarray:
            parts = self._parts(anchor, of, v)
            back = parts[-1] * diagonals[-1]
            for index in reversed(range(len(rest))):
                back = (back @ rest[index].T) * slopes[index]
                back += parts[index] * diagonals[index]
            return (-back @ first.T).astype(np.float64)

        return product

    def sensitivities(
        self, anchor: Anchor, region: Region, of: np.ndarray, label: np.ndarray, rival: np.ndarray
    ) -> list[tuple[Sensitivity, np.ndarray, np.ndarray]]:
        """Bounds F_1 … F_{L−1} on the ball, by intervals and by a distance from a centre.

        The centres are `(P, N_I)`, the distances `(P,)`. The interval is that of the signed bound,
        intersected with the movement around the centre.
        """
        behind = output_sensitivity(self.network, label, rival)
        centre = 0.5 * (behind.low + behind.high)
        away = norm_bound(behind.high - behind.low, axis=1)  # half of it would be enough
        found = [(behind, centre, away)]
        for index in reversed(range(1, len(self._hidden))):
            affine = self._hidden[index]
            slopes = tuple(end[of] for end in region.slopes[index])
            general = sensitivity_before(affine, slopes, behind)
            # (σ′(z(x)) − σ′) ∘ F(x), by the range of each entry or by the movement of z(x) …
            size = np.maximum(np.abs(behind.low), np.abs(behind.high))
            change = region.change[index][of] * size
            bend = np.maximum(*(np.abs(end[of]) for end in region.bends[index])) * size
            move, slope = region.move[index][of], anchor.slope[index][of]
            steepest = self.network.activations[index].steepest
            off = 4.0 * ACTIVATION_ULPS * UNIT * steepest * behind.norm
            turn = np.minimum(norm_bound(change, axis=1), up(bend.max(axis=1) * move) + off)
            # … and σ′ ∘ (F(x) − F)
            carried = np.abs(slope).max(axis=1) * away
            rows = affine.row_norms + affine.kernel_error
            largest = bend.max(axis=1, keepdims=True)
            scale = np.where((largest > 0.0) & np.isfinite(largest), largest, 1.0)
            weighted = np.sqrt((bend / scale) ** 2 @ (affine.magnitude.T) ** 2)
            weighted = (weighted + SLOPE_FLOOR * (1.0 + rows)) * (scale * move[:, None])
            weighted = up(weighted, affine.fan_out + 16) + np.multiply.outer(off, rows)
            weighted = np.minimum(weighted, np.multiply.outer(turn, rows))
            through = slope * centre
            lost = affine.kernel_error + gamma(affine.fan_out + 8) * affine.frobenius
            lost = up(lost * norm_bound(through, axis=1))
            centre = through @ affine.kernel.T
            reach = up(weighted + np.multiply.outer(carried, rows) + lost[:, None], 16)
            reach += SLOPE_FLOOR
            low, high = outward(centre, reach)
            carried = affine.norm * carried
            if index < len(self._hidden) - 1:
                carried = np.minimum(carried, anchor.carry[index][of] * away)
            away = up(affine.norm * turn + carried + lost, 16)
            away = np.minimum(away, norm_bound(reach, axis=1)) + SLOPE_FLOOR
            behind = Sensitivity(
                np.maximum(general.low, low),
                np.minimum(general.high, high),
                np.minimum(general.norm, up(norm_bound(centre, axis=1) + away)),
            )
            found.append((behind, centre, away))
        return found[::-1]


def _below(product: np.ndarray) -> np.ndarray:
    """Rounds a computed product down."""
    return product - 4.0 * UNIT * np.abs(product)
