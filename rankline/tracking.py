"""Benchmark reports, logged to the MLflow run that trained the model: the one importer of MLflow in rankline/."""

from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from serving.benchmark.plot import write_plot
from serving.benchmark.report import BenchmarkReport
from workflows.artifacts import write_whole
from workflows.errors import ArtifactError


def log_report(report: BenchmarkReport, tracking_uri: str, run_id: str, directory: Path) -> None:
    """Write table, JSON and plot into `directory`, and log them with the figures to a run.

    Figures become metrics such as `bench/rows_1/p50_ms`, one for each batch size, so that `mlflow ui` compares models
    by them as columns beside the AUC; measuring again adds a newer value.

    Args:
        report: what was measured.
        tracking_uri: MLflow store of the run.
        run_id: run that trained the model.
        directory: made when it is missing; files of an earlier report are replaced.

    Raises:
        ArtifactError: the run was deleted, or the store cannot be written.
    """
    write_whole(directory / "bench.json", report.to_json().encode())
    write_whole(directory / "bench.csv", report.to_csv().encode())
    write_plot(report, directory / "bench.png")
    try:
        _log(report, MlflowClient(tracking_uri=tracking_uri), run_id, directory)
    except MlflowException as error:
        raise ArtifactError(
            f"the report is in {directory}, but MLflow run {run_id} in {tracking_uri} does not take it: {error}"
        ) from None


def _log(report: BenchmarkReport, client: MlflowClient, run_id: str, directory: Path) -> None:
    for result in report.bench:
        for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "rows_per_s"):
            client.log_metric(run_id, f"bench/rows_{result.batch_size}/{name}", getattr(result, name))
    client.log_artifacts(run_id, str(directory), artifact_path="bench")
