"""MLflow on PostgreSQL with artifacts of its own: from training to a rollback, against its server."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from bench.harness.fixtures import prepare_rows
from rankline.api import pipeline
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.registry.activation import make_active, register
from rankline.registry.status import statuses
from rankline.runs.mlflow_ui import serve_pages
from rankline.runs.reader import open_reader
from rankline.runs.summary import find_run, runs_in, validation_of
from rankline.serving.export.config import ExportConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, active_version, before
from rankline.terminal.console import Stages
from rankline.training.tracking.journal import left_in
from tests.harness.network.postgres import PROGRAMS, postgres


@pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed: scripts/system-packages.sh")
def test_train_export_register_promote_and_roll_back_against_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the server puts artifacts
    workspace = Workspace(recipe="movielens", root=tmp_path / "work", repository=tmp_path / "repository")
    recipe = recipe_named("movielens")
    recipe = replace(recipe, train=replace(recipe.train.with_choices(hidden=(8,)), epochs=1))
    prepared = prepare_rows(workspace, recipe, 4_000)
    with postgres() as database, serve_pages(database, 0) as (uri, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with Stages(["train", "export", "train", "export"]) as stages:
            for seed in (0, 1):
                seeded = replace(recipe, train=replace(recipe.train, seed=seed))
                model, _ = pipeline.train(seeded, prepared, workspace, stages)
                pipeline.export(seeded, ExportConfig(), prepared, workspace, stages, promote=not seed)
        assert left_in(workspace.root / "tracking") == []
        assert not (workspace.root / "mlflow.db").exists()
        first, second = (ExportedEnsemble.load(workspace.ensemble, number) for number in (1, 2))
        register(first, uri)
        make_active(second)
        client = MlflowClient(tracking_uri=uri)
        assert client.get_model_version_by_alias("movielens", "champion").run_id == second.run_id == model.run_id
        make_active(before(workspace.ensemble), is_urgent=True)
        assert client.get_model_version_by_alias("movielens", "champion").run_id == first.run_id
        assert active_version(workspace.ensemble, "movielens") == 1

        store = open_reader(uri)
        listed = runs_in(store, "movielens")
        assert [(run.run_id, run.status, run.version) for run in listed] == [
            (second.run_id, "FINISHED", "movielens 2"),
            (first.run_id, "FINISHED", "movielens 1"),
        ]
        assert listed[0].quality["auc"] == pytest.approx(model.metrics["valid_auc"])
        assert validation_of(store, find_run(store, first.run_id[:12])) is not None
        (status,) = statuses(workspace.repository)
        assert (status.version, status.champion, status.disagreements) == (1, 1, ())
