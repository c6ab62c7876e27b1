"""Claims and witnesses → verdicts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from flint import arb

from keras_curv_check.balls import norm, up, vector
from keras_curv_check.curvature import Curvature
from keras_curv_check.files import Claim, NetworkFile
from keras_curv_check.network import Network, OutOfScopeError, minorant_left
from keras_curv_check.norms import NotProvedError

PROVED, NOT_PROVED, OUT_OF_SCOPE = "proved", "not proved", "out of scope"
_SCOPE = {"property": "argmax", "threat": "l2", "guarantee": "real", "rivals": "all"}
_METHODS = ("crc", "lipschitz")
_TOGETHER = 16  # claims that are evaluated at a time


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
        try:
            self._network = Network(file)
        except OutOfScopeError as error:
            self.out_of_scope = str(error)

    @functools.cached_property
    def _curvature(self) -> Curvature:
        return Curvature(self._network)

    def check(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        """Yields the verdict of each claim."""
        for start in range(0, len(claims), _TOGETHER):
            some = claims[start : start + _TOGETHER]
            if self.out_of_scope:
                yield from (Verdict(c.index, OUT_OF_SCOPE, self.out_of_scope) for c in some)
                continue
            yield from self._batch(some)

    def _batch(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        points, at = [vector(claim.served) for claim in claims], {}
        for row, claim in enumerate(claims):
            for rival, point in claim.points.items():
                at[row, rival] = len(points)
                points.append(vector(point))
        pre, logits = self._network.forward(points)
        pairs = [(row, t) for row, claim in enumerate(claims) for t in _rivals(claim, logits)]
        places = [at.get(pair, pair[0]) for pair in pairs]
        classes = [(claims[row].label, rival) for row, rival in pairs]
        gradients: list = [None] * len(pairs)
        if self._network.smooth:
            gradients = self._network.gradients(pre, places, classes)
        failed: dict[int, list[tuple[str, str]]] = {row: [] for row in range(len(claims))}
        for pair, place, gradient in zip(pairs, places, gradients, strict=True):
            row, rival = pair
            claim, x = claims[row], points[row]
            off = norm([a - b for a, b in zip(vector(claim.x), x, strict=True)])
            radius = arb(claim.radius) + off
            margin = [logits[p][claim.label] - logits[p][rival] for p in (row, place)]
            why = self._lacks(claim, rival, radius, margin, x, points[place], gradient)
            if why:
                failed[row].append(why)
        for row, claim in enumerate(claims):
            worst = sorted(failed[row])  # "not proved" comes before "out of scope"
            yield Verdict(claim.index, *worst[0]) if worst else Verdict(claim.index, PROVED)

    def _lacks(
        self,
        claim: Claim,
        rival: int,
        radius: arb,
        margin: list[arb],
        x: list[arb],
        point: list[arb],
        gradient: list[arb] | None,
    ) -> tuple[str, str] | None:
        """Returns why a margin is not proved to stay positive; None if it is."""
        try:
            lacks = []
            for slack in self._left(claim.label, rival, radius, margin, x, point, gradient):
                if slack > 0:
                    return None
                lacks.append(up(-slack))
            lacking = f"the margin at the radius may be short by {min(lacks):.3g}"
        except NotProvedError as error:
            lacking = str(error)
        method = claim.methods[rival]
        if method and (method not in _METHODS or (method == "crc" and gradient is None)):
            return OUT_OF_SCOPE, f"rival {rival} by {method}"
        return NOT_PROVED, f"rival {rival}: {lacking}"

    def _left(
        self,
        label: int,
        rival: int,
        radius: arb,
        margin: list[arb],
        x: list[arb],
        point: list[arb],
        gradient: list[arb] | None,
    ) -> Iterator[arb]:
        """Yields what each theorem leaves of a margin at the radius, the cheapest one first."""
        yield margin[0] - self._network.margin_lipschitz(label, rival) * radius
        if gradient is not None:
            moved = [a - b for a, b in zip(point, x, strict=True)]
            for bound in (self._curvature.rough, self._curvature.tight):
                kappa = bound(label, rival)
                yield minorant_left(margin[1], gradient, moved, kappa, radius)


def _rivals(claim: Claim, logits: list) -> Iterator[int]:
    """Yields all classes but the label: none can be left out."""
    return (rival for rival in range(len(logits[0])) if rival != claim.label)


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
