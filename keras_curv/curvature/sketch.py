"""Estimates of the steepness of a network's units at an input, by a few random directions.

With g standard normal, `E (B_I g)_j² = ‖∇z_I,j‖²`: eight directions, pushed forward together,
estimate every row norm of the Jacobian B_I of z_I, while B_I itself takes as many products as the
input has entries. `auto` uses such numbers to estimate the result of an expensive method before it
runs the method. Row norms are too low as often as too high; all other estimates tend to be low.

Reference: Hutchinson, "A stochastic estimator of the trace of the influence matrix" (1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.curvature.anchor import Anchor, HiddenMaps
from keras_curv.curvature.local import LocalCurvature
from keras_curv.network.network import Network
from keras_curv.numerics import lanczos
from keras_curv.numerics.batches import in_batches

_DIRECTIONS = 8
_NORM_STEPS = 4  # products for each norm of a Jacobian
_SHARE = 0.9  # factor on an estimated curvature, which the sketch may have put too high


class Sketch(NamedTuple):
    """The hidden layers at n inputs; lists run over the layers."""

    pre: list[np.ndarray]  # z_I, `(n, N_I)`
    slope: list[np.ndarray]  # σ′(z_I), `(n, N_I)`
    steepness: list[np.ndarray]  # estimates of ‖∇z_I,j‖, `(n, N_I)`


def sketch(network: Network, x: np.ndarray) -> Sketch:
    """Returns the sketch of a dense network's hidden layers at x, `(n, dim)`, float64.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "sigmoid")
        >>> (norms,) = sketch(network, np.zeros((1, 2))).steepness  # they are 1
        >>> bool(np.all((0.5 < norms) & (norms < 2.0)))
        True
    """
    entries = _DIRECTIONS * max(network.sizes)
    found = in_batches(lambda rows: _sketch(network, x[rows]), len(x), entries)
    fields = zip(*(part for _, part in found), strict=True)
    return Sketch(*([np.concatenate(z) for z in zip(*field, strict=True)] for field in fields))


def _sketch(network: Network, x: np.ndarray) -> Sketch:
    affines = network.differentials[:-1]
    directions = np.random.default_rng(0).standard_normal((1, _DIRECTIONS, affines[0].fan_in))
    pushed = directions.astype(np.float32)
    found = Sketch([], [], [])
    pre, _ = network.forward(tf.constant(x))
    for affine, activation, z in zip(affines, network.activations, pre, strict=True):
        found.pre.append(z.numpy())
        found.slope.append(activation.first(z).numpy())
        with np.errstate(all="ignore"):  # overflow in float32 only weakens the estimate
            pushed = pushed @ affine.kernel.astype(np.float32)
            norms = np.sqrt(np.mean(pushed**2, axis=1, dtype=np.float64))
            pushed = pushed * found.slope[-1][:, None].astype(np.float32)
        found.steepness.append(np.broadcast_to(norms, z.shape))
    return found


class CurvatureSketch:
    """Estimates of a curvature bound on a ball, for three layers or more; they tend to be low.

    Args:
        local: the local curvature of a dense network.
    """

    def __init__(self, local: LocalCurvature):
        self._local = local

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rival: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """Estimates κ of `LocalCurvature.bound` on `B(x, radius)`, `(n,)`.

        Args:
            x: `(n, dim)`.
            label, rival, radius: `(n,)`.
        """

        def estimate(rows: slice) -> np.ndarray:
            anchor = _anchor(self._local.maps, _sketch(self._local.network, x[rows]))
            of = np.arange(len(x[rows]))
            return self._local.estimate(anchor, radius[rows], of, label[rows], rival[rows])

        entries = _DIRECTIONS * max(self._local.network.sizes)
        found = in_batches(estimate, len(x), entries)
        kappa = np.concatenate([part for _, part in found])
        return _SHARE * np.where(np.isfinite(kappa), kappa, 0.0)  # overflow excludes nothing


def _anchor(maps: HiddenMaps, known: Sketch) -> Anchor:
    """Returns an anchor for estimates; entries that would cost as much as a Jacobian are 0."""
    nothing, slope = np.zeros(len(known.pre[0])), known.slope
    layers, inner = range(len(slope)), [affine.fan_out for affine in maps.affines[1:-1]]
    return Anchor(
        pre=known.pre,
        pre_error=[nothing for _ in layers],
        slope=slope,
        jacobian=[maps.first],
        jacobian_error=[nothing for _ in layers],
        rows=[np.broadcast_to(maps.column_norms[0], slope[0].shape), *known.steepness[1:]],
        pre_norm=[
            np.full(len(nothing), maps.affines[0].norm),
            *(_norms(maps, slope[:i], np.ones_like(slope[i])) for i in layers[1:]),
        ],
        post_norm=[_norms(maps, slope[:i], slope[i]) for i in layers[:-1]],
        carry=[nothing for _ in layers],
        square=[maps.square, *(np.zeros((width, width)) for width in inner)],
    )


def _norms(maps: HiddenMaps, slopes: Sequence[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """Estimates `‖B_I diag(weight)‖` from below, `(n,)`, I the layer after those of the slopes."""
    behind = maps.affines[1 : len(slopes) + 1]

    def product(v: np.ndarray) -> np.ndarray:
        moved = v @ maps.first
        for affine, slope in zip(behind, slopes, strict=True):
            moved = (moved * slope) @ affine.kernel
        moved = moved * weight**2
        for affine, slope in reversed(list(zip(behind, slopes, strict=True))):
            moved = (moved @ affine.kernel.T) * slope
        return moved @ maps.first.T

    shape = len(weight), len(maps.first)
    value, _ = lanczos.largest_eigenpairs(product, shape, steps=_NORM_STEPS)
    return np.sqrt(np.maximum(value, 0.0))
