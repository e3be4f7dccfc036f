"""The SIM document's training path: prebatched TFRecord, padded histories, the same model.

The rows are those of the recipe. In the document's path, each record is a block of rows: all columns int64, histories
padded on the left to full length, full records only (`--drop_remainder`). Records are parsed, masked where the first
history feature is 0, and prefetched, in file order. "cached" keeps the parsed rows in memory, which is the document's
default and takes 8 bytes per id. Its model computes on full length. Rankline's path reads ragged lists from Parquet,
shuffled, with similar lengths per batch; its model pads to the batch's longest row and skips padding where possible.

Both paths train the same network. "ragged" reads the document's files into ragged batches, "no model" only reads, "in
memory" trains without reading, and "small layers" trains a network with little to compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from bench.harness.fixtures import prepare_rows
from bench.harness.report import Rates, Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.steps import endless, read_for, train_for
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.training.data.loader.stream import BatchStream, Column
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.models.config import StepConfig
from rankline.training.models.sequential import SIMConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import HISTORY, Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import NNZS, VALUES

SIM = "amazon-sim"
SMALL_LAYERS: dict[str, Any] = {
    "embedding_dim": 4,
    "hidden": (16,),
    "stage_one_hidden": (16,),
    "aux_hidden": (16,),
    "gru_units": 8,
}
_TFRECORD, _CACHED, _RAGGED, _NO_MODEL = "tfrecord", "cached", "ragged", "no model"
_SMALL, _HELD = "small layers", "in memory"
_NUM_HELD = 16  # batches in memory, of all lengths
_PREFETCH = 10  # the document's --prefetch_train_size


def run_amazon(
    repeats: int,
    *,
    num_rows: int = 30_000,
    choices: Mapping[str, Any] | None = None,
    batch_size: int = 1_024,
    turn_s: float = 6.0,
) -> Report:
    recipe = recipe_named(SIM)
    with scratch_directory() as directory:
        workspace = Workspace(recipe=SIM, root=directory, repository=directory / "repository")
        prepared = prepare_rows(workspace, recipe, num_rows)
        path, spec = prepared.path, prepared.spec
        config = replace(recipe.train, batch_size=batch_size).with_choices(**(choices or {}))
        files = [path / file for file in spec.source("train").files]
        records = write_records(files, spec, directory / "train.tfrecord", batch_size)
        dataset = document_dataset(records, spec, batch_size)
        cached = dataset.cache()
        for _ in cached:  # a cache is filled only once it was read to its end
            pass
        loader = partial(tensorflow_loader, path, spec, "train", batch_size, shuffle=True, seed=0)
        configs = config, config.with_choices(**SMALL_LAYERS)
        trainer, small = (TensorFlowTrainer(spec, choice, num_steps=1) for choice in configs)
        full = (replace(choice, model=_FullLength(**vars(choice.model))) for choice in configs)
        padded, small_padded = (TensorFlowTrainer(spec, choice, num_steps=1) for choice in full)
        sides: dict[str, Turn] = {
            SIM: partial(train_for, trainer, endless(loader()), turn_s),
            _name(SIM, _HELD): partial(train_for, trainer, endless(list(islice(loader(), _NUM_HELD))), turn_s),
            _TFRECORD: partial(train_for, padded, endless(dataset), turn_s),
            _name(_TFRECORD, _CACHED): partial(train_for, padded, endless(cached), turn_s),
            _name(_TFRECORD, _RAGGED): partial(train_for, trainer, endless(dataset), turn_s),
            _name(SIM, _SMALL): partial(train_for, small, endless(loader()), turn_s),
            _name(_TFRECORD, _SMALL): partial(train_for, small_padded, endless(dataset), turn_s),
            _name(SIM, _NO_MODEL): partial(read_for, endless(loader()), turn_s),
            _name(_TFRECORD, _NO_MODEL): partial(read_for, endless(dataset), turn_s),
        }
        rates = take_turns(sides, repeats)
    results = medians(rates, "rows_per_s")
    return Report(name="training", results=results, ratios=_ratios(rates))


def write_records(files: Sequence[Path], spec: FeatureSpec, target: Path, block_rows: int) -> Path:
    """Write rows in blocks, as the document does, dropping rows that do not fill the last block."""
    names = [feature.name for feature in spec.features]
    stream = BatchStream(files, names, batch_size=block_rows, shuffle=False, drop_last=True)
    with tf.io.TFRecordWriter(str(target)) as writer:
        for batch in stream.batches():
            columns = {feature.name: _dense(batch[feature.name], feature).ravel() for feature in spec.features}
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return target


def _dense(column: Column, feature: Feature) -> npt.NDArray[np.int64]:
    """Return a column as int64, with histories padded with 0 on the left: (N,) or (N, max_length)."""
    if not isinstance(column, Ragged):
        return column.astype(np.int64)
    length = feature.max_length or 0
    dense = np.zeros((len(column.lengths), length), np.int64)
    rows = np.repeat(np.arange(len(dense)), column.lengths)
    dense[rows, length - column.offsets[1:][rows] + np.arange(len(column.values))] = column.values
    return dense


def document_dataset(records: Path, spec: FeatureSpec, batch_size: int) -> Any:
    """Load the files of `write_records` as the document does, as batches of (inputs, labels) for Rankline's models."""
    shapes = {f.name: (batch_size, f.max_length if f.is_list else 1) for f in spec.features}
    parsed_as = {name: tf.io.FixedLenFeature(shape, tf.int64) for name, shape in shapes.items()}

    def batch(record: Any) -> tuple[dict[str, Any], Any]:
        columns = tf.io.parse_single_example(record, parsed_as)
        mask = columns[spec.channels[HISTORY][0]] > 0
        inputs = {}
        for feature in spec.categorical:
            if feature.is_list:
                inputs[feature.name + VALUES] = tf.boolean_mask(columns[feature.name], mask)[:, None]
                inputs[feature.name + NNZS] = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)
            else:
                inputs[feature.name] = columns[feature.name]
        return inputs, tf.cast(columns[spec.label.name], tf.float32)

    return tf.data.TFRecordDataset(str(records)).map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(_PREFETCH)


class _FullLength(SIMConfig):
    """SIM with histories of full length, as for XLA, but not compiled."""

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        return super().build(spec, replace(step, xla=True))


def _name(*words: str) -> str:
    return ", ".join(words)


def _ratios(rates: Rates) -> dict[str, float]:
    def over_tfrecord(*words: str) -> float:
        return median_ratio(rates, _name(SIM, *words), _name(_TFRECORD, *words))

    return {
        "vs_tfrecord": over_tfrecord(),
        "vs_tfrecord_cached": median_ratio(rates, SIM, _name(_TFRECORD, _CACHED)),
        "vs_tfrecord_ragged": median_ratio(rates, SIM, _name(_TFRECORD, _RAGGED)),
        "vs_tfrecord_small_layers": over_tfrecord(_SMALL),
        "data_vs_tfrecord": over_tfrecord(_NO_MODEL),
        "vs_step_alone": median_ratio(rates, SIM, _name(SIM, _HELD)),
    }
