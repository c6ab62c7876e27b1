"""COAP's certificate: bounds by the convex outer adversarial polytope of a ReLU network.

Reference: Wong & Kolter, "Provable defenses against adversarial examples via the convex outer
adversarial polytope" (2018), theorem 1 and algorithm 1, with the l2 norm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from keras_curv.certificates.linear.bounds.relaxation import Relaxation, relaxation
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.network.network import Network, require_dense
from keras_curv.threats.norms import L2, Norm


class PolytopeCertificate(LinearBoundCertificate):
    """A certificate: CROWN's with parallel lines around relu, and without boxes or a second pass.

    Args:
        network: a network with relu as its only activation.
        served_error: bounds on the error of served margins.

    Raises:
        InputError: names another activation.

    Example:
        >>> import numpy as np
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "relu")
        >>> radius = PolytopeCertificate(network).certify(np.array([[3.0, 1.0]])).radius[0]
        >>> bool(1.37 < radius < 2.0**0.5)  # √2 is the distance
        True
    """

    name = "coap"
    refined = False

    def __init__(self, network: Network, served_error: ServedError = no_error, *, norm: Norm = L2):
        for activation in network.activations:
            if not activation.hinge:
                raise InputError(
                    "the convex outer adversarial polytope is that of relu networks. "
                    f"Received: activation {activation.name!r}"
                )
        require_dense(network, self.name)
        super().__init__(network, served_error, norm=norm)

    @staticmethod
    def relaxation(
        activation: Activation, low: ArrayLike, high: ArrayLike, at: np.ndarray | None = None
    ) -> Relaxation:
        """Returns the chord above relu and its parallel through 0; `at` has no effect.

        `k z ≤ relu(z)` for every k from 0 to 1, so a rounded slope is sound too.
        """
        lines = relaxation(activation, low, high)
        return lines._replace(lower_slope=lines.upper_slope)
