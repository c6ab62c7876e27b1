"""Curvature of a smoothed classifier: Gaussian averaging bounds every Hessian by itself.

For `g: ℝᵈ → [0, 1]` measurable and `ĝ(x) = E g(x + s ξ)`, ξ standard normal in ℝᵈ, integrating by
parts twice gives, for every unit u,

    uᵀ ∇²ĝ(x) u = E[g(x + s ξ) ((u·ξ)² − 1)] / s².

`u·ξ` is standard normal whatever u, so the expectation is largest for g = 1 exactly where
`(u·ξ)² > 1`, and smallest for its complement, a slab:

    E[(ζ² − 1)⁺] = 2 ∫₁^∞ (ζ² − 1) φ(ζ) dζ = 2 φ(1),    as (−ζ φ(ζ))′ = (ζ² − 1) φ(ζ),

and `E[ζ² − 1] = 0` makes the other extreme −2φ(1). Both are attained, so the constant is sharp:
2φ(1) ≈ 0.484, where the paper's is 1.
"""

from __future__ import annotations

import math

from keras_curv.errors import require_positive

# 2 φ(1) = √(2/(π e)); the closed form rounds less than 8 times.
_SCORE = math.sqrt(2.0 / (math.pi * math.e)) * (1.0 + 2.0**-49)


def smoothed_score_curvature(deviation: float) -> float:
    """Bound of ‖∇²ĝ(x)‖ for one class score of a smoothed classifier, 2φ(1)/s², at every x.

    `ĝ(x) = E g(x + s ξ)` with any measurable g with values in [0, 1]: a softmax output, or the
    indicator of one class. Attained by `g(x) = 1 where |x_1| ≤ s`, at 0. A margin of two scores
    has twice that, as `(g_y − g_t + 1)/2` has values in [0, 1].

    Args:
        deviation: s, the noise's standard deviation in each coordinate, in input units.

    Returns:
        The bound, rounded outward.

    Raises:
        InputError: the deviation is not a positive number.

    Example:
        >>> round(smoothed_score_curvature(0.5), 6)
        1.935766

    Reference: Singla & Feizi (2020), theorem 5 (there 1/s²); the constant is ours.
    """
    deviation = require_positive(deviation, "deviation")
    # Divided twice: s² may underflow where the bound is in range. What underflows is not 0.
    bound = _SCORE / deviation / deviation * (1.0 + 2.0**-49)
    return math.nextafter(bound, math.inf)
