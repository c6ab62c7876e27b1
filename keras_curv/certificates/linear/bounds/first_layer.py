"""Lower bounds on linear functions of the first hidden layer on balls, by its curvature.

Linear bounds of the layers behind reduce a unit or a margin to `F(x) = v·σ(z_1(x)) + c`, a network
of two layers, whose Hessian `W_1 diag(v ∘ σ″) W_1ᵀ` theorem 3 bounds. With `∇²F ≽ −κ` on a convex
set that contains `B(x0, R)` and x̂ = x0 + d, the minorant of `dual.py` at x̂ gives on that ball

    F ≥ F(x̂) − g·d − (κ/2)‖d‖² − ‖g + κ d‖ R − (κ/2) R²,    g = ∇F(x̂),

while lines around each σ become loose as the ball grows.

**In the space of units.** g is W_1 t with t = v ∘ σ′(z_1). So with d = −W_1 y the method needs only
products with `G = W_1ᵀW_1`: z_1(x̂) = z_1(x0) − G y, g·d = −tᵀG y, and `‖g + κd‖² = sᵀG s` for
s = t − κ y. The first x̂ is x0, y = 0; the next ones lie in the direction in which the last
minorant falls, `y = (ρ/‖W_1 s‖) s`, where G y is known already: one half way, ρ = R/2, because F
rarely bends as much as κ allows, and one on the sphere.

**κ.** The units of the second layer have the same v for every input: their κ holds on all of ℝᵈ
and is found once (`second_layer.py`). Other v depend on the ball, and then the range of σ″ is taken
for z_1 on the whole l2 ball: x̂ need not be a point that a threat allows, and the minorant at x̂
needs κ on the whole segment to x. For a margin κ is proved each time; for the many units of a later
layer it is `max(d) ‖W_1‖²`, d ≥ −v ∘ σ″.

**Rounding.** Let `e = (γ_{2D+2N+32}) ‖|W_1|‖² + 2 ‖W_1‖ ΔW + ΔW²`, ΔW the folding error: the error
of the computed G y is at most e ‖y‖. The errors, in norms, with ω and φ as in `rounding.py`, are

    z_1 by  ζ = ζ(x0) + γ_8 ‖z_1(x0)‖ + e ‖y‖,    σ by  ε = g ζ + ω u (‖a‖ + √N φ),
    t by  θ = ‖v‖ (h ζ + (ω + 2) u g),    F by  ‖v‖ ε + γ_{N+8} (‖v‖‖a‖ + |c|),
    tᵀG y by  (θ + γ_{N+8} ‖t‖) ‖|W_1|‖² ‖y‖ + ‖t‖ e ‖y‖,
    ‖W_1 s‖ ≤ √(sᵀG s + e ‖s‖²) + ‖W_1‖ (θ + 4u ‖s‖),    ‖s‖ ≤ ‖t‖ + κ‖y‖,  ‖t‖ ≤ g ‖v‖.

Here `‖a‖ ≤ ‖a(x0)‖ + g (‖W_1‖ ‖d‖ + ζ)`. If no further point follows x̂, only ‖W_1 s‖ is needed,
and is found in float32 (`image_norms.py`), with ΔW ‖s‖ added.

Reference: Singla & Feizi (2020), theorems 1 and 3, for two layers; their use behind linear bounds,
in the space of units, is ours.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from keras_curv.curvature.signed import congruence_by_norm, first_layer_curvature
from keras_curv.network.network import Network
from keras_curv.numerics import intervals, lanczos
from keras_curv.numerics.image_norms import ImageNorms
from keras_curv.numerics.rounding import (
    ACTIVATION_ULPS,
    CURVATURE_FLOOR,
    ROUNDING_SLACK,
    SLOPE_FLOOR,
    TINY,
    UNIT,
    gamma,
    norm_bound,
    up,
)
from keras_curv.numerics.rows import dot, times

_POINTS = 0.5, 1.0  # distances of the further points x̂ from x0, in radii
WORK = 2.0**36  # multiplications in the proofs of the units' curvatures
_RANGE = 1e-30, 1e30  # of ‖W_1‖: beyond, squares may over- or underflow


class Minorants(NamedTuple):
    """Minorants `level − steep R − (κ/2) R²` of m functions on balls around n centres."""

    level: np.ndarray  # `F(x̂) − g·d − (κ/2)‖d‖²`, `(n, m)`, as computed
    charge: np.ndarray  # bound on the error of the level
    steep: np.ndarray  # upper bound on ‖g + κd‖

    def take(self, some: np.ndarray) -> Minorants:
        """Returns the minorants around some of the centres."""
        return Minorants(*(part[some] for part in self))

    def least(self, radius: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """Bounds the functions from below on balls, `(n, m)`; radii `(n, 1)`, κ `(n or 1, m)`."""
        fall = self.steep * radius + 0.5 * kappa * radius**2
        return self.level - fall - (self.charge + gamma(16) * fall) * ROUNDING_SLACK


class Functions(NamedTuple):
    """Linear functions `v a_1 + c` of the first hidden layer, for each of n examples or for all."""

    rows: np.ndarray  # v, `(n or 1, m, N_1)`
    constants: np.ndarray  # c, `(n or 1, m)`
    size: np.ndarray  # upper bound on ‖v‖

    @classmethod
    def of(cls, rows: np.ndarray, constants: np.ndarray) -> Functions:
        """Makes functions of v and c."""
        return cls(rows, constants, norm_bound(rows, axis=2))

    def negative(self) -> Functions:
        """Returns the negative functions."""
        return Functions(-self.rows, -self.constants, self.size)


class Tangents(NamedTuple):
    """Minorants of linear functions of the first layer at points x̂, with their parts."""

    z: np.ndarray  # z, off: z_1 at the centres, `(n, N_1)`, and a bound on its error, `(n, 1)`
    off: np.ndarray
    minorants: Minorants  # the minorants of the functions, at x̂
    s: np.ndarray  # t − κy, `(n, m, N_1)`
    s_size: np.ndarray  # upper bound on ‖s‖
    turned: np.ndarray  # G s; empty if no further point follows
    a_size: np.ndarray  # upper bound on ‖a_1‖ at the centres, `(n, 1)`
    # −1 if the minorants are for the negative functions; s and `turned` are not negated
    sign: float = 1.0

    def take(self, some: np.ndarray) -> Tangents:
        """Returns the tangents around some of the centres."""
        arrays = (self.z, self.off, self.s, self.s_size, self.turned, self.a_size)
        z, off, s, s_size, turned, a_size = (part[some] for part in arrays)
        return Tangents(z, off, self.minorants.take(some), s, s_size, turned, a_size, self.sign)

    def negative(self) -> Tangents:
        """Returns the tangents of the negative functions, if these are at the centres."""
        minorants = self.minorants._replace(level=-self.minorants.level)
        return self._replace(minorants=minorants, sign=-self.sign)


class FirstLayer:
    """The smooth, dense first hidden layer of a network of three layers or more.

    Args:
        network: a network that `of` accepts.

    Attributes:
        norm: upper bound on the norm of W_1.
        second: the map after the layer.

    Example:
        >>> kernels = [np.eye(2), [[1.0, -1.0], [1.0, 1.0]], np.eye(2)]
        >>> network = Network.from_weights(kernels, [np.zeros(2)] * 3, "sigmoid")
        >>> z, error, radius = np.zeros((1, 2)), np.zeros((1, 1)), np.full(1, 0.1)
        >>> args = z, error, radius, np.ones((1, 1, 2)), np.zeros((1, 1))
        >>> FirstLayer(network).minimum(*args, each=True).round(3)  # 1 − 0.1 / √8
        array([[0.965]])
    """

    def __init__(self, network: Network):
        self._network = network
        self.second = network.affines[1]
        self._activation, self._norms = network.activations[0], network.layer_norms[0]
        norms = self._norms
        self._folding = folding = norms.kernel_error
        self.norm, self._magnitude = up(norms.norm + folding), up(norms.magnitude + folding)
        terms = 2 * (norms.fan_in + norms.fan_out) + 32
        rounded = gamma(terms) * self._magnitude**2 + 8.0 * TINY * norms.fan_in * norms.fan_out
        self._gram_error = up(rounded + 2.0 * self.norm * folding, 8)
        size = norms.fan_out * norms.fan_in * (1.0 + self._magnitude) ** 2
        self._underflow = 2.0**10 * TINY * size

    @classmethod
    def of(cls, network: Network) -> FirstLayer | None:
        """Returns the first layer of a network; None if it does not apply or is too much work."""
        dense = not any(affine.is_sparse for affine in network.affines[:2])
        if network.depth < 3 or not dense or not network.activations[0].smooth:
            return None
        inputs, units, second = network.sizes[:3]
        proofs = second * float(min(units, 2 * inputs)) ** 3
        in_range = _RANGE[0] < network.layer_norms[0].norm < _RANGE[1]
        return cls(network) if in_range and proofs <= WORK else None

    def minimum(
        self,
        z: np.ndarray,
        error: np.ndarray,
        radius: np.ndarray,
        rows: np.ndarray,
        constants: np.ndarray,
        *,
        each: bool,
    ) -> np.ndarray:
        """Returns lower bounds on `v a_1 + c` on balls, `(n, m)`.

        κ always holds on the whole l2 ball, because x̂ may be anywhere in it, even where a threat
        allows only a part of the ball.

        Args:
            z, error: z_1 at the centres, `(n, N_1)`, and a bound on the norm of its error,
                `(n, 1)`.
            radius: `(n,)`.
            rows, constants: v and c, `(n, m, N_1)` and `(n, m)`.
            each: whether κ is proved for each row, not taken from ‖W_1‖.
        """
        steepest = self._network.differentials[0].column_bounds
        reach = up(np.multiply.outer(radius, steepest)) + error
        low, high = self._activation.second_range_on(*intervals.outward(z, reach))
        bends = low[:, None], high[:, None]
        kappa, functions = self._curvatures(rows, bends, each=each), Functions.of(rows, constants)
        tangents, radius = self.tangents(z, error, functions), radius[:, None]
        best = np.fmax(-np.inf, tangents.minorants.least(radius, kappa))  # NaN becomes −∞
        for share in _POINTS:
            tangents = self.along(tangents, share * radius, functions, kappa, onward=True)
            best = np.fmax(best, tangents.minorants.least(radius, kappa))
        return best

    @functools.cached_property
    def unit_curvatures(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns κ of the second layer's units and of their negatives on ℝᵈ, `(N_2,)` each."""
        low, high = self._activation.second_range
        rows = self.second.kernel.T
        below = self._curvatures(rows, (low, high), each=True)
        if np.all(np.equal(low, -np.asarray(high))):
            return below, below
        return below, self._curvatures(-rows, (low, high), each=True)

    def _curvatures(self, rows: np.ndarray, bends: intervals.Interval, *, each: bool) -> np.ndarray:
        """Returns κ of rows `(…, N_1)`, proved for each, or from ‖W_1‖ and the largest entry."""
        affine = self._network.differentials[0]
        negative = -intervals.least_multiple(rows, bends)
        if not each:
            most = up(np.maximum(negative.max(axis=-1), 0.0))
            return congruence_by_norm(affine, most) + CURVATURE_FLOOR
        negative = up(np.maximum(negative, 0.0)).reshape(-1, rows.shape[-1])

        root = np.sqrt(negative)

        def product(v: np.ndarray) -> np.ndarray:
            return self._times_gram((v * root)[None]).reshape(v.shape) * root

        # √d G √d has the eigenvalues of W_1 diag(d) W_1ᵀ.
        value, _ = lanczos.largest_eigenpairs(product, negative.shape)
        guesses = np.maximum(value, 0.0) * lanczos.ESTIMATE_MARGIN
        found = first_layer_curvature(affine, negative, guesses) + CURVATURE_FLOOR
        return found.reshape(rows.shape[:-1])

    def _times_gram(self, rows: np.ndarray) -> np.ndarray:
        """Multiplies `(n, m, N_1)` with G."""
        if self._gram is None:
            kernel = self._network.differentials[0].kernel
            return times(times(rows, kernel.T), kernel)
        return times(rows, self._gram)

    @functools.cached_property
    def _gram(self) -> np.ndarray | None:
        """Returns G; None where products with W_1 are cheaper."""
        first = self._network.differentials[0]
        return first.gram.unscaled() if first.fan_out <= 2 * first.fan_in else None

    def tangents(self, z: np.ndarray, error: np.ndarray, functions: Functions) -> Tangents:
        """Returns the tangents at the centres.

        Args:
            z, error: see `minimum`.
            functions: the functions to bound.
        """
        off = error + gamma(8) * norm_bound(z, axis=1)[:, None]
        a, slope = self._activation.value_and_first(z[:, None])
        s, a_size = functions.rows * slope, norm_bound(a[:, 0], axis=1)[:, None]
        s_size = np.broadcast_to(self._steepest(functions), s.shape[:2])
        slope_error = self._slope_error(functions, off)
        value, charge = self._value(functions, a, a_size, off)
        charge = charge + gamma(16) * np.abs(value)
        charge += self._underflow * (1.0 + functions.size + a_size) * (1.0 + s_size)
        turned, steep = self._image(s, s_size, slope_error, onward=True)
        return Tangents(z, off, Minorants(value, charge, steep), s, s_size, turned, a_size)

    def along(
        self,
        before: Tangents,
        distance: np.ndarray,
        functions: Functions,
        kappa: np.ndarray,
        *,
        onward: bool = False,
    ) -> Tangents:
        """Returns the tangents at a distance from the centres, in the direction in which the
        minorants of `before` fall.

        Args:
            before: tangents of the same functions.
            distance: `(n, 1)`.
            functions: the functions to bound.
            kappa: `(n or 1, m)`.
            onward: whether another point follows, which needs G s; if not, only ‖W_1 s‖ is found,
                in float32.
        """
        step = (1.0 - 1e-9) * distance / before.minorants.steep
        y_size, bent = up(step * before.s_size), 0.5 * kappa * distance**2
        longest, step = 1.0 + y_size + step, before.sign * step
        moved = before.turned * step[:, :, None]
        off = before.off + self._gram_error * y_size
        at = np.subtract(before.z[:, None], moved, out=moved)
        a, slope = self._activation.value_and_first(at)
        a_size = before.a_size + self._norms.slope * (self.norm * distance + off)
        t, t_size = np.multiply(functions.rows, slope, out=slope), self._steepest(functions)
        slope_error = self._slope_error(functions, off)
        value, charge = self._value(functions, a, up(a_size, 64), off)
        along = _dot(t, before.turned) * step
        gram_error = gamma(t.shape[-1] + 16) * self._magnitude**2 + self._gram_error
        charge += (slope_error * self._magnitude**2 + t_size * gram_error) * y_size
        charge += gamma(16) * (np.abs(value) + np.abs(along) + bent)
        s = np.subtract(t, before.s * (step * kappa)[:, :, None], out=t)
        s_size = up(t_size + up(kappa * y_size))
        largest = (1.0 + functions.size + a_size) * (1.0 + s_size) * longest
        charge += self._underflow * largest
        turned, steep = self._image(s, s_size, slope_error, onward=onward)
        found = Minorants(value + along - bent, charge, steep)
        return before._replace(minorants=found, s=s, s_size=s_size, turned=turned, sign=1.0)

    def _steepest(self, functions: Functions) -> np.ndarray:
        """Bounds ‖t‖ from above."""
        return up(functions.size * self._norms.slope, 64)

    def _slope_error(self, functions: Functions, off: np.ndarray) -> np.ndarray:
        """Returns θ, a bound on the norm of the error of the computed t."""
        ulps = 2.0 * (ACTIVATION_ULPS + 2.0) * UNIT * self._norms.slope
        return functions.size * (self._norms.bend * off + ulps)

    def _value(
        self, functions: Functions, a: np.ndarray, a_size: np.ndarray, off: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `v a + c` and a bound on its error, where ‖a‖ is at most `a_size`."""
        norms, units = self._norms, a.shape[-1]
        value = _dot(functions.rows, a) + functions.constants
        ulps = 2.0 * ACTIVATION_ULPS * UNIT
        error = norms.slope * off + (ulps + gamma(units + 8)) * a_size
        error = functions.size * (error + ulps * units**0.5 * norms.floor)
        return value, error + gamma(units + 8) * np.abs(functions.constants)

    def _image(
        self, s: np.ndarray, s_size: np.ndarray, slope_error: np.ndarray, *, onward: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns G s if `onward`, and an upper bound on ‖W_1 s‖."""
        if onward:
            turned = self._times_gram(s)
            # Not the root of a sum: the square of s may underflow before the product.
            lost = np.sqrt(self._gram_error) * s_size
            # Not max(·, 0) of the square, which would hide a sum that overflowed to −∞.
            steep = np.hypot(np.sqrt(np.abs(_dot(s, turned))), lost)
        else:
            turned = np.empty((len(s), 0, 0))
            steep = self._image_norms.bounds(s, s_size) + self._folding * s_size
        steep += self.norm * (slope_error + 4.0 * UNIT * s_size)
        return turned, steep * ROUNDING_SLACK + SLOPE_FLOOR

    @functools.cached_property
    def _image_norms(self) -> ImageNorms:
        return ImageNorms(self._network.differentials[0].kernel)


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns dot products of rows, `(n, m, N)` each, or 1 in the place of n or m: `(n, m)`."""
    if other.shape[1] == 1:
        return dot(one, other[:, 0])
    return np.einsum("nmi,nmi->nm", *np.broadcast_arrays(one, other))
