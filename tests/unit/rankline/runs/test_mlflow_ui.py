"""Pages of MLflow: which they open on, and where no server is started."""

import json
import socket
from pathlib import Path

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.runs.mlflow_ui import lay_out, serve_pages
from rankline.workflows.core.errors import ServerError
from tests.factories.reports import report_of, result_of
from tests.unit.rankline.conftest import Store


def test_server_that_is_there_is_not_started_again() -> None:
    with serve_pages("http://mlflow:5000/", 5000) as (address, wait):
        assert (address, wait) == ("http://mlflow:5000", None)


def test_taken_port_is_named_before_anything_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 is already in use.* or 0 for a free one"),
            serve_pages("sqlite:///x", port),
        ):
            pass


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [["runs"], ["ui", "--no-open"], ["compare", "abcd1234", "abcd1235"]])
def test_verbs_name_a_store_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there are no runs" in refusal(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_verbs_name_an_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'work' / 'mlflow.db'}").search_experiments()
    for arguments in (["runs"], ["ui", "--no-open"]):
        assert "there are no runs in" in refusal(*arguments)


def test_comparison_takes_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "1 run was given, expected two or more" in refusal("compare", "abcd1234")


def test_experiment_opens_on_its_runs_with_the_columns_that_count(store: Store) -> None:
    run_id = store.trained("mlp", {"auc": 0.7}, report=report_of(result_of()))
    store.client.log_metric(run_id, "valid_auc", 0.7, step=1)
    empty = store.client.create_experiment("empty")
    pages = lay_out(store.client)
    assert pages == {
        "shop": f"/#/experiments/{store.experiment}/runs?workflowType=machine_learning&viewStateShareKey=rankline"
    }
    tags = store.client.get_experiment(store.experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    state = json.loads(tags["mlflow.sharedViewState.rankline"])
    assert state["selectedColumns"][:3] == [
        "metrics.`model/valid_auc`",
        "metrics.`serving/p50_ms`",
        "metrics.`serving/p99_ms`",
    ]
    drawn = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert {"model/valid_auc", "serving/p50_ms", "valid_auc", "bench/p50_ms"} <= set(drawn)
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {
        section["uuid"] for section in state["compareRunSections"]
    }
    assert "mlflow.sharedViewState.rankline" not in store.client.get_experiment(empty).tags
    assert lay_out(store.client) == pages
