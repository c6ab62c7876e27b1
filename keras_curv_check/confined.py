"""Where the input can go behind a clip, or in a box, and what is left of a margin: theorem 27.1."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, dot, norm, up, ups, vector
from keras_curv_check.files import NetworkFile
from keras_curv_check.network import Network, OutOfScopeError
from keras_curv_check.norms import NotProvedError

_STEPS = 80  # of a search for λ


class Room(NamedTuple):
    """How far each entry can go, and the least that moving it costs; `(dim,)` each.

    Attributes:
        cost: b, from below.
        limits: up and down, from above.
        dead: of moves up and down, from below.
    """

    cost: np.ndarray
    limits: tuple[np.ndarray, np.ndarray]
    dead: tuple[np.ndarray, np.ndarray]


class Clip(NamedTuple):
    """The clip `T(x) = min(max(s x + o, low), high)` that a network begins with.

    Attributes:
        scale, offset: s and o, exact.
        low, high: of each entry; the latter may be infinite.
        errors: of folding: the real first map is off by as much.
        behind: the network behind it.
    """

    scale: np.ndarray
    offset: np.ndarray
    low: float
    high: float
    errors: tuple[float, float]
    behind: Network

    def value(self, x: Vector) -> Vector:
        """Returns T(x)."""
        return [z.max(arb(self.low)).min(arb(self.high)) for z in self._unclipped(x)]

    def _unclipped(self, x: Vector) -> Vector:
        parts = zip(self.scale.tolist(), x, self.offset.tolist(), strict=True)
        return [s * a + o for s, a, o in parts]

    def room(self, x: Vector) -> Room:
        """Returns where T can go from T(x)."""
        moves = self.scale != 0.0
        size = np.where(moves, np.abs(self.scale), 1.0)
        cost = -ups([-1 / arb(s) for s in size.tolist()])
        pre, value = self._unclipped(x), self.value(x)
        ends = ups([self.high - u for u in value]), ups([u - self.low for u in value])
        beyond = [self.low - z for z in pre], [z - self.high for z in pre]
        dead = [-ups([-b / s for b, s in zip(part, vector(size), strict=True)]) for part in beyond]
        dead = [np.nan_to_num(np.maximum(part, 0.0), posinf=0.0) for part in dead]
        limits = [np.where(moves, np.maximum(end, 0.0), 0.0) for end in ends]
        return Room(cost, (limits[0], limits[1]), (dead[0], dead[1]))

    def widened(self, x: Vector, radius: arb) -> arb:
        """Returns a radius around x in which T takes all values that the real first map takes.

        `clip(s x + o + ξ) = T(x + ξ/s)`, and `‖ξ‖ ≤ ‖ΔW‖ ‖x‖ + ‖Δb‖`.
        """
        if not any(self.errors):
            return radius
        least = float(np.abs(self.scale).min())
        if not least:
            raise NotProvedError("the clip has an entry without scale, and folding errors")
        return radius + (self.errors[0] * (norm(x) + radius) + self.errors[1]) / arb(least)


def split_clip(network: Network) -> Clip | None:
    """Returns the clip that a network begins with; None if there is none."""
    file, kinds = network.file, network.layers[:1]
    first = file.maps[0]
    square = first.kernel.shape[0] == first.kernel.shape[1]
    if not kinds or not square or not isinstance(first.kernel, np.ndarray):
        return None
    limits = {sigma.limits for sigma in kinds[0]}
    scale = np.diagonal(first.kernel)
    known = limits.pop() if len(limits) == 1 else None
    if known is None or np.count_nonzero(first.kernel) != np.count_nonzero(scale):
        return None
    behind = Network(NetworkFile(file.maps[1:], file.activations[1:], len(scale), ""))
    return Clip(scale, first.bias, *known, (first.kernel_error, first.bias_error), behind)


class Box(NamedTuple):
    """A box that the attacker stays in.

    Attributes:
        low, high: of each entry, `(dim,)`; may be infinite.
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, said: dict, dim: int) -> Box:
        """Reads the box of a header: lists of one number, or of one for each entry.

        Raises:
            OutOfScopeError: it is none.
        """
        try:
            ends = [
                np.array([nothing if n is None else float(n) for n in said.get(name, [None])])
                for name, nothing in (("low", -math.inf), ("high", math.inf))
            ]
            return cls(*(np.broadcast_to(end, (dim,)) for end in ends))
        except (TypeError, ValueError) as error:
            raise OutOfScopeError(f"a box that does not fit: {str(error)[:100]}") from error

    def room(self, x: Vector) -> Room:
        """Returns where x can go."""
        ends = [ups([h - a for h, a in zip(self.high.tolist(), x, strict=True)])]
        ends += [ups([a - h for h, a in zip(self.low.tolist(), x, strict=True)])]
        ends = [np.maximum(end, 0.0) for end in ends]
        none = np.zeros(len(x))
        return Room(np.ones(len(x)), (ends[0], ends[1]), (none, none))


def minorant_left(
    margin: arb, gradient: Vector, moved: Vector, kappa: arb, radius: arb, room: Room | None
) -> arb:
    """Returns what is left of a margin at a radius.

    That is `A − hr − (κ/2)r²` of theorem 2.1; where the attacker cannot go anywhere,
    `S(λ) − λr²/2` of theorem 27.1, for about the best λ; each way that an entry can go is bounded
    by itself, as in its proof.

    Args:
        margin, gradient: at the point.
        moved: the point less where the input is, behind the clip.
        kappa: at least κ.
        radius: r.
        room: where the attacker can go; None: anywhere.
    """
    bend = arb(up(kappa))
    if not bend.is_finite():
        raise NotProvedError("there is no bound of the curvature")
    a = margin - dot(gradient, moved) - bend / 2 * dot(moved, moved)
    h = [g + bend * d for g, d in zip(gradient, moved, strict=True)]
    if room is None:
        return a - norm(h) * radius - bend / 2 * radius * radius
    # Of a move up, and down: how steeply the margin falls, how far it goes, and its dead zone.
    ways = [*zip((ups([-g for g in h]), ups(h)), room.limits, room.dead, strict=True)]

    def left(multiplier: float) -> float:
        """About `S(λ) − λr²/2`, in float64: to look where to go."""
        curve, falls = multiplier * room.cost**2 - float(bend), []
        for size, limit, dead in ways:
            slope, start = size - multiplier * room.cost * dead, multiplier * dead**2 / 2
            with np.errstate(all="ignore"):
                far = np.where(curve > 0.0, np.clip(slope / curve, 0.0, limit), limit)
                fall = start - slope * far + curve * far * far / 2
            fall = np.where(np.isnan(fall), -np.inf, np.minimum(fall, 0.0))
            falls.append(np.where(far > 0.0, fall, 0.0))
        return float(a) + float(np.minimum(*falls).sum()) - multiplier / 2 * float(radius) ** 2

    best = arb(_best(left, max(2.0 * float(a) / float(radius) ** 2, 1e-300)))
    cost = vector(room.cost)
    sides = [
        [_fall(best, bend, *entry) for entry in zip(cost, *map(vector, way), strict=True)]
        for way in ways
    ]
    total = sum((one.min(other) for one, other in zip(*sides, strict=True)), ZERO)
    return a + total - best * radius * radius / 2


def _fall(multiplier: arb, bend: arb, cost: arb, size: arb, limit: arb, dead: arb) -> arb:
    """Bounds φ_i from below, of moves to one side; all numbers are exact."""
    if limit.is_zero():
        return ZERO
    curve = multiplier * cost * cost - bend
    slope = size - multiplier * cost * dead
    start = multiplier * dead * dead / 2
    if curve > 0:
        if slope <= 0:
            return ZERO
        if limit.is_finite() and slope >= curve * limit:
            return (start - slope * limit + curve * limit * limit / 2).min(ZERO)
        return (start - slope * slope / (2 * curve)).min(ZERO)
    if not limit.is_finite():
        return arb.neg_inf()
    steep = curve.min(ZERO)
    return (start - slope * limit + steep * limit * limit / 2).min(ZERO)


def _best(left, most: float) -> float:  # type: ignore[no-untyped-def]
    """Returns about where a function with one peak, −∞ far below it, is the largest."""
    low, high = math.log(most) - 30.0, math.log(most) + 1.0
    for _ in range(_STEPS):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        here = left(math.exp(one))
        if here == -math.inf or here < left(math.exp(other)):
            low = one
        else:
            high = other
    return math.exp((low + high) / 2)
