"""What holds of a fit whatever the framework: see `rankline.training.trainers.base.Trainer`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import torch

from rankline.training.config.train import TrainConfig
from rankline.training.models.config import ModelConfig
from rankline.training.models.tabular import MLPConfig, TorchMLPConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers import keras as of_tensorflow
from rankline.training.trainers import torch as of_torch
from rankline.training.trainers.base import Trainer
from rankline.training.trainers.keras_optimizers import OPTIMIZERS
from rankline.workflows.core.errors import ArtifactError, DataError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.factories.training.fits import (
    NUM_STEPS,
    Batch,
    assert_goes_on_like_one_without_a_break,
    assert_same,
    fitted,
    learn,
)


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework, and how its parts look from outside."""

    trainer: type[Trainer]
    model: ModelConfig
    kernel: str
    """A weight of the last hidden layer, in messages about a state of another width."""
    scale: str
    """What the state calls the loss scale and the good steps since it changed, and which entries a step changes."""
    good_steps: str
    num_norms: int
    """Weights of batch normalization."""
    variable: Callable[[], Any]
    average: Callable[[Any], Any]

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(model=self.model, batch_size=100, learning_rate=0.01, table_lr_scale=1.0, seed=3)


TENSORFLOW = Framework(
    trainer=of_tensorflow.TensorFlowTrainer,
    model=MLPConfig(hidden=(16, 8)),
    kernel=r"model/\d+/kernel \(16, 9\) instead of \(16, 8\)",
    scale="loss_scale/0/scale",
    good_steps="loss_scale/1/good_steps",
    num_norms=0,
    variable=lambda: tf.Variable([0.0]),
    average=lambda weight: of_tensorflow._Average([weight]),
)
PYTORCH = Framework(
    trainer=of_torch.TorchTrainer,
    model=TorchMLPConfig(hidden=(16, 8)),
    kernel=r"model/layers\.4\.weight \(9, 16\) instead of ",
    scale="optimizer/scale",
    good_steps="optimizer/good_steps",
    num_norms=2 * (1 + 16 + 8),
    variable=lambda: torch.zeros(1),
    average=lambda weight: of_torch._Average([weight]),
)


@pytest.fixture(scope="module", params=[TENSORFLOW, PYTORCH], ids=["tensorflow", "torch"])
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def batches(framework: Framework, prepared: Path) -> list[Batch]:
    return list(framework.trainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0))


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="contract")


# --- States


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name, "table_lr_scale": None} for name in OPTIMIZERS),
        {"dropout": 0.3, "embedding_dropout": 0.2, "learning_rate_decay": "quadratic", "warmup_steps": 2},
        {"precision": "float16", "dropout": 0.3, "weight_decay": 0.1},
        {"precision": "bfloat16", "dropout": 0.3, "weight_averaging": False},
    ],
    ids=str,
)
def test_resumed_fit_equals_an_uninterrupted_one(
    framework: Framework, spec: FeatureSpec, batches: list[Batch], options: dict[str, Any]
) -> None:
    config = framework.config.with_choices(**options)
    assert_goes_on_like_one_without_a_break(
        fitted(framework.trainer, spec, config, batches[:4]),
        batches[4:8],
        lambda: framework.trainer(spec, replace(config, seed=99), NUM_STEPS),
        meanwhile=lambda: torch.rand(7),  # somebody else draws
    )


def test_state_is_a_copy_by_names_that_no_other_fit_changes(
    framework: Framework, spec: FeatureSpec, batches: list[Batch]
) -> None:
    trainer, other = (fitted(framework.trainer, spec, framework.config, part) for part in (batches[:1], []))
    state = trainer.state()
    kept = {name: array.copy() for name, array in state.items()}
    learn(trainer, batches[1:3])
    assert_same(state, kept)
    assert state.keys() == other.state().keys()
    assert {name.split("/")[0] for name in state} - {"random"} == {"model", "optimizer", "average", "loss"}


def test_state_of_another_model_is_refused_and_nothing_is_changed(
    framework: Framework, spec: FeatureSpec, batches: list[Batch]
) -> None:
    wider = fitted(framework.trainer, spec, framework.config.with_choices(hidden=(16, 9)), batches[:1])
    trainer = framework.trainer(spec, framework.config, NUM_STEPS)
    before = trainer.state()
    with pytest.raises(ArtifactError, match=f"to another model: it has {framework.kernel}"):
        trainer.restore(wider.state())
    assert_same(trainer.state(), before)
    lacking = fitted(framework.trainer, spec, replace(framework.config, weight_averaging=False), batches[:1])
    with pytest.raises(ArtifactError, match="it lacks average/"):
        trainer.restore(lacking.state())


def test_average_is_scored_in_its_block_only_and_kept(
    framework: Framework, spec: FeatureSpec, batches: list[Batch]
) -> None:
    trainer, (inputs, _) = fitted(framework.trainer, spec, framework.config, batches[:20]), batches[20]
    own = trainer.score(inputs)
    with pytest.raises(ValueError, match="in the block"), trainer.averaged():
        averaged = trainer.score(inputs)
        raise ValueError("in the block")
    np.testing.assert_array_equal(trainer.score(inputs), own)
    assert np.abs(averaged - own).max() > 1e-4
    trainer.set_weights(trainer.weights())
    np.testing.assert_array_equal(trainer.score(inputs), averaged)


def test_diverged_at_is_the_first_step_whose_loss_was_not_finite(
    framework: Framework, spec: FeatureSpec, batches: list[Batch]
) -> None:
    trainer = fitted(framework.trainer, spec, framework.config, batches[:3])
    assert trainer.diverged_at() is None
    inputs, labels = batches[3]
    trainer.step(inputs, labels * np.nan)
    learn(trainer, batches[4:6])
    assert trainer.diverged_at() == 4
    again = framework.trainer(spec, framework.config, NUM_STEPS)
    again.restore(trainer.state())
    assert again.diverged_at() == 4


def test_parameters_are_counted_in_tables_and_others(framework: Framework, spec: FeatureSpec) -> None:
    tables, linear = 60 * 16 + 40 * 12 + 8 * 4, 60 + 40 + 8
    dense = 33 * 16 + 16 + 16 * 8 + 8 + 8 + 1 + framework.num_norms
    without = framework.config.with_choices(linear_terms=False)
    assert framework.trainer(spec, without, 1).num_parameters() == (tables, dense)
    assert framework.trainer(spec, framework.config, 1).num_parameters() == (tables + linear, dense)


def test_penalties_are_summed_beside_the_loss(framework: Framework, spec: FeatureSpec, batches: list[Batch]) -> None:
    config = framework.config
    plain, held = (
        fitted(framework.trainer, spec, config.with_choices(l2_embedding=weight), batches[:1]) for weight in (0.0, 0.5)
    )
    assert plain.added_sum() == 0 < held.added_sum()
    assert plain.loss_sum() == pytest.approx(held.loss_sum(), rel=1e-6)


# --- Precision


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_learns_as_well_on_weights_that_stay_float32(
    framework: Framework, spec: FeatureSpec, batches: list[Batch], precision: str
) -> None:
    config = framework.config.with_choices(learning_rate=0.003, table_lr_scale=None, l2_embedding=1e-4)
    mixed, single = (framework.trainer(spec, replace(config, precision=p), 80) for p in (precision, "float32"))
    aucs = []
    for trainer in (mixed, single):
        learn(trainer, batches * 2)
        scores = np.concatenate([trainer.score(inputs) for inputs, _ in batches])
        assert scores.dtype == np.float32
        aucs.append(exact_auc(np.concatenate([trainer.array(labels) for _, labels in batches]), scores))
    assert any(np.any(one != other) for one, other in zip(mixed.weights(), single.weights(), strict=True))
    assert aucs[0] == pytest.approx(aucs[1], abs=0.01)
    assert aucs[1] > 0.8
    weights = [array for name, array in mixed.state().items() if name.startswith("model/")]
    assert {array.dtype.name for array in weights if array.dtype.kind == "f"} == {"float32"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_whose_gradients_overflow_leaves_weights_and_optimizer_as_they_were(
    framework: Framework, spec: FeatureSpec, batches: list[Batch], name: str
) -> None:
    config = replace(framework.config, precision="float16", optimizer=name, table_lr_scale=None, weight_decay=0.1)
    trainer = fitted(framework.trainer, spec, config, batches[:2])
    before = trainer.state()
    assert before[framework.good_steps] == 2
    trainer.restore({**before, framework.scale: np.float64(2.0**120) if framework is PYTORCH else np.float32(2.0**40)})
    learn(trainer, batches[2:3])
    after = trainer.state()
    of_scale = (framework.scale, framework.good_steps)
    # What the forward pass keeps, such as running means, is no weight.
    kept = [entry for entry in before if entry.startswith(("model/", "optimizer/")) and "running" not in entry]
    for entry in kept:
        if entry not in of_scale and "num_batches" not in entry:
            np.testing.assert_array_equal(after[entry], before[entry], err_msg=entry)
    assert after[framework.scale] in (2.0**119, 2.0**39)
    assert after[framework.good_steps] == 0
    assert trainer.diverged_at() is None
    trainer.restore(before)
    learn(trainer, batches[2:3])
    assert any(np.any(trainer.state()[entry] != before[entry]) for entry in kept if entry.startswith("model/"))


def test_average_starts_at_the_first_sample_and_favours_late_ones(framework: Framework) -> None:
    weight = framework.variable()
    average = framework.average(weight)
    seen = []
    for value in (4.0, 8.0, 6.0):
        weight.assign([value]) if framework is TENSORFLOW else weight.fill_(value)
        average.update()
        seen.append(float(average.values[0][0]))
    second = 4.0 + 1.5 / 2.5 * (8.0 - 4.0)
    assert seen == pytest.approx([4.0, second, second + 1.5 / 3.5 * (6.0 - second)])
    average.swap()
    assert (float(weight[0]), float(average.values[0][0])) == (pytest.approx(seen[-1]), 6.0)


# --- Runs


def scores_of(model: TrainedModel, prepared: Path) -> tuple[Any, Any]:
    """Labels of the validation rows, and what the model that is logged in MLflow says of them."""
    mlflow.set_tracking_uri(model.tracking_uri)
    logged = mlflow.pyfunc.load_model(f"runs:/{model.run_id}/model")
    mlflow.set_tracking_uri(None)  # it is in the environment, too, where commands of other tests would find it
    rows = pq.read_table(prepared / "valid")
    return rows["rating"].to_numpy(), logged.predict(rows.drop(["rating"]).to_pandas())["score"].to_numpy()


@pytest.mark.slow
def test_seed_determines_the_model_and_its_reported_auc(
    framework: Framework, prepared: Path, tmp_path: Path, tracking: TrackingConfig
) -> None:
    config = TrainConfig(model=type(framework.model)(), batch_size=64, seed=3)
    one, other = (train(prepared, tmp_path / name, config, tracking=tracking) for name in ("one", "other"))
    assert one.metrics["valid_auc"] > 0.8
    assert one.metrics["valid_logloss"] < 0.6
    assert 0.6 < one.metrics["valid_gauc"] < one.metrics["valid_auc"]
    labels, scores = scores_of(one, prepared)
    assert exact_auc(labels, scores) == pytest.approx(one.metrics["valid_auc"], abs=1e-4)
    np.testing.assert_allclose(scores_of(other, prepared)[1], scores, atol=1e-3)  # threads add in any order


def test_early_stopping_keeps_the_best_epoch(
    framework: Framework, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig
) -> None:
    prepared = new_prepared(tmp_path / "prepared", num_train=601)  # the last batch of an epoch has one row
    config = TrainConfig(
        model=type(framework.model)(),
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
    assert exact_auc(*scores_of(model, prepared)) == pytest.approx(max(by_epoch.values()), abs=1e-4)


def test_id_outside_its_table_is_named_with_file_and_column(
    framework: Framework, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig
) -> None:
    def one_too_large(table: pa.Table) -> pa.Table:
        ids = table["userId"].to_numpy().copy()
        ids[5] = 60
        return table.set_column(table.schema.get_field_index("userId"), "userId", pa.array(ids))

    prepared = new_prepared(tmp_path / "prepared", num_train=200, change=one_too_large)
    with pytest.raises(DataError, match=r"part_0\.parquet: column 'userId' contains id 60, expected ids from 0 to 59"):
        train(prepared, tmp_path / "model", framework.config, tracking=tracking)
