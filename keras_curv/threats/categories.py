"""Categorical features: one-hot groups, some of which an attacker may change.

There are finitely many changes, and each leads to an input from which the other features move as
usual. So the radius is the smallest radius of these inputs, which is exact in the categories; a
minorant of the jumps, `(h_cur − h_j + κ)⁺` for each, is never above it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_curv.errors import InputError, about, require_at_least
from keras_curv.threats.arrays import digest, number, require_named

_MOST = 2**16  # ways to change an input
_MOST_FEATURES = 2**62
_LONGEST = 60  # characters of groups in settings


class NamedCategories:
    """Groups of which some have names, until it is known which features those are.

    Args:
        groups: for each the name of a feature that is one-hot, a list of names of features that
            together are, or a list of features by index.
        changes: as of `Categories`.

    Raises:
        InputError: a group is none of these.
    """

    def __init__(self, groups: Any, changes: Any = 1):
        self.groups = tuple(g if isinstance(g, str) else tuple(g) for g in groups)
        self.changes = require_at_least(number(changes, "changes"), 1, "changes")

    @staticmethod
    def named(groups: Any) -> bool:
        """Returns whether some groups have names."""
        if not isinstance(groups, (list, tuple, np.ndarray)):
            return False
        parts = [part for group in groups for part in (group if _is_list(group) else [group])]
        return any(isinstance(part, str) for part in parts)

    @property
    def text(self) -> str:
        """Returns the allowed changes in words."""
        return f"the category of at most {self.changes} of {self._said(', ')} changed"

    def __str__(self) -> str:
        return f"groups {self._said('|')}; changes {self.changes}"

    def _said(self, between: str) -> str:
        return between.join(
            repr(g) if isinstance(g, str) else ",".join(map(repr, g)) for g in self.groups
        )

    def of(self, frozen: np.ndarray) -> np.ndarray:
        """Refuses to be used before the names are known."""
        return self.located({}).of(frozen)

    def located(self, places: Mapping[str, np.ndarray]) -> Categories:
        """Returns the groups by index.

        Args:
            places: name → places of its features in the flattened input, `(…, size)`, each group
                along the last axis.

        Raises:
            InputError: a name is not there.

        Example:
            >>> places = {"kind": np.array([[0, 1, 2], [3, 4, 5]]), "a": np.array([[6]])}
            >>> [group.tolist() for group in NamedCategories(["kind"]).located(places).groups]
            [[0, 1, 2], [3, 4, 5]]
        """
        found: list[Any] = []
        for group in self.groups:
            if isinstance(group, str):
                found += [*_placed(group, places)]
                continue
            parts = [_placed(g, places).reshape(-1) if isinstance(g, str) else [g] for g in group]
            found.append(np.concatenate(parts))
        return Categories(found, self.changes)


def _placed(name: str, places: Mapping[str, np.ndarray]) -> np.ndarray:
    require_named([name], places, "groups")
    return places[name]


def _is_list(group: Any) -> bool:
    return isinstance(group, (list, tuple, np.ndarray)) and np.ndim(group) == 1


class Categories:
    """The one-hot groups of an input, and the number of groups that the attacker may change.

    Args:
        groups: for each group its features, indices into the flattened input, two at least; or for
            each feature its group, from 0 on, −1 for none.
        changes: the number of groups that may change at once.

    Raises:
        InputError: a feature in two groups, a group of one, or too many ways to change an input
            to try all of them.

    Example:
        >>> categories = Categories([[1, 2, 3], [4, 5]], changes=2)
        >>> categories.ways
        5
        >>> x = np.array([[0.7, 1, 0, 0, 0, 1]])
        >>> for changed in categories.changed(x):
        ...     print(*changed[0])
        0.7 0.0 1.0 0.0 0.0 1.0
        0.7 0.0 0.0 1.0 0.0 1.0
        0.7 1.0 0.0 0.0 1.0 0.0
        0.7 0.0 1.0 0.0 1.0 0.0
        0.7 0.0 0.0 1.0 1.0 0.0
    """

    def __init__(self, groups: Any, changes: Any = 1):
        lists, self._dim = _lists(groups)
        self.groups = tuple(np.array(group) for group in sorted(lists))
        self.changes = require_at_least(number(changes, "changes"), 1, "changes")
        if self.changes > len(self.groups):
            raise InputError(
                f"changes must be at most {len(self.groups)}, the number of groups. "
                f"Received: {changes}"
            )
        if self.ways > _MOST:
            raise InputError(
                f"{self.changes} of {len(self.groups)} groups can change in more than {_MOST} "
                "ways, the most that can be gone through: allow fewer changes"
            )

    @property
    def features(self) -> np.ndarray:
        """Returns all features that are part of a group."""
        return np.concatenate(self.groups)

    @property
    def ways(self) -> int:
        """Returns the number of ways to change an input; the count stops beyond `_MOST`."""
        ways = [1] + [0] * self.changes  # by the number of groups that change
        for known, group in enumerate(self.groups, 1):
            for count in range(min(known, self.changes), 0, -1):
                ways[count] += (len(group) - 1) * ways[count - 1]
            if sum(ways[1 : known + 1]) > _MOST:
                break
        return sum(ways[1:])

    @property
    def text(self) -> str:
        """Returns the allowed changes in words."""
        return f"the category of at most {self.changes} of {len(self.groups)} groups changed"

    def __str__(self) -> str:
        said = "|".join(",".join(map(str, group)) for group in self.groups)
        if len(said) > _LONGEST:
            said = digest(np.concatenate([[len(group), *group] for group in self.groups]))
        return f"groups {said}; changes {self.changes}"

    def changed(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yields, for each change, the changed inputs of all examples, `(n, dim)`."""
        for order in self.orders(x.shape[1], self.changes):
            yield x[:, order]

    def orders(self, dim: int, changes: int) -> Iterator[np.ndarray]:
        """Yields each change of at most `changes` groups as an order of features, `(dim,)`.

        A rotated one-hot group is one-hot in another feature.
        """
        for count in range(1, changes + 1):
            for some in itertools.combinations(self.groups, count):
                for steps in itertools.product(*(range(1, len(group)) for group in some)):
                    order = np.arange(dim)
                    for group, step in zip(some, steps, strict=True):
                        order[group] = np.roll(group, step)
                    yield order

    def of(self, frozen: np.ndarray) -> np.ndarray:
        """Returns the mask of all features that are part of a group, `(dim,)`.

        Args:
            frozen: the mask of the features that never change, `(dim,)`.

        Raises:
            InputError: a feature of a group does not exist, or is frozen.
        """
        chosen, dim = self.features, len(frozen)
        if self._dim not in (None, dim):
            raise InputError(
                f"groups by number must have {dim} entries, one for each feature. "
                f"Received: {self._dim}"
            )
        if chosen.max() >= dim:
            raise InputError(
                f"groups name feature {chosen.max()}, but there are {dim} (0 to {dim - 1})"
            )
        if frozen[chosen].any():
            raise InputError(
                f"feature {chosen[frozen[chosen]][0]} is frozen and in a group: a category that "
                "cannot change is frozen and in none"
            )
        return np.isin(np.arange(dim), chosen)

    def require_one_hot(self, x: np.ndarray, first_index: int) -> None:
        """Refuses an example with a group that is not one 1 and zeros; InputError names both."""
        for index, group in enumerate(self.groups):
            values = x[:, group]
            wrong = (np.isin(values, (0.0, 1.0)).sum(axis=1) < len(group)) | (
                values.sum(axis=1) != 1.0
            )
            if wrong.any():
                row = int(np.argmax(wrong))
                shown = " ".join(f"{value:g}" for value in values[row][:8])
                raise InputError(
                    f"example {first_index + row} is not one-hot in group {index}, of feature "
                    f"{group[0]} on: one of them must be 1 and the others 0. Received: {shown}"
                )


def categories_of(groups: Any, changes: Any) -> Categories | NamedCategories | None:
    """Returns the groups of a threat; None where there are none."""
    if groups is None:
        if changes is not None:
            raise InputError("changes says how many groups may change. Received: no groups")
        return None
    kind = NamedCategories if NamedCategories.named(groups) else Categories
    return kind(groups, 1 if changes is None else changes)


def _lists(groups: Any) -> tuple[Sequence[list[int]], int | None]:
    """Returns the features of each group, and the number of features if `groups` states it.

    Raises:
        InputError: these are not groups.
    """
    with about("groups must be lists of features", (TypeError, ValueError)):
        given = [np.array(group) for group in groups]
    dim = None
    if given and all(group.ndim == 0 for group in given):
        dim = len(given)
        given = _by_number(np.array(given))
    for group in given:
        whole = group.ndim == 1 and np.issubdtype(group.dtype, np.integer)
        if not whole or len(group) < 2 or group.min() < 0 or group.max() >= _MOST_FEATURES:
            raise InputError(
                "a group must be a list of features by index, two at least. "
                f"Received: {group.tolist()}"
            )
    if not given:
        raise InputError("groups must name one group at least. Received: none")
    features, counts = np.unique(np.concatenate(given), return_counts=True)
    if counts.max() > 1:
        raise InputError(f"feature {features[counts.argmax()]} is in a group twice")
    return [sorted(group.tolist()) for group in given], dim


def _by_number(numbers: np.ndarray) -> list[np.ndarray]:
    """Returns the features of each group from the group of each feature."""
    if not np.issubdtype(numbers.dtype, np.integer) or numbers.min() < -1:
        raise InputError(
            "groups must be lists of features, or for each feature its group, from 0 on, −1 for "
            f"none. Received: {numbers.tolist()[:8]}"
        )
    order = np.argsort(numbers, kind="stable")
    _, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(order, starts[1:])
    return [part for part in parts if numbers[part[0]] >= 0]
