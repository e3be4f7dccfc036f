"""Scorers of SavedModels, of checkpoints and of nothing, for each model with histories."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rankline.compat.sim.batches import with_rows
from rankline.compat.sim.scorers import from_checkpoint, saved, score_each_size, untrained
from rankline.training.config.train import TrainConfig
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.training.run.checkpoint import Best, Checkpoint, Position, plain
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.errors import ArtifactError, ConfigError, SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from tests.factories.training.sequences import make_prepared, make_spec
from tests.unit.training import conftest as ratings

BATCH_SIZE = 150


DIN = DINConfig(hidden=(8,), embedding_dim=6)
DIEN = DIENConfig(**vars(DIN), aux_hidden=(6,), gru_units=6, short_history=3)
SIM = SIMConfig(**vars(DIEN), stage_one_hidden=(8,), num_searched=4)
MODELS = {model.name: model for model in (DIN, DIEN, SIM)}


def config_of(model: str, **changes: Any) -> TrainConfig:
    config = TrainConfig(
        model=MODELS[model], optimizer="lazy_adam", learning_rate=0.02, batch_size=100, weight_averaging=False
    )
    return config.with_choices(**changes)


class Trained(NamedTuple):
    """A model that has learnt a little."""

    export: Callable[[Path], None]
    checkpoint: Checkpoint
    scores: list[Any]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("sequences") / "prepared")


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Any]:
    """The test rows, whose files have no negatives."""
    spec = FeatureSpec.read(prepared).for_scoring
    return [inputs for inputs, _ in tensorflow_loader(prepared, spec, "valid", BATCH_SIZE, shuffle=False, seed=0)]


@pytest.fixture(scope="module")
def trained(prepared: Path, batches: list[Any]) -> Any:
    """Models, each trained when it is first asked for."""
    found: dict[str, Trained] = {}

    def train(model: str, **changes: Any) -> Trained:
        key = f"{model}{changes}"
        if key not in found:
            config, spec = config_of(model, **changes), FeatureSpec.read(prepared)
            trainer = TensorFlowTrainer(config.model.training_view(spec), config, num_steps=12)
            loader = TensorFlowTrainer.batches(
                prepared, config.model.training_view(spec), "train", 100, shuffle=True, seed=1
            )
            for number, (inputs, labels) in enumerate(loader):
                trainer.step(inputs, labels)
                if number % 4 == 3:
                    trainer.average()
            state = trainer.state()
            trainer.set_weights(trainer.weights())
            checkpoint = Checkpoint(
                config=plain(config),
                fingerprint="f",
                run_id="r",
                position=Position(),
                num_batches=12,
                order={},
                best=Best(),
                state=state,
            )
            scores = [trainer.score(inputs)[:, None] for inputs in batches]
            found[key] = Trained(trainer.export, checkpoint, scores)
        return found[key]

    return train


@pytest.mark.parametrize("model", ["din", "sim"])
def test_saved_model_scores_rows_without_negatives(
    model: str, trained: Any, batches: list[Any], tmp_path: Path
) -> None:
    assert not any("neg" in name for inputs in batches for name in inputs)
    trained(model).export(tmp_path)
    score = saved(tmp_path, make_spec())
    for inputs, expected in zip(batches, trained(model).scores, strict=True):
        np.testing.assert_allclose(score(inputs), expected, atol=1e-5)


def test_checkpoint_of_a_run_that_learnt_from_negatives_scores_without_them(
    prepared: Path, trained: Any, batches: list[Any]
) -> None:
    score = from_checkpoint(trained("dien").checkpoint, FeatureSpec.read(prepared), precision="float32", xla=False)
    for inputs, expected in zip(batches, trained("dien").scores, strict=True):
        found = score(inputs)
        assert (found.dtype, found.shape) == (np.float32, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"precision": "float32", "xla": True}, 1e-5), ({"precision": "bfloat16", "xla": False}, 0.02)],
)
def test_checkpoint_scores_with_its_averages_and_as_it_is_asked_to(
    options: dict[str, Any], tolerance: float, prepared: Path, trained: Any, batches: list[Any]
) -> None:
    averaged = trained("din", weight_averaging=True)
    found = from_checkpoint(averaged.checkpoint, FeatureSpec.read(prepared), **options)(batches[0]).numpy()
    np.testing.assert_allclose(found, averaged.scores[0], atol=tolerance)
    assert np.abs(averaged.scores[0] - trained("din").scores[0]).max() > 2 * tolerance
    if options["precision"] == "bfloat16":
        assert np.abs(found - averaged.scores[0]).max() > 1e-6


def test_checkpoint_of_another_model_is_refused(prepared: Path, trained: Any) -> None:
    checkpoint, spec = trained("din").checkpoint, FeatureSpec.read(prepared)
    other = {**checkpoint.config, "hidden": [9]}
    with pytest.raises(ArtifactError, match="another model"):
        from_checkpoint(replace(checkpoint, config=other), spec, precision="float32", xla=False)
    with pytest.raises(ConfigError, match="is for model 'os:getcwd', expected one of bayesian_fm, dcnv2"):
        foreign = replace(checkpoint, config={**other, "model": "os:getcwd"})
        from_checkpoint(foreign, spec, precision="float32", xla=False)


def test_untrained_scorer_differs_from_a_trained_one(prepared: Path, trained: Any, batches: list[Any]) -> None:
    score = untrained(FeatureSpec.read(prepared), config_of("din"))
    assert score(batches[0]).shape == (BATCH_SIZE, 1)
    assert np.abs(score(batches[0]) - trained("din").scores[0]).max() > 1e-3


def test_saved_model_that_is_missing_or_of_other_features_is_refused(tmp_path: Path, trained: Any) -> None:
    with pytest.raises(ArtifactError, match="cannot be loaded as a SavedModel"):
        saved(tmp_path / "absent", make_spec())
    trained("din").export(tmp_path / "din")
    with pytest.raises(
        ArtifactError, match=r"takes \['category_id_pos__offsets', .*the data has \['age', 'genres__off"
    ):
        saved(tmp_path / "din", ratings.make_spec())


def test_batch_of_each_size_is_scored_once(prepared: Path) -> None:
    spec = FeatureSpec.read(prepared).for_scoring
    loader = tensorflow_loader(prepared, spec, "valid", BATCH_SIZE, shuffle=False, seed=0)
    seen: list[int] = []
    score_each_size(lambda inputs: seen.append(inputs["user_id"].shape[0]), loader)
    assert seen == [BATCH_SIZE, 100]


@pytest.mark.parametrize(("num_rows", "times"), [(1, 1), (400, 1), (401, 2), (1000, 3)])
def test_files_are_named_as_often_as_a_batch_needs(num_rows: int, times: int) -> None:
    spec = make_spec({"valid": Source(files=("a", "b"), num_rows=400)})
    source = with_rows(spec, "valid", num_rows).source("valid")
    assert source == Source(files=("a", "b") * times, num_rows=400 * times)
    with pytest.raises(SpecError, match="no split 'test'"):
        with_rows(spec, "test", 1)


def test_rows_come_as_often_as_their_files_are_named(prepared: Path) -> None:
    spec = with_rows(FeatureSpec.read(prepared).for_scoring, "valid", 1000)
    loader = tensorflow_loader(prepared, spec, "valid", 1000, shuffle=False, seed=0, drop_last=True)
    (inputs, labels), *rest = list(loader)
    assert (labels.shape[0], rest) == (1000, [])
    users = inputs["user_id"].numpy()
    np.testing.assert_array_equal(users[:400], users[400:800])
