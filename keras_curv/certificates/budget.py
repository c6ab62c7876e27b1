"""Certificates for changes of a bounded l1 norm: a budget that the attacker spends as he likes.

As `‖δ‖₂ ≤ ‖δ‖₁`, every l2 radius is one for l1. Two bounds know more:

    curvature   f(x + δ) ≥ f(x) − ‖∇f(x)‖_∞ ‖δ‖₁ − (κ₁/2) ‖δ‖₁²    (`curvature/vertex.py`)
    crown       a linear function falls by ‖Λ‖_∞ R on `‖δ‖₁ ≤ R`, by ‖Λ‖₂ R on the ball

The first is the minorant of `dual.py` at x itself, with the norms that belong to l1.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.certificates.auto import BestOf
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.geometries import Clip
from keras_curv.certificates.crc.proved_radius import Charged, charged, charged_minorant
from keras_curv.certificates.linear.coupled import CoupledCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question
from keras_curv.curvature.vertex import vertex_curvature
from keras_curv.numerics import rounding


class BudgetCertificate(Method):
    """Radii of l1 balls: those of another method, and what is more for l1 where there is more.

    Distances of adversarial points, which are l2, are left out.

    Args:
        method: whose l2 radii hold at least, and which says by its kind which bounds are asked for.
        served_error: what serving may take off a margin, on l2 balls.

    Example:
        >>> from keras_curv.network.network import Network
        >>> network = Network.from_weights([np.ones((4, 2)) * [1, 0]], [np.zeros(2)], ())
        >>> certificate = BudgetCertificate(CurvatureCertificate(network))
        >>> certificate.certify(np.ones((1, 4))).radius.round(9)  # margin 4, gradient (1, 1, 1, 1)
        array([4.])
    """

    def __init__(self, method: Method, served_error: ServedError = no_error):
        self.name, self.network, self.cost = method.name, method.network, method.cost
        asked = method.methods if isinstance(method, BestOf) else (method,)
        self._method = method
        self._more: list[Method] = []
        for one in asked:
            if isinstance(one, CoupledCertificate):
                self._more.append(CoupledCertificate(one.network, served_error, norm="l1"))
            elif type(one) is LinearBoundCertificate:
                self._more.append(LinearBoundCertificate(one.network, served_error, norm="l1"))
            elif isinstance(one, CurvatureCertificate) and not isinstance(one.geometry, Clip):
                # That of a clip is the curvature of the network behind it.
                self._more.insert(0, VertexCertificate(one, served_error))

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        # What is not proved of a rival in l2 may be in l1.
        every = question._replace(goal=question.goal.of_each_rival())
        proof = self._method.prove(every)
        for one in self._more:
            known = every._replace(known=proof.radius, goal=question.goal.opened())
            more = one.prove(known)
            method = np.where(more.method == "", proof.method, more.method)
            proof = proof._replace(
                radius=more.radius, method=method, gradients=proof.gradients + more.gradients
            )
        return proof._replace(distance=np.full(proof.radius.shape, np.inf), weakest=None)


class VertexCertificate(Method):
    """What curvature proves of l1 balls by one gradient.

    Args:
        certificate: the l2 one of the same network.
        served_error: what serving may take off a margin, on l2 balls.
    """

    name = CurvatureCertificate.name

    def __init__(self, certificate: CurvatureCertificate, served_error: ServedError = no_error):
        self.network = network = certificate.network
        self.served_error = served_error
        kappa = vertex_curvature(network, certificate.curvature) + rounding.CURVATURE_FLOOR
        self._kappa = np.where(certificate.constant_margins, 0.0, kappa)

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        x, label, rivals = question[:3]
        pairs = tf.constant(label), tf.constant(rivals)
        evaluation = self.network.evaluate(tf.constant(x), *pairs)
        found = charged(self.network.layer_norms, evaluation)
        kappa = tf.constant(self._kappa[label[:, None], rivals])
        radius = self._proved(found, kappa, np.zeros(rivals.shape))
        charge = self.served_error(x, label, rivals, radius)
        if np.any(charge):
            radius = np.minimum(radius, self._proved(found, kappa, charge))
        gradients = np.full(len(question.x), rivals.shape[1], np.int64)
        return question.answer(self.name, radius, gradients)

    def _proved(self, found: Charged, kappa: tf.Tensor, taken_off: np.ndarray) -> np.ndarray:
        """Radii `(n, rivals)` where serving takes no more off; rounding charged."""
        bound, slope_error = charged_minorant(found, None, kappa, tf.constant(taken_off))
        steepest = tf.reshape(tf.reduce_max(tf.abs(found.gradient), axis=-1), [-1])
        slope = (steepest + slope_error) * (1.0 + rounding.gamma(8))
        radius = dual.certified_radius(bound._replace(slope=slope)) * (1.0 - rounding.gamma(32))
        return tf.reshape(radius, tf.shape(kappa)).numpy()
