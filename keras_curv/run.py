"""A whole run: from a model and a data set to rows, a summary, a plot and a report, resumable."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence

import numpy as np

from keras_curv.baselines.smoothing import SmoothedClassifier
from keras_curv.certificate import RIVALS
from keras_curv.certifier import Certifier, plain_shape
from keras_curv.data import Examples
from keras_curv.errors import InputError, require_at_least, require_one_of, require_positive
from keras_curv.files import write_file, write_json, write_text
from keras_curv.html_report import page
from keras_curv.html_report.gathered import Gathered
from keras_curv.reading import saved_model
from keras_curv.report import Tally, plot_curve, progress_bar, require_plottable, working
from keras_curv.rows import Row, RowFile, settings_path
from keras_curv.verdict import require_fraction, verdict
from keras_curv.version import __version__

DEFAULT_RADII = (0.1, 0.25, 0.5, 1.0, 1.58)


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """How to certify by a vote under noise; see `SmoothedClassifier`."""

    deviation: float
    samples: int = 100_000
    failure_probability: float = 1e-3
    noise: str = "own"

    def votes(self) -> dict:
        """What `SmoothedClassifier.certify` takes."""
        return {
            "samples": self.samples,
            "failure_probability": self.failure_probability,
            "noise": self.noise,
        }


def certify_examples(
    model,
    examples: Examples,
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
        examples: see `data.load` and `data.load_npz`.
        radii: at which to report certified accuracy.
        input_scale: examples are multiplied by this before the model sees them. Radii are in
            the model's input units, that is, multiplied too.
        output: CSV file of rows; see `rows.Row`. It must not exist, unless `resume`.
        resume: go on where an interrupted run with the same settings left `output`.
        summary: JSON file for what is returned.
        plot: image of certified accuracy against radius (needs matplotlib).
        report: HTML file for people: curve, radii by class, the least robust examples with the
            closest adversarial points found, terms and settings; see `html_report/page.py`.
        command: that makes this run again, word by word, for the report.
        required: certified accuracy at every radius, for the verdict.
        progress: draw a progress bar on stderr.

    Returns:
        The summary; see `report.Tally.summary` for its keys, and `verdict.verdict`.

    Raises:
        InputError: what cannot be used, before anything is written where that can be known;
            rows already written stay.
    """
    started = time.monotonic()
    radii = [require_positive(radius, "radius") for radius in radii]
    with np.errstate(over="ignore"):
        scale = np.float32(require_positive(float(input_scale), "input_scale"))
    require_positive(scale, "input_scale, in float32,")
    if batch_size is not None:
        require_at_least(batch_size, 1, "batch_size")
    require_one_of(rivals, RIVALS, "rivals")
    require_fraction(required, "the certified accuracy required")
    if resume and not output:
        raise InputError("resume needs the output file of the run to go on with")
    require_distinct_files(output, [summary, plot, report], [examples.path])
    if plot:
        require_plottable(plot)

    with working("reading the model and bounding its norms", visible=progress):
        if smoothing is None:
            certifier = Certifier(model, signature=signature, method=method, guarantee=guarantee)
            certify = certifier.certify
        else:
            certifier = SmoothedClassifier(model, smoothing.deviation, signature=signature)
            certify = functools.partial(certifier.certify, **smoothing.votes())
            method, guarantee = "smoothing", "probabilistic"
    served = certifier.served
    fit = _fitting_shape(examples, served)
    size = batch_size or certifier.batch_size(rivals)
    settings = {
        "version": __version__,
        "fingerprint": served.fingerprint,
        "signature": served.signature,
        "dataset": examples.name,
        "dataset_fingerprint": examples.fingerprint,
        "input_scale": float(input_scale),
        "rivals": rivals,
        "method": method,
        "guarantee": guarantee,
        "seed": seed,
        "batch_size": size,
    }
    if smoothing is not None:
        settings |= dataclasses.asdict(smoothing)
    tally, gathered = Tally(), Gathered() if report else None

    def as_input(x):
        return fit(x if scale == 1.0 else x * scale)

    def count_in(rows):
        tally.add(rows)
        if gathered:
            gathered.add(rows)

    with RowFile(output, settings, count=examples.count, resume=resume) as file:
        count_in(file.rows)
        done = len(file.rows)
        with progress_bar(examples.count, done, visible=progress) as advance:
            for x, y in examples.batches(size, done):
                result = certify(as_input(x), y, rivals=rivals, seed=seed, first_index=done)
                rows = Row.from_certificates(result, y, done, rivals)
                file.write(rows)
                count_in(rows)
                done += len(rows)
                advance(len(rows))

    result = {"saved_model": served.source} | tally.summary(radii) | settings
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
                as_input=as_input,
                input_scale=float(scale),
                rivals=rivals,
            )
        text = page.render(result, settings, gathered, cases, command)
        write_text(report, text)
    return result


def _fitting_shape(examples: Examples, served: saved_model.ServedModel):
    """How to bring an example of a named data set into the model's shape, entries in order."""

    def plain(shape):
        return tuple(n for n in shape if n != 1)

    wanted, have = served.input_shape, tuple(examples.shape)
    flattened = wanted == (int(np.prod(have)),)
    if have == wanted:
        return lambda x: x
    if examples.reshapable and (plain(have) == plain(wanted) or flattened):
        return lambda x: x.reshape((len(x), *wanted))
    raise InputError(
        f"examples of {examples.name} have shape {have}, but {served.source} takes {wanted}; "
        f"reshape x to (n, {plain_shape(wanted)})"
    )


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
    if output is not None:
        resolved.append(settings_path(pathlib.Path(output)).resolve())
    read = {pathlib.Path(path).resolve() for path in inputs if path is not None}
    if len(set(resolved)) < len(resolved) or read & set(resolved):
        raise InputError("what is read and what is written must all be different files")
