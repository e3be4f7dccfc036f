from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from rankline.tracking.runs import differences, find_run, runs_in, validation_of
from rankline.tracking.store import open_store, uri_of
from tests.support.reports import report_of, result_of
from tests.unit.rankline.tracking.conftest import Store
from workflows.errors import ArtifactError, ConfigError

SCORED = np.array([0.0, 1, 1]), np.array([0.25, 0.5, 0.75])


def test_a_run_says_how_good_how_fast_and_what_became_of_it(store: Store) -> None:
    run_id = store.trained(
        "mlp, seed 0",
        {"auc": 0.75, "logloss": 0.5},
        params={"epochs": 2},
        report=report_of(result_of()),
        engine="onnx",
        version="shop 3",
        data="0123456789ab",
    )
    run = find_run(store.client, run_id)
    assert run.name == "mlp, seed 0"
    assert run.recipe == "shop"
    assert run.status == "FINISHED"
    assert run.objective == ("AUC", 0.75)
    assert run.serving["p50_ms"] == pytest.approx(200, rel=1e-3)
    assert (run.engine, run.version, run.data) == ("onnx", "shop 3", "0123456789ab")
    assert run.duration_s is not None
    assert run.to_dict()["params"] == {"epochs": "2"}


def test_runs_are_listed_latest_first_of_one_recipe_or_of_all(store: Store) -> None:
    first, second = (store.trained(f"mlp, seed {seed}", {"auc": 0.7}) for seed in (1, 2))
    listed = [run.run_id for run in runs_in(store.client, "shop", limit=2)]
    assert listed == [second, first]
    assert {first, second} <= {run.run_id for run in runs_in(store.client)}
    with pytest.raises(ConfigError, match="no run of 'shoes' was recorded"):
        runs_in(store.client, "shoes")


def test_a_run_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    run_id = store.trained("mlp", {})
    assert find_run(store.client, run_id[:12]).run_id == run_id
    assert find_run(store.client, run_id[:12]).objective is None
    for named, expected in (("shop", "'shop' names no run"), ("0" * 12, "names no runs"), ("abc", "4 digits")):
        with pytest.raises(ConfigError, match=expected):
            find_run(store.client, named)
    with pytest.raises(ArtifactError, match="cannot be read"):
        find_run(store.client, "0" * 32)


class Counted:
    """A store that counts what it is asked, and the runs that it gives."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.num_calls = self.num_runs = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.num_calls += 1
            answer = getattr(self._client, name)(*arguments, **options)
            self.num_runs += len(answer) if name == "search_runs" else 0
            return answer

        return call


def test_what_is_asked_of_a_store_does_not_grow_with_its_runs(store: Store) -> None:
    for _ in range(30):
        run_id = store.run()
    for ask in (lambda client: runs_in(client, limit=5), lambda client: find_run(client, run_id[:12])):
        counted = Counted(store.client)
        ask(counted)
        assert counted.num_calls == 2
        assert counted.num_runs <= 5


def test_trials_of_a_search_are_found_but_not_listed(store: Store) -> None:
    search = store.run()
    trial = store.client.create_run(store.experiment, tags={"mlflow.parentRunId": search}).info.run_id
    listed = [run.run_id for run in runs_in(store.client)]
    assert search in listed
    assert trial not in listed
    assert find_run(store.client, trial[:12]).run_id == trial


def test_scores_of_validation_rows_are_read_back_where_there_are_some(store: Store) -> None:
    scored = find_run(store.client, store.trained("mlp", {}, scored=SCORED))
    found = validation_of(store.client, scored)
    assert found is not None
    np.testing.assert_array_equal(found.scores, SCORED[1].astype(np.float32))
    assert validation_of(store.client, find_run(store.client, store.trained("mlp", {}))) is None


def test_what_differs_is_told_and_nothing_else(store: Store) -> None:
    given = [{"epochs": 2, "model": "mlp"}, {"epochs": 3, "model": "mlp", "cross_layers": 2}]
    runs = [find_run(store.client, store.trained("r", {}, params=params)) for params in given]
    assert differences(runs) == {"epochs": ["2", "3"], "cross_layers": ["–", "2"]}


def test_a_work_directory_without_runs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ArtifactError, match=r"there are no runs: .*work/mlflow.db does not exist"):
        open_store(uri_of(tmp_path / "work"))
    assert not (tmp_path / "work").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert uri_of(tmp_path) == "http://localhost:1"
