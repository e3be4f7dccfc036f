"""Runs as they are read back, with what they were exported as."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.registry.activation import register
from rankline.runs.reader import _Server
from rankline.runs.store import open_store, record_export, uri_of
from rankline.runs.summary import differences, find_run, runs_in, validation_of
from rankline.serving.repository.ensemble import KIND, ExportedEnsemble
from rankline.training.tracking.config import OWN_ID
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.storage.artifacts import Manifest
from tests.factories.ensembles import NAME, publish_tiny
from tests.factories.reports import report_of, result_of
from tests.unit.rankline.conftest import Store

SCORED = np.array([0.0, 1, 1]), np.array([0.25, 0.5, 0.75])


def test_run_says_how_good_how_fast_and_what_became_of_it(store: Store) -> None:
    run_id = store.trained(
        "mlp, seed 0",
        {"auc": 0.75, "logloss": 0.5},
        params={"epochs": 2},
        report=report_of(result_of()),
        engine="onnx",
        version="shop 3",
        data="0123456789ab",
    )
    run = find_run(store.reader, run_id)
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
    listed = [run.run_id for run in runs_in(store.reader, "shop", limit=2)]
    assert listed == [second, first]
    trial = store.client.create_run(store.experiment, tags={"mlflow.parentRunId": first}).info.run_id
    every = {run.run_id for run in runs_in(store.reader)}
    assert {first, second} <= every
    assert trial not in every
    assert find_run(store.reader, trial[:12]).run_id == trial
    with pytest.raises(ConfigError, match="no run of 'shoes' was recorded"):
        runs_in(store.reader, "shoes")


def test_run_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    run_id = store.trained("mlp", {})
    assert find_run(store.reader, run_id[:12]).run_id == run_id
    assert find_run(store.reader, run_id[:12]).objective is None
    for named, expected in (("shop", "'shop' names no run"), ("0" * 12, "names no runs"), ("abc", "4 digits")):
        with pytest.raises(ConfigError, match=expected):
            find_run(store.reader, named)
    with pytest.raises(ArtifactError, match="cannot be read"):
        find_run(store.reader, "0" * 32)


def test_run_that_began_without_the_store_is_found_by_its_own_id(store: Store) -> None:
    run_id, own_id = store.trained("mlp", {}), "c" * 32
    store.client.set_tag(run_id, OWN_ID, own_id)
    for reader in (store.reader, _Server(store.reader.uri)):
        assert find_run(reader, own_id).run_id == run_id


def test_number_of_queries_does_not_grow_with_the_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(30):
        run_id = store.run()
    connect, statements = sqlite3.connect, list[str]()

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    for ask in (lambda: runs_in(store.reader, limit=25), lambda: find_run(store.reader, run_id[:12])):
        statements.clear()
        ask()
        assert len(statements) == 5  # where artifacts are, runs, and their metrics, parameters and tags


def test_store_in_a_file_says_without_mlflow_what_mlflow_says_of_it(store: Store) -> None:
    run_id = store.trained("odd", {"auc": float("nan"), "logloss": 0.5}, params={"epochs": 2}, engine="onnx")
    for number in (1, 2):
        store.client.log_metric(run_id, "again", number, step=number)
    store.client.delete_run(store.run())
    by_mlflow = _Server(store.uri)
    for ask in (
        lambda reader: reader.runs(None, 1000),
        lambda reader: reader.runs("shop", 3),
        lambda reader: reader.runs_called(run_id[:20], 5),
        lambda reader: [reader.run(run_id)],
        lambda reader: sorted(reader.experiments()),
    ):
        assert repr(ask(store.reader)) == repr(ask(by_mlflow))  # NaN is not equal to itself
    with pytest.raises(ArtifactError, match=f"Run with id={'0' * 32} not found"):
        by_mlflow.run("0" * 32)


@pytest.mark.parametrize("verb", ["runs", "compare", "status"])
def test_verbs_that_only_look_do_not_wait_for_mlflow(store: Store, tmp_path: Path, verb: str) -> None:
    trained = [store.trained("mlp", {"auc": 0.7}, scored=SCORED) for _ in range(2)]
    runs = trained if verb == "compare" else []
    uri = "" if verb == "status" else f"--work-dir {store.root}"
    if verb == "status":
        ensemble = publish_tiny(tmp_path / "model_repository" / NAME, 10)
        register(ensemble, store.uri)
    command = [verb, *runs, *uri.split()]
    code = f"import sys; from rankline.cli.main import app; app({command}, standalone_mode=False); " + (
        "print(*sorted({'mlflow', 'scipy', 'tensorflow', 'nvtabular'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []
    assert done.stdout


def test_scores_of_validation_rows_are_read_back_where_there_are_some(store: Store) -> None:
    scored = find_run(store.reader, store.trained("mlp", {}, scored=SCORED))
    found = validation_of(store.reader, scored)
    assert found is not None
    np.testing.assert_array_equal(found.scores, SCORED[1].astype(np.float32))
    assert validation_of(store.reader, find_run(store.reader, store.trained("mlp", {}))) is None


def test_differences_of_runs_are_only_those(store: Store) -> None:
    given = [{"epochs": 2, "model": "mlp"}, {"epochs": 3, "model": "mlp", "cross_layers": 2}]
    runs = [find_run(store.reader, store.trained("r", {}, params=params)) for params in given]
    assert differences(runs) == {"epochs": ["2", "3"], "cross_layers": ["–", "2"]}


def test_work_directory_without_runs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ArtifactError, match=r"there are no runs: .*work/mlflow.db does not exist"):
        open_store(uri_of(tmp_path / "work"))
    assert not (tmp_path / "work").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert uri_of(tmp_path) == "http://localhost:1"


def exported(path: Path, run_id: str, uri: str, version: int = 4) -> ExportedEnsemble:
    """An ensemble with one step of 2.5 MB."""
    step = path / f"shop_score_v{version}" / "1"
    step.mkdir(parents=True)
    (step / "model").write_bytes(bytes(2_500_000))
    details = {"run_id": run_id, "tracking_uri": uri, "engine": "onnx"}
    manifest = Manifest(kind=KIND, fingerprint="", details=details)
    return ExportedEnsemble(path=path, name="shop", version=version, steps=(step.parent.name,), manifest=manifest)


def test_run_says_what_it_was_exported_as(store: Store, tmp_path: Path) -> None:
    run_id = store.trained("mlp", {"auc": 0.7})
    for version in (3, 4):
        record_export(exported(tmp_path, run_id, store.uri, version), tmp_path)
    run = find_run(store.reader, run_id)
    assert (run.version, run.engine, run.serving) == ("shop 4", "onnx", {"megabytes": 2.5})


def test_run_that_is_gone_is_told_and_what_was_trained_elsewhere_has_none(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"does not say that it was exported as version 4: .* The ensemble is whole"
    ):
        record_export(exported(tmp_path, "0" * 32, store.uri), tmp_path)
    record_export(exported(tmp_path / "elsewhere", "", "nowhere"), tmp_path)
