"""training: cost of a training step with Rankline's loader, without a loader, and in the seed document's path.

Sides run in turns; metrics are medians over the repeats. Warm-up before a turn is excluded. See also
`bench.training.criteo` and `bench.training.amazon`. For MovieLens, the seed path uses TensorFlow: TFRecord files
through `make_batched_features_dataset`, `tf.feature_column`s through `keras.layers.DenseFeatures`, `fit` with SGD,
tables up to 512 columns wide, batches of 32,768.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from bench.harness.report import Rates, Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.steps import WARMUP_STEPS, one_batch, with_loader
from bench.harness.synthetic_rows import write_rows
from bench.peers.native import notebook_dataset
from bench.training.amazon import SIM, run_amazon
from bench.training.criteo import CRITEO, run_criteo
from rankline.recipes import recipe_named
from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tfrecord import write_tfrecords
from rankline.training.models.tabular import MLPConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec

MOVIELENS = "movielens"


def run_movielens(
    repeats: int, *, num_rows: int = 2_500_000, batch_size: int | None = None, turn_s: float = 5.0
) -> Report:
    with scratch_directory() as directory:
        spec = write_rows(directory, num_rows)
        paths = [directory / file for file in spec.source("train").files]
        records = write_tfrecords(paths, spec, directory / "tfrecord")
        configs = (recipe_named(name).train for name in (MOVIELENS, "movielens-seed"))
        recipe, seed = (replace(config, batch_size=batch_size or config.batch_size) for config in configs)
        sides: dict[str, Turn] = {
            MOVIELENS: with_loader(directory, spec, recipe, turn_s),
            "movielens, one batch": one_batch(directory, spec, recipe, turn_s),
            "movielens-seed": with_loader(directory, spec, seed, turn_s),
            "movielens-seed, one batch": one_batch(directory, spec, seed, turn_s),
            "seed path": _seed_path(records, spec, seed, turn_s),
        }
        rates = take_turns(sides, repeats)
    results = medians(rates, "rows_per_s")
    return Report(name="training", results=results, ratios=_ratios(rates))


def _seed_path(records: Sequence[Path], spec: FeatureSpec, config: TrainConfig, turn_s: float) -> Turn:
    model = _seed_model(spec, config)
    dataset = notebook_dataset(records, spec, config.batch_size)

    def turn() -> float:
        clock = _Clock(turn_s)
        model.fit(dataset, epochs=1, verbose=0, callbacks=[clock])
        return clock.num_steps * config.batch_size / clock.elapsed_s

    return turn


def _seed_model(spec: FeatureSpec, config: TrainConfig) -> Any:
    assert isinstance(config.model, MLPConfig)
    columns, inputs = [], {}
    for feature in spec.categorical:
        ids = tf.feature_column.categorical_column_with_identity(feature.name, feature.embedding_shape[0])
        columns.append(tf.feature_column.embedding_column(ids, config.model.table_width(feature)))
        shape = (None,) if feature.is_list else (1,)
        inputs[feature.name] = keras.Input(shape, name=feature.name, dtype=tf.int64, sparse=feature.is_list)
    x = keras.layers.DenseFeatures(columns)(inputs)
    for units in config.model.hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.SGD(config.learning_rate), "binary_crossentropy")
    return model


class _Clock(keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    def __init__(self, turn_s: float) -> None:
        super().__init__()
        self._turn_s, self.num_steps, self.elapsed_s = turn_s, 0, 0.0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002  (Keras)
        now = time.perf_counter()
        if batch == WARMUP_STEPS - 1:
            self._begin = now
        elif batch >= WARMUP_STEPS:
            self.num_steps, self.elapsed_s = batch + 1 - WARMUP_STEPS, now - self._begin
            self.model.stop_training = self.elapsed_s > self._turn_s


def _ratios(rates: Rates) -> dict[str, float]:
    return {
        "vs_step_alone": median_ratio(rates, MOVIELENS, "movielens, one batch"),
        "vs_seed_path": median_ratio(rates, MOVIELENS, "seed path"),
        "vs_step_alone_seed_model": median_ratio(rates, "movielens-seed", "movielens-seed, one batch"),
        "vs_seed_path_same_model": median_ratio(rates, "movielens-seed", "seed path"),
    }


def run(repeats: int, *, recipe: str = MOVIELENS) -> Report:
    runs: Mapping[str, Callable[[int], Report]] = {MOVIELENS: run_movielens, CRITEO: run_criteo, SIM: run_amazon}
    if recipe not in runs:
        raise ConfigError(f"no seed document trains {recipe!r}. Available: {', '.join(runs)}.")
    return runs[recipe](repeats)
