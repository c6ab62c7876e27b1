"""Rows of a run over logged requests: what one example of one request came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.certificate import Certificates, Status
from keras_curv.rows.row import round_down
from keras_curv.serving.reasons import Reason, Refusal, plain
from keras_curv.serving.requests import Batch, Request


class Outcome(NamedTuple):
    """What one model answers about one example.

    Attributes:
        version, signature: that certified it; of a refused request the version, if it is known.
        prediction: the class with the largest logit; −1 where there is none.
        nearest_rival: the rival with the smallest radius; −1 where none was examined.
        radius: l2, in the model's input units, rounded down to nine digits.
        status: name of a `Status` or of a `Reason`.
        gradient_evaluations: summed over the rivals.
        primal_equals_dual: the radius is the exact distance to the decision boundary.
        method: that proved the radius; "" where there is none.
        detail: of a `Reason`.
    """

    version: str = ""
    signature: str = ""
    prediction: int = -1
    nearest_rival: int = -1
    radius: float = 0.0
    status: str = ""
    gradient_evaluations: int = 0
    primal_equals_dual: bool = False
    method: str = ""
    detail: str = ""

    @classmethod
    def refused(cls, refusal: Refusal) -> Outcome:
        """Of a request, or of a model."""
        return cls(version=refusal.version, status=refusal.reason.name, detail=refusal.detail)


class RequestRow(NamedTuple):
    """One example of a logged request.

    Attributes:
        index: of the row, from 0.
        file, record, example: where it stands: the file, the record in it and the example in the
            record's batch, from 0.
        timestamp: of the log, seconds since 1970; 0 where it has none.
        version … detail: see `Outcome`.
        rivals: which ones the radius holds against: "all".
        baseline_version, baseline_prediction, baseline_radius, baseline_status: what the baseline
            answers; "", −1, 0 and "" where there is none.
    """

    index: int
    file: str
    record: int
    example: int
    timestamp: int
    version: str
    signature: str
    prediction: int
    nearest_rival: int
    radius: float
    status: str
    gradient_evaluations: int
    primal_equals_dual: bool
    rivals: str
    method: str
    detail: str
    baseline_version: str = ""
    baseline_prediction: int = -1
    baseline_radius: float = 0.0
    baseline_status: str = ""

    @property
    def label(self) -> None:
        """Requests have none."""
        return None

    @property
    def reason(self) -> Reason | None:
        """Why it has no certificate, if that is a `Reason`."""
        return Reason.__members__.get(self.status)

    def cells(self) -> list[str]:
        """As text, column by column."""
        return [_cell(value) for value in self]

    @classmethod
    def parse(cls, cells: Sequence[str]) -> RequestRow:
        """The inverse of `cells`; ValueError or KeyError where it is not one."""
        if len(cells) != len(cls._fields):
            raise ValueError(f"{len(cells)} cells, not {len(cls._fields)}")
        row = cls(*(_PARSERS.get(n, str)(c) for n, c in zip(cls._fields, cells, strict=True)))
        answers = (row.radius, row.status), (row.baseline_radius, row.baseline_status)
        for radius, status in answers:
            if (radius > 0.0) != (status == Status.CERTIFIED.name) or not radius >= 0.0:
                raise ValueError(f"radius {radius} with status {status}")
        if row.status not in Status.__members__ and row.reason is None:
            raise ValueError(f"status {row.status}")
        return row


def _cell(value) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


_PARSERS = dict.fromkeys(
    (
        "index",
        "record",
        "example",
        "timestamp",
        "prediction",
        "nearest_rival",
        "gradient_evaluations",
        "baseline_prediction",
    ),
    int,
) | {
    "radius": float,
    "baseline_radius": float,
    "primal_equals_dual": {"0": False, "1": True}.__getitem__,
}


def certify_block(block: Sequence[Request], first_index: int) -> list[RequestRow]:
    """The rows of a list of requests; examples of one model are certified together."""
    counts = [request.count for request in block]
    sides = [
        _outcomes([request.asked[k] for request in block], counts)
        for k in range(len(block[0].asked))
    ]
    examples = [(request, i) for request in block for i in range(request.count)]
    return [
        _row(first_index + n, *examples[n], *outcomes)
        for n, outcomes in enumerate(zip(*sides, strict=True))
    ]


def _row(
    index: int, request: Request, i: int, ours: Outcome, baseline: Outcome | None = None
) -> RequestRow:
    return RequestRow(
        index,
        request.file,
        request.record,
        request.first + i,
        request.timestamp,
        *ours[:-2],
        rivals="all",
        method=ours.method,
        detail=ours.detail,
        **_baseline(baseline),
    )


def _baseline(outcome: Outcome | None) -> dict:
    if outcome is None:
        return {}
    names = ("version", "prediction", "radius", "status")
    return {f"baseline_{name}": getattr(outcome, name) for name in names}


def _outcomes(asked: Sequence[Batch | Refusal], counts: Sequence[int]) -> list[Outcome]:
    """Of every example, in order."""
    starts = np.cumsum([0, *counts])
    outcomes: list[Outcome] = [Outcome()] * int(starts[-1])
    groups: dict[int, list[int]] = {}
    for k, part in enumerate(asked):
        if isinstance(part, Batch):
            groups.setdefault(id(part.model), []).append(k)
        else:
            outcomes[starts[k] : starts[k + 1]] = [Outcome.refused(part)] * counts[k]
    for members in groups.values():
        where = np.concatenate([np.arange(starts[k], starts[k + 1]) for k in members])
        x = np.concatenate([asked[k].x for k in members])
        found = _certify(asked[members[0]].model, x)
        for position, outcome in zip(where, found, strict=True):
            outcomes[position] = outcome
    return outcomes


def _certify(model, x: np.ndarray) -> list[Outcome]:
    """Of examples of one model; those with NaN or infinite entries are refused by themselves."""
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    outcomes = [Outcome.refused(Refusal(Reason.NOT_FINITE_INPUT, version=model.version))] * len(x)
    if finite.any():
        result = model.certifier.certify_all(x[finite])
        for n, i in enumerate(np.flatnonzero(finite)):
            outcomes[i] = _outcome(model, result, n)
    return outcomes


def _outcome(model, result: Certificates, n: int) -> Outcome:
    return Outcome(
        version=model.version,
        signature=plain(model.signature),
        prediction=int(result.prediction[n]),
        nearest_rival=int(result.nearest_rival[n]),
        radius=float(round_down(result.radius[n])),
        status=Status(int(result.status[n])).name,
        gradient_evaluations=int(result.gradient_evaluations[n]),
        primal_equals_dual=bool(result.primal_equals_dual[n]),
        method=str(result.method[n]),
    )
