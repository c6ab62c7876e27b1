"""Options of a run over logged requests."""

from __future__ import annotations

import dataclasses

from keras_curv.errors import InputError, optional_at_least
from keras_curv.runs.options import RunOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions(RunOptions):
    """Options of a run over logged requests.

    Attributes:
        model_name: name of the model whose requests are certified; those to others are skipped.
        limit: number of examples to certify, the first ones; default: all.
        max_unpacked: size, in MiB, that each gzip file of requests may unpack to; default: 256, or
            100 times its own size if that is more.

    Raises:
        InputError: an option out of range, or one that another needs is missing.

    Example:
        >>> RequestOptions(baseline="models/7", max_lost=0.01).requirements
        {'required': (), 'max_lost': 0.01}
    """

    model_name: str | None = None
    limit: int | None = None
    max_unpacked: int | None = None

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
        optional_at_least(self.limit, 1, "the limit")
        optional_at_least(self.max_unpacked, 1, "max_unpacked")
