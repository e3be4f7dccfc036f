"""Forests of LightGBM: what they learn, and that ONNX says the same of any number."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from rankline.training import trainers
from rankline.training.config.train import TrainConfig
from rankline.training.export.onnx import _load_pyfunc
from rankline.training.models.frameworks import LIGHTGBM
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.lightgbm.network import Forests
from rankline.training.models.lightgbm.onnx import to_onnx
from rankline.training.run.evaluate import evaluate
from rankline.training.run.observers import Observer
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.lightgbm import LightGBMTrainer
from rankline.workflows.core.errors import ConfigError, MissingExtraError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.factories.training.heads import HEADS, make_prepared
from tests.unit.training.conftest import make_prepared as make_clicks

BATCH_SIZE = 512
CONFIG = TrainConfig(model=LightGBMConfig(trees=20), batch_size=BATCH_SIZE, epochs=2)


@pytest.fixture(scope="module")
def prepared_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("forests") / "prepared", HEADS)


def batches(prepared: Path, split: str) -> Any:
    spec = FeatureSpec.read(prepared)
    return LightGBMTrainer.batches(prepared, spec, split, BATCH_SIZE, shuffle=split == "train", seed=0)


def fitted(prepared: Path, config: TrainConfig = CONFIG) -> LightGBMTrainer:
    rows = batches(prepared, "train")
    trainer = LightGBMTrainer(FeatureSpec.read(prepared), config, num_steps=len(rows) * config.epochs)
    for _ in range(config.epochs):
        for inputs, labels in rows:
            trainer.step(inputs, labels)
    return trainer


def test_every_head_learns_and_onnx_says_the_same(prepared_heads: Path, tmp_path: Path) -> None:
    trainer = fitted(prepared_heads)
    figures = evaluate(trainer, batches(prepared_heads, "valid"), HEADS, group_by=None, split="validation")
    assert figures["rating_auc"] > 0.75
    assert figures["price_____rmse"] < 4
    assert figures["kind_accuracy"] > 0.9
    trainer.export(tmp_path / "model.onnx")
    inputs, _ = next(iter(batches(prepared_heads, "valid")))
    scores = trainer.score(inputs)
    frame = {
        name: list(np.split(c.values, c.offsets[1:-1])) if isinstance(c, Ragged) else c for name, c in inputs.items()
    }

    scored = _load_pyfunc(str(tmp_path / "model.onnx")).predict(pd.DataFrame(frame))
    np.testing.assert_allclose(scored["rating"], scores[:, 0], atol=1e-6)
    np.testing.assert_allclose(scored["price, €?"], scores[:, 1], rtol=1e-5)
    np.testing.assert_allclose(np.stack(scored["kind"].tolist()), scores[:, 2:], atol=1e-6)


def test_a_state_goes_on_like_a_fit_without_a_break(prepared_heads: Path) -> None:
    straight = fitted(prepared_heads)
    rows = batches(prepared_heads, "train")
    resumed = LightGBMTrainer(FeatureSpec.read(prepared_heads), CONFIG, num_steps=len(rows) * CONFIG.epochs)
    first = iter(rows)
    for _ in range(2):
        resumed.step(*next(first))
    again = LightGBMTrainer(FeatureSpec.read(prepared_heads), CONFIG, num_steps=len(rows) * CONFIG.epochs)
    again.restore(resumed.state())
    for batch in first:
        again.step(*batch)
    after_epoch = LightGBMTrainer(FeatureSpec.read(prepared_heads), CONFIG, num_steps=len(rows) * CONFIG.epochs)
    after_epoch.restore(again.state())
    for batch in rows:
        after_epoch.step(*batch)
    for ours, theirs in zip(after_epoch.weights(), straight.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert after_epoch.loss_sum() == straight.loss_sum()


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
    forests.boost(30)
    thresholds = {
        (node["split_feature"], float(node["threshold"]))
        for tree in forests.boosters[0].dump_model()["tree_info"]
        for node in nodes(tree["tree_structure"])
    }
    around = [(column, value) for column, t in thresholds for value in neighbours(t)]
    tried = np.repeat(rows[:1], len(around) + 9, axis=0)
    for number, (column, value) in enumerate(around):
        tried[number, column] = value
    for number, value in enumerate((np.nan, np.inf, -np.inf) * 3):
        tried[len(around) + number, number // 3] = value
    session = onnxruntime.InferenceSession(to_onnx(forests).SerializeToString())
    (made,) = session.run(None, {f.name: tried[:, place : place + 1] for place, f in enumerate(features)})
    np.testing.assert_allclose(made, forests.scores(tried), rtol=1e-5, atol=1e-6)


def plain(column: Any) -> Any:
    return list(np.split(column.values, column.offsets[1:-1])) if isinstance(column, Ragged) else column


def nodes(tree: dict[str, Any]) -> list[dict[str, Any]]:
    if "leaf_value" in tree:
        return []
    return [tree, *nodes(tree["left_child"]), *nodes(tree["right_child"])]


def neighbours(threshold: float) -> list[np.float32]:
    near = np.float32(threshold)
    return [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]


def test_lists_count_their_ids_and_the_most_frequent_are_told_apart() -> None:
    feature = Feature(name="tags", dtype="int64", cardinality=9, embedding_dim=2, is_list=True, max_length=4)
    spec = FeatureSpec(
        features=(feature, Feature(name="y", dtype="float32")), channels={"categorical": ("tags",), "label": ("y",)}
    )
    block = Forests(spec, LightGBMConfig(list_ids=4)).blocks[0]
    lists = Ragged(values=np.array([3, 3, 1, 8, 4]), offsets=np.array([0, 3, 3, 5], np.int32))
    assert block.columns(lists).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_a_run_is_recorded_and_may_stop_early(tmp_path: Path, work: Path) -> None:
    prepared = make_clicks(tmp_path / "prepared")
    config = replace(CONFIG, epochs=4, model=LightGBMConfig(trees=40, list_ids=3))
    trained = train(prepared, tmp_path / "model", config, tracking=TrackingConfig(directory=work, experiment="forests"))
    assert trained.format == LIGHTGBM.format
    assert trained.metrics["valid_auc"] > 0.75
    assert trained.manifest.details["config"]["trees"] == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"xla": True}, "lightgbm is none"), ({"precision": "float16"}, "lightgbm is none")],
)
def test_choices_of_networks_are_refused(spec: FeatureSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LightGBMTrainer.check(spec, replace(CONFIG, **changes))
    with pytest.raises(ConfigError, match="one worker, got 2"):
        LightGBMTrainer.check(spec, CONFIG, num_workers=2)


def test_without_lightgbm_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.workflows.core.optional_packages.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"lightgbm"):
        trainers.trainer_for(LIGHTGBM)


@pytest.mark.parametrize(
    "choices", [{"trees": 0}, {"leaves": 1}, {"shrinkage": 0.0}, {"feature_share": 1.5}, {"l2_leaves": -1.0}]
)
def test_choices_out_of_range_are_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(choices))):
        LightGBMConfig(**choices)


def test_reports_have_the_loss_of_each_epoch_once(prepared_heads: Path, tmp_path: Path, work: Path) -> None:
    looks: list[float] = []
    epochs: list[float] = []

    class Losses(Observer):
        every_step = True

        def after_look(self, step: int, figures: Mapping[str, float]) -> None:
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
    with pytest.raises(ConfigError, match="'lightgbm' is not fitted in steps and has no use for learning_rate. Leave"):
        CONFIG.check_read(["learning_rate", "trees"])
    assert TrainConfig().params == TrainConfig().to_dict()
