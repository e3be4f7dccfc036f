"""The multilayer perceptron of NVTabular's MovieLens examples: embeddings side by side, then dense layers."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import (
    dense_layers,
    embedded,
    embedded_ids,
    feature_layer,
    keras_inputs,
    number_columns,
    scores,
)
from rankline.training.models.config import StepConfig
from rankline.training.models.layers.periodic import PeriodicNumbers
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.schema.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    inputs = keras_inputs(spec)
    has_vectors = bool(model.number_dim and spec.continuous)
    x = _with_vectors(inputs, spec, model, step) if has_vectors else embedded(inputs, spec, model, step)
    x = dense_layers(x, model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))


def _with_vectors(inputs: Any, spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    numbers = feature_layer(number_columns(spec.continuous), spec.continuous, step, name="numbers")(inputs)
    vectors = PeriodicNumbers(model.number_dim, model.number_frequencies, model.number_scale)(numbers)
    parts = [numbers, tf.cast(vectors, numbers.dtype)]
    if spec.categorical:
        parts.insert(0, embedded_ids(inputs, spec, model, step))
    return tf.concat(parts, axis=1)
