"""Projects, MLflow stores and plug-in packages of commit b1a9917 still work, with the same scores.

`tests/golden/2026-11.tar.xz` was made in a checkout of that commit. These tests use a table's project (`rankline run`
and `register`), an XGBoost model's ensemble, and the package that CONTRIBUTING.md showed.
"""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.harness.commands.cli_server import RANKLINE
from tests.harness.commands.command_line import rankline
from tests.oracles.golden.files import unpack
from tests.oracles.tolerance import SCORE_ROUNDING

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(
    ("project", "served", "rows"), [("project", "rankline.yaml", "churn.csv"), ("project2", "shop", "rows.csv")]
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
    code = """
import mlflow, numpy, pandas
rows = pandas.read_csv("churn.csv", dtype={"zip": str}).drop(columns="churned")
numpy.save("scores.npy", numpy.asarray(mlflow.pyfunc.load_model("models:/churn/1").predict(rows)))
"""
    uri = f"sqlite:///{project / 'work' / 'mlflow.db'}"
    command, environment = [sys.executable, "-c", code], os.environ | {"MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = pd.read_csv(project / "scores.csv", float_precision="round_trip")
    assert_same_scores(np.load(project / "scores.npy"), expected["score"].to_numpy())


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
