"""Benchmark reports, logged to the MLflow run that trained the model."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rankline.runs.reader import Reader, open_reader
from rankline.runs.store import open_store, stored_id
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.training.tracking.errors import reason_of
from rankline.workflows.core.errors import ArtifactError, RanklineError
from rankline.workflows.page.page import Page
from rankline.workflows.storage.artifacts import write_whole

if TYPE_CHECKING:
    from mlflow import MlflowClient

FIGURES = ("p50_ms", "p99_ms", "rows_per_s")
"""Key metrics of a run: latency of the smallest requests, one at a time, and peak rows/s. They are logged under
serving/, and under their titles, which fit the columns of MLflow's tables.
"""
_FOLDER = "bench"  # artifact folder of a run
_JSON = "bench.json"
_DESCRIPTION = "mlflow.note.content"  # MLflow shows it, as Markdown, at the top of a run's page
_RULE = "\n\n---\n\n"
_MAX_METRICS = 1000  # MLflow's limit per call


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """A page to write beside the figures.

    Attributes:
        is_of_run: whether it is the report of the run that trained the model, which becomes its first artifact and its
            description, rather than that of a later benchmark.
    """

    path: Path
    make: Callable[[], Page]
    is_of_run: bool = False

    @cached_property
    def page(self) -> Page:
        return self.make()


def log_report(
    report: BenchmarkReport, tracking_uri: str, run_id: str, directory: Path, page: PageFile | None = None
) -> None:
    """Write the report to `directory` (JSON, CSV, histograms) and its page, and log it to an MLflow run.

    Metrics such as `bench/p50_ms` are curves over the rows per request. `FIGURES` are single values, which `rankline
    ui` shows next to the AUC. An error in one file does not affect the others. If `run_id` is empty, the model was
    trained elsewhere, and only the files are written.
    """
    made, failures = _write(report, directory, page)
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
        with TemporaryDirectory(prefix="rankline-report-") as name:  # the store's disk may have space
            spare = Path(name)
            if failures:
                made, still = _write(report, spare, page and replace(page, path=spare / page.path.name))
                kept = f"MLflow run {run_id} contains the rest" if still else kept
            for path in made:
                _log_file(client, run_id, path, at_top=page is not None and page.is_of_run and path.suffix == ".html")
        if page and page.is_of_run and not failures:
            client.set_tag(run_id, _DESCRIPTION, _described(client, run_id, page.page))
    except (MlflowException, RanklineError, OSError) as error:
        kept = f"it is in {directory}" if not failures else "everything else was saved"
        failures.append(f"MLflow run {run_id} in {tracking_uri} refused it: {reason_of(error)}")
    if failures:
        raise _incomplete(failures, kept)


def curves_of(tracking_uri: str, run_id: str) -> dict[str, list[tuple[float, float]]]:
    """Return a run's losses after each epoch as (epoch, value); empty if the store cannot be read."""
    losses = [f"{prefix}{loss}" for prefix in ("inner_", "valid_") for loss in ("logloss", "rmse", "loss")]
    try:
        store = open_reader(tracking_uri)
        return store.history(store.run(run_id).run_id, [*losses, "inner_train_loss", "train_loss"])
    except ArtifactError:
        return {}


def _described(client: "MlflowClient", run_id: str, page: Page) -> str:
    """Return the page's summary, followed by the remarks that the description already has."""
    remarks = client.get_run(run_id).data.tags.get(_DESCRIPTION, "").rpartition(_RULE)[2]
    return f"{page.markdown()}{_RULE}{remarks}"


def _log_file(client: "MlflowClient", run_id: str, path: Path, *, at_top: bool) -> None:
    if path.is_dir():
        client.log_artifacts(run_id, str(path), f"{_FOLDER}/{path.name}")
    else:
        client.log_artifact(run_id, str(path), None if at_top else _FOLDER)


def _incomplete(failures: Sequence[str], kept: str) -> ArtifactError:
    return ArtifactError(f"the report was not saved completely: {'; '.join(failures)}. However, {kept}.")


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


def _write(report: BenchmarkReport, directory: Path, page: PageFile | None) -> tuple[list[Path], list[str]]:
    """Write as many of the files as possible. Return those written, and a description of each failure."""
    histograms = directory / "histograms"

    def write_histograms() -> None:
        shutil.rmtree(histograms, ignore_errors=True)
        for name, text in report.histograms().items():
            write_whole(histograms / name, text.encode())

    files: dict[Path, Callable[[], None]] = {
        directory / _JSON: lambda: write_whole(directory / _JSON, report.to_json().encode()),
        directory / "bench.csv": lambda: write_whole(directory / "bench.csv", report.to_csv().encode()),
        histograms: write_histograms,
    }
    if page:
        files[page.path] = lambda: write_whole(page.path, page.page.html().encode())
    made: list[Path] = []
    unwritten: dict[tuple[str, Path], list[str]] = {}
    for path, write in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write()
            made.append(path)
        except OSError as error:
            unwritten.setdefault((error.strerror or str(error), path.parent), []).append(path.name)
        except Exception as error:  # an error in a chart must not lose the figures
            reason = f"{type(error).__name__}: {reason_of(error)}"
            unwritten.setdefault((reason, path.parent), []).append(path.name)
    return [path for path in made if path.exists()], [
        f"{', '.join(names)} cannot be written to {parent}: {why}" for (why, parent), names in unwritten.items()
    ]


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
    for name, value in _key_figures(report).items():
        metrics += [Metric(key, value, now, 0) for key in (f"serving/{name}", METRICS[name].title)]
    for begin in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics[begin : begin + _MAX_METRICS])


def _key_figures(report: BenchmarkReport) -> dict[str, float]:
    one_by_one = [result for result in report.bench if result.concurrency == 1]
    smallest = min(one_by_one, key=lambda result: result.batch_size, default=None)
    latency = {name: smallest.value(name) for name in FIGURES if name.endswith("_ms")} if smallest else {}
    # At a fixed rate, rows/s is what was sent, not what the server could do.
    most = max((result.rows_per_s for result in report.bench if result.concurrency), default=0.0)
    return {name: value for name, value in {**latency, "rows_per_s": most or None}.items() if value is not None}
