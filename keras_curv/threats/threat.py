"""What the attacker may do to an input x: `x + Bξ` with `‖ξ‖₂ < r`, within a box.

    scale     B = diag(s): feature i moves s_i a unit of ξ, as a sensor of tolerance s_i may err
    frozen    features that do not move: s_i = 0
    basis     B of few columns: all features move together, in a subspace
    low, high what x + Bξ stays between, feature by feature; either may be infinite

B is absorbed by the first map: `ξ ↦ f(x + Bξ)` is the network whose first kernel is B W, and every
bound and every charge of rounding is one of that network. Weights are divided out of the input,
u = x/s, so that it keeps its size; what is frozen is pinned (`network/pinned.py`). A basis makes
the input (ξ, x), x pinned, and is started at (0, x).

A box confines the *attacker*: nothing is claimed of inputs outside of it. That is another claim
than the one of a model which clips its own input, and a weaker one than that of an unrestricted δ;
whatever is printed says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network, require_dense
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.numerics.rounding import TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.spectral import spectral_norm_bound

PLAIN = "l2"
_NAMES = ("scale", "frozen", "basis", "low", "high")
_EXACT = 0.5  # the mantissa of a power of 2: products with it, and quotients, are exact


class Threat:
    """What the attacker may do; nothing given is any δ with `‖δ‖₂ < r`.

    Arrays are of the shape of one input, or flat; one number stands for all features.

    Args:
        scale: weights s > 0 by feature, so that radii are in units of `δ_i / s_i`.
        frozen: features that do not change: bools, or indices into the flattened input.
        basis: `(dim, q)`, the directions in which inputs change, as columns.
        low, high: the attacker stays between; examples must, too.

    Raises:
        InputError: a weight that is not positive, a limit the wrong way round, nothing that can
            move, or a basis together with something else.

    Example:
        >>> threat = Threat(scale=[1.0, 0.5], low=0.0)
        >>> print(threat.text)
        changes with ‖δ/s‖₂ < r, weights s by feature from 0.5 to 1; attacker confined to at least 0
    """

    def __init__(
        self,
        *,
        scale: ArrayLike | None = None,
        frozen: ArrayLike | None = None,
        basis: ArrayLike | None = None,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
    ):
        self._scale = None if scale is None else _numbers(scale, "scale").reshape(-1)
        self._frozen = None if frozen is None else _frozen(frozen)
        self._basis = None if basis is None else _numbers(basis, "basis")
        self._low = _limit(low, "low", -math.inf)
        self._high = _limit(high, "high", math.inf)
        if self._low.size > 1 < self._high.size and self._low.size != self._high.size:
            raise InputError(
                f"low and high differ in size. Received: {self._low.size} and {self._high.size}"
            )
        if (self._low > self._high).any():
            worst = np.argmax(self._low - self._high)
            low, high = (np.broadcast_arrays(self._low, self._high)[i][worst] for i in (0, 1))
            raise InputError(f"low must not be above high. Received: {low:g} and {high:g}")
        if self._scale is not None and not (self._scale > 0.0).all():
            raise InputError(
                "weights must be positive; a feature that cannot change is frozen. "
                f"Received: {self._scale.min():g}"
            )
        if self._basis is not None:
            self._require_basis(self._basis)
        if self._frozen is not None and self._frozen.dtype == bool and self._frozen.all():
            raise InputError("all features are frozen: there is nothing that an attacker can move")

    def _require_basis(self, basis: np.ndarray) -> None:
        if any(part is not None for part in (self._scale, self._frozen)) or self.confined:
            raise InputError("a basis says by itself what changes: no scale, frozen, low or high")
        if basis.ndim != 2 or 0 in basis.shape or not basis.any():
            raise InputError(f"basis must be (dim, q) and not 0. Received: {basis.shape}")

    @property
    def plain(self) -> bool:
        """Whether this is any δ with `‖δ‖₂ < r`."""
        return self.moves_freely and not self.confined

    @property
    def moves_freely(self) -> bool:
        """Whether δ = ξ."""
        return self._scale is None and self._frozen is None and self._basis is None

    @property
    def has_basis(self) -> bool:
        """Whether δ = Bξ in a subspace."""
        return self._basis is not None

    @property
    def confined(self) -> bool:
        """Whether there is a box."""
        return bool(np.isfinite(self._low).any() or np.isfinite(self._high).any())

    @property
    def holds_in_float32(self) -> bool:
        """Whether its radii can be those of what is served in float32."""
        return self._scale is None and self._basis is None

    @property
    def units(self) -> str | None:
        """The units of radii, if not those of the model's input."""
        if self._basis is not None:
            return "the length of ξ, of which changes are Bξ"
        return None if self._scale is None else "the weights s of the features"

    @property
    def text(self) -> str:
        """The threat in words."""
        if self._basis is not None:
            what = (
                f"changes δ = Bξ with ‖ξ‖₂ < r, in a subspace of {self._basis.shape[1]} directions"
            )
        elif self._scale is not None:
            least, most = self._scale.min(), self._scale.max()
            what = f"changes with ‖δ/s‖₂ < r, weights s by feature from {least:g} to {most:g}"
        else:
            what = "changes with ‖δ‖₂ < r"
        if self._frozen is not None:
            count = int(self._frozen.sum() if self._frozen.dtype == bool else self._frozen.size)
            what += f", {count} features frozen"
        return f"{what}; attacker confined to {self._box_text()}" if self.confined else what

    def _box_text(self) -> str:
        low, high = np.unique(self._low), np.unique(self._high)
        if len(low) > 1 or len(high) > 1:
            return "a range of each feature"
        if not np.isfinite(low[0]):
            return f"at most {high[0]:g}"
        return f"at least {low[0]:g}" if not np.isfinite(high[0]) else f"[{low[0]:g}, {high[0]:g}]"

    def __str__(self) -> str:
        """All that there is to it, for settings: numbers where they are few, else a digest."""
        said = [f"{name} {_digest(array)}" for name, array in self._arrays().items()]
        return "; ".join(said) or PLAIN

    @staticmethod
    def of(given: Threat | Mapping[str, Any]) -> Threat:
        """Returns a threat as it is, or the one with these arguments; InputError for others."""
        if isinstance(given, Threat):
            return given
        if not isinstance(given, Mapping) or not set(given) <= set(_NAMES):
            raise InputError(f"a threat has {', '.join(_NAMES)}. Received: {given!r}")
        return Threat(**given)

    def config(self) -> dict[str, list]:
        """Returns lists of which `Threat(**config)` makes the same one."""
        return {name: array.tolist() for name, array in self._arrays().items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        """What there is, by the names of the constructor."""
        parts = {name: getattr(self, f"_{name}") for name in _NAMES}
        return {name: a for name, a in parts.items() if a is not None and _says(name, a)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Threat) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))

    def factors(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the divisors of inputs, 1 where they are frozen, and which are; `(dim,)` each."""
        fixed = np.zeros(dim, bool)
        if self._frozen is not None:
            chosen = self._frozen.reshape(-1)
            if chosen.dtype == bool:
                fixed[:] = _spread(chosen, dim, "frozen")
            elif chosen.max() >= dim:
                raise InputError(
                    f"frozen names feature {chosen.max()}, but there are {dim} (0 to {dim - 1})"
                )
            else:
                fixed[chosen] = True
            if fixed.all():
                raise InputError(
                    "all features are frozen: there is nothing that an attacker can move"
                )
        scale = np.ones(dim) if self._scale is None else _spread(self._scale, dim, "scale")
        return np.where(fixed, 1.0, scale), fixed

    def limits(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """`low` and `high` of every feature."""
        return _spread(self._low, dim, "low"), _spread(self._high, dim, "high")

    def network(self, network: Network, dim: int) -> Network:
        """The network of ξ, or of x/s: the first `dim` inputs are those of the model.

        Raises:
            InputError: the threat is of inputs of another size.
        """
        limits = self.limits_of(network.dim, dim)
        if self.moves_freely:
            if limits is None:
                return network
            known, direct = network.pinned, getattr(network, "direct", None)
            return PinnedNetwork(network.affines, network.activations, known, direct, limits)
        require_dense(network, "weights by feature, frozen features or a basis", "pool before it")
        first = network.affines[0]
        known = np.zeros(network.dim, bool) if network.pinned is None else network.pinned
        direct = getattr(network, "direct", None)
        if self._basis is not None:
            moved = _basis_map(self._basis, first, dim)
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
        """The limits of all inputs of a network of u = x/s, from outside; None: there are none.

        Args:
            total: inputs of the network.
            dim: how many of them, from the first on, are those of the model.
        """
        low, high = self.limits(dim)
        if not self.confined:
            return None
        factor = self.factors(dim)[0]
        exact = np.abs(np.frexp(factor)[0]) == _EXACT
        low, high = low / factor, high / factor
        # An infinite one stays so.
        low = np.where(exact | np.isinf(low), low, np.nextafter(low, -np.inf))
        high = np.where(exact | np.isinf(high), high, np.nextafter(high, np.inf))
        more = total - dim
        return (
            np.concatenate([low, np.full(more, -np.inf)]),
            np.concatenate([high, np.full(more, np.inf)]),
        )

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """The input of `network` at x, `(n, dim)` float64, without further pinned numbers."""
        if self._basis is not None:
            return np.concatenate([np.zeros((len(x), self._basis.shape[1])), x], axis=1)
        if self.moves_freely:
            return x
        with np.errstate(over="ignore"):
            u = x / self.factors(x.shape[1])[0]
        if not np.isfinite(u).all():
            raise InputError("a weight is so small that an input divided by it overflows")
        return u

    def moved(self, x: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Returns ‖ξ‖ of the way from x to the point that is certified, `(n,)`.

        Args:
            x: as served, `(n, dim)`, float64.
            change: what converting to the model's dtype did to it. What is frozen, and under a
                basis the whole input, counts as it is served.
        """
        if self._basis is not None:
            return np.zeros(len(x))
        factor, fixed = self.factors(x.shape[1])
        inexact = ~fixed & (np.abs(np.frexp(factor)[0]) != _EXACT)
        off = UNIT * np.abs(x / factor) * inexact  # of the quotient
        return norm_bound(np.where(fixed, 0.0, np.abs(change) / factor) + off, axis=1)

    def require_inside(self, x: np.ndarray, first_index: int) -> None:
        """InputError where an example is outside of the box, naming it; `(n, dim)`."""
        low, high = self.limits(x.shape[1])
        outside = (x < low) | (x > high)
        if outside.any():
            row, feature = np.argwhere(outside)[0]
            raise InputError(
                f"example {first_index + row} has {x[row, feature]:g} for feature {feature}, which "
                f"the attacker keeps from {low[feature]:g} to {high[feature]:g}: it must be inside"
            )


def _basis_map(basis: np.ndarray, first: Affine, dim: int) -> Affine:
    """`ξ ↦ Bξ + x` before the first map: the rows of B W above its own."""
    if len(basis) != dim:
        raise InputError(f"basis must be ({dim}, q). Received: {basis.shape}")
    kernel = first.kernel[:dim]
    product = basis.T @ kernel
    size = norm_bound(basis) * norm_bound(kernel)
    lost = gamma(dim + 4) * size + 8.0 * TINY * dim * (1.0 + size)
    error = up(first.kernel_error * (1.0 + spectral_norm_bound(basis)) + lost)
    return Affine(np.concatenate([product, first.kernel]), first.bias, error, first.bias_error)


def scaled(affine: Affine, factor: np.ndarray) -> Affine:
    """The map of u, with `a = factor ∘ u`: rounding charged where a factor is no power of 2."""
    most = max(1.0, float(factor.max()))
    kernel = factor[:, None] * affine.kernel
    exact = (np.abs(np.frexp(factor)[0]) == _EXACT)[:, None]
    lost = (
        UNIT * norm_bound(np.where(exact, 0.0, kernel)) + TINY * kernel.size * (factor != 1.0).any()
    )
    return Affine(
        kernel,
        affine.bias,
        up(affine.kernel_error * most + lost),
        affine.bias_error,
        factor[:, None] * affine.served_kernel_error,
        affine.served_bias_error,
        affine.served_gain * most,
    )


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers: {error}") from error
    if not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers. Received: {array.size} entries")
    return array


def _limit(values: Any, name: str, none: float) -> np.ndarray:
    """A limit as an array; None, or NaN in its place, is no limit."""
    try:
        array = np.array(none if values is None else values, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers: {error}") from error
    array = np.where(np.isnan(array), none, array)
    if not array.size or (array == -none).any():
        raise InputError(f"{name} must be numbers, or {none:g} for none. Received: {-none:g}")
    return array


def _frozen(values: Any) -> np.ndarray:
    array = np.array(values).reshape(-1)
    if array.dtype == bool:
        return array
    if not array.size or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise InputError("frozen must be bools, or indices of features, one at least")
    return np.unique(array)


def _spread(values: np.ndarray, dim: int, name: str) -> np.ndarray:
    values = values.reshape(-1)
    if len(values) not in (1, dim):
        raise InputError(f"{name} must have {dim} entries, one for each feature, or one. "
                         f"Received: {len(values)}")  # fmt: skip
    return np.broadcast_to(values, dim)


def _says(name: str, values: np.ndarray) -> bool:
    """Whether it is there at all; limits always are arrays."""
    return name not in ("low", "high") or bool(np.isfinite(values).any())


def _digest(values: np.ndarray) -> str:
    if values.size <= 8 and values.ndim == 1:
        return ",".join(repr(value) for value in values.tolist())
    data = f"{values.dtype.str} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes()
    return f"{values.shape} sha256:{hashlib.sha256(data).hexdigest()[:16]}"


UNRESTRICTED = Threat()
