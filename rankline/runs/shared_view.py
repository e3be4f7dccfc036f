"""Columns and charts of MLflow's run pages.

MLflow stores a shared page as JSON in a tag of the experiment. A URL with its key opens the page in that state.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Experiment, ViewType

from rankline.runs.export_tags import ENGINE, MEGABYTES, VERSION
from rankline.training.evaluation import OBJECTIVES
from rankline.training.tracking.upload import OPENS_ON_RUNS

KEY = "rankline"
_FOR_TRAINING = "workflowType=machine_learning"  # show the menu for runs and models, not for traces
_TAG = f"mlflow.sharedViewState.{KEY}"
_KEY_FIGURES = ("serving/p50_ms", "serving/p99_ms", "serving/rows_per_s", MEGABYTES)


def lay_out(client: MlflowClient) -> dict[str, str]:
    """Set columns and charts of each experiment; return a mapping from name to page path, latest experiment first."""
    found = client.search_experiments(view_type=ViewType.ACTIVE_ONLY, order_by=["last_update_time DESC"])
    pages = {}
    for experiment in found:
        if state := _state(client, experiment):
            for name, value in {**OPENS_ON_RUNS, _TAG: json.dumps(state)}.items():
                if experiment.tags.get(name) != value:
                    client.set_experiment_tag(experiment.experiment_id, name, value)
            pages[experiment.name] = (
                f"/#/experiments/{experiment.experiment_id}/runs?{_FOR_TRAINING}&viewStateShareKey={KEY}"
            )
    return pages


def _state(client: MlflowClient, experiment: Experiment) -> dict[str, Any] | None:
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"], max_results=20)
    if not runs:
        return None
    metrics = dict.fromkeys(name for run in runs for name in run.data.metrics)
    judged = [f"valid_{objective.name}" for objective in OBJECTIVES if f"valid_{objective.name}" in metrics]
    columns = [f"metrics.`model/{name}`" for name in judged]
    columns += [f"metrics.`{name}`" for name in _KEY_FIGURES]
    columns += [f"tags.`{name}`" for name in (ENGINE, VERSION, "data")]
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
    at_a_glance = [*(f"model/{name}" for name in judged), *_KEY_FIGURES]
    over_rows = ["bench/p50_ms", "bench/p99_ms", "bench/rows_per_s"]
    yield from (_chart("BAR", name, "at a glance") for name in at_a_glance if name in metrics)
    yield from (_chart("LINE", name, "over epochs") for name in (*judged, "train_loss") if name in metrics)
    for name in over_rows:
        if name in metrics:
            yield {**_chart("LINE", name, "over rows of a request"), "scaleType": "log", "xAxisScaleType": "log"}


def _chart(kind: str, metric: str, section: str) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"{section}-{metric}",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 10,
    }
