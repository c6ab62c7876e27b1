"""Certificates by interval bounds of a network on a ball, see `interval_bounds.py`.

An l∞ ball is a box itself. On the l2 ball `‖δ‖ ≤ R` around x, a first pre-activation is within
`R ‖w_j‖₂` of its value at x, w_j its column of the kernel, and reaches both ends. The last map is
merged with the margin: its columns are differences of the columns of label and rival.

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
from keras_curv.threats.norms import L2, LINF, Norm


class IntervalCertificate(BallBoundCertificate):
    """A certificate: the largest ball on which the interval bounds on the margins are positive.

    Args:
        network: a network whose activations are non-decreasing, or have known extrema as silu.
        served_error: bounds on the error of served margins.
        norm: the norm of the balls.

    Raises:
        InputError: names an activation without a rule.

    Example:
        >>> network = Network.from_weights([np.eye(2)], [np.zeros(2)], "relu")
        >>> certificate = IntervalCertificate(network)
        >>> radius = certificate.certify(np.array([[3.0, 1.0]])).radius.item()
        >>> radius <= 2.0**0.5 <= 1.002 * radius
        True
    """

    name = "interval"

    def __init__(self, network: Network, served_error: ServedError = no_error, *, norm: Norm = L2):
        for activation in network.activations:
            require_value_range(activation)
        # The fastest growth of an interval of z_L with the radius.
        steepest = network.affines[0].column_norms
        with np.errstate(over="ignore", invalid="ignore"):
            for activation, affine in zip(network.activations, network.affines[1:], strict=True):
                steepest = activation.slope * steepest @ affine.absolute
        most = float(np.nan_to_num(steepest, nan=np.inf).max())
        super().__init__(network, served_error, norm=norm, steepest=2.0 * most)

    def centred_bounds(
        self,
        centres: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """See `BallBoundCertificate`."""
        box = Box(centres, None, radius[:, None], self.network.pinned)
        if self._norm is LINF:
            moves = np.ones(centres.shape) if box.pinned is None else ~box.pinned
            box = Box(centres, radius[:, None] * moves)
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            box = Box.of_values(activation, *box.image(affine))
        rows, constants = self.network.margin_map(tf.constant(centres), label, rivals)
        return box.margins(self.network.affines[-1], rows.numpy(), constants.numpy())
