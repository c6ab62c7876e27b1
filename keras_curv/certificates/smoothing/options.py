"""How to certify by a vote under noise. Flags are made of it, so nothing here loads TensorFlow."""

from __future__ import annotations

import dataclasses

from keras_curv.errors import InputError, require_at_least, require_one_of, require_positive

NOISE = ("own", "shared")
_MOST_SAMPLES = 2**40  # more could not end


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """How to certify by a vote under noise; see `SmoothedClassifier`.

    Attributes:
        deviation: standard deviation of the noise, in input units.
        samples: number of noisy copies of each example that vote.
        failure_probability: probability α, for each example, that its radius is wrong.
        noise: noise of the examples. own: each example has its own; shared: all have the same,
            which is many times faster, but errors may come together.

    Raises:
        InputError: a number that is out of range, or another kind of noise.

    Example:
        >>> Smoothing(0.25, noise="shared").samples
        100000
    """

    deviation: float
    samples: int = 100_000
    failure_probability: float = 1e-3
    noise: str = "own"

    def __post_init__(self) -> None:
        from keras_curv.numerics.clopper_pearson import require_failure_probability

        require_positive(self.deviation, "deviation")
        if require_at_least(self.samples, 1, "samples") > _MOST_SAMPLES:
            raise InputError(f"samples must be at most 2^40. Received: {self.samples}")
        require_failure_probability(self.failure_probability)
        require_one_of(self.noise, NOISE, "noise")

    def votes(self) -> dict:
        """Returns the arguments of `SmoothedClassifier.certify`."""
        votes = dataclasses.asdict(self)
        del votes["deviation"]
        return votes
