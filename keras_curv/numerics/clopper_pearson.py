"""From votes to a radius: lower bounds on a probability from a count, rounded down."""

from __future__ import annotations

import numpy as np
import scipy.special

from keras_curv.errors import InputError, require_at_least, require_positive, require_probability

# Relative; SciPy's quantile was measured within 1e-12 of mpmath's for α down to 1e-50; at 1e-100
# it is far off. Φ⁻¹ has slope above 2, so this also covers its rounding, and that of the product
# with s.
_QUANTILE_ERROR = 1e-9
_LEAST = 1e-30


def clopper_pearson(wins: np.ndarray, samples: int, failure_probability: float) -> np.ndarray:
    """Returns lower bounds on a probability, each wrong with at most the failure probability.

    The bound is the p with `P(Bin(n, p) ≥ k) = α`, rounded down; 0 where k = 0.

    Args:
        wins: k, `(n,)`, from 0 to `samples`.
        samples: n, independent draws.
        failure_probability: α.

    Raises:
        InputError: an argument out of range.

    Example:
        >>> float(clopper_pearson(np.array([10]), 10, 0.05)[0].round(4))  # 0.05^(1/10)
        0.7411

    Reference: Clopper & Pearson, "The use of confidence or fiducial limits illustrated in the
    case of the binomial" (1934).
    """
    samples = require_at_least(samples, 1, "samples")
    require_failure_probability(failure_probability)
    wins = np.asarray(wins)
    if not np.all((wins >= 0) & (wins <= samples) & (wins == np.floor(wins))):
        raise InputError(f"wins must be whole numbers from 0 to {samples}. Received: {wins}")
    least = np.maximum(wins, 1)
    quantile = scipy.special.betaincinv(least, samples - least + 1, failure_probability)
    return np.where(wins > 0, quantile * (1.0 - _QUANTILE_ERROR), 0.0)


def require_failure_probability(value: float) -> float:
    """Returns the number; InputError unless bounds can be computed for it."""
    require_probability(value, "failure_probability")
    if value < _LEAST:
        raise InputError(f"failure_probability must be at least {_LEAST:g}. Received: {value}")
    return float(value)


def smoothed_radius(
    wins: np.ndarray,
    samples: int,
    failure_probability: float,
    deviation: float,
    total_variation: float = 0.0,
) -> np.ndarray:
    """Returns `s Φ⁻¹(p − t)` rounded down, p from `clopper_pearson`; 0 where `p − t ≤ 1/2`.

    Args:
        wins, samples, failure_probability: see `clopper_pearson`.
        deviation: s > 0.
        total_variation: t, the largest difference of the probability of a win from that under
            normal noise.

    Example:
        >>> smoothed_radius(np.array([60, 99]), 100, 0.001, 0.5).round(3).tolist()
        [0.0, 0.675]
    """
    lower = clopper_pearson(wins, samples, failure_probability)
    lower = np.maximum(lower - total_variation * (1.0 + _QUANTILE_ERROR), 0.0)
    return np.maximum(require_positive(deviation, "deviation") * scipy.special.ndtri(lower), 0.0)
