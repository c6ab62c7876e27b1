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
from keras_curv.errors import InputError, require_fraction, require_one_of
from keras_curv.network.network import Network

_FROM_CHEAP_TO_DEAR = (
    LipschitzCertificate,
    CurvatureCertificate,
    QuadraticCertificate,
    LinearBoundCertificate,
    LocalCurvatureCertificate,
)
_SEARCH_FIRST = (CurvatureCertificate, LipschitzCertificate, *_FROM_CHEAP_TO_DEAR[2:])
_FARTHER = 1.1  # of a radius: up to where rivals are searched again before a dear method


class BestOf(Method):
    """The largest radius of several methods for each pair; then the smallest over the rivals.

    Methods go in the order given, which should be from cheap to dear: each is told what is
    proved already, and none is asked about an example whose exact distance is known.

    With a tolerance, none is asked either where it could not make the radius larger by more than
    that fraction. Two tests know this for sure: an adversarial point so near, at the end of an
    earlier method's search or just beyond, is the end of the example; and `Method.ceiling`.

    Args:
        methods: of one network.
        tolerance: relative gain that is not worth asking for; 0 asks for every last digit.
    """

    name = "auto"

    def __init__(self, methods: Sequence[Method], *, tolerance: float = 0.01):
        require_fraction(tolerance, "tolerance")
        self.methods = tuple(methods)
        self.network = methods[0].network
        self.tolerance = tolerance
        curved = (one for one in self.methods if isinstance(one, CurvatureCertificate))
        self._search = next(curved, None)

    def radii(self, x, label, rivals, known) -> PairCertificates:
        """See `Method`."""
        radius, method = known.copy(), np.full(known.shape, "", "U16")
        distance = np.full(known.shape, np.inf)
        gradients = np.zeros(len(x), np.int64)
        enough = 1.0 + max(self.tolerance, PRIMAL_EQUALS_DUAL)
        sighting = None
        for one in self.methods:
            least = radius.min(axis=1)
            solved = distance.min(axis=1) <= least * enough
            rows = np.flatnonzero(~solved & np.isfinite(least))
            ceiling = np.full(len(x), np.inf)
            if sighting is not None:
                args = (part[rows] for part in (x, label, rivals, least))
                ceiling[rows] = self._ceiling(one, *args, sighting.take(rows))
                rows = rows[ceiling[rows] > least[rows] * (1.0 + self.tolerance)]
            if not len(rows):
                continue

            def ask(one, ask_below, rows=rows):
                args = [part[rows] for part in (x, label, rivals, radius)]
                found = one.radii(*args) if ask_below is None else one.radii_below(*args, ask_below)
                gradients[rows] += found.gradient_evaluations
                method[rows] = np.where(found.radius > radius[rows], one.name, method[rows])
                radius[rows] = np.maximum(found.radius, radius[rows])
                if found.adversarial_distance is not None:
                    distance[rows] = np.minimum(found.adversarial_distance, distance[rows])
                return found

            below = None
            if sighting is not None:
                below = np.minimum(ceiling, distance.min(axis=1))[rows]
                if one.dear_rivals and self._search is not None:
                    ask(self._search, np.minimum(below, _FARTHER * least[rows]))
            found = ask(one, below)
            if found.sighting is not None and self.tolerance and sighting is None:
                sighting = found.sighting.spread(rows, len(x))
                beyond = self._just_beyond(x, label, rivals, radius, sighting)
                distance = np.minimum(distance, beyond[:, None])
        return PairCertificates(radius, gradients, distance, method)

    def _ceiling(self, one, x, label, rivals, least, sighting) -> np.ndarray:
        """Upper bound on what the method proves, where it is more than is worth asking for."""
        rival = np.take_along_axis(rivals, sighting.column[:, None], axis=1)[:, 0]
        worth = least * (1.0 + self.tolerance)
        highest = one.ceiling(x, label, rival, worth, sighting)
        return np.where(least > 0.0, np.fmax(highest, worth), np.inf)

    def _just_beyond(self, x, label, rivals, radius, sighting) -> np.ndarray:
        """The distance of the point in the sighting's direction, beyond the radius by the
        tolerance, where that point is adversarial, else inf, `(n,)`."""
        rival = np.take_along_axis(rivals, sighting.column[:, None], axis=1)[:, 0]
        toward = sighting.point - x
        length = np.linalg.norm(toward, axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            reach = radius.min(axis=1, keepdims=True) * (1.0 + 0.99 * self.tolerance)
            point = x + toward / length * reach
            logits = self.logits(point)
            rows = np.arange(len(x))
            crossed = logits[rows, label] <= logits[rows, rival]
            distance = np.linalg.norm(point - x, axis=1)
        return np.where(crossed & np.isfinite(distance), distance, np.inf)


# Published bounds to compare with; "auto" leaves them out.
_BASELINES = (IntervalCertificate, PolytopeCertificate)
_CLASSES = {kind.name: kind for kind in (*_FROM_CHEAP_TO_DEAR, *_BASELINES)}
METHODS = (BestOf.name, *_CLASSES)


def choose_method(
    name: str,
    network: Network,
    served_error: ServedError = no_error,
    *,
    tolerance: float = 0.01,
) -> Method:
    """The method of that name, for a network.

    Args:
        name: one of `METHODS`; "auto" is the best of those that have a theory for the network.
        network: what to certify.
        served_error: what serving may take off a margin.
        tolerance: of "auto": see `BestOf`. Other methods go to their own last digit.

    Raises:
        InputError: the name is unknown, the tolerance is not from 0 to 1, or there is no theory for the network.
    """
    require_one_of(name, METHODS, "method")
    if name != BestOf.name:
        return _CLASSES[name](network, served_error)
    methods, reasons = [], []
    # A search leaves a sighting, by which a Lipschitz bound that gains nothing can be left out.
    order = _FROM_CHEAP_TO_DEAR if tolerance == 0.0 else _SEARCH_FIRST
    for kind in order:
        try:
            methods.append(kind(network, served_error))
        except InputError as error:
            reasons.append(f"{kind.name}: {error}")
    if not methods:
        raise InputError("no method can certify this network; " + "; ".join(reasons))
    return BestOf(methods, tolerance=tolerance)
