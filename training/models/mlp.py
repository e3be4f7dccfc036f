"""The multi-layer perceptron of NVTabular's MovieLens examples: embeddings side by side, then dense layers."""

from typing import Any

import tensorflow as tf

from training.config import TrainConfig
from training.layers import DenseFeatures
from training.models.base import embedding_columns, keras_inputs, linear_columns
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, config: TrainConfig) -> Any:
    """Build the model.

    Embeddings (lists averaged) and numbers are concatenated, go through the dense layers with ReLU, and one sigmoid
    gives the score. With `linear_terms` the weights of the row's ids are added before the sigmoid.

    Args:
        spec: says which features there are, and how large their tables are.
        config: choices about the network.

    Returns:
        A functional `tf.keras.Model`; its inputs are those of `keras_inputs`, its output "output" has shape (N, 1).

    Raises:
        SpecError: a continuous feature is a list.
    """
    inputs = keras_inputs(spec)
    numbers = [tf.feature_column.numeric_column(feature.name) for feature in spec.continuous]
    x = DenseFeatures(
        embedding_columns(spec.categorical, config) + numbers,
        activity_regularizer=_l2(config.l2_embedding),
        name="features",
    )(inputs)
    if config.embedding_dropout:
        x = tf.keras.layers.Dropout(config.embedding_dropout)(x)
    for units in config.hidden:
        x = tf.keras.layers.Dense(units, activation="relu")(x)
        if config.dropout:
            x = tf.keras.layers.Dropout(config.dropout)(x)
    logit = tf.keras.layers.Dense(1)(x)
    if config.linear_terms:
        weights = DenseFeatures(
            linear_columns(spec.categorical), activity_regularizer=_l2(config.l2_linear), name="linear"
        )(inputs)
        logit += config.linear_scale * tf.reduce_sum(weights, axis=1, keepdims=True)
    score = tf.keras.layers.Activation("sigmoid", name="output")(logit)
    return tf.keras.Model(inputs=inputs, outputs=score)


def _l2(weight: float) -> Any:
    return tf.keras.regularizers.L2(weight) if weight else None
