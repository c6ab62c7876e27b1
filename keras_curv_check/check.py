"""Claims and witnesses → verdicts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from flint import arb

from keras_curv_check.balls import Vector, norm, up, vector
from keras_curv_check.confined import Box, Clip, Room, minorant_left, split_clip
from keras_curv_check.curvature import Curvature, LocalCurvature
from keras_curv_check.files import Claim, NetworkFile
from keras_curv_check.first_layer import FirstLayer
from keras_curv_check.inputs import Inputs
from keras_curv_check.linear import Ball
from keras_curv_check.network import Network, OutOfScopeError
from keras_curv_check.rounding import NotProvedError
from keras_curv_check.stages import Stages

PROVED, NOT_PROVED, OUT_OF_SCOPE = "proved", "not proved", "out of scope"
_SCOPE = {"property": "argmax", "guarantee": "real", "rivals": "all"}
_LINEAR, _LOCAL, _STAGES = ("coupled", "crown"), "crc_local", "two_stage"
_TOGETHER = 16  # claims that are evaluated at a time
_FARTHEST = 1e99  # radius, beyond which numbers may overflow


class Verdict(NamedTuple):
    """What came of one claim.

    Attributes:
        index: of the example.
        status: PROVED, NOT_PROVED or OUT_OF_SCOPE.
        detail: why it is not proved, and what is lacking.
    """

    index: int  # type: ignore[assignment]  # of a tuple, which has a method of that name
    status: str
    detail: str = ""


class Place(NamedTuple):
    """What is known of one margin at one input.

    Attributes:
        x: what the network receives.
        pre: z of each hidden layer at x.
        room: where the attacker can go; None: anywhere.
        margins: at x and at the proof's point, behind a clip.
        gradient: at that point; None if it has none.
        moved: that point less where x is, behind a clip.
    """

    x: Vector
    pre: list[Vector]
    room: Room | None
    margins: tuple[arb, arb]
    gradient: Vector | None
    moved: Vector


class Checker:
    """Proves claims about one network.

    Args:
        file: the network's numbers.
        header: of the proofs.

    Attributes:
        out_of_scope: why nothing of this network or kind of claim is proved here; "" if it is.
    """

    def __init__(self, file: NetworkFile, header: dict):
        self.out_of_scope = ""
        for name, known in _SCOPE.items():
            if header.get(name) != known:
                self.out_of_scope = f"{name} {header.get(name)!r}; {known!r} is checked"
                return
        self._box: Box | None = None
        self._clip: Clip | None = None
        try:
            self._network = self._behind = Network(file)
            threat, box = header.get("threat"), header.get("box")
            if threat == "l2 in a box" and isinstance(box, dict):
                self._box = Box.of(box, file.dim)
            elif threat != "l2":
                self.out_of_scope = f"threat {threat!r}"
            if not self._network.smooth and self._box is None:
                self._clip = split_clip(self._network)
                self._behind = self._clip.behind if self._clip else self._network
        except OutOfScopeError as error:
            self.out_of_scope = str(error)

    @functools.cached_property
    def _methods(self) -> set[str]:
        """Returns what the checker has the theorems for; "" is a rival that nobody proved."""
        return {
            "",
            "lipschitz",
            *(["crc"] if self._behind.smooth else ()),
            *([_LOCAL] if self._two_layers else ()),
            *([_STAGES] if self._stages else ()),
            *(_LINEAR if self._network.lined else ()),
        }

    @property
    def _two_layers(self) -> bool:
        return self._network.smooth and len(self._network.layers) == 1

    @functools.cached_property
    def _stages(self) -> Stages | None:
        return Stages.of(self._network)

    @functools.cached_property
    def _first(self) -> FirstLayer | None:
        return FirstLayer.of(self._network)

    @functools.cached_property
    def _curvature(self) -> Curvature:
        return Curvature(self._behind)

    def check(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        """Yields the verdict of each claim."""
        if self.out_of_scope:
            yield from (Verdict(one.index, OUT_OF_SCOPE, self.out_of_scope) for one in claims)
            return
        for start in range(0, len(claims), _TOGETHER):
            yield from self._batch(claims[start : start + _TOGETHER])

    def _batch(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        inputs, at = [vector(claim.served) for claim in claims], {}
        points = [self._clip.value(x) for x in inputs] if self._clip else [*inputs]
        for row, claim in enumerate(claims):
            for rival, point in claim.points.items():
                at[row, rival] = len(points)
                points.append(vector(point))
        pre, logits = self._behind.forward(points)
        whole, served = self._network.forward(inputs) if self._clip else (pre, logits)
        every = range(len(logits[0]))  # no rival can be left out
        pairs = [(row, t) for row, claim in enumerate(claims) for t in every if t != claim.label]
        places = [at.get(pair, pair[0]) for pair in pairs]
        classes = [(claims[row].label, rival) for row, rival in pairs]
        gradients: list = [None] * len(pairs)
        if self._behind.smooth:
            gradients = self._behind.gradients(pre, places, classes)
        failed: dict[int, list[tuple[str, str]]] = {row: [] for row in range(len(claims))}
        held = self._box or self._clip
        rooms = [held.room(x) if held else None for x in inputs]
        balls: dict[tuple[int, str], Ball] = {}
        near: dict[int, tuple[LocalCurvature, arb]] = {}
        for (row, rival), spot, gradient in zip(pairs, places, gradients, strict=True):
            claim = claims[row]
            margins = [part[claim.label] - part[rival] for part in (served[row], logits[spot])]
            moved = [a - b for a, b in zip(points[spot], points[row], strict=True)]
            z = [layer[row] for layer in whole]
            place = Place(inputs[row], z, rooms[row], (margins[0], margins[1]), gradient, moved)
            lefts = self._left(claim, rival, place)
            if claim.methods[rival] in _LINEAR and self._network.lined:
                lefts = itertools.chain(lefts, self._linear(claim, rival, place, balls))
            if claim.methods[rival] == _STAGES and self._stages:
                args = z, _radius(claim, place.x), claim.label, rival
                lefts = itertools.chain(lefts, self._stages.left(*args))
            if claim.methods[rival] == _LOCAL and self._two_layers:
                lefts = itertools.chain(lefts, self._local(claim, rival, place, near))
            why = self._lacks(claim, rival, lefts)
            if why:
                failed[row].append(why)
        for row, claim in enumerate(claims):
            worst = sorted(failed[row])  # "not proved" comes before "out of scope"
            yield Verdict(claim.index, *worst[0]) if worst else Verdict(claim.index, PROVED)

    def _lacks(self, claim: Claim, rival: int, lefts: Iterator[arb]) -> tuple[str, str] | None:
        """Returns why a margin is not proved to stay positive; None if it is."""
        if not claim.radius < _FARTHEST:
            return OUT_OF_SCOPE, f"a radius beyond {_FARTHEST:g}"
        try:
            lacks = []
            for left in lefts:
                if left > 0:
                    return None
                lacks.append(up(-left))
            lacking = f"the margin at the radius may be short by {min(lacks):.3g}"
        except NotProvedError as error:
            lacking = str(error)
        method = claim.methods[rival]
        if method not in self._methods:
            return OUT_OF_SCOPE, f"rival {rival} by {method!r}"
        return NOT_PROVED, f"rival {rival}: {lacking}"

    def _left(self, claim: Claim, rival: int, place: Place) -> Iterator[arb]:
        """Yields what each theorem leaves of a margin at the radius, the cheapest one first."""
        radius = _radius(claim, place.x)
        yield place.margins[0] - self._network.margin_lipschitz(claim.label, rival) * radius
        if place.gradient is None:
            return
        if self._clip:
            radius = self._clip.widened(place.x, radius)
        yield _minorant_left(place, self._curvature(claim.label, rival), radius)

    def _local(self, claim: Claim, rival: int, place: Place, near: dict) -> Iterator[arb]:
        """Yields what curvature on a ball leaves, by one bound for all such rivals, then its own.

        Args:
            claim, rival, place: which margin.
            near: balls and these bounds of the batch, by claim, as they are found.
        """
        x, radius = place.x, _radius(claim, place.x)
        if claim.index not in near:
            rivals = [t for t, name in enumerate(claim.methods) if name == _LOCAL]
            points = [vector(claim.points[t]) for t in rivals if t in claim.points]
            far = [norm([a - b for a, b in zip(point, x, strict=True)]) for point in points]
            ball = LocalCurvature(self._network, place.pre[0], max(map(up, (radius, *far))))
            near[claim.index] = ball, ball(claim.label, rivals)
        ball, kappa = near[claim.index]
        yield _minorant_left(place, kappa, radius)
        yield _minorant_left(place, ball(claim.label, [rival]), radius)

    def _linear(self, claim: Claim, rival: int, place: Place, balls: dict) -> Iterator[arb]:
        """Yields what linear bounds leave of a margin at the radius.

        Args:
            claim, rival, place: which margin.
            balls: of the batch, by claim and method, as they are found.
        """
        method = claim.methods[rival]
        if (claim.index, method) not in balls:
            room = place.room if self._box else None
            inputs = Inputs(claim.served, _radius(claim, place.x), room)
            args = self._network, inputs, place.pre, method == "coupled", self._first
            balls[claim.index, method] = Ball(*args)
        yield from balls[claim.index, method].margins(
            claim.label, rival, claim.witnesses.get(rival)
        )


def _minorant_left(place: Place, kappa: arb, radius: arb) -> arb:
    assert place.gradient is not None
    return minorant_left(place.margins[1], place.gradient, place.moved, kappa, radius, place.room)


def _radius(claim: Claim, x: Vector) -> arb:
    """Returns the radius around what is served."""
    return arb(claim.radius) + norm([a - b for a, b in zip(vector(claim.x), x, strict=True)])


def differences(
    claims: Sequence[Claim], inputs: np.ndarray | None, rows: dict[int, tuple[int, float]] | None
) -> Iterator[Verdict]:
    """Yields claims that are not about the given examples, or not what the rows say.

    Args:
        claims: of one batch.
        inputs: examples by index, float64; None compares none.
        rows: as of `certified_rows`; None compares none.
    """
    for claim in claims:
        if inputs is not None:
            known = 0 <= claim.index < len(inputs)
            if not known or not np.array_equal(inputs[claim.index].ravel(), claim.x):
                yield Verdict(claim.index, NOT_PROVED, "it is about another example")
                continue
        if rows is not None:
            label, radius = rows.get(claim.index, (-1, np.inf))
            if label != claim.label or not radius <= claim.radius:
                yield Verdict(claim.index, NOT_PROVED, "the row claims something else, or more")
