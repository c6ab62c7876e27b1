"""Properties: each is a set of margins, and holds while they are positive.

A certificate proves for pairs (reference, rival) of logits that the margin `z_ref − z_rival` stays
positive for all δ of a ball. A property defines these logits, the reference class of an example,
its rivals, and how many rivals may pass the reference; certificates need nothing else.

    argmax      the predicted class against all others
    top_k       the label against all others, k − 1 of which may pass it
    harmful     the label against some others
    threshold   a score against a constant               (`scores.py`)
    interval    a score against two constants of each example
    linear      weighted sums of outputs against constants   (`conditions.py`)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_curv.errors import InputError, require_at_least
from keras_curv.network.network import Network
from keras_curv.threats.properties.spelling import spelled

_LONGEST = 50_000  # characters of classes, all labels' together

# Examples, `(m,)`, and the rivals of each, `(m, k)`.
Rivals = Iterator[tuple[np.ndarray, np.ndarray]]


class Reading(NamedTuple):
    """The state of a property at n examples; arrays of length n."""

    prediction: np.ndarray  # the class with the largest logit, or the property's substitute for it
    reference: np.ndarray  # the logit with which rivals are compared
    wrong: np.ndarray  # whether the property does not hold
    tied: np.ndarray  # whether a margin is 0, so that it can change at once


class Property(abc.ABC):
    """A property of outputs that must hold within a certified radius.

    Make one by `Property.parse` of a spelling, or by `top_k`, `harmful`, `threshold`, `interval`,
    `linear`.

    Attributes:
        spelling: the text for `--property`, which defines the property.
        text: the property in words, to follow "within the radius".
        spared: the number of rivals that may pass the reference.
        passed: the count of numbers of each example that its logits need; see `numbers`.

    Example:
        >>> Property.top_k(3).spelling, Property.parse("top_3").text
        ('top_3', 'the label stays among the 3 largest logits')
    """

    spelling: str
    text: str
    spared: int = 0
    passed: int = 0
    _kinds: ClassVar[dict[str, Callable[[Any], Property]]] = {}

    def __init_subclass__(cls, kind: str = "") -> None:
        """Registers a kind of property under its name in `spelling.py`."""
        super().__init_subclass__()
        if kind:
            Property._kinds[kind] = cls

    @staticmethod
    def of(given: Property | str) -> Property:
        """Returns a property unchanged, or parses a spelling; InputError for anything else."""
        if not isinstance(given, (Property, str)):
            raise InputError(f"a property, or its spelling, is needed. Received: {given!r}")
        return given if isinstance(given, Property) else Property.parse(given)

    @staticmethod
    def parse(spelling: str) -> Property:
        """Returns the property of a spelling, as for `--property`; see `spelling.py`."""
        kind, argument = spelled(spelling)
        return ARGMAX if argument is None else Property._kinds[kind](argument)

    @staticmethod
    def top_k(k: int) -> Property:
        """Returns the property that the label stays among the k largest logits."""
        return TopK(k)

    @staticmethod
    def harmful(rivals: Collection[int] | Mapping[int, Collection[int]]) -> Property:
        """Returns the property that no harmful class, for all labels or by label, passes it."""
        return Harmful(rivals)

    @staticmethod
    def threshold(value: float | Mapping[int, float]) -> Property:
        """Returns the property that the output, or each named one, stays on its side of a value."""
        return Property._kinds["threshold"](value)

    @staticmethod
    def linear(conditions: str) -> Property:
        """Returns the property that conditions such as "y0 > y3 + 0.5; y1 < 2" hold."""
        return Property._kinds["linear"](conditions)

    @staticmethod
    def interval(tau: float | Mapping[int, float]) -> Property:
        """Returns the property that each (named) output stays within τ of its original value."""
        return Property._kinds["interval"](tau)

    def network(self, network: Network, head: str = "logits") -> Network:
        """Returns the network whose margins the property is about.

        Args:
            network: the network as it was read.
            head: the function that the served output applies to its logits; see `graph.HEADS`.

        Raises:
            InputError: the property does not apply to such a network.
        """
        self.require_classes(network.classes)
        return network

    def require_classes(self, classes: int) -> None:
        """Refuses a number of logits for which the property makes no sense, by InputError."""
        if classes < 2:
            raise InputError(
                f"{self.spelling} is about classes, and the output is one number without a "
                "sigmoid; use two logits, or a sigmoid, or the property threshold or interval"
            )

    def labels(self, network: Network) -> int:
        """Returns the number of labels, which are 0, 1, …; 0 where labels have no meaning.

        Args:
            network: the property's own network.
        """
        return network.classes

    def numbers(self, network: Network, x: np.ndarray) -> np.ndarray:
        """Returns the numbers to pin beside each input, `(n, passed)`.

        Args:
            network: the network as it was read.
            x: `(n, dim)`, the examples that the certificate is about, in float64.
        """
        return np.zeros((len(x), 0))

    @abc.abstractmethod
    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property at examples, from logits of `network`.

        Args:
            logits: `(n, classes)`, finite for the examples whose results are used.
            label: `(n,)`, or None.
        """

    @abc.abstractmethod
    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields examples with the same number of rivals, `(m,)`, and these rivals, `(m, k)`."""

    def holds_in_float32(self, head: str) -> bool:
        """Returns whether positive float32 margins imply the property for the head's output.

        They need not: with a third class far above both, two probabilities may be served as 0.
        """
        return head == "logits"

    def decider(self, rival: np.ndarray) -> np.ndarray:
        """Returns the number by which a row names the deciding rival; −1 is none."""
        return rival

    def __str__(self) -> str:
        return self.spelling

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Property) and other.spelling == self.spelling

    def __hash__(self) -> int:
        return hash(self.spelling)

    def __repr__(self) -> str:
        return f"Property.parse({self.spelling!r})"


class Argmax(Property):
    """The property that the predicted class keeps the largest logit."""

    spelling = "argmax"
    text = "the predicted class keeps the largest logit"

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property, as in `Property`."""
        prediction = logits.argmax(axis=1)
        wrong = np.zeros(len(logits), bool) if label is None else prediction != np.asarray(label)
        return Reading(prediction, prediction, wrong, _ties(logits))

    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields examples and their rivals, as in `Property`."""
        yield np.arange(len(logits)), others(reference, logits.shape[1])

    def holds_in_float32(self, head: str) -> bool:
        """Returns True: no class is above the predicted one."""
        return True


class TopK(Property, kind="top_k"):
    """The property that the label (or the predicted class) stays among the k largest logits.

    Fewer than k rivals can pass within the k-th smallest of their radii.

    Args:
        k: at least 1.
    """

    def __init__(self, k: int):
        k = require_at_least(k, 1, "k")
        self.spared = k - 1
        self.spelling = f"top_{k}"
        self.text = f"the label stays among the {k} largest logits"

    def require_classes(self, classes: int) -> None:
        """Refuses a number of logits, as in `Property`."""
        if self.spared + 1 >= classes:
            raise InputError(
                f"{self.spelling} needs more than {self.spared + 1} classes, or it always holds. "
                f"Received: {classes} classes"
            )
        super().require_classes(classes)

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property, as in `Property`."""
        prediction = logits.argmax(axis=1)
        reference = prediction if label is None else np.asarray(label)
        own = np.take_along_axis(logits, reference[:, None], axis=1)
        above = (logits > own).sum(axis=1)
        level = (logits >= own).sum(axis=1) - 1  # without itself
        wrong = above > self.spared
        return Reading(prediction, reference, wrong, ~wrong & (level > self.spared))

    rivals = Argmax.rivals


class Harmful(Property, kind="harmful"):
    """The property that no harmful class passes the label (or the predicted class).

    While that holds, no harmful class is predicted.

    Args:
        rivals: the classes that are harmful for every other label; or for each label its harmful
            classes. A label that is not named has none, and no attacker can do harm.

    Raises:
        InputError: no class is harmful for another one.
    """

    def __init__(self, rivals: Collection[int] | Mapping[int, Collection[int]]):
        table = rivals if isinstance(rivals, Mapping) else {None: rivals}
        self._table = {
            label if label is None else require_at_least(label, 0, "a label"): sorted(
                {require_at_least(rival, 0, "a harmful class") for rival in harmful}
            )
            for label, harmful in table.items()
        }
        if all(set(harmful) <= {label} for label, harmful in self._table.items()):
            raise InputError("harmful needs a class that is harmful for another. Received: none")
        listed = {label: ",".join(map(str, some)) for label, some in self._table.items()}
        size = sum(len(some) + 1 for some in listed.values())
        if size > _LONGEST:
            raise InputError(
                f"harmful takes {size} characters to spell, and {_LONGEST} are the most that a row "
                "can hold: name fewer classes"
            )
        if None in listed:
            self.spelling = f"harmful:{listed[None]}"
            self.text = f"no class of {listed[None]} gets above the label"
        else:
            pairs = ";".join(f"{label}>{some}" for label, some in sorted(listed.items()))
            self.spelling = f"harmful:{pairs}"
            self.text = f"no class that is harmful for the label gets above it ({pairs})"

    def require_classes(self, classes: int) -> None:
        """Refuses a number of logits, as in `Property`."""
        super().require_classes(classes)
        labels = [label for label in self._table if label is not None]
        named = max([*labels, *(rival for row in self._table.values() for rival in row)])
        if named >= classes:
            raise InputError(
                f"harmful names class {named}, but the model has {classes} classes "
                f"(0 to {classes - 1})"
            )

    def read(self, logits: np.ndarray, label: np.ndarray | None) -> Reading:
        """Returns the state of the property, as in `Property`."""
        prediction = logits.argmax(axis=1)
        reference = prediction if label is None else np.asarray(label)
        wrong, tied = np.zeros((2, len(logits)), bool)
        for rows, harmful in self.rivals(logits, reference):
            own = logits[rows, reference[rows]][:, None]
            theirs = np.take_along_axis(logits[rows], harmful, axis=1)
            wrong[rows] = (theirs > own).any(axis=1)
            tied[rows] = ~wrong[rows] & (theirs == own).any(axis=1)
        tied |= _ties(logits) if label is None else False
        return Reading(prediction, reference, wrong, tied)

    def rivals(self, logits: np.ndarray, reference: np.ndarray) -> Rivals:
        """Yields examples and their rivals, as in `Property`."""
        harmful = {int(label): self._of(int(label)) for label in np.unique(reference)}
        for size in sorted({len(some) for some in harmful.values()}):
            rows = np.flatnonzero([len(harmful[int(label)]) == size for label in reference])
            some = [harmful[int(label)] for label in reference[rows]]
            yield rows, np.array(some, np.int64).reshape(len(rows), size)

    def _of(self, label: int) -> list[int]:
        row = self._table.get(label, self._table.get(None, []))
        return [rival for rival in row if rival != label]


ARGMAX = Argmax()


def others(reference: np.ndarray, classes: int) -> np.ndarray:
    """Returns all classes but the reference, `(n, classes − 1)`, by index, so that ties stay in."""
    rest = np.tile(np.arange(classes - 1), (len(reference), 1))
    return rest + (rest >= np.asarray(reference)[:, None])


def _ties(logits: np.ndarray) -> np.ndarray:
    """Returns where two classes share the largest logit."""
    with np.errstate(invalid="ignore"):
        return np.sum(logits == logits.max(axis=1, keepdims=True), axis=1) > 1
