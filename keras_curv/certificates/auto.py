"""The methods of certification by name, and the best of all that apply."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv.attacks.crt import curvature_attack
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_clipped import ClippedCurvatureCertificate
from keras_curv.certificates.crc.crc_confined import ConfinedCurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.crc.two_stage import TwoStageCertificate
from keras_curv.certificates.linear.coap import PolytopeCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.linear.quadratic import QuadraticCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import (
    Method,
    PairCertificates,
    Prospect,
    ServedError,
    Sighting,
    no_error,
)
from keras_curv.curvature.bounds import curvature_work
from keras_curv.errors import InputError, require_fraction, require_one_of
from keras_curv.network.clip import split_clip
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, compiled
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.bracket import gap_within
from keras_curv.numerics.rounding import norm_bound

_FROM_CHEAP_TO_DEAR = (
    LipschitzCertificate,
    CurvatureCertificate,
    TwoStageCertificate,
    QuadraticCertificate,
    LinearBoundCertificate,
    LocalCurvatureCertificate,
)
_SEARCH_FIRST = (CurvatureCertificate, LipschitzCertificate, *_FROM_CHEAP_TO_DEAR[2:])
# What "auto" leaves out, as it would not answer for minutes.
_BEFORE_IT_BEGINS = 2**41  # multiplications of curvature bounds
_SQUARE_OF_DEPTH = (LinearBoundCertificate, LocalCurvatureCertificate)
_DEEP = 64  # layers
_ATTACK_STEPS = 2, 6  # the first finds nine in ten of what the second finds
_BEYOND = 1.003  # of the largest radius to decide: some points of the grid that searches go by
_FARTHER = 1.1  # of a radius: up to where rivals are searched again before a dear method
# A Lipschitz bound costs an eighth of a gradient for each rival: what it must decide, of the first.
_FEW, _ENOUGH = 32, 1 / 8


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
        decide: radii at which alone the answer matters. An example is done once each is proved
            or an adversarial point within it is known; a method is asked for the next of them.
    """

    name = "auto"

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        tolerance: float = 0.01,
        decide: Sequence[float] = (),
    ):
        tolerance = require_fraction(tolerance, "tolerance")
        self.decide = tuple(decide)
        self.methods = tuple(methods)
        self.network, self.cost = methods[0].network, max(one.cost for one in methods)
        self.tolerance = tolerance
        curved = (one for one in self.methods if isinstance(one, CurvatureCertificate))
        self._search = next(curved, None)
        bounds = (one for one in self.methods if isinstance(one, LipschitzCertificate))
        self._cheapest = next(bounds, None)
        self._entries = 8 * max(self.network.sizes)  # about what a test of an example takes

    def radii(
        self,
        x: np.ndarray,
        label: np.ndarray,
        rivals: np.ndarray,
        known: np.ndarray,
        prospect: Prospect | None = None,
    ) -> PairCertificates:
        """See `Method`; where a prospect is given, decisions about every rival matter."""
        so_far, every = _SoFar(x, label, rivals, known), prospect is not None
        asked = self._ask_if_it_decides(so_far)
        for one in self.methods:
            rows, prospect = self._worth_asking(one, so_far)
            if not len(rows) or one is asked:
                continue
            if so_far.sighting is None:
                alone = not self.decide or (one is self._search and not every)
                up_to = None if alone else self._up_to(prospect, so_far, rows)
                found = so_far.ask(one, rows, up_to)
                so_far.searched[rows] = one is self._search and not alone
                if found.sighting is not None and (self.tolerance or self.decide):
                    so_far.sighting = found.sighting.spread(rows, len(x))
                    self._look_beyond(so_far, so_far.sighting)
                continue
            if one.dear_rivals or self.decide:
                self._search_every_rival(so_far, rows, prospect)
            if self.decide:  # more is no answer
                prospect = prospect.up_to(_BEYOND * max(self.decide))
            so_far.ask(one, rows, prospect)
        return PairCertificates(so_far.radius, so_far.gradients, so_far.distance, so_far.method)

    def _worth_asking(self, one: Method, so_far: _SoFar) -> tuple[np.ndarray, Prospect]:
        """Which examples to ask a method about, and with what prospect."""
        least, nearest = so_far.radius.min(axis=1), so_far.distance.min(axis=1)
        solved = nearest <= least * (1.0 + max(self.tolerance, PRIMAL_EQUALS_DUAL))
        aim = self._aim(least)
        solved = nearest <= aim if self.decide else solved
        rows = np.flatnonzero(~solved & np.isfinite(least))
        if so_far.sighting is None or not len(rows):
            return rows, Prospect(nearest[rows], aim[rows])
        worth = aim[rows]
        ceiling = self._ceiling(one, so_far, so_far.sighting, rows, worth)
        ceiling = np.where(least[rows] > 0.0, ceiling, np.inf)
        asked = ~(ceiling <= worth)
        return rows[asked], Prospect(np.fmin(ceiling, nearest[rows]), worth).take(asked)

    def _ceiling(
        self, one: Method, so_far: _SoFar, sighting: Sighting, rows: np.ndarray, radius: np.ndarray
    ) -> np.ndarray:
        """`Method.ceiling` of these rows, at these radii."""
        rival = so_far.rival(sighting)

        def ceiling(part: slice) -> np.ndarray:
            some = rows[part]
            args = so_far.x[some], so_far.label[some], rival[some], radius[part]
            return one.ceiling(*args, sighting.take(some))

        found = in_batches(ceiling, len(rows), self._entries)
        return np.concatenate([part for _, part in found])

    def _ask_if_it_decides(self, so_far: _SoFar) -> Method | None:
        """Asks the cheapest method before all others, if it decides enough of the first examples;
        returns it if it need not be asked again."""
        one = self._cheapest
        if one is None or not self.decide:
            return None
        rows, prospect = self._worth_asking(one, so_far)
        if not len(rows):
            return one
        first, others = rows[:_FEW], rows[_FEW:]
        so_far.ask(one, first, prospect.take(slice(_FEW)))
        if len(others):
            if np.isfinite(self._aim(so_far.radius[first].min(axis=1))).mean() > 1.0 - _ENOUGH:
                return None
            so_far.ask(one, others, prospect.take(slice(_FEW, None)))
        return one

    def _search_every_rival(self, so_far: _SoFar, rows: np.ndarray, prospect: Prospect) -> None:
        """Searches rivals that a first search left alone, as they did not matter to it: a method
        that is asked now has to know which ones it is needed for. Once for each example."""
        new = ~so_far.searched[rows]
        if self._search is None or not new.any():
            return
        prospect = self._up_to(prospect, so_far, rows)
        so_far.ask(self._search, rows[new], prospect.take(new))
        so_far.searched[rows[new]] = True

    def _up_to(self, prospect: Prospect, so_far: _SoFar, rows: np.ndarray) -> Prospect:
        """The prospect with no ceiling above what is worth knowing of every rival."""
        enough = prospect.aim if self.decide else _FARTHER * so_far.radius[rows].min(axis=1)
        return prospect.up_to(enough)

    def _aim(self, least: np.ndarray) -> np.ndarray:
        """The radius that is worth asking for, where these are proved; infinite if none is."""
        if not self.decide:
            return least * (1.0 + self.tolerance)
        asked = np.array(self.decide)
        return np.where(asked >= least[:, None], asked, np.inf).min(axis=1)

    def _look_beyond(self, so_far: _SoFar, sighting: Sighting) -> None:
        """Notes adversarial points just within the radius worth asking for: in the sighting's
        direction; or if that is to be decided, where attacks lead, a short one first."""
        reach = self._aim(so_far.radius.min(axis=1)) * (1.0 - 1e-4)
        rows = np.flatnonzero(np.isfinite(reach) & (so_far.distance.min(axis=1) > reach))

        def look(part: slice) -> None:
            some = rows[part]
            x, toward = so_far.x[some], sighting.point[some] - so_far.x[some]
            point = x + toward * (reach[some] / np.linalg.norm(toward, axis=1))[:, None]
            self._note(so_far, some, sighting.column[some], point)

        with np.errstate(all="ignore"):
            if not self.decide:
                list(in_batches(look, len(rows), self._entries))
                return
            for steps in _ATTACK_STEPS:
                rows = rows[so_far.distance[rows].min(axis=1) > reach[rows]]
                if len(rows):
                    self._attack(so_far, rows, sighting.column[rows], reach[rows], steps)

    def _attack(
        self, so_far: _SoFar, rows: np.ndarray, column: np.ndarray, reach: np.ndarray, steps: int
    ) -> None:
        """Notes adversarial points that an attack of so many steps finds in these balls."""
        pairs = so_far.label[rows], so_far.rivals[rows, column]
        label, rival = (tf.constant(part, tf.int32) for part in pairs)
        found = self._attacks[steps](so_far.x[rows], label, rival, reach)
        so_far.gradients[rows] += steps
        self._note(so_far, rows, column, found.numpy())

    @functools.cached_property
    def _attacks(self) -> dict[int, Callable[..., tf.Tensor]]:
        signature = ROWS, CLASS, CLASS, EACH
        args = _BallAttack, self.network
        return {steps: compiled(*args, steps, signature=signature) for steps in _ATTACK_STEPS}

    def _note(
        self, so_far: _SoFar, rows: np.ndarray, column: np.ndarray, point: np.ndarray
    ) -> None:
        """Notes the distances of those points that are adversarial toward these rivals."""
        logits, each = self.logits(point), np.arange(len(rows))
        rival = so_far.rivals[rows, column]
        distance = norm_bound(point - so_far.x[rows], axis=1)
        crossed = logits[each, so_far.label[rows]] <= logits[each, rival]
        if self.network.limits is not None:
            low, high = self.network.limits
            crossed &= ((point >= low) & (point <= high)).all(axis=1)
        some = np.flatnonzero(crossed & np.isfinite(distance))
        cells = rows[some], column[some]
        so_far.distance[cells] = np.minimum(so_far.distance[cells], distance[some])


class _BallAttack:
    """The point of each ball that an attack of a few steps finds, toward one rival each.

    In float32, as nothing is proved by it; what is not moved keeps every digit.
    """

    def __init__(self, network: FeedForward, steps: int):
        self._network, self._steps = network, steps
        network.ready(tf.float32)

    def __call__(
        self, x: tf.Tensor, label: tf.Tensor, rival: tf.Tensor, radius: tf.Tensor
    ) -> tf.Tensor:
        start, none = tf.cast(x, tf.float32), tf.zeros_like(radius)
        args, radius = (self._network, start, label, rival), tf.cast(radius, tf.float32)
        found = curvature_attack(*args, radius=radius, curvature=none, steps=self._steps)
        return x + tf.cast(found.point - start, tf.float64)


class _SoFar:
    """What several methods have come to, one after the other; see `PairCertificates`."""

    def __init__(self, x: np.ndarray, label: np.ndarray, rivals: np.ndarray, known: np.ndarray):
        self.x, self.label, self.rivals = x, label, rivals
        self.radius, self.method = known.copy(), np.full(known.shape, "", "U16")
        self.distance = np.full(known.shape, np.inf)
        self.gradients = np.zeros(len(x), np.int64)
        self.searched = np.zeros(len(x), bool)  # whether for every rival
        self.sighting: Sighting | None = None

    def rival(self, sighting: Sighting) -> np.ndarray:
        """The rival of a sighting, `(n,)`."""
        return np.take_along_axis(self.rivals, sighting.column[:, None], axis=1)[:, 0]

    def ask(self, one: Method, rows: np.ndarray, prospect: Prospect | None) -> PairCertificates:
        """Asks a method about these rows."""
        args = self.x[rows], self.label[rows], self.rivals[rows], self.radius[rows]
        found = one.radii(*args, prospect)
        self.gradients[rows] += found.gradient_evaluations
        larger = found.radius > self.radius[rows]
        self.method[rows] = np.where(larger, one.name, self.method[rows])
        self.radius[rows] = np.maximum(found.radius, self.radius[rows])
        if found.adversarial_distance is not None:
            self.distance[rows] = np.minimum(found.adversarial_distance, self.distance[rows])
        return found


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
    decide: Sequence[float] = (),
) -> Method:
    """The method of that name, for a network.

    Args:
        name: one of `METHODS`; "auto" is the best of those that have a theory for the network, and
            an answer for a few examples within minutes.
        network: what to certify.
        served_error: what serving may take off a margin.
        tolerance: of "auto", see `BestOf`; and what a search for a ball may leave of the radius,
            from 0.1 to 0.3 %.
        decide: radii at which alone the answer matters, for "auto", "crc" and "two_stage".

    Raises:
        InputError: the name is unknown, the tolerance is not from 0 to 1, or there is no
            theory for the network.
    """
    require_one_of(name, METHODS, "method")
    tolerance = require_fraction(tolerance, "tolerance")
    kinds: dict[str, Callable[[Network, ServedError], Method]] = dict(_CLASSES)
    curvature: type[CurvatureCertificate] = (
        CurvatureCertificate if split_clip(network) is None else ClippedCurvatureCertificate
    )
    if network.limits is not None:
        curvature = ConfinedCurvatureCertificate
    kinds[CurvatureCertificate.name] = functools.partial(curvature, decide=decide)
    kinds[TwoStageCertificate.name] = functools.partial(TwoStageCertificate, decide=decide)

    def made(name: str) -> Method:
        method = kinds[name](network, served_error)
        method.gap = gap_within(tolerance)
        return method

    if name != BestOf.name:
        return made(name)
    methods: list[Method] = []
    reasons = []
    # A search leaves a sighting, by which a Lipschitz bound that gains nothing can be left out.
    order = _SEARCH_FIRST if tolerance or decide else _FROM_CHEAP_TO_DEAR
    for kind in order:
        if _in_vain(kind, methods, tolerance):
            continue
        try:
            _require_soon(kind, network)
            methods.append(made(kind.name))
        except InputError as error:
            reasons.append(f"{kind.name}: {error}")
    if not methods:
        raise InputError("no method can certify this network; " + "; ".join(reasons))
    return BestOf(methods, tolerance=tolerance, decide=decide)


def _require_soon(kind: type[Method], network: Network) -> None:
    """InputError where "auto" leaves a method out, as it would not answer for minutes."""
    if kind is CurvatureCertificate and curvature_work(network) > _BEFORE_IT_BEGINS:
        raise InputError(
            f"bounds of {network.depth} layers and {network.classes} classes take more than "
            f"{_BEFORE_IT_BEGINS} multiplications before it begins; ask for it by name"
        )
    if kind in _SQUARE_OF_DEPTH and network.depth > _DEEP:
        raise InputError(
            f"the work for an example grows with the square of {network.depth} layers, of which "
            f"{_DEEP} are soon done; ask for it by name"
        )


def _in_vain(kind: type[Method], before: Sequence[Method], tolerance: float) -> bool:
    """Whether "auto" leaves a method out, as one of those before it proves more.

    Behind a clip, curvature knows more than that the clip keeps lengths. Behind a trunk that keeps
    them, linear bounds seldom prove as much, and of large convolutions they take seconds an
    example; with a tolerance of 0 they are asked even so.
    """
    known = {one.name for one in before}
    if kind is TwoStageCertificate:
        return CurvatureCertificate.name in known
    if kind is not LinearBoundCertificate or TwoStageCertificate.name not in known:
        return False
    return bool(tolerance) and any(affine.is_sparse for affine in before[0].network.affines)
