"""The theorems by which margins are proved to stay positive: each says what it leaves of one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from flint import arb

from keras_curv_check.anchored import Anchored
from keras_curv_check.balls import Vector, norm, up, vector
from keras_curv_check.confined import Clip, Room, minorant_left
from keras_curv_check.curvature import Curvature, LocalCurvature
from keras_curv_check.files import Claim
from keras_curv_check.first_layer import FirstLayer
from keras_curv_check.inputs import Inputs
from keras_curv_check.linear import Ball
from keras_curv_check.network import Network
from keras_curv_check.quadratic import Quadratic
from keras_curv_check.stages import Stages

SHARES = 1.0, 1.0 + 1e-5, 1.0003  # of a radius, of the balls of parabolas
Near = LocalCurvature | Anchored
KEPT = 16  # claims whose bounds are kept, for the next rivals of theirs


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """A claim, and what its theorems share.

    Attributes:
        claim: as it was read.
        x: what the network receives.
        pre: z of each hidden layer at x.
        room: where the attacker can go; None: anywhere.
    """

    claim: Claim
    x: Vector
    pre: list[Vector]
    room: Room | None

    @functools.cached_property
    def radius(self) -> arb:
        """Returns the radius around what is served."""
        return arb(self.claim.radius) + norm(differences(vector(self.claim.x), self.x))


class Margin(NamedTuple):
    """What is known of the margin over one rival.

    Attributes:
        rival: the class.
        here: the margin at x.
        value: the margin at the proof's point, behind a clip.
        gradient: at that point; None if it has none.
        moved: that point less where x is, behind a clip.
    """

    rival: int
    here: arb
    value: arb
    gradient: Vector | None
    moved: Vector

    def minorant_left(self, kappa: arb, radius: arb, room: Room | None) -> arb:
        """Returns what the minorant with this curvature leaves."""
        assert self.gradient is not None
        return minorant_left(self.value, self.gradient, self.moved, kappa, radius, room)


class Theorem:
    """Bounds margins from below on the ball of a claim.

    Attributes:
        methods: of claims that it is for.
        always: whether it is cheap, and asked whatever the method is.
    """

    methods: tuple[str, ...] = ()
    always = False

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """Yields lower bounds, the cheapest first.

        Raises:
            NotProvedError: there is none.
        """
        raise NotImplementedError

    def rivals(self, claim: Claim) -> list[int]:
        """Returns the rivals of a claim that it is for."""
        return [rival for rival, name in enumerate(claim.methods) if name in self.methods]


def theorems(network: Network, clip: Clip | None, confined: bool) -> list[Theorem]:
    """Returns the theorems that there are for a network.

    Args:
        network: the network.
        clip: that it begins with; None: there is none.
        confined: whether the attacker stays in a box.
    """
    found: list[Theorem] = [Lipschitz(network)]
    if (clip.behind if clip else network).smooth:
        found.append(Everywhere(network, clip))
    if (stages := Stages.of(network)) is not None:
        found.append(TwoStages(stages))
    if network.sparse:  # the others need dense matrices
        return found
    if network.layers:
        found.append(Linear(network, confined))
    if network.smooth and network.layers:
        found.append(OnBall(network))
    if Quadratic.fits(network):
        found.append(Parabolas(network, confined))
    return found


class Lipschitz(Theorem):
    """Theorem 7.1."""

    methods = "", "lipschitz"  # "" is a rival that nobody proved
    always = True

    def __init__(self, network: Network):
        self._network = network

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        bound = self._network.margin_lipschitz(asked.claim.label, margin.rival)
        yield margin.here - bound * asked.radius


class Everywhere(Theorem):
    """Theorem 2.1 with the curvature of section 8; behind a clip, theorem 27.1."""

    methods = ("crc",)
    always = True

    def __init__(self, network: Network, clip: Clip | None):
        self._clip, self._network = clip, clip.behind if clip else network

    @functools.cached_property
    def _curvature(self) -> Curvature:
        return Curvature(self._network)

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        kappa = self._curvature(asked.claim.label, margin.rival)
        radius = self._clip.widened(asked.x, asked.radius) if self._clip else asked.radius
        yield margin.minorant_left(kappa, radius, asked.room)


class OnBall(Theorem):
    """Theorem 2.1 with the curvature of section 9: one for all such rivals, then one for each."""

    methods = ("crc_local",)

    def __init__(self, network: Network):
        self._network = network
        self._near = functools.lru_cache(KEPT)(self._around)

    def _around(self, asked: Asked) -> tuple[Near, list[arb]]:
        """Returns the ball, which reaches to the proof's points, and one bound if rivals share."""
        claim, rivals = asked.claim, self.rivals(asked.claim)
        found = [claim.point(t, len(asked.x)) for t in rivals]
        points = [vector(point) for point in found if point is not None]
        far = max(map(up, (asked.radius, *(norm(differences(p, asked.x)) for p in points))))
        ball: Near
        if len(asked.pre) == 1:
            ball = LocalCurvature(self._network, asked.pre[0], far)
        else:
            ball = Anchored(self._network, asked.pre, far)
        return ball, [next(ball.bounds(claim.label, rivals))] if len(rivals) > 1 else []

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        ball, shared = self._near(asked)
        own = ball.bounds(asked.claim.label, [margin.rival])
        for kappa in itertools.chain(shared, own):
            yield margin.minorant_left(kappa, asked.radius, asked.room)


class Linear(Theorem):
    """Linear bounds: theorems 15.1, 15.2, 30.1 and 30.3, and boxes of section 16."""

    methods = "coupled", "crown", "interval"

    def __init__(self, network: Network, confined: bool):
        self._network, self._confined = network, confined
        self._first = FirstLayer.of(network)
        self._ball = functools.lru_cache(2 * KEPT)(self._bounded)

    def _bounded(self, asked: Asked, method: str) -> Ball:
        inputs = Inputs(asked.claim.served, asked.radius, asked.room if self._confined else None)
        return Ball(self._network, inputs, asked.pre, method == "coupled", self._first)

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        claim, rival = asked.claim, margin.rival
        ball = self._ball(asked, claim.methods[rival])
        yield from ball.margins(claim.label, rival, claim.witnesses.get(rival))


class TwoStages(Theorem):
    """Section 29."""

    methods = ("two_stage",)

    def __init__(self, stages: Stages):
        self._stages = stages
        self._features = functools.lru_cache(KEPT)(lambda asked: stages.features(asked.pre))

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        features, claim = self._features(asked), asked.claim
        found = claim.point(margin.rival, len(features))
        point = features if found is None else vector(found)
        args = point, features, asked.radius, claim.label, margin.rival
        yield self._stages.left(*args)


class Parabolas(Theorem):
    """Theorem 17.2: one curvature for all such rivals, then one for each."""

    methods = ("quadratic",)

    def __init__(self, network: Network, confined: bool):
        self._network, self._confined = network, confined
        self._near = functools.lru_cache(KEPT)(self._around)

    def _around(self, asked: Asked, share: float) -> tuple[Quadratic, arb]:
        """Returns a ball that is a little larger, and one bound of the curvature."""
        claim, rivals = asked.claim, self.rivals(asked.claim)
        ball = Quadratic(self._network, asked.x, share * up(asked.radius))
        return ball, ball.curvature(claim.label, rivals)

    def left(self, asked: Asked, margin: Margin) -> Iterator[arb]:
        """See `Theorem`."""
        label, rival, radius = asked.claim.label, margin.rival, asked.radius
        found = asked.claim.point(rival, len(asked.x))
        point = vector(asked.claim.served if found is None else found)
        moved, room = differences(point, asked.x), asked.room if self._confined else None
        for share in SHARES:
            ball, kappa = self._near(asked, share)
            value, gradient = ball.at(point, label, rival)
            margin = margin._replace(value=value, gradient=gradient, moved=moved)
            yield margin.minorant_left(kappa, radius, room)
            yield margin.minorant_left(ball.curvature(label, [rival]), radius, room)


def differences(one: Vector, other: Vector) -> Vector:
    """Returns one vector less another."""
    return [a - b for a, b in zip(one, other, strict=True)]
