"""A factorization machine as a Keras model, built from given tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import keras_inputs
from rankline.training.models.layers import DenseFeatures
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import BINARY


def served_model(spec: FeatureSpec, tables: Mapping[str, Any]) -> Any:
    """Return a Keras model that computes the sum of all linear weights and all pairwise dot products between columns.

    Args:
        spec: the features, which must be ids or lists of ids, and one head.
        tables: feature → (ids, dimensions + 1), of which the last column is linear; lists are averaged.
    """
    inputs = keras_inputs(spec)
    width = next(iter(tables.values())).shape[1]
    columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity(name, len(table)), width, combiner="mean"
        )
        for name, table in tables.items()
    ]
    layer = DenseFeatures(columns, name="features")
    vectors, linear = tf.split(tf.reshape(layer(inputs), (-1, len(columns), width)), [width - 1, 1], axis=2)
    total = tf.reduce_sum(vectors, axis=1)
    pairs = (tf.reduce_sum(total**2, axis=1) - tf.reduce_sum(vectors**2, axis=(1, 2))) / 2
    scores = (tf.reduce_sum(linear, axis=(1, 2)) + pairs)[:, None]
    (head,) = spec.heads
    if head.task == BINARY:
        output = (1 + tf.math.erf(scores / math.sqrt(2))) / 2
    else:
        output = keras.layers.Rescaling(head.deviation, head.mean, name="output")(scores)
    model = keras.Model(inputs, output)
    for name, table in tables.items():
        layer.tables[name].assign(np.asarray(table, np.float32))
    return model
