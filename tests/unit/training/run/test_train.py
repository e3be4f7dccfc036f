import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from rankline.training.config.session import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.evaluation import METRICS, Metric
from rankline.training.evaluation.validation_scores import ValidationScores
from rankline.training.export.saved_model import load_signature
from rankline.training.models.config import ModelConfig
from rankline.training.models.torch_mlp import TorchMLPConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.training.trainers.torch import TorchTrainer
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import load_manifest
from tests.factories.recorders import ProgressRecord

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


def valid_rows(prepared: Path) -> tuple[Any, dict[str, Any]]:
    table = pa.concat_tables([pq.read_table(path) for path in sorted((prepared / "valid").iterdir())]).combine_chunks()
    genres = table["genres"].chunk(0)
    rows = {name: tf.constant(table[name].to_numpy()) for name in ("userId", "movieId", "age")}
    rows["genres__values"] = tf.constant(genres.values.to_numpy())
    rows["genres__offsets"] = tf.constant(genres.offsets.to_numpy())
    return table["rating"].to_numpy(), rows


def test_it_learns_and_the_saved_model_has_the_reported_auc(trained: TrainedModel, prepared: Path) -> None:
    labels, rows = valid_rows(prepared)
    scores = load_signature(trained.saved_model, "serving_default")(**rows)["score"].numpy()[:, 0]
    assert trained.metrics["valid_auc"] > 0.8
    assert exact_auc(labels, scores) == pytest.approx(trained.metrics["valid_auc"], abs=1e-4)
    assert trained.metrics["valid_logloss"] < 0.6
    assert 0 < trained.metrics["valid_brier"] < 0.25  # a metric that was added from outside
    assert 0.6 < trained.metrics["valid_gauc"] < trained.metrics["valid_auc"]


def test_the_artifact_says_what_it_is_made_from(trained: TrainedModel, prepared: Path) -> None:
    manifest = load_manifest(trained.path, "trained-model")
    assert manifest.made_from == {"prepared-data": load_manifest(prepared, "prepared-data").fingerprint}
    assert manifest.details["config"]["learning_rate"] == 0.001
    assert TrainedModel.load(trained.path) == trained


def test_artifact_and_run_say_how_many_weights_there_are(trained: TrainedModel) -> None:
    counts = trained.manifest.details["num_parameters"]
    assert counts["embedding"] >= 60 * 16 + 40 * 12 + 8 * 4  # the tables of the spec
    assert counts["other"] > 128 * 128
    params = mlflow.MlflowClient(trained.tracking_uri).get_run(trained.run_id).data.params
    assert {part: int(params[f"num_parameters.{part}"]) for part in counts} == counts


def test_the_run_has_params_metrics_data_and_the_model(trained: TrainedModel, prepared: Path) -> None:
    client = mlflow.MlflowClient(trained.tracking_uri)
    run = client.get_run(trained.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "64"
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
    assert {Path(file.path).name for file in client.list_artifacts(trained.run_id, "validation")} == {
        *("quality.png", "scores.parquet")
    }
    scores = ValidationScores.read(Path(client.download_artifacts(trained.run_id, "validation/scores.parquet")))
    assert exact_auc(scores.labels, scores.scores) == pytest.approx(trained.metrics["valid_auc"])
    assert run.data.tags["data"] == fingerprint[:12]
    assert run.data.tags["code"].startswith("rankline ")
    assert "training rows" in run.data.tags["mlflow.note.content"]
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    linked = {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics or []}
    assert linked["model/valid_auc"] == (trained.metrics["valid_auc"], "prepared-valid")


def test_the_logged_model_loads_and_scores_its_example(trained: TrainedModel) -> None:
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


def test_progress_counts_rows_and_tells_loss_rate_and_auc(trained: TrainedModel, notes: ProgressRecord) -> None:
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


def test_validation_data_of_one_class_is_refused(new_prepared: Any, tmp_path: Path, tracking: TrackingConfig) -> None:
    def all_liked(table: pa.Table) -> pa.Table:
        ones = pa.array(np.ones(table.num_rows, np.float32))
        return table.set_column(table.schema.get_field_index("rating"), "rating", ones)

    prepared = new_prepared(tmp_path / "prepared", num_train=200, num_valid=200, change=all_liked)
    with pytest.raises(DataError, match="validation data cannot be measured.*with rows of each label: 0 and 1"):
        train(prepared, tmp_path / "model", TrainConfig(epochs=1), tracking=tracking)


@pytest.mark.parametrize("model", [CONFIG.model, TorchMLPConfig()], ids=lambda model: str(model.framework.name))
def test_a_run_on_a_gpu_is_refused_where_there_is_none(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking: TrackingConfig, model: ModelConfig
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config, session = replace(CONFIG, model=model), SessionConfig(device="cuda")
    with pytest.raises(ConfigError, match=f"device is 'cuda', and {model.framework.name} sees no GPU here"):
        train(prepared, tmp_path / "model", config, session=session, tracking=tracking)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("trainer", [TensorFlowTrainer, TorchTrainer])
def test_run_on_the_cpu_is_refused_after_the_gpu_was_opened(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking: TrackingConfig, trainer: Any
) -> None:
    monkeypatch.setattr(trainer, "sees_gpu", lambda: True)
    model = CONFIG.model if trainer is TensorFlowTrainer else TorchMLPConfig()
    with pytest.raises(ConfigError, match="device is 'cpu', and .* has opened the GPU already. Start a new process"):
        train(
            prepared,
            tmp_path / "model",
            replace(CONFIG, model=model),
            session=SessionConfig(device="cpu"),
            tracking=tracking,
        )


def test_wrong_inputs_are_refused_before_anything_is_recorded(tmp_path: Path, prepared: Path) -> None:
    tracking = TrackingConfig(directory=tmp_path / "work", experiment="movielens")
    with pytest.raises(ArtifactError, match="does not exist"):
        train(tmp_path / "absent", tmp_path / "model", CONFIG, tracking=tracking)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(ArtifactError, match="not an artifact"):
        train(prepared, tmp_path / "mine", CONFIG, tracking=tracking)
    assert not tracking.directory.exists()
