"""The two input pipelines of NVIDIA's Criteo notebook: TensorFlow's native pipeline, and the accelerated one.

"Training Tabular Deep Learning Models with Keras on GPU" trains DLRM twice. Both pipelines read the same encoded rows,
hash ids to three quarters of each column's cardinality, have tables of the same shapes, and share the rest of the
model. The native one reads TFRecord by `make_batched_features_dataset`, hashes in feature columns, and embeds by
`keras.layers.DenseFeatures`. The accelerated one reads Parquet by `KerasSequenceLoader`, hashes by an NVTabular
workflow in the loader, and embeds by `ScalarDenseFeatures`.
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
from rankline.training.models.tabular import DLRMConfig
from rankline.training.models.tabular.network import head
from rankline.workflows.schema.feature_spec import FeatureSpec

HASH_SHARE = 0.75
"""Number of hash buckets of a column, as a share of its cardinality."""


def hashed(spec: FeatureSpec) -> FeatureSpec:
    """Return the spec of the rows after hashing, with the number of buckets as the cardinality of each id column."""
    features = (
        feature if feature.cardinality is None else replace(feature, cardinality=num_buckets(feature.cardinality))
        for feature in spec.features
    )
    return replace(spec, features=tuple(features))


def notebook_dataset(files: Sequence[Path], spec: FeatureSpec, batch_size: int) -> Any:
    """Return the reading path of NVIDIA's Criteo notebook: `make_batched_features_dataset` for one epoch.

    The shuffle buffer holds four batches; other options keep TensorFlow's defaults. The notebook has only scalar
    columns; a list column is a `VarLenFeature`, as feature columns expect.
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
    """Return numeric columns, and embedding columns over the hash buckets."""
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
    """Return an epoch of shuffled batches of inputs and labels (N, 1), from Parquet if `accelerated`, else TFRecord."""
    if not accelerated:
        return notebook_dataset(files, spec, batch_size)
    loader = KerasSequenceLoader(files, batch_size, [spec.label.name], feature_columns=columns)
    return loader.map(_hashing_workflow(files, spec))


class Accelerated(DLRMConfig):
    """DLRM for rows with ids that are already hashed."""

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        return super().build(hashed(spec), step)


class Native(DLRMConfig):
    """DLRM that hashes ids in its feature columns.

    Under a Keras mixed-precision policy, only the layers after the tables have reduced precision, as in the accelerated
    pipeline; the notebook's native tables would be cast as a whole in each step.
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
    """Return the DLRM config for the rows of `make_dataset`, without linear terms, which the notebook does not have."""
    choices = vars(config.model) | {"linear_terms": False}
    return replace(config, model=Accelerated(**choices) if accelerated else Native(**choices))


def _hashing_workflow(files: Sequence[Path], spec: FeatureSpec) -> Any:
    """Return a workflow that keeps numbers and hashes ids; fitting it only determines column types."""
    from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
    from rankline.workflows.nvt.operators import StableHashBucket

    with quiet_nvtabular():
        buckets = {f.name: num_buckets(f.embedding_shape[0]) for f in spec.categorical}
        outputs = (list(buckets) >> StableHashBucket(buckets)) + [feature.name for feature in spec.continuous]
        return nvt.Workflow(outputs).fit(nvt.Dataset([str(path) for path in files[:1]], engine="parquet"))
