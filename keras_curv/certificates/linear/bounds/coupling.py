"""How the units of a layer move together, and what linear bounds gain by it.

Lines around each activation let every unit of a layer be at its worst at once. On a ball of inputs
they cannot: the vector of pre-activations moves by ρ at most. Let C be units with a kink at 0
inside their interval `[l, u]`, ẑ their pre-activations at the centre, and `‖z_C − ẑ_C‖ ≤ ρ` on the
ball. For any coefficients Λ, any slopes G and any λ ≥ 0,

    Σ_C Λ_i relu(z_i)  ≥  Σ_C (G_i z_i + p_i) − λρ²/2,
    p_i = min over l_i ≤ s ≤ u_i of  Λ_i relu(s) − G_i s + (λ/2)(s − ẑ_i)²,

because `(λ/2)‖z_C − ẑ_C‖² ≤ λρ²/2`. With λ = 0 and the slopes of `relaxation.py` this is CROWN. The
minimum is that of two parabolas, each on an interval: it is at `ẑ + G/λ` and at `ẑ + (G − Λ)/λ`,
clamped. A leaky ReLU is `a z + (1 − a) relu(z)`: its first part is linear, and the second one has
coefficients `(1 − a) Λ`. A clip at some c > 0 is a relu where u ≤ c.

**All units.** Let also `‖z − ẑ‖ ≤ ρ_all` for the whole layer. Then, for any λ, μ ≥ 0 and any H at
the units outside of C, p being that of λ + μ,

    Σ_C Λ_i relu(z_i)  ≥  Σ_C (G_i z_i + p_i) + Σ_H (H_i (z_i − ẑ_i) − H_i²/2μ) − (λρ² + μρ_all²)/2,

as `(μ/2)(z_i − ẑ_i)² ≥ H_i (z_i − ẑ_i) − H_i²/2μ`. So units of known sign give up a part of their
slope, H, where those of C do, which shortens the row as a whole. That proves much more where
kernels keep lengths and ρ is about ρ_all; with μ = 0 and H = 0 it is the bound above.

**Slopes.** Where Λ_i ≥ 0, the tangent of Λ_i relu at ẑ_i costs nothing: p_i = 0. Where Λ_i < 0,
`Λ_i relu(s) + (λ/2)(s − ẑ_i)²` is two parabolas, and one line touches both from below, at ±t with
`t = |Λ_i|/2λ`. If t > |l|, the line begins at l and touches at `l + 2√(t|l|)`, and likewise from u;
if that is beyond the other end, it is the chord. If ẑ_i is between the two points, that line is the
highest one at ẑ_i, and otherwise the tangent is.

**λ.** With these slopes the bound at the centre loses `Σ ℓ_i(λ) + λρ²/2`, which is convex in λ, and
`−ℓ_i′(λ) = ½ (ẑ_i − s₁)₊ (s₂ − ẑ_i)₊` with the two points. So the best λ has
`Σ (ẑ_i − s₁)₊ (s₂ − ẑ_i)₊ = ρ²`, a falling function of λ, about as λ⁻²; if it is less than ρ²
between the ends of the intervals, λ is 0.

Any G, H, λ and μ are sound: they are estimates, and p is computed for what they are.

**Rounding.** A computed minimiser is off by `e ≤ γ₄ (|ẑ| + max(|l|, |u|))` where it is not clamped,
which raises the value by (λ/2) e². Values and sums are off by γ of the terms' magnitudes.

Reference: Chiu, Chen, Zhang & Zhang, "SDP-CROWN: efficient bound propagation for neural network
verification with tightness of semidefinite programming" (2025), for relu in one ball of all units
without intervals; with intervals, the ball of C, its slopes and λ it is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_curv.network.activations import Activation
from keras_curv.network.unitwise import IDENTITY
from keras_curv.numerics.rounding import TINY, gamma, norm_bound, up
from keras_curv.numerics.rows import row_norms

_HALVINGS, _SMALL = 5, 2.0**-6  # of an interval for λ in the logarithm, and its lower end
_EQUAL = 1e-9  # relative difference of two minima
SMALLEST = 1e-120  # λ for rows whose coupled units do not matter


class Choice(NamedTuple):
    """What a step back through a layer chooses, for n examples and m rows; anything is sound.

    Attributes:
        slopes: G, `(n, m, N)`; 0 at units outside of C.
        turns: H, `(n, m, N)`; 0 at the units of C.
        multiplier: λ, `(n, m, 1)`.
        shared: μ, `(n, m, 1)`.
    """

    slopes: np.ndarray
    turns: np.ndarray
    multiplier: np.ndarray
    shared: np.ndarray

    @classmethod
    def nothing(cls, count: int, size: int) -> Choice:
        """Returns a choice of one row for so many examples and units, with multipliers NaN."""
        unknown = np.full((2, count, 1, 1), np.nan)
        return cls(*np.zeros((2, count, 1, size)), *unknown)


class Coupling(NamedTuple):
    """The units of a layer that are bounded together, for n examples.

    Attributes:
        units: the mask of C, `(n, N)`.
        low, high: their intervals, `(n, N)`; 0 at other units.
        centre: ẑ, `(n, N)`; 0 at other units.
        ball: ρ, `(n, 1)`, which includes the rounding of ẑ.
        far: bounds ‖max(|l|, |u|)‖ over C, `(n, 1)`.
        others: ẑ of all other units, `(n, N)`; 0 at those of C.
        whole: ρ_all, `(n, 1)`, likewise.
        left: a, the slope below 0, `(n, N)`; 0 at other units. None: 0 at all.
    """

    units: np.ndarray
    low: np.ndarray
    high: np.ndarray
    centre: np.ndarray
    ball: np.ndarray
    far: np.ndarray
    others: np.ndarray
    whole: np.ndarray
    left: np.ndarray | None

    def take(self, some: np.ndarray | slice) -> Coupling:
        """Returns the units of some of the examples."""
        left = None if self.left is None else self.left[some]
        parts = {name: getattr(self, name)[some] for name in self._fields[:-1]}
        return Coupling(**parts, left=left)

    def seen(self, of: np.ndarray, places: np.ndarray) -> Coupling:
        """Returns some units, `(k, s)`, of some examples, `(k,)`; the ball stays that of all."""
        at = of[:, None], places
        units, low, high, centre = (part[at] for part in self[:4])
        left = None if self.left is None else self.left[at]
        balls = self.ball[of], self.far[of], self.others[at], self.whole[of]
        return Coupling(units, low, high, centre, *balls, left)

    def linear(self, rows: np.ndarray) -> tuple[np.ndarray | float, np.ndarray | float]:
        """Returns `a Λ`, the part of these rows, `(n, m, N)`, that is linear in z, and a bound of
        what the roundings of this part and of `bent` add to `rounding`, `(n, m)`."""
        if self.left is None:
            return 0.0, 0.0
        rows = rows * self.left[:, None]
        terms = rows.shape[-1]
        underflow = 64.0 * TINY * terms * (1.0 + self.far)
        return rows, gamma(terms + 64) * row_norms(rows) * self.far + underflow

    def bent(self, rows: np.ndarray) -> np.ndarray:
        """Returns `(1 − a) Λ`, the coefficients of relu, which all other methods take."""
        return rows if self.left is None else rows * (1.0 - self.left)[:, None]

    def value(self, z: np.ndarray, hinge: np.ndarray) -> np.ndarray:
        """Returns `a z + (1 − a) relu` from z and relu, `(n, N)`."""
        return hinge if self.left is None else self.left * z + (1.0 - self.left) * hinge

    def multipliers(self, rows: np.ndarray) -> np.ndarray:
        """Returns λ for Λ, `(n, m, N)`, that loses least at the centre, about; `(n, m, 1)`."""
        size = np.where(self.units[:, None], np.maximum(-rows, 0.0), 0.0)
        square, centre = self.ball**2, self.centre[:, None]
        low, high = self.low[:, None], self.high[:, None]
        most = self.scale(rows)[..., 0]
        least = most * _SMALL
        for _ in range(_HALVINGS):
            middle = np.sqrt(least * most)
            touch = size / (2.0 * middle[..., None])
            before = centre - np.maximum(low, -touch)
            after = np.minimum(high, touch, out=touch) - centre
            np.maximum(before, 0.0, out=before)
            np.maximum(after, 0.0, out=after)
            wide = np.einsum("nmi,nmi->nm", before, after) > square
            least, most = np.where(wide, middle, least), np.where(wide, most, middle)
        found = np.sqrt(least * most)
        # Intervals may say more than the ball does.
        room = (self.centre - self.low) * (self.high - self.centre)
        spread = np.einsum("nmi,ni->nm", size > 0.0, room)
        found = np.where(np.isfinite(found) & (spread > square), found, SMALLEST)
        return found[..., None]

    def scale(self, rows: np.ndarray) -> np.ndarray:
        """Returns the best λ for Λ if all ẑ were 0 and intervals endless, `(n, m, 1)`; it is never
        more."""
        size = np.where(self.units[:, None], np.maximum(-rows, 0.0), 0.0)
        total = np.sqrt(np.einsum("nmi,nmi->nm", size, size))
        return np.maximum(total / (2.0 * self.ball), SMALLEST)[..., None]

    def slopes(self, rows: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        """Returns G for Λ, `(n, m, N)`: the highest line at the centre; 0 at other units."""
        low, high, centre = (part[:, None] for part in (self.low, self.high, self.centre))
        touch = np.maximum(-rows, 0.0) / (2.0 * multiplier)
        left, right = np.maximum(low, -touch), np.minimum(high, touch)
        # From an end that is nearer than the point, the line touches nearer, too.
        from_low = np.minimum(high, low + 2.0 * np.sqrt(-touch * low))
        from_high = np.maximum(low, high - 2.0 * np.sqrt(touch * high))
        left, right = (
            np.where(touch > high, from_high, left),
            np.where(touch > -low, from_low, right),
        )
        between = (left < centre) & (centre < right)
        rise = rows * right + 0.5 * multiplier * (right - left) * (left + right - 2.0 * centre)
        # At a kink, the middle of all tangents; 0 at units that are not coupled.
        tangent = np.where(self.units[:, None], rows * np.heaviside(centre, 0.5), 0.0)
        return np.divide(rise, right - left, out=tangent, where=between)

    def least(self, rows: np.ndarray, slopes: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        """Returns p, `(n, m, N)`; 0 at other units."""
        _, _, on_left, on_right = self._minima(rows, slopes, multiplier)
        return np.minimum(on_left, on_right)

    def attained(
        self, rows: np.ndarray, slopes: np.ndarray, multiplier: np.ndarray, toward: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns where p is attained, and relu there, `(n, m, N)` each; 0 at other units.

        Where both parabolas are as low, as with the slopes of `slopes`, it is the mean of both
        places that is closest to `toward`: rounding must not decide.
        """
        left, right, on_left, on_right = self._minima(rows, slopes, multiplier)
        size = np.abs(on_left) + np.abs(on_right) + np.abs(slopes) * (right - left)
        equal = np.abs(on_left - on_right) <= _EQUAL * size
        within = np.clip(np.nan_to_num((toward - left) / (right - left)), 0.0, 1.0)
        share = np.where(equal, within, on_right < on_left)
        return left + share * (right - left), share * right

    def moved(self, at: np.ndarray) -> np.ndarray:
        """Returns `‖z_C − ẑ_C‖² / ρ²` and `‖z − ẑ‖² / ρ_all²` of z, `(n, m, N)`; `(n, m, 2)`."""
        square = (at - self.centre[:, None] - self.others[:, None]) ** 2
        both = np.einsum("nmi,ni->nm", square, self.units.astype(float)), square.sum(axis=-1)
        return np.stack(both, axis=-1) / np.stack([self.ball, self.whole], axis=-1) ** 2

    def _minima(self, rows: np.ndarray, slopes: np.ndarray, multiplier: np.ndarray) -> tuple:
        """Returns where each of the parabolas is least, and its values there."""
        low, high, centre = (part[:, None] for part in (self.low, self.high, self.centre))
        left = np.clip(centre + slopes / multiplier, low, 0.0)
        right = np.clip(centre + (slopes - rows) / multiplier, 0.0, high)
        half = 0.5 * multiplier
        on_left = half * (left - centre) ** 2 - slopes * left
        on_right = half * (right - centre) ** 2 + (rows - slopes) * right
        return left, right, on_left, on_right

    def offset(
        self,
        rows: np.ndarray,
        slopes: np.ndarray,
        multiplier: np.ndarray,
        shared: np.ndarray | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `Σ p − λρ²/2` and a bound of its error, `(n, m)` each, for G, λ and μ."""
        bend = multiplier + shared
        least = self.least(rows, slopes, bend)
        value = np.sum(least, axis=-1) - 0.5 * multiplier[..., 0] * self.ball**2
        return value, self.rounding(rows, slopes, bend)

    def turned(self, turns: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns `Σ (−H ẑ − H²/2μ) − μρ_all²/2` and a bound of its error, `(n, m)` each."""
        half, terms = 0.5 * shared[..., 0], turns.shape[-1]
        lost = np.einsum("nmi,nmi->nm", turns, turns) / (4.0 * half) + half * self.whole**2
        level = np.einsum("nmi,ni->nm", turns, self.others)
        size = row_norms(turns) * norm_bound(self.others, axis=1)[:, None]
        error = gamma(terms + 64) * (size + 2.0 * lost)
        underflow = 64.0 * TINY * terms * (1.0 / half + half)
        return -(level + lost), error + underflow

    def rounding(self, rows: np.ndarray, slopes: np.ndarray, bend: np.ndarray) -> np.ndarray:
        """Bounds the error of `offset` for λ + μ wherever the minimum is, `(n, m)`."""
        lam, terms = bend[..., 0], rows.shape[-1]
        sizes = row_norms(rows) + 2.0 * row_norms(slopes)
        # |s − ẑ| ≤ 2 max(|l|, |u|), and so are ρ, which is no larger, and |ẑ|.
        bent = lam * (4.0 * self.far**2 + self.ball**2)
        error = gamma(terms + 64) * (sizes * self.far + bent)
        return error + 64.0 * TINY * terms * (
            1.0 + lam
        )  # squares are multiplied by λ, nothing else


def coupling_of(
    activation: Activation,
    low: np.ndarray,
    high: np.ndarray,
    centre: np.ndarray,
    off: np.ndarray,
    ball: np.ndarray,
    whole: np.ndarray,
) -> Coupling:
    """Returns the units of a layer that are bounded together.

    Args:
        activation: σ.
        low, high: the intervals of z, `(n, N)`.
        centre, off: z at the centres, `(n, N)`, and a bound on its error, `(n, 1)`.
        ball: a bound on ‖z − z(x0)‖ over the units that are not linear, `(n, 1)`.
        whole: a bound on it over all units, `(n, 1)`.
    """
    ball, whole = up(ball + off), up(whole + off)
    units = coupled_units(activation, low, high) & np.isfinite(ball)
    # z(x0) is in the interval: what is clamped to it is not farther from z(x0).
    others = np.where(units, 0.0, centre)
    ends = (low, high, np.clip(centre, low, high))
    low, high, centre = (np.where(units, end, 0.0) for end in ends)
    far = norm_bound(np.maximum(-low, high), axis=1)[:, None]
    slopes = np.zeros(units.shape)
    for each, part in activation.groups:
        slopes[:, part] = each.left or 0.0
    left = np.where(units, slopes, 0.0) if slopes.any() else None
    return Coupling(units, low, high, centre, ball, far, others, whole, left)


def straight_units(
    activation: Activation, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mask of units whose slope is exactly one number, and that number, `(n, N)`.

    Example:
        >>> from keras_curv.network import activations
        >>> ends = np.array([[-1.0, 1.0, -2.0]]), np.array([[1.0, 2.0, -1.0]])
        >>> straight_units(activations.get("relu"), *ends)
        (array([[False,  True,  True]]), array([[0., 1., 0.]]))
    """
    found, slope = np.zeros(low.shape, bool), np.zeros(low.shape)
    for each, units in activation.groups:
        least, most = low[..., units], high[..., units]
        if each.left is not None:
            right, beyond = (least >= 0.0) & (most <= each.until), least >= each.until
            found[..., units] = right | beyond | (most <= 0.0) | (each.left == 1.0)
            slope[..., units] = np.where(beyond, 0.0, np.where(right, 1.0, each.left))
        elif each is IDENTITY:
            found[..., units], slope[..., units] = True, 1.0
    return found, slope


def coupled_units(activation: Activation, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the mask of units with their one kink at 0 inside their interval, `(n, N)`.

    Example:
        >>> from keras_curv.network import activations
        >>> ends = np.array([[-1.0, 1.0]]), np.array([[1.0, 2.0]])
        >>> coupled_units(activations.get("relu"), *ends)
        array([[ True, False]])
    """
    found = np.zeros(low.shape, bool)
    for each, units in activation.groups:
        if each.left not in (None, 1.0):
            inside = (low[..., units] < 0.0) & (high[..., units] > 0.0)
            found[..., units] = inside & (high[..., units] <= each.until)
    return found & np.isfinite(low) & np.isfinite(high)
