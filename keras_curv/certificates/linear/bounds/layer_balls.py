"""Balls around hidden layers: how far the vector of pre-activations moves on a ball of inputs.

On `B(x0, R)`, let every σ_j′ lie in `[m_j − h_j, m_j + h_j]`, by unit, on the intervals of z_j. For
Δ = value at x − value at x0, `Δa_j = m_j ∘ Δz_j + e` with `|e| ≤ h_j ∘ |Δz_j|`. So for any matrix M
of rows on a_{k−1}, going back from layer to layer,

    ‖M Δa_{k−1}‖  ≤  ‖M m_{k−1} W_{k−1}ᵀ ⋯ m_1 W_1ᵀ‖ R + Σ_j ‖M ⋯ m_{j+1} W_{j+1}ᵀ √h_j‖ β_j,

β_j a bound of `‖√h_j ∘ Δz_j‖`: LipLT (`curvature/liplt.py`), on a ball and with slopes by unit. One
row M bounds how far a single unit moves; the rows of all units that are not linear, weighted by
their √h, give β_k. It is never more than what the intervals say, `‖√h ∘ max(u − ẑ, ẑ − l)‖`.

**Rounding.** Computed rows are taken as exact, as in `crown.py`. A step back through layer j is off
by at most `γ_{N+8} ‖Ω‖ (2 ‖Δz_j‖ + ‖|W_j|‖ ‖Δa_{j−1}‖) + ‖Ω‖ ‖ΔW_j‖ ‖Δa_{j−1}‖` and underflow; a
row of W_k itself by ‖ΔW_k‖ ‖Δa_{k−1}‖.

Reference: Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin maximization
and improved Lipschitz regularization" (2023), theorem 1, for LipLT; on a ball, by unit, it is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.linear.bounds.coupling import straight_units
from keras_curv.certificates.linear.bounds.receptive_fields import Field
from keras_curv.curvature.signed import congruence_bound
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics import lanczos
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.rounding import TINY, gamma, norm_bound, up
from keras_curv.numerics.rows import row_norms, times
from keras_curv.numerics.spectral import largest_norm_bound

_LARGEST = 2**23  # numbers in the matrices of a layer's ball; beyond, it is that of the intervals
_MARGIN = 1.004  # which raises most estimates of norms above them, so that proofs succeed


class Moves(NamedTuple):
    """How far a hidden layer moves on the balls around n examples."""

    middle: np.ndarray  # m, `(n, N)`
    root: np.ndarray  # √h rounded up, `(n, N)`; 0 where σ is linear
    ball: np.ndarray  # β, a bound on `‖√h ∘ Δz‖`, `(n, 1)`
    whole: np.ndarray  # a bound on ‖Δz‖, `(n, 1)`
    before: np.ndarray  # a bound on ‖Δa‖ of the layer before, `(n, 1)`
    after: np.ndarray  # a bound on ‖Δa‖ of this layer, `(n, 1)`
    steep: np.ndarray  # bounds on |σ′|, `(n, N)`


class UnitMoves(NamedTuple):
    """How far single units of a layer move, and the matrices that say so."""

    # bounds on |Δz|, `(n, N)`; infinite for units that were not asked for, and for those that no
    # receptive field has
    reach: np.ndarray
    place: np.ndarray  # each asked unit's row in the matrices, `(n, N)`
    # for the input and each layer before, `(n, units, columns)`, of a layer before the columns of
    # its units that are not linear: all others are 0
    matrices: list[np.ndarray]
    # whether the matrices have these rows, for which there may be too many units, `(n,)`
    fits: np.ndarray
    error: np.ndarray  # bounds of what the computed rows are off by, `(n, N)`


def entries(sizes: Sequence[int]) -> int:
    """Returns how many numbers the matrices of a layer's ball have for an example, about.

    Args:
        sizes: of the input and of each hidden layer.
    """
    most = (size * sum(sizes[: index + 1]) for index, size in enumerate(sizes))
    return min(_LARGEST, max(most) // 2)  # of units, about half are not linear


def estimated_norms(stack: np.ndarray) -> np.ndarray:
    """Estimates the spectral norm of each matrix of `(n, rows, columns)`, in float32.

    Zero rows, which pad the matrices of a batch, change no estimate.
    """
    largest = np.maximum(np.abs(stack).max(axis=(1, 2), initial=0.0), TINY)
    scaled = np.empty(stack.shape, np.float32)
    np.divide(stack, largest[:, None, None], out=scaled, casting="same_kind")
    turned = scaled.transpose(0, 2, 1)
    gram = scaled @ turned if stack.shape[1] < stack.shape[2] else turned @ scaled

    def product(v: np.ndarray) -> np.ndarray:
        return (v.astype(np.float32)[:, None] @ gram)[:, 0].astype(np.float64)

    start = np.random.default_rng(0).standard_normal(gram.shape[1])
    used = np.einsum("nii->ni", gram) > 0.0
    value, _ = lanczos.largest_eigenpairs(product, gram.shape[:2], start=np.where(used, start, 0.0))
    return _MARGIN * largest * np.sqrt(np.maximum(value, 0.0))


def proved_norms(stack: np.ndarray) -> np.ndarray:
    """Bounds the spectral norms of `(n, rows, columns)` from above, whatever zero rows pad them."""
    found = np.zeros(len(stack))
    for index, guess in enumerate(estimated_norms(stack) ** 2):
        matrix = stack[index][np.any(stack[index] != 0.0, axis=1)]
        if not np.isfinite(matrix).all():
            found[index] = np.inf
        elif len(matrix):
            found[index] = largest_norm_bound(matrix[None], guess)
    return found


def first_ball(affine: Affine, root: np.ndarray, radius: np.ndarray, proved: bool) -> np.ndarray:
    """Returns β_1 = R ‖W_1 diag(√h)‖, `(n, 1)`, proved or estimated.

    Args:
        affine: the map from what the attacker moves to z_1.
        root: √h, `(n, N)`.
        radius: R, `(n,)`.
    """
    squares = root**2

    def product(v: np.ndarray) -> np.ndarray:
        return ((v @ affine.thin_kernel) * squares) @ affine.thin_transpose

    value, _ = lanczos.largest_eigenpairs(product, (len(root), affine.fan_in))
    value = np.maximum(value, 0.0) * lanczos.ESTIMATE_MARGIN
    if proved:
        pairs = zip(up(squares), value, strict=True)
        value = np.array([congruence_bound(affine, *pair) for pair in pairs])
    return up(np.sqrt(value) * radius, 8)[:, None] + TINY


def unit_moves(
    network: Network,
    fields: Sequence[Field],
    before: Sequence[Moves],
    radius: np.ndarray,
    asked: np.ndarray,
) -> UnitMoves:
    """Returns how far units of the layer behind these ones move.

    Args:
        network: the network.
        fields: the receptive fields of the layer.
        before: the layers before, at least one.
        radius: of the balls, `(n,)`.
        asked: the units, `(n, N)`.
    """
    reach, error = np.full(asked.shape, np.inf), np.zeros(asked.shape)
    place, counts = np.cumsum(asked, axis=1) - 1, asked.sum(axis=1)
    sizes = network.sizes[: len(before) + 1]
    fits = counts * sum(sizes) <= _LARGEST
    most = int(counts.max(where=fits, initial=0))
    bent = [np.ones((len(asked), sizes[0]), bool), *(moves.root > 0.0 for moves in before)]
    widths = [int(each.sum(axis=1).max(initial=0)) for each in bent]
    # The columns of linear units share one place behind the others.
    columns = [
        np.where(each, np.cumsum(each, axis=1) - 1, width)
        for each, width in zip(bent, widths, strict=True)
    ]
    matrices = [np.zeros((len(asked), most, width + 1)) for width in widths]
    for field in fields:
        for of, at, units, rows in field.shares(asked):
            # The stored kernel of the layer itself is off, too.
            folding = network.affines[len(before)].kernel_error * before[-1].after[of]
            far, lost = np.zeros(units.shape), np.broadcast_to(folding, units.shape).copy()
            wanted = np.nonzero(asked[of[:, None], units])
            kept = np.nonzero(asked[of[:, None], units] & fits[of, None])
            row = place[of[kept[0]], units[kept]][:, None]
            for part, layer in _parts(network, field, before, of, at, rows, lost):
                ball = radius[of, None] if layer is None else before[layer].ball[of]
                far += row_norms(part) * ball
                index = 0 if layer is None else layer + 1
                example = of[kept[0], None]
                column = columns[index][example, field.seen[index][at[kept[0]]]]
                matrices[index][example, row, column] = part[kept]
            some = of[wanted[0]], units[wanted]
            reach[some], error[some] = up(far + lost, 32)[wanted], lost[wanted]
    matrices = [each[..., :width] for each, width in zip(matrices, widths, strict=True)]
    return UnitMoves(reach, place, matrices, fits, error)


def _parts(
    network: Network,
    field: Field,
    before: Sequence[Moves],
    of: np.ndarray,
    at: np.ndarray,
    rows: np.ndarray,
    lost: np.ndarray,
) -> Iterator[tuple[np.ndarray, int | None]]:
    """Yields `Λ ∘ √h_j` with j for each layer back, then Λ at the input with None; adds to `lost`
    what rounding takes."""
    parts = list(zip(before, field.seen[1:], field.kernels, network.affines, strict=False))
    for index in reversed(range(len(parts))):
        moves, seen, kernel, affine = parts[index]
        places = of[:, None], seen[at]
        yield rows * moves.root[places][:, None], index
        rows = rows * moves.middle[places][:, None]
        size, whole, past = row_norms(rows), moves.whole[of], moves.before[of]
        lost += gamma(affine.fan_out + 16) * size * (2.0 * whole + affine.magnitude_norm * past)
        lost += size * affine.kernel_error * past
        lost += 16.0 * TINY * affine.fan_out * (1.0 + size + affine.magnitude_norm) * (1.0 + past)
        rows = times(rows, kernel.T)
    yield rows, None


def layer_ball(
    root: np.ndarray,
    moved: UnitMoves,
    before: Sequence[Moves],
    radius: np.ndarray,
    norms: Callable[[np.ndarray], np.ndarray],
    reach: np.ndarray,
) -> np.ndarray:
    """Returns β of a layer from the movement of its units, `(n, 1)`; infinite where unknown.

    Units that no receptive field has, as those with a single weight, move by what their intervals
    say, and are added to the others in the square.

    Args:
        root: √h of the layer, `(n, N)`, positive only for units that were asked for.
        moved: the movement of its units.
        before, radius: as in `unit_moves`.
        norms: bounds, or in a search estimates, of spectral norms.
        reach: bounds on |Δz| by intervals, `(n, N)`.
    """
    known = np.isfinite(moved.reach)
    alone = norm_bound(np.where(known | (root <= 0.0), 0.0, root * reach), axis=1)[:, None]
    together = _ball_of_known(np.where(known, root, 0.0), moved, before, radius, norms)
    return norm_bound(np.concatenate([alone, together], axis=1), axis=1)[:, None] + TINY


def _ball_of_known(
    root: np.ndarray,
    moved: UnitMoves,
    before: Sequence[Moves],
    radius: np.ndarray,
    norms: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Returns `layer_ball` of the units whose rows are in the matrices."""
    root = np.where(moved.fits[:, None], root, 0.0)
    counts = (root > 0.0).sum(axis=1)
    most = int(counts.max(initial=0))
    if not most:
        return np.where(moved.fits, 0.0, np.inf)[:, None]
    first = np.argsort(root <= 0.0, axis=1, kind="stable")[:, :most]
    weight = np.take_along_axis(root, first, axis=1)
    place = np.where(weight > 0.0, np.take_along_axis(moved.place, first, axis=1), 0)
    lost = norm_bound(np.take_along_axis(moved.error, first, axis=1) * weight, axis=1)
    balls = [radius, *(moves.ball[:, 0] for moves in before)]
    total = up(lost)
    for matrix, ball in zip(moved.matrices, balls, strict=True):
        if not matrix.shape[2]:  # all units are linear
            continue
        for some in batches(len(matrix), most * matrix.shape[2], NEAR):
            part = np.take_along_axis(matrix[some], place[some, :, None], axis=1)
            part *= weight[some, :, None]
            # Its entries are rounded: by no more than √N u of its norm.
            total[some] += up(norms(part), part.shape[1]) * ball[some]
    return np.where(moved.fits, up(total, 4 * len(balls) + 8), np.inf)[:, None]


def moves_of(
    activation: Activation,
    low: np.ndarray,
    high: np.ndarray,
    reach: np.ndarray,
    before: np.ndarray,
    norm: float,
) -> Moves:
    """Returns how a layer moves by its intervals, and by ‖W‖; its ball is that of the intervals.

    Args:
        activation: σ.
        low, high: the intervals of z, `(n, N)`.
        reach: bounds on |Δz|, `(n, N)`.
        before: a bound on ‖Δa‖ of the layer before, `(n, 1)`.
        norm: a bound on ‖W‖.
    """
    straight, slope = straight_units(activation, low, high)
    ends = activation.first_range_on(low, high)
    least, most = (np.where(straight, slope, end) for end in ends)
    middle = least / 2.0 + most / 2.0
    spread = up(np.maximum(most - middle, middle - least))
    root = np.where(spread > 0.0, up(np.sqrt(spread)), 0.0)
    steep = np.maximum(np.abs(least), np.abs(most))
    whole = np.fmin(up(norm * before), norm_bound(reach, axis=1)[:, None])
    bent = np.where(root > 0.0, root * reach, 0.0)
    ball = np.fmin(norm_bound(bent, axis=1)[:, None], up(root.max(axis=1)[:, None] * whole))
    after = np.fmin(
        norm_bound(steep * reach, axis=1)[:, None], up(steep.max(axis=1)[:, None] * whole)
    )
    # No product of small numbers has been flushed to 0.
    return Moves(middle, root, up(ball) + TINY, whole + TINY, before, up(after) + TINY, steep)
