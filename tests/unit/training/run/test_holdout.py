"""A part of the training rows chooses the epoch, and the model is one of all of them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.models.tabular import TorchMLPConfig
from rankline.training.run.checkpoint import Checkpoint, checkpoint_path
from rankline.training.run.loop import INNER, SHARE, inner_spec
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.torch import TorchTrainer
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.preprocess.prepared_data import FIRST_ROW, GROUPS, PreparedData
from rankline.workflows.schema.feature_spec import TFRECORD, Part
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import MANIFEST
from tests.factories.training.training_runs import Cut, CutError, assert_same_weights, history

CONFIG = TrainConfig(
    model=TorchMLPConfig(hidden=(16,), dropout=0.2),
    batch_size=200,
    epochs=8,
    optimizer="adam",
    learning_rate=0.02,
    learning_rate_decay="linear",
    weight_averaging=False,
    early_stopping_patience=2,
    seed=3,
)


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="holdout")


@pytest.fixture(scope="module")
def straight(prepared: Path, tmp_path_factory: pytest.TempPathFactory, tracking: TrackingConfig) -> TrainedModel:
    return train(prepared, tmp_path_factory.mktemp("straight") / "model", CONFIG, tracking=tracking)


def with_other_labels(table: pa.Table) -> pa.Table:
    labels = 1 - table["rating"].to_numpy()
    return table.set_column(table.schema.get_field_index("rating"), "rating", pa.array(labels))


def test_validation_rows_choose_nothing(
    prepared: Path, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig, straight: TrainedModel
) -> None:
    other = new_prepared(tmp_path / "other", num_valid=400)
    for path in sorted((other / "valid").iterdir()):  # all wrong, which early stopping on them would see at once
        pq.write_table(with_other_labels(pq.read_table(path)), path)
    shutil.copy(prepared / MANIFEST, other)  # its fingerprint chooses the held-out rows
    data = PreparedData.published(other)
    model = train(data, tmp_path / "model", CONFIG, tracking=tracking)
    assert_same_weights(model, straight)
    assert model.manifest.details["chosen"] == straight.manifest.details["chosen"]
    assert model.metrics["valid_auc"] == pytest.approx(1 - straight.metrics["valid_auc"], abs=0.1)


def test_model_is_one_of_all_rows_for_as_many_epochs_as_were_best_and_figures_say_which(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, straight: TrainedModel
) -> None:
    chosen = straight.manifest.details["chosen"]
    epochs = round(chosen["epoch"])
    assert 1 <= epochs == straight.metrics["epoch"] < 8
    assert (
        list(history(straight, "inner_auc"))
        == list(range(1, min(8, epochs + 2) + 1))
        == list(history(straight, "inner_train_loss"))
    )
    assert list(history(straight, "train_loss")) == list(range(1, epochs + 1))
    assert list(history(straight, "valid_auc")) == [epochs]  # once
    assert {"inner_auc", "inner_gauc", "epoch"} < chosen.keys()
    assert not any(name.startswith(INNER) for name in straight.metrics)
    fixed = replace(CONFIG, learning_rate_decay="none", early_stopping_patience=0, epochs=2)
    chose = replace(CONFIG, learning_rate_decay="none", epochs=2)
    models = [train(prepared, tmp_path / str(n), c, tracking=tracking) for n, c in enumerate((fixed, chose))]
    if models[0].metrics["epoch"] == models[1].metrics["epoch"]:
        assert_same_weights(*models)
    assert models[0].manifest.details["chosen"] == {}


@pytest.mark.slow
def test_run_interrupted_in_either_fit_resumes_to_the_same_model(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, straight: TrainedModel
) -> None:
    """Cut off within the first fit, between the two, and within the second one."""
    output = tmp_path / "model"
    cuts = [("choosing: epoch 2", False), ("choosing: best", False), ("epoch 2", True)]
    for number, (note, begun) in enumerate(cuts):
        session = SessionConfig(checkpoint_every=3, resume=number > 0)
        with pytest.raises(CutError):
            train(prepared, output, CONFIG, session=session, tracking=tracking, progress=Cut(note=note))
        left = Checkpoint.load(checkpoint_path(output))
        assert dict(left.chosen) == (straight.manifest.details["chosen"] if begun else {})
    session = SessionConfig(checkpoint_every=3, resume=True)
    model = train(prepared, output, CONFIG, session=session, tracking=tracking)
    assert_same_weights(model, straight)
    assert model.metrics == straight.metrics
    assert not checkpoint_path(output).exists()


def test_parts_are_all_rows_once_and_the_latest_where_time_splits(prepared: Path) -> None:
    data = PreparedData.load(prepared)
    rows = pa.concat_tables([pq.read_table(prepared / name) for name in data.spec.source("train").files])
    by_time = replace(data, manifest=replace(data.manifest, details={"config": {"split": "time"}}))
    for of in (data, by_time):
        spec = inner_spec(of.spec, of)
        ages = {
            split: np.concatenate(
                [
                    inputs["age"].numpy()[:, 0]
                    for inputs, _ in TorchTrainer.batches(prepared, spec, split, 300, shuffle=False, seed=0)
                ]
            )
            for split in spec.sources
        }
        assert list(ages) == ["train", INNER]
        assert len(ages[INNER]) == SHARE * len(rows)
        both = np.concatenate([ages["train"], ages[INNER]])
        assert sorted(both.tolist()) == sorted(rows["age"].to_pylist())
    assert both.tolist() == rows["age"].to_pylist()  # of the second


def test_holdout_of_rows_split_by_group_is_whole_groups(prepared: Path, tmp_path: Path) -> None:
    data = PreparedData.load(prepared)
    num_rows = data.spec.source("train").num_rows

    def cut(first_rows: list[int]) -> int:
        pq.write_table(pa.table({FIRST_ROW: first_rows}), tmp_path / GROUPS)
        manifest = replace(data.manifest, details={"config": {"split": "group"}}, files={GROUPS: ""})
        spec = inner_spec(data.spec, replace(data, path=tmp_path, manifest=manifest))
        learned, held = (spec.source(split).part for split in ("train", INNER))
        assert learned == Part(begin=0.0, end=held.begin, of_each_group=False)
        assert held == Part(begin=learned.end, end=1.0, of_each_group=False)
        return round(held.begin * num_rows)

    assert cut([0, 7, num_rows // 2, round(num_rows * 0.75), num_rows - 1]) == round(num_rows * 0.75)
    for firsts in ([0], [0, num_rows // 10]):
        with pytest.raises(DataError, match="a single group has most of the training rows.* or split at random"):
            cut(firsts)
    lacking = replace(data, manifest=replace(data.manifest, details={"config": {"split": "group"}}))
    with pytest.raises(
        ArtifactError, match="prepared by an earlier version, which did not keep .*To prepare the data again"
    ):
        inner_spec(data.spec, lacking)


def test_rows_of_new_groups_have_no_gauc(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedData, "split", "group")
    config = TrainConfig(batch_size=256, epochs=1, early_stopping_patience=0)
    metrics = train(prepared, tmp_path / "model", config, tracking=tracking).metrics
    assert "valid_auc" in metrics
    assert "valid_gauc" not in metrics


def test_holdout_without_both_labels_is_refused(new_prepared: Any, tmp_path: Path, tracking: TrackingConfig) -> None:
    def liked_first(table: pa.Table) -> pa.Table:
        ones = np.arange(len(table)) < len(table) - 2
        return table.set_column(table.schema.get_field_index("rating"), "rating", pa.array(ones.astype(np.float32)))

    few = new_prepared(tmp_path / "few", num_train=10, num_valid=10, change=liked_first)
    with pytest.raises(DataError, match="the inner validation data cannot be evaluated.*early_stopping_patience to"):
        train(few, tmp_path / "model", CONFIG, tracking=tracking)


def test_holdout_of_tfrecord_is_refused(prepared: Path, tmp_path: Path, tracking: TrackingConfig) -> None:
    data = PreparedData.load(prepared)
    sources = {split: replace(source, type=TFRECORD) for split, source in data.spec.sources.items()}
    records = replace(data, spec=replace(data.spec, sources=sources))
    with pytest.raises(ConfigError, match="the train data is tfrecord, so no part of it can be held out"):
        train(records, tmp_path / "model", TrainConfig(), tracking=tracking)
