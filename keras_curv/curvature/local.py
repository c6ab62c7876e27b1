"""Curvature on a ball: `∇²f(x) ≽ −κ` for every x in `B(x0, R)`, tighter than on all of ℝᵈ.

Lemma 1: `∇²f(x) = Σ_I B_I(x)ᵀ diag(d_I(x)) B_I(x)`, `d_I = F_I ∘ σ″(z_I)`, B_I the Jacobian of
z_I. On the ball every z_I, hence σ′, σ″, F_I and so d_I keeps to an interval, entry by entry.
B_1 = W_1 does not move: for two layers, with `d_lo ≤ d_1(x)`,

    κ = λ_max(−W_1 diag(d_lo) W_1ᵀ),

the local form of theorem 3. Deeper, the Jacobian is *anchored* at x0: with `J_I = diag(σ′) B_I`,

    ‖J_I(x) − J_I(x0)‖ ≤ δ_I = s_I ‖B_I‖ + ‖W_I diag(σ′(z_I(x0)))‖ δ_{I−1},    δ_0 = 0,

s_I the largest change of σ′, ‖B_I‖ and everything else on the ball. With `E = B_I(x) − B_I(x0)`,
`‖√|d_lo| E‖ ≤ e_I = ‖√|d_lo| W_I‖ δ_{I−1}` and `2|aᵀDb| ≤ t aᵀ|D|a + bᵀ|D|b / t`,

    κ = λ_max(−Σ_I B_I(x0)ᵀ diag(d_lo,I − t_I |d_lo,I|) B_I(x0)) + Σ_{I≥2} (1 + 1/t_I) e_I²

for any t_I > 0: layers cancel where they do so in the Hessian, and κ → −λ_min(∇²f(x0)) as R → 0.
A layer whose Jacobian moves too much leaves the sum and adds `‖√(−d_lo)⁺ W_I‖² Lip(a_{I−1})²`.

The anchor is whatever σ′ came out in float64, taken as exact: the interval of σ′ covers what it
missed. What the products of matrices round is charged to e_I.

Reference: Singla & Feizi (2020), lemma 1, theorem 3 and the section on local curvature bounds; the
anchored bound for deeper networks is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.curvature.bounds import (
    Sensitivity,
    congruence_bound,
    interval_product,
    lipschitz_bounds,
    output_sensitivity,
    sensitivity_before,
)
from keras_curv.network.network import Network
from keras_curv.numerics import stacks
from keras_curv.numerics.rounding import (
    ACTIVATION_ULPS,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    pre_activation_errors,
    up,
)
from keras_curv.numerics.spectral import largest_eigenvalue_bound


class Anchor(NamedTuple):
    """What is known at n inputs x0, whatever the radius; lists run over the hidden layers.

    Attributes:
        pre: ẑ_I, `(n, N_I)`.
        pre_error: bound of ‖ẑ_I − z_I(x0)‖, `(n,)`.
        slope: σ′(ẑ_I) as computed, `(n, N_I)`; the anchored B_I, J_I are those of these numbers.
        jacobian: B_I as computed, `(n, side, N_I)`; of the first layer `(side, N_1)`.
        jacobian_error: bound of the distance to the anchored B_I, `(n,)`.
        rows: bound of the row norms of the anchored B_I, `(n, N_I)`.
        pre_norm: bound of ‖B_I‖ anchored, `(n,)`.
        post_norm: bound of ‖J_I‖ anchored, `(n,)`; not of the last hidden layer.
        carry: bound of ‖W_I diag(slope)‖, `(n,)`; of layers between the first and the last.
        square: entrywise bound of `(B_I B_Iᵀ) ∘ (B_I B_Iᵀ)`, `(n, N_I, N_I)`; of the first layer
            `(N_1, N_1)`; not of the last hidden layer.
    """

    pre: list[np.ndarray]
    pre_error: list[np.ndarray]
    slope: list[np.ndarray]
    jacobian: list[np.ndarray]
    jacobian_error: list[np.ndarray]
    rows: list[np.ndarray]
    pre_norm: list[np.ndarray]
    post_norm: list[np.ndarray]
    carry: list[np.ndarray]
    square: list[np.ndarray]

    def take(self, rows: np.ndarray) -> Anchor:
        """Those of these inputs only."""
        taken = {}
        for name, field in self._asdict().items():
            shared = 1 if name in ("jacobian", "square") else 0  # the first layer's
            taken[name] = [*field[:shared], *(part[rows] for part in field[shared:])]
        return Anchor(**taken)


class Region(NamedTuple):
    """What holds in the balls `B(x0, R)`; lists run over the hidden layers.

    Attributes:
        slopes, bends: least and largest σ′ and σ″ of each unit, two `(n, N_I)` each.
        change: largest |σ′ − anchored σ′| of each unit, `(n, N_I)`.
        move: bound of ‖z_I(x) − ẑ_I‖, `(n,)`.
        lipschitz: bound of ‖J_{I−1}‖, `(n,)`: 1 for the first layer.
        drift: δ_{I−1}, bound of the distance of J_{I−1} to the anchored one, `(n,)`.
        quartic: bound of ‖|σ″| ∘ (B_I u) ∘ (B_I v)‖ for unit u, v, `(n,)`; not of the last.
    """

    slopes: list[tuple[np.ndarray, np.ndarray]]
    bends: list[tuple[np.ndarray, np.ndarray]]
    change: list[np.ndarray]
    move: list[np.ndarray]
    lipschitz: list[np.ndarray]
    drift: list[np.ndarray]
    quartic: list[np.ndarray]


class LocalCurvature:
    """Bounds of one network's curvature on balls.

    Args:
        network: at least one hidden layer.

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
        self._hidden = network.affines[:-1]
        self._lipschitz = lipschitz_bounds(network)
        self._column_norms = [
            up(norm_bound(affine.kernel, axis=0) + affine.kernel_error) for affine in self._hidden
        ]
        self._first, self._first_error = stacks.fewer_rows(self._hidden[0].kernel)
        gram = np.ldexp(self._hidden[0].gram.matrix, 2 * self._hidden[0].gram.power)
        self._square = stacks.square_bound(
            gram, self._column_norms[0], self._hidden[0].kernel_error, self._hidden[0].fan_in
        )
        self._first_error = up(self._first_error + self._hidden[0].kernel_error)

    @property
    def in_range(self) -> bool:
        """Whether all norms are within 1e±30; beyond, squares may over- or underflow."""
        return all(1e-30 <= affine.norm <= 1e30 for affine in self.network.affines)

    def anchor_size(self) -> int:
        """Numbers that the anchor of one input holds, at most."""
        widths = [affine.fan_out for affine in self._hidden]
        inner = sum(width**2 for width in widths[1:-1])
        return (2 + len(self._first)) * sum(widths[1:]) + 4 * sum(widths) + inner

    def anchor(self, x: np.ndarray) -> Anchor:
        """What the bounds need of the inputs x, `(n, dim)`, float64."""
        a = tf.constant(x, tf.float64)
        pre, post, slope = [], [a], []
        for affine, activation in zip(self._hidden, self.network.activations, strict=True):
            pre.append(tf.matmul(post[-1], affine.kernel) + affine.bias)
            post.append(activation.value(pre[-1]))
            slope.append(activation.first(pre[-1]).numpy())
        errors = [
            error.numpy()
            for error in pre_activation_errors(self.network.layer_norms[:-1], post[:-1])
        ]
        count, first = len(x), self._hidden[0]
        anchor = Anchor([z.numpy() for z in pre], errors, slope, *([] for _ in range(7)))
        jacobian, error = self._first, np.full(count, self._first_error)
        pre_norm = np.full(count, first.norm)
        rows = np.broadcast_to(self._column_norms[0], (count, first.fan_out))
        carry, square = np.zeros(count), self._square
        for index in range(len(self._hidden)):
            anchor.jacobian.append(jacobian)
            anchor.jacobian_error.append(error)
            anchor.rows.append(rows)
            anchor.pre_norm.append(pre_norm)
            anchor.carry.append(carry)
            if index == len(self._hidden) - 1:
                break
            inner = index + 1 < len(self._hidden) - 1
            anchor.square.append(square)
            affine = self._hidden[index + 1]
            through = jacobian * slope[index][:, None, :]  # J_I
            size = stacks.frobenius(through)
            steepest = np.abs(slope[index]).max(axis=1)
            error = up(steepest * error + 2.0 * UNIT * size, 8) + SLOPE_FLOOR
            anchor.post_norm.append(up(stacks.spectral_norms(through) + error))
            rounding = gamma(affine.fan_in + 8) * norm_bound(affine.kernel) + affine.kernel_error
            error = up(affine.norm * error + rounding * size, 8) + SLOPE_FLOOR
            jacobian = through @ affine.kernel
            rows = up(norm_bound(jacobian, axis=1) + error[:, None])
            pre_norm = up(stacks.spectral_norms(jacobian) + error)
            if inner:
                gram = jacobian.transpose(0, 2, 1) @ jacobian
                square = stacks.square_bound(gram, rows, error[:, None, None], jacobian.shape[1])
                carry = self._weighted_norms(affine, up(slope[index + 1] ** 2), prove=True)
        return anchor

    def region(self, anchor: Anchor, radius: np.ndarray) -> Region:
        """What holds in the balls of these radii, `(n,)`, around the anchor's inputs."""
        lipschitz, drift = np.ones_like(radius), np.zeros_like(radius)
        spread = None  # of a_{I−1} around a_{I−1}(x0), entrywise
        region = Region(*([] for _ in Region._fields))
        for index, (affine, activation) in enumerate(
            zip(self._hidden, self.network.activations, strict=True)
        ):
            region.lipschitz.append(lipschitz)
            region.drift.append(drift)
            columns = self._column_norms[index]
            rows = np.minimum(
                np.multiply.outer(lipschitz, columns),
                anchor.rows[index] + np.multiply.outer(drift, columns),
            )
            steepness = up(  # of z_I
                np.minimum(affine.norm * lipschitz, anchor.pre_norm[index] + affine.norm * drift)
            )
            reach = up(radius[:, None] * rows, 8)
            if spread is not None:
                reach = np.minimum(reach, up(spread @ affine.magnitude, affine.fan_in + 8))
            reach = up(reach + anchor.pre_error[index][:, None])
            low, high = _around(anchor.pre[index], reach)
            slopes = activation.first_range_on(low, high)
            region.slopes.append(slopes)
            region.bends.append(activation.second_range_on(low, high))
            slope = anchor.slope[index]
            region.change.append(
                up(np.maximum(np.maximum(slopes[1] - slope, slope - slopes[0]), 0))
            )
            region.move.append(up(radius * steepness + anchor.pre_error[index]))
            if index == len(self._hidden) - 1:
                break
            steepest = np.maximum(np.abs(slopes[0]), np.abs(slopes[1]))
            spread = up(steepest * reach)
            bend = np.maximum(*np.abs(region.bends[-1]))
            moved = affine.norm * drift
            crossing = 2.0 * (bend * anchor.rows[index]).max(axis=1)
            crossing += (bend * columns).max(axis=1) * drift
            quartic = up(stacks.perron_bound(anchor.square[index], bend) + crossing * moved, 16)
            quartic = np.minimum(quartic, up((bend * rows).max(axis=1) * steepness))
            region.quartic.append(quartic + SLOPE_FLOOR)
            # σ′ moves by at most σ″ times the movement of z, besides what was off at x0.
            off = bend.max(axis=1) * anchor.pre_error[index]
            off += 4.0 * ACTIVATION_ULPS * UNIT * activation.slope
            turn = np.minimum(
                region.change[-1].max(axis=1) * steepness, radius * quartic + off * steepness
            )
            drift = up(turn + anchor.carry[index] * drift, 16) + SLOPE_FLOOR
            lipschitz = np.minimum.reduce([
                np.full_like(radius, self._lipschitz[index]),
                up(steepest.max(axis=1) * steepness),
                up(anchor.post_norm[index] + drift),
            ])  # fmt: skip
            drift = np.minimum(drift, up(lipschitz + anchor.post_norm[index]))
        return region

    def bound(self, anchor: Anchor, radius: np.ndarray, of, label, rival) -> np.ndarray:
        """Proved κ ≥ max(0, −λ(∇²f_yt(x))) for every x in the ball, `(P,)`.

        Args:
            anchor: of n inputs.
            radius: `(n,)`.
            of: the input, 0 … n − 1, of each of P pairs.
            label, rival: the classes of each pair, `(P,)`.
        """
        return self._kappa(anchor, radius, np.asarray(of), label, rival, prove=True)

    def estimate(self, anchor: Anchor, radius: np.ndarray, of, label, rival) -> np.ndarray:
        """About what `bound` would give, without a proof and much faster."""
        return self._kappa(anchor, radius, np.asarray(of), label, rival, prove=False)

    def _kappa(self, anchor, radius, of, label, rival, prove) -> np.ndarray:
        region = self.region(anchor, np.asarray(radius, np.float64))
        shape = len(of), len(self._first)
        found = self._sensitivities(anchor, region, of, np.asarray(label), np.asarray(rival))
        bends = [tuple(end[of] for end in ends) for ends in region.bends]
        entrywise = [
            _below(interval_product((f.low, f.high), ends)[0])
            for (f, _, _), ends in zip(found, bends, strict=True)
        ]
        _, worst = stacks.lanczos(self._product(anchor, of, entrywise), shape)
        squares = [part**2 for part in self._parts(anchor, of, worst)]
        constant, diagonals = np.zeros(len(of)), []
        for index, lowest in enumerate(entrywise):
            if index < len(self._hidden) - 1:
                _, centre, away = found[index]
                together = _below(interval_product((centre, centre), bends[index])[0])
                cost = away * region.quartic[index][of]
                better = np.sum((together - lowest) * squares[index], axis=1) > cost
                lowest = np.where(better[:, None], together, lowest)
                constant += np.where(better, cost, 0.0)
            # What underflows in d comes to as much.
            steepness = self._hidden[index].norm * region.lipschitz[index][of]
            constant += 8.0 * TINY * up(steepness**2)
            size = np.abs(lowest)
            loss = np.sqrt(size.max(axis=1)) * anchor.jacobian_error[index][of]
            stays = np.ones(len(of), bool)
            if index:
                drift, lipschitz = region.drift[index][of], region.lipschitz[index][of]
                stays = drift < lipschitz
                weight = np.where(stays[:, None], size, np.maximum(-lowest, 0.0))
                omega = self._weighted_norms(self._hidden[index], weight, prove)
                loss = loss + omega * drift
                constant += np.where(stays, 0.0, (omega * lipschitz) ** 2)
            loss = up(loss, 8)
            length = np.sqrt(np.sum(size * squares[index], axis=1))
            t = np.divide(loss, length, out=np.ones_like(loss), where=length > 0.0)
            t = np.clip(t, 2.0**-50, 4.0)
            constant += np.where(stays, (1.0 + 1.0 / t) * loss**2, 0.0)
            tilted = lowest - up((t[:, None] + 4.0 * UNIT) * size)
            diagonals.append(np.where(stays[:, None], tilted, 0.0))
        guess = np.maximum(stacks.lanczos(self._product(anchor, of, diagonals), shape)[0], 0.0)
        guess *= stacks.ESTIMATE_MARGIN
        if prove:
            rows = zip(of, guess, *diagonals, strict=True)
            guess = np.array([self._proved(anchor, *row) for row in rows])
        return np.nan_to_num(up(guess + constant, 32), nan=np.inf, posinf=np.inf)

    def _proved(self, anchor: Anchor, example: int, guess: float, *diagonals) -> float:
        parts = [anchor.jacobian[0], *(jacobian[example] for jacobian in anchor.jacobian[1:])]
        diagonal = np.concatenate(diagonals)
        if not np.isfinite(diagonal).all():
            return np.inf
        if len(parts) == 1:
            return largest_eigenvalue_bound(parts[0], -diagonal, guess=guess)
        return largest_eigenvalue_bound(np.concatenate(parts, axis=1), -diagonal, guess=guess)

    def _weighted_norms(self, affine, weight, prove) -> np.ndarray:
        """`‖√d W‖` for each row d ≥ 0 of weight."""
        value, _ = stacks.lanczos(
            lambda v: ((v @ affine.kernel) * weight) @ affine.kernel.T,
            (len(weight), affine.fan_in),
        )
        guess = np.maximum(value, 0.0) * stacks.ESTIMATE_MARGIN
        if prove:
            guess = np.array(
                [
                    congruence_bound(affine, row, guess=at)
                    for row, at in zip(weight, guess, strict=True)
                ]
            )
        return up(np.sqrt(guess)) + SLOPE_FLOOR

    def _parts(self, anchor: Anchor, of, v):
        """B_I(x0) v for each layer."""
        found = [v @ self._first]
        for index, affine in enumerate(self._hidden[1:]):
            found.append((found[-1] * anchor.slope[index][of]) @ affine.kernel)
        return found

    def _product(self, anchor: Anchor, of, diagonals):
        """v ↦ −Σ_I B_Iᵀ diag(d_I) B_I v."""
        slopes = [slope[of] for slope in anchor.slope]

        def product(v):
            parts = self._parts(anchor, of, v)
            back = parts[-1] * diagonals[-1]
            for index in reversed(range(len(self._hidden) - 1)):
                back = (back @ self._hidden[index + 1].kernel.T) * slopes[index]
                back += parts[index] * diagonals[index]
            return -back @ self._first.T

        return product

    def _sensitivities(self, anchor, region, of, label, rival):
        """F_1 … F_{L−1} on the ball, each with a centre `(P, N_I)` and the distance from it `(P,)`.

        The interval of the signed bound, intersected with the movement around the centre.
        """
        behind = output_sensitivity(self.network, label, rival)
        centre = 0.5 * (behind.low + behind.high)
        away = norm_bound(behind.high - behind.low, axis=1)  # twice what it must be
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
            off = 4.0 * ACTIVATION_ULPS * UNIT * self.network.activations[index].slope
            off = off * behind.norm
            turn = np.minimum(norm_bound(change, axis=1), up(bend.max(axis=1) * move) + off)
            # … and σ′ ∘ (F(x) − F)
            carried = np.abs(slope).max(axis=1) * away
            rows = norm_bound(affine.kernel, axis=1) + affine.kernel_error
            weighted = np.sqrt(bend**2 @ (affine.magnitude.T) ** 2) * move[:, None]
            weighted = up(weighted, affine.fan_out + 16) + np.multiply.outer(off, rows)
            weighted = np.minimum(weighted, np.multiply.outer(turn, rows))
            through = slope * centre
            lost = affine.kernel_error + gamma(affine.fan_out + 8) * norm_bound(affine.kernel)
            lost = up(lost * norm_bound(through, axis=1))
            centre = through @ affine.kernel.T
            reach = up(weighted + np.multiply.outer(carried, rows) + lost[:, None], 16)
            reach += SLOPE_FLOOR
            low, high = _around(centre, reach)
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


def _around(centre: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[centre − reach, centre + reach]`, rounded outward; the whole line where that overflows."""
    reach = up(reach + 2.0 * UNIT * np.abs(centre))
    low, high = centre - reach, centre + reach
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _below(product: np.ndarray) -> np.ndarray:
    return product - 4.0 * UNIT * np.abs(product)
