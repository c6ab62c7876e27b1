"""Certifies on the workers of an Apache Beam runner; the rows are those of a run without one.

No data goes through the pipeline: its elements are the first examples of batches. Each worker
process reads the model and the examples once, certifies whole batches in the company they would
have here, and leaves them in a folder beside the output; see `shards.py`. So all machines need
this package, and must see the model, the examples and the folder of the output at the same paths.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.utils.shared import Shared

from keras_curv.errors import InputError
from keras_curv.rows.row import Row
from keras_curv.rows.shards import Shards
from keras_curv.runs.job import Job

_QUIET = "--default_sdk_harness_log_level=ERROR"


class Workers:
    """Certifies batches on the workers of one Beam runner.

    Args:
        runner: its name; "DirectRunner" is this process, or as many others as
            "direct_running_mode=multi_processing" and "direct_num_workers=N" say.
        options: for it, as Beam spells them, without their dashes.

    Raises:
        InputError: no such runner, or options that Beam does not take.
    """

    def __init__(self, runner: str, options: Sequence[str] = ()):
        self._runner = runner
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                parsed = PipelineOptions(
                    [_QUIET, *(f"--{option}" for option in options)],
                    # Or DirectRunner looks for Prism, a program to download, without processes.
                    allow_unsafe_triggers=True,
                )
                given = parsed.get_all_options(retain_unknown_options=True)
                self._pipeline = beam.Pipeline(runner, parsed)
        except (Exception, SystemExit) as error:  # argparse exits
            reason = _last_line(said.getvalue() or str(error)).rpartition("error: ")[2]
            raise InputError(f"the runner cannot be used: {reason}") from error
        unknown = sorted(given.keys() - PipelineOptions([]).get_all_options().keys())
        if unknown and not isinstance(self._pipeline.runner, PortableRunner):  # which has its own
            raise InputError(f"{runner} has no option {unknown[0]!r}; see Beam's pipeline options")

    def batches(
        self, job: Job, output: str, start: int, *, resumed: bool = False
    ) -> Iterator[list[Row]]:
        """Certifies from example `start` on; returns when workers are done.

        Args:
            job: as it was read here; each worker makes sure that it reads the same.
            output: beside which the workers leave their rows until these are taken.
            start: the first example of a batch.
            resumed: take what the workers of an earlier run have left there.

        Returns:
            Rows, batch by batch, in order, as of `job.batches`.

        Raises:
            InputError: the pipeline failed; what is certified is kept for the next attempt.
                Later: an example that cannot be certified, after the rows before it.
        """
        shards = Shards(output, job.settings, count=job.count, columns=job.columns)
        shards.prepare(resumed=resumed)
        missing = shards.missing(start)
        if missing:
            self._run(missing, job.remote_factory(), shards)
        return _joined(shards, range(start, job.count, job.settings["batch_size"]))

    def _run(self, missing: list[int], remote_factory: Callable[[], Job], shards: Shards) -> None:
        firsts = self._pipeline | beam.Create(missing) | beam.Reshuffle()
        firsts | beam.Map(_certify, remote_factory, shards, Shared())
        try:
            state = self._pipeline.run().wait_until_finish()
        except Exception as error:  # runners raise what they like
            raise InputError(
                f"{self._runner}: {_last_line(str(error)) or type(error).__name__}"
            ) from error
        if state != PipelineState.DONE:
            raise InputError(f"{self._runner}: the pipeline ended as {state}; go on with --resume")


def _certify(first: int, remote_factory: Callable[[], Job], shards: Shards, shared: Shared) -> None:
    """Certifies one batch, on a worker. All its threads share one job."""
    job = shared.acquire(remote_factory)
    try:
        rows = next(job.batches(first))
    except InputError as error:
        shards.refuse(first, str(error))
    else:
        shards.write(rows)


def _joined(shards: Shards, firsts: Sequence[int]) -> Iterator[list[Row]]:
    for first in firsts:
        yield shards.rows(first)
    shards.remove()


def _last_line(text: str) -> str:
    """Returns the last non-empty line of an error message, as below a worker's traceback."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
