"""The two pipelines of NVIDIA's Criteo notebook for one model: TensorFlow's own, and the accelerated one.

"Training Tabular Deep Learning Models with Keras on GPU" trains DLRM twice. Both pipelines read the same encoded rows,
hash their ids to three quarters of each column's cardinality, have tables of the same shapes, and share what comes
behind them. They differ in three places:

                 native                                  accelerated
    rows         TFRecord, make_batched_features_dataset Parquet, `KerasSequenceLoader`
    hashing      feature columns, in the graph           an NVTabular workflow, online in the loader
    embeddings   `keras.layers.DenseFeatures`         `ScalarDenseFeatures`

A peer to measure against: recipes are trained by `rankline.training.run.train`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tensorflow import KerasSequenceLoader
from rankline.training.data.loader.tfrecord import tensor_dtype
from rankline.training.models.base import embedding_columns, keras_inputs, number_columns, scores
from rankline.training.models.config import ModelConfig, NetworkConfig, StepConfig
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.dlrm.network import head
from rankline.workflows.schema.feature_spec import FeatureSpec

HASH_SHARE = 0.75
"""Buckets that the ids of a column are hashed to, as a share of its cardinality."""


def hashed(spec: FeatureSpec) -> FeatureSpec:
    """The spec of the rows after hashing: each column of ids has the buckets for its cardinality."""
    features = (
        feature if feature.cardinality is None else replace(feature, cardinality=num_buckets(feature.cardinality))
        for feature in spec.features
    )
    return replace(spec, features=tuple(features))


def notebook_dataset(files: Sequence[Path], spec: FeatureSpec, batch_size: int) -> Any:
    """The reading path of NVIDIA's Criteo notebook: `make_batched_features_dataset` for one epoch.

    It has a shuffle buffer of four batches, all else as TensorFlow has it. The notebook has single columns only; a list
    column comes as `VarLenFeature`, which is what feature columns take.

    Args:
        files: TFRecord files with one row per record.
        spec: which columns there are and what they hold.
        batch_size: rows per batch.

    Returns:
        A `tf.data.Dataset` of (features, label): a dictionary of (N, 1) tensors, SparseTensors for lists; label (N, 1)
        of the type in the file.
    """
    parsers = {
        feature.name: tf.io.VarLenFeature(tensor_dtype(feature))
        if feature.is_list
        else tf.io.FixedLenFeature((1,), tensor_dtype(feature))
        for feature in (*spec.categorical, *spec.continuous, spec.label)
    }
    return tf.data.experimental.make_batched_features_dataset(
        [str(path) for path in files],
        batch_size,
        parsers,
        label_key=spec.label.name,
        num_epochs=1,
        shuffle=True,
        shuffle_buffer_size=4 * batch_size,
    )


def num_buckets(cardinality: int) -> int:
    return max(1, int(HASH_SHARE * cardinality))


def feature_columns(spec: FeatureSpec, model: ModelConfig, *, accelerated: bool) -> list[Any]:
    """Numeric columns, and embedding columns over the buckets."""
    assert isinstance(model, NetworkConfig)
    embeddings = embedding_columns(hashed(spec).categorical, model)
    if not accelerated:
        embeddings = [
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_hash_bucket(
                    column.categorical_column.key, column.categorical_column.num_buckets, dtype=tf.int64
                ),
                column.dimension,
                initializer=column.initializer,
            )
            for column in embeddings
        ]
    return number_columns(spec.continuous) + embeddings


def make_dataset(
    files: Sequence[Path], spec: FeatureSpec, columns: Sequence[Any], batch_size: int, *, accelerated: bool
) -> Any:
    """One epoch of shuffled rows for each pass, in pairs of inputs and labels, shapes (N, 1).

    Args:
        files: Parquet files if `accelerated`, else TFRecord files with one row per record.
        spec: the encoded rows, not hashed.
        columns: of `feature_columns`.
        batch_size: rows per batch; the last one may be smaller.
        accelerated: read Parquet, and hash while loading.
    """
    if not accelerated:
        return notebook_dataset(files, spec, batch_size)
    loader = KerasSequenceLoader(files, batch_size, [spec.label.name], feature_columns=columns)
    return loader.map(_hashing_workflow(files, spec))


class Accelerated(DLRMConfig):
    """DLRM for rows whose ids are hashed already."""

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        return super().build(hashed(spec), step)


class Native(DLRMConfig):
    """DLRM that hashes ids in its feature columns.

    Under a Keras policy of mixed precision the tables are float32 and only what comes behind them is not, as on the
    other side; the notebook's native tables would be cast as a whole in each step.
    """

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        columns = feature_columns(spec, self, accelerated=False)
        numbers, embeddings = columns[: len(spec.continuous)], columns[len(spec.continuous) :]
        inputs = keras_inputs(spec)
        side_by_side = keras.layers.DenseFeatures(embeddings, dtype=tf.float32)(inputs)
        vectors = keras.layers.Reshape((len(embeddings), self.embedding_dim))(side_by_side)
        dense = keras.layers.DenseFeatures(numbers, dtype=tf.float32)(inputs)
        return keras.Model(inputs, scores(head(vectors, dense, self, step), inputs, spec, self, step))


def peer(config: TrainConfig, *, accelerated: bool) -> TrainConfig:
    """The run of DLRM for the rows of `make_dataset`, without the linear terms, which the notebook does not have."""
    choices = vars(config.model) | {"linear_terms": False}
    return replace(config, model=Accelerated(**choices) if accelerated else Native(**choices))


def _hashing_workflow(files: Sequence[Path], spec: FeatureSpec) -> Any:
    """Numbers as they are, ids in buckets; it has nothing to learn from the rows but their types."""
    from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
    from rankline.workflows.nvt.operators import StableHashBucket

    with quiet_nvtabular():
        buckets = {f.name: num_buckets(f.embedding_shape[0]) for f in spec.categorical}
        outputs = (list(buckets) >> StableHashBucket(buckets)) + [feature.name for feature in spec.continuous]
        return nvt.Workflow(outputs).fit(nvt.Dataset([str(path) for path in files[:1]], engine="parquet"))
