"""The methods of certification by name, and the best of all that apply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.certificates.coap import PolytopeCertificate
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.crown import LinearBoundCertificate
from keras_curv.certificates.interval import IntervalCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import Method, PairCertificates, ServedError, no_error
from keras_curv.certificates.quadratic import QuadraticCertificate
from keras_curv.errors import InputError, require_one_of
from keras_curv.network.network import Network

_FROM_CHEAP_TO_DEAR = (
    LipschitzCertificate,
    CurvatureCertificate,
    QuadraticCertificate,
    LinearBoundCertificate,
    LocalCurvatureCertificate,
)


class BestOf(Method):
    """The largest radius of several methods for each pair; then the smallest over the rivals.

    Methods go in the order given, which should be from cheap to dear: each is told what is
    proved already, and none is asked about an example whose exact distance is known.
    """

    name = "auto"

    def __init__(self, methods: Sequence[Method]):
        self.methods = tuple(methods)
        self.network = methods[0].network

    def radii(self, x, label, rivals, known) -> PairCertificates:
        """See `Method`."""
        radius, method = known.copy(), np.full(known.shape, "", "U16")
        distance = np.full(known.shape, np.inf)
        gradients = np.zeros(len(x), np.int64)
        for one in self.methods:
            least = radius.min(axis=1)
            solved = distance.min(axis=1) <= least * (1.0 + PRIMAL_EQUALS_DUAL)
            rows = np.flatnonzero(~solved & np.isfinite(least))
            if not len(rows):
                break
            found = one.radii(x[rows], label[rows], rivals[rows], radius[rows])
            gradients[rows] += found.gradient_evaluations
            method[rows] = np.where(found.radius > radius[rows], one.name, method[rows])
            radius[rows] = np.maximum(found.radius, radius[rows])
            if found.adversarial_distance is not None:
                distance[rows] = np.minimum(found.adversarial_distance, distance[rows])
        return PairCertificates(radius, gradients, distance, method)


# Published bounds to compare with; "auto" leaves them out.
_BASELINES = (IntervalCertificate, PolytopeCertificate)
_CLASSES = {kind.name: kind for kind in (*_FROM_CHEAP_TO_DEAR, *_BASELINES)}
METHODS = (BestOf.name, *_CLASSES)


def choose_method(name: str, network: Network, served_error: ServedError = no_error) -> Method:
    """The method of that name, for a network.

    Args:
        name: one of `METHODS`; "auto" is the best of those that have a theory for the network.
        network: what to certify.
        served_error: what serving may take off a margin.

    Raises:
        InputError: the name is unknown, or there is no theory for the network.
    """
    require_one_of(name, METHODS, "method")
    if name != BestOf.name:
        return _CLASSES[name](network, served_error)
    methods, reasons = [], []
    for kind in _FROM_CHEAP_TO_DEAR:
        try:
            methods.append(kind(network, served_error))
        except InputError as error:
            reasons.append(f"{kind.name}: {error}")
    if not methods:
        raise InputError("no method can certify this network; " + "; ".join(reasons))
    return BestOf(methods)
