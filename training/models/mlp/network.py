"""The multi-layer perceptron of NVTabular's MovieLens examples: embeddings side by side, then dense layers."""

from typing import Any

import tf_keras as keras

from training.models.base import dense_layers, embedded, keras_inputs, logit, score
from training.models.config import StepConfig
from training.models.mlp import MLPConfig
from workflows.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    """Embeddings (lists averaged) beside numbers, the dense layers with ReLU, one sigmoid.

    Raises:
        SpecError: a continuous feature is a list.
        ConfigError: there are no features.
    """
    inputs = keras_inputs(spec)
    x = dense_layers(embedded(inputs, spec, model, step), model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=score(logit(x), inputs, spec, model, step))
