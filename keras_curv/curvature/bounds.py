"""Bounds of the margins' curvature: `m ≤ λ(∇²f_yt(x)) ≤ M` for all x, for every class pair.

Two layers: theorem 3, exact extreme eigenvalues of two constant matrices. Any depth:
theorem 4, and the signed bound, which keeps what theorem 4 throws away, is never above it, and is
what the certificate takes. All norms that go in are proved from above, so these are bounds of the
stored network, rounding included.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.errors import InputError
from keras_curv.network.activations import require_smooth
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.sparse_affine import DENSE_UP_TO
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import (
    largest_eigenvalue_bound,
    spectral_norm_bound,
    symmetric_norm_estimate,
)

_ENTRIES = 2**25  # of a sensitivity, for all pairs of classes at once: a quarter of a GiB
_POWER_STEPS = 12  # to tell which Hessian is largest
# What norms and Lipschitz constants are taken for at least, so that their products do not underflow
# on their way.
_LEAST = 1e-160


class CurvatureBounds(NamedTuple):
    """`lower[y, t] ≤ λ(∇²(z_y − z_t)(x)) ≤ upper[y, t]` for every x in ℝᵈ.

    Attributes:
        lower: m, `(classes, classes)`, at most 0.
        upper: M, `(classes, classes)`, at least 0; `M[y, t] = −m[t, y]`.
    """

    lower: np.ndarray
    upper: np.ndarray


def curvature_bounds(network: Network) -> CurvatureBounds:
    """Proved curvature bounds, for all class pairs: the signed bound, theorem 3 for two layers.

    An affine network has none (zeros). Theorem 4 is never tighter: its S bounds both ends of the
    signed bound's intervals, entry by entry, and its products of norms are LipLT's guard.

    Raises:
        InputError: an activation is not differentiable; it is named.

    Example:
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "softplus")
        >>> bounds = curvature_bounds(network)  # σ″ is at most 1/4
        >>> bounds.lower[0, 1].round(9).item(), bounds.upper[0, 1].round(9).item()
        (-0.25, 0.25)
    """
    require_smooth(network.activations)
    if any(affine.is_sparse for affine in network.affines):
        _require_room(network)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, or NaN
        lower, upper = signed_bound(network)
    return CurvatureBounds(
        np.nan_to_num(lower, nan=-np.inf, neginf=-np.inf),
        np.nan_to_num(upper, nan=np.inf, posinf=np.inf),
    )


def _require_room(network: Network) -> None:
    entries = network.classes**2 * max(network.sizes[1:])
    if entries > _ENTRIES:
        raise InputError(
            f"the network is too large for curvature bounds: {network.classes} classes squared "
            f"times {max(network.sizes[1:])} units are more than {_ENTRIES}; use lipschitz"
        )


def theorem3(network: Network) -> CurvatureBounds:
    """Curvature of a two-layer network: the extreme eigenvalues of `N` and `P`.

    With `w = W_2[:, y] − W_2[:, t]` and `h_L ≤ σ″ ≤ h_U`,

        ∇²f(x) = W_1 diag(w ∘ σ″(z_1)) W_1ᵀ,    N ≼ ∇²f(x) ≼ P,
        N = W_1 diag(n) W_1ᵀ,  n_i = min(h_L w_i, h_U w_i);   P likewise with the maximum,

    so `m = λ_min(N)` and `M = λ_max(P)`. Swapping y and t negates both: each of the
    `C(C−1)/2` unordered pairs needs one eigenvalue for N and one for P, or a single one where
    the range of σ″ is symmetric.

    Raises:
        InputError: the network does not have exactly two layers.

    Reference: Singla & Feizi (2020), theorem 3; their n_i lacks the factor w_i.
    """
    if network.depth != 2:
        raise InputError(f"theorem 3 is for two layers. Received: {network.depth} layers")
    return signed_bound(network)


def signed_bound(network: Network, *, lipschitz: list[float] | None = None) -> CurvatureBounds:
    """Curvature at any depth, with the sign and the weight of every unit kept.

    Lemma 1 sums `B_Iᵀ diag(F_I ∘ σ″(z_I)) B_I` over the layers. An interval for F_I = ∂f/∂a_I
    follows from the range of σ′ by going backwards with the positive and negative parts of
    the weights apart; with the range of σ″ it bounds each diagonal, `d_lo ≤ d ≤ d_hi`. As
    `B_I = W_I J` with `‖J‖ ≤ Lip(a_{I−1})`,

        M = Σ_I λ_max(W_I diag(d_hi⁺) W_Iᵀ) Lip(a_{I−1})²,
        m = −Σ_I λ_max(W_I diag((−d_lo)⁺) W_Iᵀ) Lip(a_{I−1})².

    Since `M_yt = −m_ty`, only m is computed. Each entry of F_I is also at most
    `‖W_{I+1}[j, :]‖ g ‖F_{I+1}‖`.

    Args:
        lipschitz: bounds of Lip(a_1), …, Lip(a_{L−1}); `lipschitz_bounds` if None.
    """
    classes = network.classes
    if network.depth == 1:
        return CurvatureBounds(np.zeros((classes, classes)), np.zeros((classes, classes)))
    outer = [1.0, *(lipschitz_bounds(network) if lipschitz is None else lipschitz)]
    lower = np.zeros((classes, classes))
    symmetric = all(a.second_range[0] == -a.second_range[1] for a in network.activations)
    # With a symmetric range of σ″ and two layers, P = −N: m_ty = m_yt.
    once = symmetric and network.depth == 2
    pairs = [(y, t) for y in range(classes) for t in range(y + 1 if once else 0, classes) if y != t]
    for index, sensitivity in enumerate(_sensitivities(network, *np.transpose(pairs))):
        affine, bends = network.affines[index], network.activations[index].second_range
        smallest, _ = interval_product(bends, (sensitivity.low, sensitivity.high))
        for (y, t), negative in zip(pairs, up(np.maximum(-smallest, 0.0)), strict=True):
            value = congruence_bound(affine, negative)
            # What underflows in d, and in the eigenvalue, comes to as much.
            value += 8.0 * TINY * (1.0 + affine.norm) * (1.0 + affine.norm)
            # Lip² alone could underflow where the product does not.
            lower[y, t] -= up((np.sqrt(value) * outer[index]) ** 2, 8)
    if once:
        lower += lower.T
    lower = up(lower, network.depth)
    return CurvatureBounds(lower, -lower.T)


def lipschitz_products(network: Network) -> list[float]:
    """Lipschitz constants, from above, of x ↦ a_1, …, a_{L−1}: products of norms and slopes."""
    found: list[float] = []
    for affine, activation in zip(network.affines[:-1], network.activations, strict=True):
        found.append(up(activation.slope * affine.norm * (found[-1] if found else 1.0)))
        found[-1] = max(found[-1], _LEAST)
    return found


def lipschitz_bounds(network: Network) -> list[float]:
    """Lipschitz constants, from above, of x ↦ a_1, …, a_{L−1}.

    Writing `σ′ = c + s ε`, |ε| ≤ 1, centre and half-width of its range, and telescoping
    (LipLT),

        ℓ_1 = ‖W_1‖,   Lip(a_I) = g_I ℓ_I,
        ℓ_I = Π_{k<I} |c_k| ‖W_1⋯W_I‖ + Σ_{j<I} s_j Π_{j<k<I} |c_k| ‖W_{j+1}⋯W_I‖ ℓ_j,

    never above the product of norms, which is kept as a guard.

    Reference: Fazlyab, Entesari, Roy & Chellappa, "Certified robustness via dynamic margin
    maximization and improved Lipschitz regularization" (2023).
    """
    hidden = network.affines[:-1]
    centres = [sum(a.first_range) / 2.0 for a in network.activations]
    spreads = [(a.first_range[1] - a.first_range[0]) / 2.0 for a in network.activations]
    pre: list[float] = []  # ℓ_I
    for last in range(len(hidden)):
        affine = hidden[last]
        before = network.activations[last - 1].slope * pre[-1] if last else 1.0
        guard = up(affine.norm * before)
        total = 0.0
        product = _MapProduct.of(affine)  # W_{j+1} ⋯ W_last
        factor = 1.0  # Π |c_k| over the activations inside that product
        for j in reversed(range(last)):
            total += spreads[j] * factor * product.norm * pre[j]
            factor *= abs(centres[j])
            product = product.after(hidden[j])
        total += factor * product.norm
        pre.append(max(up(total if total < guard else guard, 8 * (last + 1)), _LEAST))
    bounds = (up(a.slope * bound) for a, bound in zip(network.activations, pre, strict=True))
    return [max(bound, _LEAST) for bound in bounds]


class _MapProduct(NamedTuple):
    """A product of maps as a matrix and how far it is off, in norm; too large, only its norm."""

    matrix: np.ndarray | None
    error: float
    norm: float

    @classmethod
    def of(cls, affine: Affine) -> _MapProduct:
        if affine.is_sparse:
            return cls(None, 0.0, max(affine.norm, _LEAST))
        return cls._dense(affine.kernel, affine.kernel_error)

    @classmethod
    def _dense(cls, matrix: np.ndarray, error: float) -> _MapProduct:
        if not np.isfinite(matrix).all():
            return cls(matrix, error, np.inf)
        return cls(matrix, error, max(up(spectral_norm_bound(matrix) + error), _LEAST))

    def after(self, affine: Affine) -> _MapProduct:
        """The product with a map before."""
        if self.matrix is None or affine.fan_in * self.matrix.shape[1] > DENSE_UP_TO:
            return _MapProduct(None, 0.0, max(up(affine.norm * self.norm), _LEAST))
        return self._dense(*product_after(affine, self.matrix, self.error))


def product_after(affine: Affine, product: np.ndarray, error) -> tuple[np.ndarray, np.ndarray]:
    """`W V` as computed, and how far that is from the real product, in norm.

    Args:
        affine: W.
        product: V, as computed.
        error: how far V is off: a number, in norm; or that of each column, and so is the answer.
    """
    size = affine.frobenius
    columns = norm_bound(product, axis=0) if np.ndim(error) else norm_bound(product)
    rounding = gamma(affine.fan_out + 4) * size * columns
    carried = affine.kernel_error * (columns + error) + size * error
    terms = float(affine.fan_out) * affine.fan_in * product.shape[1]
    underflow = 4.0 * TINY * terms * (1.0 + size + columns)
    return affine.kernel @ product, up(rounding + carried + underflow, 8)


def congruence_bound(affine: Affine, diagonal: np.ndarray, *, guess: float | None = None) -> float:
    """`λ_max(W diag(d) Wᵀ)` for d ≥ 0, over all W within the folding error.

    Of a sparse map, `max(d) ‖W‖²`.
    """
    if not np.isfinite(diagonal).all():
        return np.inf
    if affine.is_sparse:
        return up(float(diagonal.max()) * affine.norm**2, 8)
    # Where there are many more outputs than inputs, W diag(d) Wᵀ is by far the smaller matrix.
    gram = affine.gram if affine.fan_out <= 2 * affine.fan_in else None
    value = largest_eigenvalue_bound(affine.kernel, diagonal, gram=gram, guess=guess)
    if not affine.kernel_error:
        return value
    return up((np.sqrt(value) + np.sqrt(diagonal.max()) * affine.kernel_error) ** 2, 8)


class Sensitivity(NamedTuple):
    """An interval, entry by entry, that holds `F_I = ∂(z_y − z_t)/∂a_I`, for each of P pairs.

    Attributes:
        low, high: `(P, N_I)`.
        norm: bound of ‖F_I‖, `(P,)`.
    """

    low: np.ndarray
    high: np.ndarray
    norm: np.ndarray


def output_sensitivity(network: Network, label: np.ndarray, rival: np.ndarray) -> Sensitivity:
    """That of the last hidden layer, `F_{L−1} = W_L[:, y] − W_L[:, t]`.

    Args:
        label, rival: `(P,)`.
    """
    last = network.affines[-1]
    w = last.kernel.T[label] - last.kernel.T[rival]
    # The difference rounds, and a folded kernel is known to within kernel_error.
    slack = up(2.0 * last.kernel_error + 2.0 * UNIT * np.abs(w) + 4.0 * TINY)
    return Sensitivity(w - slack, w + slack, up(norm_bound(w, 1) + norm_bound(slack, 1)))


def sensitivity_before(
    affine: Affine, slopes: tuple[np.ndarray, np.ndarray], behind: Sensitivity
) -> Sensitivity:
    """F_{I−1} = W_I (σ′(z_I) ∘ F_I), from the range of σ′(z_I) and that of F_I.

    Positive and negative parts of the weights count apart, as `W mid ± |W| radius`; each entry
    is also at most `‖W_I[j, :]‖ g ‖F_I‖`.

    Args:
        affine: z_I.
        slopes: least and largest σ′(z_I), each broadcasts to `(P, N_I)`.
        behind: F_I.
    """
    p, q = interval_product(slopes, (behind.low, behind.high))
    steepest = np.maximum(np.abs(slopes[0]), np.abs(slopes[1]))
    through = up(np.max(steepest, axis=-1) * behind.norm) + 4.0 * TINY  # ‖σ′ ∘ F‖
    size = np.maximum(np.abs(p), np.abs(q))
    terms = affine.fan_out + 16
    spread = up((0.5 * (q - p) + 2.0 * gamma(terms) * size) @ abs(affine.kernel).T, terms)
    spread += up(affine.kernel_error * through)[:, None]
    row_norms = affine.row_norms + affine.kernel_error
    spread += 8.0 * TINY * terms * (1.0 + row_norms)  # of the products above that underflow
    reach = up(np.multiply.outer(through, row_norms), 8) + 4.0 * TINY
    middle = (0.5 * (p + q)) @ affine.kernel.T
    return Sensitivity(
        np.maximum(middle - spread, -reach),
        np.minimum(middle + spread, reach),
        up(affine.norm * through, 8) + 4.0 * TINY,
    )


def interval_product(a, b) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest product of a number in `[a[0], a[1]]` and one in `[b[0], b[1]]`."""
    products = [left * right for left in a for right in b]
    return functools.reduce(np.minimum, products), functools.reduce(np.maximum, products)


def _sensitivities(network: Network, label, rival) -> list[Sensitivity]:
    """F_1 … F_{L−1} at every x whatever."""
    found = [output_sensitivity(network, label, rival)]
    for index in reversed(range(1, network.depth - 1)):
        slopes = network.activations[index].first_range
        found.append(sensitivity_before(network.affines[index], slopes, found[-1]))
    return found[::-1]


def theorem4(network: Network) -> np.ndarray:
    """`K[y, t] ≥ ‖∇²(z_y − z_t)(x)‖` for every x, for a network of any depth.

        K = Σ_I h_I r_I² max_j S_j^(L,I),
        r_1 = ‖W_1‖,  r_I = g_{I−1} ‖W_I‖ r_{I−1},
        S^(L,L−1) = |w|,  S^(L,I) = g_{I+1} |W_{I+1}| S^(L,I+1).

    Returns:
        `(classes, classes)`, symmetric, zero on the diagonal.

    Reference: Singla & Feizi (2020), theorem 4, with g and h of each layer's own activation.
    """
    classes = network.classes
    total = np.zeros((classes, classes))
    if network.depth == 1:
        return total
    outer = [1.0, *lipschitz_products(network)]
    last = network.affines[-1]
    columns = last.kernel.T
    reach = np.abs(columns[:, None] - columns[None, :]) + 2.0 * last.kernel_error  # S, (C, C, N)
    for index in reversed(range(network.depth - 1)):
        activation = network.activations[index]
        largest = up(reach.max(axis=-1), 8)
        affine = network.affines[index]
        steepness = up(affine.norm * outer[index])  # r_I
        total += up((np.sqrt(activation.bend * largest) * steepness) ** 2, 16)
        # Of what folding rounded away, a row's product is at most `‖ΔW‖ ‖S‖`.
        flat = reach.reshape(-1, affine.fan_out)
        through = flat @ abs(affine.kernel).T
        through += up(affine.kernel_error * norm_bound(flat, axis=1))[:, None]
        reach = up(activation.slope * through, affine.fan_out + 8).reshape(classes, classes, -1)
    np.fill_diagonal(total, 0.0)
    return up(total, network.depth + 4)


class CurvatureGap(NamedTuple):
    """How far the curvature met at data lies below the proved bound.

    Attributes:
        lower: K_lb, the curvature met.
        proved: what a certificate uses on the same pairs: the signed bound, theorem 3 for two
            layers.
        upper: K_ub, the bound of theorem 4.
        pairs: how many (label, runner-up) pairs had enough examples.
    """

    lower: float
    proved: float
    upper: float
    pairs: int


def curvature_gap(
    network: Network,
    x: np.ndarray,
    label: np.ndarray,
    *,
    minimum_examples: int = 100,
    batch_size: int = 256,
) -> CurvatureGap:
    """K_lb and K_ub: the largest curvature at examples, beside what is proved.

    For every pair (label, runner-up class) with at least `minimum_examples` examples, K_lb
    takes the largest ‖∇²f(x)‖ over those examples; all figures are means over these pairs.
    K_lb is what was met, not a bound of what there is.

    Args:
        x: `(n, dim)`.
        label: `(n,)`, integers.
        minimum_examples: pairs with fewer are left out.
        batch_size: examples whose Hessians are compared at once, by power iteration; of the
            largest one of each pair the norm is that of the dense matrix.

    Raises:
        InputError: no pair has enough examples.

    Example:
        >>> from keras_curv import data, read
        >>> x, y = data.load_all("digits")
        >>> network = read("saved_models/digits").network
        >>> gap = curvature_gap(network, x.reshape(len(x), -1), y, minimum_examples=10)
        >>> gap.lower < gap.proved < gap.upper
        True

    Reference: Singla & Feizi (2020), appendix G.1 (K_lb and K_ub).
    """
    x = np.asarray(x, np.float64)
    label = np.asarray(label, np.int64)
    rival = network.runner_up(network.logits(x), tf.constant(label)).numpy()
    bounds, theorem = curvature_bounds(network), theorem4(network)
    ours = np.maximum(-bounds.lower, bounds.upper)
    lower, proved, upper = [], [], []
    for y, t in np.unique(np.stack([label, rival], axis=1), axis=0):
        members = np.flatnonzero((label == y) & (rival == t))
        if len(members) < minimum_examples:
            continue
        parts = np.split(members, range(batch_size, len(members), batch_size))
        sizes = [_hessian_sizes(network, x[part], label[part], rival[part]) for part in parts]
        most = members[np.concatenate(sizes).argmax()][None]
        hessian = network.hessian(x[most], label[most], rival[most]).numpy()[0]
        lower.append(symmetric_norm_estimate(hessian))
        proved.append(ours[y, t])
        upper.append(theorem[y, t])
    if not lower:
        raise InputError(
            f"no pair of label and runner-up has {minimum_examples} examples. "
            f"Received: {len(x)} examples; lower minimum_examples"
        )
    means = [float(np.mean(values)) for values in (lower, proved, upper)]
    return CurvatureGap(*means, len(lower))


def _hessian_sizes(network: Network, x, label, rival) -> np.ndarray:
    """Estimates of ‖∇²f(x)‖ by power iteration, `(n,)`."""
    x, label, rival = map(tf.constant, (x.astype(np.float32), label, rival))
    vector = tf.random.stateless_normal(tf.shape(x), (0, 0))
    for _ in range(_POWER_STEPS):
        vector = tf.math.l2_normalize(vector, axis=1)
        with tf.autodiff.ForwardAccumulator(x, vector) as along:
            _, gradient = network.margin_and_gradient(x, label, rival)
        vector = along.jvp(gradient)
    return tf.norm(vector, axis=1).numpy()
