"""Runs of models that are tables alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import _load_pyfunc
from rankline.training.models.factorization.bayesian_fm import BayesianFMConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.factorization import TablesTrainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from rankline.workflows.schema.model_artifact import SAVED_MODEL
from rankline.workflows.storage.artifacts import publish
from tests.unit.training.conftest import make_rows, make_spec

CONFIG = TrainConfig(
    model=BayesianFMConfig(factors=2, sweeps=24, burn_in=8, served_dim=4, item_column="movieId"),
    batch_size=700,
    epochs=2,
)


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of the other tests, without their number."""
    directory = tmp_path_factory.mktemp("rated") / "prepared"
    with publish(directory, "prepared-data") as staging:
        sources = {}
        for split, num_rows, seed in (("train", 3_000, 1), ("valid", 800, 2)):
            (staging / split).mkdir()
            pq.write_table(make_rows(num_rows, seed).drop(["age"]), staging / split / "part_0.parquet")
            sources[split] = Source(files=(f"{split}/part_0.parquet",), num_rows=num_rows)
        spec = make_spec(sources)
        features = tuple(feature for feature in spec.features if feature.name != "age")
        spec = replace(spec, features=features, channels={**spec.channels, "continuous": ()})
        (staging / "feature_spec.yaml").write_text(spec.to_yaml())
        (staging / "workflow").mkdir()
        (staging / "workflow" / "metadata.json").write_text(json.dumps({"versions": {}}))
    return directory


def batches(prepared: Path, split: str = "train") -> Any:
    spec = FeatureSpec.read(prepared)
    return TablesTrainer.batches(prepared, spec, split, CONFIG.batch_size, shuffle=split == "train", seed=0)


def new_trainer(prepared: Path) -> TablesTrainer:
    return TablesTrainer(FeatureSpec.read(prepared), CONFIG, num_steps=len(batches(prepared)) * CONFIG.epochs)


def test_a_state_goes_on_like_a_fit_without_a_break(rated: Path) -> None:
    straight, rows = new_trainer(rated), batches(rated)
    for _ in range(CONFIG.epochs):
        for batch in rows:
            straight.step(*batch)
    first, rows = new_trainer(rated), batches(rated)
    begun = iter(rows)
    for _ in range(2):
        first.step(*next(begun))
    second = new_trainer(rated)
    second.restore(first.state())  # in the first epoch
    for batch in begun:
        second.step(*batch)
    third = new_trainer(rated)
    third.restore(second.state())  # after it
    for batch in rows:
        third.step(*batch)
    for ours, theirs in zip(third.weights(), straight.weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert third.loss_sum() == straight.loss_sum()


def test_a_run_is_recorded_and_its_model_loads_anywhere(rated: Path, tmp_path: Path, work: Path) -> None:
    trained = train(rated, tmp_path / "model", CONFIG, tracking=TrackingConfig(directory=work, experiment="gibbs"))
    assert trained.metrics["valid_auc"] > 0.75
    assert trained.manifest.details["config"]["sweeps"] == CONFIG.model.sweeps  # type: ignore[attr-defined]
    assert trained.format == SAVED_MODEL
    rows = pq.read_table(rated / "valid" / "part_0.parquet").to_pandas()
    said = _load_pyfunc(str(trained.model_path)).predict(rows)
    again = train(rated, tmp_path / "again", CONFIG, tracking=TrackingConfig(directory=work, experiment="gibbs"))
    np.testing.assert_array_equal(said, _load_pyfunc(str(again.model_path)).predict(rows))


@pytest.mark.parametrize("changes", [{"xla": True}, {"precision": "float16"}])
def test_choices_of_networks_are_refused(rated: Path, changes: dict[str, Any]) -> None:
    spec = FeatureSpec.read(rated)
    with pytest.raises(ConfigError, match="bayesian_fm is none"):
        TablesTrainer.check(spec, replace(CONFIG, **changes))
    with pytest.raises(ConfigError, match="one worker, got 2"):
        TablesTrainer.check(spec, CONFIG, num_workers=2)
