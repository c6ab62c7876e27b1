"""Options of a run over logged requests."""

from __future__ import annotations

import dataclasses

from keras_curv.errors import InputError, optional_at_least, optional_fraction
from keras_curv.runs.options import RunOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions(RunOptions):
    """Options of a run over logged requests.

    Attributes:
        baseline: another SavedModel or base path, for which the same requests are certified too;
            reports which ones it certifies and the model does not, or for another class.
        model_name: name of the model whose requests are certified; those to others are skipped.
        limit: number of examples to certify, the first ones; default: all.
        max_unpacked: size, in MiB, that each gzip file of requests may unpack to; default: 256, or
            100 times its own size if that is more.
        lost: CSV file to write of the examples that the baseline certifies and the model does not,
            or for another class, at any of the radii; it is there once all rows are.
        max_lost: largest fraction, of the examples that the baseline certifies, that may lose their
            certificate at any of the radii; above it the verdict is negative, and the exit status
            3.

    Raises:
        InputError: an option out of range, or one that another needs is missing.

    Example:
        >>> RequestOptions(baseline="models/7", max_lost=0.01).requirements
        {'required': (), 'max_lost': 0.01}
    """

    baseline: str | None = None
    model_name: str | None = None
    limit: int | None = None
    max_unpacked: int | None = None
    lost: str | None = None
    max_lost: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut is not None:
            raise InputError(
                "logged requests hold what the model takes, and not what flows at a cut; give that "
                f"as examples. Received: cut {self.cut!r}"
            )
        if others := [name for name in self.sliced if name != "class"]:
            raise InputError(
                "logged requests have no arrays beside their inputs; they can be sliced by class. "
                f"Received: {others[0]!r}"
            )
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
        """Returns the files to write beside the rows; None for each that is not asked for."""
        return [*super().written(), self.lost]
