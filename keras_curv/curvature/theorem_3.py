"""Theorem 3: the curvature of a two-layer network, by the extreme eigenvalues of two matrices."""

from __future__ import annotations

from keras_curv.curvature.signed import CurvatureBounds, signed_bound
from keras_curv.errors import InputError
from keras_curv.network.network import Network


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

    Reference: Singla & Feizi (2020), theorem 3; our n_i is their n_i w_i.
    """
    if network.depth != 2:
        raise InputError(f"theorem 3 is for two layers. Received: {network.depth} layers")
    return signed_bound(network)
