"""Quantities at an input x0 that local curvature bounds use for every radius; see `local.py`.

The anchor takes σ′ as computed in float64 for exact: the interval of σ′ covers its rounding error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.curvature.signed import congruence_bound
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import lanczos, stacked_norms
from keras_curv.numerics.rounding import (
    SLOPE_FLOOR,
    UNIT,
    gamma,
    norm_bound,
    pre_activation_errors,
    up,
)
from keras_curv.numerics.spectral import fewer_rows


class HiddenMaps:
    """The hidden layers of a network, with the quantities that do not depend on the input.

    Attributes:
        network: the given network, with all its inputs.
        affines, activations: its hidden layers, with 0 in rows of pinned inputs.
        layer_norms: norms of the hidden layers, for the rounding charge.
        lipschitz: bounds on Lip(a_1), …, Lip(a_{L−1}).
        column_norms: bounds on ‖w_j‖ for each column of each kernel, `(N_I,)`.
        first: W_1, or a matrix with fewer rows that an isometry maps to W_1, `(side, N_1)`.
        first_error: bound on the distance of its image from W_1.
        square: entrywise bound on `(W_1ᵀ W_1) ∘ (W_1ᵀ W_1)`, `(N_1, N_1)`.

    Args:
        network: a network with at least one hidden layer.
    """

    def __init__(self, network: Network):
        self.network = network
        self.affines = network.differentials[:-1]
        self.activations = network.activations
        self.layer_norms = network.layer_norms[:-1]
        self.lipschitz = lipschitz_bounds(network)
        self.column_norms = [affine.column_bounds for affine in self.affines]
        first = self.affines[0]
        self.first, error = fewer_rows(first.kernel)
        self.first_error = up(error + first.kernel_error)
        self.square = stacked_norms.square_bound(
            first.gram.unscaled(), self.column_norms[0], first.kernel_error, first.fan_in
        )


class Anchor(NamedTuple):
    """The quantities at n inputs x0 that hold for every radius; lists run over hidden layers."""

    pre: list[np.ndarray]  # ẑ_I, `(n, N_I)`
    pre_error: list[np.ndarray]  # bound on ‖ẑ_I − z_I(x0)‖, `(n,)`
    # σ′(ẑ_I) as computed, `(n, N_I)`; the anchored B_I, J_I are defined by these numbers
    slope: list[np.ndarray]
    # B_I as computed, n of `(side, N_I)`; for the first layer one, `(side, N_1)`
    jacobian: list[Any]
    jacobian_error: list[np.ndarray]  # bound on the distance to the anchored B_I, `(n,)`
    rows: list[np.ndarray]  # bound on the row norms of the anchored B_I, `(n, N_I)`
    pre_norm: list[np.ndarray]  # bound on ‖B_I‖ anchored, `(n,)`
    post_norm: list[np.ndarray]  # bound on ‖J_I‖ anchored, `(n,)`; not for the last hidden layer
    # bound on ‖W_I diag(slope)‖, `(n,)`; for layers between the first and the last
    carry: list[np.ndarray]
    # entrywise bound on `(B_I B_Iᵀ) ∘ (B_I B_Iᵀ)`, `(n, N_I, N_I)`; for the first layer `(N_1,
    # N_1)`; not for the last hidden layer
    square: list[np.ndarray]

    def take(self, rows: np.ndarray) -> Anchor:
        """Returns the anchor of some of the inputs."""
        taken = {}
        for name, field in self._asdict().items():
            if name == "jacobian":  # large: no copies
                taken[name] = [*field[:1], *([part[row] for row in rows] for part in field[1:])]
            else:
                shared = 1 if name == "square" else 0  # the first layer's
                taken[name] = [*field[:shared], *(part[rows] for part in field[shared:])]
        return Anchor(**taken)


def anchor_at(maps: HiddenMaps, x: np.ndarray) -> Anchor:
    """Returns the anchor at the inputs x, `(n, dim)`, float64."""
    a = tf.constant(x, tf.float64)
    pre, post = maps.network.forward(a)
    slope = [sigma.first(z).numpy() for sigma, z in zip(maps.activations, pre, strict=True)]
    errors = [error.numpy() for error in pre_activation_errors(maps.layer_norms, post[:-1])]
    count, first = len(x), maps.affines[0]
    anchor = Anchor([z.numpy() for z in pre], errors, slope, *([] for _ in range(7)))
    jacobian, error = maps.first, np.full(count, maps.first_error)
    pre_norm = np.full(count, first.norm)
    rows = np.broadcast_to(maps.column_norms[0], (count, first.fan_out))
    carry, square = np.zeros(count), maps.square
    for index in range(len(maps.affines)):
        anchor.jacobian.append(jacobian)
        anchor.jacobian_error.append(error)
        anchor.rows.append(rows)
        anchor.pre_norm.append(pre_norm)
        anchor.carry.append(carry)
        if index == len(maps.affines) - 1:
            break
        inner = index + 1 < len(maps.affines) - 1
        anchor.square.append(square)
        affine = maps.affines[index + 1]
        through = jacobian * slope[index][:, None, :]  # J_I
        size = stacked_norms.frobenius(through)
        steepest = np.abs(slope[index]).max(axis=1)
        error = up(steepest * error + 2.0 * UNIT * size, 8) + SLOPE_FLOOR
        anchor.post_norm.append(up(stacked_norms.spectral_norms(through) + error))
        rounding = gamma(affine.fan_in + 8) * affine.frobenius + affine.kernel_error
        error = up(affine.norm * error + rounding * size, 8) + SLOPE_FLOOR
        jacobian = through @ affine.kernel
        rows = up(norm_bound(jacobian, axis=1) + error[:, None])
        pre_norm = up(stacked_norms.spectral_norms(jacobian) + error)
        if inner:
            gram = jacobian.transpose(0, 2, 1) @ jacobian
            square = stacked_norms.square_bound(gram, rows, error[:, None, None], jacobian.shape[1])
            carry = weighted_norms(affine, up(slope[index + 1] ** 2))
    return anchor


def weighted_norms(affine: Affine, weight: np.ndarray, prove: bool = True) -> np.ndarray:
    """Bounds `‖√d W‖` for each row d ≥ 0 of weight, `(n,)`; only estimates unless `prove`."""
    value, _ = lanczos.largest_eigenpairs(
        lambda v: ((v @ affine.kernel) * weight) @ affine.kernel.T, (len(weight), affine.fan_in)
    )
    guess = np.maximum(value, 0.0) * lanczos.ESTIMATE_MARGIN
    if prove:
        pairs = zip(weight, guess, strict=True)
        guess = np.array([congruence_bound(affine, row, guess=at) for row, at in pairs])
    return up(np.sqrt(guess)) + SLOPE_FLOOR
