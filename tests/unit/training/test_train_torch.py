"""`train` with a PyTorch model; what does not depend on the framework is tested in test_train.py."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.support.frameworks import HIDE
from training.config import TrainConfig
from training.frameworks import PYTORCH
from training.models.torch_mlp import TorchMLPConfig
from training.tracking import TrackingConfig
from training.train import train
from training.trainers import trainer_for
from training.trainers.torch import TorchTrainer, _Average
from workflows.auc import exact_auc
from workflows.errors import ConfigError, DataError, RanklineError
from workflows.feature_spec import FeatureSpec, Source
from workflows.lists import padded_rows
from workflows.torch_script import load_torch_script
from workflows.trained import TORCH_SCRIPT, TrainedModel

CONFIG = TrainConfig(model=TorchMLPConfig(), batch_size=64, seed=3)


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="movielens-torch")


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory, tracking: TrackingConfig) -> TrainedModel:
    return train(prepared, tmp_path_factory.mktemp("trained") / "model", CONFIG, tracking=tracking)


def scored(model: TrainedModel, prepared: Path) -> tuple[Any, Any]:
    """Labels of the validation rows, and what the exported model says of them."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted((prepared / "valid").iterdir())])
    rows = padded_rows(table.drop(["rating"]).to_pandas())
    script, _ = load_torch_script(model.model_path, torch, remedy="")
    with torch.inference_mode():
        scores = script(**{name: torch.from_numpy(rows[name]) for name in rows})
    return table["rating"].to_numpy(), scores.numpy()[:, 0]


def test_it_learns_and_the_exported_model_has_the_reported_auc(trained: TrainedModel, prepared: Path) -> None:
    labels, scores = scored(trained, prepared)
    assert trained.format == TORCH_SCRIPT
    assert trained.metrics["valid_auc"] > 0.8
    assert exact_auc(labels, scores) == pytest.approx(trained.metrics["valid_auc"], abs=1e-4)
    assert trained.metrics["valid_logloss"] < 0.6
    assert 0.6 < trained.metrics["valid_gauc"] < trained.metrics["valid_auc"]


def test_the_run_has_metrics_by_epoch_and_a_logged_model_that_scores(trained: TrainedModel) -> None:
    client = mlflow.MlflowClient(trained.tracking_uri)
    run = client.get_run(trained.run_id)
    assert run.data.params["model"] == "torch_mlp"
    assert {"train_loss", "train_samples_per_s", "valid_auc", "valid_logloss", "valid_gauc"} <= set(run.data.metrics)
    location = Path(trained.tracking_uri.removeprefix("sqlite:///")).parent / "mlartifacts" / "models"
    stored = location / run.outputs.model_outputs[0].model_id / "artifacts"
    assert "torch==" in (stored / "requirements.txt").read_text()
    loaded = mlflow.pyfunc.load_model(str(stored))
    assert json.loads((stored / "input_example.json").read_text())["columns"] == ["userId", "movieId", "genres", "age"]
    scores = loaded.predict(loaded.input_example)["score"]
    assert len(scores) == 3
    assert scores.between(0, 1).all()


def test_the_same_seed_gives_the_same_scores(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, trained: TrainedModel
) -> None:
    again = train(prepared, tmp_path / "model", CONFIG, tracking=tracking)
    np.testing.assert_allclose(scored(again, prepared)[1], scored(trained, prepared)[1], atol=1e-5)


def test_early_stopping_keeps_the_best_epoch(new_prepared: Any, tmp_path: Path, tracking: TrackingConfig) -> None:
    prepared = new_prepared(tmp_path / "prepared", num_train=601)  # the last batch of an epoch has one row
    config = TrainConfig(
        model=TorchMLPConfig(),
        batch_size=60,
        epochs=30,
        optimizer="adam",
        learning_rate=0.02,
        weight_averaging=False,
        early_stopping_patience=2,
        epoch_holdout="valid",
    )
    model = train(prepared, tmp_path / "model", config, tracking=tracking)
    history = mlflow.MlflowClient(tracking.uri).get_metric_history(model.run_id, "valid_auc")
    by_epoch = {metric.step: metric.value for metric in history}
    assert max(by_epoch, key=lambda epoch: by_epoch[epoch]) == model.metrics["epoch"]
    assert max(by_epoch) == model.metrics["epoch"] + 2 < 30
    assert exact_auc(*scored(model, prepared)) == pytest.approx(max(by_epoch.values()), abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "lazy_adam", "learning_rate": 0.005, "learning_rate_decay": "cosine", "table_lr_scale": 2.0},
        {"optimizer": "adam", "learning_rate": 0.005, "learning_rate_decay": "linear", "weight_decay": 0.01},
        {"optimizer": "adagrad", "learning_rate": 0.1, "embedding_init": 0.0, "weight_averaging": False},
        {"l2_linear": 0.01, "l2_embedding": 0.01, "dropout": 0.1, "embedding_dropout": 0.1, "hidden": (32,)},
    ],
)
def test_other_choices_train_too(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, options: dict[str, Any]
) -> None:
    config = replace(CONFIG, epochs=2, early_stopping_patience=0).with_choices(**options, seed=0)
    model = train(prepared, tmp_path / "model", config, tracking=tracking)
    assert model.metrics["valid_auc"] > 0.7
    assert model.metrics["epoch"] == 2


def test_the_average_starts_at_the_first_sample_and_favours_late_ones() -> None:
    weight = torch.zeros(1)
    average = _Average([weight])
    seen = []
    for value in (4.0, 8.0, 6.0):
        weight.fill_(value)
        average.update()
        seen.append(float(average.values[0]))
    second = 4.0 + 1.5 / 2.5 * (8.0 - 4.0)
    assert seen == pytest.approx([4.0, second, second + 1.5 / 3.5 * (6.0 - second)])
    average.swap()
    assert (float(weight), float(average.values[0])) == (pytest.approx(seen[-1]), 6.0)


def test_the_average_is_scored_and_kept_with_its_running_statistics(spec: FeatureSpec, prepared: Path) -> None:
    trainer = TorchTrainer(spec, CONFIG, num_steps=100)
    batches = TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0)
    for inputs, labels in batches:
        trainer.step(inputs, labels)
        trainer.average()
    own = trainer.score(inputs)
    with trainer.averaged():
        averaged = trainer.score(inputs)
    np.testing.assert_array_equal(trainer.score(inputs), own)
    assert np.abs(averaged - own).max() > 1e-4
    trainer.set_weights(trainer.weights())
    np.testing.assert_array_equal(trainer.score(inputs), averaged)


def test_the_loss_is_the_sum_over_the_rows_without_penalties(spec: FeatureSpec, prepared: Path) -> None:
    config = TrainConfig(model=TorchMLPConfig(l2_embedding=100.0, embedding_init=0.5))
    trainer = TorchTrainer(spec, config, num_steps=100)
    batches = TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 500, shuffle=True, seed=0)
    inputs, labels = next(iter(batches))
    trainer.model.train()
    logit = trainer.model(inputs).logit.detach()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels, reduction="sum")
    trainer.step(inputs, labels)
    assert trainer.loss_sum() == pytest.approx(float(expected), rel=1e-5)
    trainer.step(inputs, labels)
    assert trainer.loss_sum() > 1.5 * float(expected)


def test_an_id_outside_its_table_is_told_with_file_and_column(
    new_prepared: Any, tmp_path: Path, tracking: TrackingConfig
) -> None:
    def one_too_large(table: pa.Table) -> pa.Table:
        ids = table["userId"].to_numpy().copy()
        ids[5] = 60
        return table.set_column(table.schema.get_field_index("userId"), "userId", pa.array(ids))

    prepared = new_prepared(tmp_path / "prepared", num_train=200, change=one_too_large)
    with pytest.raises(DataError, match=r"part_0\.parquet: column 'userId' holds the id 60, expected ids from 0 to 59"):
        train(prepared, tmp_path / "model", CONFIG, tracking=tracking)


def test_a_loss_that_is_no_number_stops_the_run(prepared: Path, tmp_path: Path, tracking: TrackingConfig) -> None:
    config = TrainConfig(model=TorchMLPConfig(), batch_size=500, epochs=1, optimizer="sgd", learning_rate=1e30)
    with pytest.raises(
        RanklineError, match=r"loss is nan since step \d \(epoch 1, batch \d of 8\).*Lower the learning rate"
    ):
        train(prepared, tmp_path / "model", config, tracking=tracking)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_optimizer_is_refused_before_anything_is_recorded(prepared: Path, tmp_path: Path) -> None:
    tracking = TrackingConfig(directory=tmp_path / "work", experiment="movielens")
    with pytest.raises(ConfigError, match="optimizer is 'magic'. Available for torch_mlp: adagrad"):
        train(prepared, tmp_path / "model", TrainConfig(model=TorchMLPConfig(), optimizer="magic"), tracking=tracking)
    assert not tracking.directory.exists()


def test_data_that_is_not_parquet_is_refused(spec: FeatureSpec) -> None:
    converted = replace(spec, sources={"train": Source(files=("train/a.tfrecord",), num_rows=1, type="tfrecord")})
    with pytest.raises(ConfigError, match="a PyTorch model reads parquet only"):
        TorchTrainer.check(converted, CONFIG)


def test_the_framework_is_found_by_the_backend() -> None:
    assert trainer_for(PYTORCH) is TorchTrainer


TRAIN_AND_EXPORT = """
import sys
from dataclasses import replace
from pathlib import Path
{hide}
from training.config import TrainConfig
from training.models import MODELS
from training.tracking import TrackingConfig
from training.train import train
train(Path({prepared!r}), Path("model"), TrainConfig(model=MODELS[{model!r}](), batch_size=512, epochs=1),
      tracking=TrackingConfig(directory=Path({work!r}), experiment="movielens-torch"))
import serving.export, serving.engines.{engine}.offline
assert not {{{hidden!r}}} & {{name for name, module in sys.modules.items() if module}}
"""


@pytest.mark.parametrize(
    ("model", "engine", "hidden"), [("torch_mlp", "pytorch", "tensorflow"), ("mlp", "tensorflow", "torch")]
)
def test_training_and_exporting_with_one_framework_need_no_other(
    model: str, engine: str, hidden: str, prepared: Path, tmp_path: Path, work: Path
) -> None:
    code = TRAIN_AND_EXPORT.format(
        hide=HIDE[hidden], prepared=str(prepared), model=model, engine=engine, hidden=hidden, work=str(work)
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "manifest.json").is_file()
