"""The recipe `movielens-torch` from raw ratings to served scores, on a real MLflow store and a real server."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from rankline.workflows.data.movielens.generator import generate_movielens
from tests.harness.commands.command_line import rankline

RECIPE = "movielens-torch"


def output_of(*arguments: str, cwd: Path) -> str:
    done = rankline(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workplace")
    generate_movielens(path / "ratings", num_rows=20_000, seed=5)
    quick = ["--epochs", "3", "--batch-size", "2048", "--embedding-dim-cap", "16", "--batch-sizes", "1"]
    output_of("run", RECIPE, "--data-dir", "ratings", "--json", "result.json", *quick, cwd=path)
    return path


@pytest.fixture
def result(workplace: Path) -> Any:
    return json.loads((workplace / "result.json").read_text())


def test_the_served_model_ranks_as_it_did_offline(result: Any) -> None:
    quality = result["quality"]
    assert quality["valid_auc"] > 0.6
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    assert [entry["batch_size"] for entry in result["bench"]] == [1]


def test_the_ensemble_holds_torchscript_for_the_pytorch_backend(workplace: Path, result: Any) -> None:
    ensemble = workplace / result["artifacts"]["ensemble"]
    score = ensemble / f"{RECIPE}_score_v1"
    assert sorted(path.name for path in (score / "1").iterdir()) == ["model.pt", "plan"]
    config = (score / "config.pbtxt").read_text()
    assert 'backend: "pytorch"' in config
    assert 'platform: "pytorch_libtorch"' in config
    assert 'name: "score__0"' in config
    manifest = json.loads((ensemble / RECIPE / "1" / "manifest.json").read_text())
    assert manifest["details"]["parity"]["largest_score_difference"] <= 1e-5


def test_the_run_is_tracked_like_any_other(result: Any) -> None:
    artifacts = result["artifacts"]
    client = MlflowClient(tracking_uri=artifacts["tracking_uri"])
    run = client.get_run(artifacts["run_id"])
    assert run.data.params["model"] == "torch_mlp"
    assert {"valid_auc", "train_loss", "bench/rows_per_s"} <= set(run.data.metrics)
    assert client.get_logged_model(run.outputs.model_outputs[0].model_id).name == "model"


def test_predict_and_recommend_ask_it(workplace: Path) -> None:
    scored = json.loads(output_of("predict", RECIPE, "--userId", "1", "--movieId", "31", cwd=workplace))
    assert 0 < scored["score"] < 1
    table = output_of("recommend", RECIPE, "--user", "1", "--top", "3", cwd=workplace)
    assert len(table.strip().splitlines()) >= 4
