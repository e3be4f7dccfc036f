from pathlib import Path

import mlflow
import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS, model_named
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.factories.training import model_from_outside
from tests.factories.training.model_from_outside import WideConfig
from tests.harness.process.packages import leave_installed


def test_it_is_trained_and_recorded_though_no_table_knows_it(prepared: Path, tmp_path: Path, work: Path) -> None:
    assert "wide" not in MODELS
    config = TrainConfig(model=WideConfig(first_weight=0.5), epochs=2, learning_rate=0.01, batch_size=256)
    tracking = TrackingConfig(directory=work, experiment="outside")
    trained = train(prepared, tmp_path / "model", config, tracking=tracking)
    again = TrainedModel.load(tmp_path / "model")
    assert again.metrics["valid_auc"] == trained.metrics["valid_auc"] > 0.6
    recorded = again.manifest.details["config"]
    assert (recorded["model"], recorded["first_weight"]) == ("wide", 0.5)
    params = mlflow.MlflowClient(tracking.uri).get_run(trained.run_id).data.params
    assert (params["model"], params["first_weight"]) == ("wide", "0.5")
    assert not {"hidden", "bottom_mlp", "gru_units", "embedding_dim"} & params.keys()


def test_it_is_named_on_the_command_line_and_brings_its_options() -> None:
    name = f"{model_from_outside.__name__}:WideConfig"
    assert model_named(name) is WideConfig
    text = CliRunner().invoke(app, ["train", "movielens", "--model", name, "--help"], env={"COLUMNS": "200"}).output
    assert "--first-weight" in text
    assert "[default: wide]" in text
    assert "--hidden" not in text


@pytest.mark.parametrize("name", ["no.such:Model", f"{model_from_outside.__name__}:Wide", "pathlib:Path", ":Wide"])
def test_what_is_no_config_of_a_model_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*ModelConfig"):
        model_named(name)


def test_an_installed_package_gives_it_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_installed(tmp_path, "outside", f"[rankline.models]\nwide = {model_from_outside.__name__}:WideConfig\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_named("wide") is WideConfig
    with pytest.raises(ConfigError, match=r"no model 'wider'.*torch_mlp, wide, or MODULE:CLASS"):
        model_named("wider")
