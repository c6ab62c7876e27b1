"""The witnesses of a batch's proofs, kept so that another program can prove the radii again."""

from __future__ import annotations

import numpy as np

from keras_curv.certificates.question import Proof
from keras_curv.network.network import FeedForward


class Witnesses:
    """Collects the witnesses of one batch of examples.

    Args:
        exact: the examples, `(n, dim)`, float64.
        served: what the network receives for them, `(n, dim)`, float64.
        network: what is certified.

    Attributes:
        exact, served: as given.
        widths: of the hidden layers.
        method: name of the method that proved the radius against each class, `(n, classes)`, or "".
        points: (example, rival) → point at which a gradient proves a radius, `(dim,)`, of two_stage
            among the features. Where there is none, it is the example itself or the method has no
            points.
        slopes: (example, rival) → slopes, turns and multipliers of coupled layers, of linear bounds
            that were improved by ascent.

    Example:
        >>> from keras_curv.certificates.crc.crc import CurvatureCertificate
        >>> from keras_curv.network.network import Network
        >>> network = Network.from_weights([np.eye(2)] * 2, [np.zeros(2)] * 2, "softplus")
        >>> x = np.array([[3.0, 1.0]])
        >>> kept = Witnesses(x, x, network)
        >>> certificates = CurvatureCertificate(network).certify(x, noted=kept.note)
        >>> kept.method.tolist(), [*kept.points]
        ([['', 'crc']], [(0, 1)])
    """

    def __init__(self, exact: np.ndarray, served: np.ndarray, network: FeedForward):
        self.exact, self.served, self.widths = exact, served, network.sizes[1:-1]
        self.method = np.full((len(exact), network.classes), "", "U16")
        self.points: dict[tuple[int, int], np.ndarray] = {}
        self.slopes: dict[tuple[int, int], np.ndarray] = {}

    def note(self, rows: np.ndarray, rivals: np.ndarray, proof: Proof) -> None:
        """Keeps the witness of a proof.

        Args:
            rows: indices of its examples in the batch, `(m,)`.
            rivals: theirs, `(m, k)`.
            proof: of radii `(m, k)`.
        """
        self.method[rows[:, None], rivals] = proof.method
        for (row, column), some in proof.slopes.items():
            self.slopes[int(rows[row]), int(rivals[row, column])] = some
        if proof.point is None:
            return
        moved = ~np.isnan(proof.point).any(axis=2)
        if proof.point.shape[2] == self.served.shape[1]:
            moved &= np.any(proof.point != self.served[rows][:, None], axis=2)
        for row, column in zip(*np.nonzero(moved), strict=True):
            self.points[int(rows[row]), int(rivals[row, column])] = proof.point[row, column]
