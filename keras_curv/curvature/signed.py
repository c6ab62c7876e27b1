"""The signed bound on curvature at any depth, which uses the sign and weight of every unit.

Lemma 1 sums `B_Iᵀ diag(F_I ∘ σ″(z_I)) B_I` over the layers. An interval for F_I = ∂f/∂a_I
follows from the range of σ′ by interval arithmetic backwards through the layers; with the range
of σ″ it bounds each diagonal, `d_lo ≤ d ≤ d_hi`. As `B_I = W_I J` with `‖J‖ ≤ Lip(a_{I−1})`,

    M = Σ_I λ_max(W_I diag(d_hi⁺) W_Iᵀ) Lip(a_{I−1})²,
    m = −Σ_I λ_max(W_I diag((−d_lo)⁺) W_Iᵀ) Lip(a_{I−1})².

A second bound keeps J inside: `λ_max(Jᵀ W_I D W_Iᵀ J) = ‖J W_I √D‖²` is telescoped as in
`liplt.py`, with `W_I √D` in the place of W_I. The smaller bound counts.

Since `M_yt = −m_ty`, only m is computed. Each entry of F_I is also at most
`‖W_{I+1}[j, :]‖ g ‖F_{I+1}‖`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_curv.curvature.liplt import (
    KernelProduct,
    UnitNorms,
    lipschitz_bounds,
    norms_of,
    pre_activation_lipschitz,
    products_behind,
    telescoped,
)
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.numerics import intervals
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import largest_eigenvalue_bound

_ENTRIES = 2**27  # of the matrices of all pairs in work at a time: 1 GiB


class CurvatureBounds(NamedTuple):
    """Bounds `lower[y, t] ≤ λ(∇²(z_y − z_t)(x)) ≤ upper[y, t]` for every x in ℝᵈ.

    Attributes:
        lower: m, `(classes, classes)`, at most 0.
        upper: M, `(classes, classes)`, at least 0; `M[y, t] = −m[t, y]`.
    """

    lower: np.ndarray
    upper: np.ndarray


def signed_bound(network: Network) -> CurvatureBounds:
    """Returns the signed bound on the curvature for all class pairs; see the module docstring.

    Args:
        network: a network of any depth with smooth activations.
    """
    classes = network.classes
    if network.depth == 1:
        return CurvatureBounds(np.zeros((classes, classes)), np.zeros((classes, classes)))
    lower = np.zeros((classes, classes))
    symmetric = all(np.all(a.second_range[0] == -a.second_range[1]) for a in network.activations)
    # With a symmetric range of σ″ and two layers, P = −N: m_ty = m_yt.
    once = symmetric and network.depth == 2
    pairs = [(y, t) for y in range(classes) for t in range(y + 1 if once else 0, classes) if y != t]
    label, rival = np.transpose(pairs)
    for index, diagonals in enumerate(negative_diagonals(network, label, rival)):
        layer = _LayerCurvature(network, index)
        bounds = in_batches(
            lambda rows: [layer(negative) for negative in diagonals[rows]],  # noqa: B023
            len(pairs),
            _side(network.differentials[index]) ** 2,
            _ENTRIES,
        )
        lower[label, rival] -= np.concatenate([found for _, found in bounds])
    if once:
        lower += lower.T
    lower = up(lower, network.depth)
    return CurvatureBounds(lower, -lower.T)


class _LayerCurvature:
    """Upper bounds on `λ_max(Jᵀ W_I D W_Iᵀ J)`, J the Jacobian of a_{I−1}, for many D ≥ 0."""

    def __init__(self, network: Network, index: int):
        self._affine = network.differentials[index]
        self._activations = network.activations
        self._sparse_by_norm = network.depth > 2
        self._before = [1.0, *lipschitz_bounds(network)][index]
        self._pre = pre_activation_lipschitz(network)[:index]
        self._behind = list(
            products_behind(network.differentials[: index + 1], network.activations)
        )

    def __call__(self, diagonal: np.ndarray) -> float:
        own = _congruent_norm(self._affine, diagonal, self._sparse_by_norm)
        # Lip² alone could underflow where the product does not.
        size = own * self._before
        if self._pre:
            norm = functools.partial(_congruent_norm, diagonal=diagonal)
            spread = self._behind[0][1]
            first = own if spread is None else UnitNorms(own, norm(spread))
            norms = [first, *norms_of(self._behind[1:], norm)]
            inside, _ = telescoped(self._activations, norms, self._pre)
            size = np.fmin(size, up(inside, 8 * (len(self._pre) + 1)))
        return up(size**2, 8)


def negative_diagonals(
    network: Network, label: np.ndarray, rival: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields upper bounds on `(−d_lo)⁺` of each hidden layer, `(P, N_I)`; see the module docstring.

    Args:
        label, rival: `(P,)`.
    """
    found = zip(network.activations, _sensitivities(network, label, rival), strict=True)
    for activation, sensitivity in found:
        ends = sensitivity.low, sensitivity.high
        smallest, _ = intervals.product(activation.second_range, ends)
        yield up(np.maximum(-smallest, 0.0))


def _congruent_norm(
    affine: Affine | KernelProduct, diagonal: np.ndarray, sparse_by_norm: bool = True
) -> float:
    """Bounds `‖W √d‖` from above for d ≥ 0; see `congruence_bound`."""
    value = congruence_bound(affine, diagonal, sparse_by_norm=sparse_by_norm)
    return np.sqrt(value + underflow(affine))


def underflow(affine: Affine | KernelProduct) -> float:
    """Bounds the loss by underflow in d and in the eigenvalue."""
    return 8.0 * TINY * (1.0 + affine.norm) * (1.0 + affine.norm)


def first_layer_curvature(affine: Affine, negative: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Returns proved κ with `∇²(v·σ(z_1(x))) ≽ −κ`, `(P,)`.

    Args:
        affine: the map to z_1.
        negative: at least `−v ∘ σ″(z_1)` and 0, `(P, N_1)`.
        guesses: estimates of κ, `(P,)`.
    """
    pairs = zip(negative, guesses, strict=True)
    return up(np.array([congruence_bound(affine, *pair) for pair in pairs]) + underflow(affine))


def congruence_bound(
    affine: Affine | KernelProduct,
    diagonal: np.ndarray,
    guess: float | None = None,
    *,
    sparse_by_norm: bool = False,
) -> float:
    """Bounds `λ_max(W diag(d) Wᵀ)` from above for d ≥ 0, over all W within the folding error.

    For a sparse map this takes seconds for each d, which pays only for two layers: deep networks
    lose at other layers what they gain at one. With `sparse_by_norm`, or for a map with too many
    inputs, a sparse map has the bound `max(d) ‖W‖²`.

    Args:
        affine: W.
        diagonal: d, `(out,)`.
        guess: a value to try first.
        sparse_by_norm: whether this weaker bound is enough for a sparse map.
    """
    if not np.isfinite(diagonal).all() or not np.isfinite(affine.norm):
        return np.inf
    if isinstance(affine, SparseAffine) and not sparse_by_norm and affine.column_groups is not None:
        value = affine.column_groups.largest_eigenvalue_bound(diagonal)
    elif affine.is_sparse:
        return float(congruence_by_norm(affine, diagonal.max()))
    else:
        gram = affine.gram if _side(affine) == affine.fan_out else None
        value = largest_eigenvalue_bound(affine.kernel, diagonal, gram=gram, guess=guess)
    if not affine.kernel_error:
        return value
    return up((np.sqrt(value) + np.sqrt(diagonal.max()) * affine.kernel_error) ** 2, 8)


def _side(affine: Affine | KernelProduct) -> int:
    """Returns the side of the matrix whose eigenvalue is bounded: that of W diag(d) Wᵀ if outputs
    far outnumber inputs, and for sparse maps; else that of √d WᵀW √d."""
    wide = affine.is_sparse or affine.fan_out > 2 * affine.fan_in
    return affine.fan_in if wide else affine.fan_out


def congruence_by_norm(affine: Affine | KernelProduct, most: np.ndarray) -> np.ndarray:
    """Bounds `d ‖W‖²` from above, d ≥ 0 of any shape, without forming ‖W‖², which may underflow."""
    return up((np.sqrt(most) * affine.norm) ** 2, 8)


class Sensitivity(NamedTuple):
    """An entrywise interval that contains `F_I = ∂(z_y − z_t)/∂a_I`, for each of P pairs."""

    low: np.ndarray  # low, high: `(P, N_I)`
    high: np.ndarray
    norm: np.ndarray  # bound on ‖F_I‖, `(P,)`


def output_sensitivity(network: Network, label: np.ndarray, rival: np.ndarray) -> Sensitivity:
    """Returns the interval of the last hidden layer's `F_{L−1} = W_L[:, y] − W_L[:, t]`.

    Args:
        label, rival: `(P,)`.
    """
    last = network.affines[-1]
    w = last.kernel.T[label] - last.kernel.T[rival]
    # The difference rounds, and a folded kernel is known to within kernel_error.
    slack = up(2.0 * last.kernel_error + 2.0 * UNIT * np.abs(w) + 4.0 * TINY)
    return Sensitivity(w - slack, w + slack, up(norm_bound(w, 1) + norm_bound(slack, 1)))


def sensitivity_before(
    affine: Affine, slopes: intervals.Interval, behind: Sensitivity
) -> Sensitivity:
    """Returns the interval of `F_{I−1} = W_I (σ′(z_I) ∘ F_I)` from those of σ′(z_I) and F_I.

    Each entry is also at most `‖W_I[j, :]‖ g ‖F_I‖`.

    Args:
        affine: the map to z_I.
        slopes: least and largest σ′(z_I), each broadcasts to `(P, N_I)`.
        behind: the interval of F_I.
    """
    p, q = intervals.product(slopes, (behind.low, behind.high))
    steepest = np.maximum(np.abs(slopes[0]), np.abs(slopes[1]))
    through = up(np.max(steepest, axis=-1) * behind.norm) + 4.0 * TINY  # ‖σ′ ∘ F‖
    size = np.maximum(np.abs(p), np.abs(q))
    terms = affine.fan_out + 16
    half = 0.5 * (q - p) + 2.0 * gamma(terms) * size
    middle, spread = intervals.image(0.5 * (p + q), half, affine.kernel.T)
    spread = up(spread, terms) + up(affine.kernel_error * through)[:, None]
    row_norms = affine.row_norms + affine.kernel_error
    spread += 8.0 * TINY * terms * (1.0 + row_norms)  # for underflow of the products above
    reach = up(np.multiply.outer(through, row_norms), 8) + 4.0 * TINY
    return Sensitivity(
        np.maximum(middle - spread, -reach),
        np.minimum(middle + spread, reach),
        up(affine.norm * through, 8) + 4.0 * TINY,
    )


def _sensitivities(network: Network, label: np.ndarray, rival: np.ndarray) -> list[Sensitivity]:
    """Returns intervals that contain F_1 … F_{L−1} at every x."""
    found = [output_sensitivity(network, label, rival)]
    for index in reversed(range(1, network.depth - 1)):
        slopes = network.activations[index].first_range
        found.append(sensitivity_before(network.affines[index], slopes, found[-1]))
    return found[::-1]
