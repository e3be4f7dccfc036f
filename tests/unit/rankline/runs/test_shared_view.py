import json

from rankline.runs.shared_view import lay_out
from tests.factories.reports import report_of, result_of
from tests.unit.rankline.conftest import Store


def test_an_experiment_opens_on_its_runs_with_the_columns_that_count(store: Store) -> None:
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
