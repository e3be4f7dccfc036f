"""Trainers that hold all rows in memory: LightGBM's forests, and models that are tables alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pyarrow.parquet as pq
import pytest

from rankline.training import trainers
from rankline.training.config.train import TrainConfig
from rankline.training.export.onnx import _load_pyfunc
from rankline.training.export.saved_model import _load_pyfunc as load_saved_model
from rankline.training.models.factorization import BayesianFMConfig
from rankline.training.models.frameworks import LIGHTGBM
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.lightgbm.network import Forests
from rankline.training.models.lightgbm.onnx import to_onnx
from rankline.training.run.loop import evaluate
from rankline.training.run.observers import Observer
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.base import Trainer
from rankline.training.trainers.in_memory import LightGBMTrainer, TablesTrainer
from rankline.workflows.core.errors import ConfigError, MissingExtraError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.training.heads import HEADS, make_prepared
from tests.factories.training.ratings import make_prepared as make_clicks
from tests.factories.training.ratings import make_spec
from tests.oracles.trees import LIGHTGBM as LIGHTGBM_FORESTS
from tests.oracles.trees import tried_rows

BATCH_SIZE = 512
CONFIG = TrainConfig(model=LightGBMConfig(trees=20), batch_size=BATCH_SIZE, epochs=2)
TABLES = TrainConfig(
    model=BayesianFMConfig(factors=2, sweeps=24, burn_in=8, served_dim=4, item_column="movieId"),
    batch_size=700,
    epochs=2,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trainer that holds all rows, and a run of it."""

    trainer: type[Trainer]
    prepared: Path
    config: TrainConfig

    def batches(self, split: str = "train") -> Any:
        spec, shuffle = FeatureSpec.read(self.prepared), split == "train"
        return self.trainer.batches(self.prepared, spec, split, self.config.batch_size, shuffle=shuffle, seed=0)

    def new(self) -> Any:
        num_steps = len(self.batches()) * self.config.epochs
        return self.trainer(FeatureSpec.read(self.prepared), self.config, num_steps)

    def fitted(self) -> Any:
        trainer, rows = self.new(), self.batches()
        for _ in range(self.config.epochs):
            for batch in rows:
                trainer.step(*batch)
        return trainer


@pytest.fixture(scope="module")
def forests(prepared_heads: Path) -> Case:
    return Case(trainer=LightGBMTrainer, prepared=prepared_heads, config=CONFIG)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The rows of the other tests, without their number."""
    directory = tmp_path_factory.mktemp("rated") / "prepared"
    spec = make_spec()
    features = tuple(feature for feature in spec.features if feature.name != "age")
    spec = replace(spec, features=features, channels={**spec.channels, "continuous": ()})
    prepared = make_clicks(directory, num_train=3_000, num_valid=800, change=lambda rows: rows.drop(["age"]), spec=spec)
    return Case(trainer=TablesTrainer, prepared=prepared, config=TABLES)


@pytest.fixture(params=["forests", "tables"])
def case(request: pytest.FixtureRequest) -> Case:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def prepared_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("forests") / "prepared", HEADS)


def test_lightgbm_heads_learn_and_match_onnx(forests: Case, tmp_path: Path) -> None:
    trainer = forests.fitted()
    figures = evaluate(trainer, forests.batches("valid"), HEADS, group_by=None, split="validation")
    assert figures["rating_auc"] > 0.75
    assert figures["price_____rmse"] < 4
    assert figures["kind_accuracy"] > 0.9
    trainer.export(tmp_path / "model.onnx")
    inputs, _ = next(iter(forests.batches("valid")))
    scores = trainer.score(inputs)
    frame = {
        name: list(np.split(c.values, c.offsets[1:-1])) if isinstance(c, Ragged) else c for name, c in inputs.items()
    }

    scored = _load_pyfunc(str(tmp_path / "model.onnx")).predict(pd.DataFrame(frame))
    np.testing.assert_allclose(scored["rating"], scores[:, 0], atol=1e-6)
    np.testing.assert_allclose(scored["price, €?"], scores[:, 1], rtol=1e-5)
    np.testing.assert_allclose(np.stack(scored["kind"].tolist()), scores[:, 2:], atol=1e-6)


@pytest.mark.parametrize("has_missing", [False, True])
@pytest.mark.parametrize(
    "head", [Head("y"), Head("y", REGRESSION), Head("y", MULTICLASS, ("a", "b", "c", "d"))], ids=lambda head: head.task
)
def test_numbers_at_and_around_every_threshold_take_the_same_branch(head: Head, has_missing: bool) -> None:
    """Also those whose threshold is no float32, and those that are missing, with and without some in training."""
    rng = np.random.default_rng(7)
    rows = np.concatenate([rng.normal(size=(3_000, 2)), 1e6 + rng.integers(0, 50, (3_000, 1))], axis=1)
    rows = rows.astype(np.float32)
    if has_missing:
        rows[rng.random(rows.shape) < 0.2] = np.nan
    signal = np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1] * 0.5)
    labels = {"binary": signal > 0, "regression": 100 * signal, "multiclass": np.digitize(signal, [-1, 0, 1])}
    features = tuple(Feature(name=f"x {number}?", dtype="float32") for number in range(3))
    spec = FeatureSpec(
        features=(*features, Feature(name="y", dtype="float32")),
        channels={"continuous": tuple(feature.name for feature in features), "label": ("y",)},
        metadata=SpecMetadata(heads=(head,)),
    )
    forests = Forests(spec, LightGBMConfig(trees=30))
    forests.begin(rows, labels[head.task].astype(np.float32)[:, None], seed=0)
    forests.learn(1)
    tried = tried_rows(rng, rows, LIGHTGBM_FORESTS.thresholds(forests.boosters[0]))
    session = onnxruntime.InferenceSession(to_onnx(forests).SerializeToString())
    (made,) = session.run(None, {f.name: tried[:, place : place + 1] for place, f in enumerate(features)})
    np.testing.assert_allclose(made, forests.scores(tried), rtol=1e-5, atol=1e-6)


def test_reports_have_the_loss_of_each_epoch_once(prepared_heads: Path, tmp_path: Path, work: Path) -> None:
    looks: list[float] = []
    epochs: list[float] = []

    class Losses(Observer):
        every_step = True

        def on_log(self, step: int, figures: Mapping[str, float]) -> None:
            looks.append(figures["train_loss"])

        def after_epoch(self, step: int, figures: Mapping[str, float]) -> None:
            epochs.append(figures["train_loss"])

    config = replace(CONFIG, batch_size=100, early_stopping_patience=0)
    tracking = TrackingConfig(directory=work, experiment="forests")
    train(prepared_heads, tmp_path / "model", config, tracking=tracking, observers=lambda _: [Losses()])
    assert looks == epochs
    assert 0 < epochs[1] < epochs[0] < 5


def test_choices_about_steps_are_neither_recorded_nor_accepted() -> None:
    recorded = CONFIG.params
    assert {"trees", "epochs", "batch_size", "seed"} <= recorded.keys()
    assert not {"learning_rate", "optimizer", "weight_averaging"} & recorded.keys()
    CONFIG.check_read(["trees", "epochs"])
    with pytest.raises(ConfigError, match=r"'lightgbm' does not use learning_rate\. Omit it"):
        CONFIG.check_read(["learning_rate", "trees"])
    assert TrainConfig().params == TrainConfig().to_dict()


# --- Both


def test_in_memory_fit_resumes_within_and_after_an_epoch(case: Case) -> None:
    straight = case.fitted()
    first, rows = case.new(), case.batches()
    begun = iter(rows)
    for _ in range(2):
        first.step(*next(begun))
    second = case.new()
    second.restore(first.state())
    for batch in begun:
        second.step(*batch)
    third = case.new()
    third.restore(second.state())
    for batch in rows:
        third.step(*batch)
    for ours, theirs in zip(third.weights(), straight.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert third.loss_sum() == straight.loss_sum()


def test_in_memory_run_is_recorded_and_its_model_scores_data_frames(tables: Case, tmp_path: Path, work: Path) -> None:
    tracking = TrackingConfig(directory=work, experiment="tables")
    models = [train(tables.prepared, tmp_path / name, TABLES, tracking=tracking) for name in ("one", "again")]
    assert models[0].metrics["valid_auc"] > 0.75
    assert models[0].manifest.details["config"]["sweeps"] == TABLES.model.sweeps  # type: ignore[attr-defined]
    rows = pq.read_table(tables.prepared / "valid").to_pandas()
    scores, again = (load_saved_model(str(model.model_path)).predict(rows) for model in models)
    np.testing.assert_array_equal(scores, again)


@pytest.mark.parametrize(
    ("changes", "num_workers", "message"),
    [
        ({"xla": True}, 1, "apply only to neural networks, not to"),
        ({"precision": "float16"}, 1, "apply only to neural networks, not to"),
        ({}, 2, "one worker, got 2"),
    ],
)
def test_in_memory_trainer_refuses_choices_of_networks(
    case: Case, changes: dict[str, Any], num_workers: int, message: str
) -> None:
    spec = FeatureSpec.read(case.prepared)
    with pytest.raises(ConfigError, match=message):
        case.trainer.check(spec, replace(case.config, **changes), num_workers=num_workers)


def test_trainer_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.workflows.core.optional_packages.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="lightgbm"):
        trainers.trainer_for(LIGHTGBM)
