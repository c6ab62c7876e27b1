"""What a method of certification is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from keras_curv.numerics.bracket import gap_within


class SearchGoal(NamedTuple):
    """How far a search need go; none of it decides whether a radius is right."""

    ceiling: np.ndarray  # no radius is expected above it, `(n,)`
    aim: np.ndarray  # a radius that is not above it need not be found, `(n,)`
    tolerance: float = 0.0  # the fraction of the radius that a search may leave
    # radii at which alone the answer matters; empty: the largest radius is asked for. A search ends
    # once each of them is proved or known to be out of reach
    decide: tuple[float, ...] = ()
    # whether each rival is searched up to the ceiling. Otherwise a rival is left alone once it
    # cannot be the weakest of its example
    every_rival: bool = False

    @classmethod
    def open(cls, count: int, tolerance: float = 0.0, decide: Sequence[float] = ()) -> SearchGoal:
        """Returns the goal for so many examples of which nothing is known."""
        return cls(np.full(count, np.inf), np.zeros(count), tolerance, tuple(decide))

    @property
    def gap(self) -> float:
        """The tolerance in points of the grid of `numerics/bracket.py`."""
        return gap_within(self.tolerance)

    def opened(self) -> SearchGoal:
        """Returns the goal with nothing known of where the radii are."""
        return SearchGoal.open(len(self.aim), self.tolerance, self.decide)

    def of_each_rival(self) -> SearchGoal:
        """Returns the goal where every rival's radius counts, not only the smallest.

        Only a search for decisions ends before it knows all of them.
        """
        opened = self.opened()
        if not self.decide:
            return opened
        return opened.up_to(max(self.decide))._replace(every_rival=True)

    def up_to(self, radius: np.ndarray | float) -> SearchGoal:
        """Returns the goal in which no radius above these counts."""
        return self._replace(ceiling=np.minimum(self.ceiling, radius))

    def take(self, rows: np.ndarray | slice) -> SearchGoal:
        """Returns the goal for these examples."""
        return self._replace(ceiling=self.ceiling[rows], aim=self.aim[rows])


class Question(NamedTuple):
    """Asks for a proved radius of each example against each of its rivals.

    Example:
        >>> question = Question.of([[3.0, 1.0]], [0], [[1]])
        >>> question.known, question.goal.decide
        (array([[0.]]), ())
    """

    x: np.ndarray  # `(n, dim)`, float64, the numbers that the network receives
    label: np.ndarray  # `(n,)`, integers
    rivals: np.ndarray  # `(n, rivals)`, integers, none equal to the label of its example
    known: np.ndarray  # radii that are proved already, `(n, rivals)`
    goal: SearchGoal  # how far to search
    witness: bool = False  # whether to keep what somebody else needs to prove the radii again

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        label: ArrayLike,
        rivals: ArrayLike,
        known: ArrayLike = 0.0,
        *,
        tolerance: float = 0.0,
        decide: Sequence[float] = (),
    ) -> Question:
        """Returns the question with an open goal; `known` may be one number for all pairs."""
        x, label = np.asarray(x, np.float64), np.asarray(label, np.int64)
        rivals = np.asarray(rivals, np.int64)
        radius = np.array(np.broadcast_to(np.asarray(known, np.float64), rivals.shape))
        return cls(x, label, rivals, radius, SearchGoal.open(len(x), tolerance, decide))

    def take(self, rows: np.ndarray | slice) -> Question:
        """Returns the question about these examples."""
        x, label, rivals, known = (part[rows] for part in self[:4])
        return Question(x, label, rivals, known, self.goal.take(rows), self.witness)

    def weakest(self, column: np.ndarray) -> np.ndarray:
        """Returns the rivals in these columns, one an example, `(n,)`."""
        return self.rivals[np.arange(len(self.rivals)), column]

    def answer(
        self,
        method: str,
        radius: np.ndarray,
        gradients: np.ndarray,
        *,
        distance: np.ndarray | None = None,
        weakest: WeakestPoint | None = None,
        point: np.ndarray | None = None,
        slopes: Mapping[tuple[int, int], np.ndarray] | None = None,
    ) -> Proof:
        """Returns the proof of these radii, or of known ones where they are larger.

        Args:
            method: the name of who proved them.
            radius, gradients, distance, weakest, point, slopes: as of `Proof`; without a distance,
                no adversarial point was met.
        """
        better = radius > self.known
        nowhere = np.full(radius.shape, np.inf)
        return Proof(
            radius=np.where(better, radius, self.known),
            gradients=gradients,
            method=np.where(better, method, "").astype("U16"),
            distance=nowhere if distance is None else distance,
            weakest=weakest,
            point=None if point is None else np.where(better[:, :, None], point, np.nan),
            slopes={pair: some for pair, some in (slopes or {}).items() if better[pair]},
        )


class WeakestPoint(NamedTuple):
    """The point at which a search ended, against the rival that it found the weakest.

    Tests that exclude a method hold at any point and any rival.
    """

    column: np.ndarray  # of the rival, in `Question.rivals`, `(n,)`
    point: np.ndarray  # `(n, dim)`
    margin: np.ndarray  # against that rival at the point, `(n,)`
    start: np.ndarray  # that margin at the example itself, `(n,)`

    def take(self, rows: np.ndarray) -> WeakestPoint:
        """Returns those of these examples."""
        return WeakestPoint(*(part[rows] for part in self))

    def spread(self, rows: np.ndarray, count: int) -> WeakestPoint:
        """Spreads these over `count` examples; those of the others exclude nothing."""
        whole = []
        for part in self:
            nothing = 0 if part.dtype.kind == "i" else np.inf
            whole.append(np.full((count, *part.shape[1:]), nothing, part.dtype))
            whole[-1][rows] = part
        return WeakestPoint(*whole)


class Proof(NamedTuple):
    """Proved radii, each of one example against one rival.

    The smallest radius of each example counts; another may be far from the largest that the method
    could prove, unless every rival was asked for.
    """

    radius: np.ndarray  # `(n, rivals)`, none below what was known
    # gradients of one margin that were computed, summed over the rivals, `(n,)`
    gradients: np.ndarray
    method: np.ndarray  # the name of who proved it, `(n, rivals)`; "" where it was known
    # of a point that was found to change the prediction, `(n, rivals)`; else infinite
    distance: np.ndarray
    weakest: WeakestPoint | None = None  # where the search ended; None without a search
    # where a gradient was taken that proves it, or what the last method proves that takes
    # gradients, `(n, rivals, dim)`, of two_stage in the space of the features (no other method has
    # points for such networks); NaN where there is none. None unless a witness was asked for, and a
    # method has such points
    point: np.ndarray | None = None
    # (example, column of the rival) → slopes and then multipliers of the coupled units of all
    # hidden layers, in one vector; only where a witness was asked for, and linear bounds were
    # improved by ascent
    slopes: Mapping[tuple[int, int], np.ndarray] = MappingProxyType({})
