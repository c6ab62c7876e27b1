"""An Apache Beam runner by its name, its options, and a pipeline on it from start to end."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import DirectRunner
from apache_beam.runners.portability.portable_runner import PortableRunner

from keras_curv.errors import InputError

_QUIET = "--default_sdk_harness_log_level=ERROR"
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"  # whose short name Beam does not know
_READERS = {"beam_control_read", "read_grpc_client_inputs"}  # whose worker may be gone
_DIED = (
    "a worker process died, perhaps for want of memory; what is certified is kept: go on with "
    "--resume, and with fewer workers or a smaller --batch_size if it dies again"
)


def load_pipeline(name: str, options: Sequence[str] = ()) -> beam.Pipeline:
    """Returns an empty pipeline on a runner.

    Args:
        name: of the runner, as DirectRunner or DaskRunner, or the full name of a class.
        options: for it, as Beam spells them, without their dashes. They are parsed after the
            runner is loaded, since it declares options of its own. DaskRunner makes a task of
            each element, unless an option says otherwise: by Beam's default of 128 elements,
            most workers would have nothing to do.

    Raises:
        InputError: no such runner, or options that it does not take.
    """
    words = [_QUIET, *(f"--{option}" for option in options)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            path = _DASK if name.lower() == "daskrunner" else name
            runner = beam.Pipeline(path, PipelineOptions([])).runner
            if _is_dask(runner):
                logging.getLogger("distributed").setLevel(logging.ERROR)
                partitioned = ("--dask_npartitions", "--dask_partition_size")
                if not any(word.startswith(partitioned) for word in words):
                    words.append("--dask_partition_size=1")
            # Or DirectRunner looks for Prism, a program to download, without processes.
            parsed = PipelineOptions(words, allow_unsafe_triggers=True)
            given = parsed.get_all_options(retain_unknown_options=True)
            pipeline = beam.Pipeline(runner, parsed)
    except ModuleNotFoundError as error:
        if error.name != "dask":
            raise InputError(f"the runner cannot be used: {error}") from error
        raise InputError(
            "DaskRunner needs dask, which is not installed: pip install 'keras_curv[dask]'"
        ) from error
    except (Exception, SystemExit) as error:  # argparse exits
        reason = _last_line(said.getvalue() or str(error)).rpartition("error: ")[2]
        raise InputError(f"the runner cannot be used: {reason}") from error
    unknown = sorted(given.keys() - PipelineOptions([]).get_all_options().keys())
    if unknown and not isinstance(runner, PortableRunner):  # which has its own
        raise InputError(f"{name} has no option {unknown[0]!r}; see Beam's pipeline options")
    return pipeline


def run_pipeline(pipeline: beam.Pipeline) -> str:
    """Runs a pipeline until it ends, and returns its state.

    Raises:
        InputError: it failed.
    """
    try:
        if isinstance(pipeline.runner, DirectRunner):
            return _run_until_a_death(pipeline)
        result: Any = pipeline.run()
        try:
            return result.wait_until_finish()
        finally:
            if _is_dask(pipeline.runner):  # which would keep its connection, or its processes
                result.client.close()
    except InputError:
        raise
    except Exception as error:  # runners raise what they like
        raise InputError(_last_line(str(error)) or type(error).__name__) from error


def _run_until_a_death(pipeline: beam.Pipeline) -> str:
    """Runs a pipeline of DirectRunner, which waits for ever for a worker process that has died.

    Only a thread of Beam's learns of the death, and ends by an error. So the pipeline is left to a
    daemon thread, whose own threads are daemons too, and stay behind.
    """
    outcome: list[str | Exception] = []
    ended, hook = threading.Event(), threading.excepthook

    def run() -> None:
        try:
            outcome.append(pipeline.run().wait_until_finish())
        except Exception as error:
            outcome.append(error)
        ended.set()

    def notice(failed: threading.ExceptHookArgs) -> None:
        if failed.thread is not None and failed.thread.name == "run_worker":
            outcome.append(InputError(_DIED))
            ended.set()
        elif failed.thread is None or failed.thread.name not in _READERS:
            hook(failed)

    threading.excepthook = notice
    try:
        threading.Thread(target=run, daemon=True).start()
        ended.wait()
    finally:
        threading.excepthook = hook
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _is_dask(runner: object) -> bool:
    return f"{type(runner).__module__}.{type(runner).__name__}" == _DASK


def _last_line(text: str) -> str:
    """Returns the last non-empty line of an error message, as below a worker's traceback."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
