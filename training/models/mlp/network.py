"""The multi-layer perceptron of NVTabular's MovieLens examples: embeddings side by side, then dense layers."""

from typing import Any

import tensorflow as tf

from training.models.base import dense_layers, embedded, keras_inputs, logit, score
from training.models.config import StepConfig
from training.models.mlp import MLPConfig
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    """Build the model.

    Embeddings (lists averaged) and numbers are concatenated, go through the dense layers with ReLU, and one sigmoid
    gives the score. With `linear_terms` the weights of the row's ids are added before the sigmoid.

    Args:
        spec: says which features there are, and how large their tables are.
        model: its choices.
        step: how it will be computed.

    Returns:
        A functional `tf.keras.Model`; its inputs are those of `keras_inputs`, its output "output" has shape (N, 1).

    Raises:
        SpecError: a continuous feature is a list.
        ConfigError: there are no features.
    """
    inputs = keras_inputs(spec)
    x = dense_layers(embedded(inputs, spec, model, step), model.hidden, model.dropout)
    return tf.keras.Model(inputs=inputs, outputs=score(logit(x), inputs, spec, model, step))
