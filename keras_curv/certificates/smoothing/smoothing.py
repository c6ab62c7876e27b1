"""Randomized smoothing: certify by a vote under Gaussian noise.

For a base classifier c and noise `s ξ`, ξ standard normal in ℝᵈ, let `p_A(x) = P(c(x + s ξ) = A)`.
By the Neyman–Pearson lemma `Φ⁻¹(p_A)` changes by at most ‖δ‖/s between x and x + δ, so that

    p_A(x + δ) > 1/2    for all ‖δ‖ < s Φ⁻¹(p_A(x)).

p_A is unknown; a count of k wins in n draws bounds it from below, with Clopper and Pearson: the p
with `P(Bin(n, p) ≥ k) = α` is above p_A with probability at most α. The draws are of a generator
whose tail is cut off: p_A is within the total variation t of what they win with, which is taken
off, so that the radius is `s Φ⁻¹(p − t)` (`votes.py`). Which class A is voted on is
chosen from other draws, independent of those counted. A draw counts for A only where its logit is
proved to be the largest of all, in real arithmetic on the stored weights: computed in float64, and
above the others by more than the rounding of it could be (`votes.py`).

Against one rival t (the paper's binary variant), A wins a draw where `z_A > z_t`: the same
argument, for the classifier with these two classes.

Reference: Cohen, Rosenfeld & Kolter, "Certified adversarial robustness via randomized smoothing"
(2019), theorem 1, proposition 2; Singla & Feizi (2020), appendix, for the binary variant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_curv.certificates.certificate import Certificates, Status, moved_away
from keras_curv.certificates.smoothing.options import Smoothing
from keras_curv.certificates.smoothing.votes import NoiseVotes, total_variation
from keras_curv.errors import InputError, require_at_least, require_one_of, require_positive
from keras_curv.numerics.clopper_pearson import smoothed_radius
from keras_curv.process import certifying
from keras_curv.reading import served_model
from keras_curv.reading.served_inputs import ServedInputs

VOTE_RIVALS = ("all", "runner_up")
_EXAMPLES_AT_ONCE = 16


class SmoothedClassifier:
    """A classifier under Gaussian noise: predicts what wins most often, or abstains.

    What is certified is the smoothed classifier, not the model itself, whose prediction may change
    within the radius.

    Args:
        model: see `Certifier`; of floats, with any activation that can be read.
        deviation: s > 0, the standard deviation of the noise in each entry, in input units.
        signature, output_name: see `Certifier`.

    Raises:
        InputError: see `keras_curv.read`; the deviation is not a positive float32 number; or the
            model takes integers, to which no such noise can be added.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> smoothed = SmoothedClassifier("saved_models/digits", 0.1)
        >>> result = smoothed.certify(x[2:6], y[2:6], samples=1000)
        >>> bool((result.radius > 0.2).all())
        True
    """

    def __init__(
        self,
        model: Any,
        deviation: float,
        *,
        signature: str = served_model.DEFAULT_SIGNATURE,
        output_name: str | None = None,
    ):
        served = served_model.read(model, signature, output_name=output_name)
        if not served.input_dtype.is_floating:
            raise InputError(
                f"{served.source} takes {served.input_dtype.name}, to which noise cannot be added; "
                "export the model with float32 inputs"
            )
        if served.inputs.fixed:
            raise InputError(
                f"{served.source} takes {', '.join(map(repr, served.inputs.fixed))}, to which "
                "noise cannot be added; use another method, which holds them fixed"
            )
        with np.errstate(over="ignore"):
            # Times a float32 number it is exact in float64.
            self.deviation = float(np.float32(require_positive(deviation, "deviation")))
        if not np.finfo(np.float32).tiny <= self.deviation < math.inf:
            raise InputError(f"deviation must be in the range of float32. Received: {deviation}")
        self.served = served
        self._inputs = ServedInputs(served)
        self.votes = NoiseVotes(served.network, self.deviation)

    def batch_size(self, rivals: str = "all") -> int:
        """Few: each takes all of its draws."""
        return _EXAMPLES_AT_ONCE

    @certifying
    def certify(
        self,
        x: np.ndarray,
        y: np.ndarray | None = None,
        *,
        rivals: str = "all",
        selection_samples: int = 100,
        samples: int = 100_000,
        failure_probability: float = 1e-3,
        noise: str = "own",
        seed: int = 0,
        first_index: int = 0,
    ) -> Certificates:
        """Certifies examples by their votes.

        For each example: with probability at least 1 − `failure_probability` over the noise,
        either the radius is 0, or for every δ with `‖δ‖₂ < radius` the class `prediction` has
        probability above 1/2 at `x + δ + s ξ`; with "runner_up", beats `nearest_rival` with
        probability above 1/2. This takes Philox's bits for independent; what they leave open of a
        normal number, and its tail, is charged (`votes.py`).

        Args:
            x: `(n, *input shape)`.
            y: `(n,)` integers, or None to certify the predictions.
            rivals: "all"; or "runner_up", one class that the selection chooses, as in the paper.
            selection_samples: n0, draws that choose the classes.
            samples: draws that are counted.
            failure_probability: α, of each example.
            noise: "own": each example has noise of its own, by `seed` and its index; "shared": all
                have the same. Then the first layer's product with the noise is too, which is
                many times faster; every example has the same guarantee, but errors may come
                together. Neither depends on how examples are cut into batches.
            seed: of the noise.
            first_index: of the first example.

        Returns:
            `Certificates`; where the vote is not won, the status is ABSTAINED, prediction −1.

        Raises:
            InputError: wrong shape, NaN or infinite entries, labels out of range, or a model whose
                signature disagrees with what was read from it.
        """
        require_one_of(rivals, VOTE_RIVALS, "rivals")
        samples = int(Smoothing(self.deviation, samples, failure_probability, noise).samples)
        selection_samples = require_at_least(selection_samples, 1, "selection_samples")
        seed = require_at_least(seed, 0, "seed")
        first_index = require_at_least(first_index, 0, "first_index")
        flat, y, moved = self._inputs.checked(x, y, first_index)
        flat = flat.astype(np.float64)
        draw: dict = {"first_index": first_index, "seed": seed, "shared": noise == "shared"}
        votes = self.votes.preferences(flat, samples=selection_samples, **draw)
        classes = np.arange(votes.shape[1])
        label = votes.argmax(axis=1)
        others = classes != label[:, None]
        rival = np.full(len(label), -1)
        if rivals == "runner_up":
            rival = np.where(others, votes, -1.0).argmax(axis=1)
            others = classes == rival[:, None]
        wins = self.votes.wins(flat, label, others, samples=samples, **draw)
        tail = total_variation(self.served.network.dim)
        radius = smoothed_radius(wins, samples, failure_probability, self.deviation, tail)
        return moved_away(voted(label, rival, radius, y), moved)


def voted(
    label: np.ndarray, rival: np.ndarray, radius: np.ndarray, y: np.ndarray | None
) -> Certificates:
    """Makes certificates of the classes voted on; `y` may be None."""
    won = radius > 0.0
    status = np.where(won, Status.CERTIFIED, Status.ABSTAINED)
    if y is not None:
        status[won & (label != y)] = Status.MISCLASSIFIED
    certified = status == Status.CERTIFIED
    return Certificates(
        prediction=np.where(won, label, -1),
        radius=np.where(certified, radius, 0.0),
        nearest_rival=np.where(certified, rival, -1),
        status=status,
        gradient_evaluations=np.zeros(len(label), np.int64),
        adversarial_distance=np.full(len(label), np.inf),
        primal_equals_dual=np.zeros(len(label), bool),
        method=np.where(certified, "smoothing", ""),
    )
