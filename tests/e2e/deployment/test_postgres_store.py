"""MLflow on PostgreSQL with artifacts of its own: from training to a rollback, against its server."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

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
from tests.harness.process.waiting import wait_until

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
"""Where they are; None where they are not installed."""
_USER = "postgres"  # whom the packages make: root may not run it


@contextmanager
def postgres() -> Iterator[str]:
    """The URI of a server with an empty database, reached through a socket that its user and root can enter."""
    assert PROGRAMS is not None
    directory = Path(mkdtemp(prefix="rankline-postgres-"))  # pytest's own is closed to other users
    as_user = []
    if os.getuid() == 0:
        shutil.chown(directory, _USER, _USER)
        as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
    data = directory / "data"
    making = [PROGRAMS / "initdb", "--pgdata", data, "--username=mlflow", "--auth=trust", "--no-sync"]
    subprocess.run([*as_user, *map(str, making)], check=True, capture_output=True, cwd=directory)
    running = [PROGRAMS / "postgres", "-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off"]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([*as_user, *map(str, running)], stdout=log, stderr=log, cwd=directory)
    asking = [PROGRAMS / "pg_isready", "--host", directory, "--username=mlflow"]
    try:
        wait_until(lambda: subprocess.run([*map(str, asking)], capture_output=True).returncode == 0)
        yield f"postgresql+psycopg2://mlflow@/postgres?host={directory}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


@pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed: scripts/system-packages.sh")
def test_postgresql_serves_training_to_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
