"""Runs MLflow's UI for a store in a child process, and configures the columns and charts of its run pages."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Experiment, ViewType

from rankline.runs.bench_reports import FIGURES
from rankline.runs.store import ENGINE, MEGABYTES, VERSION
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.server.ports import choose_ports
from rankline.training.evaluation import OBJECTIVES
from rankline.training.tracking.upload import OPENS_ON_RUNS
from rankline.workflows.core.errors import ServingError
from rankline.workflows.core.tracking_uri import with_credentials

KEY = "rankline"
_FOR_TRAINING = "workflowType=machine_learning"  # show the menu for runs and models, not for traces
_TAG = f"mlflow.sharedViewState.{KEY}"
_FIGURES = (*(METRICS[name].title for name in FIGURES), MEGABYTES)
_LOSSES = ("logloss", "rmse", "loss")


def lay_out(client: MlflowClient) -> dict[str, str]:
    """Configure all experiments' columns and charts. Return a dict of page paths keyed by name, latest first."""
    found = client.search_experiments(view_type=ViewType.ACTIVE_ONLY, order_by=["last_update_time DESC"])
    pages = {}
    for experiment in found:
        if state := _state(client, experiment):
            for name, value in {**OPENS_ON_RUNS, _TAG: json.dumps(state)}.items():
                if experiment.tags.get(name) != value:
                    client.set_experiment_tag(experiment.experiment_id, name, value)
            pages[experiment.name] = (
                f"/#/experiments/{experiment.experiment_id}/runs?{_FOR_TRAINING}&compareRunsMode=CHART&viewStateShareKey={KEY}"
            )
    return pages


def _state(client: MlflowClient, experiment: Experiment) -> dict[str, Any] | None:
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"], max_results=20)
    if not runs:
        return None
    metrics = dict.fromkeys(name for run in runs for name in run.data.metrics)
    judged = [title for title in dict.fromkeys([*(o.title for o in OBJECTIVES), "logloss"]) if title in metrics]
    columns = [f"metrics.`{name}`" for name in (*judged, *_FIGURES[:-1])]
    columns += [f"tags.`{name}`" for name in (VERSION, ENGINE, "data")]
    charts = list(_charts(judged, metrics))
    sections = dict.fromkeys(chart["metricSectionId"] for chart in charts)
    return {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": columns,
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": name, "name": name, "display": True, "isReordered": False, "deleted": False, "isGenerated": False}
            for name in sections
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": True,
    }


def _charts(judged: list[str], metrics: Mapping[str, None]) -> Iterator[dict[str, Any]]:
    yield from (_chart("BAR", [name], "at a glance") for name in (*judged, *_FIGURES) if name in metrics)
    for loss in _LOSSES:
        for prefix in ("inner_", ""):
            held_out = f"{prefix or 'valid_'}{loss}"
            if held_out in metrics:
                curves = [held_out, *[f"{prefix}train_loss"] * (loss != "rmse")]
                yield _chart("LINE", curves, "learning curves")
    if "steps/train_loss" in metrics:
        yield _chart("LINE", ["steps/train_loss"], "learning curves")
    for name in ("bench/p50_ms", "bench/p99_ms", "bench/rows_per_s"):
        if name in metrics:
            yield {**_chart("LINE", [name], "by rows per request"), "scaleType": "log", "xAxisScaleType": "log"}


def _chart(kind: str, metrics: list[str], section: str) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"{section}-{metrics[0]}",
        "metricKey": metrics[0],
        "selectedMetricKeys": metrics,
        "lineSmoothness": 0,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 10,
    }


_START_S = 120.0
_STOP_S = 10.0
_LOOK_EVERY_S = 0.5


@contextmanager
def serve_pages(uri: str, port: int) -> Iterator[tuple[str, Callable[[threading.Event], None] | None]]:
    """Run MLflow's server for a store on the loopback interface until the `with` block ends.

    Yields:
        The address of the pages, and a function that waits for an event. The function is None if the store is a server,
        which has its own pages.
    """
    if uri.startswith(("http://", "https://")):
        yield uri.rstrip("/"), None
        return
    port = choose_ports(port=port)["port"]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1"]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": with_credentials(uri),  # process arguments are visible to all users
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # starts processes that are not needed here
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_until_up(process, address)
        yield address, partial(_wait, process)
    finally:
        for kind in (signal.SIGTERM, signal.SIGKILL):  # for its session, since it has child processes
            with suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)


def _wait_until_up(process: "subprocess.Popen[bytes]", address: str) -> None:
    limit = time.monotonic() + _START_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ServingError(f"the MLflow server did not start within {_START_S:g} s (exit status: {process.poll()}).")


def _wait(process: "subprocess.Popen[bytes]", stop: threading.Event) -> None:
    while not stop.wait(_LOOK_EVERY_S):
        if process.poll() is not None:
            raise ServingError(f"MLflow's server exited with status {process.returncode}.")
