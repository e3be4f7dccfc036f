"""MMoE (Ma et al. 2018): experts shared by all labels, and for each label a gate that weights them, and a tower.

embeddings, numbers ─┬─▶ experts ─▶ mean weighted by ─┬─▶ tower ─▶ head    once per head
                     └─▶ gate, softmax ───────────────┘
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import dense_layers, embedded, keras_inputs, scores
from rankline.training.models.config import StepConfig
from rankline.training.models.mmoe import MMoEConfig
from rankline.workflows.schema.feature_spec import FeatureSpec


def build(spec: FeatureSpec, model: MMoEConfig, step: StepConfig) -> Any:
    inputs = keras_inputs(spec)
    x = embedded(inputs, spec, model, step)
    experts = tf.stack([dense_layers(x, model.hidden, model.dropout) for _ in range(model.experts)], axis=1)
    towers = []
    for _ in spec.heads:
        gate = keras.layers.Dense(model.experts, activation="softmax")(x)
        mixed = tf.reduce_sum(experts * gate[..., None], axis=1)
        towers.append(dense_layers(mixed, model.tower, model.dropout))
    return keras.Model(inputs=inputs, outputs=scores(towers, inputs, spec, model, step))
