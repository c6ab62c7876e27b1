"""What a run over logged requests is asked for."""

from __future__ import annotations

import dataclasses

from keras_curv.errors import InputError, optional_at_least, optional_fraction
from keras_curv.runs.options import RunOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions(RunOptions):
    """What a run over logged requests can be asked for beside.

    Attributes:
        baseline: another model; the same requests are certified with it too.
        model_name: only requests to the model of this name.
        limit: only the first so many rows.
        max_unpacked: MiB that each gzip file of requests may unpack to; None: 256, or a hundred
            times its own size if that is more.
        lost: CSV file of the examples that lost their certificate against the baseline at any of
            the radii; written anew, also when going on, and there when all rows are.
        max_lost: of the examples certified with the baseline, at most this fraction may lose
            their certificate, for the verdict.

    Example:
        >>> RequestOptions(baseline="models/7", max_lost=0.01).requirements
        {'required': None, 'max_lost': 0.01}
    """

    baseline: str | None = None
    model_name: str | None = None
    limit: int | None = None
    max_unpacked: int | None = None
    lost: str | None = None
    max_lost: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        optional_fraction(self.max_lost, "the fraction that may be lost")
        optional_at_least(self.limit, 1, "the limit")
        optional_at_least(self.max_unpacked, 1, "max_unpacked")
        if self.baseline is None and (self.lost is not None or self.max_lost is not None):
            raise InputError("what is lost is lost against a baseline; name one")

    @property
    def requirements(self) -> dict:
        """The figures that the verdict holds the summary against."""
        return super().requirements | {"max_lost": self.max_lost}

    def written(self) -> list[str | None]:
        """The files that are written beside the rows; None where there is none."""
        return [*super().written(), self.lost]
