"""A run over logged requests: each is certified for the version that served it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_curv.errors import InputError, visible
from keras_curv.network.clip import layers
from keras_curv.options import with_options
from keras_curv.process import certifying
from keras_curv.reports.html.cases import Case, find_cases
from keras_curv.rows.checks import require_row_of
from keras_curv.rows.row import QUALIFIED, REQUEST_COLUMNS, Row
from keras_curv.runs.job import Job, same_job
from keras_curv.runs.options import RunOptions
from keras_curv.runs.runner import run
from keras_curv.serving.compare import RequestTally
from keras_curv.serving.options import RequestOptions
from keras_curv.serving.outcomes import certify_block
from keras_curv.serving.refusal import Refusal
from keras_curv.serving.requests import CHANGED, Batch, Request, RequestLog
from keras_curv.serving.versions import Versions
from keras_curv.threats.properties.property import ARGMAX
from keras_curv.version import __version__

BATCH_SIZE = 512


@certifying
def certify_requests(
    model: str, patterns: Sequence[str], options: RequestOptions | None = None, **changes: Any
) -> dict:
    """Certifies what TF Serving logged; `keras_curv certify --requests` in one call.

    All files are read twice: first to count, to see which models are needed and where a file is
    broken, then to certify. Memory does not grow with a file; of each row and of each record it
    keeps eight bytes.

    Args:
        model: a base path with numbered versions, so that each request is certified for the
            version that served it; or one SavedModel directory, for all requests.
        patterns: of files, plain or gzip: TFRecord files of `PredictionLog`, or JSON lines of the
            bodies of REST requests.
        options: how, at which radii, against what, and which files to write.
        **changes: fields of `RequestOptions`, by name.

    Returns:
        The summary; see `RequestTally.summary` for its keys, and `verdict.verdict`. The one that
        is written has no seconds in it: the same inputs make the same bytes.

    Raises:
        InputError: what cannot be used; also, after the rows before it, a broken record.
    """
    options = with_options(options or RequestOptions(), changes)
    log = request_log(model, patterns, options)
    return run(lambda: RequestJob(log, options), options, inputs=log.files)


class RequestJob(Job):
    """The requests of a log, and the models that they are held against.

    Args:
        log: of the requests, with the versions of the model and perhaps of a baseline.
        options: how to certify; what it says of files and workers is the runner's business.

    Raises:
        InputError: there are no requests, or no model that could certify one.
    """

    columns = REQUEST_COLUMNS
    changed_columns = (
        *("file", "record", "example", "timestamp", "version", "prediction", "radius", "status"),
        *("detail", "baseline_version", "baseline_prediction", "baseline_radius"),
    )
    timed = False

    def __init__(self, log: RequestLog, options: RequestOptions):
        self._log, self._options = log, options
        if options.qualified:
            self.columns = (*REQUEST_COLUMNS, *QUALIFIED)
        if options.threat.confined or options.threat.categories is not None:
            raise InputError(
                "logged requests may be outside of any box, and not one-hot: --box, low, high and "
                "groups are not for them"
            )
        self._survey = log.survey(options.limit)
        for side in log.sides:
            if side.refused() and not side.models():
                raise InputError(side.refused()[0].detail)
        self.count = self._survey.count
        fingerprints: list[dict | None] = [
            {f"{m.version}/{m.signature}": m.certifier.served.fingerprint for m in side.models()}
            for side in log.sides
        ]
        self.settings = {
            "version": __version__,
            "fingerprint": fingerprints[0],
            "baseline_fingerprint": fingerprints[1] if len(log.sides) > 1 else None,
            "dataset_fingerprint": self._survey.fingerprint,
            "signature": options.signature,
            "output_name": options.output_name,
            "method": options.method,
            "guarantee": options.guarantee,
            **options.search,
            "batch_size": options.batch_size or BATCH_SIZE,
            "model_name": options.model_name,
        }

    def batches(self, start: int) -> Iterator[list[Row]]:
        """See `Job`; the last ones are followed by the error that ended the log, if one did."""
        for block in self._log.blocks(self.settings["batch_size"], start, self.count):
            yield self._rows(block, start)
            start += sum(request.count for request in block)
        if self._survey.broken is not None:
            raise self._survey.broken

    def _rows(self, block: Sequence[Request], start: int) -> list[Row]:
        return self.claimed(certify_block(block, start))

    def require_rows(self, rows: Sequence[Row]) -> None:
        """See `Job`."""
        found = iter(rows)
        for block in self._log.blocks(self.settings["batch_size"], 0, len(rows)):
            for request in block:
                batch = request.asked[0]
                classes: int | None = 0
                if self._options.property != ARGMAX:
                    classes = None
                elif isinstance(batch, Batch):
                    classes = batch.model.certifier.served.network.classes
                known = {"rivals": "all", "file": request.file, "record": request.record}
                known |= _answered("", batch)
                known |= _answered("baseline_", *request.asked[1:])
                for i in range(request.count):
                    known |= {"example": request.first + i, "timestamp": request.timestamp}
                    require_row_of(next(found), known, classes)

    def remote_factory(self) -> Callable[[], Job]:
        """See `Job`."""
        model = os.path.abspath(self._log.sides[0].path)
        baseline = self._options.baseline and os.path.abspath(self._options.baseline)
        options = dataclasses.replace(self._options, baseline=baseline)
        arguments = model, self._log.files, options
        return functools.partial(same_job, _load_job, arguments, self.settings)

    def facts(self) -> dict:
        """See `Job`; input shape, classes and depth are None where versions differ in them."""
        models = self._log.sides[0].models()
        served = [model.certifier.served for model in models]
        return {
            "saved_model": visible(self._log.sides[0].path),
            "dataset": f"{self._survey.records:,} logged requests",
            "files": self._log.files,
            "records": self._survey.records,
            "rivals": "all",
            "input_scale": 1.0,
            "input_shape": _common([list(one.input_shape) for one in served]),
            "classes": _common([one.network.classes for one in served]),
            **(_common([layers(one.network) for one in served]) or {"depth": None}),
            "fixed": sorted({name for model in models for name in model.certifier.fixed}),
            "claim": self._options.claim,
        }

    def cases(self, rows: Sequence[Row]) -> list[Case]:
        """See `Job`."""
        wanted = {(row.file, row.record, row.example): row for row in rows}
        found: dict[int, tuple[list[Row], list[np.ndarray], Batch]] = {}
        left = len(wanted)
        for request in self._log.requests():
            batch = request.asked[0]
            for i in range(request.count):
                row = wanted.get((request.file, request.record, request.first + i))
                if row is not None and isinstance(batch, Batch):
                    mine = found.setdefault(id(batch.model), ([], [], batch))
                    mine[0].append(row)
                    mine[1].append(batch.x[i])
                    left -= 1
            if not left:
                break
        if left:
            raise InputError(CHANGED)
        cases = []
        for members, xs, batch in found.values():
            x, network = np.stack(xs), batch.model.certifier.served.network
            if self._options.qualified:
                cases += [Case(row, one) for row, one in zip(members, x, strict=True)]
            else:
                cases += find_cases(members, x, x, network=network)
        return sorted(cases, key=lambda case: (case.row.radius, case.row.index))

    def tally(self, options: RunOptions) -> RequestTally:
        """See `Job`."""
        return RequestTally(options.radii, self._survey, **self.tallied(options))


def _answered(side: str, asked: Batch | Refusal | None = None) -> dict[str, object]:
    """Returns what every row of a request says of one model, whatever was proved."""
    if asked is None:
        return {f"{side}status": ""}
    if isinstance(asked, Refusal):
        return {f"{side}status": asked.reason.name, f"{side}version": asked.version}
    return {f"{side}version": asked.model.version} | ({} if side else {"skipped": False})


def request_log(model: str, patterns: Sequence[str], options: RequestOptions) -> RequestLog:
    """Opens a log, held against the versions of a model and of a baseline, if there is one."""
    sides = [
        Versions(path, **options.certifier)
        for path in (model, options.baseline)
        if path is not None
    ]
    limit = options.max_unpacked and options.max_unpacked * 2**20
    return RequestLog(
        patterns, sides, model_name=options.model_name, max_unpacked=limit, but=options.files()
    )


def _load_job(model: str, files: Sequence[str], options: RequestOptions) -> RequestJob:
    return RequestJob(request_log(model, files, options), options)


def _common(values: Sequence) -> Any:
    """Returns the value that all have in common, or None."""
    return values[0] if values and all(value == values[0] for value in values) else None
