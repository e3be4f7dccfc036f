"""Rows of `rankline sim`: their order and cache, and scorers of SavedModels, of checkpoints and of nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from rankline.compat.sim.batches import CachedBatches, repeated, with_rows
from rankline.compat.sim.scorers import from_checkpoint, saved, score_each_size, untrained
from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tfrecord import TFRecordLoader, write_tfrecords
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.training.run.checkpoint import Best, Checkpoint, Position, Reader, plain
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.errors import ArtifactError, ConfigError, SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from tests.factories.training import ratings
from tests.factories.training.sequences import make_prepared, make_spec

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


@pytest.mark.slow
def test_saved_model_scores_without_negatives(trained: Any, batches: list[Any], tmp_path: Path) -> None:
    assert not any("neg" in name for inputs in batches for name in inputs)
    trained("din").export(tmp_path)
    score = saved(tmp_path, make_spec())
    for inputs, expected in zip(batches, trained("din").scores, strict=True):
        np.testing.assert_allclose(score(inputs), expected, atol=1e-5)


@pytest.mark.slow
def test_checkpoint_that_learnt_from_negatives_scores_without(prepared: Path, trained: Any, batches: list[Any]) -> None:
    score = from_checkpoint(trained("dien").checkpoint, FeatureSpec.read(prepared), precision="float32", xla=False)
    for inputs, expected in zip(batches, trained("dien").scores, strict=True):
        found = score(inputs)
        assert (found.dtype, found.shape) == (np.float32, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
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
    with pytest.raises(ConfigError, match="is for model 'os:getcwd', expected one of auto, bayesian_fm, "):
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
    with pytest.raises(ArtifactError, match=r"inputs \['category_id_pos__offsets',.*the data provides \['age'"):
        saved(tmp_path / "din", ratings.make_spec())


def test_batch_of_each_size_is_scored_once(prepared: Path) -> None:
    spec = FeatureSpec.read(prepared).for_scoring
    loader = tensorflow_loader(prepared, spec, "valid", BATCH_SIZE, shuffle=False, seed=0)
    seen: list[int] = []
    score_each_size(lambda inputs: seen.append(inputs["user_id"].shape[0]), loader)
    assert seen == [BATCH_SIZE, 100]


@pytest.mark.parametrize(
    ("num_rows", "times"),
    [
        (1, 1),
        (400, 1),
        (401, 2),
    ],
)
def test_files_are_named_as_often_as_a_batch_needs(num_rows: int, times: int) -> None:
    spec = make_spec({"valid": Source(files=("a", "b"), num_rows=400)})
    source = with_rows(spec, "valid", num_rows).source("valid")
    assert source == Source(files=("a", "b") * times, num_rows=400 * times)
    with pytest.raises(SpecError, match="unknown split 'test'"):
        with_rows(spec, "test", 1)


def test_rows_come_as_often_as_their_files_are_named(prepared: Path) -> None:
    spec = with_rows(FeatureSpec.read(prepared).for_scoring, "valid", 1000)
    loader = tensorflow_loader(prepared, spec, "valid", 1000, shuffle=False, seed=0, drop_last=True)
    (inputs, labels), *rest = list(loader)
    assert (labels.shape[0], rest) == (1000, [])
    users = inputs["user_id"].numpy()
    np.testing.assert_array_equal(users[:400], users[400:800])


NUM_RATED, RATED_BATCH = 4000, 700


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ratings.make_prepared(tmp_path_factory.mktemp("ratings") / "prepared")


def loader(rated: Path, *, shuffle: bool = True) -> Any:
    return tensorflow_loader(rated, FeatureSpec.read(rated), "train", RATED_BATCH, shuffle=shuffle, seed=5)


def ages(batches: Any) -> list[list[float]]:
    return [inputs["age"].numpy()[:, 0].tolist() for inputs, _ in batches]


def test_epoch_of_several_passes_has_the_orders_of_as_many_epochs(rated: Path) -> None:
    plain, twice = loader(rated), repeated(loader(rated), 2)
    assert (twice.num_rows, len(twice)) == (2 * NUM_RATED, 2 * len(plain))
    epochs = [ages(plain) for _ in range(4)]
    assert ages(twice) == epochs[0] + epochs[1]
    assert ages(twice) == epochs[2] + epochs[3]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("batch", [0, 5, 6, 11])
def test_epoch_of_several_passes_resumes_at_any_batch(rated: Path, batch: int) -> None:
    straight = repeated(loader(rated), 2)
    expected = [*ages(straight), *ages(straight)][12 + batch :] + ages(straight)
    reader = Reader(repeated(loader(rated), 2))
    reader.seek(Position(step=12 + batch, epoch=2, batch=batch), reader.order)
    assert ages(reader) + ages(reader) == expected


def test_position_that_was_saved_while_reading_is_the_one_to_go_on_at(rated: Path) -> None:
    straight: Any = repeated(loader(rated), 3)
    passing = iter(straight)
    for _ in range(8):
        next(passing)
    state, left = straight.state_dict(), ages(passing)
    resumed: Any = repeated(loader(rated), 3)
    resumed.load_state_dict(state)
    assert ages(resumed) == left
    with pytest.raises(ConfigError, match=r"was saved with 3 passes per epoch, but this run has 2\."):
        repeated(loader(rated), 2).load_state_dict(state)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_loader_without_a_position_is_read_again_up_to_it(rated: Path, tmp_path: Path) -> None:
    spec = FeatureSpec.read(rated)
    files = write_tfrecords([rated / "train" / "part_0.parquet"], spec, tmp_path)

    def twice() -> Any:
        return repeated(TFRecordLoader(files, spec, RATED_BATCH, num_rows=NUM_RATED // 2, seed=5), 2)

    straight = twice()
    first, second = ages(straight), ages(straight)
    assert first != second
    reader = Reader(twice())
    assert reader.order == {}
    reader.seek(Position(step=10, epoch=2, batch=4), {})
    assert ages(reader) == second[4:]


class Counted:
    """Some batches, and how often they were read from the start."""

    def __init__(self) -> None:
        self.num_rows, self.passes = 6, 0
        self._batches = [({"x": tf.fill((2, 1), float(number))}, tf.zeros((2, 1))) for number in range(3)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self._batches)


NUM_BYTES = 3 * 2 * 2 * 4


def first_values(batches: Any) -> list[float]:
    return [float(inputs["x"][0, 0]) for inputs, _ in batches]


def test_batches_that_fit_are_read_once() -> None:
    counted = Counted()
    kept = CachedBatches(counted, max_bytes=NUM_BYTES)
    assert (kept.num_rows, len(kept)) == (6, 3)
    assert [first_values(kept) for _ in range(3)] == [[0.0, 1.0, 2.0]] * 3
    assert counted.passes == 1


def test_pass_that_is_left_early_keeps_nothing() -> None:
    counted = Counted()
    kept = CachedBatches(counted)
    assert float(next(iter(kept))[0]["x"][0, 0]) == 0.0
    assert first_values(kept) == first_values(kept) == [0.0, 1.0, 2.0]
    assert counted.passes == 2
