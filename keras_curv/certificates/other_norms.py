"""Certificates for changes of bounded l1 norm, a budget, or l∞ norm, a tolerance for each entry.

A ball of one norm is inside one of another (`threats/norms.py`), so every l2 radius r proves r in
l1 and r/√n in l∞, of n entries that move. Some bounds know more:

    Lipschitz   f(x + δ) ≥ f(x) − sup ‖∇f‖_* ‖δ‖                      (`lipschitz.py`)
    curvature   f(x + δ) ≥ f(x) − ‖∇f(x)‖_* ‖δ‖ − (κ/2) ‖δ‖²       (`curvature/in_norm.py`)
    linear      a linear function falls by ‖Λ‖_* r on the ball of radius r

The second is the minorant of `dual.py` at x itself, with the norms that belong to l1 or l∞.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_curv import dual
from keras_curv.attacks.closest import crossings, widening_balls
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.auto import BestOf
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.geometries import Clip
from keras_curv.certificates.crc.in_cube import CubeCertificate
from keras_curv.certificates.crc.proved_radius import Charged, charged, charged_minorant
from keras_curv.certificates.linear.branched import BranchedCertificate, branches
from keras_curv.certificates.linear.coupled import CoupledCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question
from keras_curv.curvature.in_norm import curvature_in
from keras_curv.numerics import rounding
from keras_curv.threats.norms import LINF, Norm, moving

_OF_ANY_NORM = (
    LipschitzCertificate,
    CoupledCertificate,
    LinearBoundCertificate,
    IntervalCertificate,
)
_INWARD = 1.0 - 2.0**-40  # so that a radius to decide is among those worth asking for
_STEPS = 10  # of an attack


class NormCertificate(Method):
    """Radii of l1 or l∞ balls: those that l2 radii imply, and those of bounds in that norm.

    Args:
        method: the method for l2 balls; its kind chooses the bounds in the other norm.
        norm: of the changes.
        served_error: bounds on the error of served margins on l2 balls.

    Example:
        >>> from keras_curv.network.network import Network
        >>> from keras_curv.threats.norms import NORMS
        >>> network = Network.from_weights([np.ones((4, 2)) * [1, 0]], [np.zeros(2)], ())
        >>> method = CurvatureCertificate(network)  # at (1, 1, 1, 1): margin and gradient
        >>> for norm in NORMS.values():
        ...     certificate = NormCertificate(method, norm)
        ...     print(norm.name, certificate.certify(np.ones((1, 4))).radius.round(9))
        l2 [2.]
        l1 [4.]
        linf [1.]
    """

    def __init__(self, method: Method, norm: Norm, served_error: ServedError = no_error):
        self.name, self.network, self.cost = method.name, method.network, method.cost
        self._norm, self._count = norm, moving(method.network)
        self._entries = 8 * max(self.network.sizes)  # about what an attack on an example takes
        asked = method.methods if isinstance(method, BestOf) else [method]
        charge = _Around(served_error, norm, self._count)
        in_norm: list[Method] = []
        for one in asked:
            if isinstance(one, _OF_ANY_NORM):
                in_norm.append(type(one)(one.network, charge, norm=norm))
            elif isinstance(one, CurvatureCertificate) and not isinstance(one.geometry, Clip):
                # That of a clip is the curvature of the network behind it.
                if norm is LINF:
                    in_norm.insert(0, CubeCertificate(one, charge))
                in_norm.insert(0, GradientCertificate(one, norm, charge))
        coupled = any(isinstance(one, CoupledCertificate) for one in asked)
        if norm is LINF and coupled and isinstance(method, BestOf):
            # It needs no ball of l2 around.
            in_norm.append(LinearBoundCertificate(self.network, charge, norm=norm))
        by_l2 = _FromL2(method, norm, self._count)
        # An l2 radius of many entries is seldom worth asking for where it proves r/√n.
        self._methods = [*in_norm, by_l2] if norm is LINF else [by_l2, *in_norm]
        self._last: Method | None = None
        if norm is LINF and isinstance(method, BestOf) and branches(self.network):
            self._last = BranchedCertificate(self.network, charge)

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        radius, gradients = question.known.copy(), np.zeros(len(question.x), np.int64)
        method = np.full(radius.shape, "", "U16")
        # What is not proved of a rival in l2 may be in this norm: each one counts.
        every, decide = question.goal.of_each_rival(), np.array(question.goal.decide)
        distance = np.full(radius.shape, np.inf)
        for one in (*self._methods, self._last):
            goal, least = every, radius.min(axis=1)
            aim = least * (1.0 + goal.tolerance)
            if len(decide):  # the next of these radii that is not proved
                aim = np.where(decide > least[:, None], decide, np.inf).min(axis=1)
                goal = goal._replace(aim=aim * _INWARD)
            rows = np.isfinite(aim)
            if one is self._last:
                if self._norm is LINF:
                    with np.errstate(all="ignore"):
                        self._look_around(question, least, distance)
                rows &= distance.min(axis=1) > aim
            if one is not None and rows.any():
                found = one.prove(question._replace(known=radius, goal=goal).take(rows))
                method[rows] = np.where(found.radius > radius[rows], found.method, method[rows])
                radius[rows] = np.fmax(radius[rows], found.radius)
                gradients[rows] += found.gradients
        return Proof(radius, gradients, method, distance)

    def _look_around(self, question: Question, proved: np.ndarray, distance: np.ndarray) -> None:
        """Writes distances of adversarial points, `(n, rivals)`, that attacks find in balls that
        grow from the radius proved, or from the nearest boundary by the slope."""
        x, label, rivals = question[:3]
        take = functools.partial(np.take_along_axis, axis=1)
        found = self.network.evaluate(*(tf.constant(part) for part in question[:3]))
        slope = self._norm.dual(found.gradient.numpy())
        begin = np.fmax(proved, np.nan_to_num(found.margin.numpy() / slope).min(axis=1))
        for some, reach in widening_balls(begin, distance, self._entries):
            of_some, labels = tf.constant(x[some]), tf.constant(label[some])
            args = self.network, of_some, labels
            norm = self._norm.name
            _, met = pgd_attack(*args, radius=reach, steps=_STEPS, restarts=1, norm=norm)
            first, _ = self._crossing(of_some, tf.cast(labels, tf.int32), met)
            logits = self.logits(first.numpy())
            passed = take(logits, label[some, None]) <= take(logits, rivals[some])
            length = self._norm.of(first.numpy() - x[some])
            distance[some] = np.where(passed, length[:, None], np.inf)

    @functools.cached_property
    def _crossing(self) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
        return crossings(self.network)


class _FromL2(Method):
    """Radii of another norm that l2 radii imply; arguments are those of `NormCertificate`.

    A known radius is passed on as one of l2, so that the method searches for larger ones only. It
    is returned as it is, and no proof relies on it.
    """

    def __init__(self, method: Method, norm: Norm, count: int):
        self.name, self.network = method.name, method.network
        self._method, self._norm, self._count = method, norm, count

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        goal, known = question.goal, self._length(question.known)
        decide = tuple(self._length(np.array(goal.decide)).tolist())
        ceiling, aim = self._length(goal.ceiling), self._length(goal.aim)
        goal = goal._replace(ceiling=ceiling, aim=aim, decide=decide)
        proof = self._method.prove(question._replace(known=known, goal=goal))
        radius = self._norm.of_l2(proof.radius, self._count)
        radius = np.where(proof.radius > known, radius, question.known)
        return proof._replace(radius=np.fmax(radius, question.known))

    def _length(self, radius: np.ndarray) -> np.ndarray:
        return self._norm.length(radius, self._count)


class _Around(ServedError):
    """Bounds on the error of served margins on balls of another norm, by the l2 balls around them.

    Args:
        charge: the bounds on l2 balls.
        norm: of the balls.
        count: the number of entries that move.
    """

    def __init__(self, charge: ServedError, norm: Norm, count: int):
        self._charge, self._norm, self._count = charge, norm, count

    def __call__(
        self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        return self._charge(x, label, rivals, self._norm.length(radius, self._count))


class GradientCertificate(Method):
    """Radii of another norm that curvature proves by one gradient.

    Args:
        certificate: the l2 one of the same network.
        norm: of the balls.
        served_error: bounds on the error of served margins on balls of that norm.
    """

    name = CurvatureCertificate.name

    def __init__(
        self, certificate: CurvatureCertificate, norm: Norm, served_error: ServedError = no_error
    ):
        self.network = network = certificate.network
        self.served_error = served_error
        kappa = curvature_in(norm, network, certificate.curvature) + rounding.CURVATURE_FLOOR
        self._kappa = np.where(certificate.constant_margins, 0.0, kappa)
        self._norm = norm
        self._length = norm.length(np.ones(1), moving(network)).item()

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
        """Returns radii `(n, rivals)` for this served error; rounding is charged."""
        bound, slope_error = charged_minorant(found, None, kappa, tf.constant(taken_off))
        steepest = tf.reshape(tf.constant(self._norm.dual(found.gradient.numpy())), [-1])
        slope = (steepest + self._length * slope_error) * (1.0 + rounding.gamma(8))
        radius = dual.certified_radius(bound._replace(slope=slope)) * (1.0 - rounding.gamma(32))
        return tf.reshape(radius, tf.shape(kappa)).numpy()
