"""Bounds on the margins' curvature: `m ≤ λ(∇²f_yt(x)) ≤ M` for all x, for every class pair.

A certificate uses the signed bound (`signed.py`), which for two layers is theorem 3. All norms in
it are proved from above, so these bounds hold for the stored network, rounding included.
"""

from __future__ import annotations

import numpy as np

from keras_curv.curvature.signed import CurvatureBounds, signed_bound
from keras_curv.errors import InputError
from keras_curv.network.activations import require_smooth
from keras_curv.network.network import Network
from keras_curv.process import usual_floats

ENTRIES = 2**25  # of a sensitivity of all class pairs, 256 MiB
DENSE_ENTRIES = 2**27  # the same if no map is sparse
MULTIPLICATIONS = 2**46  # for all pairs: hours
_PROOF = 2**25  # the fixed cost of one proof, in multiplications


@usual_floats
def curvature_bounds(network: Network) -> CurvatureBounds:
    """Returns proved curvature bounds for all class pairs; zeros for an affine network.

    They are the signed bound, which for two layers is theorem 3. Theorem 4 is never tighter: its
    S bounds both ends of the signed bound's intervals entrywise, and its products of norms are one
    of the two bounds of which LipLT takes the smaller.

    Raises:
        InputError: names an activation that is not differentiable.

    Example:
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "softplus")
        >>> bounds = curvature_bounds(network)  # σ″ is at most 1/4
        >>> bounds.lower[0, 1].round(9).item(), bounds.upper[0, 1].round(9).item()
        (-0.25, 0.25)
    """
    require_smooth(network.activations)
    _require_room(network)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow gives inf or NaN
        lower, upper = signed_bound(network)
    return CurvatureBounds(
        np.nan_to_num(lower, nan=-np.inf, neginf=-np.inf),
        np.nan_to_num(upper, nan=np.inf, posinf=np.inf),
    )


def _require_room(network: Network) -> None:
    """Refuses a network whose bounds of all class pairs would take too much memory or time."""
    sparse = any(affine.is_sparse for affine in network.affines)
    limit = ENTRIES if sparse else DENSE_ENTRIES
    entries = network.classes**2 * max(network.sizes[1:])
    if entries > limit:
        raise InputError(
            f"the network is too large for curvature bounds: {network.classes} classes squared "
            f"times {max(network.sizes[1:])} units are more than {limit}; use lipschitz"
        )
    if curvature_work(network) > MULTIPLICATIONS:
        raise InputError(
            f"the network is too large for curvature bounds: those of {network.classes} classes "
            f"squared and {network.depth} layers take more than {MULTIPLICATIONS} "
            "multiplications; use lipschitz, or fewer layers"
        )


def curvature_work(network: Network) -> int:
    """Estimates the number of multiplications for the bounds of all class pairs.

    Each pair and hidden layer needs a proof for each layer up to it, about the product of the maps
    from that layer to the hidden layer, unless one of them is sparse.

    Example:
        >>> deep = Network.from_weights([np.eye(2)] * 9, [np.zeros(2)] * 9, "softplus")
        >>> curvature_work(deep) // curvature_work(Network(deep.affines[-2:], deep.activations[:1]))
        36
    """
    total = 0
    for last, affine in enumerate(network.affines[:-1]):
        for first in reversed(network.affines[: last + 1]):
            if first.is_sparse:
                break
            sides = first.fan_in, affine.fan_out
            total += first.fan_in * affine.fan_out * min(sides) + _PROOF
    return network.classes**2 * total
