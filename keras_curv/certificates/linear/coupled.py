"""Linear bounds that know how units move together, and the certificate that they give.

CROWN's passes back (`crown.py`) let every unit of a layer be at its worst at once. Here the relu
units that are not linear on their intervals are bounded together, by the ball in which their vector
stays (`coupling.py`, `layer_balls.py`); all other units pass as they do there.

**Intervals from balls.** A unit of the next layer moves by no more than the norm of its weights
times the movement of the layer before, by what a pass of middle slopes back to the input says
(`layer_balls.py`), and by the box of the layer before. This settles the sign of most units. For the
others, both ends are bounded by passes back, with the layers before coupled, if these are not too
long.

**Margins** start from the same slopes and multipliers; where this proves nothing, they are improved
by ascent (`ascent.py`).

**Search and proof.** The search takes estimates of spectral norms. The radius that it finds is then
proved with bounds of them, from the slopes and multipliers that the search ended with; where that
fails, a slightly smaller one is. Where much of a margin is left, the search goes on once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.certificates.linear.ball_search import BallBoundCertificate, steepest_fall
from keras_curv.certificates.linear.bounds.ascent import Ascent, Witness, ascend
from keras_curv.certificates.linear.bounds.coupled_balls import CoupledBalls, LayerBounds
from keras_curv.certificates.linear.bounds.first_layer import FirstLayer
from keras_curv.certificates.linear.bounds.layer_balls import entries
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.bounds.relaxation import POINTS, relaxation
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.crown import require_rules
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.threats.norms import L2, Norm

_NEAR = 0.1  # of a margin at the centre: a bound below it is improved by ascent
_ALIKE = 0.04  # relative difference of such radii
_TRIES = 8  # radii that are to be proved, each smaller than the last by what that one lacked
_UNUSED = 0.02  # of a margin, left by a proof: then ascent has ended too early somewhere
_FARTHER = 1.02  # than what was proved, where the search goes on
_BEYOND = 0.5  # parts of the radius to a part of the margin: bounds fall as its second power, or so
_LEAST = 0.8  # of the last radius
_LOSS = 1e-3  # part of a radius that the first try takes off at least; the next ones twice as much


def passed_back(network: Network) -> int:
    """Returns how many numbers passes back of both ends of all hidden units would go through.

    Example:
        >>> passed_back(Network.from_weights([np.ones((2, 2))] * 3, [np.zeros(2)] * 3, "relu"))
        8
    """
    return sum(field.numbers for layer in Plan.together(network).fields for field in layer)


def couples(network: Network) -> bool:
    """Returns whether any unit may be bounded together with others.

    Example:
        >>> couples(Network.from_weights([np.ones((2, 2))] * 2, [np.zeros(2)] * 2, "tanh"))
        False
    """
    kinds = (each for sigma in network.activations for each, _ in sigma.groups)
    return any(each.left not in (None, 1.0) for each in kinds)


class CoupledCertificate(BallBoundCertificate):
    """A certificate: the largest ball on which coupled linear bounds of the margins are positive.

    Args:
        network: with relu, leaky_relu or relu6 at some units; others as for `crown`.
        served_error: bounds on the error of served margins.
        norm: the norm of the balls.

    Raises:
        InputError: names an activation without a rule, or says that none is one of these.

    Example:
        >>> network = Network.from_weights([np.eye(2), np.eye(2)], [np.zeros(2)] * 2, "relu")
        >>> certificate = CoupledCertificate(network)
        >>> radius = certificate.prove(Question.of([[3.0, 1.0]], [0], [[1]])).radius.item()
        >>> 1.36 < radius < 2**0.5                        # the boundary is at √2
        True
    """

    name, turn, dear = "coupled", 5, True

    def __init__(self, network: Network, served_error: ServedError = no_error, *, norm: Norm = L2):
        if not couples(network):
            raise InputError(
                "coupled bounds are for networks with relu, leaky_relu or relu6; of others crown, "
                "crc and crc_local prove more"
            )
        require_rules(network)
        work = sum(field.work for layer in Plan.together(network).fields for field in layer)
        super().__init__(
            network,
            served_error,
            norm=norm,
            steepest=steepest_fall(network),
            start=1.0 - 1.0 / max(2, network.depth - 1),  # deep bounds soon fall
            cost=2.0 * work / network.multiplications,
            height=POINTS,
        )
        self._turned, self._basis = _turned(network) if norm is L2 else (network, None)

    def centres_of(self, x: np.ndarray) -> _Searched:
        """See `BallBoundCertificate`."""
        return _Searched(self.network, x)

    def centred_bounds(
        self,
        centres: _Searched,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """See `BallBoundCertificate`."""
        balls = self._bounded(centres, radius)
        value, rows, constants, error, _ = balls.margins(label, rivals, asked)
        pairs = np.nonzero(asked & centres.chosen(rivals))
        if len(pairs[0]):  # what proved other balls may prove this one
            start = centres.witness(pairs[0], rivals[pairs])
            row, constant, off = (part[pairs][:, None] for part in (rows, constants, error))
            ascent = Ascent(balls.take(pairs[0]), row, constant, off, start)
            found = ascent.bound()
            value[pairs] = np.fmax(value[pairs], found)
            centres.remember_some(pairs[0], rivals[pairs], found > 0.0, ascent.now)
        # Near 0, too, so that the search sees one smooth function.
        centre, _ = centres.network.margins(*map(tf.constant, (centres.x, label, rivals)))
        waiting, some = asked & ~(value > _NEAR * centre.numpy()), np.flatnonzero(asked.any(axis=1))
        while len(some):
            # Until the least one has been improved, or one proves nothing: others do not count.
            least = np.where(asked, value, np.inf)[some].argmin(axis=1)
            left = waiting[some, least]
            some, least = some[left], least[left]
            if not len(some):
                break
            pairs, against = (some, least), rivals[some, least]
            start = centres.witness(some, against)
            unknown = ~start.chosen  # before the ascent, which goes on from it
            row, constant, off = (part[pairs][:, None] for part in (rows, constants, error))
            found, best = ascend(balls.take(some), row, constant, off, start)
            centres.remember_some(some, against, (found > 0.0) | unknown, best)
            value[pairs] = np.fmax(value[pairs], found)
            waiting[pairs] = False
            some = some[value[pairs] > 0.0]
        return value

    def _bounded(self, centres: _Searched, radius: np.ndarray) -> CoupledBalls:
        """Returns the balls of these radii with all hidden layers bounded, in a search about."""
        network = centres.network
        plan, anew = Plan.together(network), np.flatnonzero(~centres.near(radius))
        for few in batches(len(anew), entries(network.sizes[:-1]), 8 * NEAR):
            part, at = centres[anew[few]], radius[anew[few]]
            if len(at):
                balls = CoupledBalls(network, plan, part, at, relaxation, self._norm)
                balls.bound_layers()
                part.keep_bounds(at, balls.bounds)
        balls = CoupledBalls(network, plan, centres, radius, relaxation, self._norm)
        balls.set_layers(centres.bounds(radius))
        return balls

    def _witness(self, question: Question, centres: Any) -> dict[tuple[int, int], np.ndarray]:
        """See `BallBoundCertificate`."""
        columns = {
            (row, int(rival)): column
            for row, rivals in enumerate(question.rivals)
            for column, rival in enumerate(rivals)
        }
        return {(pair[0], columns[pair]): known.numbers for pair, known in centres.settled.items()}

    def _search(self, question: Question, centres: _Searched) -> tuple[np.ndarray, np.ndarray]:
        """Returns radii and gradients, found by estimates, then proved."""
        search = centres.to_search(self._turned, self._basis)
        found, gradients = self._largest(question, search)
        known, pairs = question.known.min(axis=1), (question.x, question.label, question.rivals)
        margin = self.network.margins(*map(tf.constant, pairs))[0].numpy().min(axis=1)
        proved, cost = known.copy(), np.zeros(len(found))
        again = np.full(len(found), not question.goal.decide)
        bound = self._bound(centres, question, cost)
        for attempt in range(2 if question.goal.decide else _TRIES):
            rows = np.flatnonzero(found > proved)
            if not len(rows):
                break
            value = bound(rows, found[rows])
            proved[rows] = np.where(value > 0.0, found[rows], proved[rows])
            centres.settle(rows[value > 0.0])
            lost = np.maximum(_BEYOND * -value / margin[rows], _LOSS * 2.0**attempt)
            found[rows] *= np.where(value > 0.0, 1.0, np.fmax(1.0 - lost, _LEAST))
            more = rows[(value > _UNUSED * margin[rows]) & again[rows]]
            again[more] = False
            if len(more):
                part = question.take(more)
                part = part._replace(known=np.maximum(part.known, proved[more, None]))
                found[more], further = self._largest(part, search[more], _FARTHER * proved[more])
                gradients[more] += further
        return proved, gradients + np.ceil(cost).astype(np.int64)


class _Searched(Centres):
    """Centres of balls, with the witness of each pair of an example and a rival.

    The bounds of layers are kept. For balls of nearly the same radii a search takes them again, and
    supposes that they grow with a power of the radius.

    Attributes:
        settled: (example, rival) → the witness with which the example's radius was proved.
    """

    def __init__(
        self,
        network: Network,
        x: np.ndarray,
        first: FirstLayer | None = None,
        *,
        proved: bool = True,
    ):
        super().__init__(network, x, first, proved=proved)
        self._radius, self._bounds = np.full(len(x), np.nan), list[LayerBounds]()
        self.settled: dict[tuple[int, int], Witness] = {}

    def to_search(self, network: Network, basis: np.ndarray | None) -> _Searched:
        """Returns the same centres for balls whose bounds are estimated; see `_turned`."""
        found = _Searched(network, self.x if basis is None else self.x @ basis, proved=False)
        found._pairs = self._pairs
        return found

    def keep_bounds(self, radius: np.ndarray, layers: list[LayerBounds]) -> None:
        """Keeps the bounds of hidden layers on the balls of these radii, `(n,)`."""
        every, rows = self._all or (self, self.rows)
        every._radius[rows] = radius
        if not every._bounds:
            sizes = (layer.low.shape[1] for layer in layers)
            every._bounds = [LayerBounds.nothing(len(every), size) for size in sizes]
        for mine, theirs in zip(every._bounds, layers, strict=True):
            mine.put(rows, theirs)

    def near(self, radius: np.ndarray) -> np.ndarray:
        """Returns whether bounds are kept that a search may scale to these radii, `(n,)`."""
        every, rows = self._all or (self, self.rows)
        alike = np.abs(np.log(radius / every._radius[rows])) <= _ALIKE
        return alike & (not self.proved)

    def bounds(self, radius: np.ndarray) -> list[LayerBounds]:
        """Returns the bounds that are kept, scaled to these radii."""
        every, rows = self._all or (self, self.rows)
        factor, kept = radius / every._radius[rows], (each.take(rows) for each in every._bounds)
        return [each.scaled(self.z[index], factor, index) for index, each in enumerate(kept)]

    def settle(self, rows: np.ndarray) -> None:
        """Keeps what is known of the pairs of these examples, whose radii it has proved."""
        some = set(rows.tolist())
        self.settled |= {pair: known for pair, known in self._pairs.items() if pair[0] in some}

    def remember_some(
        self, some: np.ndarray, rivals: np.ndarray, which: np.ndarray, witness: Witness
    ) -> None:
        """Remembers the witness of those of some pairs that are wanted, `which`."""
        kept = np.flatnonzero(which)
        each = (witness.take(slice(index, index + 1)) for index in kept)
        self.remember(some[kept], rivals[kept], each)

    def chosen(self, rivals: np.ndarray) -> np.ndarray:
        """Returns whether anything is known of pairs with these rivals, `(n, k)`."""
        every = np.arange(len(self))
        known = [self.recall(every, column) for column in rivals.T]
        return np.array([[each is not None for each in column] for column in known]).T

    def witness(self, some: np.ndarray, rivals: np.ndarray) -> Witness:
        """Returns what is known of these pairs."""
        found = Witness.nothing(len(some), self.network.sizes[1:-1])
        for index, known in enumerate(self.recall(some, rivals)):
            if known is not None:
                found.put(slice(index, index + 1), known)
        return found


def _turned(network: Network) -> tuple[Network, np.ndarray | None]:
    """Returns about the same network, of fewer inputs, for searches on l2 balls, and their basis.

    If the first layer has fewer units than inputs, z_1 depends on the part of x in a subspace
    alone, and a ball is one there, too. None: the network itself is returned.
    """
    first = network.affines[0]
    plain = type(network) is Network and not network.restricted
    if not plain or first.is_sparse or first.fan_in <= first.fan_out:
        return network, None
    basis, kernel = np.linalg.qr(first.kernel)
    maps = [Affine(kernel, first.bias, first.kernel_error, first.bias_error), *network.affines[1:]]
    return Network(maps, network.activations), basis
