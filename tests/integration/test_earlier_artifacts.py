"""Artifacts, checkpoints, repositories, MLflow stores and plug-ins of commit b1a9917 still work, with the same scores.

`tests/golden/2026-11.tar.xz` was made in a checkout of that commit: the models and data of `tests/support/golden`,
a table's project (`rankline run` and `register`), an XGBoost model's ensemble, and the package that CONTRIBUTING.md
showed.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from serving.client import Client
from serving.server import EmbeddedServer, ServerConfig
from tests.support.cli_server import RANKLINE
from tests.support.command_line import rankline
from tests.support.golden.files import unpack
from tests.support.golden.models import scores
from tests.support.golden.tables import read_table
from tests.support.rounding import SCORE_ROUNDING
from training.checkpoints import checkpoint_path
from training.config import SessionConfig, TrainConfig
from training.tracking import TrackingConfig
from training.train import train
from workflows.prepared import PreparedData
from workflows.tensor_names import SCORE
from workflows.trained import TrainedModel

DATA = {
    "mlp": "movielens", "torch_mlp": "movielens", "lightgbm": "movielens", "bayesian_fm": "history", "ease": "next",
    "dlrm": "criteo", "dlrm-hashed": "criteo-hashed", "sim": "amazon",
}  # fmt: skip
"""Model → the prepared data that it was trained on."""
ENSEMBLES = (
    "mlp_tensorflow", "mlp_tensorflow_apart", "mlp_onnx", "mlp_onnx_apart", "mlp_python", "torch_mlp_pytorch",
    "lightgbm_onnx", "bayesian_fm_onnx", "ease_onnx", "dlrm_tensorflow", "dlrm_tensorflow_apart", "dlrm_python",
    "dlrm-hashed_onnx", "sim_tensorflow",
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = unpack(tmp_path_factory.mktemp("golden"), "2026-11")
    for project in ("project", "plugin"):
        move_store(directory / project / "work" / "mlflow.db", directory)
    return directory


def move_store(database: Path, directory: Path) -> None:
    """Replace the absolute paths that MLflow keeps in its store by those below `directory`."""
    with closing(sqlite3.connect(database)) as connection, connection:
        artifacts = f"/{database.with_name('mlartifacts').relative_to(directory)}"
        ((location,),) = connection.execute(
            "SELECT artifact_location FROM experiments WHERE artifact_location LIKE ?", (f"%{artifacts}",)
        )
        made_in = location.removeprefix("file://").removesuffix(artifacts)
        for table, column in (
            ("experiments", "artifact_location"),
            ("runs", "artifact_uri"),
            ("model_versions", "source"),
            ("model_versions", "storage_location"),
            ("logged_models", "artifact_location"),
        ):
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (made_in, str(directory)))


def assert_same_scores(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.ptp(expected) > 1_000 * SCORE_ROUNDING
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=0, atol=SCORE_ROUNDING)


@pytest.mark.parametrize("name", DATA)
def test_trained_model_scores_the_same(name: str, files: Path) -> None:
    rows = read_table(files / "scores" / name)
    prepared = PreparedData.load(files / "prepared" / DATA[name])
    actual = scores(prepared, TrainedModel.load(files / "models" / name), rows.drop_columns([SCORE]))
    assert_same_scores(actual[SCORE].to_numpy(), rows[SCORE].to_numpy())


@pytest.mark.parametrize("name", DATA)
def test_checkpoint_resumes_to_the_same_model(name: str, files: Path, tmp_path: Path) -> None:
    rows, prepared = read_table(files / "scores" / name), PreparedData.load(files / "prepared" / DATA[name])
    shutil.copytree(checkpoint_path(files / "models" / name), checkpoint_path(tmp_path / name))
    config = TrainConfig.from_dict(TrainedModel.load(files / "models" / name).manifest.details["config"])
    tracking = TrackingConfig(directory=tmp_path / "runs", experiment="golden")
    trained = train(prepared, tmp_path / name, config, session=SessionConfig(resume=True), tracking=tracking)
    actual = scores(prepared, trained, rows.drop_columns([SCORE]))
    assert_same_scores(actual[SCORE].to_numpy(), rows[SCORE].to_numpy())


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[EmbeddedServer]:
    repositories = tuple(files / "ensembles" / name for name in ENSEMBLES)
    with EmbeddedServer(ServerConfig(repositories=repositories, models=ENSEMBLES)) as running:
        yield running


@pytest.mark.parametrize("name", ENSEMBLES)
def test_model_repository_is_served_with_the_same_scores(name: str, files: Path, server: EmbeddedServer) -> None:
    rows = read_table(files / "scores" / name.split("_apart")[0].rpartition("_")[0])
    with Client(server.endpoints.grpc, name) as client:
        assert_same_scores(client.predict(rows.drop_columns([SCORE])), rows[SCORE].to_numpy())


@pytest.mark.parametrize(
    ("project", "served", "rows"),
    [("project", "rankline.yaml", "churn.csv"), ("project2", "shop", "rows.csv")],
)
def test_project_predicts_the_same(project: str, served: str, rows: str, files: Path, tmp_path: Path) -> None:
    output = tmp_path / "scores.csv"
    done = rankline("predict", served, "--input", rows, "--output", str(output), cwd=files / project)
    assert done.returncode == 0, done.stderr
    expected = pd.read_csv(files / project / "scores.csv", float_precision="round_trip")
    actual = pd.read_csv(output, float_precision="round_trip")
    assert list(actual) == list(expected)
    assert_same_scores(actual["score"].to_numpy(), expected["score"].to_numpy())


def test_registered_version_loads_through_mlflow(files: Path) -> None:
    project = files / "project"
    mlflow.set_tracking_uri(f"sqlite:///{project}/work/mlflow.db")
    model = mlflow.pyfunc.load_model("models:/churn/1")
    expected = pd.read_csv(project / "scores.csv", float_precision="round_trip")
    rows = pd.read_csv(project / "churn.csv", dtype={"zip": str}).drop(columns="churned")
    assert_same_scores(np.asarray(model.predict(rows)), expected["score"].to_numpy())


def test_plugin_package_of_the_old_import_names_works(files: Path, tmp_path: Path) -> None:
    plugin = files / "plugin"
    environment = os.environ | {"PYTHONPATH": str(plugin)}

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [RANKLINE, *arguments], cwd=plugin, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    run("predict", "shop", "--input", "data/sales.csv", "--output", str(tmp_path / "scores.csv"))
    expected = pd.read_csv(plugin / "scores.csv", float_precision="round_trip")
    actual = pd.read_csv(tmp_path / "scores.csv", float_precision="round_trip")
    assert_same_scores(actual["score"].to_numpy(), expected["score"].to_numpy())
    run("prepare", "shop", "--data-dir", "data", "--work-dir", str(tmp_path / "work"))
    run("train", "shop", "--work-dir", str(tmp_path / "work"), "--epochs", "1", "--hidden", "8")
    run("export", "shop", "--work-dir", str(tmp_path / "work"), "--repository", str(tmp_path / "repository"))
