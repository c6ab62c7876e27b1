"""Claims and witnesses → verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_curv_check.balls import ZERO, up, vector
from keras_curv_check.confined import Box, Clip, split_clip
from keras_curv_check.files import Claim, NetworkFile
from keras_curv_check.network import Network, OutOfScopeError
from keras_curv_check.rounding import NotProvedError
from keras_curv_check.served import ServedErrors
from keras_curv_check.theorems import KEPT, Asked, Margin, differences, theorems

PROVED, NOT_PROVED, OUT_OF_SCOPE = "proved", "not proved", "out of scope"
_SCOPE = {"property": ("argmax",), "guarantee": ("real", "float32"), "rivals": ("all",)}
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
            if header.get(name) not in known:
                self.out_of_scope = f"{name} {header.get(name)!r}; checked: {', '.join(known)}"
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
                return
            if not self._network.smooth and self._box is None:
                self._clip = split_clip(self._network)
                self._behind = self._clip.behind if self._clip else self._network
            self._served = ServedErrors(self._network) if header["guarantee"] == "float32" else None
            self._theorems = theorems(self._network, self._clip, self._box is not None)
        except OutOfScopeError as error:
            self.out_of_scope = str(error)

    def check(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        """Yields the verdict of each claim."""
        if self.out_of_scope:
            yield from (Verdict(one.index, OUT_OF_SCOPE, self.out_of_scope) for one in claims)
            return
        for start in range(0, len(claims), KEPT):
            yield from self._batch(claims[start : start + KEPT])

    def _batch(self, claims: Sequence[Claim]) -> Iterator[Verdict]:
        inputs, at = [vector(claim.served) for claim in claims], {}
        points = [self._clip.value(x) for x in inputs] if self._clip else [*inputs]
        for row, claim in enumerate(claims):
            for rival in claim.points:
                if (point := claim.point(rival, len(inputs[row]))) is not None:
                    at[row, rival] = len(points)
                    points.append(vector(point))
        whole, slopes, logits = self._behind.forward(points)
        served = logits
        if self._clip:
            whole, _, served = self._network.forward(inputs)
        every = range(len(logits[0]))  # no rival can be left out
        pairs = [(row, t) for row, claim in enumerate(claims) for t in every if t != claim.label]
        places = [at.get(pair, pair[0]) for pair in pairs]
        classes = [(claims[row].label, rival) for row, rival in pairs]
        gradients: list = [None] * len(pairs)
        if self._behind.smooth:
            gradients = self._behind.gradients(slopes, places, classes)
        held = self._box or self._clip
        asked = [
            Asked(claim, x, [layer[row] for layer in whole], held.room(x) if held else None)
            for row, (claim, x) in enumerate(zip(claims, inputs, strict=True))
        ]
        failed: list[list[tuple[str, str]]] = [[] for _ in claims]
        for (row, rival), spot, gradient in zip(pairs, places, gradients, strict=True):
            label, moved = claims[row].label, differences(points[spot], points[row])
            here, value = (part[label] - part[rival] for part in (served[row], logits[spot]))
            why = self._lacks(asked[row], Margin(rival, here, value, gradient, moved))
            if why:
                failed[row].append(why)
        for claim, found in zip(claims, failed, strict=True):
            worst = sorted(found)  # "not proved" comes before "out of scope"
            yield Verdict(claim.index, *worst[0]) if worst else Verdict(claim.index, PROVED)

    def _lacks(self, asked: Asked, margin: Margin) -> tuple[str, str] | None:
        """Returns why a margin is not proved to stay positive; None if it is."""
        if not asked.claim.radius < _FARTHEST:
            return OUT_OF_SCOPE, f"a radius beyond {_FARTHEST:g}"
        method, lacks = asked.claim.methods[margin.rival], []
        try:
            lost = self._served.most(asked, margin.rival) if self._served else ZERO
            for theorem in self._theorems:
                if theorem.always or method in theorem.methods:
                    for left in theorem.left(asked, margin):
                        if left > lost:
                            return None
                        lacks.append(up(lost - left))
            lacking = f"the margin at the radius may be short by {min(lacks):.3g}"
        except NotProvedError as error:
            lacking = str(error)
        if not any(method in theorem.methods for theorem in self._theorems):
            return OUT_OF_SCOPE, f"rival {margin.rival} by {method!r}"
        return NOT_PROVED, f"rival {margin.rival}: {lacking}"


def disagreements(
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
