"""Certifies on the workers of an Apache Beam runner; the rows are those of a run without one.

No data goes through the pipeline: its elements are the first examples of batches. Each worker
process reads the model and the examples once, certifies whole batches in the company they would
have here, and leaves them in a folder beside the output; see `shards.py`. So all machines need
this package, and must see the model, the examples and the folder of the output at the same paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
from apache_beam.runners.runner import PipelineState
from apache_beam.utils.shared import Shared

from keras_curv.errors import InputError
from keras_curv.rows.row import Row
from keras_curv.rows.shards import Shards
from keras_curv.runs.beam_runner import load_pipeline, run_pipeline
from keras_curv.runs.job import Job


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
        self._pipeline = load_pipeline(runner, options)

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
        return _joined(job, shards, start)

    def _run(self, missing: list[int], remote_factory: Callable[[], Job], shards: Shards) -> None:
        firsts = self._pipeline | beam.Create(missing) | beam.Reshuffle()
        firsts | beam.Map(_certify, remote_factory, shards, Shared())
        try:
            state = run_pipeline(self._pipeline)
        except InputError as error:
            raise InputError(f"{self._runner}: {error}") from error
        if state != PipelineState.DONE:
            raise InputError(f"{self._runner}: the pipeline ended as {state}; go on with --resume")


def _certify(first: int, remote_factory: Callable[[], Job], shards: Shards, shared: Shared) -> None:
    """Certifies one batch, on a worker, unless it is there. All threads share one job.

    Dask runs a task again if the worker with its result has died, and others may do so too.
    """
    if not shards.missing(first, first + 1):
        return
    job = shared.acquire(remote_factory)
    try:
        rows = next(job.batches(first))
    except InputError as error:
        shards.refuse(first, str(error))
    else:
        shards.write(rows)


def _joined(job: Job, shards: Shards, start: int) -> Iterator[list[Row]]:
    for first in range(start, job.count, job.settings["batch_size"]):
        yield shards.rows(first)
    shards.remove()
    yield from job.batches(job.count)  # raises the error that ended the examples, if one did
