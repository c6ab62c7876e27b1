"""A whole run: from a model and a data set to rows, a summary, a plot and a report, resumable."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence

from keras_curv.certificates.smoothing import Smoothing
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError, require_fraction, require_positive
from keras_curv.files import part_path, write_file, write_json, write_text
from keras_curv.reading import saved_model
from keras_curv.reading.files import GRAPH, INDEX
from keras_curv.reports.console import progress_bar, working
from keras_curv.reports.html import page
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.plot import plot_curve, require_plottable
from keras_curv.rows.row_file import RowFile, settings_path
from keras_curv.rows.tally import Tally
from keras_curv.rows.verdict import verdict
from keras_curv.runs.job import Job

DEFAULT_RADII = (0.1, 0.25, 0.5, 1.0, 1.58)


def certify_examples(
    model,
    examples: Examples | tuple,
    *,
    signature: str = saved_model.DEFAULT_SIGNATURE,
    method: str = "auto",
    guarantee: str = "real",
    smoothing: Smoothing | None = None,
    rivals: str = "all",
    radii: Sequence[float] = DEFAULT_RADII,
    input_scale: float = 1.0,
    batch_size: int | None = None,
    seed: int = 0,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    output: str | None = None,
    resume: bool = False,
    summary: str | None = None,
    plot: str | None = None,
    report: str | None = None,
    command: Sequence[str] | None = None,
    required: float | None = None,
    progress: bool = False,
) -> dict:
    """Certifies a data set as a stream, writing rows as they come; `bin/certify` in one call.

    Args:
        model, signature, method, guarantee, rivals, batch_size, seed: as for `certify`.
        smoothing: certify the model smoothed by noise, instead of by a method; then the
            guarantee is probabilistic.
        examples: arrays `(x, y)`, or `(x, None)` without labels; or a stream of batches, see
            `data.load` and `data.load_npz`.
        radii: at which to report certified accuracy.
        input_scale: examples are multiplied by this before the model sees them. Radii are in
            the model's input units, that is, multiplied too.
        runner: of Apache Beam, to certify by its workers instead of in this process; the rows are
            the same. See `beam.py` for what workers must be able to reach.
        beam_options: for it, as Beam spells them, without dashes: "direct_num_workers=2".
        output: CSV file of rows; see `rows.row.Row`. It must not exist, unless `resume`.
        resume: go on where an interrupted run with the same settings left `output`.
        summary: JSON file for what is returned.
        plot: image of certified accuracy against radius (needs matplotlib).
        report: HTML file for people: curve, radii by class, the least robust examples with the
            closest adversarial points found, terms and settings; see `reports/html/page.py`.
        command: that makes this run again, word by word, for the report.
        required: certified accuracy at every radius, for the verdict.
        progress: draw a progress bar on stderr.

    Returns:
        The summary; see `Tally.summary` for its keys, and `verdict.verdict`.

    Raises:
        InputError: what cannot be used, before anything is written where that can be known;
            rows already written stay.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> some = x[:20], y[:20]
        >>> summary = certify_examples("saved_models/digits", some, method="crc", radii=[0.5])
        >>> summary["examples"], summary["clean_accuracy"]
        (20, 0.95)
    """
    started = time.monotonic()
    examples = _stream(examples)
    radii = require_radii(radii)
    require_fraction(required, "the certified accuracy required")
    if resume and not output:
        raise InputError("resume needs the output file of the run to go on with")
    if runner is not None and not output:
        raise InputError("a runner needs an output file: its workers leave their rows beside it")
    require_distinct_files(output, [summary, plot, report], [examples.path])
    if plot:
        require_plottable(plot)
    workers = _workers(runner, beam_options)

    with working("reading the model and bounding its norms", visible=progress):
        job = Job(
            model,
            examples,
            signature=signature,
            method=method,
            guarantee=guarantee,
            smoothing=smoothing,
            rivals=rivals,
            input_scale=input_scale,
            batch_size=batch_size,
            seed=seed,
        )
        if workers:
            job.elsewhere()
    served = job.served
    tally, gathered = Tally(), ReportData() if report else None

    def count_in(rows):
        tally.add(rows)
        if gathered:
            gathered.add(rows)

    with RowFile(output, job.settings, count=examples.count, resume=resume) as file:
        count_in(file.rows)
        done = len(file.rows)
        if workers:
            with working(f"certifying on {runner}", visible=progress):
                batches = workers.batches(job, output, done)
        else:
            batches = job.batches(done)
        with progress_bar(examples.count, done, visible=progress) as advance:
            for rows in batches:
                file.write(rows)
                count_in(rows)
                advance(len(rows))

    result = {"saved_model": served.source} | tally.summary(radii) | job.settings
    result |= {
        "input_shape": list(served.input_shape),
        "classes": served.network.classes,
        "depth": served.network.depth,
        "seconds": round(time.monotonic() - started, 3),
        "verdict": verdict(result, required=required),
    }
    if summary:
        write_json(summary, result)
    if plot:
        write_file(plot, lambda path: plot_curve(tally, result, str(path)))
    if report:
        with working("searching adversarial points for the report", visible=progress):
            cases = page.prepare(
                examples,
                gathered,
                network=None if smoothing else served.network,
                as_input=job.as_input,
                input_scale=float(job.scale),
                rivals=rivals,
            )
        write_text(report, page.render(result, job.settings, gathered, cases, command))
    return result


def _stream(examples: Examples | tuple) -> Examples:
    if isinstance(examples, Examples):
        return examples
    if isinstance(examples, tuple) and len(examples) == 2:
        return Examples.from_arrays("the examples", *examples)
    raise InputError(
        f"examples must be arrays (x, y), or data.Examples. Received: {type(examples).__name__}"
    )


def _workers(runner: str | None, options: Sequence[str]):
    """Of Apache Beam, which is an extra; None: none."""
    if runner is None:
        if options:
            raise InputError(f"{options[0]!r} is an option of Apache Beam: name a runner too")
        return None
    try:
        from keras_curv.runs.beam import Workers
    except ImportError as error:
        raise InputError(
            "a runner needs apache-beam, which is not installed: pip install 'keras_curv[beam]'"
        ) from error
    return Workers(runner, options)


def require_radii(radii: Sequence[float]) -> list[float]:
    """At which to report: one at least, and all positive."""
    if not len(radii):
        raise InputError("radii must be one at least. Received: none")
    return [require_positive(radius, "radius") for radius in radii]


def require_distinct_files(
    output: str | None, others: Sequence[str | None], inputs: Sequence[str | None]
) -> None:
    """Refuses files that would overwrite one another, or that cannot be there at all.

    Args:
        output: of rows; its settings lie beside it.
        others: that are written; None where there is none.
        inputs: that are read.
    """
    named = [path for path in (output, *others) if path is not None]
    if "" in named:
        raise InputError("an empty name is not a file")
    resolved = [pathlib.Path(path).resolve() for path in named]
    for path, target in zip(named, resolved, strict=True):
        if not target.parent.is_dir():
            raise InputError(f"the folder of {path} does not exist; make it first")
        if target.is_dir():
            raise InputError(f"{path} is a directory; give the name of a file")
        if target.name == GRAPH or (target.parent / INDEX).exists():
            raise InputError(f"{path} would be a file of a SavedModel; give another name")
    if output is not None:
        resolved.append(settings_path(pathlib.Path(output)).resolve())
    read = {pathlib.Path(path).resolve() for path in inputs if path is not None}
    resolved += [part_path(target) for target in resolved]
    if len(set(resolved)) < len(resolved) or read & set(resolved):
        raise InputError("what is read and what is written must all be different files")
