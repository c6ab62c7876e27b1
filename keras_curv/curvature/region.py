"""Intervals and movements on a ball around x0, for local curvature bounds.

On the ball every entry of z_I, hence of σ′ and σ″, stays in an interval. The Jacobian is *anchored*
at x0: with `J_I = diag(σ′) B_I`, B_I the Jacobian of z_I,

    ‖J_I(x) − J_I(x0)‖ ≤ δ_I = s_I ‖B_I‖ + ‖W_I diag(σ′(z_I(x0)))‖ δ_{I−1},    δ_0 = 0,

s_I the largest change of σ′, ‖B_I‖ and everything else on the ball.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_curv.curvature.anchor import Anchor, HiddenMaps
from keras_curv.numerics import stacked_norms
from keras_curv.numerics.intervals import outward
from keras_curv.numerics.rounding import ACTIVATION_ULPS, SLOPE_FLOOR, UNIT, up


class Region(NamedTuple):
    """Bounds that hold in the balls `B(x0, R)`; lists run over the hidden layers."""

    # slopes, bends: least and largest σ′ and σ″ of each unit, two `(n, N_I)` each
    slopes: list[tuple[np.ndarray, np.ndarray]]
    bends: list[tuple[np.ndarray, np.ndarray]]
    change: list[np.ndarray]  # largest |σ′ − anchored σ′| of each unit, `(n, N_I)`
    move: list[np.ndarray]  # bound on ‖z_I(x) − ẑ_I‖, `(n,)`
    lipschitz: list[np.ndarray]  # bound on ‖J_{I−1}‖, `(n,)`: 1 for the first layer
    drift: list[np.ndarray]  # δ_{I−1}, bound on the distance of J_{I−1} to the anchored one, `(n,)`
    # bound on ‖|σ″| ∘ (B_I u) ∘ (B_I v)‖ for unit u, v, `(n,)`; not for the last layer
    quartic: list[np.ndarray]


def region_around(maps: HiddenMaps, anchor: Anchor, radius: np.ndarray) -> Region:
    """Returns the bounds for the balls of these radii, `(n,)`, around the anchor's inputs."""
    lipschitz, drift = np.ones_like(radius), np.zeros_like(radius)
    spread = None  # of a_{I−1} around a_{I−1}(x0), entrywise
    region = Region(*([] for _ in Region._fields))
    for index, (affine, activation) in enumerate(zip(maps.affines, maps.activations, strict=True)):
        region.lipschitz.append(lipschitz)
        region.drift.append(drift)
        columns = maps.column_norms[index]
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
        low, high = outward(anchor.pre[index], reach)
        slopes = activation.first_range_on(low, high)
        region.slopes.append(slopes)
        region.bends.append(activation.second_range_on(low, high))
        slope = anchor.slope[index]
        region.change.append(up(np.maximum(np.maximum(slopes[1] - slope, slope - slopes[0]), 0)))
        region.move.append(up(radius * steepness + anchor.pre_error[index]))
        if index == len(maps.affines) - 1:
            break
        steepest = np.maximum(np.abs(slopes[0]), np.abs(slopes[1]))
        spread = up(steepest * reach)
        bend = np.maximum(*np.abs(region.bends[-1]))
        moved = affine.norm * drift
        crossing = 2.0 * (bend * anchor.rows[index]).max(axis=1)
        crossing += (bend * columns).max(axis=1) * drift
        quartic = up(stacked_norms.perron_bound(anchor.square[index], bend) + crossing * moved, 16)
        quartic = np.minimum(quartic, up((bend * rows).max(axis=1) * steepness))
        region.quartic.append(quartic + SLOPE_FLOOR)
        # σ′ moves by at most σ″ times the movement of z, plus its error at x0.
        off = bend.max(axis=1) * anchor.pre_error[index]
        off += 4.0 * ACTIVATION_ULPS * UNIT * activation.steepest
        turn = np.minimum(
            region.change[-1].max(axis=1) * steepness, radius * quartic + off * steepness
        )
        drift = up(turn + anchor.carry[index] * drift, 16) + SLOPE_FLOOR
        lipschitz = np.minimum.reduce([
            np.full_like(radius, maps.lipschitz[index]),
            up(steepest.max(axis=1) * steepness),
            up(anchor.post_norm[index] + drift),
        ])  # fmt: skip
        drift = np.minimum(drift, up(lipschitz + anchor.post_norm[index]))
    return region
