"""Threat models: the attacker replaces an input x by `x + Bξ` with `‖ξ‖₂ < r`, within a box.

    scale     B = diag(s): feature i moves s_i per unit of ξ, as for a sensor of tolerance s_i
    frozen    features that do not move: s_i = 0
    basis     B of few columns: all features move together, in a subspace
    low, high limits of x + Bξ, by feature; either may be infinite
    groups    categorical features, some of which may change (`categories.py`)
    norm      in place of l2: l1, a budget for all features together; l∞, a tolerance for each

The first map absorbs B: `ξ ↦ f(x + Bξ)` is the network whose first kernel is B W, and all bounds
and charges of rounding are for that network. Inputs are divided by weights, u = x/s, so that x
itself is unchanged; frozen features are pinned (`network/pinned.py`). With a basis the input is
(ξ, x), with x pinned, and starts at (0, x).

A box confines the *attacker*: nothing is claimed of inputs outside of it. This claim differs from
that of a model which clips its own input, and is weaker than that for an unrestricted δ; all
printed results say so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_curv.errors import InputError, require_one_of
from keras_curv.network.network import Network, require_dense
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.numerics.rounding import UNIT, norm_bound
from keras_curv.threats.absorbed import is_exact, limits_over, scaled, subspace
from keras_curv.threats.arrays import (
    box_text,
    digest,
    features,
    features_at,
    features_text,
    frozen_mask,
    limit,
    numbers,
    require_ordered,
    require_weights,
    says,
    spread,
)
from keras_curv.threats.by_example import basis_of, is_by_example, network_around
from keras_curv.threats.categories import NamedCategories, categories_of
from keras_curv.threats.norms import L2, NORMS

PLAIN = L2.name
_ALONE = "a basis says by itself what changes: no scale, frozen, groups, low or high"
NAMES = ("norm", "scale", "frozen", "basis", "low", "high", "groups", "changes")


class Threat:
    """A threat model: the changes that an attacker may make; by default any δ with `‖δ‖₂ < r`.

    Arrays are of the shape of one input, or flat; one number stands for all features.

    Args:
        norm: "l2"; "l1", where radii bound the sum of all changes, a budget; or "linf", where they
            bound each change by itself, a tolerance.
        scale: weights s > 0 by feature, so that radii are in units of `δ_i / s_i`.
        frozen: features that do not change: bools, indices into the flattened input, or names, of
            inputs of a model with several or of columns of a DataFrame.
        basis: `(dim, q)`, the directions in which inputs change, as columns; or "brightness",
            "contrast" or both, which each example has by itself (`by_example.py`).
        low, high: limits between which the attacker stays; examples must be between them, too.
        groups: groups of one-hot features, see `Categories`, or their names: of an input that is
            an integer or one-hot, of a feature behind a cut, or a list of names of columns. These
            features change only by a change of category.
        changes: the number of groups whose category the attacker may change, besides his other
            changes.

    Raises:
        InputError: a weight is not positive, `low` is above `high`, no feature can move, or a
            basis is given together with something else.

    Example:
        >>> threat = Threat(scale=[1.0, 0.5], low=0.0)
        >>> print(threat.text)
        changes with ‖δ/s‖₂ < r, weights s by feature from 0.5 to 1; attacker confined to at least 0
    """

    def __init__(
        self,
        *,
        norm: str = PLAIN,
        scale: ArrayLike | None = None,
        frozen: ArrayLike | None = None,
        basis: ArrayLike | None = None,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        groups: Any = None,
        changes: int | None = None,
    ):
        self.norm = require_one_of(str(norm), [*NORMS], "norm")
        self.categories: Any = categories_of(groups, changes)
        self._scale = None if scale is None else numbers(scale, "scale").reshape(-1)
        self._frozen = None if frozen is None else features(frozen)
        self._basis = None if basis is None else basis_of(basis)
        self._low = limit(low, "low", -math.inf)
        self._high = limit(high, "high", math.inf)
        require_ordered(self._low, self._high)
        if self._scale is not None:
            require_weights(self._scale)
        if self._basis is not None:
            beside = (self._scale, self._frozen, self.categories)
            if any(part is not None for part in beside) or self.confined:
                raise InputError(_ALONE)
        if self._frozen is not None and self._frozen.dtype == bool and self._frozen.all():
            raise InputError("all features are frozen: there is nothing that an attacker can move")

    @property
    def plain(self) -> bool:
        """Returns whether the threat allows exactly all δ with `‖δ‖₂ < r`."""
        return self.searchable and not self.confined

    @property
    def searchable(self) -> bool:
        """Returns whether it allows all δ with `‖δ‖₂ < r` that stay in the box, if there is one."""
        return self.moves_freely and self.norm == PLAIN

    @property
    def moves_freely(self) -> bool:
        """Returns whether δ = ξ."""
        held = (self._scale, self._frozen, self._basis, self.categories)
        return all(part is None for part in held)

    @property
    def has_basis(self) -> bool:
        """Returns whether δ = Bξ in a subspace."""
        return self._basis is not None

    @property
    def by_example(self) -> bool:
        """Returns whether each example has a basis, and so a network, by itself."""
        return is_by_example(self._basis)

    @property
    def confined(self) -> bool:
        """Returns whether there is a box."""
        return bool(np.isfinite(self._low).any() or np.isfinite(self._high).any())

    @property
    def holds_in_float32(self) -> bool:
        """Returns whether the guarantee `float32` is available under this threat."""
        return self._scale is None and self._basis is None

    @property
    def units(self) -> str | None:
        """Returns the units of radii, or None if they are those of the model's input."""
        if self._basis is not None:
            return f"the {self.norm} norm of ξ" + ("" if self.by_example else ", changes are Bξ")
        return None if self._scale is None else "the weights s of the features"

    @property
    def text(self) -> str:
        """Returns the threat in words."""
        end = f"‖{NORMS[self.norm].sign} < r"
        if self._basis is not None and self.by_example:
            what = f"changes of {' and '.join(self._basis)} by ξ, ‖ξ{end}"
        elif self._basis is not None:
            what = f"changes Bξ with ‖ξ{end}, in a subspace of {self._basis.shape[1]} directions"
        elif self._scale is not None:
            least, most = self._scale.min(), self._scale.max()
            what = f"changes with ‖δ/s{end}, weights s by feature from {least:g} to {most:g}"
        else:
            what = f"changes with ‖δ{end}"
        if self._frozen is not None:
            what += f", {features_text(self._frozen)} frozen"
        if self.categories is not None:
            what += f", {self.categories.text}"
        return (
            f"{what}; attacker confined to {box_text(self._low, self._high)}"
            if self.confined
            else what
        )

    def __str__(self) -> str:
        """Returns the whole threat as text for settings: few numbers in full, more as a digest."""
        said = [f"{name} {digest(array)}" for name, array in self._arrays().items()]
        if self.norm != PLAIN:
            said.insert(0, self.norm)
        if self.categories is not None:
            said.append(str(self.categories))
        return "; ".join(said) or PLAIN

    def __repr__(self) -> str:
        return f"<Threat {self}>"

    @staticmethod
    def of(given: Threat | Mapping[str, Any]) -> Threat:
        """Returns a threat unchanged, or makes one of a mapping; InputError for anything else."""
        if isinstance(given, Threat):
            return given
        unknown: list[Any] = [given]
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in NAMES]
        if unknown:
            received = ", ".join(map(repr, unknown))
            raise InputError(f"a threat has {', '.join(NAMES)}. Received: {received}")
        return Threat(**given)

    def config(self) -> dict[str, Any]:
        """Returns arguments for JSON with which `Threat(**config)` is equal to this threat."""
        said: dict[str, Any] = {
            name: [None if value in (-math.inf, math.inf) else value for value in array.tolist()]
            if name in ("low", "high")
            else array.tolist()
            for name, array in self._arrays().items()
        }
        if self.norm != PLAIN:
            said["norm"] = self.norm
        if self.categories is not None:
            groups = self.categories.groups
            said["groups"] = [g if isinstance(g, str) else np.array(g).tolist() for g in groups]
            said["changes"] = self.categories.changes
        return said

    def _arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that were given, by the constructor's argument names."""
        parts = {n: getattr(self, f"_{n}") for n in ("scale", "frozen", "basis", "low", "high")}
        return {name: a for name, a in parts.items() if a is not None and says(name, a)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Threat) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    def located(self, places: Mapping[str, np.ndarray]) -> Threat:
        """Returns the threat with indices in place of names of features.

        Args:
            places: name → indices into the flattened input, of several groups along the last axis.

        Raises:
            InputError: a name is not there.

        Example:
            >>> threat = Threat(frozen=["age"])
            >>> print(threat.located({"age": np.array([1]), "income": np.array([0])}))
            frozen 1
        """
        found = copy.copy(self)
        found._frozen = None if self._frozen is None else features_at(self._frozen, places)
        if isinstance(self.categories, NamedCategories):
            found.categories = self.categories.located(places)
        return found

    def holding(self, fixed: np.ndarray, dim: int) -> Threat:
        """Returns the threat in which these features do not change either, but for categories.

        Args:
            fixed: indices into the flattened input, `(count,)`.
            dim: the number of features.

        Example:
            >>> print(Threat(frozen=[0]).holding(np.array([2]), 3))
            frozen 0,2
        """
        if not len(fixed):
            return self
        if self._basis is not None:
            raise InputError("a basis is for inputs that are all floats")
        held = self.factors(dim)[1]
        held[fixed] = True
        if self.categories is not None:
            held[self.categories.features] = False
        found = copy.copy(self)
        found._frozen = np.flatnonzero(held) if held.any() else None
        return found

    def factors(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the divisors of inputs, 1 where frozen, and the frozen mask; `(dim,)` each."""
        fixed = np.zeros(dim, bool) if self._frozen is None else frozen_mask(self._frozen, dim)
        if self.categories is not None:
            fixed |= self.categories.of(fixed)
        if fixed.all():
            raise InputError(
                "all features are frozen, or categories: nothing is left of which a radius could be"
            )
        scale = np.ones(dim) if self._scale is None else spread(self._scale, dim, "scale")
        return np.where(fixed, 1.0, scale), fixed

    def limits(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns `low` and `high` of every feature."""
        return spread(self._low, dim, "low"), spread(self._high, dim, "high")

    def network(self, network: Network, dim: int, example: np.ndarray | None = None) -> Network:
        """Returns the network of ξ, or of x/s, whose first `dim` inputs are those of the model;
        around an example, `(dim,)`, if the basis is made of it.

        Raises:
            InputError: the threat is for inputs of another size.
        """
        if self.by_example:
            assert example is not None and self._basis is not None
            return network_around(network, self._basis.tolist(), example)
        limits = self.limits_of(network.dim, dim)
        if self.moves_freely:
            if limits is None:
                return network
            parts = network.affines, network.activations, network.pinned, network.direct
            return PinnedNetwork(*parts, limits)
        require_dense(network, "weights by feature, frozen features or a basis", "pool before it")
        first = network.affines[0]
        known = np.zeros(network.dim, bool) if network.pinned is None else network.pinned
        direct = network.direct
        if self._basis is not None:
            moved = subspace(self._basis, first, dim)
            count = self._basis.shape[1]
            pinned = np.arange(moved.fan_in) >= count
            if direct is not None:
                direct = np.concatenate([np.zeros((count, network.classes)), direct])
        else:
            factor, fixed = self.factors(dim)
            factor = np.concatenate([factor, np.ones(network.dim - dim)])
            moved = scaled(first, factor)
            pinned = known.copy()
            pinned[:dim] |= fixed
        affines, pinned = [moved, *network.affines[1:]], pinned if pinned.any() else None
        if pinned is None and limits is None:
            return Network(affines, network.activations)
        return PinnedNetwork(affines, network.activations, pinned, direct, limits)

    def limits_of(self, total: int, dim: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the limits of all inputs u = x/s, rounded outward; None without limits.

        Args:
            total: the number of inputs of the network.
            dim: the number of inputs of the model, which come first.
        """
        if not self.confined:
            return None
        low, high = limits_over(*self.limits(dim), self.factors(dim)[0])
        more = np.full(total - dim, np.inf)
        return np.concatenate([low, -more]), np.concatenate([high, more])

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Returns the input of `network` at x, `(n, dim)` float64, without other pinned numbers."""
        if self._basis is not None:
            given = x[:, :0] if self.by_example else x
            return np.concatenate([np.zeros((len(x), self._basis.shape[-1])), given], axis=1)
        if self.moves_freely:
            return x
        with np.errstate(over="ignore"):
            u = x / self.factors(x.shape[1])[0]
        if not np.isfinite(u).all():
            raise InputError("a weight is so small that an input divided by it overflows")
        return u

    def claimed(self, x: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """Returns the examples that the certificate is about, `(n, dim)`; see `moved`.

        Args:
            x: the examples as served, `(n, dim)`, float64.
            exact: the examples as given. Frozen features, and under a basis all, count as served.
        """
        if self._basis is not None:
            return x
        return exact if self.moves_freely else np.where(self.factors(x.shape[1])[1], x, exact)

    def moved(self, x: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Bounds ‖ξ‖ between the claimed example and the certified point from above, `(n,)`.

        Args:
            x: the examples as served, `(n, dim)`, float64.
            change: their change by conversion to the model's dtype; see `claimed`.
        """
        if self._basis is not None:
            return np.zeros(len(x))
        factor, fixed = self.factors(x.shape[1])
        inexact = ~fixed & ~is_exact(factor)
        with np.errstate(over="ignore"):  # `coordinates` refuses such a weight
            off = UNIT * np.abs(x / factor) * inexact  # of the quotient
            return norm_bound(np.where(fixed, 0.0, np.abs(change) / factor) + off, axis=1)

    def require_inside(self, x: np.ndarray, first_index: int) -> None:
        """Refuses examples, `(n, dim)`, outside the box or not one-hot; InputError names one."""
        if self.categories is not None:
            self.categories.require_one_hot(x, first_index)
        low, high = self.limits(x.shape[1])
        outside = (x < low) | (x > high)
        if outside.any():
            row, feature = np.argwhere(outside)[0]
            raise InputError(
                f"example {first_index + row} has {x[row, feature]:g} for feature {feature}, which "
                f"the attacker keeps from {low[feature]:g} to {high[feature]:g}: it must be inside"
            )


UNRESTRICTED = Threat()
