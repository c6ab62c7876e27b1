"""The methods of certification by name, and the best of all that apply."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv.attacks.closest import crossings, widening_balls
from keras_curv.attacks.crt import curvature_attack
from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.crc_local import LocalCurvatureCertificate
from keras_curv.certificates.crc.two_stage import TwoStageCertificate
from keras_curv.certificates.linear.coap import PolytopeCertificate
from keras_curv.certificates.linear.coupled import CoupledCertificate, couples, passed_back
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.certificates.linear.quadratic import QuadraticCertificate
from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.question import Proof, Question, SearchGoal, WeakestPoint
from keras_curv.curvature.bounds import curvature_work
from keras_curv.errors import InputError, require_fraction, require_one_of
from keras_curv.network.clip import split_clip
from keras_curv.network.network import FeedForward, Network
from keras_curv.network.shared_graph import CLASS, EACH, ROWS, compiled
from keras_curv.numerics.batches import in_batches
from keras_curv.numerics.rounding import norm_bound

# What "auto" leaves out, as it would not answer for minutes.
_BEFORE_IT_BEGINS = 2**41  # multiplications of curvature bounds
_SQUARE_OF_DEPTH = (CoupledCertificate, LinearBoundCertificate, LocalCurvatureCertificate)
_DEEP = 40  # layers
_COUPLED = 2**28  # numbers of units and what they see: coupled bounds take seconds an example
ATTACK_STEPS = 2, 6  # the first finds nine in ten of what the second finds
_BEYOND = 1.003  # of the largest radius to decide: some points of the grid that searches go by
_FARTHER = 1.1  # of a radius: up to where rivals are searched again before a dear method
# A Lipschitz bound, which costs an eighth of a gradient, has to decide so many of the first ones.
_FEW, _ENOUGH = 32, 1 / 8


class BestOf(Method):
    """The largest radius of several methods for each pair.

    Methods are asked by their turn, from cheap to dear: each is told what is proved already, and
    none is asked about an example whose exact distance is known. The first one that searches leaves
    the weakest point that it met, by which others can be left out: a Lipschitz bound, though
    cheap, is asked after it.

    With a tolerance, none is asked either where it could not make the radius larger by more than
    that fraction. Two tests know this for sure: an adversarial point so near, at the end of an
    earlier method's search or just beyond, is the end of the example; and `Method.ceiling`.

    Where there are radii to decide, an example is done once each is proved or an adversarial point
    within it is known; a method is asked for the next of them.

    Args:
        methods: of one network.
    """

    name = "auto"

    def __init__(self, methods: Sequence[Method]):
        self.methods = sorted(methods, key=lambda one: one.turn)
        self.network, self.cost = methods[0].network, max(one.cost for one in methods)
        curved = (one for one in self.methods if isinstance(one, CurvatureCertificate))
        self._search = next(curved, None)
        bounds = (one for one in self.methods if isinstance(one, LipschitzCertificate))
        self._cheapest = next(bounds, None)
        self._entries = 8 * max(self.network.sizes)  # about what a test of an example takes

    def prove(self, question: Question) -> Proof:
        """See `Method`."""
        so_far, goal = _SoFar(question), question.goal
        ends_early = bool(goal.tolerance or goal.decide)
        asked = self._ask_if_it_decides(so_far)
        for one in self.methods:
            if one.dear and so_far.weakest is None and ends_early:
                self._look_around(so_far)
            rows, part = self._worth_asking(one, so_far)
            if not len(rows) or one is asked:
                continue
            if so_far.weakest is None:
                alone = not goal.decide or (one is self._search and not goal.every_rival)
                if alone:
                    part = part._replace(goal=part.goal.opened())
                elif one is self._search:
                    part = self._up_to(part)
                found = so_far.ask(one, rows, part)
                so_far.searched[rows] = one is self._search and not alone
                if found.weakest is not None and ends_early:
                    so_far.weakest = found.weakest.spread(rows, len(question.x))
                    self._look_beyond(so_far, so_far.weakest)
                continue
            if one.dear_rivals or goal.decide:
                self._search_every_rival(so_far, rows, part)
                part = part._replace(known=so_far.radius[rows])
            if goal.decide:  # more is no answer
                part = part._replace(goal=part.goal.up_to(_BEYOND * max(goal.decide)))
            so_far.ask(one, rows, part)
        return so_far.proof()

    def _worth_asking(self, one: Method, so_far: _SoFar) -> tuple[np.ndarray, Question]:
        """Returns which examples to ask a method about, and the question."""
        least, nearest = so_far.radius.min(axis=1), so_far.distance.min(axis=1)
        goal = so_far.question.goal
        aim = self._aim(goal, least)
        solved = nearest <= least * (1.0 + max(goal.tolerance, PRIMAL_EQUALS_DUAL))
        solved = nearest <= aim if goal.decide else solved
        rows = np.flatnonzero(~solved & np.isfinite(least))
        part = so_far.asked(rows, nearest, aim)
        if so_far.weakest is None or not len(rows):
            return rows, part
        ceiling = self._ceiling(one, part, so_far.weakest.take(rows))
        ceiling = np.where(least[rows] > 0.0, ceiling, np.inf)
        asked = ~(ceiling <= part.goal.aim)
        goal = part.goal._replace(ceiling=np.fmin(ceiling, nearest[rows]))
        return rows[asked], part._replace(goal=goal).take(asked)

    def _ceiling(self, one: Method, question: Question, weakest: WeakestPoint) -> np.ndarray:
        """Asks for `Method.ceiling`, some examples at a time."""

        def ceiling(part: slice) -> np.ndarray:
            return one.ceiling(question.take(part), WeakestPoint(*(a[part] for a in weakest)))

        found = in_batches(ceiling, len(question.x), self._entries)
        return np.concatenate([part for _, part in found])

    def _ask_if_it_decides(self, so_far: _SoFar) -> Method | None:
        """Asks the cheapest method before all others, if it decides enough of the first examples.

        Returns:
            The method, if it need not be asked again.
        """
        one, goal = self._cheapest, so_far.question.goal
        if one is None or not goal.decide:
            return None
        rows, part = self._worth_asking(one, so_far)
        if not len(rows):
            return one
        first, others = rows[:_FEW], rows[_FEW:]
        so_far.ask(one, first, part.take(slice(_FEW)))
        if len(others):
            decided = np.isfinite(self._aim(goal, so_far.radius[first].min(axis=1)))
            if decided.mean() > 1.0 - _ENOUGH:
                return None
            so_far.ask(one, others, part.take(slice(_FEW, None)))
        return one

    def _search_every_rival(self, so_far: _SoFar, rows: np.ndarray, question: Question) -> None:
        """Searches rivals that a first search left alone, as they did not matter to it: a method
        that is asked now has to know which ones it is needed for. Once for each example."""
        new = ~so_far.searched[rows]
        if self._search is None or not new.any():
            return
        so_far.ask(self._search, rows[new], self._up_to(question).take(new))
        so_far.searched[rows[new]] = True

    def _up_to(self, question: Question) -> Question:
        """Returns the question about every rival, up to what is worth knowing of them."""
        goal = question.goal
        enough = goal.aim if goal.decide else _FARTHER * question.known.min(axis=1)
        return question._replace(goal=goal.up_to(enough)._replace(every_rival=True))

    def _aim(self, goal: SearchGoal, least: np.ndarray) -> np.ndarray:
        """Returns the radius that is worth asking for, where these are proved; infinite if none
        is."""
        if not goal.decide:
            return least * (1.0 + goal.tolerance)
        asked = np.array(goal.decide)
        return np.where(asked >= least[:, None], asked, np.inf).min(axis=1)

    def _look_beyond(self, so_far: _SoFar, weakest: WeakestPoint) -> None:
        """Notes adversarial points just within the radius worth asking for: in the direction of
        the weakest point; or if that is to be decided, where attacks lead, a short one first."""
        goal = so_far.question.goal
        reach = self._aim(goal, so_far.radius.min(axis=1)) * (1.0 - 1e-4)
        rows = np.flatnonzero(np.isfinite(reach) & (so_far.distance.min(axis=1) > reach))

        def look(part: slice) -> None:
            some = rows[part]
            x = so_far.question.x[some]
            toward = weakest.point[some] - x
            point = x + toward * (reach[some] / np.linalg.norm(toward, axis=1))[:, None]
            self.note(so_far, some, weakest.column[some], point)

        with np.errstate(all="ignore"):
            if not goal.decide:
                list(in_batches(look, len(rows), self._entries))
                return
            for steps in ATTACK_STEPS:
                rows = rows[so_far.distance[rows].min(axis=1) > reach[rows]]
                if len(rows):
                    self._attack(so_far, rows, weakest.column[rows], reach[rows], steps)

    def _look_around(self, so_far: _SoFar) -> None:
        """Notes adversarial points where no method searches for them, as of relu: of attacks on
        balls that grow, toward the rival that is nearest by the slope, the first across."""
        some = so_far.question
        found = self.network.evaluate(*(tf.constant(part) for part in some[:3]))
        with np.errstate(all="ignore"):
            steepness = np.linalg.norm(found.gradient.numpy(), axis=-1)
            distance = np.nan_to_num(found.margin.numpy() / steepness, nan=np.inf)
            column = distance.argmin(axis=1)
            for few, reach in widening_balls(distance.min(axis=1), so_far.distance, self._entries):
                met = self._attack(so_far, few, column[few], reach, ATTACK_STEPS[-1])
                label = tf.constant(some.label[few], tf.int32)
                first, _ = self._crossing(tf.constant(some.x[few]), label, met)
                self.note(so_far, few, column[few], first.numpy())

    @functools.cached_property
    def _crossing(self) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
        return crossings(self.network)

    def _attack(
        self, so_far: _SoFar, rows: np.ndarray, column: np.ndarray, reach: np.ndarray, steps: int
    ) -> tf.Tensor:
        """Notes adversarial points that an attack of so many steps finds in these balls, and
        returns where it ended."""
        some = so_far.question.take(rows)
        classes = (tf.constant(a, tf.int32) for a in (some.label, some.weakest(column)))
        found = self._attacks[steps](some.x, *classes, reach)
        so_far.gradients[rows] += steps
        self.note(so_far, rows, column, found.numpy())
        return found

    @functools.cached_property
    def _attacks(self) -> dict[int, Callable[..., tf.Tensor]]:
        signature = ROWS, CLASS, CLASS, EACH
        args = _BallAttack, self.network
        return {steps: compiled(*args, steps, signature=signature) for steps in ATTACK_STEPS}

    def note(self, so_far: _SoFar, rows: np.ndarray, column: np.ndarray, point: np.ndarray) -> None:
        """Notes the distances of those points that are adversarial toward these rivals."""
        some = so_far.question.take(rows)
        logits, each = self.logits(point), np.arange(len(rows))
        distance = norm_bound(point - some.x, axis=1)
        crossed = logits[each, some.label] <= logits[each, some.weakest(column)]
        if self.network.limits is not None:
            low, high = self.network.limits
            crossed &= ((point >= low) & (point <= high)).all(axis=1)
        near = np.flatnonzero(crossed & np.isfinite(distance))
        cells = rows[near], column[near]
        so_far.distance[cells] = np.minimum(so_far.distance[cells], distance[near])


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
    """The best proofs of several methods, asked one after the other; see `Proof`."""

    def __init__(self, question: Question):
        shape = question.rivals.shape
        self.question = question
        self.radius, self.method = question.known.copy(), np.full(shape, "", "U16")
        self.distance = np.full(shape, np.inf)
        self.gradients = np.zeros(len(question.x), np.int64)
        self.searched = np.zeros(len(question.x), bool)  # whether for every rival
        self.weakest: WeakestPoint | None = None
        self.point: np.ndarray | None = None
        self.slopes: dict[tuple[int, int], np.ndarray] = {}

    def asked(self, rows: np.ndarray, ceiling: np.ndarray, aim: np.ndarray) -> Question:
        """Returns the question about these rows, with what is known by now."""
        goal = self.question.goal._replace(ceiling=ceiling, aim=aim, every_rival=False)
        return self.question._replace(known=self.radius, goal=goal).take(rows)

    def ask(self, one: Method, rows: np.ndarray, question: Question) -> Proof:
        """Asks a method about these rows."""
        found = one.prove(question)
        self.gradients[rows] += found.gradients
        larger = found.radius > self.radius[rows]
        self.method[rows] = np.where(larger, found.method, self.method[rows])
        if found.point is not None:
            if self.point is None:
                self.point = np.full((*self.radius.shape, found.point.shape[2]), np.nan)
            kept = larger[:, :, None] & ~np.isnan(found.point)
            self.point[rows] = np.where(kept, found.point, self.point[rows])
        self.slopes |= {(int(rows[i]), j): some for (i, j), some in found.slopes.items()}
        self.radius[rows] = np.maximum(found.radius, self.radius[rows])
        self.distance[rows] = np.minimum(found.distance, self.distance[rows])
        return found

    def proof(self) -> Proof:
        """Returns what was proved."""
        known = self.radius, self.gradients, self.method, self.distance
        return Proof(*known, None, self.point, self.slopes)


# Published bounds to compare with; "auto" leaves them out.
_BASELINES = (IntervalCertificate, PolytopeCertificate)
_SOUGHT = (
    LipschitzCertificate,
    CurvatureCertificate,
    TwoStageCertificate,
    CoupledCertificate,
    QuadraticCertificate,
    LinearBoundCertificate,
    LocalCurvatureCertificate,
)
_CLASSES: dict[str, Callable[[Network, ServedError], Method]] = {
    kind.name: kind for kind in (*_SOUGHT, *_BASELINES)
}
METHODS = (BestOf.name, *_CLASSES)


def choose_method(
    name: str, network: Network, served_error: ServedError = no_error, *, tolerance: float = 0.01
) -> Method:
    """Returns the method of that name, for a network.

    Args:
        name: one of `METHODS`; "auto" is the best of those that have a theory for the network, and
            an answer for a few examples within minutes.
        network: what to certify.
        served_error: bounds on the error of served margins.
        tolerance: with which questions will be asked; 0 has "auto" ask even those that seldom gain.

    Raises:
        InputError: the name is unknown, the tolerance is not from 0 to 1, or there is no
            theory for the network.
    """
    require_one_of(name, METHODS, "method")
    tolerance = require_fraction(tolerance, "tolerance")
    if name != BestOf.name:
        return _CLASSES[name](network, served_error)
    methods: list[Method] = []
    reasons = []
    for kind in _SOUGHT:
        if _in_vain(kind, methods, tolerance):
            continue
        try:
            _require_soon(kind, network)
            methods.append(kind(network, served_error))
        except InputError as error:
            reasons.append(f"{kind.name}: {error}")
    if not methods:
        raise InputError("no method can certify this network; " + "; ".join(reasons))
    return BestOf(methods)


def _require_soon(kind: type[Method], network: Network) -> None:
    """InputError where "auto" leaves a method out, as it would not answer for minutes."""
    if kind is CurvatureCertificate and curvature_work(network) > _BEFORE_IT_BEGINS:
        raise InputError(
            f"bounds of {network.depth} layers and {network.classes} classes take more than "
            f"{_BEFORE_IT_BEGINS} multiplications before it begins; ask for it by name"
        )
    split = split_clip(network)
    if kind is CoupledCertificate and split is not None and not couples(split[1]):
        raise InputError("the clip of the input has the only kinks, to which few units are near")
    if kind is CoupledCertificate and passed_back(network) > _COUPLED:
        raise InputError(
            f"coupled bounds of {network.depth} layers of up to {max(network.sizes)} units take "
            "tens of seconds an example; ask for them by name"
        )
    if kind in _SQUARE_OF_DEPTH and network.depth > _DEEP:
        raise InputError(
            f"the work for an example grows with the square of {network.depth} layers, of which "
            f"{_DEEP} are soon done; ask for it by name"
        )


def _in_vain(kind: type[Method], before: Sequence[Method], tolerance: float) -> bool:
    """Whether "auto" leaves a method out, as one of those before it proves more.

    Where relu units are coupled, lines and parabolas of single units prove less. Behind a clip,
    curvature knows more than that the clip keeps lengths. Behind a trunk that keeps them, linear
    bounds seldom prove as much, and of large convolutions they take seconds an example; with a
    tolerance of 0 they are asked even so.
    """
    known = {one.name for one in before}
    if kind is TwoStageCertificate:
        return CurvatureCertificate.name in known
    if kind in (LinearBoundCertificate, QuadraticCertificate) and CoupledCertificate.name in known:
        return True
    linear = kind in (CoupledCertificate, LinearBoundCertificate)
    if not linear or TwoStageCertificate.name not in known:
        return False
    return bool(tolerance) and any(affine.is_sparse for affine in before[0].network.affines)
