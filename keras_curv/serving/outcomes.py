"""From logged requests to rows: examples of one model are certified together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_curv.rows.reason import Reason
from keras_curv.rows.row import Row, certified_fields
from keras_curv.serving.refusal import Refusal, plain
from keras_curv.serving.requests import Batch, Request
from keras_curv.serving.versions import Model

# What one model answers about one example, by the names of the attributes of `Row`.
Outcome = dict[str, Any]


def certify_block(block: Sequence[Request], first_index: int) -> list[Row]:
    """Certifies a list of requests; returns a row for each of their examples."""
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
    index: int, request: Request, i: int, answer: Outcome, baseline: Outcome | None = None
) -> Row:
    names = ("version", "prediction", "radius", "status")
    known = baseline or {}
    return Row(
        index=index,
        label=None,
        file=request.file,
        record=request.record,
        example=request.first + i,
        timestamp=request.timestamp,
        **answer,
        **{f"baseline_{name}": known[name] for name in names if name in known},
    )


def _refused(refusal: Refusal) -> Outcome:
    """Returns the outcome of a request, or of a model, that cannot be certified."""
    status = refusal.reason.name
    return {"version": refusal.version, "status": status, "detail": refusal.detail}


def _outcomes(asked: Sequence[Batch | Refusal], counts: Sequence[int]) -> list[Outcome]:
    """Returns one outcome for every example, in order."""
    starts = np.cumsum([0, *counts])
    outcomes: list[Outcome] = [{}] * int(starts[-1])
    groups: dict[int, list[tuple[int, Batch]]] = {}
    for k, part in enumerate(asked):
        if isinstance(part, Batch):
            groups.setdefault(id(part.model), []).append((k, part))
        else:
            outcomes[starts[k] : starts[k + 1]] = [_refused(part)] * counts[k]
    for members in groups.values():
        where = np.concatenate([np.arange(starts[k], starts[k + 1]) for k, _ in members])
        found = _certify(members[0][1].model, np.concatenate([part.x for _, part in members]))
        for position, outcome in zip(where, found, strict=True):
            outcomes[position] = outcome
    return outcomes


def _certify(model: Model, x: np.ndarray) -> list[Outcome]:
    """Certifies with one model; examples with NaN or infinite entries are refused by themselves."""
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    outcomes = [_refused(Refusal(Reason.NOT_FINITE_INPUT, version=model.version))] * len(x)
    if finite.any():
        result = model.certifier.certify_all(x[finite])
        for n, i in enumerate(np.flatnonzero(finite)):
            known = {"version": model.version, "signature": plain(model.signature)}
            outcomes[i] = known | certified_fields(result, n)
    return outcomes
