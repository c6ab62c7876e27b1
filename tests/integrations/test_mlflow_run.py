"""What is logged in MLflow can be read again."""

import pytest

from keras_curv import certify_examples, data
from keras_curv.errors import InputError

mlflow = pytest.importorskip("mlflow")

from keras_curv.integrations.mlflow_run import log_certification  # noqa: E402


@pytest.fixture
def summary(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    x, y = data.load_all("digits")
    return certify_examples(
        "saved_models/digits",
        (x[:20], y[:20]),
        method="crc",
        radii=[0.5],
        required=["0.5=0.99"],
        output=str(tmp_path / "rows.csv"),
        report=str(tmp_path / "report.html"),
    )


def test_metrics_parameters_and_files_are_in_the_run(summary, tmp_path):
    (tmp_path / "proofs").mkdir()
    (tmp_path / "proofs" / "0.npz").write_bytes(b"a proof")
    files = [str(tmp_path / name) for name in ("rows.csv", "report.html", "proofs")]
    with mlflow.start_run() as run:
        log_certification(summary, files=files)
    logged, client = mlflow.get_run(run.info.run_id), mlflow.MlflowClient()
    certified = summary["certified_accuracy"]["0.5"]
    assert 0.5 < certified < 0.99
    assert logged.data.metrics["keras_curv/certified_accuracy/0.5"] == certified
    assert logged.data.metrics["keras_curv/clean_accuracy"] == 0.95
    assert logged.data.params["keras_curv/fingerprint"] == summary["fingerprint"]
    assert logged.data.tags["certified"] == "failed"
    paths = {file.path for file in client.list_artifacts(run.info.run_id, "keras_curv")}
    assert paths == {f"keras_curv/{name}" for name in ("rows.csv", "report.html", "proofs")}


def test_a_file_that_is_not_there_is_refused_before_anything_is_logged(summary, tmp_path):
    with mlflow.start_run() as run, pytest.raises(InputError, match="nothing.html is not there"):
        log_certification(summary, files=[str(tmp_path / "nothing.html")])
    assert mlflow.get_run(run.info.run_id).data.metrics == {}
