"""Logs a certification in MLflow: figures as metrics, settings as parameters, files as artifacts.

MLflow is an extra, `pip install 'keras_curv[mlflow]'`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import mlflow

from keras_curv.errors import InputError

_METRICS = ("examples", "clean_accuracy", "mean_radius", "median_radius", "gradient_evaluations")
_PARAMETERS = (
    *("saved_model", "fingerprint", "dataset", "dataset_fingerprint", "method"),
    *("guarantee", "property", "threat", "rivals", "version"),
)
_LONGEST = 500  # characters of a parameter that every store takes


def log_certification(summary: dict, *, files: Sequence[str] = ()) -> None:
    """Logs the summary of a run, and its files, in the active run of MLflow, or in a new one.

    Metrics are `certified_accuracy/RADIUS`, clean accuracy, mean and median radius where they are
    finite, and counts; where something was required, the tag `certified` is "passed" or "failed".
    Metrics and parameters have the prefix `keras_curv/`.

    Args:
        summary: as `certify_examples` and `certify_requests` return it.
        files: rows, reports and summaries that the run wrote, and folders of proofs.

    Raises:
        InputError: a file is not there; then nothing is logged.
    """
    missing = [file for file in files if not pathlib.Path(file).exists()]
    if missing:
        raise InputError(f"{missing[0]} is not there to be logged; name what the run has written")
    accuracy = summary["certified_accuracy"].items()
    metrics = {f"certified_accuracy/{radius}": value for radius, value in accuracy}
    metrics |= {name: summary[name] for name in _METRICS if isinstance(summary[name], (int, float))}
    mlflow.log_metrics({f"keras_curv/{name}": float(value) for name, value in metrics.items()})
    known = {name: str(summary[name])[:_LONGEST] for name in _PARAMETERS if name in summary}
    mlflow.log_params({f"keras_curv/{name}": value for name, value in known.items()})
    if summary["verdict"] is not None:
        mlflow.set_tag("certified", "passed" if summary["verdict"]["passed"] else "failed")
    for file in map(pathlib.Path, files):
        if file.is_dir():
            mlflow.log_artifacts(str(file), f"keras_curv/{file.name}")
        else:
            mlflow.log_artifact(str(file), "keras_curv")
