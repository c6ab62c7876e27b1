"""The runner: takes rows from a job, here or on workers, to files, sums and a summary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keras_curv.errors import InputError, UnwrittenError
from keras_curv.files import write_json, write_text
from keras_curv.progress import progress_bar, working
from keras_curv.reports.html import page
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.junit import junit
from keras_curv.reports.plot import plot_curve
from keras_curv.rows.comparison import changed_file
from keras_curv.rows.row import Row
from keras_curv.rows.row_file import RowFile
from keras_curv.rows.shards import Shards
from keras_curv.rows.verdict import verdict
from keras_curv.runs.job import Job, Sink
from keras_curv.runs.options import RunOptions

if TYPE_CHECKING:
    from keras_curv.runs.beam import Workers


def run(make_job: Callable[[], Job], options: RunOptions, *, inputs: Sequence[str | None]) -> dict:
    """Certifies everything that a job has, and writes what the options ask for.

    Args:
        make_job: reads the model and the examples; called when the options have been checked.
        options: of the run.
        inputs: the files that are read.

    Returns:
        The summary; see `Tally.summary` and `Job.facts` for its keys, and `verdict.verdict`.

    Raises:
        InputError: what cannot be used, before anything is written where that can be known; rows
            already written stay. An `UnwrittenError` has the summary of a run that is done.
    """
    started = time.monotonic()
    options.require_files(inputs)
    workers = _workers(options)
    with working("reading the model and bounding its norms", visible=options.progress):
        job = make_job()
        if workers:
            job.remote_factory()
    tally = job.tally(options)
    report = ReportData(tally.comparison) if options.report else None
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(
            RowFile(
                options.output,
                job.settings,
                count=job.count,
                resume=options.resume,
                columns=job.columns,
            )
        )
        sinks: list[Sink] = [tally, *([report] if report else [])]
        sinks += [stack.enter_context(sink) for sink in job.sinks()]
        if tally.comparison is not None:
            columns, compared = job.changed_columns, tally.comparison
            for path, name, radii_of in (
                (options.lost, "lost_at", compared.lost),
                (options.gained, "gained_at", compared.gained),
            ):
                if path is not None:
                    sinks.append(stack.enter_context(changed_file(path, columns, name, radii_of)))
        job.require_rows(file.rows)
        for sink in sinks:
            sink.add(file.rows)
        done = len(file.rows)
        if workers and options.output:
            with working(f"certifying on {options.runner}", visible=options.progress):
                batches = workers.batches(job, options.output, done, resumed=file.resumed)
        elif file.resumed and options.output:
            batches = _batches_left_over(job, options.output, done)
        else:
            batches = job.batches(done)
        with progress_bar(job.count, done, visible=options.progress) as advance:
            for rows in batches:
                done += len(rows)
                file.write(rows)
                for sink in sinks:
                    sink.add(rows)
                advance(len(rows))
        if done != job.count:
            raise InputError(f"the examples ended after {done} of {job.count}")

    result: dict[str, Any] = {"verdict": None}  # which comes first
    result |= job.facts() | tally.summary() | job.settings
    result["verdict"] = verdict(result, **options.requirements)
    seconds = {"seconds": round(time.monotonic() - started, 3)}
    try:
        if options.summary:
            write_json(options.summary, result | (seconds if job.timed else {}))
        if options.junit:
            write_text(options.junit, junit(result))
        if options.plot:
            plot_curve(tally, result, options.plot)
        if report and options.report:
            with working("searching adversarial points for the report", visible=options.progress):
                cases = job.cases([*report.least_robust, *report.misclassified])
            report.distances = job.distances
            html = page.render(result, job.settings, report, cases, options.command)
            write_text(options.report, html)
    except InputError as error:
        raise UnwrittenError(error, result | seconds) from error
    return result | seconds


def _batches_left_over(job: Job, output: str, start: int) -> Iterator[list[Row]]:
    """Yields batches from example `start` on: those that workers of an earlier run have left beside
    the output, and the others certified here."""
    shards = Shards(output, job.settings, count=job.count, columns=job.columns)
    if not shards.folder.exists():
        yield from job.batches(start)
        return
    shards.prepare(resumed=True)
    certified: Iterator[list[Row]] = iter(())
    reached = -1
    for first in range(start, job.count, job.settings["batch_size"]):
        rows = shards.read(first)
        if rows is None:
            if first != reached:
                certified = job.batches(first)
            rows = next(certified, [])
            reached = first + len(rows)
        yield rows
    shards.remove()
    yield from job.batches(job.count)  # raises the error that ended the examples, if one did


def _workers(options: RunOptions) -> Workers | None:
    """Returns the workers of Apache Beam, which is an extra; None without a runner."""
    if options.runner is None:
        return None
    try:
        from keras_curv.runs.beam import Workers
    except ImportError as error:
        raise InputError(
            "a runner needs apache-beam, which is not installed: pip install 'keras_curv[beam]'"
        ) from error
    return Workers(options.runner, options.beam_options)
