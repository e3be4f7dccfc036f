"""Benchmark reports, logged to the MLflow run that trained the model."""

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rankline.runs.reader import Reader, open_reader
from rankline.runs.store import open_store, stored_id
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.training.tracking.errors import reason_of
from rankline.workflows.core.errors import ArtifactError, RanklineError
from rankline.workflows.storage.artifacts import write_whole

if TYPE_CHECKING:
    from mlflow import MlflowClient

FIGURES = ("p50_ms", "p99_ms", "rows_per_s")
"""Key metrics of a run, logged under serving/: latency of the smallest requests, one at a time, and peak rows/s."""
_FOLDER = "bench"  # artifact folder of a run
_JSON = "bench.json"
_MAX_METRICS = 1000  # MLflow's limit per call


def log_report(report: BenchmarkReport, tracking_uri: str, run_id: str, directory: Path) -> None:
    """Write the report to `directory` (JSON, CSV, histograms, HTML page and plot), and log it to an MLflow run.

    Metrics such as `bench/p50_ms` are curves over the rows per request. `FIGURES` are single values, which `rankline
    ui` shows next to the AUC. An error in one file does not affect the others. If `run_id` is empty, the model was
    trained elsewhere, and only the files are written.
    """
    failures = _write(report, directory)
    if not run_id:
        if failures:
            raise _incomplete(failures, "everything else was saved")
        return
    from mlflow.exceptions import MlflowException

    kept = f"MLflow run {run_id} has the whole report"
    try:
        client = open_store(tracking_uri)
        run_id = stored_id(client, run_id)
        _log_figures(report, client, run_id)
        if not failures:
            client.log_artifacts(run_id, str(directory), artifact_path=_FOLDER)
            return
        with TemporaryDirectory(prefix="rankline-report-") as spare:  # the store's disk may have space
            if _write(report, Path(spare)):
                kept = f"MLflow run {run_id} contains the rest"
            client.log_artifacts(run_id, spare, artifact_path=_FOLDER)
    except (MlflowException, RanklineError, OSError) as error:
        kept = f"it is in {directory}" if not failures else "everything else was saved"
        failures.append(f"MLflow run {run_id} in {tracking_uri} refused it: {reason_of(error)}")
    raise _incomplete(failures, kept)


def _incomplete(failures: Sequence[str], kept: str) -> ArtifactError:
    return ArtifactError(f"the report was not saved completely: {'; '.join(failures)}. However, {kept}.")


def find_report(named: str, tracking_uri: str) -> BenchmarkReport:
    path = Path(named)
    if path.exists():
        return BenchmarkReport.read(path)
    if re.fullmatch("[0-9a-f]{32}", named):
        return read_report(open_reader(tracking_uri), named)
    raise ArtifactError(
        f"{named} is neither an existing file nor an MLflow run ID (32 hexadecimal digits). Pass a file or a run ID."
    )


def read_report(store: Reader, run_id: str) -> BenchmarkReport:
    source = f"{_FOLDER}/{_JSON} of MLflow run {run_id}"
    try:
        with store.artifact(store.run(run_id).run_id, f"{_FOLDER}/{_JSON}") as path:
            if path is None:
                raise ArtifactError("it does not exist")
            return BenchmarkReport.from_dict(json.loads(path.read_bytes()), source)
    except (ArtifactError, OSError, ValueError) as error:
        raise ArtifactError(
            f"{source} in {store.uri} cannot be read: {reason_of(error)}. Pass a file, or the ID of a run whose "
            "model was measured by `rankline bench`."
        ) from None


def _write(report: BenchmarkReport, directory: Path) -> list[str]:
    """Write as many of the files as possible, plots last, and return a description of each failure."""
    from rankline.serving.loadtest.report.html import to_html  # slow to import
    from rankline.serving.loadtest.report.plot import write_plot

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [f"nothing can be written to {directory}: {error.strerror}"]
    histograms = directory / "histograms"

    def write_histograms() -> None:
        shutil.rmtree(histograms, ignore_errors=True)
        for name, text in report.histograms().items():
            write_whole(histograms / name, text.encode())

    def write_picture() -> None:
        write_plot(report, directory / "bench.png")

    files: dict[str, Callable[[], None]] = {
        _JSON: lambda: write_whole(directory / _JSON, report.to_json().encode()),
        "bench.csv": lambda: write_whole(directory / "bench.csv", report.to_csv().encode()),
        "histograms": write_histograms,
        "bench.html": lambda: write_whole(directory / "bench.html", to_html(report).encode()),
        "bench.png": write_picture,
    }
    unwritten: dict[str, list[str]] = {}
    for name, write in files.items():
        try:
            write()
        except OSError as error:
            unwritten.setdefault(error.strerror or str(error), []).append(name)
        except Exception as error:  # a plotting error must not lose the report
            unwritten.setdefault(f"{type(error).__name__}: {reason_of(error)}", []).append(name)
    return [f"{', '.join(names)} cannot be written to {directory}: {why}" for why, names in unwritten.items()]


def _log_figures(report: BenchmarkReport, client: "MlflowClient", run_id: str) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [
        Metric(f"bench/{result.load.series}{name}", found.value, now, result.batch_size)
        for result in report.bench
        for name, found in result.metrics.items()
        if found.value is not None
    ]
    metrics += [
        Metric("bench/highest_requests_per_s", search.rate_per_s, now, batch_size)
        for batch_size, search in (report.searches or {}).items()
        if search.rate_per_s is not None
    ]
    metrics += [Metric(f"serving/{name}", value, now, 0) for name, value in _key_figures(report).items()]
    for begin in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics[begin : begin + _MAX_METRICS])


def _key_figures(report: BenchmarkReport) -> dict[str, float]:
    one_by_one = [result for result in report.bench if result.concurrency == 1]
    smallest = min(one_by_one, key=lambda result: result.batch_size, default=None)
    latency = {name: smallest.value(name) for name in FIGURES if name.endswith("_ms")} if smallest else {}
    most = max((result.rows_per_s for result in report.bench), default=0.0)
    return {name: value for name, value in {**latency, "rows_per_s": most or None}.items() if value is not None}
