"""A row: what one example of a run came to, as a tuple and as cells of a CSV file."""

from __future__ import annotations

import builtins
import decimal
import math
import re
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_curv.certificates.auto import METHODS
from keras_curv.certificates.certificate import RIVALS, Certificates, Status
from keras_curv.certificates.linear.branched import BranchedCertificate
from keras_curv.certificates.smoothing.smoothing import VOTE_RIVALS
from keras_curv.errors import visible
from keras_curv.rows.reason import Reason

# What a spreadsheet takes for a formula, or for the mark that a cell is none; a number is none.
_FORMULA = re.compile(r"(?!-?[0-9]+$)[=+@'\uff1d\uff0b\uff0d\uff20-]")
_LONGEST_INTEGER = 20  # characters
_DOWN = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)
_UP = decimal.Context(prec=9, rounding=decimal.ROUND_CEILING)


class Row(NamedTuple):
    """One example. A data set's has an index for a key; a logged one also its place in the log.

    Attributes:
        index: in the run, from 0.
        label: or None.
        prediction: the class with the largest logit; −1 where there is none.
        nearest_rival: the rival with the smallest radius; −1 where none was examined.
        radius: l2, in the model's input units, rounded down to nine digits.
        status: name of a `Status`, or of a logged request's `Reason`.
        gradient_evaluations: summed over the rivals.
        primal_equals_dual: the radius is the exact distance to the decision boundary.
        rivals: which ones the radius holds against; a certificate of the classifier is "all".
        method: that proved the radius; "" where there is none.
        adversarial_distance: of the nearest point that was met on the way and changes the
            prediction, rounded up to nine digits; `inf` where none was.
        file, record, example: where a logged example stands: the file, the record in it and the
            example in the record's batch, from 0.
        timestamp: of the log, seconds since 1970; 0 where it has none.
        version, signature: that certified it; of a refused request the version, if it is known.
        detail: of a `Reason`.
        baseline_version, baseline_prediction, baseline_radius, baseline_status: what the baseline
            answers; "", −1, 0 and "" where there is none.
        property: what does not change within the radius, as `--property` spells it.
        threat: what the attacker may do; "l2" is any change of that norm.
    """

    index: int  # type: ignore[assignment]  # of a tuple, which has a method of that name
    label: int | None
    prediction: int = -1
    nearest_rival: int = -1
    radius: float = 0.0
    status: str = ""
    gradient_evaluations: int = 0
    primal_equals_dual: bool = False
    rivals: str = "all"
    method: str = ""
    adversarial_distance: float = math.inf
    file: str = ""
    record: int = 0
    example: int = 0
    timestamp: int = 0
    version: str = ""
    signature: str = ""
    detail: str = ""
    baseline_version: str = ""
    baseline_prediction: int = -1
    baseline_radius: float = 0.0
    baseline_status: str = ""
    property: str = "argmax"
    threat: str = "l2"

    @classmethod
    def from_certificates(
        cls, result: Certificates, label: np.ndarray | None, first_index: int, rivals: str
    ) -> list[Row]:
        """Returns the rows of one batch."""
        return [
            cls(
                index=first_index + i,
                label=None if label is None else int(label[i]),
                rivals=rivals,
                **certified_fields(result, i),
            )
            for i in range(len(result.radius))
        ]

    @builtins.property
    def reason(self) -> Reason | None:
        """Why it has no certificate, if that is a `Reason`."""
        return Reason.__members__.get(self.status)

    @builtins.property
    def skipped(self) -> bool:
        """Whether it is left out of all fractions."""
        return self.reason is not None and self.reason.skipped

    def cells(self, columns: Sequence[str] | None = None) -> list[str]:
        """Returns the row as text, column by column; `EXAMPLE_COLUMNS` if none are named.

        Text that a spreadsheet would run begins with an apostrophe.
        """
        return [_cell(getattr(self, name)) for name in columns or EXAMPLE_COLUMNS]

    @classmethod
    def parse(cls, cells: Sequence[str], columns: Sequence[str] | None = None) -> Row:
        """Reads what `cells` wrote; ValueError or KeyError where no run writes such cells."""
        columns = columns or EXAMPLE_COLUMNS
        if len(cells) != len(columns):
            raise ValueError(f"{len(cells)} cells, not {len(columns)}")
        parsed: dict[str, Any] = {"label": None}
        parsed |= {n: _PARSERS[_TYPES[n]](c) for n, c in zip(columns, cells, strict=True)}
        row = cls(**parsed)
        for name, cell, own in zip(columns, cells, row.cells(columns), strict=True):
            if cell != own:  # as "+1" or "1_0", which Python takes too
                raise ValueError(f"{name} is {cell[:80]!r}, which a run would write {own[:80]!r}")
        for name, known in _WORDS.items():
            if getattr(row, name) not in known:
                raise ValueError(f"{name} is {getattr(row, name)[:80]!r}")
        for radius, status in (
            (row.radius, row.status),
            (row.baseline_radius, row.baseline_status),
        ):
            if (radius > 0.0) != (status == Status.CERTIFIED.name) or not radius >= 0.0:
                raise ValueError(f"radius {radius} with status {status}")
        if not row.adversarial_distance >= row.radius:
            raise ValueError(f"an adversarial point within the radius {row.radius}")
        if row.reason is not None and "file" not in columns:
            raise ValueError(f"status {row.status}")
        return row


EXAMPLE_COLUMNS = Row._fields[: Row._fields.index("file")]
BASELINE_COLUMNS = ("baseline_prediction", "baseline_radius", "baseline_status")
QUALIFIED = ("property", "threat")  # further columns, of a claim other than the usual one
REQUEST_COLUMNS = (
    *("index", "file", "record", "example", "timestamp", "version", "signature"),
    *EXAMPLE_COLUMNS[EXAMPLE_COLUMNS.index("prediction") :],
    *("detail", "baseline_version"),
    *BASELINE_COLUMNS,
)


def certified_fields(result: Certificates, i: int) -> dict[str, Any]:
    """Returns what a row says of one certificate, by the names of its fields."""
    return {
        "prediction": int(result.prediction[i]),
        "nearest_rival": int(result.nearest_rival[i]),
        "radius": float(round_down(result.radius[i])),
        "status": Status(int(result.status[i])).name,
        "gradient_evaluations": int(result.gradient_evaluations[i]),
        "primal_equals_dual": bool(result.primal_equals_dual[i]),
        "method": str(result.method[i]),
        "adversarial_distance": float(_UP.create_decimal(float(result.adversarial_distance[i]))),
    }


def round_down(radius: float) -> str:
    """Returns nine significant digits, never above the number; `inf` stays.

    Example:
        >>> round_down(1.9999999999)
        '1.99999999'
    """
    return repr(float(_DOWN.create_decimal(float(radius))))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str):
        return "'" * bool(_FORMULA.match(value)) + visible(value)
    return repr(value) if isinstance(value, float) else str(value)


def _integer(cell: str) -> int:
    if len(cell) > _LONGEST_INTEGER or not -(2**63) <= int(cell) < 2**63:
        raise ValueError(f"{cell[:_LONGEST_INTEGER]} is no number of 64 bits")
    return int(cell)


_PARSERS: dict[object, Callable[[str], object]] = {
    int: _integer,
    int | None: lambda cell: _integer(cell) if cell else None,
    float: float,
    bool: {"0": False, "1": True}.__getitem__,
    str: lambda cell: cell.removeprefix("'"),
}
_TYPES = typing.get_type_hints(Row)
_WORDS: dict[str, Collection[str]] = {
    "status": {*Status.__members__, *Reason.__members__},
    "baseline_status": {"", *Status.__members__, *Reason.__members__},
    "rivals": {*RIVALS, *VOTE_RIVALS},
    "method": {"", *METHODS, BranchedCertificate.name, "smoothing"},
}
