"""The `tf.feature_column`s that the feature layers support.

These are `embedding_column` and `indicator_column` over `categorical_column_with_identity`, and `numeric_column`.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.workflows.core.errors import ConfigError

COMBINERS = {
    "mean": tf.sparse.segment_mean,
    "sum": tf.sparse.segment_sum,
    "sqrtn": tf.sparse.segment_sqrt_n,
}


def key_of(column: Any) -> str:
    return str(getattr(column, "categorical_column", column).key)


def kind_of(column: Any) -> str:
    """Return "numeric", "embedding" or "indicator"."""
    categorical = getattr(column, "categorical_column", None)
    if categorical is None and hasattr(column, "normalizer_fn"):
        return "numeric"
    if hasattr(categorical, "number_buckets"):  # only identity columns have it
        return "embedding" if hasattr(column, "combiner") else "indicator"
    raise ConfigError(
        f"DenseFeatures got {type(column).__name__}, expected numeric_column, or embedding_column or indicator_column "
        "over categorical_column_with_identity."
    )


def num_ids(column: Any) -> int:
    """Number of ids of an embedding or indicator column; each id is in [0, this)."""
    return int(column.categorical_column.num_buckets)


def width_of(column: Any) -> int:
    """Number of output columns in a feature layer."""
    kind = kind_of(column)
    if kind == "numeric":
        return int(column.shape[0])
    return int(column.dimension) if kind == "embedding" else num_ids(column)


def initializer_of(column: Any) -> Any:
    """Return the initializer of an embedding column as a Keras initializer; the default one is TensorFlow 1's."""
    initializer = column.initializer
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return getattr(keras.initializers, type(initializer).__name__).from_config(initializer.get_config())


def column_config(column: Any) -> dict[str, Any]:
    kind = kind_of(column)
    if kind == "numeric":
        if column.normalizer_fn is not None:
            raise ConfigError(f"numeric column {column.key!r} has a normalizer_fn. Normalise when preparing instead.")
        return {"kind": kind, "key": column.key, "shape": list(column.shape)}
    config = {"kind": kind, "key": key_of(column), "num_buckets": num_ids(column)}
    if kind == "embedding":
        if column.combiner not in COMBINERS:
            raise ConfigError(f"combiner is {column.combiner!r}. Available: {sorted(COMBINERS)}.")
        initializer = keras.initializers.serialize(initializer_of(column))
        config |= {"dimension": column.dimension, "combiner": column.combiner, "initializer": initializer}
        config["trainable"] = column.trainable
    return config


def column_from_config(config: Mapping[str, Any]) -> Any:
    if config["kind"] == "numeric":
        return tf.feature_column.numeric_column(config["key"], shape=tuple(config["shape"]))
    ids = tf.feature_column.categorical_column_with_identity(config["key"], config["num_buckets"])
    if config["kind"] == "indicator":
        return tf.feature_column.indicator_column(ids)
    initializer = keras.initializers.deserialize(config["initializer"])
    return tf.feature_column.embedding_column(
        ids, config["dimension"], config["combiner"], initializer=initializer, trainable=config["trainable"]
    )
