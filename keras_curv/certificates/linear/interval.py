"""Certificates by interval bounds of a network on an l2 ball, which `interval_bounds.py` has.

On the ball `‖δ‖ ≤ R` around x, the first pre-activation is within `R ‖w_j‖₂` of its value at x, w_j
its column of the kernel, and reaches both ends. The last map is merged with the margin: its columns
are those of label minus rival.

Reference: Gowal et al., "On the effectiveness of interval bound propagation for training verifiably
robust models" (2018), equations 6 and 7; Mirman, Gehr & Vechev, "Differentiable abstract
interpretation for provably robust neural networks" (2018), for the box; the first layer by the dual
norm as in Zhang et al., "Towards stable and efficient training of verifiably robust neural
networks" (2020).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.certificates.interval_bounds import Box, require_value_range
from keras_curv.certificates.linear.ball_search import BallBoundCertificate
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.network.network import Network


class IntervalCertificate(BallBoundCertificate):
    """The largest ball on which the interval bounds of the margins are positive.

    Args:
        network: its activations do not fall, or it is known where they are extreme, as of silu.
        served_error: what serving may take off a margin.

    Raises:
        InputError: the network has an activation without a rule; it is named.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "relu")
        >>> certificate = IntervalCertificate(network)
        >>> radius = certificate.certify(np.array([[3.0, 1.0]])).radius.item()
        >>> radius <= 2.0**0.5 <= 1.002 * radius
        True
    """

    name = "interval"

    def __init__(self, network: Network, served_error: ServedError = no_error):
        for activation in network.activations:
            require_value_range(activation)
        # As far as an interval of each z_L grows with the radius, at most.
        steepest = network.affines[0].column_norms
        with np.errstate(over="ignore", invalid="ignore"):
            for activation, affine in zip(network.activations, network.affines[1:], strict=True):
                steepest = activation.slope * steepest @ abs(affine.kernel)
        most = float(np.nan_to_num(steepest, nan=np.inf).max())
        super().__init__(network, served_error, steepest=2.0 * most)

    def _margin_bounds(
        self,
        centres: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        box = Box(centres, None, radius[:, None], self.network.pinned)
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            box = Box.of_values(activation, *box.image(affine))
        rows, constants = self.network.margin_map(tf.constant(centres), label, rivals)
        return box.margins(self.network.affines[-1], rows.numpy(), constants.numpy())
