"""Each framework is imported only where its models are trained."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.evaluation import METRICS, Metric
from rankline.training.evaluation.validation_scores import ValidationScores
from rankline.training.models.config import ModelConfig
from rankline.training.models.sequential import DINConfig
from rankline.training.models.tabular import TorchMLPConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.training.trainers.torch import TorchTrainer
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import load_manifest
from tests.factories.recorders import ProgressRecord
from tests.harness.process.frameworks import HIDE

CONFIG = TrainConfig(batch_size=64, seed=3)


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="movielens")


@pytest.fixture(scope="module")
def notes() -> ProgressRecord:
    return ProgressRecord()


@pytest.fixture(scope="module")
def trained(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory, tracking: TrackingConfig, notes: ProgressRecord
) -> TrainedModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, "brier", Metric(measure=lambda rows: rows.mean((rows.scores - rows.labels) ** 2)))
        return train(prepared, tmp_path_factory.mktemp("trained") / "model", CONFIG, tracking=tracking, progress=notes)


def test_artifact_says_what_it_is_made_from(trained: TrainedModel, prepared: Path) -> None:
    manifest = load_manifest(trained.path, "trained-model")
    assert manifest.made_from == {"prepared-data": load_manifest(prepared, "prepared-data").fingerprint}
    assert manifest.details["config"]["learning_rate"] == 0.001
    assert TrainedModel.load(trained.path) == trained


def test_run_has_params_metrics_data_and_the_model(trained: TrainedModel, prepared: Path) -> None:
    client = mlflow.MlflowClient(trained.tracking_uri)
    run = client.get_run(trained.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "64"
    counts = trained.manifest.details["num_parameters"]
    assert {part: int(run.data.params[f"num_parameters.{part}"]) for part in counts} == counts
    assert 0 < run.data.metrics["valid_brier"] < 0.25  # a metric that was added from outside
    epochs = [metric.step for metric in client.get_metric_history(trained.run_id, "inner_auc")]
    assert epochs == list(range(1, len(epochs) + 1))
    assert [m.step for m in client.get_metric_history(trained.run_id, "valid_auc")] == [trained.metrics["epoch"]]
    assert {
        *("train_loss", "train_samples_per_s", "inner_gauc", "inner_train_loss", "inner_train_samples_per_s"),
        *("valid_auc_200_thresholds", "valid_logloss", "valid_calibration", "valid_calibration_error"),
        *("valid_gauc", "valid_brier"),
    } <= set(run.data.metrics)
    assert run.data.metrics["train_samples_per_s"] > 0
    fingerprint = load_manifest(prepared, "prepared-data").fingerprint
    assert {(entry.dataset.name, entry.dataset.digest) for entry in run.inputs.dataset_inputs} == {
        ("prepared-train", fingerprint[:36]),
        ("prepared-valid", fingerprint[:36]),
    }
    assert {entry.path for entry in client.list_artifacts(trained.run_id)} == {
        *("feature_spec.yaml", "validation", "workflow")
    }
    assert [Path(file.path).name for file in client.list_artifacts(trained.run_id, "validation")] == ["scores.parquet"]
    scores = ValidationScores.read(Path(client.download_artifacts(trained.run_id, "validation/scores.parquet")))
    assert exact_auc(scores.labels, scores.scores) == pytest.approx(trained.metrics["valid_auc"])
    assert run.data.tags["data"] == fingerprint[:12]
    assert run.data.tags["code"].startswith("rankline ")
    assert "training rows" in run.data.tags["mlflow.note.content"]
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    linked = {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics or []}
    assert linked["model/valid_auc"] == (trained.metrics["valid_auc"], "prepared-valid")


def test_logged_model_loads_and_scores_its_example(trained: TrainedModel) -> None:
    run = mlflow.MlflowClient(trained.tracking_uri).get_run(trained.run_id)
    location = Path(trained.tracking_uri.removeprefix("sqlite:///")).parent / "mlartifacts" / "models"
    stored = location / run.outputs.model_outputs[0].model_id / "artifacts"
    loaded = mlflow.pyfunc.load_model(str(stored))
    example = json.loads((stored / "input_example.json").read_text())
    assert example["columns"] == ["userId", "movieId", "genres", "age"]
    assert [str(column.type) for column in loaded.metadata.signature.inputs][:1] == ["DataType.long"]
    scores = loaded.predict(loaded.input_example)["score"]
    assert len(scores) == len(example["data"]) == 3
    assert scores.between(0, 1).all()


def test_progress_counts_rows_and_shows_loss_rate_and_auc(trained: TrainedModel, notes: ProgressRecord) -> None:
    done = [update[0] for update in notes.reports]
    epochs = round(trained.metrics["epoch"])
    assert epochs <= 4
    assert done == sorted(done)
    num_chosen_by = notes.reports[0][1] - 4 * 4_000  # the rows of the fit that chooses, if it takes all its epochs
    assert 4 * 3_180 < num_chosen_by < 4 * 3_220
    assert notes.reports[-1][:2] == (num_chosen_by + epochs * 4_000,) * 2
    assert any(
        "choosing: epoch 2/4" in n and "rows/s" in n and "loss" in n and "inner AUC" in n for *_, n in notes.reports
    )
    assert f"best epoch {epochs}, valid AUC {trained.metrics['valid_auc']:.4f}" in notes.reports[-1][2]


@pytest.mark.parametrize("before", ["0", None])
def test_run_on_the_cpu_hides_gpus_while_it_lasts(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking: TrackingConfig, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    seen: list[str | None] = []
    train(
        prepared,
        tmp_path / "model",
        replace(CONFIG, epochs=1),
        session=SessionConfig(device="cpu"),
        tracking=tracking,
        observers=lambda _: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")) or (),
    )
    assert seen == [""]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


@pytest.mark.parametrize(
    ("trainer", "model"), [(TensorFlowTrainer, CONFIG.model), (TorchTrainer, TorchMLPConfig())], ids=["keras", "torch"]
)
@pytest.mark.parametrize(
    ("device", "sees_gpu", "message"),
    [("cuda", False, "device is 'cuda', but .* finds no GPU"), ("cpu", True, "is already using the GPU")],
)
def test_run_is_refused_on_a_device_that_cannot_be_had(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracking: TrackingConfig,
    trainer: Any,
    model: ModelConfig,
    device: str,
    sees_gpu: bool,
    message: str,
) -> None:
    monkeypatch.setattr(trainer, "sees_gpu", lambda: sees_gpu)
    config, session = replace(CONFIG, model=model), SessionConfig(device=device)
    with pytest.raises(ConfigError, match=message):
        train(prepared, tmp_path / "model", config, session=session, tracking=tracking)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"optimizer": "magic"}, "'magic'. Available"),
        ({"model": TorchMLPConfig(), "optimizer": "magic"}, "'magic'. Available"),
        ({"model": DINConfig()}, "model 'din' requires rows with a history"),
    ],
)
def test_run_is_refused_before_anything_is_recorded(
    tmp_path: Path, prepared: Path, choices: dict[str, Any], message: str
) -> None:
    tracking = TrackingConfig(directory=tmp_path / "work", experiment="movielens")
    with pytest.raises((ConfigError, SpecError), match=message):
        train(prepared, tmp_path / "model", replace(CONFIG, **choices), tracking=tracking)
    assert not list(tmp_path.iterdir())


TRAIN_AND_EXPORT = """
import sys
from dataclasses import replace
from pathlib import Path
{hide}
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS
from rankline.training.tracking import TrackingConfig
from rankline.training.run.train import train
train(Path({prepared!r}), Path("model"), TrainConfig(model=MODELS[{model!r}](), batch_size=512, epochs=1),
      tracking=TrackingConfig(directory=Path({work!r}), experiment="movielens-torch"))
import rankline.serving.export.exporter, rankline.serving.engines.{engine}.offline
assert not {{{hidden!r}}} & {{name for name, module in sys.modules.items() if module}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine", "hidden"), [("torch_mlp", "pytorch", "tensorflow"), ("mlp", "tensorflow", "torch")]
)
def test_training_and_exporting_with_one_framework_need_no_other(
    model: str, engine: str, hidden: str, prepared: Path, tmp_path: Path, work: Path
) -> None:
    code = TRAIN_AND_EXPORT.format(
        hide=HIDE[hidden], prepared=str(prepared), model=model, engine=engine, hidden=hidden, work=str(work)
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "manifest.json").is_file()
