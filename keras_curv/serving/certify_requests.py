"""A whole run over logged requests: rows, a summary, and what was lost against a baseline."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from keras_curv.errors import InputError, require_at_least, require_fraction
from keras_curv.files import replacing, write_file, write_json, writing
from keras_curv.reading import saved_model
from keras_curv.reports.console import progress_bar, working
from keras_curv.reports.plot import plot_curve, require_plottable
from keras_curv.rows.row_file import RowFile
from keras_curv.rows.verdict import verdict
from keras_curv.runs.runner import DEFAULT_RADII, require_distinct_files, require_radii
from keras_curv.serving.compare import RequestTally
from keras_curv.serving.request_rows import RequestRow, certify_block
from keras_curv.serving.requests import RequestLog, Survey
from keras_curv.serving.versions import Versions
from keras_curv.version import __version__

BATCH_SIZE = 512
_LOST_COLUMNS = (
    "file",
    "record",
    "example",
    "timestamp",
    "version",
    "prediction",
    "radius",
    "status",
    "detail",
    "baseline_version",
    "baseline_prediction",
    "baseline_radius",
)


def certify_requests(
    model: str,
    patterns: Sequence[str],
    *,
    baseline: str | None = None,
    model_name: str | None = None,
    signature: str = saved_model.DEFAULT_SIGNATURE,
    method: str = "auto",
    guarantee: str = "real",
    radii: Sequence[float] = DEFAULT_RADII,
    batch_size: int | None = None,
    limit: int | None = None,
    output: str | None = None,
    resume: bool = False,
    summary: str | None = None,
    plot: str | None = None,
    lost: str | None = None,
    required: float | None = None,
    max_lost: float | None = None,
    progress: bool = False,
) -> dict:
    """Certifies what TF Serving logged; `bin/certify --requests` in one call.

    All files are read twice: first to count, to see which models are needed and where a file is
    broken, then to certify. Memory does not grow with a file; of each row and of each record it
    keeps eight bytes.

    Args:
        model: a base path with numbered versions, so that each request is certified for the
            version that served it; or one SavedModel directory, for all requests.
        patterns: of TFRecord files of `PredictionLog`, plain or gzip.
        baseline: another of what `model` may be; the same requests are certified with it too.
        model_name: only requests to the model of this name.
        signature: of requests that name none.
        method, guarantee: as for `certify`; of both.
        radii: at which to report.
        batch_size: rows that are read and written at a time.
        limit: only the first so many rows.
        output: CSV file of rows; see `RequestRow`. It must not exist, unless `resume`.
        resume: go on where an interrupted run with the same settings left `output`.
        summary: JSON file for what is returned, all but the seconds: the same inputs make the same
            bytes.
        plot: image of the certified fraction against radius.
        lost: CSV file of the examples that lost their certificate against the baseline at any of
            the radii; written anew, also when going on, and there when all rows are.
        required, max_lost: for the verdict; see `verdict.verdict`.
        progress: draw a progress bar on stderr.

    Returns:
        The summary; see `RequestTally.summary` for its keys, and `verdict.verdict`.

    Raises:
        InputError: what cannot be used; also, after the rows before it, a broken record.
    """
    started = time.monotonic()
    radii = require_radii(radii)
    size = require_at_least(batch_size or BATCH_SIZE, 1, "batch_size")
    require_fraction(required, "the certified accuracy required")
    require_fraction(max_lost, "the fraction that may be lost")
    if limit is not None:
        require_at_least(limit, 1, "the limit")
    if resume and not output:
        raise InputError("resume needs the output file of the run to go on with")
    if baseline is None and (lost is not None or max_lost is not None):
        raise InputError("what is lost is lost against a baseline; name one")
    if plot:
        require_plottable(plot)
    options = {"signature": signature, "method": method, "guarantee": guarantee}
    sides = [Versions(path, **options) for path in (model, baseline) if path is not None]
    log = RequestLog(patterns, sides, model_name=model_name)
    require_distinct_files(output, [summary, plot, lost], log.files)

    with working("reading the requests and their models", visible=progress):
        survey = log.survey(limit)
    for side in sides:
        if side.refused() and not side.models():
            raise InputError(side.refused()[0].detail)
    settings = _settings(sides, survey, options) | {"batch_size": size, "model_name": model_name}
    tally = RequestTally(survey, radii, compared=baseline is not None)
    with (
        RowFile(output, settings, count=survey.count, resume=resume, kind=RequestRow) as file,
        _lost_file(lost) as write_lost,
        progress_bar(survey.count, len(file.rows), visible=progress) as advance,
    ):

        def take(rows: Sequence[RequestRow]) -> None:
            tally.add(rows)
            if tally.comparison is not None:
                write_lost((row, at) for row in rows if (at := tally.comparison.lost(row)))

        done = len(file.rows)
        take(file.rows)
        for block in log.blocks(size, done, survey.count):
            rows = certify_block(block, done)
            file.write(rows)
            take(rows)
            done += len(rows)
            advance(len(rows))
    if survey.broken is not None:
        raise survey.broken

    result = {"saved_model": model, "dataset": f"{survey.records:,} logged requests"}
    result |= {"files": log.files, "records": survey.records} | tally.summary()
    if result["baseline"] is not None:
        result["baseline"] = {"saved_model": baseline} | result["baseline"]
    result |= settings | {"rivals": "all", "input_scale": 1.0}
    result["verdict"] = verdict(result, required=required, max_lost=max_lost)
    if summary:
        write_json(summary, result)
    if plot:
        write_file(plot, lambda path: plot_curve(tally.all, result, str(path)))
    return result | {"seconds": round(time.monotonic() - started, 3)}


def _settings(sides: Sequence[Versions], survey: Survey, options: dict) -> dict:
    """What rows depend on."""
    fingerprints = [
        {f"{m.version}/{m.signature}": m.certifier.served.fingerprint for m in side.models()}
        for side in sides
    ]
    return {
        "version": __version__,
        "fingerprint": fingerprints[0],
        "baseline_fingerprint": fingerprints[1] if len(sides) > 1 else None,
        "dataset_fingerprint": survey.fingerprint,
        **options,
    }


@contextlib.contextmanager
def _lost_file(path: str | None) -> Iterator[Callable[[Iterable[tuple]], None]]:
    """Yields what to call with rows and the radii at which they lost their certificate."""
    if path is None:
        yield lambda rows: None
        return
    with (
        writing(path),
        replacing(path) as part,
        open(part, "w", newline="", encoding="utf-8") as file,
    ):
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow((*_LOST_COLUMNS, "lost_at"))

        def write(rows: Iterable[tuple[RequestRow, list[float]]]) -> None:
            for row, radii in rows:
                cells = [getattr(row, name) for name in _LOST_COLUMNS]
                lines.writerow([*cells, " ".join(map(str, radii))])

        yield write
